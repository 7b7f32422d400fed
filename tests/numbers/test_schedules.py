"""Summation orders: numpy == numba == a plain loop written here from the docstrings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from exact import nearest_even, without_nan_payload

from refkern import elementary
from refkern.compiled import sums
from refkern.compiled.bits import jit
from refkern.formats import FLOAT32
from refkern.schedules import Exact, Lanes, Pairwise, Schedule, Sequential

LENGTHS = (0, 1, 2, 3, 7, 31, 32, 33, 100, 255, 256, 257, 960)
F = np.float32
ZERO = F(0)

#: every field of Lanes takes each of its values, and the combinations that the ops use
LANES = [
    Lanes(),
    Lanes(lanes=1),
    Lanes(lanes=4, vector=4, fold="sequential"),
    Lanes(fused=True, combine="ascending"),
    Lanes(fused=True, combine="sequential", lanes=12),
    Lanes(vector=8, fused=True),
    Lanes(vector=2, fused=True),
    Lanes(vector=8, fold="sequential", fused=True),
    Lanes(lanes=8, vector=4, components=4, fused=True),
    Lanes(lanes=8, vector=4, components=4, fold="sequential"),
    Lanes(lanes=8, vector=8, components=2, fused=True, combine="ascending"),
    Lanes(lanes=8, vector=8, components=4),
    Lanes(lanes=64, subgroup=16),
    Lanes(lanes=64, subgroup=64, combine="ascending"),
    Lanes(lanes=64, vector=4, subgroup=32, strided=False, combine="sequential"),
    Lanes(lanes=8, vector=4, strided=False, fused=True),
    Lanes(lanes=16, strided=False),
    Lanes(lanes=8, vector=4, components=4, scalar_tail=True, fused=True),
    Lanes(lanes=8, vector=8, scalar_tail=True),
    Lanes(lanes=8, vector=8, scalar_tail=True, strided=False, combine="ascending", subgroup=4),
    Lanes(lanes=3, vector=3, components=3, fold="sequential", combine="sequential"),
]
SCHEDULES: list[Any] = [Sequential(), Sequential(fused=True), Pairwise(), *LANES]


def ids(schedule: Schedule) -> str:
    if not isinstance(schedule, Lanes):
        return repr(schedule)
    default = Lanes()
    fields = {k: v for k, v in vars(schedule).items() if v != getattr(default, k)}
    return f"Lanes({', '.join(f'{k}={v}' for k, v in fields.items())})"


# --- the plain loops --------------------------------------------------------------------------


def fma(a: F, b: F, c: F) -> F:
    return elementary.fma(a, b, c)[()]  # held against MPFR in test_elementary


def halving(terms: list[F]) -> F:
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [terms[i] + terms[i + half] for i in range(half)]
    return terms[0]


def neighbours(terms: list[F]) -> F:
    while len(terms) > 1:
        terms = [terms[i] + terms[i + 1] for i in range(0, len(terms), 2)]
    return terms[0]


def in_order(terms: list[F]) -> F:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def from_zero(terms: list[F]) -> F:
    return in_order([ZERO, *terms])


def by_lanes(s: Lanes, a: list[F], b: list[F] | None) -> F:
    n, strip = len(a), s.lanes * s.vector
    whole = n // strip * strip if s.scalar_tail else n
    vectors = -(-whole // strip)  # that each lane takes
    sums = [[ZERO] * s.components for _ in range(s.lanes)]
    for lane in range(s.lanes):
        for step in range(vectors):
            which = step * s.lanes + lane if s.strided else lane * vectors + step
            at = [which * s.vector + i for i in range(s.vector)]
            add_vector(s, sums[lane], at, a, b, whole)
    for i in range(whole, n):
        mine = sums[(i - whole) % s.lanes]
        mine[0] = add_one(s, mine[0], a[i], None if b is None else b[i])
    fold = halving if s.fold == "halving" else in_order
    combine = {"descending": halving, "ascending": neighbours, "sequential": from_zero}[s.combine]
    lanes = [fold(own) for own in sums]
    if s.subgroup is None:
        return combine(lanes)
    groups = [lanes[g : g + s.subgroup] for g in range(0, s.lanes, s.subgroup)]
    return from_zero([combine(group) for group in groups])


def add_one(s: Lanes, total: F, a: F, b: F | None) -> F:
    if b is None:
        return total + a
    return fma(a, b, total) if s.fused else total + a * b


def add_vector(
    s: Lanes, own: list[F], at: list[int], a: list[F], b: list[F] | None, whole: int
) -> None:
    """One lane takes the elements ``at`` into its components; past the end there is +0."""
    x = [a[i] if i < whole else ZERO for i in at]
    y = None if b is None else [b[i] if i < whole else ZERO for i in at]
    if s.components == s.vector:
        for i in range(s.vector):
            own[i] = add_one(s, own[i], x[i], None if y is None else y[i])
        return
    if y is None:
        terms = x
    elif s.fused and s.fold == "halving":
        half = s.vector // 2
        terms = [fma(x[i], y[i], x[i + half] * y[i + half]) for i in range(half)]
    else:
        terms = [p * q for p, q in zip(x, y, strict=True)]
    if s.fold == "sequential":
        terms = [in_order(terms)]
    while len(terms) > s.components:
        half = len(terms) // 2
        terms = [terms[i] + terms[i + half] for i in range(half)]
    for i, term in enumerate(terms):
        own[i] = own[i] + term


def pairwise(a: list[F], b: list[F] | None) -> F:
    terms = a if b is None else [p * q for p, q in zip(a, b, strict=True)]
    while len(terms) > 1:
        odd = terms[-1:] if len(terms) % 2 else []
        terms = [terms[i] + terms[i + 1] for i in range(0, len(terms) - 1, 2)] + odd
    return terms[0] + ZERO if terms else ZERO


def sequential(s: Sequential, a: list[F], b: list[F] | None) -> F:
    total = ZERO
    for i in range(len(a)):
        if b is None:
            total = total + a[i]
        else:
            total = fma(a[i], b[i], total) if s.fused else total + a[i] * b[i]
    return total


def plain(schedule: Schedule, a: list[F], b: list[F] | None) -> F:
    match schedule:
        case Lanes():
            return by_lanes(schedule, a, b)
        case Sequential():
            return sequential(schedule, a, b)
        case Pairwise():
            return pairwise(a, b)
    raise AssertionError(schedule)


# --- the data ---------------------------------------------------------------------------------


@cache
def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """[10, n] twice: ordinary, cancelling, wide, subnormal, -0, overflow, Inf, Inf - Inf, NaN."""
    rng = np.random.default_rng(n)
    a = rng.standard_normal((10, n)).astype(F)
    b = rng.standard_normal((10, n)).astype(F)
    with np.errstate(under="ignore"):
        a[1] = np.where(np.arange(n) % 2, -1, 1)
        b[1] = np.round(b[1] * 4) + F(1e-7)
        a[2] = np.ldexp(a[2], rng.integers(-40, 40, n))
        a[3], b[3] = a[3] * F(2.0**-140), F(1)
        a[4], b[4] = F(-0.0), F(1)
        a[5], b[5] = F(2.0**100), np.abs(b[5]) * F(2.0**24)
        b[6] = b[5]
        a[6] = np.where(np.arange(n) % 3 == 0, -a[5], a[5])
        if n:
            a[7, n // 2] = np.inf
            a[8, 0], a[8, n - 1] = np.inf, -np.inf
            a[9, n // 3] = np.nan
    return a, b


@jit
def by_kernel(run, a, b, n, scratch, out):
    for row in range(out.size):
        out[row] = run(a[row], b[row], n, scratch)


def numba_sums(schedule: Schedule, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    total = sums.products(schedule)
    n = a.shape[-1]
    padded = np.zeros((2, len(a), total.padded(n)), F)
    padded[0, :, :n], padded[1, :, :n] = a, b
    out = np.empty(len(a), F)
    scratch = np.full(total.scratch(n), np.nan, F)  # a sum may expect nothing of it
    by_kernel(total.run, padded[0], padded[1], n, scratch, out)
    return out


def assert_same(got: np.ndarray, want: np.ndarray, what: Any) -> None:
    wrong = np.flatnonzero(without_nan_payload(got) != without_nan_payload(want))
    assert not wrong.size, f"{what}: row {wrong[0]}: {got[wrong[0]]!r}, not {want[wrong[0]]!r}"


@pytest.mark.parametrize("schedule", SCHEDULES, ids=ids)
def test_numpy_numba_and_a_plain_loop_agree(schedule):
    with np.errstate(all="ignore"):
        for n in LENGTHS:
            a, b = rows(n)
            # The loop is slow: all rows up to 100 elements, then those where the order shows.
            kept = np.arange(10) if n <= 100 else np.array([0, 2, 6])
            want = np.array([plain(schedule, [*a[r]], [*b[r]]) for r in kept], F)
            got = schedule.replay(a, b)
            assert got.dtype == F
            assert_same(got[kept], want, (n, "numpy"))
            assert_same(numba_sums(schedule, a, b), got, (n, "numba"))
            few = kept[:3]
            want = np.array([plain(schedule, [*a[r]], None) for r in few], F)
            assert_same(schedule.replay(a)[few], want, (n, "terms"))


def test_schedules_are_different_orders():
    """No two of them give the same sums, so none can stand in for another unnoticed."""
    seen: dict[bytes, str] = {}
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 200, 957)).astype(F)
    for schedule in [*SCHEDULES, Exact(), Exact(rounded_products=False)]:
        if schedule == Lanes(lanes=1):
            continue  # is Sequential
        name = ids(schedule)
        result = schedule.replay(a, b).tobytes()
        assert result not in seen, f"{name} and {seen.get(result)}"
        seen[result] = name


@pytest.mark.parametrize("field", ["lanes", "vector", "strided", "components", "fold", "fused",
                                   "combine", "subgroup", "scalar_tail"])  # fmt: skip
def test_every_field_of_lanes_matters(field):
    base = Lanes(lanes=8, vector=4, components=4, fold="halving")
    other = {
        "lanes": 16,
        "vector": 4,
        "strided": False,
        "components": 1,
        "fold": "sequential",
        "fused": True,
        "combine": "ascending",
        "subgroup": 2,
        "scalar_tail": True,
    }[field]
    if field == "vector":
        base = replace(base, vector=8, components=1)
    a, b = np.random.default_rng(2).standard_normal((2, 100, 101)).astype(F)
    changed = replace(base, **{field: other})
    assert (base.replay(a, b) != changed.replay(a, b)).any()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lanes": 0},
        {"lanes": 12},
        {"vector": 3},
        {"vector": 4, "components": 3},
        {"vector": 4, "components": 8},
        {"vector": 4, "components": 2, "fold": "sequential"},
        {"subgroup": 5},
        {"subgroup": 64},
    ],
)
def test_lanes_that_would_lose_elements_are_refused(wrong):
    with pytest.raises(ValueError, match="Lanes"):
        Lanes(**wrong)


@pytest.mark.parametrize(
    "schedule",
    [Sequential(fused=True), Pairwise(), LANES[5], LANES[8], Exact(), Exact(False)],
    ids=ids,
)
def test_a_and_b_broadcast(schedule):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((2, 1, 4, 37)).astype(F)
    b = rng.standard_normal((3, 1, 37)).astype(F)
    got = schedule.replay(a, b)
    assert got.shape == (2, 3, 4)
    whole_a, whole_b = np.broadcast_arrays(a, b)
    assert (got == schedule.replay(np.ascontiguousarray(whole_a), whole_b.copy())).all()
    assert schedule.replay(a[0, 0, 0], b[0, 0]).shape == ()
    assert schedule.replay(a[0, 0, 0], b[0, 0]) == got[0, 0, 0]
    assert schedule.replay(a[:0], b).shape == (0, 3, 4)
    assert schedule.replay(a[..., :0]).tolist() == np.zeros((2, 1, 4)).tolist()


# --- the exact sum ----------------------------------------------------------------------------


def exact_sum(terms: list[Fraction]) -> F:
    total = sum(terms, Fraction(0))
    return np.array([nearest_even(total, FLOAT32)], np.uint32).view(F)[0]


def exact_rows(n: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(n)
    one = np.ones(n, F)
    normal = rng.standard_normal(n).astype(F)
    other = rng.standard_normal(n).astype(F)
    cancel = np.concatenate([normal[: n // 2], -normal[: n // 2], np.zeros(n % 2, F)])
    shuffled = rng.permutation(cancel)
    outlier = shuffled.copy()
    outlier[: 2 * (n // 2) : n // 2] = [F(1e30), F(-1e30)]
    tie = np.zeros(n, F)
    tie[:2] = [F(1 + 2.0**-22), F(2.0**-24)]
    beside = tie.copy()
    beside[n // 2] = F(2.0**-120)
    below = tie.copy()
    below[n // 2] = F(-(2.0**-149))
    even = tie.copy()
    even[0] = F(1 + 2.0**-23)
    wide = np.ldexp(normal, rng.integers(-120, 100, n)).astype(F)
    small = (normal * F(2.0**-75)).astype(F)
    alone = np.full(n, F(-0.0))
    rest = np.zeros(n, F)
    rest[:3] = [F(2.0**-80), F(2.0**-140), F(-(2.0**-80))]  # float64 loses the second
    with np.errstate(under="ignore"):
        return [
            ("random", normal, other),
            ("cancelling to zero", shuffled, one),
            ("outliers of 1e30", outlier, one),
            ("outliers with products", outlier, other),
            ("tie to even, down", tie, one),
            ("tie to even, up", even, one),
            ("just above a tie", beside, one),
            ("just below a tie", below, one),
            ("negative, just beside", -beside, one),
            ("wide", wide, other),
            ("tiny products", small, (other * F(2.0**-74)).astype(F)),
            ("-0", alone, one),
            ("rounds to zero, positive", rest, (rest * 0 + F(2.0**-100))),
            ("rounds to zero, negative", -rest, (rest * 0 + F(2.0**-100))),
            ("close to the largest", one * F(3e38) / max(n, 1), one),
            ("overflow", one * F(3e38), one),
            ("last bit of the head", np.ldexp(normal, 8 * (np.arange(n) % 9)).astype(F), cancel),
        ]


@pytest.mark.parametrize("rounded", [True, False])
def test_exact_sums_round_once(rounded):
    schedule = Exact(rounded_products=rounded)
    for n in (3, 4, 7, 33, 256, 960):
        for name, a, b in exact_rows(n):
            with np.errstate(all="ignore"):
                products = a * b
                got = schedule.replay(a[None], b[None])
                compiled = numba_sums(schedule, a[None], b[None])
            if rounded:
                if not np.isfinite(products).all():
                    continue
                terms = [Fraction(float(p)) for p in products]
            else:
                terms = [Fraction(float(p)) * Fraction(float(q)) for p, q in zip(a, b, strict=True)]
            want = np.array([exact_sum(terms)], F)
            assert_same(got, want, (n, name, "numpy"))
            assert_same(compiled, want, (n, name, "numba"))


def test_exact_sums_of_many_random_cancelling_rows():
    """Where the float64 sum decides nothing: the last bits of every head of the exact path."""
    rng = np.random.default_rng(9)
    a = rng.standard_normal((1500, 5)).astype(F)
    a = np.ldexp(a, rng.integers(-60, 60, (1500, 1))).astype(F)
    b = np.ones_like(a)
    a[:, 3] = -a[:, 0]  # the exact sum is of two numbers and a remainder far below
    a[:, 4] = np.ldexp(a[:, 1], -60)
    a[:, 2] = np.ldexp(np.spacing(a[:, 1]), -1) * rng.choice([1, -1, 3], 1500).astype(F)
    for schedule in (Exact(), Exact(rounded_products=False)):
        want = np.array([exact_sum([Fraction(float(v)) for v in row]) for row in a], F)
        assert_same(schedule.replay(a, b), want, "numpy")
        assert_same(numba_sums(schedule, a, b), want, "numba")


@pytest.mark.parametrize("rounded", [True, False])
def test_exact_sums_of_infinities_and_nan(rounded):
    inf, nan, big = np.inf, np.nan, 2.0**100
    a = np.array(
        [[inf, 1, 2], [-inf, 1, 2], [inf, -inf, 1], [nan, 1, 2], [big, big, -big], [big, 1, 1],
         [inf, big, big], [0, 0, 0], [-0.0, -0.0, -0.0]], F)  # fmt: skip
    b = np.array([[1, 1, 1]] * 4 + [[big] * 3, [big, 1, 1], [1, -big, 1]] + [[1, 1, 1]] * 2, F)
    schedule = Exact(rounded_products=rounded)
    with np.errstate(all="ignore"):
        got = schedule.replay(a, b)
        assert_same(numba_sums(schedule, a, b), got, "numba")
    # Exact products do not overflow on the way; rounded ones do: inf + inf - inf.
    middle = [nan, inf, nan] if rounded else [inf, inf, inf]
    want = np.array([inf, -inf, nan, nan, *middle, 0, 0], F)
    assert_same(got, want, "numpy")


def test_a_schedule_is_hashable_data():
    assert Lanes(lanes=8) == Lanes(lanes=8) != Lanes(lanes=16)
    assert sums.products(Lanes(lanes=8)) is sums.products(Lanes(lanes=8))
    calls: dict[Schedule, Callable[..., Any]] = {Sequential(): len}
    assert Sequential(fused=False) in calls
    with pytest.raises(TypeError, match="no compiled form of 3"):
        sums.products(3)  # type: ignore[arg-type]
