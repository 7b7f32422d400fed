"""Case -> inputs: random integers from Philox, mapped exactly to floats.

Element i of a tensor uses the words 2i and 2i + 1 of its stream (see `philox.words`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

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
from refkern.goldens.golden import DTYPES, canonical_json, parse_json
from refkern.goldens.philox import words

#: what the inputs of a file that only describes them may take
MOST_BYTES = 2 << 30


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
    """Seed and tensors of a description.

    Raises InvalidInput for anything that `describe_inputs` does not write, and for tensors of more
    than `MOST_BYTES`: a file is not trusted.
    """
    try:
        data = parse_json(text)
        _require(isinstance(data, dict) and data.keys() == {"seed", "tensors"}, "seed and tensors")
        _require(type(data["seed"]) is int and 0 <= data["seed"] < 1 << 32, "a seed of 32 bits")
        tensors = {n: None if t is None else _from_data(t) for n, t in data["tensors"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InvalidInput(
            "input_recipe", "a text", f"no description of inputs: {error!r}"
        ) from None
    size = sum(math.prod(t.shape) * _dtype(t.dtype).itemsize for t in tensors.values() if t)
    if size > MOST_BYTES:
        raise InvalidInput("input_recipe", f"tensors of {size} bytes", f"at most {MOST_BYTES}")
    return data["seed"], tensors


def _as_data(tensor: Tensor) -> dict[str, Any]:
    def tagged(part: Any) -> dict[str, Any]:
        data = {"kind": type(part).__name__.lower(), **asdict(part)}
        if "values" in data:  # JSON has no NaN and no infinities
            data["values"] = [v if math.isfinite(v) else _special(v) for v in data["values"]]
        return data

    return {**asdict(tensor), "fill": tagged(tensor.fill), "edits": list(map(tagged, tensor.edits))}


def _special(value: float) -> str:
    """ "inf", "-inf", "nan" or "-nan": the text keeps the sign, which `str` drops from a NaN."""
    negative = math.copysign(1, value) < 0
    return f"{'-' if negative else ''}{str(float(value)).lstrip('-')}"


def _from_data(data: dict[str, Any]) -> Tensor:
    tensor = Tensor(
        **{
            **data,
            "shape": tuple(data["shape"]),
            "fill": _untagged(data["fill"], FILLS),
            "edits": tuple(_untagged(edit, EDITS) for edit in data["edits"]),
        }
    )
    _require(tensor.dtype in DTYPES, "a known dtype")
    _require(tensor.coarse is None or tensor.coarse in FORMATS, "a known coarse dtype")
    _require(all(type(n) is int and n >= 0 for n in tensor.shape), "a shape of sizes")
    stride = tensor.row_stride
    _require(stride is None or type(stride) is int, "an integer as row stride")
    drawn_as_codes = not isinstance(tensor.fill, Integers | Values)
    _require(not drawn_as_codes or (tensor.coarse or tensor.dtype) in FORMATS, "a float dtype")
    _require(all(len(e.region) <= len(tensor.shape) for e in tensor.edits), "regions of its rank")
    return tensor


def _untagged(part: Mapping[str, Any], kinds: Mapping[str, type]) -> Any:
    kept = {key: value for key, value in part.items() if key != "kind"}
    if "values" in kept:
        kept["values"] = tuple(map(float, kept["values"]))
        _require(len(kept["values"]) > 0, "at least one value")
    if "region" in kept:
        kept["region"] = tuple(map(tuple, kept["region"]))
        steps = [step for part in kept["region"] for step in part]
        _require(all(step is None or type(step) is int for step in steps), "slices of integers")
        _require(all(len(p) == 3 and p[2] != 0 for p in kept["region"]), "slices of three")
    for key in ("exponent", "low", "high", "binades"):
        value = kept.get(key, 0)
        _require(type(value) is int and abs(value) < 1 << 31, f"an integer as {key}")
    _require(type(kept.get("signed", True)) is bool, "true or false as signed")
    _require(kept.get("binades", 1) >= 1, "a binade")
    _require(0 <= kept.get("high", 0) - kept.get("low", 0) < 1 << 32, "a range low to high")
    return kinds[part["kind"]](**kept)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} is needed")


def _dtype(name: str) -> np.dtype:
    return FORMATS[name].dtype if name in FORMATS else np.dtype(name)


def _convert(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Values that ``dtype`` holds, as ``dtype``; a NaN keeps its bits where it is one already."""
    if values.dtype == dtype:
        return values
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
