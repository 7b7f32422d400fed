"""Modular MAX: its own shipped gated_group_rmsnorm, through the graph API, on the CPU or a GPU."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from refkern.goldens.backends import Arrays, Backend, Computed, Unavailable, Unsupported

#: by which it is judged
POLICIES = {"cpu": "ieee", "cuda": "cuda-fast", "metal": "metal-fast"}
CARRIERS = {2: np.uint16, 4: np.uint32}


def backend(device: str | None = None) -> Backend:
    """device: "cpu" (the default), "cuda" or "metal": the first GPU that MAX finds."""
    device = device or "cpu"

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        return gated_group_rmsnorm(device, **inputs, **params)

    return Backend(
        name="max",
        summary="Modular MAX's shipped kernels",
        compute=compute,
        policy=POLICIES.get(device, "ieee"),
        version=lambda: installed_version(device),
        ops=("gated_group_rmsnorm",),
    )


@cache
def installed_version(device: str) -> str:
    try:
        from max import driver, engine  # noqa: F401
        from max.nn.state_space import gated_group_rmsnorm  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"{error.name or error} is not installed") from None
    if device not in POLICIES:
        raise Unavailable(f"device {device!r}: there are {', '.join(POLICIES)}")
    if device != "cpu" and not driver.accelerator_count():
        raise Unavailable(f"device {device}: MAX finds no GPU")
    for package in ("max", "modular"):
        try:
            return f"MAX {version(package)}, {device}"
        except PackageNotFoundError:
            continue
    return f"MAX, {device}"


def gated_group_rmsnorm(
    device: str,
    *,
    y: np.ndarray,
    gate: np.ndarray | None,
    weight: np.ndarray,
    group_size: int,
    eps: float = 1e-5,
) -> Arrays:
    if gate is None:
        raise Unsupported("Modular's kernel needs a gate")
    if y.shape[0] == 0:
        return {"out": np.empty_like(y)}
    arrays = (y, gate, weight.astype(np.float32))
    names = tuple(array.dtype.name for array in arrays)
    model = compiled(device, names, y.shape[1], group_size, float(eps))
    result = model.execute(*(to_buffer(array, device) for array in arrays))[0]
    return {"out": to_numpy(result, y)}


@cache
def devices(device: str) -> tuple[Any, Any, Any]:
    """(driver's device, as graphs name it, a session)."""
    from max import driver, engine
    from max.graph import DeviceRef

    place = driver.CPU() if device == "cpu" else driver.Accelerator()
    known = DeviceRef.CPU() if device == "cpu" else DeviceRef.GPU()
    return place, known, engine.InferenceSession(devices=[place])


@cache
def compiled(device: str, types: tuple[str, ...], width: int, group_size: int, eps: float) -> Any:
    """A graph of the one operation, for any number of rows."""
    from max.dtype import DType
    from max.graph import Graph, TensorType
    from max.nn.state_space import gated_group_rmsnorm

    _, known, session = devices(device)
    shapes: tuple[tuple[Any, ...], ...] = (("rows", width), ("rows", width), (width,))
    kinds = [getattr(DType, name) for name in types]
    inputs = [TensorType(kind, shape, known) for kind, shape in zip(kinds, shapes, strict=True)]
    with Graph("gated_group_rmsnorm", input_types=inputs) as graph:
        y, gate, weight = (value.tensor for value in graph.inputs)
        graph.output(gated_group_rmsnorm(y, gate, weight, eps=eps, group_size=group_size))
    return session.load(graph)


def to_buffer(array: np.ndarray, device: str) -> Any:
    """The same bits as MAX's buffer."""
    from max.driver import Buffer
    from max.dtype import DType

    place, _, _ = devices(device)
    codes = np.ascontiguousarray(array).view(CARRIERS[array.itemsize])
    # numpy's read-only inputs are not taken.
    buffer = Buffer.from_numpy(codes.copy())
    return buffer.view(getattr(DType, array.dtype.name), list(array.shape)).to(place)


def to_numpy(buffer: Any, like: np.ndarray) -> np.ndarray:
    from max.driver import CPU
    from max.dtype import DType

    carrier = getattr(DType, f"uint{8 * like.itemsize}")
    return buffer.to(CPU()).view(carrier, list(like.shape)).to_numpy().copy().view(like.dtype)
