"""``refkern.reference.OP``: the numpy reference of every op, with all its stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refkern import ops
from refkern.op import reference_function


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in ops.names():
        raise AttributeError(f"refkern.reference has {', '.join(ops.names())}, not {name!r}")
    found = reference_function(ops.load(name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(ops.names())
