"""Casts, numpy and numba: one rounding, from every width into every format.

Oracles: gfloat (vectorised, float64), rational arithmetic, the values of the reported faults.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from exact import (
    GFLOAT,
    all_codes,
    by_gfloat,
    compiled,
    nearest_even,
    scale_byte,
    value_of,
)
from gfloat import decode_ndarray

from refkern import InvalidInput, cast, widen
from refkern.casts import canonical
from refkern.compiled import casts
from refkern.formats import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT8_E8M0FNU,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    FORMATS,
    NARROW,
    Format,
    codes,
)

FLOATS = (BFLOAT16, FLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)
SCALE_ROUNDINGS = ("up", "down", "nearest")


def hexes(values: np.ndarray) -> list[str]:
    return [f"{c:0{2 * values.itemsize}x}" for c in codes(values).ravel().tolist()]


def assert_same_codes(got: np.ndarray, want: np.ndarray, x: np.ndarray) -> None:
    """By bits; a failure names the first input."""
    got, want = codes(got) if got.dtype.kind not in "u" else got, want
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, (
        f"{wrong.size} of {x.size}; {x.flat[wrong[0]]!r} gave {got.flat[wrong[0]]:#x}, "
        f"not {want.flat[wrong[0]]:#x}"
    )


@cache
def hard_points(fmt: Format) -> np.ndarray:
    """float64: values and midpoints of a format, all signs, and what lies just beside them.

    Beside: float32 and float64 neighbours, and 2^-45 away, which a cast by way of float32 loses.
    """
    values = np.array([float(value_of(c, fmt)) for c in range(fmt.max_finite + 2)])
    middle = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    with np.errstate(over="ignore", under="ignore"):
        single = middle.astype(np.float32)
        # So the float32 neighbours are neighbours of the midpoint.
        assert ((single == middle) | (middle >= 2.0**128)).all()
        points = [
            middle,
            np.nextafter(single, np.float32(np.inf)).astype(np.float64),
            np.nextafter(single, np.float32(-1)).astype(np.float64),
            np.nextafter(middle, np.inf),
            np.nextafter(middle, -1.0),
            middle * (1 + 2.0**-45),
            middle * (1 - 2.0**-45),
        ]
    far = [0.0, 5e-324, 2.0**-1022, 1e-300, 1e300, np.finfo(np.float64).max, np.inf]
    far += [float(np.finfo(np.float32).max), 2.0**-149, 2.0**-150, 2.0**128]
    positive = np.unique(np.abs(np.concatenate([*points, far])))
    return np.concatenate([positive, -positive])


@cache
def random_patterns(dtype: type, count: int = 20_000) -> np.ndarray:
    """Random bit patterns: every exponent as often, some NaN."""
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    rng = np.random.default_rng(11)
    return rng.integers(0, np.iinfo(word).max, count, dtype=word, endpoint=True).view(dtype)


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("fmt", FLOATS, ids=str)
def test_midpoints_and_their_neighbours(fmt, saturate):
    doubles = np.concatenate([hard_points(fmt), random_patterns(np.float64)])
    singles = hard_points(fmt)
    with np.errstate(over="ignore"):
        singles = np.unique(singles.astype(np.float32).view(np.uint32)).view(np.float32)
    singles = np.concatenate([singles, random_patterns(np.float32)])
    for x, source in ((doubles, FLOAT64), (singles, FLOAT32)):
        with np.errstate(all="ignore"):
            want = by_gfloat(x.astype(np.float64), fmt, saturate)
        got = cast(x, fmt.dtype, saturate=saturate)
        assert got.dtype == fmt.dtype
        assert_same_codes(got, want, x)
        kernel = compiled(casts.narrow(source, fmt, saturate, canonical=False), fmt.code_dtype)
        assert_same_codes(kernel(x), want, x)


@pytest.mark.parametrize("saturate", [False, True])
def test_float64_to_float32(saturate):
    rng = np.random.default_rng(5)
    low = rng.integers(0, 0x7F80_0000, 20_000).astype(np.uint32)
    low[:4] = [0, 1, 0x007F_FFFF, 0x7F7F_FFFF]
    value = low.view(np.float32).astype(np.float64)
    above = (low + np.uint32(1)).view(np.float32).astype(np.float64)
    above[np.isinf(above)] = 2.0**128
    middle = (value + above) / 2
    x = np.concatenate([middle, np.nextafter(middle, np.inf), np.nextafter(middle, 0), value])
    x = np.concatenate([x, -x, [np.inf, -np.inf, np.nan, -np.nan], random_patterns(np.float64)])
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)  # IEEE: one rounding, in hardware
    if saturate:
        want = np.clip(want, -np.finfo(np.float32).max, np.finfo(np.float32).max)
    nan = np.where(np.signbit(x), np.uint32(0xFFC00000), np.uint32(0x7FC00000))
    bits = np.where(np.isnan(x), nan, want.view(np.uint32))
    assert_same_codes(cast(x, np.float32, saturate=saturate), bits, x)
    kernel = compiled(casts.narrow(FLOAT64, FLOAT32, saturate, canonical=False), np.uint32)
    assert_same_codes(kernel(x), bits, x)


@pytest.mark.parametrize("source", NARROW, ids=str)
def test_widening_is_exact_in_numpy_and_numba(source):
    x = all_codes(source)
    with np.errstate(invalid="ignore"):
        want = decode_ndarray(GFLOAT[source], codes(x).astype(np.int64)).astype(np.float32)
    negative = (codes(x) & source.sign) != 0
    nan = np.where(negative, np.uint32(0xFFC00000), np.uint32(0x7FC00000))
    for got in (widen(x), compiled(casts.widen(source), np.float32)(codes(x))):
        assert got.dtype == np.float32
        is_nan = np.isnan(want)
        assert (np.isnan(got) == is_nan).all()
        assert (np.signbit(got) == negative).all()
        assert (got.view(np.uint32)[~is_nan] == want.view(np.uint32)[~is_nan]).all()
    canonical_nan = cast(x, np.float32).view(np.uint32)[np.isnan(want)]
    assert (canonical_nan == nan[np.isnan(want)]).all()


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("source", NARROW, ids=str)
def test_every_narrow_code_into_every_format(source, saturate):
    x = all_codes(source)
    wide = widen(x)
    for target in FLOATS:
        with np.errstate(invalid="ignore"):
            want = by_gfloat(wide.astype(np.float64), target, saturate)
        assert_same_codes(cast(x, target.dtype, saturate=saturate), want, x)
        kernel = compiled(casts.narrow(FLOAT32, target, saturate, canonical=False), want.dtype)
        assert_same_codes(kernel(wide), want, x)
    double = cast(x, np.float64, saturate=saturate)
    most = np.finfo(np.float64).max
    with np.errstate(invalid="ignore"):
        exact = wide.astype(np.float64)
    np.testing.assert_array_equal(double, np.clip(exact, -most, most) if saturate else exact)
    assert (np.signbit(double) == np.signbit(wide)).all()


@pytest.mark.parametrize("fmt", FLOATS, ids=str)
def test_a_code_casts_to_itself(fmt):
    x = all_codes(fmt)
    is_nan = np.isnan(widen(x))
    with np.errstate(invalid="ignore"):
        double = widen(x).astype(np.float64)
    for through in (x, widen(x), double):
        got = codes(cast(through, fmt.dtype))
        assert (got[~is_nan] == codes(x)[~is_nan]).all()
        assert (got[is_nan] == (codes(x)[is_nan] & fmt.sign | fmt.nan)).all()
    if fmt is FLOAT8_E5M2:  # fault 45: the payloads become the canonical one
        assert hexes(cast(np.array([0x7D, 0x7F, 0xFD, 0xFF], np.uint8).view(fmt.dtype), fmt)) == [
            *("7e", "7e", "fe", "fe")
        ]
    assert (codes(canonical(x))[is_nan] == fmt.nan).all()
    assert (codes(canonical(x))[~is_nan] == codes(x)[~is_nan]).all()


@pytest.mark.parametrize("fmt", [*FLOATS, FLOAT32], ids=str)
def test_a_nan_keeps_its_sign_and_loses_its_payload(fmt):
    double = [0x7FF8 << 48, 0x7FF0_0000_0000_0001, 0xFFF0_0000_2000_0000, 0xFFFF << 48]
    x = np.array(double, np.uint64).view(np.float64)
    want = [fmt.nan, fmt.nan, fmt.nan | fmt.sign, fmt.nan | fmt.sign]
    single = np.array([0x7FC00000, 0x7F800001, 0xFF812345, 0xFFFFFFFF], np.uint32).view(np.float32)
    for saturate in (False, True):
        for values, source in ((x, FLOAT64), (single, FLOAT32)):
            assert codes(cast(values, fmt, saturate=saturate)).tolist() == want
            signed = casts.narrow(source, fmt, saturate, canonical=False)
            positive = casts.narrow(source, fmt, saturate, canonical=True)
            assert compiled(signed, fmt.code_dtype)(values).tolist() == want
            assert compiled(positive, fmt.code_dtype)(values).tolist() == [fmt.nan] * 4


def integers(dtype: type) -> np.ndarray:
    info = np.iinfo(dtype)
    near = [0, 1, 2, 3, 255, 256, 257, (1 << 24) + 1, (1 << 24) + 3, (1 << 53) + 1, (1 << 53) + 3]
    near += [(1 << 60) + (1 << 36) + d for d in (-1, 0, 1)]  # a float32 midpoint and beside it
    near += [(1 << 60) + (1 << 52) + d for d in (-1, 0, 1)]  # a bfloat16 midpoint
    near += [(1 << 60) + (1 << 7) + d for d in (-1, 0, 1)]  # a float64 midpoint
    near += [464, 465, 448, 61439, 61440, 65519, 65520, (1 << 62) + 1, (1 << 54) - 1, (1 << 54) + 1]
    near += [int(info.max) - d for d in range(4)] + [int(info.min) + d for d in range(4)]
    near += [-n for n in near]
    fitting = [n for n in near if info.min <= n <= info.max]
    rng = np.random.default_rng(2)
    spread = rng.integers(info.min, info.max, 300, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(fitting, dtype), spread, spread >> dtype(info.bits // 2)])


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint8, np.int8, np.uint16])
def test_integers_are_rounded_once(dtype):
    x = integers(dtype)
    for fmt in (*FLOATS, FLOAT32, FLOAT64):
        for saturate in (False, True):
            want = [nearest_even(Fraction(int(n)), fmt, saturate) for n in x]
            want = np.array(want, fmt.code_dtype)
            assert_same_codes(cast(x, fmt, saturate=saturate), want, x)
            for i in range(0, x.size, 37):
                assert codes(cast(x[i], fmt, saturate=saturate)) == want[i]  # no axes
    for rounding in SCALE_ROUNDINGS:
        for saturate in (False, True):
            want = [scale_byte(Fraction(int(n)), rounding, saturate) for n in x]
            got = cast(x, FLOAT8_E8M0FNU, rounding=rounding, saturate=saturate)
            assert_same_codes(got, np.array(want, np.uint8), x)


def test_the_false_midpoint_of_an_integer():
    # By way of float64 the last bit is lost and a tie is seen where there is none.
    n = (1 << 60) + (1 << 36) + 1
    assert int(cast(np.int64(n), np.float32)) == (1 << 60) + (1 << 37)
    assert int(cast(np.int64(-n), np.float32)) == -((1 << 60) + (1 << 37))
    assert int(np.float32(np.float64(n))) == 1 << 60


def test_bool_and_sequences_and_scalars():
    for fmt in (*FLOATS, FLOAT32, FLOAT64):
        assert cast([True, False], fmt).astype(float).tolist() == [1.0, 0.0]
        assert cast(1.5, fmt).shape == ()
        assert cast(np.zeros((0, 3)), fmt).shape == (0, 3)
        assert hexes(cast(-0.0, fmt)) == [f"{fmt.sign:0{fmt.bits // 4}x}"]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["f4", "f8", "f2", "i8", "u2"])
def test_byte_order_and_strides_do_not_matter(order, kind):
    plain = np.arange(-12, 12).reshape(4, 6) if kind != "u2" else np.arange(24).reshape(4, 6)
    x = plain.astype(order + kind)[::-1, ::2]
    got = cast(x, ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float64), plain[::-1, ::2])
    assert got.dtype.isnative


def test_longdouble_is_rounded_once():
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("longdouble is float64 here")
    wide = np.longdouble
    rng = np.random.default_rng(3)
    for fmt in (*FLOATS, FLOAT32, FLOAT64):
        code = rng.integers(0, fmt.max_finite, 300).astype(np.int64)
        # The largest finite code has its midpoint towards what would come next.
        code[:6] = [0, 1, 2, fmt.max_finite, fmt.max_finite - 1, 1 << fmt.mantissa_bits]
        if fmt is FLOAT64:
            value = code.view(np.float64).astype(wide)
            following = (code + 1).view(np.float64).astype(wide)
            following[np.isinf(following)] = wide(2) ** 1024
            middle = (value + following) / 2
        else:
            low = [value_of(int(c), fmt) for c in code]
            high = [value_of(int(c) + 1, fmt) for c in code]
            middle = [float((a + b) / 2) for a, b in zip(low, high, strict=True)]
        x = np.array(middle, wide)
        x = np.concatenate([x, np.nextafter(x, wide(np.inf)), np.nextafter(x, wide(0))])
        x = np.concatenate([x, -x])
        want = np.array([nearest_even(exact_longdouble(v), fmt) for v in x], fmt.code_dtype)
        want |= np.where(np.signbit(x), want.dtype.type(fmt.sign), want.dtype.type(0))
        assert_same_codes(cast(x, fmt), want, x)
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], wide)
    assert hexes(cast(special, np.float16)) == ["7c00", "fc00", "7e00", "0000", "8000"]
    huge, tiny = np.finfo(wide).max, np.finfo(wide).smallest_subnormal
    x = np.array([huge, -huge, tiny, -tiny])
    zeros = "0" * 13
    want = [f"7ff{zeros}", f"fff{zeros}", f"000{zeros}", f"800{zeros}"]
    assert hexes(cast(x, np.float64)) == want
    want = ["7f7fffff", "ff7fffff", "00000000", "80000000"]
    assert hexes(cast(x, np.float32, saturate=True)) == want
    byte = [hexes(cast(x, FLOAT8_E8M0FNU, rounding="up", saturate=s)) for s in (False, True)]
    assert byte == [["ff", "ff", "00", "ff"], ["fe", "ff", "00", "ff"]]


def exact_longdouble(value: np.longdouble) -> Fraction:
    significand, exponent = np.frexp(value)
    whole = int(np.ldexp(significand, 113))  # exact: no longdouble has more bits
    return whole * Fraction(2) ** (int(exponent) - 113)


# --- float8_e8m0fnu ---------------------------------------------------------------------------


@cache
def scale_points(dtype: type) -> np.ndarray:
    """Powers of two, 1.5 and 3 times them, beside them, and what is no scale."""
    lowest = -149 if dtype is np.float32 else -1074
    exponents = sorted({*range(-149, 129), lowest, *range(max(lowest, -300), -149, 10), 1000})
    with np.errstate(over="ignore"):
        powers = np.array([np.ldexp(1.0, e) for e in exponents]).astype(dtype)
        three = (np.array([np.ldexp(1.5, e) for e in exponents])).astype(dtype)
        points = np.concatenate([powers, three])
        points = points[np.isfinite(points)]
        beside = [np.nextafter(points, dtype(np.inf)), np.nextafter(points, dtype(0))]
    positive = np.concatenate([points, *beside, [dtype(0), dtype(1.5), dtype(3), dtype(0.1)]])
    positive = np.concatenate([positive, np.abs(random_patterns(dtype, 500))]).astype(dtype)
    return np.concatenate([positive, -positive, np.array([np.inf, -np.inf, np.nan], dtype)])


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("rounding", SCALE_ROUNDINGS)
@pytest.mark.parametrize("source", [FLOAT32, FLOAT64], ids=str)
def test_scales_against_rational_arithmetic(source, rounding, saturate):
    x = scale_points(source.dtype.type)
    want = [
        scale_byte(Fraction(float(v)), rounding, saturate)
        if np.isfinite(v)
        else (254 if saturate and v > 0 else 255)
        for v in x
    ]
    want = np.array(want, np.uint8)
    got = cast(x, FLOAT8_E8M0FNU.dtype, rounding=rounding, saturate=saturate)
    assert_same_codes(got, want, x)
    kernel = compiled(casts.narrow_scale(source, rounding, saturate), np.uint8)
    assert_same_codes(kernel(x), want, x)


@pytest.mark.parametrize("source", NARROW, ids=str)
def test_scales_from_narrow_formats(source):
    x = all_codes(source)
    with np.errstate(invalid="ignore"):
        wide = widen(x).astype(np.float64)
    for rounding in SCALE_ROUNDINGS:
        for saturate in (False, True):
            got = codes(cast(x, FLOAT8_E8M0FNU, rounding=rounding, saturate=saturate))
            finite = np.isfinite(wide)
            want = [scale_byte(Fraction(v), rounding, saturate) for v in wide[finite].tolist()]
            assert (got[finite] == want).all()
            infinity = np.isposinf(wide)
            assert (got[infinity] == (254 if saturate else 255)).all()
            assert (got[~finite & ~infinity] == 255).all()


def test_ties_and_limits_of_scales():
    def byte(value, rounding, saturate=False):
        return int(codes(cast(value, "float8_e8m0fnu", rounding=rounding, saturate=saturate)))

    assert [byte(1.5, r) for r in SCALE_ROUNDINGS] == [128, 127, 128]
    assert [byte(3.0, r) for r in SCALE_ROUNDINGS] == [129, 128, 129]
    assert [byte(2.0**-140, r) for r in SCALE_ROUNDINGS] == [0, 0, 0]
    assert [byte(1.2 * 2.0**127, r) for r in SCALE_ROUNDINGS] == [255, 254, 254]
    assert [byte(1.2 * 2.0**127, r, True) for r in SCALE_ROUNDINGS] == [254, 254, 254]
    assert [byte(v, "up") for v in (0.0, -0.0, -1.0, np.nan, np.inf, -np.inf)] == [255] * 6
    assert [byte(v, "up", True) for v in (0.0, -0.0, -1.0, np.nan, np.inf, -np.inf)] == [
        *(0, 0, 255, 255, 254, 255)
    ]


# --- values of the reported faults and of the semantics ---------------------------------------

E4M3 = {
    255: "78",
    256: "78",
    264: "78",
    272: "78",
    288: "79",
    448: "7e",
    449: "7e",
    464: "7e",
    465: "7f",
    480: "7f",
    -465: "ff",
    np.inf: "7f",
    -np.inf: "ff",
    np.nan: "7f",
    -0.0: "80",
    float(np.nextafter(np.float32(464), np.float32(1e9))): "7f",
}
E4M3_SATURATED = {"7f": "7e", "ff": "fe"}


def test_fault_41_overflow_of_fp8():
    x = np.array(list(E4M3), np.float32)
    assert hexes(cast(x, FLOAT8_E4M3FN)) == list(E4M3.values())
    saturated = ["7f" if np.isnan(v) else E4M3_SATURATED.get(c, c) for v, c in E4M3.items()]
    assert hexes(cast(x, FLOAT8_E4M3FN, saturate=True)) == saturated
    x = np.array([57344, 61439, 61440, np.inf], np.float32)
    assert hexes(cast(x, FLOAT8_E5M2)) == ["7b", "7b", "7c", "7c"]
    assert hexes(cast(x, FLOAT8_E5M2, saturate=True)) == ["7b"] * 4


def test_fault_43_ties_of_bfloat16():
    pairs = {
        0x3F808000: "3f80",
        0x3F818000: "3f82",
        0x3F808001: "3f81",
        0x3F807FFF: "3f80",
        0x7F7F7FFF: "7f7f",
        0x7F7F8000: "7f80",
        0x00008000: "0000",
        0x00018000: "0002",
        0x00008001: "0001",
        0x80008000: "8000",
    }
    x = np.array(list(pairs), np.uint32).view(np.float32)
    assert hexes(cast(x, BFLOAT16)) == list(pairs.values())
    kernel = compiled(casts.narrow(FLOAT32, BFLOAT16), np.uint16)
    assert [f"{c:04x}" for c in kernel(x)] == list(pairs.values())


def test_fault_45_subnormals_of_fp8():
    tie = 2.0**-10
    pairs = {
        2 * tie: "01",
        tie: "00",
        float(np.nextafter(np.float32(tie), np.float32(1))): "01",
        3 * tie: "02",
        5 * tie: "02",
        7 * 2.0**-9: "07",
        15 * tie: "08",
        2.0**-6: "08",
        0.0015: "01",
        0.0103: "05",
        2.0**-11: "00",
        -(2.0**-11): "80",
    }
    assert hexes(cast(np.array(list(pairs)), FLOAT8_E4M3FN)) == list(pairs.values())
    assert hexes(cast(np.array(list(pairs), np.float32), FLOAT8_E4M3FN)) == list(pairs.values())
    x = np.array([2.0**-16, 2.0**-17, 1.5 * 2.0**-17, 1.5 * 2.0**-16, -(2.0**-17)])
    assert hexes(cast(x, FLOAT8_E5M2)) == ["01", "00", "01", "02", "80"]
    assert widen(all_codes(FLOAT8_E4M3FN)[1:8]).tolist() == [k * 2.0**-9 for k in range(1, 8)]


def test_fault_47_scales_decode_at_the_ends():
    scale = np.array([0, 1, 126, 127, 128, 254, 255], np.uint8).view(FLOAT8_E8M0FNU.dtype)
    want = [2.0**-127, 2.0**-126, 0.5, 1, 2, 2.0**127]
    for got in (widen(scale), compiled(casts.widen(FLOAT8_E8M0FNU), np.float32)(codes(scale))):
        assert got[:-1].tolist() == want
        assert np.isnan(got[-1])
        assert hexes(got[:1]) == ["00400000"]
    factor = widen(np.array([0x30, 0x01, 0x38, 0x40, 0x00], np.uint8).view(FLOAT8_E4M3FN.dtype))
    wide = widen(scale)
    assert hexes(factor[:2] * wide[0]) == ["00200000", "00002000"]
    assert hexes(factor[2:3] * wide[5]) == ["7f000000"]
    with np.errstate(over="ignore"):
        assert np.isposinf(factor[3:4] * wide[5]).all()
    assert np.isnan(factor * wide[6]).all()
    assert hexes(cast(factor[:1] * wide[0], BFLOAT16)) == ["0020"]


def test_encoder_values_of_the_mlp():
    tie = np.float32(2.0**-10)
    x = [0.0, -0.0, tie, np.nextafter(tie, np.float32(1)), -tie, 2 * tie, 7.5 * 2.0**-9, 2.0**-6]
    x = np.array([*x, 448, 464, 1e9, np.inf, -np.inf, np.nan], np.float32)
    want = ["00", "80", "00", "01", "80", "01", "08", "08", "7e", "7e", "7e", "7e", "fe", "7f"]
    assert hexes(cast(x, FLOAT8_E4M3FN, saturate=True)) == want
    kernel = compiled(casts.narrow(FLOAT32, FLOAT8_E4M3FN, saturate=True), np.uint8)
    assert [f"{c:02x}" for c in kernel(x)] == want


# --- errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "dtype", "options", "text"),
    [
        (1j, "float32", {}, r"^x: complex128 was given; allowed are real numbers"),
        ("a", "float32", {}, r"^x: <U1 was given"),
        (np.array([1], "m8[s]"), "float32", {}, r"^x: timedelta64\[s\] was given"),
        (np.array([1], ml_dtypes.int4), "float32", {}, r"^x: int4 was given"),
        (1 << 70, "float32", {}, r"^x: object was given"),
        (1.0, "int8", {}, r"^dtype: int8 was given; allowed are float64, float32, bfloat16"),
        (1.0, None, {}, r"^dtype: None was given"),
        (1.0, "float8_e8m0fnu", {}, r"^rounding: 'nearest-even' .* allows 'up', 'down', 'nearest'"),
        (1.0, "bfloat16", {"rounding": "up"}, r"^rounding: 'up' .*bfloat16 allows 'nearest-even'"),
        (1.0, "float32", {"rounding": None}, r"^rounding: None was given"),
    ],
)
def test_what_cannot_be_cast_is_named(x, dtype, options, text):
    with pytest.raises(InvalidInput, match=text):
        cast(x, dtype, **options)


def test_torch_tensors_are_cast_to_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 464.0, -0.0, 3.140625], dtype=torch.bfloat16)
    got = cast(x, "float8_e4m3fn", saturate=True)
    assert got.dtype == torch.float8_e4m3fn
    assert got.view(torch.uint8).tolist() == [0x38, 0x7E, 0x80, 0x45]
    assert cast(x, "float32").tolist() == x.tolist()


def test_masked_arrays_are_refused():
    with pytest.raises(InvalidInput, match=r"^x: a masked array was given"):
        cast(np.ma.masked_array([1.0, 2.0], [True, False]), "float32")


def test_no_compiled_cast_where_it_would_be_wrong():
    for source, target in ((FLOAT32, FLOAT8_E8M0FNU), (FLOAT32, FLOAT64)):
        with pytest.raises(TypeError, match="no narrow from"):
            casts.narrow(source, target)


def test_every_format_is_covered():
    assert set(FORMATS.values()) == {*FLOATS, FLOAT8_E8M0FNU, FLOAT32, FLOAT64}
