"""The arithmetic in which an op's reference is written.

A reference is a straight line of calls on one of these objects, so that the same line can be run
with exact bits (`Bits`, here) or with intervals.  Every call that rounds says so by being a call;
what is exact (widening, negation, reshaping, choosing) rounds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from refkern import casts
from refkern.elementary import EXP, Function, fma, fmax, fmin
from refkern.group_dots import GroupDots, exact_scaled_dots
from refkern.schedules import Schedule


@dataclass(frozen=True)
class Sigmoid:
    """1 / (1 + exp(-x)) in one of its forms.

    "plain": as written.  "stable": exp(x) / (1 + exp(x)) for x < 0, so that exp never overflows.
    "function": ``function`` is the whole sigmoid, not an exp.
    """

    form: Literal["plain", "stable", "function"] = "plain"
    function: Function = EXP


@dataclass(frozen=True)
class Silu:
    """x * sigmoid(x): "product" as written, or "quotient", x / (1 + exp(-x)) with the same exp."""

    form: Literal["quotient", "product"]
    sigmoid: Sigmoid = Sigmoid()


ONE = np.array(1, np.float32)


class Bits:
    """One float32 rounding a call; the bits that a recipe determines.

    given: stages of a candidate.  Where one is given, what follows is computed from it instead of
    from the stage's own value: a stage can then be judged without blaming those behind it.
    """

    def __init__(self, given: Mapping[str, np.ndarray] | None = None) -> None:
        self.stages: dict[str, np.ndarray] = {}
        self._given = given or {}
        #: the stage recorded last; "" before the first
        self.current = ""

    def stage(self, name: str, value: np.ndarray) -> np.ndarray:
        """Record a stage, every NaN as the canonical one, and go on with it."""
        self.stages[name] = casts.canonical(np.ascontiguousarray(value))
        self.current = name
        return self._given.get(name, self.stages[name])

    def unrounded(self, stage: np.ndarray, value: np.ndarray) -> np.ndarray:
        """What a recipe goes on with that does not round where a stage was just recorded.

        That is ``value``, which the stage shows rounded; a candidate's stage still comes first.
        """
        return stage if self.current in self._given else value

    def widen(self, x: np.ndarray) -> np.ndarray:
        """A narrow float as float32: exact."""
        return casts.widen(x)

    def constant(self, value: float) -> np.float32:
        return np.float32(value)

    def zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        """+0 everywhere."""
        return np.zeros(shape, np.float32)

    def concatenate(self, parts: Sequence[np.ndarray], axis: int) -> np.ndarray:
        """Arrays of one dtype side by side along one axis."""
        return np.concatenate(parts, axis)

    def cast(
        self,
        x: np.ndarray,
        dtype: np.dtype,
        *,
        saturate: bool = False,
        rounding: str = "nearest-even",
    ) -> np.ndarray:
        """One rounding to ``dtype``, as `refkern.cast`; none where it is float32 already."""
        return casts.cast(x, dtype, saturate=saturate, rounding=rounding)

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _float32(a) + _float32(b)

    def sub(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _float32(a) - _float32(b)

    def mul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _float32(a) * _float32(b)

    def div(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _float32(a) / _float32(b)

    def fma(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        return fma(_float32(a), _float32(b), _float32(c))

    def negative(self, x: np.ndarray) -> np.ndarray:
        """Exact: the sign changed, of zeros and NaN too."""
        return -_float32(x)

    def exp(self, x: np.ndarray, function: Function) -> np.ndarray:
        return function(_float32(x))

    def rsqrt(self, x: np.ndarray, function: Function) -> np.ndarray:
        return function(_float32(x))

    def sigmoid(self, x: np.ndarray, sigmoid: Sigmoid) -> np.ndarray:
        if sigmoid.form == "function":
            return sigmoid.function(_float32(x))
        e = self.exp(-x, sigmoid.function)
        plain = self.div(ONE, self.add(ONE, e))
        if sigmoid.form == "plain":
            return plain
        e = self.exp(x, sigmoid.function)
        return np.where(x >= 0, plain, self.div(e, self.add(ONE, e)))

    def silu(self, x: np.ndarray, silu: Silu) -> np.ndarray:
        if silu.form == "quotient":
            return self.div(x, self.add(ONE, self.exp(-x, silu.sigmoid.function)))
        return self.mul(x, self.sigmoid(x, silu.sigmoid))

    def minimum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Exact; a NaN operand gives NaN (torch.clamp), and -0 is below +0.

        np.minimum itself leaves open which of two zeros it returns.
        """
        return np.where(np.isnan(a) | np.isnan(b), np.minimum(_float32(a), _float32(b)), fmin(a, b))

    def maximum(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(a) | np.isnan(b), np.maximum(_float32(a), _float32(b)), fmax(a, b))

    def fmin(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Exact; a NaN operand gives the other one, and -0 is below +0 (fminf, FMNMX)."""
        return fmin(_float32(a), _float32(b))

    def fmax(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return fmax(_float32(a), _float32(b))

    def largest_magnitude(
        self, x: np.ndarray, nan: Literal["ignored", "kept"] = "ignored"
    ) -> np.ndarray:
        """The amax along the last axis: exact, +0 where there is nothing.

        A NaN is ignored (fmaxf, FMNMX) or makes the result NaN (torch.amax).
        """
        larger = np.fmax if nan == "ignored" else np.maximum
        return larger.reduce(np.abs(_float32(x)), axis=-1, initial=np.float32(0))

    def groups(self, x: np.ndarray, size: int) -> np.ndarray:
        """[.., n] -> [.., ceil(n / size), size]: exact; +0 fills the last group up."""
        *lead, n = x.shape
        count = -(-n // size)
        filled = np.zeros((*lead, count * size), x.dtype)
        filled[..., :n] = x
        return filled.reshape(*lead, count, size)

    def ungroup(self, x: np.ndarray, n: int) -> np.ndarray:
        """[.., groups, size] -> [.., n]: without what filled the last group up."""
        *lead, count, size = x.shape
        return x.reshape(*lead, count * size)[..., :n]

    def apply(self, function: Function, *x: np.ndarray) -> np.ndarray:
        """A named function of float32, element by element, as its own definition has it."""
        return function(*map(_float32, x))

    def group_dots(self, x: np.ndarray, w: np.ndarray, dots: GroupDots) -> np.ndarray:
        """[tokens, K] and [rows, K] fp8 codes -> float32 [tokens, rows, groups]: the dot products
        of each group of K, summed and rounded as ``dots`` says."""
        return dots(x, w)

    def scaled_dots(
        self, x: np.ndarray, x_scale: np.ndarray, w: np.ndarray, w_scale: np.ndarray
    ) -> np.ndarray:
        """The sum over groups of x_scale * w_scale * dot without any rounding: [tokens, rows].

        x: [tokens, K], w: [rows, K] e4m3 codes; x_scale: [tokens, groups], w_scale: [rows, groups]
        float32.  Comes as float64 rounded to odd: one more rounding of it, to float32 or a
        narrower type, is one rounding of the exact sum.
        """
        return exact_scaled_dots(x, _float32(x_scale), w, _float32(w_scale))

    def sum(self, terms: np.ndarray, schedule: Schedule) -> np.ndarray:
        """The sum along the last axis, in the schedule's order."""
        return schedule.replay(_float32(terms))

    def dot(self, a: np.ndarray, b: np.ndarray, schedule: Schedule) -> np.ndarray:
        """The sum of products along the last axis, in the schedule's order."""
        return schedule.replay(_float32(a), _float32(b))


def _float32(x: np.ndarray) -> np.ndarray:
    """Refuse what numpy would silently promote: a float64 operand makes two roundings of one."""
    if x.dtype != np.float32:
        raise TypeError(f"a reference computes in float32, not in {x.dtype}")
    return x
