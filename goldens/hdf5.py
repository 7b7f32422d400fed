"""Golden files: writing them whole and reproducibly, and reading them without trusting them.

The layout is in docs/format.md.  Narrow floats are stored as bit patterns: HDF5's own narrow types
convert wrongly, and h5py loses ml_dtypes' types.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
from refkern.goldens.atomic import replacing
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import (
    DTYPES,
    LONGEST_TEXT,
    Accept,
    Golden,
    accept_sha256,
    accept_tensors,
    canonical_json,
    carrier,
    check,
    content_sha256,
    content_tensors,
    decode,
    encode,
    parse_json,
    tensor_sha256,
)

from refkern.errors import InvalidInput

FORMAT = "refkern-golden"
FORMAT_VERSION = 1
#: how many bytes the datasets of a file may declare, unless `read` is told otherwise
BYTE_BUDGET = 2 << 30

_GROUPS = ("inputs", "stages", "outputs", "accept", "mutants", "provenance")
_LABELS = ("op", "case", "tier", "recipe")
_ROOT_TEXTS = (*_LABELS, "format", "params", "shapes", "content_sha256", "accept_sha256")
_DATASET_ATTRIBUTES = {
    "inputs": {"dtype", "sha256", "axes", "row_stride"},
    "stages": {"dtype", "sha256", "axes"},
    "outputs": {"dtype", "sha256", "axes"},
    "accept": {"dtype", "sha256"},
    "sampled_rows": {"dtype", "sha256"},
}
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: more than any golden has; a hostile file may have millions
_MOST_OBJECTS = 1 << 15
_MOST_CHUNKS = 1 << 16
#: declared bytes per byte of the file: about what deflate can reach
_LARGEST_EXPANSION = 1000

_LINK_KINDS = {h5py.SoftLink: "a soft link", h5py.ExternalLink: "an external link"}
_DEFLATE = h5py.h5z.FILTER_DEFLATE
_FILTERS = (h5py.h5z.FILTER_SHUFFLE, _DEFLATE, h5py.h5z.FILTER_FLETCHER32)
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


def _file_types(name: str) -> tuple[Any, Any]:
    """The HDF5 types, in both byte orders, that may carry the dtype ``name``."""
    held = carrier(name)
    kind = {"f": "IEEE_F", "i": "STD_I", "u": "STD_U"}[held.kind]
    both = (getattr(h5py.h5t, f"{kind}{held.itemsize * 8}{order}") for order in ("LE", "BE"))
    little, big = both
    return little, big


_FILE_TYPES = {name: _file_types(name) for name in DTYPES}


def write(golden: Golden, path: str | os.PathLike[str]) -> None:
    """Write one golden file; one h5py version gives the same bytes each time.

    Killed at any moment, the old file or nothing is at ``path``.  Raises `InvalidInput` for a
    golden that a file cannot hold.
    """
    check(golden)
    image = _image(golden)
    with replacing(path) as file:
        file.write(image)


def _image(golden: Golden) -> bytes:
    """The bytes of the file.  Built in memory: what reaches the disk is one plain write."""
    tensors = content_tensors(golden) | accept_tensors(golden)
    root: dict[str, Any] = {
        **{label: getattr(golden, label) for label in _LABELS},
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "params": canonical_json(golden.params),
        "shapes": canonical_json({path: list(array.shape) for path, array in tensors.items()}),
        "content_sha256": content_sha256(golden),
        "accept_sha256": accept_sha256(golden),
    }
    if golden.input_recipe is not None:
        root["input_recipe"] = golden.input_recipe
    if len(root["shapes"]) > LONGEST_TEXT:
        raise InvalidInput("golden", f"{len(tensors)} tensors", "a file cannot hold so many")
    # HDF5 takes two open in-memory files of one name for the same file.
    name = secrets.token_hex(16)
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        _set_attributes(file, root)
        for group in sorted(_GROUPS):
            file.create_group(group)
        for path in sorted(tensors):
            dataset = file.create_dataset(path, data=encode(tensors[path]))
            _set_attributes(dataset, _dataset_attributes(golden, path, tensors[path]))
        rejected = {policy: canonical_json(names) for policy, names in golden.mutants.items()}
        _set_attributes(file["mutants"], rejected)
        _set_attributes(file["provenance"], golden.provenance)
        file.flush()
        return bytes(file.id.get_file_image())


def _dataset_attributes(golden: Golden, path: str, array: np.ndarray) -> dict[str, Any]:
    group, name = _split(path)
    attributes: dict[str, Any] = {
        "dtype": array.dtype.name,
        "sha256": tensor_sha256(path, array),
    }
    if name in golden.axes and "axes" in _DATASET_ATTRIBUTES[group]:
        attributes["axes"] = golden.axes[name]
    if group == "inputs" and name in golden.row_strides:
        attributes["row_stride"] = golden.row_strides[name]
    return attributes


def _split(path: str) -> tuple[str, str]:
    """The group and the tensor's own name: ("stages", "silu") of stages/03_silu."""
    group, _, name = path.partition("/")
    return group, name[3:] if group == "stages" else name


