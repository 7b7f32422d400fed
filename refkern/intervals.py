"""The arithmetic of references, with intervals: what every implementation within a policy can give.

An interval's bounds are float32 values.  IEEE operations are monotone, rounding included, so the
rounded operation on the bounds bounds the rounded operation on everything between them: nothing is
guessed, and where both bounds round to the same value the bits are forced.  A function with an ULP
budget is evaluated in float64 at the bounds and widened by the budget.

Three states of an element: a range lo <= hi (infinities included); NaN for certain (both bounds
NaN); free, where the policy leaves it open, as where one order of operations gives NaN and another
does not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from refkern import casts
from refkern.arithmetic import Sigmoid, Silu
from refkern.elementary import (
    EXP,
    RSQRT,
    RSQRT_TWO_ROUNDINGS,
    Function,
    exp_correctly_rounded,
    exp_float64,
    fma,
    rsqrt_correctly_rounded,
)
from refkern.formats import FLOAT32, codes, format_of
from refkern.group_dots import EXACT, GROUP, GroupDots
from refkern.policy import Policy
from refkern.schedules import Schedule, Sequential
from refkern.ulp import is_nan

INF = np.float32(np.inf)
NAN = np.float32(np.nan)
ONE = np.float32(1)
SMALLEST_NORMAL = np.float32(2.0**-126)
MAX = np.finfo(np.float32).max
#: more than the relative error of exp_float64 and of a few float64 operations behind it
FLOAT64_MARGIN = 2.0**-49


@dataclass(frozen=True, eq=False)
class Interval:
    """Bounds of float32 values, or of values of a narrower dtype held in float32."""

    lo: np.ndarray
    hi: np.ndarray
    #: bool, where anything is possible; the bounds there are -inf and inf
    free: np.ndarray
    #: the dtype whose values these are
    dtype: np.dtype = FLOAT32.dtype
    #: the narrower dtype that float32 values were widened from: a matrix unit may take those
    source: np.dtype = FLOAT32.dtype
    #: bounds of the product before its rounding, which a fused addition takes instead
    product: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.lo.shape

    def reshape(self, *shape: Any) -> Interval:
        return self._each(lambda a: a.reshape(*shape))

    def __getitem__(self, index: Any) -> Interval:
        return self._each(lambda a: a[index])

    def __neg__(self) -> Interval:
        return replace(self, lo=-self.hi, hi=-self.lo, product=None)

    def _each(self, change: Any) -> Interval:
        lo = change(self.lo)
        hi = lo if self.hi is self.lo else change(self.hi)
        return replace(self, lo=lo, hi=hi, free=change(self.free), product=None)

    @property
    def is_nan(self) -> np.ndarray:
        """NaN for certain."""
        return np.isnan(self.lo) & ~self.free

    @property
    def is_point(self) -> np.ndarray:
        return (self.lo == self.hi) & ~self.free

    @property
    def has_zero(self) -> np.ndarray:
        return (self.lo <= 0) & (self.hi >= 0)

    @property
    def has_infinity(self) -> np.ndarray:
        return np.isinf(self.lo) | np.isinf(self.hi)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """lo and hi in the interval's own dtype, where every bound is a value.

        What is free is bounded by the infinities, or by the largest values of a format without.
        """
        clip = format_of(self.dtype).infinity is None
        lo, hi = (casts.cast(bound, self.dtype, saturate=clip) for bound in (self.lo, self.hi))
        return lo, hi

    def accepts(self, values: np.ndarray) -> bool:
        """Whether an array of the right dtype and shape lies inside, every element."""
        same_kind = values.dtype == self.dtype and values.shape == self.shape
        return same_kind and bool(self.holds(values).all())

    def holds(self, values: np.ndarray) -> np.ndarray:
        """Which of ``values`` (of the interval's dtype) are accepted."""
        wide = casts.widen(values)
        within = (wide >= self.lo) & (wide <= self.hi)
        return self.free | within | (self.is_nan & np.isnan(wide))


def point(values: np.ndarray, dtype: np.dtype | None = None) -> Interval:
    """Exact float32 values."""
    free = np.zeros(values.shape, bool)
    return Interval(values, values, free, FLOAT32.dtype if dtype is None else dtype)


def between(lo: np.ndarray, hi: np.ndarray) -> Interval:
    """Everything between two arrays of float32."""
    return Interval(lo, hi, np.zeros(lo.shape, bool))


def once(method: Any) -> Any:
    """A costly operation, whose result is shared between runs (`Intervals.shared`)."""

    @functools.wraps(method)
    def shared(self: Intervals, *arguments: Any) -> Interval:
        self._step += 1
        if self._follows and self._step in self._shared:
            return self._shared[self._step]
        follows = self._follows
        step = self._step
        result = method(self, *arguments)
        if follows:
            self._shared[step] = result
        return result

    return shared


class Intervals:
    """The operations of `refkern.arithmetic.Bits`, on intervals, under one policy.

    given: stages of a candidate, taken as exact for what follows (the stage-conditional check).
    shared: costly results of earlier runs on the same call, good as long as the candidate's stages
        have the bits of ``right``: many candidates differ in their last stages only.
    """

    def __init__(
        self,
        policy: Policy,
        given: Mapping[str, np.ndarray] | None = None,
        shared: tuple[dict[int, Interval], Mapping[str, np.ndarray]] | None = None,
    ) -> None:
        self.policy = policy
        self.stages: dict[str, Interval] = {}
        self._given = given or {}
        self.current = ""
        self._shared, self._right = ({}, {}) if shared is None else shared
        self._follows = shared is not None
        self._step = 0

    def stage(self, name: str, value: Interval) -> Interval:
        self.stages[name] = value
        self.current = name
        if name in self._given:
            own = self._given[name]
            self._follows = self._follows and _same_codes(own, self._right.get(name))
            return point(casts.widen(own), own.dtype)
        self._follows = False
        return replace(value, product=None)

    def unrounded(self, stage: Interval, value: Interval) -> Interval:
        return stage if self.current in self._given else value

    # What rounds nothing.

    def widen(self, x: np.ndarray | Interval) -> Interval:
        if isinstance(x, Interval):
            source = x.source if x.dtype == FLOAT32.dtype else x.dtype
            return replace(x, dtype=FLOAT32.dtype, source=source)
        return self._flush(replace(point(casts.widen(x)), source=x.dtype))

    def constant(self, value: float) -> Interval:
        return point(np.asarray(np.float32(value)))

    def zeros(self, shape: tuple[int, ...]) -> Interval:
        return point(np.zeros(shape, np.float32))

    def concatenate(self, parts: Sequence[Interval], axis: int) -> Interval:
        lo, hi, free = (
            np.concatenate([getattr(p, bound) for p in parts], axis)
            for bound in ("lo", "hi", "free")
        )
        return replace(parts[0], lo=lo, hi=hi, free=free, product=None)

    def negative(self, x: Interval) -> Interval:
        return -x

    def ungroup(self, x: Interval, n: int) -> Interval:
        *lead, count, size = x.shape
        return x.reshape(*lead, count * size)[..., :n]

    def groups(self, x: Interval, size: int) -> Interval:
        *lead, n = x.shape
        count = -(-n // size)
        lo, hi, free = (_padded(bound, count * size) for bound in (x.lo, x.hi, x.free))
        filled = replace(x, lo=lo, hi=hi, free=free, product=None)
        return filled.reshape(*lead, count, size)

    def apply(self, function: Function, *x: Interval) -> Interval:
        """A function that is what it is, on every machine: by its ends, if it is monotone."""
        lowest = function(*(a.lo for a in x))
        if all(a.lo is a.hi for a in x):
            return self._result(lowest, lowest, x)
        corners = [function(*ends) for ends in itertools.product(*((a.lo, a.hi) for a in x))]
        known = np.ones(lowest.shape, bool)
        for a in x:
            known = known & (a.is_point | a.is_nan)
        open_ = np.zeros_like(known) if function.monotone else ~known
        return self._result(np.fmin.reduce(corners), np.fmax.reduce(corners), x, open_=open_)

    # What rounds once.

    def add(self, a: Interval, b: Interval) -> Interval:
        a, b = self._operand(a), self._operand(b)
        clash = (_has(a.lo, a.hi, INF) & _has(b.lo, b.hi, -INF)) | (
            _has(a.lo, a.hi, -INF) & _has(b.lo, b.hi, INF)
        )
        lo, hi = a.lo + b.lo, a.hi + b.hi
        lo, hi = self._directed(lo, hi, _sum_error(a.lo, b.lo, lo), _sum_error(a.hi, b.hi, hi))
        if self.policy.fuse:
            for x, y in ((a, b), (b, a)):
                if x.product is not None:
                    # One float64 step outward covers the rounding of this float64 sum.
                    below = np.nextafter(x.product[0] + y.lo.astype(np.float64), -np.inf)
                    above = np.nextafter(x.product[1] + y.hi.astype(np.float64), np.inf)
                    lo, hi = np.fmin(lo, _down32(below)), np.fmax(hi, _up32(above))
        return self._result(lo, hi, (a, b), maybe_nan=clash)

    def sub(self, a: Interval, b: Interval) -> Interval:
        negative = -b
        if b.product is not None:
            negative = replace(negative, product=(-b.product[1], -b.product[0]))
        return self.add(a, negative)

    def mul(self, a: Interval, b: Interval) -> Interval:
        a, b = self._operand(a), self._operand(b)
        clash = (a.has_zero & b.has_infinity) | (a.has_infinity & b.has_zero)
        exact = _corners(_exact_product, a, b)
        lo, hi = exact[0].astype(np.float32), exact[1].astype(np.float32)
        lo, hi = self._directed(lo, hi, exact[0] - lo, exact[1] - hi)
        result = self._result(lo, hi, (a, b), maybe_nan=clash)
        return replace(result, product=exact)

    def div(self, a: Interval, b: Interval) -> Interval:
        """The budget of the reciprocal where the dividend is the number 1."""
        a, b = self._operand(a), self._operand(b)
        reciprocal = a.lo.size == 1 and bool((a.lo == 1).all() and (a.hi == 1).all())
        budget = self.policy.rcp if reciprocal else self.policy.div
        clash = (a.has_zero & b.has_zero) | (a.has_infinity & b.has_infinity)
        lo, hi = _corners(np.divide, a, b)
        if budget:
            exact = _corners(lambda x, y: x.astype(np.float64) / y.astype(np.float64), a, b)
            lo, hi = self._widened(*exact, budget)
        else:
            lo, hi = self._directed(lo, hi, *self._quotient_errors(a, b, lo, hi))
        crosses = b.has_zero & ~b.is_point
        beyond = np.zeros_like(crosses)
        if self.policy.div_range:
            size = np.maximum(np.abs(b.lo), np.abs(b.hi))
            least = np.where(b.has_zero, np.float32(0), np.minimum(np.abs(b.lo), np.abs(b.hi)))
            limit = np.float32(2.0**self.policy.div_range)
            beyond = (size > limit) | (least < 1 / limit)
        elif budget:
            # The fast division flushes the reciprocal of a huge divisor.
            huge = np.maximum(np.abs(b.lo), np.abs(b.hi)) > np.float32(2.0**126)
            lo, hi = np.where(huge, np.minimum(lo, 0), lo), np.where(huge, np.maximum(hi, 0), hi)
        return self._result(lo, hi, (a, b), maybe_nan=clash, open_=crosses | beyond)

    def _quotient_errors(
        self, a: Interval, b: Interval, lo: np.ndarray, hi: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Whether the exact quotient lies beyond the rounded bounds: signs are what counts."""
        if self.policy.rounding == "nearest":
            return np.zeros_like(lo), np.zeros_like(hi)
        exact = _corners(lambda x, y: x.astype(np.float64) / y.astype(np.float64), a, b)
        return exact[0] - lo, exact[1] - hi

    def fma(self, a: Interval, b: Interval, c: Interval) -> Interval:
        """One rounding as the recipe has it, or two where the policy lets a compiler split it."""
        split = self.add(self.mul(a, b), c)
        a, b, c = self._operand(a), self._operand(b), self._operand(c)
        corners = [fma(x, y, c.lo) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        lo = np.fmin(split.lo, np.fmin.reduce(corners))
        corners = [fma(x, y, c.hi) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
        hi = np.fmax(split.hi, np.fmax.reduce(corners))
        return Interval(lo, hi, split.free)

    def cast(
        self,
        x: Interval,
        dtype: np.dtype,
        *,
        saturate: bool = False,
        rounding: str = "nearest-even",
    ) -> Interval:
        """Monotone, so the bounds are cast."""
        target = format_of(dtype)
        if target is FLOAT32:
            return x
        lo, hi = (
            casts.widen(casts.cast(bound, target, saturate=saturate, rounding=rounding))
            for bound in (x.lo, x.hi)
        )
        if self.policy.rounding != "nearest" and not target.scale_only:
            lo, hi = self._directed_cast(x, target, lo, hi, saturate)
        if self.policy.flush and not target.scale_only:
            smallest = np.float32(2.0**target.min_exponent)
            lo, hi = _flushed(lo, hi, smallest)
        # A format without infinity overflows to NaN: certain only where both bounds do, on the
        # same side of zero.
        possible = np.isnan(lo) | np.isnan(hi)
        certain = np.isnan(lo) & np.isnan(hi) & (np.isnan(x.lo) | (x.lo > 0) | (x.hi < 0))
        free = x.free | (possible & ~certain)
        return Interval(np.where(free, -INF, lo), np.where(free, INF, hi), free, target.dtype)

    def _directed_cast(
        self, x: Interval, target: Any, lo: np.ndarray, hi: np.ndarray, saturate: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """A cast may go to either neighbour, or toward zero, whatever is allowed."""
        below = _step(casts.cast(x.lo, target, saturate=saturate), -1)
        above = _step(casts.cast(x.hi, target, saturate=saturate), +1)
        toward_zero = self.policy.rounding == "nearest-or-zero"
        down = (lo > x.lo) & ~(toward_zero & (x.lo < 0))
        up = (hi < x.hi) & ~(toward_zero & (x.hi > 0))
        if saturate:  # nothing lies beyond the largest value
            down, up = down & ~np.isnan(casts.widen(below)), up & ~np.isnan(casts.widen(above))
        return np.where(down, below, lo), np.where(up, above, hi)

    # Functions with a budget.  A recipe's own flavour of one is allowed beside it.

    def exp(self, x: Interval, function: Function) -> Interval:
        x = self._operand(x)
        a, b = self.policy.exp
        if a == b == 0:
            lo, hi = exp_correctly_rounded(x.lo), exp_correctly_rounded(x.hi)
        else:
            # Beyond 128 the result is 0 or infinite, whatever the budget.
            lo, _ = self._widened(*_twice(exp_float64(x.lo)), a + b * np.fmin(np.abs(x.lo), 128))
            _, hi = self._widened(*_twice(exp_float64(x.hi)), a + b * np.fmin(np.abs(x.hi), 128))
            # A function value stays a function value: exp is never negative.
            lo = np.where(np.isnan(x.lo), NAN, np.maximum(lo, 0))
        if function != EXP:
            lo, hi = np.fmin(lo, function(x.lo)), np.fmax(hi, function(x.hi))
        return self._result(lo, hi, (x,))

    def rsqrt(self, x: Interval, function: Function) -> Interval:
        """Of a mean of squares: a negative argument is NaN."""
        x = self._operand(x)
        open_ = (x.lo < 0) & (x.hi >= 0)
        if self.policy.rsqrt == 0:
            lo, hi = rsqrt_correctly_rounded(x.hi), rsqrt_correctly_rounded(x.lo)
        else:
            lo, _ = self._widened(*_twice(1 / np.sqrt(x.hi.astype(np.float64))), self.policy.rsqrt)
            _, hi = self._widened(*_twice(1 / np.sqrt(x.lo.astype(np.float64))), self.policy.rsqrt)
            lo = np.where(np.isnan(lo), NAN, np.maximum(lo, 0))
        if function not in (RSQRT, RSQRT_TWO_ROUNDINGS):
            lo, hi = np.fmin(lo, function(x.hi)), np.fmax(hi, function(x.lo))
        result = self._result(lo, hi, (x,), open_=open_)
        if function != RSQRT_TWO_ROUNDINGS:
            return result
        # The recipe takes a root and then a reciprocal; where the policy has a budget for rsqrt,
        # that function is allowed too.
        split = self.div(self.constant(1), self.sqrt(x))
        return split if self.policy.rsqrt == 0 else _hull(split, result)

    def sqrt(self, x: Interval) -> Interval:
        x = self._operand(x)
        open_ = (x.lo < 0) & (x.hi >= 0)
        if self.policy.sqrt == 0:
            lo, hi = np.sqrt(x.lo), np.sqrt(x.hi)
        else:
            lo, _ = self._widened(*_twice(np.sqrt(x.lo.astype(np.float64))), self.policy.sqrt)
            _, hi = self._widened(*_twice(np.sqrt(x.hi.astype(np.float64))), self.policy.sqrt)
            lo = np.where(np.isnan(lo), NAN, np.maximum(lo, 0))
        return self._result(lo, hi, (x,), open_=open_)

    def sigmoid(self, x: Interval, sigmoid: Sigmoid) -> Interval:
        """1 / (1 + exp(-x)); for negative x also exp(x) / (1 + exp(x)) where the recipe does so.

        A recipe's own sigmoid is allowed beside those.
        """
        one = self.constant(1)
        exp = EXP if sigmoid.form == "function" else sigmoid.function
        plain = self.div(one, self.add(one, self.exp(-x, exp)))
        if sigmoid.form == "function":
            own = between(sigmoid.function(x.lo), sigmoid.function(x.hi))
            return _hull(plain, own)
        if sigmoid.form != "stable":
            return plain
        e = self.exp(x, sigmoid.function)
        stable = self.div(e, self.add(one, e))
        return _where(x.lo >= 0, plain, _where(x.hi < 0, stable, _hull(plain, stable)))

    @once
    def silu(self, x: Interval, silu: Silu) -> Interval:
        """Every algebraic form: x / (1 + e), x * (1 / (1 + e)), x * sigmoid(x)."""
        product = self.mul(x, self.sigmoid(x, silu.sigmoid))
        exp = EXP if silu.sigmoid.form == "function" else silu.sigmoid.function
        denominator = self.add(self.constant(1), self.exp(-x, exp))
        return _hull(product, self.div(x, denominator))

    # What chooses.

    def minimum(self, a: Interval, b: Interval) -> Interval:
        nan = a.is_nan | b.is_nan
        lo, hi = np.minimum(a.lo, b.lo), np.minimum(a.hi, b.hi)
        return self._result(np.where(nan, NAN, lo), np.where(nan, NAN, hi), (a, b))

    def maximum(self, a: Interval, b: Interval) -> Interval:
        return -self.minimum(-a, -b)

    def fmin(self, a: Interval, b: Interval) -> Interval:
        """A NaN operand gives the other one; a free one may give anything up to the other."""
        lo, hi = np.fmin(a.lo, b.lo), np.fmin(a.hi, b.hi)
        free = a.free | b.free
        if self.policy.finite:
            free = free | a.is_nan | b.is_nan
        return Interval(np.where(free, -INF, lo), np.where(free, INF, hi), free)

    def fmax(self, a: Interval, b: Interval) -> Interval:
        return -self.fmin(-a, -b)

    def largest_magnitude(self, x: Interval, nan: str = "ignored") -> Interval:
        """The amax along the last axis; a NaN is ignored, or kept."""
        lo = np.where(x.has_zero, np.float32(0), np.fmin(np.abs(x.lo), np.abs(x.hi)))
        hi = np.fmax(np.abs(x.lo), np.abs(x.hi))
        zero = np.float32(0)
        free = np.any(x.free, axis=-1)
        if self.policy.finite:
            free = free | np.any(x.is_nan | x.has_infinity, axis=-1)
        lo = np.fmax.reduce(lo, axis=-1, initial=zero)
        hi = np.fmax.reduce(hi, axis=-1, initial=zero)
        if nan == "kept":
            certain = x.is_nan.any(axis=-1) & ~free
            lo, hi = np.where(certain, NAN, lo), np.where(certain, NAN, hi)
        return Interval(np.where(free, -INF, lo), np.where(free, INF, hi), free)

    # Sums.

    @once
    def sum(self, terms: Interval, schedule: Schedule) -> Interval:
        terms = self._operand(terms)
        exact = (terms.lo.astype(np.float64), terms.hi.astype(np.float64))
        return self._sum(exact, terms.free, rounded=False)

    @once
    def dot(self, a: Interval, b: Interval, schedule: Schedule) -> Interval:
        """The sum of products along the last axis, in any order that the policy allows.

        Products of two narrow floats may run through a matrix unit.
        """
        square = a is b
        narrow = not square and FLOAT32.dtype not in (a.source, b.source)
        unit = _alignment(a, b) if narrow and self.policy.accumulator_bits else None
        a = self._operand(a)
        b = a if square else self._operand(b)
        lo, hi = _corners(_exact_product, a, b)
        if square:
            lo = np.where(a.has_zero, 0.0, lo)
            lo = np.maximum(lo, 0.0)
            lo = np.where(np.isnan(hi), np.nan, lo)
            clash = np.zeros(lo.shape, bool)
        else:
            clash = (a.has_zero & b.has_infinity) | (a.has_infinity & b.has_zero)
            clash = clash & ~(a.is_point & b.is_point)
        free = a.free | b.free | clash
        return self._sum((lo, hi), free, rounded=True, unit=unit)

    def _sum(
        self,
        terms: tuple[np.ndarray, np.ndarray],
        free: np.ndarray,
        *,
        rounded: bool,
        unit: np.ndarray | None = None,
    ) -> Interval:
        """terms: float64 bounds of the exact terms [.., n]; rounded: each may be rounded first.

        A term goes through at most `chain` rounded additions, so the computed sum is the sum of
        terms that each carry that many factors 1 + d, |d| <= u; it grows with every term, so each
        bound comes from the terms' bounds.

        unit: magnitudes by which a matrix unit may align the terms; None: no matrix unit.
        """
        lo, hi = terms
        n = lo.shape[-1]
        open_ = free.any(axis=-1)
        nan = (np.isnan(lo) & ~free).any(axis=-1)
        plus = np.isposinf(hi).any(axis=-1)
        minus = np.isneginf(lo).any(axis=-1)
        surely_plus = np.isposinf(lo).any(axis=-1)
        surely_minus = np.isneginf(hi).any(axis=-1)
        lo = np.where(np.isfinite(lo), lo, 0.0)
        hi = np.where(np.isfinite(hi), hi, 0.0)

        factor = self._sum_error(n, rounded=rounded)
        absolute = n * 2.0**-150 if rounded else 0.0  # products that underflow
        if self.policy.flush:
            absolute += 2 * n * 2.0**-126
        sum_lo, size_lo = _tree(lo), _tree(np.abs(lo))
        sum_hi, size_hi = (sum_lo, size_lo) if hi is lo else (_tree(hi), _tree(np.abs(hi)))
        lowest = _lowest_bits(lo)
        exact = _sums_are_exact(lowest, size_lo, 24) & (lo == hi).all(axis=-1)
        margin_lo = size_lo * factor + absolute
        margin_hi = size_hi * factor + absolute
        if unit is not None:
            cut = self._unit_error(lowest, (lo == hi), unit)
            margin_lo, margin_hi = np.maximum(margin_lo, cut), np.maximum(margin_hi, cut)
            bits = min(24, self.policy.accumulator_bits)
            exact = exact & _sums_are_exact(lowest, _tree(unit), bits)
        margin_lo, margin_hi = np.where(exact, 0.0, margin_lo), np.where(exact, 0.0, margin_hi)
        low, high = _least(sum_lo - margin_lo), _most(sum_hi + margin_hi)

        # Partial sums stay below the sum of magnitudes: beyond the range, infinity is possible.
        size = np.maximum(size_lo + margin_lo, size_hi + margin_hi)
        overflow = size > float(MAX)
        one_sign_up = (lo >= 0).all(axis=-1)
        one_sign_down = (hi <= 0).all(axis=-1)
        high = np.where(overflow & ~one_sign_down, INF, high)
        low = np.where(overflow & ~one_sign_up, -INF, low)
        both_ways = overflow & ~one_sign_up & ~one_sign_down
        low, high = np.where(minus, -INF, low), np.where(plus, INF, high)
        low, high = np.where(surely_plus, INF, low), np.where(surely_minus, -INF, high)
        surely_nan = nan | (surely_plus & surely_minus)
        open_ = (open_ | both_ways | (plus & minus)) & ~surely_nan
        low, high = np.where(surely_nan, NAN, low), np.where(surely_nan, NAN, high)
        return self._result(low, high, (), open_=open_)

    def _sum_error(self, n: int, *, rounded: bool) -> float:
        """The relative error of a sum, against the sum of magnitudes."""
        roundings = self.policy.chain_length(n) + (1 if rounded and n else 0)
        factor = (1 + self.policy.unit_roundoff) ** roundings - 1
        # The float64 sums of terms and magnitudes here have errors of their own.
        return factor * (1 + 2.0**-20) + 2.0**-45

    def _unit_error(self, lowest: np.ndarray, known: np.ndarray, unit: np.ndarray) -> np.ndarray:
        """The error of a matrix unit's sum.

        A step aligns its products and the partial sum to the largest of them and cuts each to so
        many bits below it, then cuts the result.  None exceeds the sum of the aligned magnitudes.
        A product whose lowest bit lies above the cut loses nothing.
        """
        size = _tree(unit)
        grid = size * 2.0**-self.policy.accumulator_bits
        _, exponent = np.frexp(grid)
        losing = (~known | (lowest < exponent[..., None])) & (unit != 0)
        steps = -(-unit.shape[-1] // self.policy.products)
        return grid * (losing.sum(axis=-1) + 2 * steps) * (1 + 2.0**-20)

    @once
    def group_dots(self, x: Interval, w: np.ndarray, dots: GroupDots) -> Interval:
        """[tokens, K] codes as an interval and [rows, K] e4m3 codes -> [tokens, rows, groups].

        Codes are integers times 2^-9 below 2^18, so products of matrices of them are exact in
        int64.  A tensor core, or float32 in any order, makes of a group what `_sum_error` and
        `_unit_error` say.
        """
        tokens, rows = x.shape[0], w.shape[0]
        lo, hi = (_code_units(bound) for bound in (x.lo, x.hi))
        unknown = x.free | x.is_nan
        lo, hi = np.where(unknown, 0, lo), np.where(unknown, 0, hi)
        w_nan = is_nan(w)
        weights = np.where(w_nan, 0, _code_units(casts.widen(w)))
        largest = np.maximum(np.abs(lo), np.abs(hi))
        groups = -(-x.shape[1] // GROUP)
        shape = (tokens, rows, groups)
        low, high, size = (np.empty(shape) for _ in range(3))
        nan, open_ = np.empty(shape, bool), np.empty(shape, bool)
        for g in range(groups):
            at = slice(g * GROUP, (g + 1) * GROUP)
            up, down = np.maximum(weights[:, at], 0).T, np.minimum(weights[:, at], 0).T
            low[..., g] = np.matmul(lo[:, at], up) + np.matmul(hi[:, at], down)
            high[..., g] = np.matmul(hi[:, at], up) + np.matmul(lo[:, at], down)
            size[..., g] = np.matmul(largest[:, at], up - down)
            nan[..., g] = (
                np.any(x.is_nan[:, at], axis=1)[:, None] | np.any(w_nan[:, at], axis=1)[None]
            )
            open_[..., g] = np.any(x.free[:, at], axis=1)[:, None]
        unit = 2.0**-18
        low, high, size = low * unit, high * unit, size * unit
        margin = size * self._sum_error(GROUP, rounded=False)
        if self.policy.accumulator_bits:
            grid = size * 2.0**-self.policy.accumulator_bits
            steps = -(-GROUP // self.policy.products)
            cut = grid * (GROUP + 2 * steps) * (1 + 2.0**-20)
            margin = np.maximum(margin, np.where(grid <= unit, 0.0, cut))
        # Multiples of 2^-18 whose magnitudes add up to so little: exact in any order.
        bits = min(24, self.policy.accumulator_bits or 24)
        margin = np.where(size <= unit * 2.0**bits, 0.0, margin)
        low, high = _least(low - margin), _most(high + margin)
        low, high = np.where(nan, NAN, low), np.where(nan, NAN, high)
        return self._result(low, high, (), open_=open_ & ~nan)

    def scaled_dots(
        self, x: Interval, x_scale: Interval, w: np.ndarray, w_scale: Interval
    ) -> Interval:
        """What a recipe leaves unrounded, as kernels compute it: dots, scales, and their sum."""
        dots = self.group_dots(x, w, EXACT)
        scales = self.mul(w_scale[None], x_scale[:, None])
        return self.dot(dots, scales, Sequential())

    # Inside.

    def _operand(self, x: Interval) -> Interval:
        return self._flush(x) if self.policy.flush else x

    def _flush(self, x: Interval) -> Interval:
        if not self.policy.flush:
            return x
        lo, hi = _flushed(x.lo, x.hi, SMALLEST_NORMAL)
        return replace(x, lo=lo, hi=hi)

    def _directed(
        self, lo: np.ndarray, hi: np.ndarray, error_lo: np.ndarray, error_hi: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bounds rounded to nearest -> as the policy may round; errors: exact minus rounded."""
        if self.policy.rounding == "nearest":
            return lo, hi
        down, up = error_lo < 0, error_hi > 0
        if self.policy.rounding == "nearest-or-zero":
            down, up = down & (lo > 0), up & (hi < 0)
        lo = np.where(down, np.nextafter(lo, -INF), lo)
        hi = np.where(up, np.nextafter(hi, INF), hi)
        # An overflow that was rounded away may also stay the largest finite value.
        return np.where(np.isposinf(lo), MAX, lo), hi

    def _widened(
        self, lo: np.ndarray, hi: np.ndarray, ulps: np.ndarray | float
    ) -> tuple[np.ndarray, np.ndarray]:
        """float64 values of a function -> the float32 within ``ulps`` of them."""
        # Within an ULP budget, but for a value that is exact in every implementation: 0 and inf.
        low = lo - (ulps * _ulp(lo) + np.abs(lo) * FLOAT64_MARGIN)
        high = hi + (ulps * _ulp(hi) + np.abs(hi) * FLOAT64_MARGIN)
        low = np.where(np.isinf(lo) | (lo == 0), lo, low)
        high = np.where(np.isinf(hi) | (hi == 0), hi, high)
        return _least(low), _most(high)

    def _result(
        self,
        lo: np.ndarray,
        hi: np.ndarray,
        operands: tuple[Interval, ...],
        *,
        maybe_nan: np.ndarray | bool = False,
        open_: np.ndarray | bool = False,
    ) -> Interval:
        """Assemble a result: who is free, who is NaN, who may be flushed."""
        certain = np.isnan(lo) & np.isnan(hi)
        of_nan = np.zeros(lo.shape, bool)
        free = np.asarray(open_) | np.asarray(maybe_nan) | np.isnan(lo) | np.isnan(hi)
        for x in operands:
            # Both ends may give NaN where what lies between them does not.
            certain = certain & (x.is_point | x.is_nan)
            of_nan = of_nan | x.is_nan
            free = free | x.free
        # NaN with anything is NaN, whatever the other operand is.
        certain = certain | of_nan
        free = free & ~certain
        if self.policy.finite:
            free = free | certain | np.isinf(lo) | np.isinf(hi)
            certain = np.zeros_like(certain)
        if self.policy.flush:
            lo, hi = _flushed(lo, hi, SMALLEST_NORMAL)
        lo = np.where(free, -INF, np.where(certain, NAN, lo))
        hi = np.where(free, INF, np.where(certain, NAN, hi))
        return Interval(lo, hi, np.asarray(free))


#: the smallest float64 that rounds to an infinite float32
_OVERFLOW = float(MAX) + 2.0**103


def _same_codes(a: np.ndarray, b: np.ndarray | None) -> bool:
    if b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    return bool(np.array_equal(codes(a), codes(b)))


def _has(lo: np.ndarray, hi: np.ndarray, value: np.float32) -> np.ndarray:
    return (lo == value) | (hi == value)


def _twice(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return x, x


def _corners(operation: Any, a: Interval, b: Interval) -> tuple[np.ndarray, np.ndarray]:
    """The extremes of a monotone operation over both operands' bounds; NaN if all are NaN."""
    if a.lo is a.hi and b.lo is b.hi:
        return _twice(operation(a.lo, b.lo))
    corners = [operation(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    return np.fmin.reduce(corners), np.fmax.reduce(corners)


def _sum_error(a: np.ndarray, b: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The sign of a + b - rounded: TwoSum, exact in float32."""
    virtual = rounded - a
    return (a - (rounded - virtual)) + (b - virtual)


def _ulp(x: np.ndarray) -> np.ndarray:
    """The spacing of float32 at a float64 value: at a power of two, the larger one."""
    _, exponent = np.frexp(x)
    return np.ldexp(1.0, np.maximum(exponent - 24, -149))


def _down32(x: np.ndarray) -> np.ndarray:
    """The largest float32 <= x."""
    near = np.asarray(x).astype(np.float32)
    return np.where(near > x, np.nextafter(near, -INF), near)


def _up32(x: np.ndarray) -> np.ndarray:
    """The smallest float32 >= x."""
    near = np.asarray(x).astype(np.float32)
    return np.where(near < x, np.nextafter(near, INF), near)


def _least(x: np.ndarray) -> np.ndarray:
    """The smallest float32 that results of at least ``x`` can be: beyond the range, infinite."""
    return np.where(np.abs(x) > _OVERFLOW, x.astype(np.float32), np.clip(_up32(x), -MAX, MAX))


def _most(x: np.ndarray) -> np.ndarray:
    """The largest float32 that results of at most ``x`` can be."""
    return np.where(np.abs(x) > _OVERFLOW, x.astype(np.float32), np.clip(_down32(x), -MAX, MAX))


def _step(values: np.ndarray, direction: int) -> np.ndarray:
    """Each value's neighbour in its own format, as float32.

    Next to infinity is the largest finite value; beyond it is nothing, and NaN stays NaN.
    """
    fmt = format_of(values.dtype)
    wide = casts.widen(values)
    bits = values.view(fmt.code_dtype).astype(np.int64)
    negative = bits & fmt.sign != 0
    outward = (direction > 0) ^ negative
    zero = bits & fmt.magnitude == 0
    moved = np.where(zero, 1 | (fmt.sign if direction < 0 else 0), bits + np.where(outward, 1, -1))
    stepped = casts.widen(moved.astype(fmt.code_dtype).view(fmt.dtype))
    return np.where(np.isnan(wide) | (np.isinf(wide) & outward), wide, stepped)


def _flushed(lo: np.ndarray, hi: np.ndarray, smallest: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that also allow 0 for what is subnormal."""
    zero = np.float32(0)
    if not ((np.abs(lo) < smallest) & (lo != 0) | (np.abs(hi) < smallest) & (hi != 0)).any():
        return lo, hi
    return (
        np.where((lo > 0) & (lo < smallest), zero, lo),
        np.where((hi < 0) & (hi > -smallest), zero, hi),
    )


def _hull(a: Interval, b: Interval) -> Interval:
    """Whatever either allows.  NaN for certain in one only is free."""
    free = a.free | b.free | (a.is_nan ^ b.is_nan)
    lo, hi = np.fmin(a.lo, b.lo), np.fmax(a.hi, b.hi)
    return Interval(np.where(free, -INF, lo), np.where(free, INF, hi), free)


def _where(condition: np.ndarray, a: Interval, b: Interval) -> Interval:
    return Interval(
        np.where(condition, a.lo, b.lo),
        np.where(condition, a.hi, b.hi),
        np.where(condition, a.free, b.free),
    )


def _tree(terms: np.ndarray) -> np.ndarray:
    """A float64 sum along the last axis, in one order on every machine (np.sum has several)."""
    while terms.shape[-1] > 1:
        odd = terms[..., -1:] if terms.shape[-1] % 2 else terms[..., :0]
        even = terms.shape[-1] // 2 * 2
        terms = np.concatenate([terms[..., 0:even:2] + terms[..., 1:even:2], odd], axis=-1)
    return terms[..., 0] if terms.shape[-1] else np.zeros(terms.shape[:-1])


def _padded(bound: np.ndarray, n: int) -> np.ndarray:
    """Zeros (or False) up to n along the last axis."""
    filled = np.zeros((*bound.shape[:-1], n), bound.dtype)
    filled[..., : bound.shape[-1]] = bound
    return filled


def _code_units(values: np.ndarray) -> np.ndarray:
    """e4m3 values as int64 multiples of 2^-9; NaN and infinities as 0."""
    return np.ldexp(np.where(np.isfinite(values), values, 0.0), 9).astype(np.int64)


def _exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of two float32 is exact in float64."""
    return a.astype(np.float64) * b.astype(np.float64)


def _alignment(a: Interval, b: Interval) -> np.ndarray:
    """Magnitudes by which a matrix unit aligns products: a subnormal counts as the least normal."""
    sizes = []
    for x in (a, b):
        size = np.maximum(np.abs(x.lo), np.abs(x.hi)).astype(np.float64)
        least = 2.0 ** format_of(x.source).min_exponent
        sizes.append(np.where(size == 0, 0.0, np.maximum(size, least)))
    product = sizes[0] * sizes[1]
    return np.where(np.isfinite(product), product, 0.0)


#: the lowest bit of zero: above every other
NO_BIT = 1 << 20


def _lowest_bits(terms: np.ndarray) -> np.ndarray:
    """The exponent of each term's lowest set bit, read from the fields of its float64."""
    bits = np.ascontiguousarray(terms).view(np.int64)
    field = (bits >> 52) & 2047
    significand = (bits & ((1 << 52) - 1)) | ((field > 0).astype(np.int64) << 52)
    lowest = (significand & -significand).astype(np.float64)  # a power of two, or 0
    position = (lowest.view(np.int64) >> 52) - 1023
    return np.where(significand == 0, NO_BIT, np.maximum(field, 1) - 1075 + position)


def _sums_are_exact(lowest: np.ndarray, size: np.ndarray, bits: int) -> np.ndarray:
    """Rows whose terms are multiples of a q with a sum of magnitudes of at most 2^bits q.

    Every partial sum, in any order, is then such a multiple too: a float32, without rounding.
    """
    smallest = lowest.min(axis=-1, initial=NO_BIT)
    limit = np.ldexp(1.0, np.clip(smallest + bits, -1000, 1000))
    return (size == 0) | ((size <= limit) & (smallest >= -149))
