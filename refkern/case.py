"""A golden case as data: which inputs, which parameters, and what the case is there for.

The inputs are described, not computed: every description is a map from random integers to floats
that is exact, so that a kernel's own language can make the same inputs (docs/format.md).  The
integers come from `refkern.goldens.philox`, keyed by the case's seed and the tensor's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: from what everybody runs, to what is built on demand
Tier = Literal["quick", "standard", "full"]
TIERS: tuple[Tier, ...] = ("quick", "standard", "full")


@dataclass(frozen=True)
class Uniform:
    """Uniform over (-2^exponent, 2^exponent), each binade with every significand of the dtype.

    binades: how far down the exponents go; below that, the last binade is repeated.
    """

    exponent: int = 0
    signed: bool = True
    binades: int = 24


@dataclass(frozen=True)
class Spread:
    """Every exponent from ``low`` to ``high`` equally often, with every significand."""

    low: int
    high: int
    signed: bool = True


@dataclass(frozen=True)
class Integers:
    """Every integer from ``low`` to ``high`` equally often, times 2^exponent."""

    low: int
    high: int
    exponent: int = 0


@dataclass(frozen=True)
class Codes:
    """Every bit pattern of the dtype equally often: NaN, infinities and subnormals included."""


@dataclass(frozen=True)
class Values:
    """These values, repeated in C order until the tensor is full."""

    values: tuple[float, ...]


Fill = Uniform | Spread | Integers | Codes | Values
#: one slice per axis: (start, stop, step), None as in Python
Region = tuple[tuple[int | None, int | None, int | None], ...]


@dataclass(frozen=True)
class Put:
    """The values of a region, repeated in C order.  NaN, infinities and -0 too."""

    region: Region
    values: tuple[float, ...]


@dataclass(frozen=True)
class Scale:
    """A region times 2^exponent; exact as long as the results are normal."""

    region: Region
    exponent: int


@dataclass(frozen=True)
class Tensor:
    """An input: how it is filled, then edited in order.

    coarse: hold only values that this narrower format holds (made in it, then widened).
    row_stride: hand it to a backend as a view whose rows lie this many elements apart.
    """

    dtype: str
    shape: tuple[int, ...]
    fill: Fill
    edits: tuple[Put | Scale, ...] = ()
    coarse: str | None = None
    row_stride: int | None = None


@dataclass(frozen=True)
class Case:
    """One golden case.  Its name says what breaks when it fails."""

    name: str
    #: what it is there for
    purpose: str
    inputs: Mapping[str, Tensor | None]
    params: Mapping[str, Any]
    recipe: str
    #: mutants that no other quick case of the op rejects
    only_here: tuple[str, ...] = ()
    tier: Tier = "quick"
    seed: int = 0
    #: rows of the output that are kept, where the whole is too large for a file
    sampled_rows: tuple[int, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)


def region(*slices: int | tuple[int | None, ...] | None) -> Region:
    """A `Region` from one entry per axis: an index, (start, stop[, step]), or None for all."""
    made: list[tuple[int | None, int | None, int | None]] = []
    for s in slices:
        if s is None:
            made.append((None, None, None))
        elif isinstance(s, int):
            made.append((s, s + 1 if s != -1 else None, None))
        else:
            start, stop, step = (*s, None, None)[:3]
            made.append((start, stop, step))
    return tuple(made)
