"""block_scaled_mlp on the CPU: as the GPU's two kernels, weight row by weight row."""

from __future__ import annotations

import numpy as np

from refkern.casts import widen
from refkern.compiled.group_dots import Order, project, project_exactly
from refkern.compiled.quantize import quantize_rows
from refkern.compiled.rows import flat_output
from refkern.compiled.swiglu import swiglu_rows
from refkern.formats import BFLOAT16, FLOAT8_E4M3FN, from_codes
from refkern.group_dots import GROUP
from refkern.op import Call
from refkern.ops.block_scaled_mlp.recipes import MlpRecipe, Slices
from refkern.ops.block_scaled_mlp.spec import row_blocks
from refkern.quantize import Scaling
from refkern.schedules import Sequential


def run(call: Call, recipe: MlpRecipe, out: np.ndarray) -> None:
    """Write ``out`` (contiguous); the recipe's bits, whatever the number of threads."""
    tokens, (hidden, inter) = len(call.x), call.w2.shape
    scaling = recipe.rule.scaling(call.scale_format)
    sums = np.empty((tokens, 2 * inter), np.uint16)
    _project(recipe, scaling, call.x, call.w13, call.w13_scale, row_blocks(inter, inter), sums)
    gate_up = from_codes(sums, BFLOAT16)
    limit = recipe.swiglu.limit_for(call.limit)
    act = swiglu_rows(gate_up[:, :inter], gate_up[:, inter:], limit, recipe.swiglu)
    flat = flat_output(out).reshape(tokens, hidden)
    _project(recipe, scaling, act, call.w2, call.w2_scale, row_blocks(hidden), flat)


def _project(
    recipe: MlpRecipe, scaling: Scaling, x: np.ndarray, w: np.ndarray, w_scale: np.ndarray,
    block_of_row: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Quantise x and multiply it with w."""
    made, scales = quantize_rows(x, GROUP, scaling)
    codes = from_codes(made, FLOAT8_E4M3FN)
    wide = widen(np.ascontiguousarray(w_scale))
    match recipe.order:
        case None:
            project_exactly(codes, scales, w, wide, block_of_row, out)
            return
        case Slices(groups=in_slice, fused=fused):
            order = Order(in_slice, fused)
        case Sequential(fused=fused):
            order = Order(0, fused)
        case _:
            raise TypeError(f"no kernel for {recipe.order}")
    project(recipe.dots, order, codes, scales, w, wide, block_of_row, out)
