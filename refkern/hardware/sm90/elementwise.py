"""A special function over arrays: arguments checked, broadcast, and run by its compiled form."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from refkern.arguments import as_array, is_torch, numpy_to_torch
from refkern.elementary import Function
from refkern.errors import InvalidInput
from refkern.formats import format_of

NANOSECONDS_AN_ELEMENT = 8.0


def elementwise(function: Function, dtype: str = "float32", **arguments: Any) -> Any:
    """``function`` of every element; float32 arguments of any shapes that broadcast.

    Raises InvalidInput for another dtype and for shapes that do not broadcast.  A torch tensor in
    gives a torch tensor out.
    """
    arrays = {name: _float32(name, value) for name, value in arguments.items()}
    try:
        shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    except ValueError:
        raise InvalidInput(
            ", ".join(arrays),
            f"shapes {', '.join(str(a.shape) for a in arrays.values())}",
            "shapes that broadcast are needed",
        ) from None
    flat = [np.broadcast_to(a, shape).reshape(-1) for a in arrays.values()]
    for array in flat:
        array.flags.writeable = False
    fmt = format_of(dtype)
    out = np.empty(flat[0].size, np.float32 if fmt.bits == 32 else fmt.code_dtype)
    import_module("refkern.hardware.sm90.compiled_elementwise").run(function, flat, out)
    result = out.view(fmt.dtype).reshape(shape)
    foreign = any(map(is_torch, arguments.values()))
    return numpy_to_torch(result) if foreign else result


def _float32(name: str, value: Any) -> np.ndarray:
    array = as_array(name, value)
    if array.dtype != np.float32:
        raise InvalidInput(name, f"dtype {array.dtype}", "float32 is needed")
    return array
