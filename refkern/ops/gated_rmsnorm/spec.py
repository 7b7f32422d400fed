"""The contract of gated_rmsnorm.  Read this first."""

from __future__ import annotations

from typing import Any

import numpy as np

from refkern.arguments import floats, non_negative
from refkern.errors import InvalidInput
from refkern.formats import BFLOAT16, FLOAT16, FLOAT32, format_of
from refkern.op import Call, Op

DTYPES = (BFLOAT16, FLOAT16, FLOAT32)
#: "silu" and "swish" are one function
ACTIVATIONS = ("silu", "swish", "sigmoid")


def check(
    x: Any, scale: Any, gate: Any, *, epsilon: float = 1e-5, activation: str = "silu"
) -> Call:
    """RMSNorm over rows of C elements, times a scale, times an activation of a gate.

    x: bfloat16, float16 or float32, rank >= 1.  The last axis is a multiple of C and is taken as
        rows of C elements: [rows, H * C] gives the same as [rows * H, C].
    scale: C elements in any shape, taken in C order; x's dtype.
    gate: x's shape and dtype, any strides; nothing is broadcast.
    epsilon: added to the mean of squares, inside the root; >= 0, rounded to float32.
    activation: "silu" (or "swish", the same), gate * sigmoid(gate); or "sigmoid".

    Returns x's shape and dtype.  NaN, infinity, -0, subnormals, zero rows and empty arrays are
    inputs like any other; a NaN of x stays in its row, a NaN of scale or gate in its column.

    Raises InvalidInput for other dtypes, parameters and shapes, in the operator's order.  Stricter
    than ONNX Runtime, which also takes a negative or NaN epsilon.
    Semantics: ONNX Runtime com.microsoft.GatedRMSNorm; relatives by recipe.
    """
    x = floats("x", x, DTYPES)
    scale = floats("scale", scale, [format_of(x.dtype)])
    gate = floats("gate", gate, [format_of(x.dtype)])
    epsilon = non_negative("epsilon", epsilon)
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        allowed = ", ".join(map(repr, ACTIVATIONS))
        raise InvalidInput("activation", repr(activation), f"allowed are {allowed}")
    # From here on in the order of ONNX Runtime's checks at run time.
    if x.ndim == 0:
        raise InvalidInput("x", "a scalar", "rank >= 1 is needed")
    if gate.shape != x.shape:
        raise InvalidInput("gate", f"shape {gate.shape}", f"x's shape {x.shape} is needed")
    if scale.size == 0:
        raise InvalidInput("scale", f"shape {scale.shape}", "at least one element is needed")
    if x.shape[-1] % scale.size:
        raise InvalidInput(
            "x",
            f"a last axis of {x.shape[-1]}",
            f"a multiple of the scale's {scale.size} elements is needed",
        )
    return Call(
        {"x": x, "scale": scale, "gate": gate}, {"epsilon": epsilon, "activation": activation}
    )


def output(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    return call.x.shape, call.x.dtype


def take_rows(call: Call, rows: np.ndarray) -> Call:
    """These entries of x's first axis, of at least two."""
    return Call({**call.inputs, "x": call.x[rows], "gate": call.gate[rows]}, call.params)


OP = Op(
    name="gated_rmsnorm",
    summary="RMSNorm and scale, then gate (ONNX Runtime GatedRMSNorm)",
    source="ONNX Runtime com.microsoft.GatedRMSNorm",
    default_recipe="webgpu-subgroup-rows-vec4",
    stages=("sum_of_squares", "inv", "normalized", "gate_value", "out"),
    check=check,
    output=output,
    axes={
        "x": "..., H * C",
        "scale": "C",
        "gate": "..., H * C",
        "sum_of_squares": "rows",
        "inv": "rows",
        "normalized": "rows, C",
        "gate_value": "rows, C",
        "out": "..., H * C",
    },
    take_rows=take_rows,
)
