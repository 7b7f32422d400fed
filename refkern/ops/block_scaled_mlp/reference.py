"""block_scaled_mlp in the order of its stages."""

from __future__ import annotations

from typing import Any

from refkern.formats import BFLOAT16, FLOAT32
from refkern.group_dots import GROUP
from refkern.op import Call
from refkern.ops.block_scaled_mlp.recipes import MlpRecipe
from refkern.ops.block_scaled_mlp.spec import row_blocks
from refkern.quantize import quantize
from refkern.swiglu_variants import swiglu_values


def reference(m: Any, call: Call, recipe: MlpRecipe) -> None:
    """x: [tokens, K]; w13: [2 * inter, K]; w2: [hidden, inter]; scales per 128 x 128.

    A sum is rounded to bfloat16 once; the clamp comes after that, on the bfloat16 values.
    """
    scaling = recipe.rule.scaling(call.scale_format)
    inter = call.w2.shape[1]

    x_codes, x_scales = quantize(m, m.groups(m.widen(call.x), GROUP), scaling, call.x.dtype)
    x_codes = m.stage("x_codes", m.ungroup(x_codes, call.x.shape[1]))
    x_scales = m.stage("x_scales", x_scales)

    w13_scale = m.widen(call.w13_scale[row_blocks(inter, inter)])
    sums = project(m, x_codes, x_scales, call.w13, w13_scale, recipe)
    sums = m.unrounded(m.stage("gate_up_sums", m.cast(sums, FLOAT32.dtype)), sums)
    gate = m.stage("gate", m.cast(sums[:, :inter], BFLOAT16.dtype))
    up = m.stage("up", m.cast(sums[:, inter:], BFLOAT16.dtype))

    limit = recipe.swiglu.limit_for(call.limit)
    act = swiglu_values(m, m.widen(gate), m.widen(up), limit, recipe.swiglu, BFLOAT16.dtype)
    act = m.stage("act", act)

    act_codes, act_scales = quantize(m, m.groups(m.widen(act), GROUP), scaling, BFLOAT16.dtype)
    act_codes = m.stage("act_codes", m.ungroup(act_codes, inter))
    act_scales = m.stage("act_scales", act_scales)

    w2_scale = m.widen(call.w2_scale[row_blocks(len(call.w2))])
    sums = project(m, act_codes, act_scales, call.w2, w2_scale, recipe)
    sums = m.unrounded(m.stage("down_sums", m.cast(sums, FLOAT32.dtype)), sums)
    m.stage("out", m.cast(sums, BFLOAT16.dtype))


def project(m: Any, x: Any, x_scale: Any, w: Any, w_scale: Any, recipe: MlpRecipe) -> Any:
    """codes x: [tokens, K], w: [rows, K]; scales [tokens, groups], [rows, groups] -> sums
    [tokens, rows]."""
    if recipe.order is None:
        return m.scaled_dots(x, x_scale, w, w_scale)
    dots = m.group_dots(x, w, recipe.dots)
    scales = m.mul(w_scale[None], x_scale[:, None])
    return m.dot(dots, scales, recipe.order)
