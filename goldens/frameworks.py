"""Arrays of other frameworks -> numpy and back, bits kept, narrow dtypes too.

A framework is imported only where its arrays are asked for; whose array a value is, is looked up
among what is loaded already.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import numpy as np

from refkern import arguments
from refkern.errors import InvalidInput
from refkern.formats import codes, find_format, from_codes


def to_numpy(name: str, value: Any) -> np.ndarray:
    """A numpy array of an array or tensor, from whatever device it is on."""
    if arguments.is_torch(value):
        return arguments.as_array(name, value.detach().cpu())
    mlx = sys.modules.get("mlx.core")
    if mlx is not None and isinstance(value, mlx.array):
        return _mlx_to_numpy(mlx, value)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(value, cupy.ndarray):
        return arguments.as_array(name, value.get())
    return arguments.as_array(name, value)


def to_torch(array: np.ndarray, device: str = "cpu") -> Any:
    """A torch tensor of the same dtype and strides; on the CPU it shares the array's memory."""
    torch = import_module("torch")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        tensor = torch.from_numpy(array.view(f"i{array.dtype.itemsize}"))
        tensor = tensor.view(getattr(torch, array.dtype.name))
    else:
        tensor = arguments.numpy_to_torch(array)
    if device == "cpu":
        return tensor
    if tensor.is_contiguous():
        return tensor.to(device)
    # .to() packs a view's rows; a kernel that reads strides must see those of the case
    apart = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return apart.copy_(tensor)


def to_jax(array: np.ndarray) -> Any:
    """A JAX array of the same dtype.  Raises InvalidInput where JAX would narrow 64-bit values."""
    made = import_module("jax.numpy").asarray(array)
    if made.dtype != array.dtype:
        raise InvalidInput("input", array.dtype, "jax_enable_x64 is needed for 64-bit values")
    return made


def to_mlx(array: np.ndarray) -> Any:
    """An MLX array of the same dtype; fp8, which MLX has no type for, as its uint8 codes."""
    mlx = import_module("mlx.core")
    fmt = find_format(array.dtype)
    if fmt is None or fmt.bits >= 32 or fmt.name == "float16":
        return mlx.array(np.ascontiguousarray(array))
    carried = mlx.array(codes(np.ascontiguousarray(array)))
    return carried.view(mlx.bfloat16) if fmt.name == "bfloat16" else carried


def _mlx_to_numpy(mlx: Any, value: Any) -> np.ndarray:
    if value.dtype != mlx.bfloat16:
        return np.array(value)
    fmt = find_format("bfloat16")
    assert fmt is not None
    return from_codes(np.array(value.view(mlx.uint16)), fmt)
