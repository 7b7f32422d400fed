"""The number formats as data: one literal each.

A *code* is the bit pattern of a value, held in an unsigned integer of the format's width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from refkern.errors import InvalidInput


@dataclass(frozen=True, eq=False)  # one object a format: compared by identity, hashed fast
class Format:
    """A binary floating-point format.

    A positive finite code is ``exponent field << mantissa_bits | mantissa field``, so codes of one
    sign are ordered as their values are: rounding may carry from one field into the next.
    """

    name: str
    bits: int
    mantissa_bits: int
    bias: int
    #: code of the largest finite value
    max_finite: int
    #: code of +infinity; None where the format has no infinity
    infinity: int | None
    #: the canonical NaN: the only NaN that a stage or an output holds
    nan: int
    #: e8m0 has neither a sign nor a zero nor subnormals: a code is an exponent alone
    scale_only: bool = False

    @property
    def sign(self) -> int:
        """The sign bit; 0 where the format has none."""
        return 0 if self.scale_only else 1 << (self.bits - 1)

    @property
    def magnitude(self) -> int:
        """The mask of everything but the sign."""
        return (1 << self.bits) - 1 - self.sign

    @property
    def min_exponent(self) -> int:
        """The exponent of the smallest normal value (and of the subnormals)."""
        return (0 if self.scale_only else 1) - self.bias

    @property
    def overflow(self) -> int:
        """What overflow gives where it does not saturate: infinity, or NaN without one."""
        return self.nan if self.infinity is None else self.infinity

    @property
    def exact_in_float32(self) -> bool:
        return self.bits < 32

    @cached_property
    def code_dtype(self) -> np.dtype:
        return np.dtype(f"u{self.bits // 8}")

    @cached_property
    def dtype(self) -> np.dtype:
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    def __str__(self) -> str:
        return self.name


# fmt: off
FLOAT64 = Format("float64", 64, 52, 1023, 0x7FEF_FFFF_FFFF_FFFF, 0x7FF0 << 48, 0x7FF8 << 48)
FLOAT32 = Format("float32", 32, 23, 127, 0x7F7FFFFF, 0x7F800000, 0x7FC00000)
BFLOAT16 = Format("bfloat16", 16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0)
FLOAT16 = Format("float16", 16, 10, 15, 0x7BFF, 0x7C00, 0x7E00)
FLOAT8_E4M3FN = Format("float8_e4m3fn", 8, 3, 7, 0x7E, None, 0x7F)
FLOAT8_E5M2 = Format("float8_e5m2", 8, 2, 15, 0x7B, 0x7C, 0x7E)
FLOAT8_E8M0FNU = Format("float8_e8m0fnu", 8, 0, 127, 0xFE, None, 0xFF, scale_only=True)
# fmt: on

#: every format narrower than float32
NARROW = (BFLOAT16, FLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT8_E8M0FNU)
FORMATS = {f.name: f for f in (FLOAT64, FLOAT32, *NARROW)}
_BY_DTYPE = {f.dtype: f for f in FORMATS.values()}


def find_format(dtype: object) -> Format | None:
    """The format of a numpy dtype, a format's name or a `Format`; None for any other type."""
    if isinstance(dtype, np.dtype) and dtype in _BY_DTYPE:
        return _BY_DTYPE[dtype]
    if isinstance(dtype, Format):
        return dtype
    if isinstance(dtype, str) and dtype in FORMATS:
        return FORMATS[dtype]
    if dtype is None:  # np.dtype(None) would be float64
        return None
    try:
        return _BY_DTYPE.get(np.dtype(dtype).newbyteorder("="))  # type: ignore[call-overload]
    except (SyntaxError, TypeError, ValueError):
        return None


def format_of(dtype: object, argument: str = "dtype") -> Format:
    """As `find_format`, but an unknown type is `InvalidInput` that names the argument."""
    found = find_format(dtype)
    if found is None:
        raise InvalidInput(argument, dtype, f"allowed are {', '.join(FORMATS)}")
    return found


def codes(values: np.ndarray) -> np.ndarray:
    """The bit patterns of an array in one of the formats: a view, without a copy."""
    return values.view(format_of(values.dtype).code_dtype)


def from_codes(bits: np.ndarray, fmt: Format) -> np.ndarray:
    """The array in ``fmt`` that has these bit patterns: a view, without a copy."""
    return bits.view(fmt.dtype)
