"""Golden fixtures: case -> inputs -> stages -> file -> backend -> comparison -> report."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Loaded when it is asked for: it needs h5py.
    if name == "capture":
        from refkern.goldens.capturing import Capture

        return Capture
    raise AttributeError(f"module 'refkern.goldens' has no attribute {name!r}")
