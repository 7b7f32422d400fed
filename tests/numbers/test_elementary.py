"""fma, exp, rsqrt and quotients, numpy and numba, against MPFR.

All 2^32 inputs of exp and rsqrt: tests/exhaustive.  Here a sample, the hardest cases that the
exhaustive run found, and the edges.
"""

from __future__ import annotations

from pathlib import Path

import gmpy2
import numpy as np
import pytest
from exact import compiled, without_nan_payload

from refkern import elementary
from refkern.compiled import elementary as kernels
from refkern.compiled.bits import fma as fma_intrinsic
from refkern.compiled.bits import jit

DATA = Path(__file__).parents[1] / "data"
#: IEEE binary32 and binary64, subnormals included: one rounding of the exact result
BINARY32 = gmpy2.context(precision=24, emax=128, emin=-148, subnormalize=True)
BINARY64 = gmpy2.context(precision=53, emax=1024, emin=-1073, subnormalize=True)
INF = float("inf")


@jit
def fma_scalar(a, b, c):
    return fma_intrinsic(a, b, c)


@jit
def quotient(a):
    return np.float32(3) / a


def float32_of(numbers) -> np.ndarray:
    return np.array([float(n) for n in numbers], np.float32)


def from_bits(*bits: int) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


def patterns(count: int, seed: int) -> np.ndarray:
    """Random bit patterns: every exponent as often, NaN and infinities among them."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)


def assert_same_floats(got: np.ndarray, want: np.ndarray, *inputs: np.ndarray) -> None:
    assert got.dtype == want.dtype == np.float32
    wrong = np.flatnonzero(without_nan_payload(got) != without_nan_payload(want))
    if wrong.size:
        at = wrong[0]
        given = [x[at] for x in inputs]
        raise AssertionError(f"{wrong.size} of {got.size}; {given} gave {got[at]}, not {want[at]}")


# --- fma --------------------------------------------------------------------------------------


def fma_operands(kind: str, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)

    def normal(scale: float) -> np.ndarray:
        return (rng.standard_normal(count) * scale).astype(np.float32)

    with np.errstate(all="ignore"):
        match kind:
            case "any bits":
                return patterns(count, 1), patterns(count, 2), patterns(count, 3)
            case "moderate":
                return normal(1), normal(1), normal(1)
            case "cancelling":
                a, b = normal(1), normal(1)
                return a, b, -(a * b) * (1 + normal(2.0**-20))
            case "cancelling to the last bits":
                a, b = normal(1), normal(1)
                return a, b, -(a * b)
            case "subnormal":
                return normal(2.0**-70), normal(2.0**-76), normal(2.0**-146)
            case "overflow":
                return normal(2.0**64), normal(2.0**64), normal(2.0**127)
            case "false midpoint":
                # a * b = (1 - d^2) / 2 ULP of c, d^2 below 2^-34: the float64 sum is a tie of
                # float32, the exact one just below it.
                d = rng.integers(1, 64, count).astype(np.float32) * np.float32(2.0**-23)
                sign = np.where(rng.integers(0, 2, count) == 1, 1, -1).astype(np.float32)
                c = (1 + np.float32(2.0**-23) * rng.integers(1, 1 << 22, count)).astype(np.float32)
                return sign * (1 + d), (1 - d) * np.float32(2.0**-24), sign * c
    raise AssertionError(kind)


KINDS = [
    *("any bits", "moderate", "cancelling", "cancelling to the last bits"),
    *("subnormal", "overflow", "false midpoint"),
]


def exact_fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return float32_of(BINARY32.fma(*map(gmpy2.mpfr, t)) for t in triples)


@pytest.mark.parametrize("kind", KINDS)
def test_fma_rounds_once(kind):
    a, b, c = fma_operands(kind, 1 << 15)
    with np.errstate(all="ignore"):
        got = elementary.fma(a, b, c)
    assert_same_floats(compiled(fma_scalar, np.float32)(a, b, c), got, a, b, c)
    some = slice(0, 3000)
    assert_same_floats(got[some], exact_fma(a[some], b[some], c[some]), a, b, c)


def test_fma_false_midpoints():
    """They are what they are called, and the plain float64 sum is wrong on half of them."""
    a, b, c = fma_operands("false midpoint", 3000)
    by_float64 = (a.astype(np.float64) * b + c).astype(np.float32)
    assert 1000 < np.count_nonzero(by_float64 != exact_fma(a, b, c)) < 2000
    # beside a tie by less than float64 resolves, from 2^-70 to 2^40 of the sum
    scale = np.ldexp(np.float32(1), np.arange(-70, 40)).astype(np.float32)
    a = np.float32(1 + 2.0**-23) * np.concatenate([scale, -scale])
    b = np.full(a.shape, np.float32(1 - 2.0**-23))
    for addend in (1.0, 1 + 2.0**-23, -1.0, 2.0**-126, 3.0):
        c = np.full(a.shape, np.float32(addend))
        got = elementary.fma(a, b, c)
        assert_same_floats(got, exact_fma(a, b, c), a, b, c)
        assert_same_floats(compiled(fma_scalar, np.float32)(a, b, c), got, a, b, c)


def test_fma_specials():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    a = np.array([inf, inf, 0, nan, 1, 0, -0.0, 1, 1], np.float32)
    b = np.array([1, 0, inf, 1, nan, -1, 1, -1, 0], np.float32)
    c = np.array([-inf, 1, 1, 1, 1, 0, -0.0, 1, -0.0], np.float32)
    with np.errstate(invalid="ignore"):
        got = elementary.fma(a, b, c)
    assert_same_floats(got, np.array([nan, nan, nan, nan, nan, 0, -0.0, 0, 0], np.float32))
    assert_same_floats(compiled(fma_scalar, np.float32)(a, b, c), got)
    with np.errstate(invalid="ignore"):
        scalar = elementary.fma(np.float32(2), np.float32(3), np.float32(4))
    assert float(scalar) == 10


def test_fma_float64_in_numba():
    rng = np.random.default_rng(8)
    a, b = rng.standard_normal((2, 2000))
    c = -(a * b)
    want = [
        float(BINARY64.fma(*map(gmpy2.mpfr, t)))
        for t in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    assert compiled(fma_scalar, np.float64)(a, b, c).tolist() == want


def test_fma_takes_floats_of_one_width():
    with pytest.raises(Exception, match="fma takes three floats of one width"):
        jit(lambda x: fma_intrinsic(x, x, 1.0))(np.float32(1))


# --- exp --------------------------------------------------------------------------------------


def exact_exp(x: np.ndarray) -> np.ndarray:
    return float32_of(BINARY32.exp(gmpy2.mpfr(v)) for v in x.tolist())


def test_exp_sample_of_all_inputs():
    """2^20 inputs numpy == numba, of which 20,000 also against MPFR."""
    stride = np.arange(0, 1 << 32, 1 << 12, dtype=np.int64)
    jitter = np.random.default_rng(4).integers(0, 1 << 12, stride.size)
    x = (stride + jitter).astype(np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        got = elementary.exp_correctly_rounded(x)
    assert_same_floats(compiled(kernels.exp, np.float32)(x), got, x)
    ordinary = np.flatnonzero((np.abs(x) < 105) & (np.abs(x) > 2.0**-27))
    some = np.random.default_rng(5).choice(ordinary, 20_000, replace=False)
    assert_same_floats(got[some], exact_exp(x[some]), x[some])


def test_exp_hardest_cases():
    x = np.load(DATA / "exp_hardest.npy").view(np.float32)
    assert x.size == 256
    got = elementary.exp_correctly_rounded(x)
    assert_same_floats(got, exact_exp(x), x)
    assert_same_floats(compiled(kernels.exp, np.float32)(x), got, x)
    # They are hard: one float64 unit in the last place more or less changes many of them.
    wide = elementary.exp_float64(x)
    moved = [(wide * (1 + d)).astype(np.float32) != got for d in (2.0**-49, -(2.0**-49))]
    assert np.count_nonzero(moved[0] | moved[1]) > 8


def exp_edges() -> np.ndarray:
    points = [0.0, -0.0, 1.0, -1.0, 88.72283, 88.72284, 89.0, 90.0, 1e30, INF, -INF, np.nan]
    points += [-87.33654, -87.33655, -103.0, -103.27893, -103.27894, -103.97207, -103.97208]
    points += [104.0, -104.0, -104.1, -1e30, 1e-45, -1e-45, 2.0**-24, -(2.0**-25), 2.0**-126]
    x = np.array(points, np.float32)
    return np.concatenate([x, np.nextafter(x, np.float32(INF)), np.nextafter(x, np.float32(-INF))])


def test_exp_edges():
    x = exp_edges()
    with np.errstate(all="ignore"):
        got = elementary.exp_correctly_rounded(x)
    assert_same_floats(got, exact_exp(x), x)
    assert_same_floats(compiled(kernels.exp, np.float32)(x), got, x)
    with np.errstate(over="ignore"):
        bits = elementary.exp_correctly_rounded(
            np.array([0, -0.0, INF, -INF, 88.72283, 88.72284, -103.97208, -103.97209], np.float32)
        ).view(np.uint32)
    assert [f"{b:08x}" for b in bits] == [
        *("3f800000", "3f800000", "7f800000", "00000000"),
        *("7f7fff84", "7f800000", "00000001", "00000000"),
    ]
    subnormal = np.linspace(-103.9, -87.4, 3000).astype(np.float32)
    got = elementary.exp_correctly_rounded(subnormal)
    assert (got < 2.0**-126).all()
    assert (got > 0).all()
    assert_same_floats(got, exact_exp(subnormal), subnormal)


def test_exp_float64_is_within_its_bound():
    x = np.random.default_rng(6).uniform(-104, 89, 3000).astype(np.float32)
    got = elementary.exp_float64(x)
    assert compiled(kernels.exp_float64, np.float64)(x).tolist() == got.tolist()
    with gmpy2.context(precision=120):
        for value, result in zip(x.tolist(), got.tolist(), strict=True):
            exact = gmpy2.exp(gmpy2.mpfr(value))
            assert abs(result - exact) <= exact * gmpy2.mpfr(2) ** -52


def test_exp_modular_cpu():
    x = np.concatenate([exp_edges(), patterns(1 << 17, 9)])
    x = np.concatenate([x, np.random.default_rng(1).uniform(-90, 90, 1 << 17).astype(np.float32)])
    with np.errstate(all="ignore"):
        got = elementary.exp_modular_cpu(x)
    assert_same_floats(compiled(kernels.exp_modular_cpu, np.float32)(x), got, x)
    # Its documented facts: infinite from 88.376266 on, 0 below about -87.683, up to 4.5 ULP off.
    first = np.float32(88.376266)
    assert np.isposinf(got[x >= first]).all()
    assert np.isfinite(got[x < first]).all()
    assert (got[x < -87.6832] == 0).all()
    assert (got[(x > -87.683) & (x < 0)] > 0).all()
    assert np.isnan(got[np.isnan(x)]).all()
    inside = x[(x > -87) & (x < 88)][:40_000]
    with np.errstate(all="ignore"):
        exact = elementary.exp_float64(inside)
        off = np.abs(elementary.exp_modular_cpu(inside).astype(np.float64) - exact)
    ulps = off / np.ldexp(1.0, np.frexp(exact)[1] - 24)
    assert 2 < ulps.max() < 4.6


# --- rsqrt and quotients ----------------------------------------------------------------------


def rsqrt_inputs() -> np.ndarray:
    edges = [0.0, -0.0, 1.0, 4.0, 0.25, 2.0, INF, -INF, np.nan, -1.0, 2.0**-149, 2.0**-126]
    edges += [float(np.finfo(np.float32).max), -(2.0**-149), 3e-45, 1e-38]
    x = np.array(edges, np.float32)
    return np.concatenate([x, np.abs(patterns(20_000, 12)), patterns(100, 13)])


def test_rsqrt():
    x = rsqrt_inputs()
    with np.errstate(all="ignore"):
        got = elementary.rsqrt_correctly_rounded(x)
    assert_same_floats(compiled(kernels.rsqrt, np.float32)(x), got, x)
    # 1/sqrt, -0 gives -inf: IEEE 754 and MPFR (rec_sqrt has +inf there, so it is asked for others)
    assert [str(v) for v in got[:2].tolist()] == ["inf", "-inf"]
    want = float32_of(BINARY32.rec_sqrt(gmpy2.mpfr(v)) for v in x[2:].tolist())
    assert_same_floats(got[2:], want, x[2:])


def test_one_over_sqrt_has_two_roundings():
    x = rsqrt_inputs()
    with np.errstate(all="ignore"):
        got = elementary.rsqrt_two_roundings(x)
    assert_same_floats(compiled(kernels.rsqrt_two_roundings, np.float32)(x), got, x)
    roots = [BINARY32.sqrt(gmpy2.mpfr(v)) for v in x.tolist()]
    want = float32_of(BINARY32.div(1, r) for r in roots)
    assert_same_floats(got, want, x)
    with np.errstate(all="ignore"):
        once = elementary.rsqrt_correctly_rounded(x)
    differs = np.count_nonzero(without_nan_payload(once) != without_nan_payload(got))
    assert differs > 1000  # they are two functions


def test_quotients_are_correctly_rounded():
    x = np.concatenate([rsqrt_inputs(), patterns(3000, 14)])
    with np.errstate(all="ignore"):
        got = np.float32(3) / x
    assert_same_floats(compiled(quotient, np.float32)(x), got, x)
    want = float32_of(BINARY32.div(3, gmpy2.mpfr(v)) for v in x.tolist())
    assert_same_floats(got, want, x)


def test_minimum_and_maximum_of_a_gpu():
    nan = np.nan
    a = np.array([1, nan, 2, nan, 0.0, -0.0, -0.0, 0.0], np.float32)
    b = np.array([2, 1, nan, nan, -0.0, 0.0, -0.0, 0.0], np.float32)
    low, high = elementary.fmin(a, b), elementary.fmax(a, b)
    assert_same_floats(low, np.array([1, 1, 2, nan, -0.0, -0.0, -0.0, 0.0], np.float32))
    assert_same_floats(high, np.array([2, 1, 2, nan, 0.0, 0.0, -0.0, 0.0], np.float32))


@pytest.mark.parametrize("name", ["EXP", "EXP_MODULAR_CPU", "RSQRT", "RSQRT_TWO_ROUNDINGS"])
def test_a_function_knows_its_compiled_version(name):
    function = getattr(elementary, name)
    x = np.array([0.5, 2.0], np.float32)
    assert_same_floats(compiled(function.load_compiled(), np.float32)(x), function(x))
    assert function == getattr(elementary, name)
    assert hash(function) == hash(getattr(elementary, name))
