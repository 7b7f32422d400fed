"""Bit-exact reference semantics of LLM-inference kernels, and CPU kernels that follow them.

``refkern.OP(...)`` runs the numba kernel, ``refkern.reference.OP(...)`` the numpy reference with
every intermediate stage.  `op_names` and `recipe_names` say what there is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from refkern import ops as _ops
from refkern.casts import cast, widen
from refkern.errors import InvalidInput
from refkern.op import public_function as _public_function
from refkern.policy import built_in as _policies
from refkern.threads import set_num_threads
from refkern.ulp import ulp_distance
from refkern.verdict import check

__version__ = "0.1.0"
__all__ = [
    "InvalidInput",
    "cast",
    "check",
    "op_names",
    "policy_names",
    "recipe_names",
    "set_num_threads",
    "ulp_distance",
    "widen",
]
#: packages and modules that are loaded when they are first asked for
_LAZY = ("accept", "cli", "goldens", "hardware", "reference")


def op_names() -> list[str]:
    """The ops, sorted."""
    return list(_ops.names())


def recipe_names(op: str) -> list[str]:
    """The recipes of an op, sorted."""
    return sorted(_ops.load(op).recipes)


def policy_names() -> list[str]:
    """The policies that come with refkern, sorted."""
    return sorted(_policies())


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'refkern' has no attribute {name!r}")
    if name in _LAZY:
        try:
            return import_module(f"refkern.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"refkern.{name}":
                raise
            raise AttributeError(f"module 'refkern' has no attribute {name!r}") from None
    found: Any = None
    if name in _ops.names():
        found = _public_function(_ops.load(name))
    else:
        for op in _ops.names():
            found = _ops.load(op).functions.get(name, found)
    if found is None:
        raise AttributeError(f"module 'refkern' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    further = [name for op in _ops.names() for name in _ops.load(op).functions]
    return sorted({*__all__, *_ops.names(), *further, *_LAZY})
