"""Backends: whatever computes an op, by name.

A backend is a callable (op name, inputs, params, *, recipe) -> outputs, or (outputs, stages), all
by name.  refkern's own are the modules of this package; another package offers one through the
entry-point group "refkern.backends".
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from refkern.errors import InvalidInput

Arrays = Mapping[str, np.ndarray]
#: outputs, or outputs and stages
Computed = Arrays | tuple[Arrays, Arrays]


class Unavailable(Exception):
    """The backend cannot run here at all; the text says why."""


class Unsupported(Exception):
    """The backend does not do this case; the text says why."""


@dataclass(frozen=True)
class Backend:
    name: str
    #: one line for `refkern list backends`
    summary: str
    compute: Callable[..., Computed]
    #: the policy by which it is judged unless another is asked for
    policy: str
    #: the version of what computes; raises Unavailable
    version: Callable[[], str]
    #: the ops it serves; None: all
    ops: tuple[str, ...] | None = None

    def __call__(
        self,
        op: str,
        inputs: Mapping[str, np.ndarray | None],
        params: Mapping[str, Any],
        *,
        recipe: str,
    ) -> tuple[Arrays, Arrays]:
        """Outputs and stages of one case.  Raises Unsupported where it does not serve the op."""
        if self.ops is not None and op not in self.ops:
            raise Unsupported(f"{self.name} does not serve {op}")
        computed = self.compute(op, dict(inputs), dict(params), recipe=recipe)
        return computed if isinstance(computed, tuple) else (computed, {})


GROUP = "refkern.backends"


def names() -> list[str]:
    """Every backend that can be named; exec:PROGRAM takes any program."""
    own = {m.name for m in pkgutil.iter_modules(__path__)} - {"exec"}
    return [*sorted(own | {e.name for e in entry_points(group=GROUP)}), "exec:PROGRAM"]


def load(name: str, device: str | None = None) -> Backend:
    """The backend of that name.  Raises InvalidInput for an unknown one."""
    kind, _, rest = name.partition(":")
    if kind == "exec":
        return import_module(f"{__name__}.exec").backend(rest)
    own = {m.name for m in pkgutil.iter_modules(__path__)}
    if kind in own and not rest:
        return import_module(f"{__name__}.{kind}").backend(device)
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _wrap(name, entry.load())
    raise InvalidInput("backend", repr(name), f"there are {', '.join(names())}")


def _wrap(name: str, compute: Any) -> Backend:
    """A third party's callable, or its Backend as it is."""
    if isinstance(compute, Backend):
        return compute
    return Backend(
        name=name,
        summary=(getattr(compute, "__doc__", None) or "a backend of another package").split("\n")[
            0
        ],
        compute=compute,
        policy=getattr(compute, "policy", "ieee"),
        version=lambda: str(getattr(compute, "version", "unknown")),
    )
