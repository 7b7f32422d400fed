"""The formats' data against gfloat and ml_dtypes, and how a format is found."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from exact import GFLOAT, all_codes, value_of

from refkern import InvalidInput, widen
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E8M0FNU,
    FLOAT32,
    FLOAT64,
    FORMATS,
    NARROW,
    codes,
    find_format,
    format_of,
    from_codes,
)


@pytest.mark.parametrize("fmt", GFLOAT, ids=str)
def test_a_format_is_what_gfloat_says(fmt):
    info = GFLOAT[fmt]
    assert (fmt.bits, fmt.mantissa_bits, fmt.bias) == (info.bits, info.precision - 1, info.bias)
    assert float(value_of(fmt.max_finite, fmt)) == info.max
    assert fmt.max_finite == info.code_of_max
    assert (fmt.infinity is not None) == (info.num_posinfs > 0)
    if fmt.infinity is not None:
        assert fmt.infinity == info.code_of_posinf
    assert bool(fmt.sign) == info.is_signed
    assert fmt.scale_only == (not info.has_zero)


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=str)
def test_a_format_is_what_its_dtype_says(fmt):
    limits = ml_dtypes.finfo(fmt.dtype)
    assert fmt.bits == limits.bits == 8 * fmt.code_dtype.itemsize == 8 * fmt.dtype.itemsize
    assert float(value_of(fmt.max_finite, fmt)) == float(limits.max)
    assert 2.0**fmt.min_exponent == float(limits.smallest_normal)
    nan = np.array([fmt.nan], fmt.code_dtype).view(fmt.dtype)
    assert np.isnan(nan).all()
    assert fmt.overflow == (fmt.nan if fmt.infinity is None else fmt.infinity)
    if fmt.infinity is not None:
        assert np.isposinf(np.array([fmt.infinity], fmt.code_dtype).view(fmt.dtype)).all()


@pytest.mark.parametrize("fmt", NARROW, ids=str)
def test_positive_codes_are_ordered_as_their_values(fmt):
    values = widen(all_codes(fmt)[: fmt.max_finite + 1])
    assert (np.diff(values.astype(np.float64)) > 0).all()
    exact = [float(value_of(code, fmt)) for code in range(fmt.max_finite + 1)]
    assert values.tolist() == exact


def test_a_format_is_found_by_dtype_name_and_itself():
    for name, fmt in FORMATS.items():
        assert find_format(name) is find_format(fmt.dtype) is find_format(fmt) is fmt
        assert str(fmt) == name
        assert FORMATS[name] == fmt
    assert find_format(np.float32) is FLOAT32
    assert find_format(float) is FLOAT64
    assert find_format(">f4") is FLOAT32
    assert find_format(ml_dtypes.bfloat16) is BFLOAT16


@pytest.mark.parametrize(
    "wrong",
    [None, "int8", "float8_e4m3fnuz", "nothing", "f4,", 3, "(", np.complex64, object, "float128"],
)
def test_another_type_is_no_format_and_is_named(wrong):
    assert find_format(wrong) is None
    with pytest.raises(InvalidInput, match=r"^weight: .*was given; allowed are float64, float32"):
        format_of(wrong, "weight")


def test_codes_are_views():
    values = np.zeros((3, 4), FLOAT8_E4M3FN.dtype)[::2, ::-1]
    codes(values)[0, 0] = 0x38
    assert float(values[0, 0]) == 1.0
    assert from_codes(codes(values), FLOAT8_E4M3FN).dtype == FLOAT8_E4M3FN.dtype
    assert np.shares_memory(from_codes(codes(values), FLOAT8_E4M3FN), values)
    assert FLOAT8_E8M0FNU.sign == 0
    assert FLOAT8_E8M0FNU.magnitude == 255
