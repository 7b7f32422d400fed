"""A candidate's results from a file: .safetensors, .npz or .h5, tensors by name."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from refkern.goldens import hdf5, safetensors
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import Golden

from refkern.errors import InvalidInput
from refkern.formats import FORMATS, find_format, from_codes

KINDS = (".safetensors", ".npz", ".h5")


def read_results(path: Path, golden: Golden) -> dict[str, np.ndarray]:
    """Outputs and stages by name, in the golden's dtypes where the file cannot say which it is.

    .npz loses narrow floats: unsigned integers, and the opaque bytes that numpy makes of ml_dtypes
    arrays, are taken for bit patterns where the golden has a narrow float of that width.
    """
    if path.suffix not in KINDS:
        raise InvalidInput("RESULT", path.name, f"allowed are {', '.join(KINDS)}")
    if path.suffix == ".safetensors":
        return safetensors.read(path)[0]
    tensors = _read_npz(path) if path.suffix == ".npz" else _read_h5(path)
    return {name: _as_expected(array, name, golden) for name, array in tensors.items()}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        # zipfile, zlib and numpy each have errors of their own for a damaged archive
        raise DamagedFile(path, f"no readable .npz archive: {error}") from None


def _read_h5(path: Path) -> dict[str, np.ndarray]:
    """A golden file's outputs and stages, or the datasets at the root of any other file."""
    if hdf5.is_golden(path):
        read = hdf5.read(path)
        return {**read.stages, **read.outputs}
    try:
        with h5py.File(path, "r") as file:
            return hdf5.read_flat(file, path)
    except OSError as error:
        raise DamagedFile(path, str(error)) from None


def _as_expected(array: np.ndarray, name: str, golden: Golden) -> np.ndarray:
    want = golden.outputs.get(name, golden.stages.get(name))
    fmt = None if want is None else find_format(want.dtype)
    if fmt is None or fmt.bits >= 32 or array.dtype.itemsize * 8 != fmt.bits:
        return array
    if array.dtype.kind == "V" and find_format(array.dtype) is None:
        array = np.ascontiguousarray(array).view(fmt.code_dtype)
    if array.dtype == fmt.code_dtype:
        return from_codes(array, FORMATS[fmt.name])
    return array
