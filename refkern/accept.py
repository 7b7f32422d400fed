"""``refkern.accept.OP``: the interval in which every correct implementation's output lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refkern import ops
from refkern.op import accept_function


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in ops.names():
        raise AttributeError(f"refkern.accept has {', '.join(ops.names())}, not {name!r}")
    found = accept_function(ops.load(name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(ops.names())
