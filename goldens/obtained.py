"""What a failed kernel gave, kept as CASE.obtained.h5 for `refkern explain`."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import h5py
import numpy as np

from refkern.goldens.atomic import replacing
from refkern.goldens.golden import DTYPES, encode
from refkern.goldens.selection import OBTAINED


def write(
    arrays: Mapping[str, np.ndarray], golden: Path, elsewhere: Callable[[], Path]
) -> Path | None:
    """Write tensors by name beside ``golden``, or into ``elsewhere`` where that is read-only.

    Narrow floats are bit patterns with the attribute ``dtype``, as in a golden file; a tensor of a
    dtype that files do not hold is left out.  None where nothing can be written at all.
    """
    image = _image(arrays)
    for folder in (lambda: golden.parent, elsewhere):
        path = folder() / (golden.stem + OBTAINED)
        try:
            with replacing(path) as file:
                file.write(image)
        except OSError:
            continue
        return path
    return None


def _image(arrays: Mapping[str, np.ndarray]) -> bytes:
    with h5py.File(secrets.token_hex(16), "w", driver="core", backing_store=False) as file:
        for name in sorted(arrays):
            array = arrays[name]
            if array.dtype.name in DTYPES and "/" not in name and name not in ("", os.curdir):
                file.create_dataset(name, data=encode(array)).attrs["dtype"] = array.dtype.name
        file.flush()
        return bytes(file.id.get_file_image())
