"""WebGPU through wgpu-py: refkern's own WGSL on whatever adapter this machine has.

The order of a sum follows from the adapter's subgroups: `version` says how large they are.
"""

from __future__ import annotations

from refkern.goldens.backends import Backend, Computed, Unsupported
from refkern.goldens.backends.webgpu import gated_rmsnorm
from refkern.goldens.backends.webgpu.device import open_device

OPS = {"gated_rmsnorm": gated_rmsnorm.run}


def backend(device: str | None = None) -> Backend:
    """device: a part of the adapter's name; None: the first adapter with subgroups."""

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        return OPS[op](open_device(device), inputs, params, recipe)

    return Backend(
        name="webgpu",
        summary="refkern's WGSL on this machine's adapter",
        compute=compute,
        policy="wgsl",
        version=lambda: open_device(device).description,
        ops=tuple(OPS),
    )


__all__ = ["Unsupported", "backend"]
