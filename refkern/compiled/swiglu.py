"""Clamped SwiGLU as compiled scalars: the bits of `refkern.swiglu_variants`, written apart."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refkern.compiled import casts
from refkern.compiled.bits import fma, jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.formats import FLOAT32, Format, format_of
from refkern.swiglu_variants import Variant
from refkern.threads import launch

NANOSECONDS_AN_ELEMENT = 10
ONE = np.float32(1)
INFINITY = np.float32(np.inf)


def limits(variant: Variant, limit: float | None, fmt: Format) -> tuple[bool, Any, Any]:
    """Whether there is a clamp, and the float32 limits of gate and of up."""
    if limit is None:
        return False, INFINITY, INFINITY
    from refkern.casts import cast, widen

    exact = np.float32(limit)
    rounded = np.float32(widen(cast(np.array(exact), fmt.dtype))[()])
    gate_limit = rounded if variant.rounds_gate_limit else exact
    return True, gate_limit, rounded if variant.rounds_up_limit else exact


def swiglu_rows(
    gate: np.ndarray, up: np.ndarray, limit: float | None, variant: Variant
) -> np.ndarray:
    """[..] twice -> [..] of the same dtype, or float32 where the variant does not round."""
    fmt = format_of(gate.dtype)
    result = fmt if variant.rounds_result else FLOAT32
    out = np.empty(gate.shape, result.dtype)
    width = gate.shape[-1] if gate.ndim else 1
    gates, gate_stride = rows_of(gate.reshape(-1, width) if gate.size else gate.reshape(0, 1))
    ups, up_stride = rows_of(up.reshape(-1, width) if up.size else up.reshape(0, 1))
    flat = flat_output(out)
    clamped, gate_limit, up_limit = limits(variant, limit, fmt)
    kernel = _kernel(variant, fmt)

    def block(first: int, stop: int) -> None:
        kernel(
            gates, gate_stride, ups, up_stride, width, clamped, gate_limit, up_limit, flat,
            first, stop,
        )  # fmt: skip

    if gate.size:
        launch(block, gate.size // width, width * NANOSECONDS_AN_ELEMENT)
    return out


@cache
def _kernel(variant: Variant, fmt: Format) -> Any:
    value = scalar(variant, fmt)
    widen = casts.widen(fmt)
    narrow = casts.narrow(FLOAT32, fmt if variant.rounds_result else FLOAT32)

    @jit
    def kernel(
        gate: Any, gate_stride: int, up: Any, up_stride: int, width: int, clamped: bool,
        gate_limit: Any, up_limit: Any, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        for row in range(first, stop):
            for i in range(width):
                g, u = widen(gate[row * gate_stride + i]), widen(up[row * up_stride + i])
                out[row * width + i] = narrow(value(g, u, clamped, gate_limit, up_limit))

    return kernel


@cache
def scalar(variant: Variant, fmt: Format) -> Any:
    """jitted (gate, up, clamped, gate limit, up limit) -> float32, before the last rounding."""
    narrow, widen = casts.narrow(FLOAT32, fmt), casts.widen(fmt)
    exp = variant.exp.load_compiled()
    drops = variant.nan == "dropped"
    before, after = variant.clamp == "before", variant.clamp == "after"
    adds, adds_clamped = variant.adds_beta(None), variant.adds_beta(1.0)
    beta = np.float32(variant.beta or 0)
    scales, alpha = variant.alpha != 1, np.float32(variant.alpha)
    each, rounds_silu = variant.rounds_each, variant.rounds_each or variant.rounds_silu
    product = variant.form == "product"
    gate_first, fused = variant.join == "up-gate-first", variant.join == "fused"

    @jit
    def lower(x: Any, limit: Any) -> Any:
        """The smaller one, -0 below +0."""
        if x != x:
            return limit if drops else x
        if x == limit:
            return x if np.signbit(x) else limit
        return limit if limit < x else x

    @jit
    def larger(x: Any, limit: Any) -> Any:
        if x != x:
            return limit if drops else x
        if x == limit:
            return limit if np.signbit(x) else x
        return limit if limit > x else x

    @jit
    def value(gate: Any, up: Any, clamped: bool, gate_limit: Any, up_limit: Any) -> Any:
        if clamped:
            if before:
                gate = lower(gate, gate_limit)
            up = larger(lower(up, up_limit), -up_limit)
        if adds or (adds_clamped and clamped):
            up = up + beta
            if each:
                up = widen(narrow(up))
        exponent = gate
        if scales:
            exponent = alpha * gate
            if each:
                exponent = widen(narrow(exponent))
        below = ONE + exp(-exponent)
        if gate_first:
            return (up * gate) / below
        if product:
            sigmoid = ONE / below
            if each:
                sigmoid = widen(narrow(sigmoid))
            silu = gate * sigmoid
        else:
            silu = gate / below
        if rounds_silu:
            silu = widen(narrow(silu))
        if after and clamped:
            silu = lower(silu, gate_limit)
        if fused:
            return fma(silu, up, silu)
        return silu * up

    return value
