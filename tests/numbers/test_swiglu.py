"""Clamped SwiGLU: golden values, reported faults, every variant by kernel and by reference."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest

import refkern
from refkern import swiglu_variants
from refkern.swiglu_variants import VARIANTS, Variant, split_halves

BF16 = ml_dtypes.bfloat16
NAN, INF = np.nan, np.inf


def bf16(*values: float) -> np.ndarray:
    return np.array(values, np.float32).astype(BF16)


def codes(x: np.ndarray) -> list[str]:
    return [f"{c:04x}" for c in x.view(np.uint16)]


def raw(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.dtype.itemsize}")


def test_golden_values() -> None:
    """Limit 10.  (-inf, 1) is 0x7fff on the device and the canonical NaN here."""
    table = {
        (12, 20): "42c8", (-20, 3): "b405", (-88, 3): "8408", (-104, 3): "8000",
        (1, -12): "c0ea", (NAN, 1): "4120", (1, NAN): "40ea", (-INF, 1): "7fc0", (-0.0, 1): "8000",
    }  # fmt: skip
    gate, up = (bf16(*column) for column in zip(*table, strict=True))
    assert codes(refkern.swiglu(gate, up, limit=10)) == list(table.values())


def test_both_operands_clamped_as_they_should_be() -> None:
    """Fault 26.  Its NaN rule (NaN stays) is deepseek-v4-ref's; DenseMlp's minimum drops NaN, and
    the recipe wins: a NaN gate becomes the limit, a NaN up +limit."""
    gate, up = (-9, 9, 3, -2), (2, -8, 8, 5)
    for variant in ("densemlp", "deepseek-v4-ref", "vllm-pad-aware"):
        out = refkern.swiglu(bf16(*gate), bf16(*up), limit=4, variant=variant)
        assert codes(out) == ["bb12", "c17b", "4137", "bf74"]
    wide = [np.array(v, np.float32) for v in (gate, up)]
    np.testing.assert_allclose(
        refkern.swiglu(*wide, limit=4),
        [-0.0022211024, -15.71222064, 11.43088952, -0.95362338],
        rtol=2e-6,
    )
    np.testing.assert_allclose(
        refkern.swiglu(*wide), [-0.0022211, -71.991116, 22.861779, -1.1920292], rtol=2e-6
    )
    after = refkern.swiglu(*wide, limit=4, variant="step35")
    assert after[1] == -16
    boundary = refkern.swiglu(
        np.array([8, -20, 7], np.float32), np.array([-9, 3, 7], np.float32), limit=7
    )
    np.testing.assert_allclose(boundary, [-48.95535849, -1.2366922e-7, 48.95535849], 2e-6)
    gate, up = bf16(NAN, 4, -INF, 4), bf16(1, NAN, 1, INF)
    kept = refkern.swiglu(gate, up, limit=4, variant="deepseek-v4-ref")
    assert codes(kept)[:3] == ["7fc0", "7fc0", "7fc0"]
    dropped = refkern.swiglu(gate, up, limit=4)
    limit = refkern.swiglu(bf16(4, 4), bf16(1, 4), limit=4)
    assert codes(dropped) == [codes(limit)[0], codes(limit)[1], "7fc0", codes(limit)[1]]
    clamped = refkern.swiglu(np.float32([4]), np.float32([INF]), limit=4)
    np.testing.assert_allclose(clamped, [15.71222064], rtol=2e-6)


@pytest.mark.parametrize("name", VARIANTS)
def test_limit_zero_is_what_the_source_makes_of_it(name: str) -> None:
    """Fault 28: documented per variant, and never both in one variant."""
    variant = VARIANTS[name]
    gate, up = bf16(-9, 9), bf16(2, -8)
    if variant.clamp == "none":
        with pytest.raises(refkern.InvalidInput, match="limit"):
            refkern.swiglu(gate, up, limit=0.0, variant=name)
        return
    off = refkern.swiglu(gate, up, variant=name)
    zero = refkern.swiglu(gate, up, limit=0.0, variant=name)
    if variant.zero_limit == "off":
        np.testing.assert_array_equal(raw(zero), raw(off))
    elif variant.join == "silu-up" and variant.beta != 1:
        assert (zero.astype(np.float32) == 0).all()
    else:  # (up + 1) * gate with up 0
        assert (np.abs(zero.astype(np.float32)) < 1e-3).all()


@pytest.mark.parametrize("limit", [-4, -0.5, NAN, "7", True, 1j])
def test_limits_that_are_refused(limit: object) -> None:
    """Fault 28."""
    with pytest.raises(refkern.InvalidInput, match="limit"):
        refkern.swiglu(bf16(1), bf16(1), limit=limit)  # type: ignore[arg-type]


def test_silu_is_of_the_gate() -> None:
    """Fault 30."""

    def f(gate: tuple, up: tuple, **how: float) -> np.ndarray:
        return refkern.swiglu(np.array(gate, np.float32), np.array(up, np.float32), **how)

    np.testing.assert_allclose(f((2, -1), (3, 4)), [5.28478247, -1.07576569], rtol=2e-6)
    np.testing.assert_allclose(f((3, 4), (2, -1)), [5.71544476, -3.92805516], rtol=2e-6)
    np.testing.assert_allclose(f((5,), (-9,), limit=2), [-3.52318831], rtol=2e-6)
    np.testing.assert_allclose(f((-9,), (5,), limit=2), [-0.0022211], rtol=2e-5)


def test_halves() -> None:
    x = np.arange(12).reshape(2, 6)
    gate, up = split_halves(x)
    assert gate.tolist() == [[0, 1, 2], [6, 7, 8]]
    assert up.tolist() == [[3, 4, 5], [9, 10, 11]]
    gate, up = split_halves(x, layout="interleaved")
    assert gate.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert np.shares_memory(up, x)
    for bad, how in ((x[:, :5], {}), (x, {"layout": "swapped"})):
        with pytest.raises(refkern.InvalidInput):
            split_halves(bad, **how)


# ------------------------------------------------------------------------------------ all variants


def gates_and_ups() -> tuple[np.ndarray, np.ndarray]:
    """Every bfloat16 gate with some up, and special values with each other."""
    every = np.arange(1 << 16, dtype=np.uint16).view(BF16)
    special = bf16(0, -0.0, 1, -1, 6.75, 6.78125, 7, -7, 20, -20, INF, -INF, NAN, 1e-40, 3e38)
    n = len(special)
    gate = np.concatenate([every, np.repeat(special, n)])
    up = np.concatenate([np.random.default_rng(0).permutation(every), np.tile(special, n)])
    return gate, up


@pytest.mark.parametrize("name", VARIANTS)
def test_kernel_has_the_bits_of_the_reference(name: str) -> None:
    gate, up = gates_and_ups()
    limits = (None,) if VARIANTS[name].clamp == "none" else (None, 0.0, 6.77, 7.0, INF)
    for limit in limits:
        got = refkern.swiglu(gate, up, limit=limit, variant=name)
        want = swiglu_variants.reference(gate, up, limit=limit, variant=name)
        assert got.dtype == want.dtype == (BF16 if VARIANTS[name].rounds_result else np.float32)
        np.testing.assert_array_equal(raw(got), raw(want), err_msg=str(limit))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("name", ["densemlp", "vllm-native-clamp-eager"])
def test_kernel_has_the_bits_of_the_reference_in_other_dtypes(name: str, dtype: type) -> None:
    with np.errstate(over="ignore"):
        gate, up = (x.astype(np.float32).astype(dtype) for x in gates_and_ups())
    for limit in (None, 6.77):
        got = refkern.swiglu(gate, up, limit=limit, variant=name)
        want = swiglu_variants.reference(gate, up, limit=limit, variant=name)
        np.testing.assert_array_equal(raw(got), raw(want))


def nearest(x: Fraction, bits: int) -> Fraction:
    """To nearest even with ``bits`` significant bits; no under- or overflow here."""
    if x == 0:
        return x
    exponent = math.floor(math.log2(abs(x)))
    exponent += (abs(x) >= Fraction(2) ** (exponent + 1)) - (abs(x) < Fraction(2) ** exponent)
    quantum = Fraction(2) ** (exponent - bits + 1)
    return round(x / quantum) * quantum


def f(x: Fraction) -> Fraction:
    return nearest(x, 24)


def b(x: Fraction) -> Fraction:
    return nearest(x, 8)


def e(x: Fraction) -> Fraction:
    """float32 exp(-x), from mpmath."""
    value = mpmath.exp(-mpmath.mpf(x.numerator) / x.denominator)
    return f(Fraction(int(value.man)) * Fraction(2) ** int(value.exp))


ALPHA = Fraction(float(np.float32(1.702)))
L69 = Fraction(float(np.float32(6.9)))

#: (gate, up) -> what the source computes, written out; limit 6.9, which bfloat16 rounds to 6.90625
FORMULAS = {
    "densemlp": lambda g, u: b(f(f(g / f(1 + e(g))) * u)),
    "vllm-cuda-clamp": lambda g, u: b(f(b(f(b(g) / f(1 + e(b(g))))) * u)),
    "vllm-native-clamp": lambda g, u: b(f(f(g * f(1 / f(1 + e(g)))) * u)),
    "vllm-native-clamp-eager": lambda g, u: b(f(b(f(b(g) * b(f(1 / f(1 + e(b(g))))))) * b(u))),
    "vllm-triton-colmajor": lambda g, u: b(f(b(f(b(g) / f(1 + e(b(g))))) * b(u))),
    "vllm-triton-packed": lambda g, u: b(f(f(g / f(1 + e(g))) * u)),
    "vllm-pad-aware": lambda g, u: b(f(f(g / f(1 + e(g))) * u)),
    "vllm-batch-invariant": lambda g, u: b(f(f(b(g) / f(1 + e(b(g)))) * b(u))),
    "deepgemm-megamoe": lambda g, u: f(f(b(g) / f(1 + e(b(g)))) * b(u)),
    "sglang-dsv4": lambda g, u: f(f(b(g) / f(1 + e(b(g)))) * b(u)),
    "gpt-oss": lambda g, u: b(f(f(f(u + 1) * g) / f(1 + e(f(ALPHA * g))))),
    "gpt-oss-triton-kernels": lambda g, u: b(fused(f(g / f(1 + e(f(ALPHA * g)))), u)),
    "minimax-m3": lambda g, u: b(
        f(b(f(b(g) * b(f(1 / f(1 + e(b(f(ALPHA * b(g))))))))) * b(f(b(u) + 1)))
    ),
    "deepseek-v4-ref": lambda g, u: b(f(f(g / f(1 + e(g))) * u)),
    "glm53-hf": lambda g, u: b(f(b(f(b(g) / f(1 + e(b(g))))) * b(u))),
    "flashinfer-swiglu-bias": lambda g, u: b(f(f(g * f(1 / f(1 + e(g)))) * u)),
}


def fused(s: Fraction, u: Fraction) -> Fraction:
    return f(s * u + s)


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"sglang-v2-fused", "step35"}))
def test_each_variant_is_its_formula_in_exact_rationals(name: str) -> None:
    rng = np.random.default_rng(9)
    gate, up = ((rng.standard_normal(250) * 5).astype(BF16) for _ in range(2))
    got = refkern.swiglu(gate, up, limit=6.9, variant=name)
    with mpmath.workprec(100):
        for g, u, have in zip(gate, up, got, strict=True):
            clamped = min(Fraction(float(g)), L69), max(min(Fraction(float(u)), L69), -L69)
            assert Fraction(float(have)) == FORMULAS[name](*clamped), (g, u)


def test_the_variants_without_a_clamp_before_silu_in_exact_rationals() -> None:
    rng = np.random.default_rng(10)
    gate, up = ((rng.standard_normal(250) * 5).astype(BF16) for _ in range(2))
    plain = refkern.swiglu(gate, up, variant="sglang-v2-fused")
    after = refkern.swiglu(gate, up, limit=6.9, variant="step35")
    with mpmath.workprec(100):
        for g, u, p, a in zip(map(float, gate), map(float, up), plain, after, strict=True):
            silu = f(Fraction(g) / f(1 + e(Fraction(g))))
            assert Fraction(float(p)) == b(f(b(silu) * Fraction(u)))
            clamped = max(min(Fraction(u), L69), -L69)
            assert Fraction(float(a)) == b(f(min(silu, L69) * clamped))


def witnesses() -> list[tuple[np.ndarray, np.ndarray, float | None]]:
    """What tells the variants apart: a few thousand random pairs, and special values."""
    rng = np.random.default_rng(3)
    gate, up = ((rng.standard_normal(4000) * 3).astype(np.float32) for _ in range(2))
    return [
        (gate.astype(BF16), up.astype(BF16), None),
        (gate.astype(BF16), up.astype(BF16), 6.9),
        (bf16(-9, 9), bf16(2, -8), 0.0),
        (bf16(NAN), bf16(1), 7.0),
        (gate, up, 2.0),
    ]


def without_limit(variant: Variant) -> Variant:
    """What is left of a variant where there is no limit."""
    beta = variant.beta if variant.beta else None
    return replace(
        variant, name="", source="", clamp="before", nan="dropped", zero_limit="clamps",
        rounds_gate_limit=False, rounds_up_limit=False, beta=beta,
    )  # fmt: skip


def test_every_two_variants_differ_or_are_the_same() -> None:
    """sglang-v2-fused takes no limit; without one, three others compute the very same."""
    found: dict[str, list[bytes | None]] = {}
    for name, variant in VARIANTS.items():
        found[name] = [
            None
            if variant.clamp == "none" and limit is not None
            else raw(swiglu_variants.reference(g, u, limit=limit, variant=name)).tobytes()
            for g, u, limit in witnesses()
        ]
    same = set()
    for a, b in itertools.combinations(VARIANTS, 2):
        both = [(x, y) for x, y in zip(found[a], found[b], strict=True) if x and y]
        assert both
        if all(x == y for x, y in both):
            same.add((a, b))
    assert same == {
        ("vllm-cuda-clamp", "sglang-v2-fused"),
        ("vllm-triton-colmajor", "sglang-v2-fused"),
        ("sglang-v2-fused", "glm53-hf"),
    }
    for a, b in same:
        assert without_limit(VARIANTS[a]) == without_limit(VARIANTS[b])


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("how", "argument"),
    [
        ({"gate": np.zeros(3)}, "gate"),
        ({"up": np.zeros(3, np.float32)}, "up"),
        ({"up": bf16(1, 2)}, "up"),
        ({"variant": "densmlp"}, "variant"),
        ({"variant": "sglang-v2-fused", "limit": 7.0}, "limit"),
    ],
)
def test_bad_arguments(how: dict, argument: str) -> None:
    with pytest.raises(refkern.InvalidInput) as error:
        refkern.swiglu(**{"gate": bf16(1, 2, 3), "up": bf16(1, 2, 3), **how})
    assert error.value.argument == argument


def test_shapes_and_strides() -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((3, 4, 10)).astype(BF16)
    for layout in ("concatenated", "interleaved"):
        gate, up = split_halves(x, layout=layout)
        want = refkern.swiglu(gate.copy(), up.copy(), limit=7)
        got = refkern.swiglu(gate, up, limit=7)
        assert got.shape == (3, 4, 5)
        np.testing.assert_array_equal(raw(got), raw(want))
    assert refkern.swiglu(bf16(), bf16()).shape == (0,)
    one = refkern.swiglu(gate[0, 0, 0].reshape(()), up[0, 0, 0].reshape(()))
    assert one.shape == ()
