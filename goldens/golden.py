"""A golden in memory, how its arrays become bytes, and the hashes that are its identity.

A tensor's digest is the SHA-256 of the canonical JSON of [path, dtype, shape], a newline and its
little-endian bytes in C order.  The content hash is the SHA-256 of canonical JSON that holds the
digests by path, so a file can name the tensor that does not fit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from refkern.errors import InvalidInput
from refkern.formats import FORMATS, from_codes

#: what a golden's arrays may hold, by the name that hashes and files carry
DTYPES: dict[str, np.dtype] = {
    **{name: fmt.dtype for name, fmt in FORMATS.items()},
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
}
#: the longest text that a file may hold as one attribute, in UTF-8 bytes
LONGEST_TEXT = 64 * 1024
#: the number of a stage has two digits
MOST_STAGES = 100

_TENSOR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


@dataclass(frozen=True, eq=False)
class Accept:
    """What a policy allows for one output: every element within lo .. hi, in the output's dtype."""

    lo: np.ndarray
    hi: np.ndarray
    #: uint8, 1 where the policy leaves the element open; None when it leaves none open
    free: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Golden:
    """One case with its inputs, every stage, its outputs, and what the policies accept."""

    op: str
    case: str
    tier: str
    recipe: str
    #: what JSON can hold
    params: dict[str, Any]
    inputs: dict[str, np.ndarray]
    #: in order, without the output
    stages: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    #: policy -> output -> what is accepted
    accept: dict[str, dict[str, Accept]] = field(default_factory=dict)
    #: policy or rung -> the mutants that the case was proven to reject under it
    mutants: dict[str, list[str]] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    #: input, stage or output -> its axes, such as "rows, width"; other keys are not stored
    axes: dict[str, str] = field(default_factory=dict)
    #: an input of two axes that a backend gets as a view whose rows lie this many elements apart
    row_strides: dict[str, int] = field(default_factory=dict)
    #: canonical JSON from which the inputs are made again, where they are too large to be stored
    input_recipe: str | None = None
    #: int64: which rows of the full output the stored outputs are; None: all of them
    sampled_rows: np.ndarray | None = None


def canonical_json(value: Any) -> str:
    """The one JSON text of a value: keys sorted, no spaces, ASCII, floats as `repr` has them.

    Raises `InvalidInput` for what JSON cannot hold, NaN and infinities among it.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput("JSON", type(value).__name__, f"JSON cannot hold it: {error}") from None


def parse_json(text: str) -> Any:
    """The value of a JSON text; a ValueError for NaN, infinities and a key that is there twice."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            raise ValueError("a key is there twice")
        return value

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dtype_name(array: np.ndarray, argument: str = "array") -> str:
    """The name of an array's dtype in `DTYPES`, whatever its byte order."""
    if array.dtype.name not in DTYPES:
        raise InvalidInput(argument, array.dtype, f"allowed are {', '.join(DTYPES)}")
    return array.dtype.name


def encode(array: np.ndarray) -> np.ndarray:
    """The array as files hold it: C order, little-endian, a narrow float as its bit patterns."""
    name = dtype_name(array)
    # By value, so that an array in the other byte order becomes the same bytes.
    native = np.asarray(array, DTYPES[name], order="C")
    carried = native.view(carrier(name))
    return carried.astype(carried.dtype.newbyteorder("<"), copy=False)


def carrier(name: str) -> np.dtype:
    """What holds the dtype ``name`` in a file: unsigned integers below 32 bits, else itself."""
    fmt = FORMATS.get(name)
    return fmt.code_dtype if fmt is not None and fmt.bits < 32 else DTYPES[name]


def decode(carried: np.ndarray, name: str) -> np.ndarray:
    """The array of dtype ``name`` from its `carrier`, in the machine's byte order."""
    native = carried.astype(carrier(name), copy=False)
    return native if native.dtype == DTYPES[name] else from_codes(native, FORMATS[name])


def data_bytes(array: np.ndarray) -> memoryview:
    """The bytes of `encode`, for a hash or a file."""
    return encode(array).reshape(-1).view(np.uint8).data


def content_tensors(golden: Golden) -> dict[str, np.ndarray]:
    """Every array that is content, by its path in the file."""
    tensors = {f"inputs/{name}": array for name, array in golden.inputs.items()}
    for number, (name, array) in enumerate(golden.stages.items()):
        tensors[f"stages/{number:02}_{name}"] = array
    tensors |= {f"outputs/{name}": array for name, array in golden.outputs.items()}
    if golden.sampled_rows is not None:
        tensors["sampled_rows"] = golden.sampled_rows
    return tensors


def accept_tensors(golden: Golden) -> dict[str, np.ndarray]:
    """Every bound and mask, by its path in the file; a mask that is all zero is left out."""
    tensors = {}
    for policy, accepted in golden.accept.items():
        for name, interval in accepted.items():
            tensors[f"accept/{policy}/{name}_lo"] = interval.lo
            tensors[f"accept/{policy}/{name}_hi"] = interval.hi
            if interval.free is not None and interval.free.any():
                tensors[f"accept/{policy}/{name}_free"] = interval.free
    return tensors


def tensor_sha256(path: str, array: np.ndarray) -> str:
    """The digest of one array at its path."""
    head = canonical_json([path, dtype_name(array, path), list(array.shape)])
    digest = hashlib.sha256(f"{head}\n".encode())
    digest.update(data_bytes(array))
    return digest.hexdigest()


