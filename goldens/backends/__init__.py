"""Backends: whatever computes an op, by name.

A backend is a callable (op name, inputs, params) -> outputs, or (outputs, stages), all by name.  It
is given the case's recipe as well, by keyword, if it takes one.  refkern's own are the modules of
this package; another package offers one through the entry-point group "refkern.backends".
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np

from refkern.errors import InvalidInput

#: a program that takes longer for one case has failed
TIMEOUT_SECONDS = 300.0
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
        outputs, stages = computed if isinstance(computed, tuple) else (computed, {})
        for part in (outputs, stages):
            if not isinstance(part, Mapping):
                raise TypeError(f"{self.name} returned {type(part).__name__}, not arrays by name")
        return outputs, stages


GROUP = "refkern.backends"


def names() -> list[str]:
    """Every backend that can be named; exec:PROGRAM takes any program."""
    own = {m.name for m in pkgutil.iter_modules(__path__)} - {"exec"}
    return [*sorted(own | {e.name for e in entry_points(group=GROUP)}), "exec:PROGRAM"]


def load(name: str, device: str | None = None, timeout: float = TIMEOUT_SECONDS) -> Backend:
    """The backend of that name.  Raises InvalidInput for an unknown one.

    timeout: seconds that exec:PROGRAM may take for one case.
    """
    kind, _, rest = name.partition(":")
    if kind == "exec":
        return import_module(f"{__name__}.exec").backend(rest, timeout)
    own = {m.name for m in pkgutil.iter_modules(__path__)}
    if kind in own and not rest:
        return import_module(f"{__name__}.{kind}").backend(device)
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            return _foreign(entry)
    raise InvalidInput("backend", repr(name), f"there are {', '.join(names())}")


def _foreign(entry: EntryPoint) -> Backend:
    """A third party's callable, or its Backend as it is."""
    try:
        found = entry.load()
    except Exception as error:
        # Foreign code: a missing framework shows as any error, and must not stop `list backends`.
        return _unavailable(entry.name, f"{type(error).__name__}: {error}")
    if isinstance(found, Backend):
        return found
    takes_recipe = _takes_recipe(found)

    def compute(
        op: str, inputs: dict[str, Any], params: dict[str, Any], *, recipe: str
    ) -> Computed:
        return found(op, inputs, params, **({"recipe": recipe} if takes_recipe else {}))

    summary = (getattr(found, "__doc__", None) or "").strip().partition("\n")[0]
    return Backend(
        name=entry.name,
        summary=summary or "a backend of another package",
        compute=compute,
        policy=str(getattr(found, "policy", "ieee")),
        version=lambda: str(getattr(found, "version", entry.value)),
        ops=getattr(found, "ops", None),
    )


def _takes_recipe(compute: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(compute).parameters
    except (TypeError, ValueError):  # a callable of C has no signature; the contract names it
        return True
    return "recipe" in parameters or any(
        p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()
    )


def _unavailable(name: str, reason: str) -> Backend:
    def refuse(*arguments: Any, **more: Any) -> Any:
        raise Unavailable(" ".join(reason.split()))

    return Backend(name, "a backend of another package", refuse, "ieee", refuse)
