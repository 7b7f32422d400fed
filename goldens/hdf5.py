"""Golden files: writing them whole and reproducibly, and reading them without trusting them.

The layout is in docs/format.md.  Narrow floats are stored as bit patterns: HDF5's own narrow types
convert wrongly, and h5py loses ml_dtypes' types.
"""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from refkern.errors import InvalidInput
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
    encode,
    parse_json,
    tensor_sha256,
)
from refkern.goldens.untrusted import Declared, UntrustedFile, open_untrusted

FORMAT = "refkern-golden"
FORMAT_VERSION = 1
#: how many bytes the datasets of a file may declare, unless `read` is told otherwise
BYTE_BUDGET = 2 << 30

_GROUPS = ("accept", "inputs", "mutants", "outputs", "provenance", "stages")
_WITH_AXES = ("inputs", "stages", "outputs")
_LABELS = ("op", "case", "tier", "recipe")
_ROOT_TEXTS = (*_LABELS, "format", "params", "shapes", "content_sha256", "accept_sha256")


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
        for group in _GROUPS:
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
    if name in golden.axes and group in _WITH_AXES:
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
    with open_untrusted(path) as file:
        return _GoldenFile(file).golden(byte_budget)


def is_golden(path: str | os.PathLike[str]) -> bool:
    """Whether an HDF5 file says that it is a golden; `DamagedFile` for what is not HDF5."""
    with open_untrusted(path) as file:
        try:
            return file.attributes(file.root, "/").get("format") == FORMAT
        except DamagedFile:  # a golden has no attributes that are refused
            return False