def content_sha256(golden: Golden) -> str:
    """The identity of a golden: op, params, recipe, inputs, stages and outputs.

    Case name, tier, provenance and axes are not part of it, nor is what the policies accept.
    """
    content: dict[str, Any] = {
        "op": golden.op,
        "params": golden.params,
        "recipe": golden.recipe,
        "tensors": _digests(content_tensors(golden)),
    }
    if golden.row_strides:
        content["row_strides"] = golden.row_strides
    if golden.input_recipe is not None:
        content["input_recipe"] = golden.input_recipe
    return _sha256(content)


def accept_sha256(golden: Golden) -> str:
    """The identity of what the policies accept and of the mutants that are rejected."""
    return _sha256({"mutants": golden.mutants, "tensors": _digests(accept_tensors(golden))})


def _digests(tensors: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {path: tensor_sha256(path, array) for path, array in tensors.items()}


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def check(golden: Golden) -> None:
    """Raise `InvalidInput` where a golden contradicts itself or a file could not hold it."""
    for argument in ("op", "case", "tier", "recipe"):
        _check_label(argument, getattr(golden, argument))
    if not isinstance(golden.params, dict):
        raise InvalidInput("params", type(golden.params).__name__, "allowed is a dict")
    _check_text("params", canonical_json(golden.params))
    for group in ("inputs", "stages", "outputs"):
        for name in getattr(golden, group):
            _check_name(group, name, _TENSOR_NAME)
    if not golden.outputs:
        raise InvalidInput("outputs", "none", "a golden has at least one output")
    if len(golden.stages) > MOST_STAGES:
        raise InvalidInput("stages", len(golden.stages), f"allowed are {MOST_STAGES}")
    for path, array in content_tensors(golden).items():
        dtype_name(array, path)
    for policy, accepted in golden.accept.items():
        _check_name("accept", policy, _POLICY_NAME)
        for name, interval in accepted.items():
            _check_interval(f"accept/{policy}/{name}", golden.outputs.get(name), interval)
    for policy, names in golden.mutants.items():
        _check_name("mutants", policy, _POLICY_NAME)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InvalidInput(f"mutants[{policy!r}]", repr(names), "allowed is a list of names")
        _check_text(f"mutants[{policy!r}]", canonical_json(names))
    for argument in ("provenance", "axes"):
        for key, text in getattr(golden, argument).items():
            _check_label(argument, key, path_part=False)
            _check_text(f"{argument}[{key!r}]", text)
    for name, stride in golden.row_strides.items():
        _check_stride(name, stride, golden.inputs.get(name))
    _check_sampling(golden)


def _check_label(argument: str, text: Any, path_part: bool = True) -> None:
    """A label is short and printable; one that may become a part of a path is only that."""
    fits = isinstance(text, str) and 0 < len(text.encode(errors="replace")) <= 200
    fits = fits and text.isprintable()
    if not fits or (path_part and (text.startswith(".") or set("/\\") & set(text))):
        limits = "allowed are 1 to 200 printable bytes"
        limits += ", no slash, no leading dot" if path_part else ""
        raise InvalidInput(argument, repr(text), limits)


def _check_name(argument: str, name: Any, pattern: re.Pattern[str]) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidInput(argument, repr(name), f"allowed are names like {pattern.pattern}")


def _check_text(argument: str, text: Any) -> None:
    if not isinstance(text, str):
        raise InvalidInput(argument, type(text).__name__, "allowed is text")
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidInput(argument, ascii(text), "allowed is what UTF-8 can hold") from None
    if length > LONGEST_TEXT or "\0" in text:
        given = f"text of {length} bytes"
        raise InvalidInput(argument, given, f"allowed are {LONGEST_TEXT} bytes without NUL")


def _check_interval(path: str, output: np.ndarray | None, interval: Accept) -> None:
    if output is None:
        raise InvalidInput(path, "an interval", "the golden has no such output")
    masks = () if interval.free is None else (("free", interval.free, np.dtype(np.uint8)),)
    bounds = (("lo", interval.lo, output.dtype), ("hi", interval.hi, output.dtype))
    for part, array, dtype in (*bounds, *masks):
        if array.dtype != dtype or array.shape != output.shape:
            given = f"{array.dtype} {list(array.shape)}"
            raise InvalidInput(f"{path}_{part}", given, f"allowed is {dtype} {list(output.shape)}")


def _check_stride(name: str, stride: Any, array: np.ndarray | None) -> None:
    argument = f"row_strides[{name!r}]"
    if array is None or array.ndim != 2:
        raise InvalidInput(argument, stride, "allowed for a stored input of two axes only")
    if not isinstance(stride, int) or stride < array.shape[1]:
        raise InvalidInput(argument, repr(stride), f"allowed are integers from {array.shape[1]}")


def _check_sampling(golden: Golden) -> None:
    if golden.input_recipe is not None:
        _check_text("input_recipe", golden.input_recipe)
        try:
            parse_json(golden.input_recipe)
        except ValueError as error:
            raise InvalidInput("input_recipe", "text", f"allowed is JSON: {error}") from None
    rows = golden.sampled_rows
    if rows is None:
        return
    if rows.dtype != np.int64 or rows.ndim != 1 or (rows < 0).any():
        given = f"{rows.dtype} {list(rows.shape)}"
        raise InvalidInput("sampled_rows", given, "allowed is int64 [rows] of non-negative numbers")
    for name, output in golden.outputs.items():
        if output.shape[:1] != rows.shape:
            raise InvalidInput(
                "sampled_rows", f"{len(rows)} rows", f"outputs/{name} has {list(output.shape)}"
            )
