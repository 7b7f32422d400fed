"""The numpy reference as a backend: every stage, and `bits` on every case."""

from __future__ import annotations

from typing import Any

import numpy

import refkern
from refkern.goldens.backends import Backend, Computed


def backend(device: str | None = None) -> Backend:
    return Backend(
        name="numpy",
        summary="refkern's numpy reference",
        compute=compute,
        policy="ieee",
        version=lambda: f"refkern {refkern.__version__}, numpy {numpy.__version__}",
    )


def compute(op: str, inputs: dict[str, Any], params: dict[str, Any], *, recipe: str) -> Computed:
    stages = dict(getattr(refkern.reference, op)(**inputs, **params, recipe=recipe))
    return {"out": stages.pop("out")}, stages
