"""A WebGPU adapter: buffers in, one dispatch, buffers out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np

from refkern.goldens.backends import Unavailable

#: of a dispatch along one axis
MOST_WORKGROUPS = 65535

PROBE = """
@group(0) @binding(0) var<storage, read_write> size: array<u32>;
@compute @workgroup_size(64) fn main(
    @builtin(local_invocation_index) index: u32, @builtin(subgroup_size) subgroup: u32) {
  if (index == 0u) { size[0] = subgroup; }
}
"""


@dataclass(frozen=True, eq=False)
class Device:
    description: str
    #: lanes of a subgroup
    subgroup: int
    has_float16: bool
    device: Any

    def run(
        self,
        source: str,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[tuple[int, np.dtype]],
        workgroups: int,
    ) -> list[np.ndarray]:
        """One dispatch of ``source``'s `main`; inputs, then outputs (count, dtype) are bindings."""
        import wgpu

        usage = wgpu.BufferUsage
        buffers = [
            self.device.create_buffer_with_data(data=_whole_words(array), usage=usage.STORAGE)
            for array in inputs
        ]
        results = [
            self.device.create_buffer(
                size=_word_bytes(count * dtype.itemsize), usage=usage.STORAGE | usage.COPY_SRC
            )
            for count, dtype in outputs
        ]
        pipeline = _pipeline(self.device, source)
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for i, b in enumerate([*buffers, *results])
        ]
        group = self.device.create_bind_group(
            layout=pipeline.get_bind_group_layout(0), entries=entries
        )
        encoder = self.device.create_command_encoder()
        step = encoder.begin_compute_pass()
        step.set_pipeline(pipeline)
        step.set_bind_group(0, group)
        across = min(workgroups, MOST_WORKGROUPS)
        step.dispatch_workgroups(across, -(-workgroups // across), 1)
        step.end()
        self.device.queue.submit([encoder.finish()])
        return [
            np.frombuffer(self.device.queue.read_buffer(buffer), dtype)[:count]
            for buffer, (count, dtype) in zip(results, outputs, strict=True)
        ]


@cache
def _pipeline(device: Any, source: str) -> Any:
    module = device.create_shader_module(code=source)
    stage = {"module": module, "entry_point": "main"}
    return device.create_compute_pipeline(layout="auto", compute=stage)


def _word_bytes(size: int) -> int:
    """A buffer's size: whole 32-bit words, and not empty."""
    return max(-(-size // 4) * 4, 4)


def _whole_words(array: np.ndarray) -> bytes:
    data = np.ascontiguousarray(array).tobytes()
    return data.ljust(_word_bytes(len(data)), b"\0")


@cache
def open_device(name: str | None = None) -> Device:
    """The first adapter with subgroups; ``name``: a part of its name.  Raises Unavailable."""
    # Mesa's cache of compiled shaders does not know of LP_NATIVE_VECTOR_WIDTH, which decides how
    # large subgroups are: a cached shader may be one for another size.
    os.environ.setdefault("MESA_SHADER_CACHE_DISABLE", "true")
    try:
        import wgpu
    except ImportError:
        raise Unavailable("wgpu is not installed") from None
    try:
        adapters = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:
        raise Unavailable(f"wgpu finds no adapter: {error}") from None
    for adapter in adapters:
        full_name = f"{adapter.info['device']} via {adapter.info['backend_type']}"
        if "subgroup" in adapter.features and (name or "").lower() in full_name.lower():
            return _opened(adapter, full_name)
    found = ", ".join(a.info["device"] for a in adapters) or "none"
    raise Unavailable(f"no adapter with subgroups{f' called {name!r}' * bool(name)}; {found}")


def _opened(adapter: Any, name: str) -> Device:
    has_float16 = "shader-f16" in adapter.features
    features = ["subgroup", *["shader-f16"] * has_float16]
    device = adapter.request_device_sync(required_features=features)
    unknown = Device(name, 0, has_float16, device)
    # What an adapter reports is a range; only a shader knows.
    subgroup = int(unknown.run(PROBE, [], [(1, np.dtype(np.uint32))], 1)[0][0])
    description = f"wgpu {version('wgpu')}, {name}, subgroups of {subgroup}"
    return Device(description, subgroup, has_float16, device)
