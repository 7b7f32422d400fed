"""torch: each op as Hugging Face and vLLM write it, eager, on the CPU, CUDA or Metal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from refkern.goldens.backends import Arrays, Backend, Computed, Unavailable, Unsupported

#: by which it is judged: a CPU has no excuse, a GPU its vendor's table
POLICIES = {"cpu": "ieee", "cuda": "cuda", "mps": "metal"}
CODES = {1: np.uint8, 2: np.int16, 4: np.int32}


def backend(device: str | None = None) -> Backend:
    """device: "cpu" (the default), "cuda", "cuda:NUMBER" or "mps"."""
    device = device or "cpu"
    kind = device.partition(":")[0]

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        import torch

        with torch.inference_mode():
            return OPS[op](device, recipe, **inputs, **params)

    return Backend(
        name="torch",
        summary="Hugging Face's and vLLM's formulas in eager torch",
        compute=compute,
        policy=POLICIES.get(kind, "ieee"),
        version=lambda: installed_version(device),
        ops=tuple(OPS),
    )


@cache
def installed_version(device: str) -> str:
    try:
        import torch
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    kind = device.partition(":")[0]
    if kind not in POLICIES:
        raise Unavailable(f"device {device!r}: there are {', '.join(POLICIES)}")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise Unavailable(f"device {device}: {str(error).splitlines()[0]}") from None
    name = torch.cuda.get_device_name(device) if kind == "cuda" else device
    return f"torch {torch.__version__}, {name}"


def to_torch(array: np.ndarray, device: str) -> Any:
    """The same bits as a tensor: torch knows no ml_dtypes."""
    import torch

    kind = getattr(torch, array.dtype.name)
    codes = np.ascontiguousarray(array).view(CODES[array.itemsize])
    return torch.from_numpy(codes.copy()).to(device).view(kind)


def to_numpy(tensor: Any, dtype: Any = None) -> np.ndarray:
    """The same bits as an array of the tensor's dtype."""
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    kind = np.dtype(getattr(ml_dtypes, name, None) or name)
    carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.itemsize]
    return tensor.contiguous().view(carrier).cpu().numpy().view(kind)


# ------------------------------------------------------------------------------------- the norms


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
    """Zamba2RMSNormGated; for one group of mamba_ssm's recipe its rms_norm_ref."""
    import torch

    rows, width = y.shape
    groups = width // group_size
    dtype = getattr(torch, y.dtype.name)
    hidden = to_torch(y, device).to(torch.float32)
    scale = to_torch(weight, device).to(torch.float32)
    if gate is not None:
        hidden = hidden * torch.nn.functional.silu(to_torch(gate, device).to(torch.float32))
    grouped = hidden.view(rows, groups, group_size)
    variance = grouped.pow(2).mean(-1, keepdim=True)
    if recipe == "mamba-ssm" or (recipe == "vllm-mixer2" and groups == 1):
        rstd = 1 / torch.sqrt(variance + eps)
        return {"out": to_numpy(((grouped * rstd).view(rows, width) * scale).to(dtype))}
    normalized = (grouped * torch.rsqrt(variance + eps)).view(rows, width)
    return {"out": to_numpy((scale * normalized.to(dtype)).to(dtype))}


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
    """The operator's formula in float32; for their recipes Qwen3NextRMSNormGated's and fla's."""
    import torch

    shape, columns = x.shape, scale.size
    dtype = getattr(torch, x.dtype.name)
    hidden = to_torch(x, device).reshape(-1, columns).to(torch.float32)
    weight = to_torch(scale, device).reshape(-1).to(torch.float32)
    z = to_torch(gate, device).reshape(-1, columns).to(torch.float32)
    value = torch.sigmoid(z) if activation == "sigmoid" else torch.nn.functional.silu(z)
    variance = hidden.pow(2).mean(-1, keepdim=True)
    if recipe == "fla":
        normalized = hidden * (1 / torch.sqrt(variance + epsilon)) * weight
        value = torch.sigmoid(z)
        out = normalized * value if activation == "sigmoid" else normalized * z * value
    elif recipe.startswith("hf-qwen3-next"):
        normalized = (hidden * torch.rsqrt(variance + epsilon)).to(dtype)
        out = (weight.to(dtype) * normalized) * value
    else:
        out = hidden * torch.rsqrt(variance + epsilon) * weight * value
    return {"out": to_numpy(out.to(dtype)).reshape(shape)}


