"""Dot products of fp8 codes within the groups of 128 that share a scale.

A product of two e4m3 values is a multiple of 2^-18 below 2^18, so the exact dot of a group of 128
is an integer below 2^43 times 2^-18: int64 and float64 hold it, and no order of summing can be
seen.  What a tensor core makes of it instead is another `GroupDots`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from refkern.casts import widen
from refkern.formats import FLOAT8_E4M3FN
from refkern.ulp import is_nan

GROUP = 128
#: the smallest e4m3 value is 2^-9, and 2^-18 the unit of their products
UNIT = 2.0**-18


class GroupDots(Protocol):
    """How the dot product of a group is summed and rounded."""

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """x [tokens, K], w [rows, K] e4m3 -> float32 [tokens, rows, ceil(K / 128)]."""
        ...

    def load_compiled(self) -> Any:
        """What `refkern.compiled.group_dots.project` computes it by."""
        ...


@dataclass(frozen=True)
class ExactDots:
    """Each group's dot product, exact, then rounded once to float32; NaN where a code is NaN."""

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return _exact(x, w).astype(np.float32)  # one rounding: float64 holds the exact sum

    def load_compiled(self) -> Any:
        return import_module("refkern.compiled.group_dots").EXACT


def _exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """float64 [tokens, rows, groups], without any rounding; NaN where a code is NaN."""
    k = x.shape[1]
    dots = np.empty((len(x), len(w), -(-k // GROUP)))
    for g in range(dots.shape[-1]):
        at = slice(g * GROUP, min((g + 1) * GROUP, k))
        x_nan, w_nan = (np.any(is_nan(codes[:, at]), axis=-1) for codes in (x, w))
        nan = np.logical_or(x_nan[:, None], w_nan[None])
        units = np.matmul(_integers(x[:, at]), _integers(w[:, at]).T)  # integers: nothing to round
        dots[..., g] = np.where(nan, np.nan, units * UNIT)
    return dots


def _integers(codes: np.ndarray) -> np.ndarray:
    """e4m3 as int64 multiples of 2^-9; 0 for NaN."""
    return _UNITS[codes.view(np.uint8)]


_EVERY = np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3FN.dtype)
_UNITS = np.where(is_nan(_EVERY), 0, widen(_EVERY) * np.float32(2**9)).astype(np.int64)


def exact_scaled_dots(
    x: np.ndarray, x_scale: np.ndarray, w: np.ndarray, w_scale: np.ndarray
) -> np.ndarray:
    """As `refkern.arithmetic.Bits.scaled_dots`.

    dot * (x_scale * w_scale) is 43 bits times an exact 48-bit product: two float64 hold it
    (Dekker's product), and their sum over the groups is exact in `math.fsum`.
    """
    dots = _exact(x, w)
    scales = x_scale.astype(np.float64)[:, None] * w_scale.astype(np.float64)[None]
    high = dots * scales
    terms = np.concatenate([high, _product_error(dots, scales, high)], axis=-1)
    lead = terms.shape[:-1]
    rows = terms.reshape(math.prod(lead), terms.shape[-1])
    return np.array([_odd_sum(row) for row in rows], np.float64).reshape(lead)


def _product_error(a: np.ndarray, b: np.ndarray, product: np.ndarray) -> np.ndarray:
    """a * b - product, exactly (Dekker); 0 where the product is not finite.

    a has 43 bits and b 48 at most, so that no product of halves needs more than 53.
    """
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return np.where(np.isfinite(product), error, 0.0)


def _upper_half(a: np.ndarray) -> np.ndarray:
    """The upper 26 bits of a float64's significand, by its bits."""
    return (a.view(np.int64) & ~np.int64((1 << 27) - 1)).view(np.float64)


def _odd_sum(terms: np.ndarray) -> float:
    """The exact sum of float64 terms, rounded to odd; IEEE's result where they are not finite."""
    if not np.isfinite(terms).all():
        return float(np.add.reduce(terms[~np.isfinite(terms)]))
    nearest = math.fsum(terms)
    error = math.fsum([*terms, -nearest])
    bits = int(np.float64(nearest).view(np.int64))
    if error != 0 and bits & 1 == 0:
        bits += 1 if (error > 0) == (nearest > 0) else -1
    return float(np.int64(bits).view(np.float64)) + 0.0


EXACT = ExactDots()
