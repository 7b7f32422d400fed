"""Matrices as kernels take them: a flat run of codes and the distance from row to row."""

from __future__ import annotations

import numpy as np

from refkern.formats import codes


def rows_of(matrix: np.ndarray) -> tuple[np.ndarray, int]:
    """[rows, width] in any format -> (codes [..], elements from one row to the next).

    A view, read-only (so that numba compiles one version), where a row's elements are neighbours
    and rows follow each other; a copy where they do not (negative strides, Fortran order).
    """
    rows, width = matrix.shape
    item = matrix.itemsize
    neighbours = matrix.flags.c_contiguous or (
        (width <= 1 or matrix.strides[1] == item)
        and matrix.strides[0] % item == 0
        and matrix.strides[0] >= width * item
    )
    if not (neighbours and matrix.flags.aligned):
        matrix = matrix.copy(order="C")  # also where only the alignment is wrong
    if matrix.flags.c_contiguous:
        flat, stride = codes(matrix).reshape(-1), width
    else:
        stride = matrix.strides[0] // item
        flat = np.lib.stride_tricks.as_strided(
            codes(matrix), ((rows - 1) * stride + width,), (item,), writeable=False
        )
    flat.flags.writeable = False
    return flat, stride


def flat_output(out: np.ndarray) -> np.ndarray:
    """The codes of a contiguous output, writable."""
    return codes(out).reshape(-1)
