"""Safetensors files: an own small writer, whose bytes are stable, and a strict reader.

Layout: the header's length as 8 little-endian bytes, the header as JSON, the tensors' bytes.
"""

from __future__ import annotations

import io
import math
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO, NoReturn

import ml_dtypes
import numpy as np

from refkern.errors import InvalidInput
from refkern.goldens.atomic import replacing
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import canonical_json, carrier, data_bytes, decode, parse_json

#: the format's names
CODES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U64": np.dtype(np.uint64),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_CODE_OF = {dtype.name: code for code, dtype in CODES.items()}
_METADATA = "__metadata__"
#: the header is padded with spaces so that the data starts at a multiple of this
_ALIGNMENT = 8
#: as in the format's own library
_LONGEST_HEADER = 100_000_000


def write(
    path_or_file: str | os.PathLike[str] | BinaryIO,
    tensors: Mapping[str, np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors; the same tensors and metadata give the same bytes.

    A path is replaced whole or not at all; a binary file is written to.  Raises `InvalidInput` for
    what the format cannot hold.
    """
    if hasattr(path_or_file, "write"):
        _write(path_or_file, tensors, metadata or {})
        return
    # Complete before the disk is touched, so that a refused tensor leaves nothing behind.
    whole = io.BytesIO()
    _write(whole, tensors, metadata or {})
    with replacing(path_or_file) as file:
        file.write(whole.getbuffer())


def _write(file: Any, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    header: dict[str, Any] = {_METADATA: _checked(metadata)} if metadata else {}
    # Wide items first: every tensor is aligned for its type, as typed arrays of a mapped file need
    order = sorted(tensors, key=lambda name: (-_item_size(name, tensors[name]), name))
    end = 0
    for name in order:
        begin, end = end, end + tensors[name].size * tensors[name].dtype.itemsize
        header[name] = {
            "dtype": _CODE_OF[tensors[name].dtype.name],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = canonical_json(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > _LONGEST_HEADER:
        raise InvalidInput(
            "tensors", f"a header of {len(text)} bytes", f"allowed: {_LONGEST_HEADER}"
        )
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for name in order:
        file.write(_bytes(tensors[name]))


def _checked(metadata: Mapping[str, str]) -> dict[str, str]:
    for text in (*metadata.keys(), *metadata.values()):
        if not _is_unicode(text):
            raise InvalidInput("metadata", ascii(text), "allowed are texts by texts")
    return dict(metadata)


def _item_size(name: str, array: np.ndarray) -> int:
    if name == _METADATA or not _is_unicode(name):
        raise InvalidInput("tensors", ascii(name), "the name is reserved or not Unicode text")
    if array.dtype.name not in _CODE_OF:
        allowed = ", ".join(_CODE_OF)
        raise InvalidInput(f"tensors[{name!r}]", array.dtype, f"allowed are {allowed}")
    return array.dtype.itemsize


def _is_unicode(text: object) -> bool:
    return isinstance(text, str) and not re.search("[\ud800-\udfff]", text)


def _bytes(array: np.ndarray) -> memoryview:
    return data_bytes(array.view(np.uint8) if array.dtype == np.bool_ else array)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors, in the order of their bytes, and the metadata.

    Raises `DamagedFile` unless the tensors cover the data exactly, without overlap or hole, and
    the header holds what the format defines and nothing else.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise DamagedFile(path, "is not a regular file")
    with open(path, "rb") as file:
        return _Reader(path, file).tensors()


class _Reader:
    def __init__(self, path: str | os.PathLike[str], file: BinaryIO) -> None:
        self.path = path
        self.file = file

    def damaged(self, what: str, tensor: str | None = None) -> NoReturn:
        raise DamagedFile(self.path, what, tensor)

    def tensors(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        header, data_size = self._header()
        metadata = header.pop(_METADATA, {})
        if not isinstance(metadata, dict) or not all(map(_is_unicode, metadata.values())):
            self.damaged(f"{_METADATA} is not an object of texts")
        entries = [(name, *self._entry(name, entry)) for name, entry in header.items()]
        end = 0
        # A tensor without elements may lie between two others; it comes before what begins there.
        for name, _, _, (begin, finish) in sorted(entries, key=lambda entry: (entry[3], entry[0])):
            if begin != end:
                kind = "overlaps the one before" if begin < end else "leaves a hole before"
                self.damaged(f"{kind}: begins at {begin}, expected was {end}", name)
            end = finish
        if end != data_size:
            kind = "is truncated" if end > data_size else "has bytes behind the last tensor"
            self.damaged(f"{kind}: {data_size} bytes of data, the header describes {end}")
        # Only now is anything allocated: what the header declares is what the file holds.
        entries.sort(key=lambda entry: (entry[3], entry[0]))
        return {name: self._data(name, dt, shape) for name, dt, shape, _ in entries}, metadata

    def _header(self) -> tuple[dict[str, Any], int]:
        size = os.fstat(self.file.fileno()).st_size
        if size < 8:
            self.damaged(f"is truncated: {size} bytes, the header's length alone takes 8")
        length = int.from_bytes(self.file.read(8), "little")
        if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
            self.damaged(f"declares a header of {length} bytes in a file of {size}")
        text = self.file.read(length)
        if not text.startswith(b"{"):
            self.damaged("has a header that does not start with '{'")
        try:
            header = parse_json(text.decode())
        except ValueError as error:
            self.damaged(f"has a header that is not JSON: {error}")
        if not isinstance(header, dict):
            self.damaged("has a header that is not a JSON object")
        if not all(map(_is_unicode, header)):
            self.damaged("has a tensor whose name is not Unicode text")
        return header, size - 8 - length

    def _entry(self, name: str, entry: Any) -> tuple[np.dtype, list[int], tuple[int, int]]:
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            self.damaged("needs dtype, shape and data_offsets, and nothing else", name)
        dtype = CODES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
        if dtype is None:
            self.damaged(f"has the dtype {entry['dtype']!r}; known are {', '.join(CODES)}", name)
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            self.damaged("has a shape or offsets that are not lists of sizes", name)
        begin, end = offsets
        needed = math.prod(shape) * dtype.itemsize
        if end - begin != needed:
            self.damaged(f"has {end - begin} bytes, {dtype} {shape} takes {needed}", name)
        return dtype, shape, (begin, end)

    def _data(self, name: str, dtype: np.dtype, shape: list[int]) -> np.ndarray:
        held = np.dtype(np.uint8) if dtype == np.bool_ else carrier(dtype.name)
        try:
            array = np.empty(shape, held.newbyteorder("<"))
        except ValueError as error:  # too many axes, or an empty array with one too long
            self.damaged(f"has the shape {shape}: {error}", name)
        target = array.reshape(-1).view(np.uint8)
        if self.file.readinto(target.data) != target.size:  # type: ignore[attr-defined]
            self.damaged("is truncated", name)
        if dtype != np.bool_:
            return decode(array, dtype.name)
        if (array > 1).any():
            self.damaged("has a BOOL that is neither 0 nor 1", name)
        return array.view(np.bool_)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
