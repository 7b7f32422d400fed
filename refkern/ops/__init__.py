"""One op, one folder.  A folder that is here is an op: nothing else lists them."""

from __future__ import annotations

import functools
import pkgutil
from importlib import import_module

from refkern.errors import InvalidInput
from refkern.op import Op


@functools.cache
def names() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.ispkg))


@functools.cache
def load(name: str) -> Op:
    """The op of that name; loads its `spec`, no kernel and no reference."""
    if name not in names():
        raise InvalidInput("op", repr(name), f"there are {', '.join(names())}")
    return import_module(f"{__name__}.{name}.spec").OP
