"""What an NVIDIA H200 returned, as the tests compare it."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np

DATA = Path(__file__).parents[1] / "data"
DTYPES = {
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f16acc": np.dtype(np.float16),
    "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
}


def load(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"{name}.npz") as file:
        return dict(file)


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def mismatches(got: np.ndarray, want: np.ndarray) -> int:
    """How many elements have other bits, NaN included."""
    assert got.shape == want.shape
    return int((bits(got) != bits(want)).sum())


def mismatches_but_nan(got: np.ndarray, want: np.ndarray) -> int:
    """The same, but every NaN equals every other: an op stores its canonical one."""
    want = want.view(got.dtype).reshape(got.shape)
    nan = np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    return int(((bits(got) != bits(want)) & ~nan).sum())
