"""The contract of gated_group_rmsnorm.  Read this first."""

from __future__ import annotations

from typing import Any

import numpy as np

from refkern.arguments import floats, integer, non_negative
from refkern.errors import InvalidInput
from refkern.formats import BFLOAT16, FLOAT16, FLOAT32
from refkern.op import Call, Op

ACTIVATIONS = (BFLOAT16, FLOAT16, FLOAT32)


def check(y: Any, gate: Any, weight: Any, *, group_size: int, eps: float = 1e-5) -> Call:
    """Gated RMSNorm over groups of channels: gate, then normalise, then weight.

    y: [rows, width] bfloat16, float16 or float32.
    gate: [rows, width], a float dtype of its own (the same three), any strides; or None for no
        gating.
    weight: [width] float32, or a narrower float that is widened exactly.
    group_size: channels that share one root mean square; divides width.
    eps: added to the mean of squares, inside the root; >= 0, rounded to float32.

    Returns [rows, width] in y's dtype.  NaN, infinity, -0, subnormals and zero rows are inputs
    like any other; a NaN stays in its own group.

    Raises InvalidInput for any other dtype, shape, group_size or eps.
    Semantics: Modular MAX `gated_group_rmsnorm`; relatives by recipe.
    """
    y = floats("y", y, ACTIVATIONS, axes="rows, width")
    rows, width = y.shape
    if gate is not None:
        gate = floats("gate", gate, ACTIVATIONS, axes="rows, width", shape=(rows, width))
    weight = floats("weight", weight, ACTIVATIONS, axes="width", shape=(width,))
    group_size = integer("group_size", group_size, at_least=1)
    if width % group_size:
        raise InvalidInput("group_size", group_size, f"a divisor of the width {width} is needed")
    return Call(
        {"y": y, "gate": gate, "weight": weight},
        {"group_size": group_size, "eps": non_negative("eps", eps)},
    )


def output(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    return call.y.shape, call.y.dtype


def take_rows(call: Call, rows: np.ndarray) -> Call:
    gate = None if call.gate is None else call.gate[rows]
    return Call({**call.inputs, "y": call.y[rows], "gate": gate}, call.params)


OP = Op(
    name="gated_group_rmsnorm",
    summary="gate, then RMSNorm over groups of channels (Mamba-2 mixer)",
    source="Modular MAX gated_group_rmsnorm",
    default_recipe="modular-apple",
    stages=("gated", "sum_of_squares", "rstd", "normalized", "out"),
    check=check,
    output=output,
    axes={
        "y": "rows, width",
        "gate": "rows, width",
        "weight": "width",
        "gated": "rows, width",
        "sum_of_squares": "rows, groups",
        "rstd": "rows, groups",
        "normalized": "rows, width",
        "out": "rows, width",
    },
    take_rows=take_rows,
)
