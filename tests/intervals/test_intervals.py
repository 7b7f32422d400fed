"""Interval operations against what they must contain, and against what they must not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from refkern import policy
from refkern.casts import cast, widen
from refkern.elementary import EXP, RSQRT, RSQRT_TWO_ROUNDINGS, exp_correctly_rounded
from refkern.formats import NARROW
from refkern.intervals import Intervals, between, point
from refkern.schedules import Sequential

F32 = np.float32
INF, NAN = F32(np.inf), F32(np.nan)
TINY, MIN_NORMAL, MAX = F32(2.0**-149), F32(2.0**-126), np.finfo(F32).max
SPECIALS = [-INF, -MAX, F32(-1.5), -TINY, F32(-0.0), F32(0), MIN_NORMAL, F32(3), INF, NAN]
ORDER = Sequential()


@pytest.fixture(autouse=True)
def quiet() -> object:
    with np.errstate(all="ignore"):
        yield


def under(name: str) -> Intervals:
    return Intervals(policy.load(name))


def values(*numbers: float) -> np.ndarray:
    return np.array(numbers, F32)


def random_floats(count: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    wide = random.normal(size=count) * np.exp2(random.integers(-30, 30, count))
    return wide.astype(F32)


OPERATIONS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_points_under_ieee_are_the_rounded_result(name: str) -> None:
    a, b = random_floats(4096, 1), random_floats(4096, 2)
    result = getattr(under("ieee"), name)(point(a), point(b))
    want = OPERATIONS[name](a, b)
    assert np.array_equal(result.lo, want)
    assert np.array_equal(result.hi, want)
    assert not result.free.any()


@pytest.mark.parametrize("policy_name", ["ieee", "cuda-fast", "metal", "wgsl", "metal-fast"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_everything_between_the_operands_bounds_is_inside(name: str, policy_name: str) -> None:
    random = np.random.default_rng(3)
    a, b = random_floats(2000, 4), random_floats(2000, 5)
    wide_a = (a.view(np.int32) + random.integers(0, 1000, a.size, np.int32)).view(F32)
    wide_b = (b.view(np.int32) + random.integers(0, 1000, b.size, np.int32)).view(F32)
    first = between(np.minimum(a, wide_a), np.maximum(a, wide_a))
    second = between(np.minimum(b, wide_b), np.maximum(b, wide_b))
    result = getattr(under(policy_name), name)(first, second)
    for _ in range(20):
        x = (first.lo + random.random(a.size) * (first.hi - first.lo)).astype(F32)
        y = (second.lo + random.random(a.size) * (second.hi - second.lo)).astype(F32)
        x, y = np.clip(x, first.lo, first.hi), np.clip(y, second.lo, second.hi)
        got = OPERATIONS[name](x, y)
        assert result.holds(got).all()


@pytest.mark.parametrize("policy_name", ["ieee", "cuda", "cuda-fast", "metal", "wgsl"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_specials_are_inside_and_nan_is_certain_only_when_it_is(
    name: str, policy_name: str
) -> None:
    """Every interval whose ends are two of the special values, NaN only as a point."""
    ends = [
        (x, y)
        for x, y in itertools.combinations_with_replacement(SPECIALS, 2)
        if not (np.isnan(x) ^ np.isnan(y))
    ]

    def place(v: np.float32) -> tuple[float, bool]:
        return float(v), not np.signbit(v)  # -0 lies below +0

    inner = [
        [v for v in SPECIALS if place(x) <= place(v) <= place(y) or (np.isnan(v) and np.isnan(x))]
        for x, y in ends
    ]
    m = under(policy_name)
    for (i, x), (k, y) in itertools.product(enumerate(ends), enumerate(ends)):
        result = getattr(m, name)(
            between(values(x[0]), values(x[1])), between(values(y[0]), values(y[1]))
        )
        got = np.array(
            [OPERATIONS[name](p, q) for p in inner[i] for q in inner[k]],
            F32,
        )
        assert result.holds(got).all(), (name, x, y, got, result)
        if result.is_nan[0]:
            assert np.isnan(got).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_wgsl_takes_both_neighbours_of_an_inexact_result_and_no_more(name: str) -> None:
    a, b = np.abs(random_floats(500, 6)) + F32(0.5), np.abs(random_floats(500, 7)) + F32(0.25)
    if name == "div":
        return  # it has a budget of its own there
    result = getattr(under("wgsl"), name)(point(a), point(b))
    for i in range(a.size):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        exact = {"add": x + y, "sub": x - y, "mul": x * y}[name]
        lo, hi = Fraction(float(result.lo[i])), Fraction(float(result.hi[i]))
        assert lo <= exact <= hi
        if lo != hi:
            assert np.nextafter(result.lo[i], INF) == result.hi[i]
            assert exact not in (lo, hi)


def test_a_fused_addition_is_inside_and_ieee_without_fusing_would_not_hold_it() -> None:
    a, b, c = random_floats(20000, 8), random_floats(20000, 9), random_floats(20000, 10)
    c = (-(a * b) * F32(1.0000001)).astype(F32)  # cancellation: where fusing shows most
    m = under("ieee")
    result = m.add(m.mul(point(a), point(b)), point(c))
    from refkern.elementary import fma

    assert result.holds(fma(a, b, c)).all()
    assert result.holds(a * b + c).all()
    assert (fma(a, b, c) != a * b + c).mean() > 0.3
    assert m.fma(point(a), point(b), point(c)).holds(fma(a, b, c)).all()
    # A product that was stored is rounded: nothing can be fused behind a stage.
    stored = m.add(m.stage("p", m.mul(point(a), point(b))), point(c))
    assert np.array_equal(stored.lo, a * b + c)
    assert np.array_equal(stored.hi, a * b + c)


@pytest.mark.parametrize(("name", "ulps"), [("ieee", 0), ("cuda", 2), ("metal", 4)])
def test_exp_holds_its_budget_and_one_ulp_more_is_out(name: str, ulps: int) -> None:
    x = np.linspace(-80, 80, 4001, dtype=F32)
    result = under(name).exp(point(x), EXP)
    right = exp_correctly_rounded(x)
    for step in range(-ulps + 1, ulps):
        assert result.holds((right.view(np.int32) + np.int32(step)).view(F32)).all()
    # The correctly rounded value is up to half an ULP off, and an ULP below a power of two is half
    # of one above it: so the bounds may lie up to 2 n + 1 steps away, never farther.
    far = np.int32(2 * ulps + 1)
    assert not result.holds((right.view(np.int32) + far).view(F32)).any()
    assert not result.holds((right.view(np.int32) - far).view(F32)).any()
    if ulps == 0:
        assert np.array_equal(result.lo, right)
        assert np.array_equal(result.hi, right)


@pytest.mark.parametrize("name", policy.built_in())
def test_exp_at_the_ends(name: str) -> None:
    m = under(name)
    x = values(-np.inf, -200, -104, -88, 0, 88, 89, 200, np.inf, np.nan)
    result = m.exp(point(x), EXP)
    exact = exp_correctly_rounded(x)
    assert result.holds(exact).all()
    assert (result.lo[~result.free & ~result.is_nan] >= 0).all()
    if not m.policy.finite:
        assert result.is_nan.tolist() == np.isnan(x).tolist()
        assert np.isposinf(result.hi[[6, 7, 8]]).all()


def test_rsqrt_forms() -> None:
    x = np.abs(random_floats(5000, 11))
    once, twice = (1 / np.sqrt(x.astype(np.float64))).astype(F32), F32(1) / np.sqrt(x)
    assert (once != twice).any()
    ieee, cuda = under("ieee"), under("cuda")
    assert np.array_equal(ieee.rsqrt(point(x), RSQRT).lo, once)
    two = ieee.rsqrt(point(x), RSQRT_TWO_ROUNDINGS)
    assert np.array_equal(two.lo, twice)
    assert np.array_equal(two.hi, twice)
    for function in (RSQRT, RSQRT_TWO_ROUNDINGS):
        assert cuda.rsqrt(point(x), function).holds(once).all()
        assert cuda.rsqrt(point(x), function).holds(twice).all()
    ends = ieee.rsqrt(point(values(0, np.inf, -1, np.nan)), RSQRT)
    assert np.isposinf(ends.lo[0])
    assert ends.hi[1] == 0
    assert ends.is_nan.tolist() == [False, False, True, True]
    assert ieee.rsqrt(between(values(-1), values(1)), RSQRT).free.all()


@pytest.mark.parametrize("fmt", [f for f in NARROW if not f.scale_only], ids=str)
def test_casts_bound_what_lies_between(fmt: object) -> None:
    x = random_floats(3000, 12)
    y = x * F32(1.01)
    result = under("ieee").cast(between(np.minimum(x, y), np.maximum(x, y)), fmt)
    middle = cast((x + y) * F32(0.5), fmt)
    assert result.holds(middle).all()
    forced = under("ieee").cast(point(x), fmt)
    assert np.array_equal(forced.lo, widen(cast(x, fmt)), equal_nan=True)
    assert np.array_equal(forced.hi, forced.lo, equal_nan=True)
    either = under("wgsl").cast(point(x), fmt)
    below = np.minimum(x, widen(cast(x, fmt)))
    finite = ~either.free & ~either.is_nan
    assert (either.lo <= below)[finite].all()
    assert (either.hi >= x)[finite & np.isfinite(either.hi)].all()


def test_flush_allows_zero_for_subnormals_only() -> None:
    x = values(2.0**-127, -(2.0**-130), 2.0**-126, 0, -(2.0**-126))
    result = under("metal").widen(x)
    assert result.lo.tolist() == [0, x[1], x[2], 0, x[4]]
    assert result.hi.tolist() == [x[0], 0, x[2], 0, x[4]]
    assert np.array_equal(under("cuda").widen(x).lo, x)


# sums


def test_exact_sums_have_no_width() -> None:
    random = np.random.default_rng(13)
    integers = random.integers(-64, 65, (50, 960)).astype(F32)
    for name in ("ieee", "cuda", "metal", "wgsl"):
        result = under(name).dot(point(integers), point(integers * F32(0.25)), ORDER)
        want = (integers.astype(np.int64) ** 2).sum(axis=1) * 0.25
        assert np.array_equal(result.lo, want.astype(F32))
        assert np.array_equal(result.hi, want.astype(F32))


def test_a_sum_that_needs_more_than_24_bits_has_a_width() -> None:
    x = np.full((1, 4), 2.0**12 + 1, F32)
    result = under("ieee").dot(point(x), point(x), ORDER)
    assert result.lo[0] < result.hi[0]


def test_any_order_is_inside_a_long_chain() -> None:
    random = np.random.default_rng(14)
    terms = (random.normal(size=(40, 300)) * np.exp2(random.integers(-8, 8, (40, 300)))).astype(F32)
    result = under("ieee").sum(point(terms), ORDER)
    for _ in range(50):
        order = random.permutation(300)
        total = np.zeros(40, F32)
        for i in order:
            total = total + terms[:, i]
        assert result.holds(total).all()
    exact = [float(sum(Fraction(float(v)) for v in row)) for row in terms]
    assert (result.lo <= np.array(exact)).all()
    assert (result.hi >= np.array(exact)).all()


def test_the_cuda_chain_is_narrower_than_any_order() -> None:
    terms = np.abs(random_floats(4 * 960, 15).reshape(4, 960))
    cuda, ieee = under("cuda").sum(point(terms), ORDER), under("ieee").sum(point(terms), ORDER)
    assert (cuda.lo > ieee.lo).all()
    assert (cuda.hi < ieee.hi).all()


@pytest.mark.parametrize(
    ("terms", "lo", "hi"),
    [
        ([], 0, 0),
        ([3.5], 3.5, 3.5),
        ([np.inf, 1], np.inf, np.inf),
        ([-np.inf, 1], -np.inf, -np.inf),
        ([np.inf, -np.inf], np.nan, np.nan),
        ([np.nan, 1], np.nan, np.nan),
        ([MAX, MAX], np.inf, np.inf),
    ],
)
def test_special_sums(terms: list[float], lo: float, hi: float) -> None:
    result = under("ieee").sum(point(np.array([terms], F32)), ORDER)
    assert np.array_equal(result.lo, values(lo), equal_nan=True)
    assert np.array_equal(result.hi, values(hi), equal_nan=True)
    assert not result.free.any()


def test_a_partial_sum_may_overflow_on_the_way() -> None:
    result = under("ieee").sum(point(values(MAX, MAX, -MAX)[None]), ORDER)
    assert result.free.all()


def test_nan_and_infinity_are_open_under_wgsl() -> None:
    result = under("wgsl").sum(point(values(np.nan, 1)[None]), ORDER)
    assert result.free.all()


def test_matrix_unit_needs_more_room_than_ordinary_sums() -> None:
    random = np.random.default_rng(16)
    a = cast(random.normal(size=(8, 256)), "bfloat16")
    b = cast(random.normal(size=(8, 256)), "bfloat16")
    widths = []
    for name in ("cuda", "cuda-fp8-fast"):
        m = under(name)
        result = m.dot(m.widen(a), m.widen(b), ORDER)
        widths.append(result.hi - result.lo)
    assert (widths[1] > 100 * widths[0]).all()


def test_largest_magnitude_ignores_nan() -> None:
    x = between(values(-3, 1, np.nan)[None], values(-2, 2, np.nan)[None])
    result = under("ieee").largest_magnitude(x)
    assert (result.lo[0], result.hi[0]) == (2, 3)


def test_a_candidates_own_stage_is_taken_as_it_is() -> None:
    own = cast(values(1, 2), "bfloat16")
    m = Intervals(policy.load("ieee"), {"s": own})
    after = m.stage("s", between(values(0, 0), values(9, 9)))
    assert np.array_equal(after.lo, widen(own))
    assert np.array_equal(m.stages["s"].hi, values(9, 9))
