"""Summation orders as data, and their replay in numpy.

A schedule says in which order, and with which roundings, the products a[i] * b[i] of a row are
added.  ``replay(a, b)`` sums along the last axis, vectorised over all the others; ``replay(a)``
sums the terms themselves.  `refkern.compiled.sums` replays the same data as loops.

Every partial sum starts at +0, so a position without an element counts as +0 and changes nothing:
+0 added to a sum that began at +0 gives the same bits (such a sum is never -0).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from refkern.casts import cast
from refkern.elementary import fma


class Schedule(Protocol):
    """What every summation order offers."""

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        """[.., n] float32 (twice) -> [..] float32: the sum of a[i] * b[i], or of a[i].

        a and b broadcast in front of the last axis.
        """
        ...


@dataclass(frozen=True)
class Sequential:
    """One accumulator takes the terms in order; ``fused``: by fma, one rounding a term."""

    fused: bool = False

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        total = np.zeros(_lead(a, b), np.float32)
        for i in range(a.shape[-1]):
            total = _accumulate(total, a[..., i], None if b is None else b[..., i], self.fused)
        return total


@dataclass(frozen=True)
class Lanes:
    """A warp, simdgroup or workgroup: lanes take vectors of the row, then their sums are combined.

    lanes: how many lanes share the row.
    vector: consecutive elements that a lane takes at a time.
    strided: lane j takes the vectors j, j + lanes, ...; otherwise a block of consecutive ones.
    components: accumulators of a lane.  A vector's products are folded down to as many; 1 means
        that one number per vector is added, ``vector`` means that each position has its own sum.
    fold: how products, and at the end a lane's components, are added up: "halving" adds the upper
        half onto the lower until few enough are left, "sequential" goes ((p0 + p1) + p2) + p3.
    fused: a product that goes straight into an accumulator does so by fma.  Where products are
        halved first, the first halving is the fma: fma(a_i, b_i, RN(a_h * b_h)), h = i + half.
    combine: "descending" is the XOR butterfly lanes/2 .. 1 (in every lane the same bits as the
        halving tree), "ascending" goes 1 .. lanes/2, "sequential" adds lane 0, 1, 2, ...
    subgroup: lanes are combined within groups of this many, then the groups' sums are added in
        order, from 0.
    scalar_tail: what does not fill a vector of every lane is taken one element a lane, strided,
        into component 0 (a GEMV's tail); otherwise the last vectors are only partly filled.
    """

    lanes: int = 32
    vector: int = 1
    strided: bool = True
    components: int = 1
    fold: Literal["halving", "sequential"] = "halving"
    fused: bool = False
    combine: Literal["descending", "ascending", "sequential"] = "descending"
    subgroup: int | None = None
    scalar_tail: bool = False

    def __post_init__(self) -> None:
        subgroup = self.lanes if self.subgroup is None else self.subgroup
        halved = [self.vector, self.components] if self.fold == "halving" else []
        if self.combine != "sequential":
            halved.append(subgroup)
        if min(self.lanes, self.vector, self.components, subgroup) < 1 or self.lanes % subgroup:
            raise ValueError(f"{self}: counts are positive, and subgroups fill the lanes")
        if any(count & (count - 1) for count in halved):
            raise ValueError(f"{self}: what is halved is a power of two")
        some = self.components if self.fold == "halving" and self.components < self.vector else 1
        if self.components not in (some, self.vector):
            raise ValueError(f"{self}: a vector cannot be folded to that many components")

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        n = a.shape[-1]
        strip = self.lanes * self.vector
        whole = n // strip * strip if self.scalar_tail else n
        sums = np.zeros((*_lead(a, b), self.lanes, self.components), np.float32)
        for step_a, step_b in self._steps(a[..., :whole], None if b is None else b[..., :whole]):
            sums = self._add_vectors(sums, step_a, step_b)
        for start in range(whole, n, self.lanes):
            stop = min(start + self.lanes, n)
            live = sums[..., : stop - start, 0]
            tail_b = None if b is None else b[..., start:stop]
            sums[..., : stop - start, 0] = _accumulate(live, a[..., start:stop], tail_b, self.fused)
        return self._combine(self._fold(sums, 1)[..., 0])

    def _steps(self, a: np.ndarray, b: np.ndarray | None):
        """The vectors that all lanes take at one time, as [.., lanes, vector], in order."""
        strip = self.lanes * self.vector
        steps = -(-a.shape[-1] // strip)
        shape = (steps, self.lanes) if self.strided else (self.lanes, steps)
        axis = -3 if self.strided else -2

        def arrange(x: np.ndarray) -> np.ndarray:
            padded = np.zeros((*x.shape[:-1], steps * strip), np.float32)
            padded[..., : x.shape[-1]] = x
            return np.moveaxis(padded.reshape(*x.shape[:-1], *shape, self.vector), axis, 0)

        arranged_b = None if b is None else arrange(b)
        for step, vectors in enumerate(arrange(a)):
            yield vectors, None if arranged_b is None else arranged_b[step]

    def _add_vectors(self, sums: np.ndarray, a: np.ndarray, b: np.ndarray | None) -> np.ndarray:
        if self.components == self.vector:
            return _accumulate(sums, a, b, self.fused)
        if self.fused and b is not None and self.fold == "halving":
            half = self.vector // 2
            terms = fma(a[..., :half], b[..., :half], a[..., half:] * b[..., half:])
        else:
            terms = a if b is None else a * b
        return sums + self._fold(terms, self.components)

    def _fold(self, terms: np.ndarray, count: int) -> np.ndarray:
        while terms.shape[-1] > count and self.fold == "halving":
            half = terms.shape[-1] // 2
            terms = terms[..., :half] + terms[..., half:]
        while terms.shape[-1] > count:
            first = terms[..., :1] + terms[..., 1:2]
            terms = np.concatenate([first, terms[..., 2:]], axis=-1)
        return terms

    def _combine(self, sums: np.ndarray) -> np.ndarray:
        if self.subgroup is not None:
            groups = sums.reshape(*sums.shape[:-1], -1, self.subgroup)
            return Sequential().replay(_combine_lanes(groups, self.combine))
        return _combine_lanes(sums, self.combine)


@dataclass(frozen=True)
class Pairwise:
    """The balanced tree over neighbours: (x0 + x1) + (x2 + x3), ...; an odd one moves up alone."""

    fused: Literal[False] = False

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        terms = a if b is None else a * b
        size = 1 << max(a.shape[-1] - 1, 0).bit_length()
        padded = np.zeros((*terms.shape[:-1], size), np.float32)
        padded[..., : a.shape[-1]] = terms
        return _combine_lanes(padded, "ascending") + np.float32(0)  # no sum is -0


@dataclass(frozen=True)
class Exact:
    """The correctly rounded sum: one rounding, of the exact sum.

    rounded_products: the products are rounded to float32 first (a square taken by one kernel and
        summed by another); otherwise they are exact too, and the whole dot product rounds once.
    """

    rounded_products: bool = True

    def replay(self, a: np.ndarray, b: np.ndarray | None = None) -> np.ndarray:
        if b is None:
            terms = a.astype(np.float64)
        elif self.rounded_products:
            terms = (a * b).astype(np.float64)
        else:
            terms = a.astype(np.float64) * b.astype(np.float64)
        rows = terms.reshape(math.prod(terms.shape[:-1]), terms.shape[-1])
        sums = np.array([_exact_sum(row) for row in rows], np.float32)
        return sums.reshape(terms.shape[:-1])


def _lead(a: np.ndarray, b: np.ndarray | None) -> tuple[int, ...]:
    """The shape of the sums: a and b broadcast against each other in front of the last axis."""
    return a.shape[:-1] if b is None else np.broadcast_shapes(a.shape[:-1], b.shape[:-1])


def _accumulate(total: np.ndarray, a: np.ndarray, b: np.ndarray | None, fused: bool) -> np.ndarray:
    if b is None:
        return total + a
    return fma(a, b, total) if fused else total + a * b


def _combine_lanes(sums: np.ndarray, combine: str) -> np.ndarray:
    if combine == "sequential":
        return Sequential().replay(sums)
    while sums.shape[-1] > 1:
        if combine == "descending":
            half = sums.shape[-1] // 2
            sums = sums[..., :half] + sums[..., half:]
        else:
            sums = sums[..., 0::2] + sums[..., 1::2]
    return sums[..., 0]


def _exact_sum(terms: np.ndarray) -> np.float32:
    """The sum of float64 terms, rounded once to float32.

    `math.fsum` rounds the exact sum to float64.  Summing once more with that result taken away
    leaves the sign of its error, which decides the rounding to float32 where it would be a tie.
    """
    if not np.isfinite(terms).all():
        total = np.float32(0)
        for special in terms[~np.isfinite(terms)].astype(np.float32):
            total = total + special
        return total
    nearest = math.fsum(terms)
    error = math.fsum([*terms, -nearest])
    bits = np.float64(nearest).view(np.int64)
    if error != 0 and bits & 1 == 0:
        bits += 1 if (error > 0) == (nearest > 0) else -1
    # `cast` rounds the odd float64 once.  A sum of exactly zero is +0.
    return cast(bits.view(np.float64) + 0.0, np.float32)[()]