# -------------------------------------------------------------------------------- grouped_matmul


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
    """torch's own grouped matmul where it takes the case, else a matmul for each group.

    A result wider than the operands, or of the other 16-bit type, is multiplied in float32.
    """
    import torch

    rows, columns = a.shape[0], b.shape[1]
    kind = getattr(torch, out_dtype or a.dtype.name)
    left, right = to_torch(a, device), to_torch(b, device)
    out = torch.zeros((rows, columns), dtype=kind, device=device)
    starts = [int(offset) for offset in a_offsets]
    ids = [int(expert) for expert in expert_ids]
    if takes_grouped_mm(left, right, kind, ids):
        first, last = starts[0], starts[-1]
        ends = torch.tensor([s - first for s in starts[1:]], dtype=torch.int32, device=device)
        weights = right[torch.tensor(ids, device=device)].transpose(-2, -1)
        out[first:last] = torch._grouped_mm(left[first:last], weights, offs=ends)
        return {"out": to_numpy(out)}
    if kind != left.dtype:
        left, right = left.to(torch.float32), right.to(torch.float32)
    for (start, stop), expert in zip(itertools.pairwise(starts), ids, strict=True):
        if expert >= 0 and stop > start:
            out[start:stop] = (left[start:stop] @ right[expert].T).to(kind)
    return {"out": to_numpy(out)}


def takes_grouped_mm(left: Any, right: Any, kind: Any, ids: list[int]) -> bool:
    """It takes bfloat16 in rows of whole 16 bytes, and an expert for every group."""
    import torch

    whole = left.shape[1] % 8 == 0 and right.shape[1] % 8 == 0 and min(left.shape) > 0
    served = left.dtype == kind == torch.bfloat16 and left.device.type in ("cpu", "cuda")
    return hasattr(torch, "_grouped_mm") and served and whole and min(ids, default=-1) >= 0


# ------------------------------------------------------------------------------ block_scaled_mlp

GROUP = 128


def block_scaled_mlp(
    device: str,
    recipe: str,
    *,
    x: np.ndarray,
    w13: np.ndarray,
    w13_scale: np.ndarray,
    w2: np.ndarray,
    w2_scale: np.ndarray,
    limit: float | None = None,
    scale_format: str = "ue8m0",
) -> tuple[Arrays, Arrays]:
    """vLLM's native formulas: a matmul for each group of 128, times its scales, added in order."""
    import torch

    if device == "mps":
        raise Unsupported("torch has no float8 on Metal")
    inter = w2.shape[1]
    half = -(-inter // GROUP)
    quantiser = quantise_tilelang if recipe == "deepseek-v4-ref" else quantise
    power_of_two = scale_format == "ue8m0"
    clamps = recipe == "vllm-stock-cuda"

    x_codes, x_scales = quantiser(to_torch(x, device).to(torch.float32), power_of_two, clamps)
    w13_codes, scales = to_torch(w13, device), wide_scales(w13_scale, device)
    sums = torch.cat(
        [
            block_matmul(x_codes, x_scales, w13_codes[:inter], scales[:half]),
            block_matmul(x_codes, x_scales, w13_codes[inter:], scales[half:]),
        ],
        dim=1,
    )
    gate, up = (part.to(torch.bfloat16) for part in (sums[:, :inter], sums[:, inter:]))
    act = swiglu(gate.to(torch.float32), up.to(torch.float32), limit, recipe)
    act_codes, act_scales = quantiser(act.to(torch.float32), power_of_two, clamps)
    down = block_matmul(act_codes, act_scales, to_torch(w2, device), wide_scales(w2_scale, device))
    stages = {
        "x_codes": x_codes, "x_scales": x_scales, "gate_up_sums": sums, "gate": gate, "up": up,
        "act": act, "act_codes": act_codes, "act_scales": act_scales, "down_sums": down,
    }  # fmt: skip
    return (
        {"out": to_numpy(down.to(torch.bfloat16))},
        {name: to_numpy(tensor) for name, tensor in stages.items()},
    )


def wide_scales(scales: np.ndarray, device: str) -> Any:
    return to_torch(np.ascontiguousarray(scales.astype(np.float32)), device)


def grouped_columns(x: Any) -> Any:
    """[rows, n] -> [rows, groups, 128], filled up by zeros."""
    import torch

    filled = torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP))
    return filled.view(x.shape[0], -1, GROUP)


