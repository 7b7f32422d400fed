"""Arithmetic of real machines that is not IEEE 754: one folder an architecture."""

from __future__ import annotations

from importlib import import_module
from typing import Any

ARCHITECTURES = ("sm90",)


def __getattr__(name: str) -> Any:
    if name in ARCHITECTURES:
        return import_module(f"refkern.hardware.{name}")
    raise AttributeError(f"module 'refkern.hardware' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(ARCHITECTURES)
