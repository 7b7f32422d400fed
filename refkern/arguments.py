"""Arguments as users give them -> arrays and numbers that the ops compute with.

Foreign arrays are recognised through `sys.modules` and by protocol: refkern imports no framework.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from refkern.errors import InvalidInput
from refkern.formats import Format, find_format


def is_torch(value: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def as_array(name: str, value: Any) -> np.ndarray:
    """A numpy array of what was given, without a copy where that is possible.

    numpy arrays, torch CPU tensors, whatever has ``__array__`` or ``__dlpack__``, and sequences.
    """
    if type(value) is np.ndarray and value.dtype.isnative:
        return value
    if is_torch(value):
        return torch_to_numpy(name, value)
    if isinstance(value, np.ndarray):
        array = value
    elif hasattr(value, "__array__") or not hasattr(value, "__dlpack__"):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise InvalidInput(name, type(value).__name__, f"an array is needed: {error}") from None
    else:
        try:
            array = np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                name, type(value).__name__, f"a CPU array that numpy can read is needed: {error}"
            ) from None
    if isinstance(array, np.ma.MaskedArray):
        raise InvalidInput(name, "a masked array", "a plain array is needed")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    return np.asarray(array)


def torch_to_numpy(name: str, tensor: Any) -> np.ndarray:
    """A torch CPU tensor as a numpy array on the same memory; bf16 and fp8 too."""
    torch = sys.modules["torch"]
    if tensor.device.type != "cpu":
        raise InvalidInput(name, f"a tensor on {tensor.device}", "a CPU tensor is needed")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InvalidInput(name, f"a {tensor.layout} tensor", "a dense, strided one is needed")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    fmt = find_format(str(tensor.dtype).removeprefix("torch."))
    if fmt is None:
        return tensor.numpy()
    carrier = {8: torch.uint8, 16: torch.int16}.get(fmt.bits)
    return tensor.numpy() if carrier is None else tensor.view(carrier).numpy().view(fmt.dtype)


def numpy_to_torch(array: np.ndarray) -> Any:
    """A numpy array as a torch tensor on the same memory; bf16 and fp8 too."""
    torch = sys.modules["torch"]
    carrier = {8: np.uint8, 16: np.int16}.get(array.dtype.itemsize * 8)
    if carrier is None or find_format(array.dtype) is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))


def floats(
    name: str,
    value: Any,
    formats: Iterable[Format],
    *,
    axes: str | None = None,
    shape: Sequence[int | None] | None = None,
) -> np.ndarray:
    """An array in one of ``formats``, of the rank that ``axes`` spells, e.g. "rows, width".

    axes: None where any rank is taken.
    shape: the size of each axis where it is fixed, None where it is free.
    """
    array = as_array(name, value)
    allowed = tuple(formats)
    if find_format(array.dtype) not in allowed:
        raise InvalidInput(
            name, f"dtype {array.dtype}", f"allowed are {', '.join(map(str, allowed))}"
        )
    return array if axes is None else of_shape(name, array, axes=axes, shape=shape)


def of_shape(
    name: str, array: np.ndarray, *, axes: str, shape: Sequence[int | None] | None = None
) -> np.ndarray:
    rank = len(axes.split(", "))
    if array.ndim != rank:
        raise InvalidInput(name, f"shape {array.shape}", f"[{axes}] is needed")
    if shape is not None and any(
        want is not None and want != have for want, have in zip(shape, array.shape, strict=True)
    ):
        need = ", ".join("any" if n is None else str(n) for n in shape)
        raise InvalidInput(name, f"shape {array.shape}", f"[{axes}] = [{need}] is needed")
    return array


def integer(name: str, value: Any, *, at_least: int) -> int:
    """An integer; a bool and a float are none."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise InvalidInput(name, repr(value), "an integer is needed") from None
    if number < at_least:
        raise InvalidInput(name, number, f"at least {at_least} is needed")
    return number


def non_negative(name: str, value: Any) -> float:
    """A real number >= 0, infinity included; NaN and negative numbers are refused."""
    # The check of an abstract class costs more than all the rest; most values are plain floats.
    if type(value) is not float and (
        isinstance(value, bool | np.bool_) or not isinstance(value, numbers.Real | np.floating)
    ):
        raise InvalidInput(name, repr(value), "a real number is needed")
    try:
        number = float(value)
    except OverflowError:  # an integer or fraction beyond float64
        number = math.copysign(math.inf, 1 if value > 0 else -1)  # type: ignore[operator]
    if math.isnan(number) or number < 0:
        raise InvalidInput(name, number, "a number >= 0 is needed")
    return number


def output(value: Any, *, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The array behind ``out=``: exactly of this shape and dtype, and writable."""
    if not (isinstance(value, np.ndarray) or is_torch(value)):
        raise InvalidInput("out", type(value).__name__, "a numpy array or torch tensor is needed")
    array = as_array("out", value)
    # What was converted on the way is a copy, in which the result would be lost.
    given = value.dtype if isinstance(value, np.ndarray) else array.dtype
    if given != dtype:
        raise InvalidInput("out", f"dtype {given}", f"{dtype} is needed")
    if array.shape != shape:
        raise InvalidInput("out", f"shape {array.shape}", f"{shape} is needed")
    if not array.flags.writeable:
        raise InvalidInput("out", "a read-only array", "a writable one is needed")
    if any(n > 1 and step == 0 for n, step in zip(array.shape, array.strides, strict=True)):
        raise InvalidInput("out", "a broadcast view", "an element of its own for each is needed")
    return array
