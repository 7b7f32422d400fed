"""The numpy version of every function of `refkern.hardware.sm90`, under the same name.

The arithmetic written to be read.  float32 arrays in; the arguments are not checked.
"""

from __future__ import annotations

from refkern.hardware.sm90.special_functions import (
    cvt_bf16,
    cvt_e4m3,
    cvt_e5m2,
    cvt_f16,
    div_approx,
    div_full,
    ex2_approx,
    ex2_approx_ftz,
    expf,
    fast_expf,
    fast_expf_ftz,
    fast_logf,
    fmax,
    fmin,
    lg2_approx,
    lg2_approx_ftz,
    rcp_approx,
    rcp_approx_ftz,
    rsqrt_approx,
    rsqrt_approx_ftz,
    rsqrtf,
    sqrt_approx,
    sqrt_approx_ftz,
)
from refkern.hardware.sm90.tensor_cores import gemm_chain, mma

__all__ = [
    "cvt_bf16",
    "cvt_e4m3",
    "cvt_e5m2",
    "cvt_f16",
    "div_approx",
    "div_full",
    "ex2_approx",
    "ex2_approx_ftz",
    "expf",
    "fast_expf",
    "fast_expf_ftz",
    "fast_logf",
    "fmax",
    "fmin",
    "gemm_chain",
    "lg2_approx",
    "lg2_approx_ftz",
    "mma",
    "rcp_approx",
    "rcp_approx_ftz",
    "rsqrt_approx",
    "rsqrt_approx_ftz",
    "rsqrtf",
    "sqrt_approx",
    "sqrt_approx_ftz",
]
