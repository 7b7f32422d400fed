"""The recipes of gated_group_rmsnorm: who rounds where, and in which order squares are added."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from refkern.arithmetic import Sigmoid, Silu
from refkern.casts import cast, widen
from refkern.elementary import EXP_MODULAR_CPU, RSQRT, RSQRT_TWO_ROUNDINGS, Function
from refkern.errors import InvalidInput
from refkern.hardware.sm90.special_functions import (
    EXPF,
    FAST_EXPF_FTZ,
    RSQRT_APPROX,
    RSQRT_APPROX_FTZ,
)
from refkern.hardware.sm90.torch_rows import torch_mean_factor, torch_row_order
from refkern.op import Call
from refkern.recipe import Recipe
from refkern.schedules import Exact, Lanes, Schedule, Sequential


@dataclass(frozen=True, kw_only=True)
class NormRecipe(Recipe):
    silu: Silu
    #: the order in which a group's squares are added
    squares: Schedule
    #: 1 / sqrt(mean + eps)
    rsqrt: Function = RSQRT
    #: gated * rstd is rounded to y's dtype before the weight
    cast_before_weight: bool = True
    #: the mean is the sum times this float32; None: the sum divided by the group size
    mean_factor: float | None = None


def vector_width(call: Call) -> int:
    """Elements in a 16-byte vector of the wider of y and gate."""
    widest = max(a.dtype.itemsize for a in (call.y, call.gate) if a is not None)
    return 16 // widest


def whole_vectors(call: Call) -> None:
    width = vector_width(call)
    if call.group_size % width:
        raise InvalidInput(
            "group_size",
            call.group_size,
            f"recipe modular-vector takes whole vectors: a multiple of {width} is needed",
        )


def weight_in_dtype_of_y(call: Call) -> None:
    """Hugging Face multiplies in the parameter's dtype; a wider one would promote the output."""
    kept = widen(cast(call.weight, call.y.dtype))
    wide = widen(call.weight)
    if not np.array_equal(kept, wide, equal_nan=True):
        raise InvalidInput(
            "weight",
            f"a {call.weight.dtype} weight that {call.y.dtype} does not hold",
            f"this recipe multiplies in y's dtype: values of {call.y.dtype} are needed",
        )


MODULAR_APPLE = NormRecipe(
    name="modular-apple",
    source="Modular's scalar GPU kernel, the only one on Apple: one warp a row and group",
    silu=Silu("product"),
    squares=Lanes(lanes=32, fused=True, combine="descending"),
)
MODULAR_VECTOR = NormRecipe(
    name="modular-vector",
    source="Modular's vector GPU kernel: 16-byte vectors, the first halving contracted to fma",
    silu=Silu("product"),
    squares=Lanes(lanes=32, vector=8, fused=True),
    domain=whole_vectors,
    choose=lambda call: replace(
        MODULAR_VECTOR, squares=Lanes(lanes=32, vector=vector_width(call), fused=True), choose=None
    ),
)
MODULAR_CPU = NormRecipe(
    name="modular-cpu",
    source="Modular MAX 26.7's CPU kernel, with its own exp",
    silu=Silu("product", Sigmoid("plain", EXP_MODULAR_CPU)),
    squares=Sequential(fused=True),
    rsqrt=RSQRT_TWO_ROUNDINGS,
)
HF_ZAMBA2 = NormRecipe(
    name="hf-zamba2",
    source="transformers Zamba2RMSNormGated (also NemotronH): pow(2).mean, weight in y's dtype",
    silu=Silu("quotient"),
    squares=Exact(rounded_products=True),
    domain=weight_in_dtype_of_y,
)
MAMBA_SSM = NormRecipe(
    name="mamba-ssm",
    source="mamba_ssm rmsnorm_fn, norm_before_gate=False: float32 until the store",
    silu=Silu("product"),
    squares=Exact(rounded_products=True),
    rsqrt=RSQRT_TWO_ROUNDINGS,
    cast_before_weight=False,
)
VLLM_MIXER2 = NormRecipe(
    name="vllm-mixer2",
    source="vLLM Mixer2RMSNormGated: native torch for several groups, the Triton kernel for one",
    silu=Silu("quotient"),
    squares=Exact(rounded_products=True),
    choose=lambda call: HF_ZAMBA2 if call.y.shape[1] > call.group_size else MAMBA_SSM,
)
MODULAR_NVIDIA_SM90_SCALAR = replace(
    MODULAR_APPLE,
    name="modular-nvidia-sm90-scalar",
    source="Modular's scalar GPU kernel as MAX 26.7 compiles it for sm_90a",
    silu=Silu("product", Sigmoid("plain", FAST_EXPF_FTZ)),
    rsqrt=RSQRT_APPROX_FTZ,
)


def nvidia_kernel(call: Call) -> NormRecipe:
    """Which kernel Modular's launcher takes, by shape and dtypes alone."""
    width = vector_width(call)
    whole = call.group_size % width == 0 and call.y.shape[1] * call.y.dtype.itemsize % 16 == 0
    chosen = replace(MODULAR_NVIDIA_SM90, choose=None)
    return replace(chosen, squares=Lanes(lanes=32, vector=width, fused=True)) if whole else chosen


MODULAR_NVIDIA_SM90 = replace(
    MODULAR_NVIDIA_SM90_SCALAR,
    name="modular-nvidia-sm90",
    source="Modular MAX 26.7's GPU kernels on sm_90a: vectors where they fit, else scalars",
    choose=nvidia_kernel,
)


def torch_cuda_rows(call: Call) -> NormRecipe:
    """torch adds a row in an order that depends on how many rows there are."""
    groups = call.y.shape[1] // call.group_size
    rows = call.y.shape[0] * groups
    return replace(
        HF_ZAMBA2_SM90,
        squares=torch_row_order(rows, call.group_size, argument="group_size"),
        mean_factor=torch_mean_factor(rows, call.group_size),
        choose=None,
    )


HF_ZAMBA2_SM90 = replace(
    HF_ZAMBA2,
    name="hf-zamba2-sm90",
    source="transformers 5.17 Zamba2RMSNormGated with torch 2.11 on an NVIDIA H200",
    silu=Silu("quotient", Sigmoid("plain", EXPF)),
    rsqrt=RSQRT_APPROX,
    batch_invariant=False,
    choose=torch_cuda_rows,
)
RECIPES = (
    MODULAR_APPLE,
    MODULAR_VECTOR,
    MODULAR_CPU,
    MODULAR_NVIDIA_SM90,
    MODULAR_NVIDIA_SM90_SCALAR,
    HF_ZAMBA2,
    HF_ZAMBA2_SM90,
    MAMBA_SSM,
    VLLM_MIXER2,
)
