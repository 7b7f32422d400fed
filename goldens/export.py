"""Golden files as safetensors, raw or npz files, for programs that read no HDF5.

The same golden gives the same bytes.  Tensors go by their names in the golden file: inputs/y,
stages/01_gated, outputs/out, accept/cuda/out_lo.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refkern.goldens import hdf5, safetensors
from refkern.goldens.atomic import replacing
from refkern.goldens.build import prepare
from refkern.goldens.golden import (
    Golden,
    accept_tensors,
    canonical_json,
    content_sha256,
    content_tensors,
    data_bytes,
    dtype_name,
    encode,
)

Kind = Literal["safetensors", "raw", "npz"]
KINDS: tuple[Kind, ...] = ("safetensors", "raw", "npz")
#: inputs that a golden only describes are made again and exported up to this many bytes
MOST_INPUT_BYTES = 256 << 20
#: the date of every member of an .npz: the earliest that a zip file can hold
NO_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Exported:
    """One golden's export: a file, or for "raw" a folder."""

    path: Path
    tensors: int
    bytes: int
    #: what is not there although the case has it; "" if nothing
    left_out: str = ""


def export(
    path: Path, out: Path, kind: Kind, *, most_input_bytes: int = MOST_INPUT_BYTES
) -> Exported:
    """Export one golden file to ``out``/OP/CASE.  Raises DamagedFile, InvalidInput, OSError."""
    golden, left_out = _with_inputs(hdf5.read(path), most_input_bytes)
    target = out / golden.op / golden.case
    tensors = content_tensors(golden) | accept_tensors(golden)
    written = WRITERS[kind](golden, tensors, target)
    return Exported(written, len(tensors), sum(a.nbytes for a in tensors.values()), left_out)


def _with_inputs(golden: Golden, most_bytes: int) -> tuple[Golden, str]:
    """A golden that holds its inputs, where they were only described and are not too large."""
    if golden.input_recipe is None:
        return golden, ""
    _, inputs = prepare(golden)
    made = {name: array for name, array in inputs.items() if array is not None}
    size = sum(array.nbytes for array in made.values())
    if size > most_bytes:
        return (
            golden,
            f"inputs of {size} bytes, more than {most_bytes}; input_recipe describes them",
        )
    return replace(golden, inputs=made), ""


def description(golden: Golden) -> dict[str, Any]:
    """What a reader needs beside the tensors; JSON can hold it."""
    told: dict[str, Any] = {
        "schema": 1,
        "op": golden.op,
        "case": golden.case,
        "recipe": golden.recipe,
        "tier": golden.tier,
        "params": golden.params,
        "axes": golden.axes,
        "mutants": golden.mutants,
        # of the golden file: inputs that were made again are not part of it there
        "row_strides": golden.row_strides,
    }
    if golden.input_recipe is not None:
        told["input_recipe"] = golden.input_recipe
    else:
        told["content_sha256"] = content_sha256(golden)
    return told


def _safetensors(golden: Golden, tensors: dict[str, np.ndarray], target: Path) -> Path:
    path = target.with_name(f"{target.name}.safetensors")
    path.parent.mkdir(parents=True, exist_ok=True)
    safetensors.write(path, tensors, {"refkern": canonical_json(description(golden))})
    return path


def _npz(golden: Golden, tensors: dict[str, np.ndarray], target: Path) -> Path:
    """Narrow floats as unsigned integers; dtypes.json and refkern.json say what they are."""
    whole = io.BytesIO()
    dtypes = {name: dtype_name(array) for name, array in tensors.items()}
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            member = io.BytesIO()
            np.lib.format.write_array(member, encode(tensors[name]), version=(1, 0))
            _add(archive, f"{name}.npy", member.getvalue())
        _add(archive, "dtypes.json", canonical_json(dtypes).encode())
        _add(archive, "refkern.json", canonical_json(description(golden)).encode())
    path = target.with_name(f"{target.name}.npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(whole.getbuffer())
    return path


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    member = zipfile.ZipInfo(name, NO_DATE)
    # or the bytes would say on which system they were written
    member.create_system = 3
    member.external_attr = 0o644 << 16
    archive.writestr(member, content)


def _raw(golden: Golden, tensors: dict[str, np.ndarray], target: Path) -> Path:
    """A folder: one file a tensor, little-endian in C order, and index.json, written last."""
    listed = {}
    for name in sorted(tensors):
        array = tensors[name]
        content = data_bytes(array)
        file_name = f"{name}.bin"
        place = target / file_name
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as file:
            file.write(content)
        short = name.rpartition("/")[2]
        short = short[3:] if name.startswith("stages/") else short
        entry: dict[str, Any] = {
            "file": file_name,
            "dtype": dtype_name(array),
            "shape": list(array.shape),
            "bytes": array.nbytes,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        if short in golden.axes and not name.startswith("accept/"):
            entry["axes"] = golden.axes[short]
        if name.startswith("inputs/") and short in golden.row_strides:
            # The file is dense; a backend is to get rows that lie this many elements apart.
            entry["row_stride"] = golden.row_strides[short]
        listed[name] = entry
    index = {**description(golden), "byte_order": "little", "order": "C", "tensors": listed}
    text = json.dumps(index, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with replacing(target / "index.json") as file:
        file.write(text.encode())
    return target


WRITERS: dict[Kind, Callable[[Golden, dict[str, np.ndarray], Path], Path]] = {
    "safetensors": _safetensors,
    "raw": _raw,
    "npz": _npz,
}
