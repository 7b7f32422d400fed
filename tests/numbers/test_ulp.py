"""ULP distance: the values of fault 61, the ordered line, comparing narrow arrays (fault 63)."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from exact import all_codes

from refkern import InvalidInput, ulp_distance, widen
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT32,
    FLOAT64,
    FORMATS,
    NARROW,
    Format,
)
from refkern.ulp import NO_DISTANCE, is_nan, ordered
from refkern.verdict import difference


def of(codes: list[int], fmt: Format) -> np.ndarray:
    return np.array(codes, fmt.code_dtype).view(fmt.dtype)


@pytest.mark.parametrize(
    ("fmt", "a", "b", "distance"),
    [
        (BFLOAT16, 0x0000, 0x8000, 0),
        (BFLOAT16, 0x0001, 0x8001, 2),
        (BFLOAT16, 0x3F80, 0x3F81, 1),
        (BFLOAT16, 0x007F, 0x0080, 1),
        (BFLOAT16, 0x7F7F, 0x7F80, 1),
        (BFLOAT16, 0x3F80, 0xBF80, 32512),
        (BFLOAT16, 0x7F80, 0xFF80, 65280),
        (FLOAT8_E4M3FN, 0x00, 0x80, 0),
        (FLOAT8_E4M3FN, 0x01, 0x81, 2),
        (FLOAT8_E4M3FN, 0x7E, 0xFE, 252),
        (FLOAT8_E4M3FN, 0x7E, 0x7F, NO_DISTANCE),
        (FLOAT8_E4M3FN, 0x7F, 0xFF, 0),
        (FLOAT32, 0x00000000, 0x80000000, 0),
        (FLOAT32, 0xFF7FFFFF, 0x7F7FFFFF, 4278190078),
        (FLOAT64, 0x3FF0 << 48, 0xBFF0 << 48, 2 * (0x3FF0 << 48)),
        (FLOAT64, 0x7FEF << 48, 0xFFEF << 48, np.iinfo(np.int64).max),
        (FLOAT64, 0x7FF0 << 48, 0xFFF0 << 48, np.iinfo(np.int64).max),
    ],
)
def test_fault_61(fmt, a, b, distance):
    if distance > np.iinfo(np.int64).max:
        distance = np.iinfo(np.int64).max
    for first, second in ((a, b), (b, a)):
        got = ulp_distance(of([first], fmt), of([second], fmt))
        assert got.dtype == np.int64
        assert got.tolist() == [distance]


@pytest.mark.parametrize("fmt", NARROW, ids=str)
def test_the_ordered_line_is_monotone_without_gaps(fmt):
    x = all_codes(fmt)
    value = widen(x)
    number = ~np.isnan(value)
    assert (is_nan(x) == ~number).all()
    place = ordered(x)[number]
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[number][order].astype(np.float64)
    step, same = np.diff(place), value[1:] == value[:-1]
    assert ((step == 1) == ~same).all()
    assert ((step == 0) == same).all()
    assert (value[1:] >= value[:-1]).all()
    if fmt.sign:
        assert np.count_nonzero(same) == 1  # -0 and +0
        assert ordered(of([0, fmt.sign], fmt)).tolist() == [0, 0]


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_a_nan_has_no_distance_except_to_a_nan(fmt):
    nan, number = of([fmt.nan], fmt), of([fmt.max_finite], fmt)
    assert ulp_distance(nan, nan).tolist() == [0]
    assert ulp_distance(nan, number).tolist() == [NO_DISTANCE]
    assert ulp_distance(number, nan).tolist() == [NO_DISTANCE]


def test_two_formats_have_no_distance():
    one = np.ones(3, np.float32)
    with pytest.raises(InvalidInput, match=r"^b: float64 was given; a is float32"):
        ulp_distance(one, one.astype(np.float64))
    with pytest.raises(InvalidInput, match=r"^a: int64 was given; allowed are float64"):
        ulp_distance(np.arange(3), np.arange(3))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_fault_63_nan_in_ml_dtypes_arrays(name):
    a = np.array([1, np.nan], np.float32).astype(getattr(ml_dtypes, name))
    assert difference(a, a.copy()).mismatches == 0
    assert difference(a, a[::-1].copy()).mismatches == 2
    with pytest.raises(InvalidInput, match=r"float32"):
        difference(a, a.astype(np.float32))