def _set_attributes(target: Any, attributes: Mapping[str, Any]) -> None:
    # HDF5's bytes depend on the order of creation.
    for name in sorted(attributes):
        target.attrs[name] = attributes[name]


def read(path: str | os.PathLike[str], *, byte_budget: int = BYTE_BUDGET) -> Golden:
    """Read one golden file, and trust nothing in it.

    Raises `DamagedFile` for everything that is wrong with the file, FileNotFoundError and
    PermissionError as they are.  Nothing is read before all that the file declares fits into
    ``byte_budget``.
    """
    size = _plain_file_size(path)
    try:
        # Without a lock, which read-only media may not give.
        with h5py.File(path, "r", locking=False) as file:
            return _Reader(path, file, size, byte_budget).golden()
    except (DamagedFile, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # h5py answers a damaged file with errors of a dozen types
        raise DamagedFile(path, _reason(error)) from error


def _plain_file_size(path: str | os.PathLike[str]) -> int:
    """The size of a file that starts like HDF5; a device or a pipe is not opened at all."""
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


@dataclass(frozen=True)
class _Stored:
    """A dataset whose declaration was found right; nothing of it is read yet."""

    path: str
    dataset: Any
    dtype: str
    attributes: Mapping[str, str | int]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.dataset.shape)

    @property
    def declared_bytes(self) -> int:
        """The most that reading it allocates at a time, or a backend with its row stride."""
        item = DTYPES[self.dtype].itemsize
        most = [math.prod(self.shape), math.prod(self.dataset.chunks or (0,))]
        stride = self.attributes.get("row_stride")
        if isinstance(stride, int) and self.shape:
            most.append(self.shape[0] * stride)
        return max(most) * item


