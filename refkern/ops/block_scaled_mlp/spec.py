"""The contract of block_scaled_mlp.  Read this first."""

from __future__ import annotations

from typing import Any

import numpy as np

from refkern.arguments import floats
from refkern.errors import InvalidInput
from refkern.formats import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E8M0FNU, FLOAT32
from refkern.group_dots import GROUP
from refkern.op import Call, Op
from refkern.quantize import SCALE_FORMATS, quantize_fp8, quantize_fp8_blocks
from refkern.swiglu_variants import checked_limit, swiglu

SCALES = (FLOAT32, FLOAT8_E8M0FNU)


def tiles(n: int) -> int:
    """Blocks of 128 that cover n; the last may be smaller."""
    return -(-n // GROUP)


def row_blocks(*parts: int) -> np.ndarray:
    """int64: the row of the scales of every weight row, where the parts are tiled one by one."""
    firsts = [sum(map(tiles, parts[:i])) for i in range(len(parts))]
    blocks = [first + np.arange(rows) // GROUP for first, rows in zip(firsts, parts, strict=True)]
    return np.concatenate(blocks)


def check(
    x: Any,
    w13: Any,
    w13_scale: Any,
    w2: Any,
    w2_scale: Any,
    *,
    limit: float | None = None,
    scale_format: str = "ue8m0",
) -> Call:
    """An MLP with e4m3 weights and activations: down(quantise(swiglu(gate_up(quantise(x))))).

    x: [tokens, K] bfloat16.
    w13: [2 * inter, K] float8_e4m3fn, the gate's rows first, then up's.
    w13_scale: float32 or float8_e8m0fnu, one number per 128 x 128 block; the two halves are tiled
        separately: [2 * ceil(inter / 128), ceil(K / 128)].  A weight is code * scale.
    w2: [hidden, inter] float8_e4m3fn, usually with hidden = K.
    w2_scale: as w13_scale, [ceil(hidden / 128), ceil(inter / 128)].
    limit: gate <= limit and |up| <= limit before silu; None is no clamp.  What 0 means is the
        recipe's matter: a bound in the default, no clamp in deepseek-v4-ref.
    scale_format: "ue8m0" or "float32", the scales that the activations get, per token and 128.

    Returns [tokens, hidden] bfloat16.  NaN, infinity, -0 and groups of zeros are inputs: the
    recipe says what becomes of them (in the default a token with one NaN comes out finite).

    Raises InvalidInput for any other dtype or shape, a limit that is negative or NaN, and another
    scale_format.
    Semantics: vLLM glm5next DenseMlp; relatives by recipe.
    """
    x = floats("x", x, (BFLOAT16,), axes="tokens, K")
    k = x.shape[1]
    w13 = floats("w13", w13, (FLOAT8_E4M3FN,), axes="2 * inter, K", shape=(None, k))
    if len(w13) % 2:
        raise InvalidInput("w13", f"{len(w13)} rows", "gate and up need an even number of rows")
    inter = len(w13) // 2
    w13_scale = floats(
        "w13_scale", w13_scale, SCALES, axes="row blocks, column blocks",
        shape=(2 * tiles(inter), tiles(k)),
    )  # fmt: skip
    w2 = floats("w2", w2, (FLOAT8_E4M3FN,), axes="hidden, inter", shape=(None, inter))
    w2_scale = floats(
        "w2_scale", w2_scale, SCALES, axes="row blocks, column blocks",
        shape=(tiles(len(w2)), tiles(inter)),
    )  # fmt: skip
    limit = checked_limit(limit)
    if scale_format not in SCALE_FORMATS:
        allowed = " or ".join(map(repr, SCALE_FORMATS))
        raise InvalidInput("scale_format", repr(scale_format), f"{allowed} is needed")
    return Call(
        {"x": x, "w13": w13, "w13_scale": w13_scale, "w2": w2, "w2_scale": w2_scale},
        {"limit": limit, "scale_format": scale_format},
    )


def output(call: Call) -> tuple[tuple[int, ...], np.dtype]:
    return (len(call.x), len(call.w2)), BFLOAT16.dtype


def take_rows(call: Call, rows: np.ndarray) -> Call:
    return Call({**call.inputs, "x": call.x[rows]}, call.params)


OP = Op(
    name="block_scaled_mlp",
    summary="FP8 block-scaled gate_up, clamped SwiGLU, re-quantise, down",
    source="vLLM glm5next DenseMlp",
    default_recipe="vllm-densemlp",
    stages=(
        "x_codes", "x_scales", "gate_up_sums", "gate", "up", "act", "act_codes", "act_scales",
        "down_sums", "out",
    ),
    check=check,
    output=output,
    axes={
        "x": "tokens, K",
        "w13": "2 * inter, K",
        "w13_scale": "row blocks, column blocks",
        "w2": "hidden, inter",
        "w2_scale": "row blocks, column blocks",
        "x_codes": "tokens, K",
        "x_scales": "tokens, groups",
        "gate_up_sums": "tokens, 2 * inter",
        "gate": "tokens, inter",
        "up": "tokens, inter",
        "act": "tokens, inter",
        "act_codes": "tokens, inter",
        "act_scales": "tokens, groups",
        "down_sums": "tokens, hidden",
        "out": "tokens, hidden",
    },
    take_rows=take_rows,
    functions={
        "quantize_fp8": quantize_fp8,
        "quantize_fp8_blocks": quantize_fp8_blocks,
        "swiglu": swiglu,
    },
)  # fmt: skip
