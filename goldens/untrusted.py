"""Reading HDF5 files that may be damaged or hostile: the steps that are safe one by one.

Nothing here knows what a golden is.  `open_untrusted` gives a file; its methods check what an
object declares before anything of it is read.
"""

from __future__ import annotations

import math
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import h5py
import numpy as np

from refkern.goldens.attribute_texts import AttributeTexts
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import DTYPES, LONGEST_TEXT, decode

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: links and attributes of one file: more than any golden has; a hostile file may have millions
_MOST_OBJECTS = 1 << 15
_MOST_CHUNKS = 1 << 16
#: declared bytes per byte of the file: about what deflate can reach
_LARGEST_EXPANSION = 1000

_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
_LINK_KINDS = {h5py.SoftLink: "a soft link", h5py.ExternalLink: "an external link"}
_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
_FILTERS = {_DEFLATE, _SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
_CLASSES = {
    h5py.h5t.INTEGER: "integer",
    h5py.h5t.FLOAT: "float",
    h5py.h5t.STRING: "string",
    h5py.h5t.BITFIELD: "bitfield",
    h5py.h5t.OPAQUE: "opaque",
    h5py.h5t.COMPOUND: "compound",
    h5py.h5t.REFERENCE: "reference",
    h5py.h5t.ENUM: "enum",
    h5py.h5t.VLEN: "variable-length",
    h5py.h5t.ARRAY: "array",
}
#: what numpy and HDF5 have in common
_PLAIN = [np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8")]
_PLAIN += [np.dtype(kind) for kind in ("u1", "u2", "u4", "u8")]


def _file_types(held: np.dtype) -> list[Any]:
    """The HDF5 types, little- and big-endian, that hold a numpy dtype."""
    kind = {"f": "IEEE_F", "i": "STD_I", "u": "STD_U"}[held.kind]
    return [getattr(h5py.h5t, f"{kind}{held.itemsize * 8}{order}") for order in ("LE", "BE")]


@dataclass(frozen=True)
class Declared:
    """A dataset whose declaration was found right; nothing of it is read yet."""

    path: str
    dataset: Any
    #: what the values are: a name in `DTYPES`
    dtype: str
    #: what the dataset holds: the dtype or its `carrier`
    held: np.dtype
    attributes: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.shape)

    @property
    def bytes(self) -> int:
        """The most that the values take: all of them, or the one chunk that holds them."""
        chunk = math.prod(self.dataset.chunks or (0,))
        return max(math.prod(self.shape), chunk) * self.held.itemsize


@contextmanager
def open_untrusted(path: str | os.PathLike[str]) -> Iterator[UntrustedFile]:
    """Open a file to read it.

    Within the block every error of h5py becomes `DamagedFile`; FileNotFoundError and
    PermissionError stay what they are.
    """
    size = _plain_file_size(path)
    try:
        # Without HDF5's lock, which read-only media may not give.
        with open(path, "rb") as raw, h5py.File(path, "r", locking=False) as file:
            yield UntrustedFile(path, file, size, AttributeTexts(raw, LONGEST_TEXT))
    except (DamagedFile, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # h5py answers a damaged file with errors of a dozen types
        raise DamagedFile(path, _reason(error)) from error


def _plain_file_size(path: str | os.PathLike[str]) -> int:
    """The size of a file that starts as HDF5 does; a device or a pipe is not opened at all."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise DamagedFile(path, "is not a regular file")
    with open(path, "rb") as file:
        start = file.read(len(_SIGNATURE))
    if not start:
        raise DamagedFile(path, "is empty (file signature not found)")
    if start != _SIGNATURE:
        raise DamagedFile(path, "is not an HDF5 file (file signature not found)")
    return status.st_size


def _reason(error: Exception) -> str:
    """HDF5's own words, which h5py puts into brackets behind what it was doing."""
    text = str(error) or type(error).__name__
    inner = re.search(r"\((.+)\)", text.splitlines()[0])
    return inner.group(1) if inner else text


class UntrustedFile:
    """An open file.  ``where`` and ``path`` are what a `DamagedFile` names."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        file: Any,
        size: int,
        texts: AttributeTexts | None = None,
    ) -> None:
        self.path = path
        self.root = file
        self._size = size
        self._texts = texts
        self._objects = 0

    def damaged(self, what: str, where: str | None = None) -> NoReturn:
        raise DamagedFile(self.path, what, where)

    def _count(self, objects: int, where: str) -> None:
        self._objects += objects
        if self._objects > _MOST_OBJECTS:
            self.damaged(f"holds more than {_MOST_OBJECTS} objects and attributes", where)

    def children(self, group: Any, where: str = "") -> Iterator[tuple[str, str, Any]]:
        """Name, path and object of everything in a group: hard links only, one step down."""
        self._count(len(group), where or "/")
        for name in group:
            path = f"{where}/{name}".lstrip("/")
            if not _NAME.fullmatch(name):
                self.damaged("is not a name that is allowed", path)
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                kind = _LINK_KINDS.get(type(link), "a link of an unknown kind")
                self.damaged(f"is {kind}, only hard links are allowed", path)
            yield name, path, group[name]

    def attributes(self, target: Any, where: str) -> dict[str, str | int]:
        """Every attribute of an object: short texts and integers, nothing else."""
        try:
            if self._texts is not None:
                self._texts.check(h5py.h5o.get_info(target.id).addr)
        except ValueError as error:
            self.damaged(str(error), where)
        self._count(h5py.h5a.get_num_attrs(target.id), where)
        return {name: self._attribute(target, name, where) for name in target.attrs}

    def _attribute(self, target: Any, name: str, where: str) -> str | int:
        attribute = target.attrs.get_id(name)
        kind = attribute.get_type().get_class()
        scalar = attribute.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
        if not scalar or kind not in (h5py.h5t.STRING, h5py.h5t.INTEGER):
            self.damaged(f"the attribute {name} is neither a text nor an integer", where)
        value = target.attrs[name]
        if kind == h5py.h5t.INTEGER:
            return int(value)
        try:
            # h5py keeps what is not UTF-8 as surrogates, which do not encode again
            raw = value.encode() if isinstance(value, str) else bytes(value)
            text = raw.decode()
        except UnicodeError:
            self.damaged(f"the attribute {name} is not UTF-8", where)
        if len(raw) > LONGEST_TEXT:
            self.damaged(f"the attribute {name} is too long", where)
        return text

    def dataset(self, target: Any, path: str) -> Any:
        """The object, if it is a dataset with a shape, stored in this file behind known filters."""
        if not isinstance(target, h5py.Dataset):
            self.damaged("is not a dataset", path)
        if target.id.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            self.damaged("has no shape", path)
        properties = target.id.get_create_plist()
        if properties.get_layout() == h5py.h5d.VIRTUAL:
            self.damaged("is a virtual dataset", path)
        if properties.get_external_count():
            self.damaged("has external storage", path)
        filters = _filters(target)
        # Each at most once; shuffle first, so that what is inflated is what was stored.
        known = len(set(filters)) == len(filters) and set(filters) <= _FILTERS
        if not known or _SHUFFLE in filters[1:]:
            self.damaged(
                f"has the filters {filters}; allowed are shuffle, deflate and fletcher32", path
            )
        return target

    def check_type(self, dataset: Any, held: np.dtype, why: str, path: str) -> None:
        """The dataset has the plain HDF5 type of ``held``, in either byte order."""
        found = dataset.id.get_type()
        if found.committed():
            self.damaged("has a named datatype", path)
        if not any(found.equal(allowed) for allowed in _file_types(held)):
            kind = _CLASSES.get(found.get_class(), "unknown")
            given = f"a {found.get_size() * 8}-bit {kind} type"
            self.damaged(f"is stored as {given}, {why} is stored as {held}", path)

    def plain_type(self, dataset: Any, path: str) -> np.dtype:
        """The numpy dtype of a dataset of plain floats or integers."""
        kind = dataset.id.get_type()
        found = [held for held in _PLAIN if any(kind.equal(each) for each in _file_types(held))]
        if not found:
            given = _CLASSES.get(kind.get_class(), "unknown")
            self.damaged(f"has a type of the class {given}, allowed are floats and integers", path)
        return found[0]

    def check_bytes(self, declared: Iterable[Declared], byte_budget: int, further: int = 0) -> None:
        """Refuse a file whose datasets (and ``further``) would take more memory than is granted."""
        total = sum(found.bytes for found in declared)
        if total + further > byte_budget:
            self.damaged(f"declares {total + further} bytes of data, the budget is {byte_budget}")
        if total > self._size * _LARGEST_EXPANSION:
            self.damaged(
                f"declares {total} bytes of data in a file of {self._size}: "
                f"more than {_LARGEST_EXPANSION} times its size"
            )

    def values(self, declared: Declared) -> np.ndarray:
        """The values of a dataset, in the machine's byte order."""
        try:
            self._check_chunks(declared)
            array = np.empty(declared.shape, declared.held)
            if array.size:
                # HDF5 swaps bytes where it must; apart from that nothing is converted.
                declared.dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        except (OSError, RuntimeError, ValueError) as error:
            self.damaged(f"cannot be read: {_reason(error)}", declared.path)
        return array if array.dtype == DTYPES[declared.dtype] else decode(array, declared.dtype)

    def _check_chunks(self, declared: Declared) -> None:
        """Inflate each chunk under a limit: HDF5 itself inflates whatever it is given."""
        dataset, path = declared.dataset, declared.path
        if dataset.chunks is None or not dataset.size:
            return
        steps = zip(declared.shape, dataset.chunks, strict=True)
        number = math.prod(-(-length // step) for length, step in steps)
        if number > _MOST_CHUNKS:
            self.damaged(f"has {number} chunks, allowed are {_MOST_CHUNKS}", path)
        filters = _filters(dataset)
        # fletcher32 adds four bytes, before deflate or behind it
        limit = math.prod(dataset.chunks) * declared.held.itemsize + 4
        chunks: list[Any] = []
        dataset.id.chunk_iter(chunks.append)
        for chunk in chunks:
            if chunk.size > self._size:
                self.damaged("has a chunk that is larger than the file", path)
            if _DEFLATE not in filters or chunk.filter_mask >> filters.index(_DEFLATE) & 1:
                continue
            _, deflated = dataset.id.read_direct_chunk(chunk.chunk_offset)
            try:
                inflated = zlib.decompressobj().decompress(deflated, limit + 1)
            except zlib.error as error:
                self.damaged(f"cannot be inflated: {error}", path)
            if len(inflated) > limit:
                self.damaged("has a chunk that inflates beyond its size", path)


def _filters(dataset: Any) -> list[int]:
    properties = dataset.id.get_create_plist()
    return [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
