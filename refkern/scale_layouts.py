"""Where block scales lie in memory: the layouts that GEMM kernels read, and strict conversions.

The logical array is always [rows, groups] (or [row blocks, column blocks]); a layout changes
strides and bytes, never values.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from refkern import arguments
from refkern.casts import widen
from refkern.errors import InvalidInput
from refkern.formats import FLOAT8_E8M0FNU, FLOAT32, find_format, from_codes

Layout = Literal["row-major", "column-major", "tma-aligned", "packed-ue8m0"]
LAYOUTS: tuple[Layout, ...] = ("row-major", "column-major", "tma-aligned", "packed-ue8m0")
#: TMA wants 16 bytes between columns: four float32, or four int32
ALIGNED_ROWS = 4
#: UE8M0 bytes in one int32
PACKED = 4


def to_ue8m0(scales: Any) -> np.ndarray:
    """float32 powers of two as float8_e8m0fnu, exactly.

    scales: any shape, float32 (or float8_e8m0fnu, which comes back).  Raises InvalidInput with the
    first offender unless every one is 2^-127 .. 2^127: a scale that is not a power of two, not
    positive, or NaN or infinity is never rounded or cut silently.
    """
    array = _scales(scales)
    if find_format(array.dtype) is FLOAT8_E8M0FNU:
        return array
    bits = np.ascontiguousarray(array).view(np.uint32)
    field = bits >> np.uint32(23)  # with the sign as its highest bit
    normal = (bits & np.uint32(0x7FFFFF) == 0) & (field >= 1) & (field <= 254)
    lowest = bits == np.uint32(0x00400000)  # 2^-127, byte 0, is a float32 subnormal
    wrong = np.argwhere(~(normal | lowest))
    if len(wrong):
        index = tuple(map(int, wrong[0]))
        raise InvalidInput(
            "scales",
            f"{array[index]!r} at {list(index)}",
            "float32 scales must be powers of two from 2^-127 to 2^127 to become ue8m0",
        )
    return from_codes(np.where(lowest, 0, field).astype(np.uint8), FLOAT8_E8M0FNU)


def pack(scales: Any, layout: Layout) -> np.ndarray:
    """[rows, groups] scales laid out for a kernel.

    "row-major": [rows, groups], strides (groups, 1).
    "column-major": [rows, groups], strides (1, rows).
    "tma-aligned": [rows, groups], strides (1, rows rounded up to 4); what lies between is 0.
    "packed-ue8m0": int32 [rows, ceil(groups / 4)], strides (1, rows rounded up to 4); byte b (from
        the lowest) of word c is the exponent byte of group 4c + b; missing groups and padding rows
        are 0 bytes.  float32 scales must be powers of two (`to_ue8m0`).

    scales: float32 or float8_e8m0fnu.  Raises InvalidInput for anything else.
    """
    array = arguments.of_shape("scales", _scales(scales), axes="rows, groups")
    _check_layout(layout)
    rows, groups = array.shape
    if layout == "row-major":
        return np.ascontiguousarray(array)
    if layout == "column-major":
        return np.asfortranarray(array)
    aligned = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS
    if layout == "tma-aligned":
        padded = np.zeros((groups, aligned), np.dtype(f"u{array.itemsize}"))
        padded[:, :rows] = array.view(padded.dtype).T
        return padded.view(array.dtype).T[:rows]
    words = -(-groups // PACKED)
    exponents = np.zeros((words, aligned, PACKED), np.uint8)
    filled = np.zeros((rows, words * PACKED), np.uint8)
    filled[:, :groups] = to_ue8m0(array).view(np.uint8)
    exponents[:, :rows] = filled.reshape(rows, words, PACKED).transpose(1, 0, 2)
    return exponents.view("<i4")[..., 0].astype(np.int32, copy=False).T[:rows]


def unpack(packed: Any, layout: Layout, *, groups: int) -> np.ndarray:
    """The logical [rows, groups] scales of an array in a layout, in row-major order.

    The inverse of `pack`; "packed-ue8m0" gives float8_e8m0fnu.  Raises InvalidInput if shape,
    dtype or strides are not the layout's: a buffer in another layout has the right shape only.
    Bytes of missing groups are not looked at.
    """
    _check_layout(layout)
    groups = arguments.integer("groups", groups, at_least=0)
    if layout == "packed-ue8m0":
        array = arguments.of_shape(
            "packed", arguments.as_array("packed", packed), axes="rows, words"
        )
        words = -(-groups // PACKED)
        if array.dtype != np.int32 or array.shape[1] != words:
            given = f"{array.dtype} {list(array.shape)}"
            raise InvalidInput("packed", given, f"int32 [rows, {words}] is needed")
        little = np.ascontiguousarray(array).astype("<i4", copy=False)
        exponents = little.view(np.uint8).reshape(len(array), words * PACKED)
        return from_codes(np.ascontiguousarray(exponents[:, :groups]), FLOAT8_E8M0FNU)
    array = arguments.of_shape("packed", _scales(packed), axes="rows, groups", shape=(None, groups))
    rows = len(array)
    aligned = -(-rows // ALIGNED_ROWS) * ALIGNED_ROWS
    want = {
        "row-major": (groups, 1),
        "column-major": (1, rows),
        "tma-aligned": (1, aligned),
    }[layout]
    have = tuple(stride // array.itemsize for stride in array.strides)
    # A stride along an axis of one element is never taken, and may be anything.
    if any(n > 1 and h != w for n, h, w in zip(array.shape, have, want, strict=True)):
        raise InvalidInput("packed", f"strides {have}", f"{layout} has strides {want}")
    return np.ascontiguousarray(array)


def broadcast_blocks(scales: Any, rows: int) -> np.ndarray:
    """[row blocks, groups] -> [rows, groups]: the scale of block r // 128 for every row r.

    DeepGEMM's sm100 weights are laid out so before they are packed.
    """
    array = arguments.of_shape("scales", _scales(scales), axes="row blocks, groups")
    rows = arguments.integer("rows", rows, at_least=0)
    if len(array) != -(-rows // 128):
        raise InvalidInput("scales", f"{len(array)} row blocks", f"{-(-rows // 128)} are needed")
    return array[np.arange(rows) // 128]


def block_scales(packed: Any, *, rows: int, k: int) -> np.ndarray:
    """float32 [ceil(rows / 128), ceil(k / 128)] from packed weight scales.

    The inverse of `broadcast_blocks` and "packed-ue8m0": rows 0, 128, 256, ... are taken.  A byte
    becomes the float32 with that exponent field, so byte 0 is +0 and byte 255 infinity (vLLM's
    `block_scales` as inferred; float8_e8m0fnu itself would read 2^-127 and NaN).
    """
    exponents = unpack(packed, "packed-ue8m0", groups=-(-k // 128))[:rows:128].view(np.uint8)
    return (exponents.astype(np.uint32) << np.uint32(23)).view(np.float32)


def as_float32(scales: np.ndarray) -> np.ndarray:
    """float32 or float8_e8m0fnu scales as float32, exactly; byte 255 is NaN."""
    return widen(np.ascontiguousarray(scales))


def _scales(scales: Any) -> np.ndarray:
    array = arguments.as_array("scales", scales)
    if find_format(array.dtype) not in (FLOAT32, FLOAT8_E8M0FNU):
        raise InvalidInput("scales", array.dtype, "float32 or float8_e8m0fnu is needed")
    return array


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise InvalidInput("layout", repr(layout), f"there are {', '.join(LAYOUTS)}")
