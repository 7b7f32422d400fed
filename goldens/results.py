"""A candidate's results from a file: .safetensors, .npz or .h5, tensors by name."""

from __future__ import annotations

import math
from pathlib import Path

import h5py
import numpy as np

from refkern.errors import InvalidInput
from refkern.formats import FORMATS, find_format, from_codes
from refkern.goldens import hdf5, safetensors
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import Golden

KINDS = (".safetensors", ".npz", ".h5")
#: what a result file may hold
MOST_TENSORS = 1000
CLASSES = (h5py.h5t.INTEGER, h5py.h5t.FLOAT, h5py.h5t.OPAQUE)
FILTERS = {h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_FLETCHER32}


Tensors = dict[str, np.ndarray]


def read_results(path: Path, golden: Golden) -> tuple[Tensors, Tensors]:
    """Outputs and stages by name, in the golden's dtypes where the file cannot say which it is.

    .npz loses narrow floats: unsigned integers, and the opaque bytes that numpy makes of ml_dtypes
    arrays, are taken for bit patterns where the golden has a narrow float of that width.
    """
    if path.suffix not in KINDS:
        raise InvalidInput("RESULT", path.name, f"allowed are {', '.join(KINDS)}")
    if path.suffix == ".safetensors":
        tensors = safetensors.read(path)[0]
    else:
        read = _read_npz(path) if path.suffix == ".npz" else _read_h5(path)
        tensors = {name: _as_expected(array, name, golden) for name, array in read.items()}
    outputs = {name: array for name, array in tensors.items() if name in golden.outputs}
    return outputs, {name: array for name, array in tensors.items() if name not in outputs}


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            declared = sum(member.file_size for member in archive.zip.infolist())
            if declared > hdf5.BYTE_BUDGET:
                raise ValueError(f"it declares {declared} bytes: more than is read")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        # zipfile, zlib and numpy each have errors of their own for a damaged archive
        raise DamagedFile(path, f"no readable .npz archive: {error}") from None


def _read_h5(path: Path) -> dict[str, np.ndarray]:
    """A golden file's outputs and stages, or the datasets at the root of any other file."""
    if not path.is_file():
        path.stat()  # raises where nothing is there
        raise DamagedFile(path, "is not a regular file")
    try:
        with h5py.File(path, "r", locking=False) as file:
            if "format" not in file.attrs:
                return _read_root(file, path)
    except DamagedFile:
        raise
    except Exception as error:  # h5py answers a damaged file with errors of a dozen types
        raise DamagedFile(path, f"cannot be read: {error}") from None
    read = hdf5.read(path)
    return {**read.stages, **read.outputs}


def _read_root(file: h5py.File, path: Path) -> dict[str, np.ndarray]:
    """Every dataset at the root; all declarations are looked at before anything is read."""
    if len(file) > MOST_TENSORS:
        raise DamagedFile(path, f"holds more than {MOST_TENSORS} tensors")
    found = {}
    for name in file:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise DamagedFile(path, "is not a hard link", name)
        dataset = file[name]
        if not isinstance(dataset, h5py.Dataset):
            raise DamagedFile(path, "is not a dataset: tensors lie at the root, by name", name)
        properties = dataset.id.get_create_plist()
        if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise DamagedFile(path, "has its data elsewhere", name)
        filters = {properties.get_filter(n)[0] for n in range(properties.get_nfilters())}
        if not filters <= FILTERS:
            raise DamagedFile(path, f"has the filters {sorted(filters)}", name)
        if dataset.shape is None or dataset.id.get_type().get_class() not in CLASSES:
            raise DamagedFile(path, "holds no array of numbers", name)
        found[name] = dataset
    declared = sum(
        max(d.nbytes, math.prod(d.chunks or (0,)) * d.dtype.itemsize) for d in found.values()
    )
    if declared > hdf5.BYTE_BUDGET:
        raise DamagedFile(path, f"declares {declared} bytes of data: more than is read")
    return {name: dataset[()] for name, dataset in found.items()}


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