class _Reader:
    """Reads one open file: first everything that is declared, then the data, then the hashes."""

    def __init__(
        self, path: str | os.PathLike[str], file: Any, size: int, byte_budget: int
    ) -> None:
        self.path = Path(path)
        self.file = file
        self.size = size
        self.byte_budget = byte_budget
        self.objects = 0
        self.texts: dict[str, dict[str, str | int]] = {"mutants": {}, "provenance": {}}
        self.policies: list[str] = []

    def damaged(self, what: str, where: str | None = None) -> NoReturn:
        raise DamagedFile(self.path, what, where)

    def golden(self) -> Golden:
        root = self._root_attributes()
        stored = {found.path: found for found in self._datasets()}
        self._check_shapes(root, stored)
        self._check_declared_bytes(stored)
        arrays = {path: self._data(found) for path, found in stored.items()}
        golden = self._assembled(root, stored, arrays)
        try:
            check(golden)
        except InvalidInput as error:
            self.damaged(str(error))
        for name, recomputed in (
            ("content_sha256", content_sha256(golden)),
            ("accept_sha256", accept_sha256(golden)),
        ):
            if root[name] != recomputed:
                self.damaged(f"{name} is {root[name]}, recomputed it is {recomputed}")
        return golden

    # what the file declares

    def _root_attributes(self) -> dict[str, Any]:
        found = self._attributes(self.file, "/")
        if found.get("format") != FORMAT:
            self.damaged(f'is not a golden file (the attribute format is not "{FORMAT}")')
        version = found.pop("format_version", None)
        if version != FORMAT_VERSION or isinstance(version, str):
            self.damaged(f"format_version is {version!r}, this reader knows {FORMAT_VERSION}")
        self._check_texts(found, {*_ROOT_TEXTS, "input_recipe"}, set(_ROOT_TEXTS), None)
        return found

    def _check_texts(
        self,
        found: Mapping[str, str | int],
        allowed: set[str],
        required: set[str],
        where: str | None,
    ) -> None:
        for name in sorted(required - set(found)):
            self.damaged(f"the attribute {name} is missing", where)
        for name, value in found.items():
            if name not in allowed:
                self.damaged(f"the attribute {name} is unknown", where)
            if not isinstance(value, str):
                self.damaged(f"the attribute {name} is not text", where)

    def _attributes(self, target: Any, where: str) -> dict[str, str | int]:
        """Every attribute of an object: short texts and integers, nothing else."""
        self._count(h5py.h5a.get_num_attrs(target.id), where)
        found: dict[str, str | int] = {}
        for name in target.attrs:
            attribute = target.attrs.get_id(name)
            kind = attribute.get_type()
            scalar = attribute.get_space().get_simple_extent_type() == h5py.h5s.SCALAR
            if not scalar or kind.get_class() not in (h5py.h5t.STRING, h5py.h5t.INTEGER):
                self.damaged(f"the attribute {name} is neither a text nor an integer", where)
            if attribute.get_storage_size() > LONGEST_TEXT:
                self.damaged(f"the attribute {name} is too long", where)
            value = target.attrs[name]
            if kind.get_class() == h5py.h5t.INTEGER:
                found[name] = int(value)
                continue
            text = value if isinstance(value, str) else bytes(value).decode()
            # h5py keeps bytes that are not UTF-8 as surrogates, which do not encode again
            if len(text.encode()) > LONGEST_TEXT:
                self.damaged(f"the attribute {name} is too long", where)
            found[name] = text
        return found

    def _count(self, objects: int, where: str) -> None:
        self.objects += objects
        if self.objects > _MOST_OBJECTS:
            self.damaged(f"holds more than {_MOST_OBJECTS} objects and attributes", where)

    def _children(self, group: Any, where: str) -> Iterator[tuple[str, str, Any]]:
        """Name, path and object of everything in a group: hard links only, one step down."""
        self._count(len(group), where or "/")
        for name in group:
            path = f"{where}/{name}".lstrip("/")
            if not re.fullmatch(r"[A-Za-z0-9_.+-]+", name):
                self.damaged("is not a name that a golden has", path)
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                kind = _LINK_KINDS.get(type(link), "a link of an unknown kind")
                self.damaged(f"is {kind}, only hard links are allowed", path)
            yield name, path, group[name]

    def _datasets(self) -> Iterator[_Stored]:
        """Every dataset; the walk goes as deep as the layout does, whatever the links say."""
        for name, path, child in self._children(self.file, ""):
            if name == "sampled_rows":
                yield self._stored(child, path)
            elif name not in _GROUPS:
                self.damaged("is not part of a golden file", path)
            elif name in self.texts:
                self._check_group(child, path, attributes=True)
                self.texts[name] = self._attributes(child, path)
                for _, extra, _ in self._children(child, path):
                    self.damaged("is not part of a golden file", extra)
            else:
                self._check_group(child, path)
                for inner, inner_path, grandchild in self._children(child, path):
                    if name != "accept":
                        yield self._stored(grandchild, inner_path)
                        continue
                    self._check_group(grandchild, inner_path)
                    self.policies.append(inner)
                    for _, bound_path, bound in self._children(grandchild, inner_path):
                        yield self._stored(bound, bound_path)

    def _check_group(self, target: Any, path: str, attributes: bool = False) -> None:
        if not isinstance(target, h5py.Group):
            self.damaged("is not a group", path)
        if not attributes:
            self._check_texts(self._attributes(target, path), set(), set(), path)

    def _stored(self, target: Any, path: str) -> _Stored:
        if not isinstance(target, h5py.Dataset):
            self.damaged("is not a dataset", path)
        attributes = self._attributes(target, path)
        stride = attributes.pop("row_stride", None)
        allowed = _DATASET_ATTRIBUTES[_split(path)[0]]
        self._check_texts(attributes, allowed, {"dtype", "sha256"}, path)
        if stride is not None:
            if "row_stride" not in allowed or not isinstance(stride, int):
                self.damaged("the attribute row_stride is not allowed here", path)
            attributes["row_stride"] = stride
        dtype = str(attributes["dtype"])
        if dtype not in DTYPES:
            self.damaged(f"the dtype {dtype!r} is unknown; known are {', '.join(DTYPES)}", path)
        self._check_type(target.id.get_type(), dtype, path)
        if target.id.get_space().get_simple_extent_type() == h5py.h5s.NULL:
            self.damaged("has no shape", path)
        self._check_storage(target.id.get_create_plist(), path)
        return _Stored(path, target, dtype, attributes)

    def _check_type(self, held: Any, dtype: str, path: str) -> None:
        if held.committed():
            self.damaged("has a named datatype", path)
        if not any(held.equal(allowed) for allowed in _FILE_TYPES[dtype]):
            kind = _CLASSES.get(held.get_class(), "unknown")
            given = f"a {held.get_size() * 8}-bit {kind} type"
            self.damaged(f"is stored as {given}, {dtype} is stored as {carrier(dtype)}", path)

    def _check_storage(self, properties: Any, path: str) -> None:
        """The data lies in this file, behind filters that can be bounded."""
        if properties.get_layout() == h5py.h5d.VIRTUAL:
            self.damaged("is a virtual dataset", path)
        if properties.get_external_count():
            self.damaged("has external storage", path)
        filters = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
        # Each at most once; shuffle first, so that what is inflated is what was stored.
        known = len(set(filters)) == len(filters) and set(filters) <= set(_FILTERS)
        shuffle = h5py.h5z.FILTER_SHUFFLE
        if not known or shuffle in filters[1:]:
            self.damaged(
                f"has the filters {filters}; allowed are shuffle, deflate and fletcher32", path
            )

    def _check_shapes(self, root: Mapping[str, Any], stored: Mapping[str, _Stored]) -> None:
        """The root lists every dataset with its shape, so that what is missing has a name."""
        listed = self._json(root["shapes"], "the attribute shapes")
        if not isinstance(listed, dict):
            self.damaged("the attribute shapes is not a JSON object")
        for path in sorted(listed.keys() - stored.keys()):
            self.damaged("is missing", path)
        for path, found in stored.items():
            if path not in listed:
                self.damaged("is not a dataset of this golden", path)
            if list(found.shape) != listed[path]:
                self.damaged(f"has the shape {list(found.shape)}, written was {listed[path]}", path)

    def _json(self, text: object, where: str) -> Any:
        try:
            return parse_json(str(text))
        except ValueError as error:
            self.damaged(f"{where} is not JSON: {error}")

    def _check_declared_bytes(self, stored: Mapping[str, _Stored]) -> None:
        declared = sum(found.declared_bytes for found in stored.values())
        if declared > self.byte_budget:
            self.damaged(f"declares {declared} bytes of data, the budget is {self.byte_budget}")
        if declared > self.size * _LARGEST_EXPANSION:
            self.damaged(
                f"declares {declared} bytes of data in a file of {self.size}: "
                f"more than {_LARGEST_EXPANSION} times its size"
            )

    # the data

    def _data(self, found: _Stored) -> np.ndarray:
        try:
            self._check_chunks(found)
            array = np.empty(found.shape, carrier(found.dtype))
            if array.size:
                # HDF5 swaps bytes where it must; equal types otherwise, so nothing is converted
                found.dataset.id.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        except (OSError, RuntimeError, ValueError) as error:
            self.damaged(f"cannot be read: {_reason(error)}", found.path)
        array = decode(array, found.dtype)
        recomputed = tensor_sha256(found.path, array)
        if found.attributes["sha256"] != recomputed:
            self.damaged(
                f"sha256 is {found.attributes['sha256']}, recomputed it is {recomputed}",
                found.path,
            )
        return array

    def _check_chunks(self, found: _Stored) -> None:
        """Inflate each chunk under a limit: HDF5 itself inflates whatever it is given."""
        chunks = found.dataset.chunks
        if chunks is None or not found.dataset.size:
            return
        number = math.prod(
            -(-length // step) for length, step in zip(found.shape, chunks, strict=True)
        )
        if number > _MOST_CHUNKS:
            self.damaged(f"has {number} chunks, allowed are {_MOST_CHUNKS}", found.path)
        properties = found.dataset.id.get_create_plist()
        filters = [properties.get_filter(n)[0] for n in range(properties.get_nfilters())]
        infos: list[Any] = []
        found.dataset.id.chunk_iter(infos.append)
        # fletcher32 adds four bytes; before or behind deflate
        limit = math.prod(chunks) * DTYPES[found.dtype].itemsize + 4
        for info in infos:
            if info.size > self.size:
                self.damaged("has a chunk that is larger than the file", found.path)
            if _DEFLATE not in filters or info.filter_mask >> filters.index(_DEFLATE) & 1:
                continue
            _, deflated = found.dataset.id.read_direct_chunk(info.chunk_offset)
            try:
                inflated = zlib.decompressobj().decompress(deflated, limit + 1)
            except zlib.error as error:
                self.damaged(f"cannot be inflated: {error}", found.path)
            if len(inflated) > limit:
                self.damaged("has a chunk that inflates beyond its size", found.path)

    # the golden

    def _assembled(
        self,
        root: Mapping[str, Any],
        stored: Mapping[str, _Stored],
        arrays: Mapping[str, np.ndarray],
    ) -> Golden:
        axes: dict[str, str] = {}
        strides: dict[str, int] = {}
        for path, found in stored.items():
            _, name = _split(path)
            if "axes" in found.attributes:
                text = str(found.attributes["axes"])
                if axes.setdefault(name, text) != text:
                    self.damaged(f"has other axes than {axes[name]!r}", path)
            if "row_stride" in found.attributes:
                strides[name] = int(found.attributes["row_stride"])
        params = self._json(root["params"], "the attribute params")
        if not isinstance(params, dict):
            self.damaged("the attribute params is not a JSON object")
        self._check_texts(
            self.texts["provenance"], set(self.texts["provenance"]), set(), "provenance"
        )
        return Golden(
            **{label: root[label] for label in _LABELS},
            params=params,
            inputs=_under(arrays, "inputs"),
            stages=self._stages(arrays),
            outputs=_under(arrays, "outputs"),
            accept=self._accept(arrays),
            mutants={
                policy: self._json(text, f"mutants: {policy}")
                for policy, text in self.texts["mutants"].items()
            },
            provenance={key: str(text) for key, text in self.texts["provenance"].items()},
            axes=axes,
            row_strides=strides,
            input_recipe=root.get("input_recipe"),
            sampled_rows=arrays.get("sampled_rows"),
        )

    def _stages(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        stages: dict[str, np.ndarray] = {}
        for numbered, array in sorted(_under(arrays, "stages").items()):
            name = numbered[3:]
            if numbered[:3] != f"{len(stages):02}_" or name in stages:
                self.damaged("is out of order", f"stages/{numbered}")
            stages[name] = array
        return stages

    def _accept(self, arrays: Mapping[str, np.ndarray]) -> dict[str, dict[str, Accept]]:
        accept: dict[str, dict[str, Accept]] = {}
        for policy in self.policies:
            where = f"accept/{policy}"
            parts = _under(arrays, where)
            names = sorted({name.rpartition("_")[0] for name in parts})
            accept[policy] = {}
            for name in names:
                lo, hi, free = (parts.pop(f"{name}_{part}", None) for part in ("lo", "hi", "free"))
                if lo is None or hi is None:
                    self.damaged("needs both _lo and _hi", f"{where}/{name}")
                accept[policy][name] = Accept(lo, hi, free)
            for name in parts:
                self.damaged("is not a bound or a mask", f"{where}/{name}")
        return accept


def _under(arrays: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    start = f"{group}/"
    return {path[len(start) :]: a for path, a in arrays.items() if path.startswith(start)}
