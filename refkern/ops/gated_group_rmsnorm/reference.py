"""gated_group_rmsnorm in the order of its stages."""

from __future__ import annotations

from typing import Any

from refkern.op import Call
from refkern.ops.gated_group_rmsnorm.recipes import NormRecipe


def reference(m: Any, call: Call, recipe: NormRecipe) -> None:
    """y, gate: [rows, width]; weight: [width]; groups of call.group_size channels.

    The mean is a division by the group size, eps is added to it, and only then comes the root
    (Modular's kernel and all its relatives agree on that).
    """
    rows, width = call.y.shape
    grouped = (rows, width // call.group_size, call.group_size)
    y, weight = m.widen(call.y), m.widen(call.weight)

    silu = None if call.gate is None else m.silu(m.widen(call.gate), recipe.silu)
    gated = m.stage("gated", y if silu is None else m.mul(y, silu)).reshape(grouped)

    sum_of_squares = m.stage("sum_of_squares", m.dot(gated, gated, recipe.squares))

    if recipe.mean_factor is None:
        mean = m.div(sum_of_squares, m.constant(call.group_size))
    else:
        mean = m.mul(sum_of_squares, m.constant(recipe.mean_factor))
    rstd = m.stage("rstd", m.rsqrt(m.add(mean, m.constant(call.eps)), recipe.rsqrt))

    scaled = m.mul(gated, rstd[..., None]).reshape(rows, width)
    normalized = m.cast(scaled, call.y.dtype) if recipe.cast_before_weight else scaled
    normalized = m.stage("normalized", normalized)

    m.stage("out", m.cast(m.mul(weight, m.widen(normalized)), call.y.dtype))
