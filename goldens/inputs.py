"""Case -> inputs: random integers from Philox, mapped exactly to floats.

Element i of a tensor uses the words 2i and 2i + 1 of its stream (see `philox.words`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from refkern.goldens.golden import canonical_json, parse_json
from refkern.goldens.philox import words

from refkern.case import (
    Case,
    Codes,
    Fill,
    Integers,
    Put,
    Scale,
    Spread,
    Tensor,
    Uniform,
    Values,
)
from refkern.casts import cast
from refkern.errors import InvalidInput
from refkern.formats import FORMATS, Format, find_format, from_codes


def make_inputs(case: Case) -> dict[str, np.ndarray | None]:
    """Every input of a case, in C order; the same bits on every machine."""
    return {
        name: None if tensor is None else make_tensor(case.seed, name, tensor)
        for name, tensor in case.inputs.items()
    }


def make_tensor(seed: int, name: str, tensor: Tensor) -> np.ndarray:
    dtype = _dtype(tensor.coarse or tensor.dtype)
    count = math.prod(tensor.shape)
    flat = _fill(tensor.fill, words(seed, name, 2 * count).reshape(-1, 2), dtype)
    array = flat.reshape(tensor.shape)
    for edit in tensor.edits:
        at = tuple(slice(*part) for part in edit.region)
        if isinstance(edit, Put):
            array[at] = _convert(np.resize(np.array(edit.values), array[at].shape), dtype)
        else:
            array[at] = _convert(np.ldexp(array[at].astype(np.float64), edit.exponent), dtype)
    return _convert(array, _dtype(tensor.dtype))


def with_strides(array: np.ndarray, row_stride: int | None) -> np.ndarray:
    """The array, or a view of a wider buffer whose rows lie ``row_stride`` elements apart.

    Between the rows is the value 1: a kernel that walks the buffer computes something plausible.
    """
    if row_stride is None:
        return array
    rows, width = array.shape
    buffer = np.ones((rows, row_stride), array.dtype)
    buffer[:, :width] = array
    return buffer[:, :width]


FILLS = {
    "uniform": Uniform,
    "spread": Spread,
    "integers": Integers,
    "codes": Codes,
    "values": Values,
}
EDITS = {"put": Put, "scale": Scale}


def describe_inputs(case: Case) -> str:
    """The canonical JSON from which `parse_description` and `make_tensor` make the inputs again."""
    tensors = {name: tensor and _as_data(tensor) for name, tensor in case.inputs.items()}
    return canonical_json({"seed": case.seed, "tensors": tensors})


def parse_description(text: str) -> tuple[int, dict[str, Tensor | None]]:
    """Seed and tensors of a description.  Raises InvalidInput for anything else."""
    try:
        data = parse_json(text)
        tensors = {n: t and _from_data(t) for n, t in data["tensors"].items()}
        return int(data["seed"]), tensors
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            "input_recipe", "a text", f"no description of inputs: {error!r}"
        ) from None


def _as_data(tensor: Tensor) -> dict[str, Any]:
    def tagged(part: Any) -> dict[str, Any]:
        data = {"kind": type(part).__name__.lower(), **asdict(part)}
        if "values" in data:  # JSON has no NaN and no infinities
            data["values"] = [v if math.isfinite(v) else str(float(v)) for v in data["values"]]
        return data

    return {**asdict(tensor), "fill": tagged(tensor.fill), "edits": list(map(tagged, tensor.edits))}


def _from_data(data: Mapping[str, Any]) -> Tensor:
    def untagged(part: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
        fields = {key: value for key, value in part.items() if key != "kind"}
        if "values" in fields:
            fields["values"] = tuple(map(float, fields["values"]))
        if "region" in fields:
            fields["region"] = tuple(map(tuple, fields["region"]))
        return kinds[part["kind"]](**fields)

    parts = {
        "shape": tuple(map(int, data["shape"])),
        "fill": untagged(data["fill"], FILLS),
        "edits": tuple(untagged(edit, EDITS) for edit in data["edits"]),
    }
    return Tensor(**{**data, **parts})


def _dtype(name: str) -> np.dtype:
    return FORMATS[name].dtype if name in FORMATS else np.dtype(name)


def _convert(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values that ``dtype`` holds, as ``dtype``."""
    if find_format(dtype) is None:
        return values.astype(dtype)
    fmt = find_format(dtype)
    assert fmt is not None
    return cast(values, dtype, rounding="up" if fmt.scale_only else "nearest-even")


def _fill(fill: Fill, random: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """random: uint32 [count, 2] -> [count] of ``dtype``."""
    if isinstance(fill, Values):
        return _convert(np.resize(np.array(fill.values), len(random)), dtype)
    if isinstance(fill, Integers):
        # The high half of a product is uniform over 0 .. span - 1 without a division.
        span = np.uint64(fill.high - fill.low + 1)
        number = (random[:, 0].astype(np.uint64) * span >> np.uint64(32)).astype(np.int64)
        return _convert(np.ldexp((number + fill.low).astype(np.float64), fill.exponent), dtype)
    fmt = FORMATS[dtype.name]
    if isinstance(fill, Codes):
        return from_codes((random[:, 0] >> np.uint32(32 - fmt.bits)).astype(fmt.code_dtype), fmt)
    if isinstance(fill, Spread):
        span = np.uint64(fill.high - fill.low + 1)
        exponent = (random[:, 1].astype(np.uint64) * span >> np.uint64(32)).astype(np.int64)
        return _assemble(fmt, fill.signed, exponent + fill.low, random[:, 0])
    return _uniform(fill, fmt, random)


def _uniform(fill: Uniform, fmt: Format, random: np.ndarray) -> np.ndarray:
    """Half of the values are in the highest binade, a quarter in the next: zeros are counted."""
    lowest_bit = random[:, 1] & (~random[:, 1] + np.uint32(1))
    zeros = np.bitwise_count(lowest_bit - np.uint32(1)).astype(np.int64)
    zeros = np.where(random[:, 1] == 0, 32, zeros)
    exponent = fill.exponent - 1 - np.minimum(zeros, fill.binades - 1)
    return _assemble(fmt, fill.signed, exponent, random[:, 0])


def _assemble(fmt: Format, signed: bool, exponent: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Sign from the top bit, significand from the low bits; below the normal range: +-0."""
    field = exponent + fmt.bias
    code = (np.maximum(field, 0) << fmt.mantissa_bits) | (
        random.astype(np.int64) & ((1 << fmt.mantissa_bits) - 1)
    )
    code = np.where(field < 1, 0, np.minimum(code, fmt.max_finite))
    if signed:
        code = code | np.where(random >> np.uint32(31) != 0, fmt.sign, 0)
    return from_codes(code.astype(fmt.code_dtype), fmt)