class _GoldenFile:
    """One open file: first everything that it declares, then the data, then the hashes."""

    def __init__(self, file: UntrustedFile) -> None:
        self.file = file
        self.damaged = file.damaged
        self.declared: dict[str, Declared] = {}
        self.policies: list[str] = []
        self.mutants: dict[str, str] = {}
        self.provenance: dict[str, str] = {}

    def golden(self, byte_budget: int) -> Golden:
        root = self._root()
        self._walk()
        self._check_shapes(root["shapes"])
        strided = sum(_strided_bytes(found) for found in self.declared.values())
        self.file.check_bytes(self.declared.values(), byte_budget, strided)
        golden = self._assembled(root, {path: self._values(path) for path in self.declared})
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

    def _root(self) -> dict[str, str]:
        found = self.file.attributes(self.file.root, "/")
        if found.get("format") != FORMAT:
            self.damaged(f"is not a golden file: its attribute format is not {FORMAT!r}")
        version = found.pop("format_version", None)
        if version != FORMAT_VERSION:
            self.damaged(f"format_version is {version!r}, this reader knows {FORMAT_VERSION}")
        return self._texts(found, None, required=_ROOT_TEXTS, optional=("input_recipe",))

    def _texts(
        self,
        found: Mapping[str, str | int],
        where: str | None,
        required: Iterable[str] = (),
        optional: Iterable[str] | None = (),
    ) -> dict[str, str]:
        """The attributes, if they are texts of these names; ``optional`` None: of any name."""
        for name in sorted(set(required) - found.keys()):
            self.damaged(f"the attribute {name} is missing", where)
        unknown = found.keys() - set(required) - set(found if optional is None else optional)
        for name in sorted(unknown):
            self.damaged(f"the attribute {name} is unknown", where)
        texts = {name: text for name, text in found.items() if isinstance(text, str)}
        for name in sorted(found.keys() - texts.keys()):
            self.damaged(f"the attribute {name} is not a text", where)
        return texts

    def _walk(self) -> None:
        """Find every dataset.  It goes as deep as the layout does, whatever the links say."""
        for name, path, child in self.file.children(self.file.root):
            if name == "sampled_rows":
                self._declare(child, path)
            elif name == "accept":
                for policy, inner, group in self._members(child, path):
                    self.policies.append(policy)
                    for _, bound, dataset in self._members(group, inner):
                        self._declare(dataset, bound)
            elif name in ("inputs", "stages", "outputs"):
                for _, inner, dataset in self._members(child, path):
                    self._declare(dataset, inner)
            elif name == "mutants":
                self.mutants = self._notes(child, path)
            elif name == "provenance":
                self.provenance = self._notes(child, path)
            else:
                self.damaged("is not part of a golden file", path)

    def _members(self, group: Any, path: str) -> Iterator[tuple[str, str, Any]]:
        if not isinstance(group, h5py.Group):
            self.damaged("is not a group", path)
        self._texts(self.file.attributes(group, path), path)
        return self.file.children(group, path)

    def _notes(self, group: Any, path: str) -> dict[str, str]:
        """The attributes of a group that has nothing else."""
        if not isinstance(group, h5py.Group):
            self.damaged("is not a group", path)
        for _, extra, _ in self.file.children(group, path):
            self.damaged("is not part of a golden file", extra)
        return self._texts(self.file.attributes(group, path), path, optional=None)

    def _declare(self, target: Any, path: str) -> None:
        dataset = self.file.dataset(target, path)
        group = _split(path)[0]
        attributes = self.file.attributes(dataset, path)
        stride = attributes.pop("row_stride", 0) if group == "inputs" else 0
        if not isinstance(stride, int):
            self.damaged("the attribute row_stride is not an integer", path)
        optional = ("axes",) if group in _WITH_AXES else ()
        texts = self._texts(attributes, path, required=("dtype", "sha256"), optional=optional)
        dtype = texts["dtype"]
        if dtype not in DTYPES:
            self.damaged(f"the dtype {dtype!r} is unknown; known are {', '.join(DTYPES)}", path)
        self.file.check_type(dataset, carrier(dtype), dtype, path)
        more = {"row_stride": stride} if stride else {}
        self.declared[path] = Declared(path, dataset, dtype, carrier(dtype), {**texts, **more})

    def _check_shapes(self, text: str) -> None:
        """The root lists every dataset with its shape, so that what is missing has a name."""
        listed = self._json(text, "the attribute shapes")
        if not isinstance(listed, dict):
            self.damaged("the attribute shapes is not a JSON object")
        for path in sorted(listed.keys() - self.declared.keys()):
            self.damaged("is missing", path)
        for path, found in self.declared.items():
            if path not in listed:
                self.damaged("is not a dataset of this golden", path)
            if list(found.shape) != listed[path]:
                self.damaged(f"has the shape {list(found.shape)}, written was {listed[path]}", path)

    def _json(self, text: str, where: str) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            self.damaged(f"{where} is not JSON: {error}")

    def _values(self, path: str) -> np.ndarray:
        found = self.declared[path]
        array = self.file.values(found)
        recomputed = tensor_sha256(path, array)
        if found.attributes["sha256"] != recomputed:
            stored = found.attributes["sha256"]
            self.damaged(f"sha256 is {stored}, recomputed it is {recomputed}", path)
        return array

    def _assembled(self, root: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> Golden:
        params = self._json(root["params"], "the attribute params")
        if not isinstance(params, dict):
            self.damaged("the attribute params is not a JSON object")
        mutants = {p: self._json(text, f"mutants: {p}") for p, text in self.mutants.items()}
        axes: dict[str, str] = {}
        strides: dict[str, int] = {}
        for path, found in self.declared.items():
            _, name = _split(path)
            text = str(found.attributes.get("axes", axes.get(name, "")))
            if text and axes.setdefault(name, text) != text:
                self.damaged(f"has the axes {text!r}, elsewhere they are {axes[name]!r}", path)
            if "row_stride" in found.attributes:
                strides[name] = int(found.attributes["row_stride"])
        return Golden(
            **{label: root[label] for label in _LABELS},
            params=params,
            inputs=_under(arrays, "inputs"),
            stages=self._stages(arrays),
            outputs=_under(arrays, "outputs"),
            accept={policy: self._accept(arrays, policy) for policy in self.policies},
            mutants=mutants,
            provenance=self.provenance,
            axes=axes,
            row_strides=strides,
            input_recipe=root.get("input_recipe"),
            sampled_rows=arrays.get("sampled_rows"),
        )

    def _stages(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        stages: dict[str, np.ndarray] = {}
        for numbered, array in sorted(_under(arrays, "stages").items()):
            number, name = numbered[:3], numbered[3:]
            if number != f"{len(stages):02}_" or name in stages:
                self.damaged("is out of order", f"stages/{numbered}")
            stages[name] = array
        return stages

    def _accept(self, arrays: Mapping[str, np.ndarray], policy: str) -> dict[str, Accept]:
        parts = _under(arrays, f"accept/{policy}")
        accept: dict[str, Accept] = {}
        for name in sorted({part.rpartition("_")[0] for part in parts}):
            lo, hi = parts.pop(f"{name}_lo", None), parts.pop(f"{name}_hi", None)
            if lo is None or hi is None:
                self.damaged("needs both _lo and _hi", f"accept/{policy}/{name}")
            accept[name] = Accept(lo, hi, parts.pop(f"{name}_free", None))
        for part in parts:
            self.damaged("is neither a bound nor a mask", f"accept/{policy}/{part}")
        return accept


def _strided_bytes(found: Declared) -> int:
    """What a backend's view of an input takes, whose rows lie further apart."""
    rows = math.prod(found.shape[:1])
    return rows * int(found.attributes.get("row_stride", 0)) * DTYPES[found.dtype].itemsize


def _under(arrays: Mapping[str, np.ndarray], group: str) -> dict[str, np.ndarray]:
    start = f"{group}/"
    return {path[len(start) :]: a for path, a in arrays.items() if path.startswith(start)}


def read_flat(
    file: h5py.File, path: str | os.PathLike[str], *, byte_budget: int = BYTE_BUDGET
) -> dict[str, np.ndarray]:
    """The datasets at the root of an open HDF5 file that is not a golden, by name.

    A dataset has the attribute dtype, as in a golden, or plain floats or integers.
    """
    untrusted = UntrustedFile(path, file, os.stat(path).st_size)
    declared = []
    for name, where, target in untrusted.children(file):
        if isinstance(target, h5py.Group):
            continue
        dataset = untrusted.dataset(target, where)
        dtype = dataset.attrs.get("dtype")
        if dtype is None:
            held = untrusted.plain_type(dataset, where)
            declared.append(Declared(name, dataset, held.name, held))
            continue
        if not isinstance(dtype, str) or dtype not in DTYPES:
            untrusted.damaged(f"the dtype {dtype!r} is unknown", where)
        untrusted.check_type(dataset, carrier(dtype), dtype, where)
        declared.append(Declared(name, dataset, dtype, carrier(dtype)))
    if not declared:
        untrusted.damaged("has no dataset at its root")
    untrusted.check_bytes(declared, byte_budget)
    return {found.path: untrusted.values(found) for found in declared}
