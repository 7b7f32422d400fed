"""Distance in ULP: how many values of the format lie between two."""

from __future__ import annotations

import numpy as np

from refkern.formats import codes, format_of

#: distance to or from a NaN: there is none
NO_DISTANCE = -1


def ordered(values: np.ndarray) -> np.ndarray:
    """Each value's place on the ordered line of its format, as int64: -0 and +0 share place 0.

    A subnormal and the smallest normal, and the largest finite value and infinity, are
    neighbours.  A NaN has no meaningful place.
    """
    fmt = format_of(values.dtype)
    bits = codes(values)
    magnitude = (bits & bits.dtype.type(fmt.magnitude)).astype(np.int64)
    return np.where(bits & bits.dtype.type(fmt.sign) != 0, -magnitude, magnitude)


def is_nan(values: np.ndarray) -> np.ndarray:
    """Where an array in any of the formats is NaN, read from its bits."""
    fmt = format_of(values.dtype)
    bits = codes(values)
    limit = fmt.max_finite if fmt.infinity is None else fmt.infinity
    return (bits & bits.dtype.type(fmt.magnitude)) > bits.dtype.type(limit)


def ulp_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The distance in ULP between arrays of one format, as int64.

    `NO_DISTANCE` where exactly one of the two is NaN; 0 where both are.  float64 distances that
    exceed int64 do not occur among values of one sign; across zero they are clipped.
    """
    if a.dtype != b.dtype:
        raise TypeError(f"one format is needed, got {a.dtype} and {b.dtype}")
    place_a, place_b = ordered(a), ordered(b)
    with np.errstate(over="ignore"):
        distance = np.maximum(place_a, place_b) - np.minimum(place_a, place_b)
    distance = np.where(distance < 0, np.iinfo(np.int64).max, distance)  # it wrapped around
    nan_a, nan_b = is_nan(a), is_nan(b)
    return np.where(nan_a & nan_b, 0, np.where(nan_a | nan_b, NO_DISTANCE, distance))
