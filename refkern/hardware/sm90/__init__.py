"""NVIDIA Hopper's arithmetic (sm_90), bit for bit, on a CPU.

Special functions: float32 arrays of any shape in, float32 out (the conversions: a narrow dtype).
Every NaN result is the device's: 0x7fffffff, in bfloat16 and float16 0x7fff, in fp8 0x7f.
Arguments of another dtype are `refkern.InvalidInput`; a torch CPU tensor in gives one out.
Tensor cores: `mma` is one instruction, `gemm_chain` a whole K of them.
torch: `torch_row_order` and `torch_mean_factor` give the order of its CUDA row sums.

The functions here run compiled loops; `reference` has the numpy version of each, which gives the
same bits and is written to be read.

For recipes and kernels
    Every special function is also a `refkern.elementary.Function`: EXPF, RSQRTF, RSQRT_APPROX_FTZ,
    ...; a `Silu("quotient", Sigmoid("plain", EXPF))` is CUDA's x / (1 + expf(-x)).
    `TensorCoreChain("wgmma.k16.bf16")` is a schedule (`refkern.schedules`), so that a reference's
    m.dot and `refkern.compiled.sums.products` follow a tensor core; a whole matrix is faster by
    `gemm_chain`.  A sum as torch has it: ``squares=torch_row_order(rows, n)``, chosen per call.
    FP8 blocks: ``gemm_chain(name, x_codes, w_codes, group=128)`` gives every group's own chain,
    [.., K/128, M, N]; ``order`` says which byte of K the instruction's k indices read.

What was compared with the device, and what is not here: docs/cuda-on-a-cpu.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from refkern.hardware.sm90 import reference
from refkern.hardware.sm90.elementwise import elementwise as _elementwise
from refkern.hardware.sm90.special_functions import (
    CVT_BF16,
    CVT_E4M3,
    CVT_E5M2,
    CVT_F16,
    DIV_APPROX,
    DIV_FULL,
    EX2_APPROX,
    EX2_APPROX_FTZ,
    EXPF,
    FAST_EXPF,
    FAST_EXPF_FTZ,
    FAST_LOGF,
    FMAX,
    FMIN,
    LG2_APPROX,
    LG2_APPROX_FTZ,
    RCP_APPROX,
    RCP_APPROX_FTZ,
    RSQRT_APPROX,
    RSQRT_APPROX_FTZ,
    RSQRTF,
    SQRT_APPROX,
    SQRT_APPROX_FTZ,
)
from refkern.hardware.sm90.tensor_cores import INSTRUCTIONS, TensorCoreChain
from refkern.hardware.sm90.torch_rows import torch_mean_factor, torch_row_order

__all__ = [
    *reference.__all__,
    "CVT_BF16",
    "CVT_E4M3",
    "CVT_E5M2",
    "CVT_F16",
    "DIV_APPROX",
    "DIV_FULL",
    "EX2_APPROX",
    "EX2_APPROX_FTZ",
    "EXPF",
    "FAST_EXPF",
    "FAST_EXPF_FTZ",
    "FAST_LOGF",
    "FMAX",
    "FMIN",
    "INSTRUCTIONS",
    "LG2_APPROX",
    "LG2_APPROX_FTZ",
    "RCP_APPROX",
    "RCP_APPROX_FTZ",
    "RSQRTF",
    "RSQRT_APPROX",
    "RSQRT_APPROX_FTZ",
    "SQRT_APPROX",
    "SQRT_APPROX_FTZ",
    "TensorCoreChain",
    "reference",
    "torch_mean_factor",
    "torch_row_order",
]


def ex2_approx(x: Any) -> Any:
    """2^x: PTX ex2.approx.f32, CUDA's exp2f."""
    return _elementwise(EX2_APPROX, x=x)


def ex2_approx_ftz(x: Any) -> Any:
    """2^x: PTX ex2.approx.ftz.f32, the unit MUFU.EX2."""
    return _elementwise(EX2_APPROX_FTZ, x=x)


def rcp_approx(x: Any) -> Any:
    """1 / x: PTX rcp.approx.f32."""
    return _elementwise(RCP_APPROX, x=x)


def rcp_approx_ftz(x: Any) -> Any:
    """1 / x: PTX rcp.approx.ftz.f32, the unit MUFU.RCP."""
    return _elementwise(RCP_APPROX_FTZ, x=x)


def rsqrt_approx(x: Any) -> Any:
    """1 / sqrt(x): PTX rsqrt.approx.f32."""
    return _elementwise(RSQRT_APPROX, x=x)


def rsqrt_approx_ftz(x: Any) -> Any:
    """1 / sqrt(x): PTX rsqrt.approx.ftz.f32, the unit MUFU.RSQ."""
    return _elementwise(RSQRT_APPROX_FTZ, x=x)


def sqrt_approx(x: Any) -> Any:
    """sqrt(x): PTX sqrt.approx.f32."""
    return _elementwise(SQRT_APPROX, x=x)