def power_at_least(scale: Any) -> Any:
    """The next power of two from a positive scale on; infinity stays."""
    import torch

    fraction, exponent = torch.frexp(scale)
    power = torch.ldexp(torch.ones_like(scale), exponent - (fraction == 0.5).to(exponent.dtype))
    return torch.where(torch.isinf(scale), scale, power)


def quantise(x: Any, power_of_two: bool, clamps: bool) -> tuple[Any, Any]:
    """x * (1 / (amax / 448)); a NaN is left out of the amax, and clamped to -448 or kept."""
    import torch

    groups = grouped_columns(x)
    magnitude = torch.where(torch.isnan(groups), torch.zeros_like(groups), groups.abs())
    scale = magnitude.amax(-1).clamp(min=1e-10) / 448.0
    if power_of_two:
        scale = power_at_least(scale.clamp(min=1e-10))
    value = groups * (1 / scale)[..., None]
    if clamps:
        value = torch.where(torch.isnan(value), torch.full_like(value, -448.0), value)
    return codes_of(value, x.shape), scale


def quantise_tilelang(x: Any, power_of_two: bool, clamps: bool) -> tuple[Any, Any]:
    """DeepSeek's: amax from 1e-4 on, times 1 / 448, and x / scale."""
    import torch

    groups = grouped_columns(x)
    magnitude = torch.where(torch.isnan(groups), torch.zeros_like(groups), groups.abs())
    scale = magnitude.amax(-1).clamp(min=1e-4) * (1 / torch.full_like(magnitude[..., 0], 448.0))
    scale = power_at_least(scale) if power_of_two else scale
    value = groups / scale[..., None]
    value = torch.where(torch.isnan(value), torch.full_like(value, -448.0), value)
    return codes_of(value, x.shape), scale


def codes_of(value: Any, shape: Any) -> Any:
    """Saturating; a NaN stays NaN."""
    import torch

    flat = value.clamp(-448.0, 448.0).reshape(shape[0], -1)[:, : shape[1]]
    return flat.to(torch.float8_e4m3fn)


def block_matmul(x: Any, x_scales: Any, w: Any, w_scales: Any) -> Any:
    """vLLM's native_w8a8_block_matmul: out += (x[:, group] @ w[:, group].T) * scales."""
    import torch

    rows = torch.arange(w.shape[0], device=w.device) // GROUP
    total = torch.zeros((x.shape[0], w.shape[0]), dtype=torch.float32, device=x.device)
    left, right = x.to(torch.float32), w.to(torch.float32)
    for group in range(x_scales.shape[1]):
        columns = slice(group * GROUP, (group + 1) * GROUP)
        scales = w_scales[rows, group][None] * x_scales[:, group, None]
        total += (left[:, columns] @ right[:, columns].T) * scales
    return total


def swiglu(gate: Any, up: Any, limit: float | None, recipe: str) -> Any:
    """float32 gate and up, bfloat16 act."""
    import torch

    stock, kept = recipe == "vllm-stock-cuda", recipe == "deepseek-v4-ref"
    if limit is not None and not (kept and limit == 0):
        bound = torch.tensor(min(limit, math.inf), dtype=torch.float32, device=gate.device)
        gate_bound = bound.to(torch.bfloat16).to(torch.float32) if stock else bound
        lower, larger = (
            (torch.minimum, torch.maximum) if kept else (torch.fmin, torch.fmax)
        )  # minimum keeps a NaN, fmin drops it
        gate = lower(gate, gate_bound)
        up = larger(lower(up, bound), -bound)
    silu = gate / (1 + torch.exp(-gate))
    if stock:
        silu, up = silu.to(torch.bfloat16).to(torch.float32), up + 0.0
    return (silu * up).to(torch.bfloat16)


OPS: dict[str, Callable[..., Computed]] = {
    "gated_group_rmsnorm": gated_group_rmsnorm,
    "gated_rmsnorm": gated_rmsnorm,
    "grouped_matmul": grouped_matmul,
    "block_scaled_mlp": block_scaled_mlp,
}
