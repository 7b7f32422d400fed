"""The intervals of the quantiser and of SwiGLU: honest ones lie inside, others do not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from honest import Honest

import refkern
from refkern import accept, casts, policy
from refkern.quantize import RULES, quantize, quantize_fp8
from refkern.swiglu_variants import VARIANTS, reference, swiglu_values

BF16 = np.dtype(ml_dtypes.bfloat16)
STORED = ("ieee", "cuda", "metal", "wgsl")


def values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    wide = random.standard_normal(shape) * 2.0 ** random.integers(-6, 6, (*shape[:-1], 1))
    return wide.astype(np.float32).astype(BF16)


def inside(got: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """Open bounds hold NaN too: the infinities, or 448 on both sides of a code."""
    wide, lo, hi = (casts.widen(np.ascontiguousarray(x)) for x in (got, lo, hi))
    largest = np.inf if got.dtype.itemsize > 1 else 448
    nan = np.isnan(lo) | ((lo == -largest) & (hi == largest))
    return ((wide >= lo) & (wide <= hi)) | (nan & np.isnan(wide))


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("scale_format", ["ue8m0", "float32"])
def test_quantisers(name: str, scale_format: str) -> None:
    x = values((40, 300), 1)
    x[3] = 0
    for rule in RULES.values():
        scaling = getattr(rule, scale_format)
        if scaling is None or scaling.fnuz:
            continue
        codes, scales = accept.quantize_fp8(x, rule=rule, scale_format=scale_format, policy=name)
        assert codes[0].shape == x.shape
        assert scales[0].shape == (40, 3)
        for seed in range(6):
            m = Honest(policy.load(name), seed)
            with np.errstate(all="ignore"):
                got, scale = quantize(m, m.groups(m.widen(x), 128), scaling, BF16)
            assert inside(scale, *scales).all(), rule.name
            assert inside(m.ungroup(got, 300), *codes).all(), rule.name


def test_an_undecided_scale_widens_its_group_only() -> None:
    """An amax whose quotient by 448 is a power of two: a division off by an ULP may double it."""
    x = np.full((2, 128), 1, BF16)
    x[:, 0] = 448 * 2.0**-3, 440 * 2.0**-3
    (code_lo, code_hi), (lo, hi) = accept.quantize_fp8(x, policy="metal-fast")
    assert lo[:, 0].tolist() == [0.125, 0.125]
    assert hi[:, 0].tolist() == [0.25, 0.125]
    low, high = casts.widen(code_lo), casts.widen(code_hi)
    assert (high[0] >= 1.75 * low[0]).all(), "a scale twice as large, and a neighbour"
    assert (code_hi.view(np.uint8)[1] - code_lo.view(np.uint8)[1] <= 1).all()
    (code_lo, code_hi), (lo, hi) = accept.quantize_fp8(x, policy="ieee")
    assert (lo == hi).all()
    assert (code_lo == code_hi).all()


@pytest.mark.parametrize("name", STORED)
def test_swiglu(name: str) -> None:
    gate, up = values((60, 200), 2), values((60, 200), 3)
    for variant in VARIANTS.values():
        limit = None if variant.clamp == "none" else 7.0
        lo, hi = accept.swiglu(gate, up, limit=limit, variant=variant, policy=name)
        got = reference(gate, up, limit=limit, variant=variant)
        assert lo.dtype == hi.dtype == got.dtype
        assert inside(got, lo, hi).all(), variant.name
        for seed in range(6):
            m = Honest(policy.load(name), seed)
            with np.errstate(all="ignore"):
                made = swiglu_values(
                    m, m.widen(gate), m.widen(up), variant.limit_for(limit), variant, BF16
                )
            assert inside(made, lo, hi).all(), (variant.name, seed)


def test_any_algebraic_form_of_silu_and_no_other_silu() -> None:
    gate, up = values((60, 200), 4), values((60, 200), 5)
    lo, hi = accept.swiglu(gate, up, limit=7.0, policy="ieee")
    rounded_twice = reference(gate, up, limit=7.0, variant="vllm-cuda-clamp")
    assert not inside(rounded_twice, lo, hi).all()
    gate, up = gate.astype(np.float32), up.astype(np.float32)
    lo, hi = accept.swiglu(gate, up, limit=7.0, policy="ieee")
    quotient = reference(gate, up, limit=7.0, variant="densemlp")
    product = reference(gate, up, limit=7.0, variant="vllm-native-clamp")
    assert (quotient != product).any()
    assert inside(product, lo, hi).all()


def test_errors() -> None:
    x = np.ones((2, 8), BF16)
    with pytest.raises(refkern.InvalidInput, match="rule"):
        accept.quantize_fp8(x, rule="rocm-fnuz")
    with pytest.raises(refkern.InvalidInput, match="policy"):
        accept.swiglu(x, x, policy="none")
    with pytest.raises(refkern.InvalidInput, match="limit"):
        accept.swiglu(x, x, limit=-1)
    assert quantize_fp8(x)[0].shape == x.shape
