"""CUDA: refkern's own kernels, one for each op, on an NVIDIA GPU.

They share the work as the recipes' GPU kernels do: a warp a row and group, a warp an output of a
GEMV, tensor cores for many tokens, FP8 mma.sync with slices of 512 of K.  exp and the root are
CUDA's own, so a float32 output is not the bits of a recipe with correctly rounded ones.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from refkern.goldens.backends import Arrays, Backend, Computed, Unsupported
from refkern.goldens.backends.cuda import library
from refkern.goldens.backends.cuda.library import device_index, find_gpu, toolkit

ELEMENT_TYPES = {"bfloat16": 0, "float16": 1, "float32": 2}
GROUP = 128
#: FP8 came with Ada
FIRST_WITH_FP8 = (8, 9)


def backend(device: str | None = None) -> Backend:
    """device: "cuda" or "cuda:NUMBER"; None: the first GPU."""

    def version() -> str:
        gpu, (_, release) = find_gpu(device_index(device)), toolkit()
        return f"nvcc {release}, {gpu}"

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        return OPS[op](device_index(device), recipe, **inputs, **params)

    return Backend(
        name="cuda",
        summary="refkern's CUDA kernels, compiled by nvcc at first use",
        compute=compute,
        policy="cuda",
        version=version,
        ops=tuple(OPS),
    )


def pointer(array: np.ndarray | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def plain(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array)


def whole(*numbers: int) -> list[ctypes.c_int64]:
    return [ctypes.c_int64(number) for number in numbers]


def flags(*numbers: int) -> list[ctypes.c_int]:
    return [ctypes.c_int(number) for number in numbers]


# --------------------------------------------------------------------------- gated_group_rmsnorm

#: recipes whose silu is g / (1 + e)
QUOTIENTS = ("hf-zamba2", "hf-zamba2-sm90", "vllm-mixer2")
#: Mojo's exp and root, by the special-function unit alone
APPROXIMATE = ("modular-nvidia-sm90", "modular-nvidia-sm90-scalar")


def gated_group_rmsnorm(
    device: int,
    recipe: str,
    *,
    y: np.ndarray,
    gate: np.ndarray | None,
    weight: np.ndarray,
    group_size: int,
    eps: float = 1e-5,
) -> tuple[Arrays, Arrays]:
    rows, width = y.shape
    groups = width // group_size
    gate_type = y.dtype if gate is None else gate.dtype
    vector = 16 // max(y.itemsize, gate_type.itemsize if gate is not None else 0)
    fits = group_size % vector == 0
    if recipe == "modular-vector" and not fits:
        raise Unsupported(f"recipe modular-vector takes whole vectors of {vector}")
    if recipe == "modular-nvidia-sm90":
        fits = fits and width * y.itemsize % 16 == 0
    takes_vectors = fits and recipe in ("modular-vector", "modular-nvidia-sm90")
    one_store = recipe == "mamba-ssm" or (recipe == "vllm-mixer2" and groups == 1)

    y, gate = plain(y), None if gate is None else plain(gate)
    wide_weight = plain(weight.astype(np.float32))
    out = np.empty_like(y)
    sums, rstds = np.empty((rows, groups), np.float32), np.empty((rows, groups), np.float32)
    library.call(
        device, "refkern_gated_group_rmsnorm",
        pointer(y), ctypes.c_int(ELEMENT_TYPES[y.dtype.name]),
        pointer(gate), ctypes.c_int(ELEMENT_TYPES[gate_type.name]),
        pointer(wide_weight), pointer(out), pointer(sums), pointer(rstds),
        *whole(rows, groups, group_size), ctypes.c_float(eps),
        *flags(vector if takes_vectors else 1, recipe in QUOTIENTS and not one_store,
               recipe in APPROXIMATE, not one_store),
    )  # fmt: skip
    return {"out": out}, {"sum_of_squares": sums, "rstd": rstds}


# --------------------------------------------------------------------------------- gated_rmsnorm

#: recipe -> (what shares a row, elements that a lane takes at a time)
ROUTES = {
    "webgpu-subgroup-rows-vec4": ("warp", 4),
    "webgpu-subgroup-rows-scalar": ("warp", 1),
    "webgpu-packed-rows-vec4": ("block", 4),
    "webgpu-packed-rows-scalar": ("block", 1),
    "webgpu-subgroup-wide-rows-vec4": ("warps", 4),
    "webgpu-subgroup-wide-rows-scalar": ("warps", 1),
    "onnxruntime-webgpu": ("whole block", 1),
}
#: recipe -> which roundings follow on the norm (enum Finish)
FINISHES = {"fla": 1, "hf-qwen3-next": 2, "hf-qwen3-next-sm90": 2}


def shares(across: str, vectors: int) -> tuple[int, int]:
    """(lanes that share a row of so many vectors, lanes whose sums are combined by halves)."""
    lanes = 1 << max(vectors - 1, 0).bit_length()
    if across == "warp":
        lanes = min(lanes, 32)
    elif across == "block":
        lanes = min(lanes, 64)
    elif across == "whole block":
        lanes = min(max(lanes, 64), 256)
    else:
        return max(min(lanes, 256), 64), 32
    return lanes, lanes


def gated_rmsnorm(
    device: int,
    recipe: str,
    *,
    x: np.ndarray,
    scale: np.ndarray,
    gate: np.ndarray,
    epsilon: float = 1e-5,
    activation: str = "silu",
) -> tuple[Arrays, Arrays]:
    columns = scale.size
    rows = x.size // columns
    across, vector = ROUTES.get(recipe, ("warp", 1 if columns % 4 else 4))
    if columns % vector:
        raise Unsupported(f"{recipe} takes rows of whole vectors of {vector}")
    lanes, part = shares(across, columns // vector)
    x, scale, gate = plain(x), plain(scale), plain(gate)
    out = np.empty_like(x)
    sums, invs = np.empty(rows, np.float32), np.empty(rows, np.float32)
    library.call(
        device, "refkern_gated_rmsnorm",
        pointer(x), ctypes.c_int(ELEMENT_TYPES[x.dtype.name]),
        pointer(scale), pointer(gate), pointer(out), pointer(sums), pointer(invs),
        *whole(rows, columns), ctypes.c_float(epsilon),
        *flags(vector, lanes, part, activation == "sigmoid", FINISHES.get(recipe, 0)),
    )  # fmt: skip
    return {"out": out}, {"sum_of_squares": sums, "inv": invs}


# -------------------------------------------------------------------------------- grouped_matmul

#: enum Order; a positive one is a GEMV with so many accumulators a lane
SEQUENTIAL, EXACT, TENSOR_CORES = -1, -2, -3
ORDERS = {
    "sequential": SEQUENTIAL,
    "exact": EXACT,
    "modular-gemv-4-2-2": 2,
    "modular-mma": TENSOR_CORES,
    "modular-mma-fma": TENSOR_CORES,
    "modular-mma-tree": TENSOR_CORES,
    "torch-sm90": TENSOR_CORES,
}
#: rows of a tile of the tensor cores
TILE_ROWS = 16


def grouped_matmul(
    device: int,
    recipe: str,
    *,
    a: np.ndarray,
    b: np.ndarray,
    a_offsets: np.ndarray,
    expert_ids: np.ndarray,
    max_num_tokens_per_expert: int | None = None,
    out_dtype: str | None = None,
) -> tuple[Arrays, Arrays]:
    (rows, k), (experts, columns, _) = a.shape, b.shape
    expert_of_row = np.full(rows, -1, np.int64)
    tiles, covered, most = [], 0, 0
    starts = [int(offset) for offset in a_offsets]
    for start, stop, expert in zip(starts, starts[1:], expert_ids.tolist(), strict=False):
        expert_of_row[start:stop] = expert
        most = max(most, stop - start)
        tiles += tiles_of(covered, start, -1) + tiles_of(start, stop, int(expert))
        covered = stop
    tiles += tiles_of(covered, rows, -1)

    tokens = most if max_num_tokens_per_expert is None else max_num_tokens_per_expert
    order = ORDERS.get(recipe, 8 if tokens <= 4 else 1 if tokens <= 16 else TENSOR_CORES)
    a, b = plain(a), plain(b)
    tile_table = np.array(tiles, np.int64).reshape(-1, 3)
    sums = np.empty((rows, columns), np.float32)
    out = np.empty((rows, columns), a.dtype if out_dtype is None else np.dtype(out_dtype))
    library.call(
        device, "refkern_grouped_matmul",
        pointer(a), pointer(b), ctypes.c_int(ELEMENT_TYPES[a.dtype.name]), pointer(expert_of_row),
        pointer(tile_table), *whole(len(tile_table)), pointer(sums), pointer(out),
        ctypes.c_int(ELEMENT_TYPES[out.dtype.name]), *whole(rows, columns, k, experts),
        ctypes.c_int(order),
    )  # fmt: skip
    return {"out": out}, {"accumulator": sums}


def tiles_of(start: int, stop: int, expert: int) -> list[tuple[int, int, int]]:
    """(first row, rows, expert) for every 16 rows of a group."""
    return [(row, min(TILE_ROWS, stop - row), expert) for row in range(start, stop, TILE_ROWS)]


# ------------------------------------------------------------------------------ block_scaled_mlp


class MlpInputs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w13", "w2", "w13_scale", "w2_scale")),
        *((name, ctypes.c_int64) for name in ("tokens", "k", "inter", "hidden", "slice")),
        *(
            (name, ctypes.c_float)
            for name in ("amax_floor", "scale_floor", "gate_limit", "up_limit")
        ),
        *(
            (name, ctypes.c_int)
            for name in (
                "power_of_two", "scale_by_product", "code_by_quotient", "clamp",
                "has_limit", "keeps_nan", "rounds_silu", "adds_zero",
            )
        ),
    )  # fmt: skip


class MlpOutputs(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "x_codes", "x_scales", "gate_up_sums", "gate", "up", "act", "act_codes", "act_scales",
            "down_sums", "out",
        )
    )  # fmt: skip


def block_scaled_mlp(
    device: int,
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
    capability = find_gpu(device).capability
    if capability < FIRST_WITH_FP8:
        raise Unsupported(f"compute capability {capability[0]}.{capability[1]} has no FP8")
    (tokens, k), (hidden, inter) = x.shape, w2.shape
    deepseek, stock = recipe == "deepseek-v4-ref", recipe == "vllm-stock-cuda"
    in_order = deepseek or recipe == "deepgemm-sm90"
    power_of_two = scale_format == "ue8m0"
    has_limit = limit is not None and not (deepseek and limit == 0)
    up_limit = np.float32(limit if has_limit else math.inf)
    gate_limit = up_limit.astype(ml_dtypes.bfloat16).astype(np.float32) if stock else up_limit

    held = {
        "x": plain(x),
        "w13": filled_up(w13),
        "w2": filled_up(w2),
        "w13_scale": plain(w13_scale.astype(np.float32)),
        "w2_scale": plain(w2_scale.astype(np.float32)),
    }
    given = MlpInputs(
        **{name: array.ctypes.data for name, array in held.items()},
        tokens=tokens, k=k, inter=inter, hidden=hidden,
        slice=max(blocks(k), blocks(inter), 1) if in_order else 4,
        amax_floor=1e-4 if deepseek else 1e-10,
        scale_floor=1e-10 if power_of_two and not deepseek else 0.0,
        gate_limit=float(gate_limit), up_limit=float(up_limit),
        power_of_two=power_of_two, scale_by_product=deepseek, code_by_quotient=deepseek,
        clamp=deepseek or stock, has_limit=has_limit, keeps_nan=deepseek, rounds_silu=stock,
        adds_zero=stock,
    )  # fmt: skip

    e4m3, bf16 = ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16
    made = {
        "x_codes": np.empty((tokens, blocks(k) * GROUP), e4m3),
        "x_scales": np.empty((tokens, blocks(k)), np.float32),
        "gate_up_sums": np.empty((tokens, 2 * inter), np.float32),
        "gate": np.empty((tokens, inter), bf16),
        "up": np.empty((tokens, inter), bf16),
        "act": np.empty((tokens, inter), bf16),
        "act_codes": np.empty((tokens, blocks(inter) * GROUP), e4m3),
        "act_scales": np.empty((tokens, blocks(inter)), np.float32),
        "down_sums": np.empty((tokens, hidden), np.float32),
        "out": np.empty((tokens, hidden), bf16),
    }
    taken = MlpOutputs(**{name: array.ctypes.data for name, array in made.items()})
    library.call(device, "refkern_block_scaled_mlp", ctypes.byref(given), ctypes.byref(taken))
    made["x_codes"] = plain(made["x_codes"][:, :k])
    made["act_codes"] = plain(made["act_codes"][:, :inter])
    return {"out": made.pop("out")}, made


def blocks(n: int) -> int:
    return -(-n // GROUP)


def filled_up(codes: np.ndarray) -> np.ndarray:
    """[rows, n] -> whole groups of 128 columns, with codes of +0."""
    rows, n = codes.shape
    if n % GROUP == 0:
        return plain(codes)
    filled = np.zeros((rows, blocks(n) * GROUP), codes.dtype)
    filled[:, :n] = codes
    return filled


OPS: dict[str, Callable[..., Computed]] = {
    "gated_group_rmsnorm": gated_group_rmsnorm,
    "gated_rmsnorm": gated_rmsnorm,
    "grouped_matmul": grouped_matmul,
    "block_scaled_mlp": block_scaled_mlp,
}