def sqrt_approx_ftz(x: Any) -> Any:
    """sqrt(x): PTX sqrt.approx.ftz.f32, the unit MUFU.SQRT."""
    return _elementwise(SQRT_APPROX_FTZ, x=x)


def lg2_approx(x: Any) -> Any:
    """log2(x): PTX lg2.approx.f32, CUDA's __log2f."""
    return _elementwise(LG2_APPROX, x=x)


def lg2_approx_ftz(x: Any) -> Any:
    """log2(x): PTX lg2.approx.ftz.f32, the unit MUFU.LG2."""
    return _elementwise(LG2_APPROX_FTZ, x=x)


def expf(x: Any) -> Any:
    """CUDA's expf without fast math."""
    return _elementwise(EXPF, x=x)


def fast_expf(x: Any) -> Any:
    """CUDA's __expf and Triton's tl.exp."""
    return _elementwise(FAST_EXPF, x=x)


def fast_expf_ftz(x: Any) -> Any:
    """The same with ftz: Modular's exp on NVIDIA."""
    return _elementwise(FAST_EXPF_FTZ, x=x)


def fast_logf(x: Any) -> Any:
    """CUDA's __logf."""
    return _elementwise(FAST_LOGF, x=x)


def rsqrtf(x: Any) -> Any:
    """CUDA's rsqrtf."""
    return _elementwise(RSQRTF, x=x)


def div_full(a: Any, b: Any) -> Any:
    """a / b: PTX div.full.f32, Triton's ``/``."""
    return _elementwise(DIV_FULL, a=a, b=b)


def div_approx(a: Any, b: Any) -> Any:
    """a / b: PTX div.approx.f32, CUDA's __fdividef."""
    return _elementwise(DIV_APPROX, a=a, b=b)


def fmin(a: Any, b: Any) -> Any:
    """The smaller one: FMNMX, PTX min.f32.  Drops a NaN; -0 is below +0."""
    return _elementwise(FMIN, a=a, b=b)


def fmax(a: Any, b: Any) -> Any:
    """The larger one: FMNMX, PTX max.f32.  Drops a NaN; +0 is above -0."""
    return _elementwise(FMAX, a=a, b=b)


def cvt_bf16(x: Any) -> Any:
    """float32 -> bfloat16: PTX cvt.rn.bf16.f32.  A NaN becomes 0x7fff."""
    return _elementwise(CVT_BF16, "bfloat16", x=x)


def cvt_f16(x: Any) -> Any:
    """float32 -> float16: PTX cvt.rn.f16.f32.  A NaN becomes 0x7fff."""
    return _elementwise(CVT_F16, "float16", x=x)


def cvt_e4m3(x: Any) -> Any:
    """float32 -> float8_e4m3fn: PTX cvt.rn.satfinite.e4m3x2.f32.  A NaN becomes 0x7f."""
    return _elementwise(CVT_E4M3, "float8_e4m3fn", x=x)


def cvt_e5m2(x: Any) -> Any:
    """float32 -> float8_e5m2: PTX cvt.rn.satfinite.e5m2x2.f32.  A NaN becomes 0x7f."""
    return _elementwise(CVT_E5M2, "float8_e5m2", x=x)


def mma(instruction: str, a: Any, b: Any, c: Any) -> np.ndarray:
    """One tensor-core instruction: c + a times b transposed.

    instruction: a name of `INSTRUCTIONS`.
    a: [.., M, K], b: [.., N, K] in the instruction's operand dtype (tf32: float32), K its own.
    c: [.., M, N] float32, for ``f16acc`` float16.
    M and N are free: each output is computed by itself.  Leading axes broadcast.

    Returns [.., M, N] in c's dtype.  Raises InvalidInput for another instruction, dtype or shape.
    """
    return _compiled_tensor_cores().mma(instruction, a, b, c)


def gemm_chain(
    instruction: str,
    a: Any,
    b: Any,
    *,
    order: Sequence[int] | np.ndarray | None = None,
    group: int | None = None,
) -> np.ndarray:
    """A times B transposed as a kernel's K loop has it: instructions chained from +0.

    a: [.., M, K], b: [.., N, K] as in `mma`, but K any multiple of the instruction's.
    order: a permutation of 0 .. K - 1: the place in K that each k index of the chain reads, where
        a kernel's fragments are not consecutive.
    group: divides K; every group of K is a chain of its own, and ``order`` is within a group.

    Returns [.., M, N], or with ``group`` [.., K / group, M, N], in the accumulator's dtype.
    Raises InvalidInput for another instruction, dtype, shape, order or group.
    """
    return _compiled_tensor_cores().gemm_chain(instruction, a, b, order=order, group=group)


def _compiled_tensor_cores() -> Any:
    return import_module("refkern.hardware.sm90.compiled_tensor_cores")
