"""MLX: mx.fast.rms_norm, gather_mm and compositions of them, on Metal or the CPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from typing import Any

import ml_dtypes
import numpy as np

from refkern.goldens.backends import Arrays, Backend, Computed, Unavailable, Unsupported

#: by which it is judged: MLX compiles its kernels with Metal's fast math
POLICIES = {"cpu": "ieee", "gpu": "metal-fast"}
CODES = {2: np.uint16, 4: np.float32}


def backend(device: str | None = None) -> Backend:
    """device: "gpu" (or "mps", "metal") or "cpu"; None: a GPU, where there is one."""
    known = {"mps": "gpu", "metal": "gpu"}
    device = known.get(device or default_device(), device or default_device())

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        with on(device):
            return OPS[op](device, recipe, **inputs, **params)

    return Backend(
        name="mlx",
        summary="MLX's rms_norm and gather_mm, and compositions",
        compute=compute,
        policy=POLICIES.get(device, "ieee"),
        version=lambda: installed_version(device),
        ops=tuple(OPS),
    )


@cache
def default_device() -> str:
    try:
        import mlx.core as mx
    except ImportError:
        return "cpu"
    return "gpu" if mx.metal.is_available() else "cpu"


@cache
def installed_version(device: str) -> str:
    try:
        import mlx.core as mx
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    if device not in POLICIES:
        raise Unavailable(f"device {device!r}: there are {', '.join(POLICIES)}")
    if device == "gpu" and not mx.metal.is_available():
        raise Unavailable("device gpu: there is no Metal here")
    return f"mlx {version('mlx')}, {device}"


@contextmanager
def on(device: str) -> Iterator[None]:
    import mlx.core as mx

    with mx.stream(getattr(mx, device)):
        yield


def to_mlx(array: np.ndarray) -> Any:
    """The same bits: MLX knows no ml_dtypes."""
    import mlx.core as mx

    codes = np.ascontiguousarray(array).view(CODES[array.itemsize])
    return mx.array(codes).view(getattr(mx, array.dtype.name))


def to_numpy(array: Any) -> np.ndarray:
    import mlx.core as mx

    if array.dtype != mx.bfloat16:
        return np.array(array)
    return np.array(array.view(mx.uint16)).view(ml_dtypes.bfloat16)


def gated_group_rmsnorm(
    device: str,
    recipe: str,
    *,
    y: np.ndarray,
    gate: np.ndarray | None,
    weight: np.ndarray,
    group_size: int,
    eps: float = 1e-5,
) -> Arrays:
    """mlx-lm's MambaRMSNormGated with the gate in float32, as every other implementation has it."""
    import mlx.core as mx

    rows, width = y.shape
    one_store = recipe == "mamba-ssm" or (recipe == "vllm-mixer2" and width == group_size)
    hidden, scale = to_mlx(y), to_mlx(weight).astype(mx.float32)
    kind, hidden = hidden.dtype, hidden.astype(mx.float32)
    if gate is not None:
        z = to_mlx(gate).astype(mx.float32)
        hidden = hidden * (z * mx.sigmoid(z))
    grouped = hidden.reshape(rows, width // group_size, group_size)
    normalized = mx.fast.rms_norm(grouped, None, eps).reshape(rows, width)
    if not one_store:
        normalized = normalized.astype(kind)
    return {"out": to_numpy((scale * normalized.astype(mx.float32)).astype(kind))}


def gated_rmsnorm(
    device: str,
    recipe: str,
    *,
    x: np.ndarray,
    scale: np.ndarray,
    gate: np.ndarray,
    epsilon: float = 1e-5,
    activation: str = "silu",
) -> Arrays:
    import mlx.core as mx

    columns = scale.size
    narrow = to_mlx(x).reshape(-1, columns)
    hidden = narrow.astype(mx.float32)
    weight = to_mlx(scale).reshape(-1).astype(mx.float32)
    z = to_mlx(gate).reshape(-1, columns).astype(mx.float32)
    value = mx.sigmoid(z) if activation == "sigmoid" else z * mx.sigmoid(z)
    if recipe.startswith("hf-qwen3-next"):
        normalized = mx.fast.rms_norm(hidden, None, epsilon).astype(narrow.dtype)
        weighed = (weight * normalized.astype(mx.float32)).astype(narrow.dtype)
        out = weighed.astype(mx.float32) * value
    elif recipe == "fla" and activation != "sigmoid":
        out = mx.fast.rms_norm(hidden, weight, epsilon) * z * mx.sigmoid(z)
    else:
        out = mx.fast.rms_norm(hidden, weight, epsilon) * value
    return {"out": to_numpy(out.astype(narrow.dtype)).reshape(x.shape)}


def grouped_matmul(
    device: str,
    recipe: str,
    *,
    a: np.ndarray,
    b: np.ndarray,
    a_offsets: np.ndarray,
    expert_ids: np.ndarray,
    max_num_tokens_per_expert: int | None = None,
    out_dtype: str | None = None,
) -> Arrays:
    """gather_mm with an expert for each row; for an output of another dtype in float32."""
    import mlx.core as mx

    (rows, k), columns = a.shape, b.shape[1]
    kind = getattr(mx, out_dtype or a.dtype.name)
    row_ids = np.full(rows, -1, np.int64)
    bounds = itertools.pairwise(int(offset) for offset in a_offsets)
    for (start, stop), expert in zip(bounds, expert_ids.tolist(), strict=True):
        row_ids[start:stop] = expert
    at = np.nonzero(row_ids >= 0)[0]
    out = np.zeros((rows, columns), np.dtype(out_dtype or a.dtype))
    if at.size == 0 or columns == 0 or k == 0:
        return {"out": out}
    left, right = to_mlx(a[at])[:, None], to_mlx(b).swapaxes(-1, -2)
    if kind != left.dtype:
        left, right = left.astype(mx.float32), right.astype(mx.float32)
    elif device == "cpu":
        raise Unsupported(f"MLX's gather_mm takes no {a.dtype.name} on the CPU")
    product = mx.gather_mm(left, right, rhs_indices=mx.array(row_ids[at].astype(np.uint32)))
    out[at] = to_numpy(product[:, 0].astype(kind))
    return {"out": out}


OPS: dict[str, Callable[..., Computed]] = {
    "gated_group_rmsnorm": gated_group_rmsnorm,
    "gated_rmsnorm": gated_rmsnorm,
    "grouped_matmul": grouped_matmul,
}
