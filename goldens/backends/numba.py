"""The numba kernels as a backend: `bits` on every case."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import refkern
from refkern.goldens.backends import Backend, Computed


def backend(device: str | None = None) -> Backend:
    return Backend(
        name="numba",
        summary="refkern's CPU kernels",
        compute=compute,
        policy="ieee",
        version=lambda: f"refkern {refkern.__version__}, numba {version('numba')}",
    )


def compute(op: str, inputs: dict[str, Any], params: dict[str, Any], *, recipe: str) -> Computed:
    return {"out": getattr(refkern, op)(**inputs, **params, recipe=recipe)}
