"""gated_rmsnorm in the order of its stages."""

from __future__ import annotations

from typing import Any

from refkern.op import Call
from refkern.ops.gated_rmsnorm.recipes import NormRecipe


def reference(m: Any, call: Call, recipe: NormRecipe) -> None:
    """x, gate: any shape, taken as [rows, C]; scale: C elements.

    The mean is a division by C (torch on CUDA multiplies), epsilon is added to it, and only then
    comes the root.
    """
    columns = call.scale.size
    shape = (call.x.size // columns, columns)
    x, gate = m.widen(call.x).reshape(shape), m.widen(call.gate).reshape(shape)
    scale = m.widen(call.scale).reshape(columns)

    sum_of_squares = m.stage("sum_of_squares", m.dot(x, x, recipe.squares))

    if recipe.mean_factor is None:
        mean = m.div(sum_of_squares, m.constant(columns))
    else:
        mean = m.mul(sum_of_squares, m.constant(recipe.mean_factor))
    inv = m.stage("inv", m.rsqrt(m.add(mean, m.constant(call.epsilon)), recipe.rsqrt))

    out = FINISHES[recipe.finish](m, call, recipe, x, inv[..., None], scale, gate)
    m.stage("out", out.reshape(call.x.shape))


def one_store(
    m: Any, call: Call, recipe: NormRecipe, x: Any, inv: Any, scale: Any, gate: Any
) -> Any:
    """The operator: everything in float32, one rounding at the store."""
    normalized = m.stage("normalized", m.mul(m.mul(x, inv), scale))
    gate_value = m.stage("gate_value", _gate_value(m, gate, call.activation, recipe))
    return m.cast(m.mul(normalized, gate_value), call.x.dtype)


def gate_then_sigmoid(
    m: Any, call: Call, recipe: NormRecipe, x: Any, inv: Any, scale: Any, gate: Any
) -> Any:
    """flash-linear-attention: silu is two products from left to right, never a value of its own.

    The stage gate_value is the sigmoid.
    """
    normalized = m.stage("normalized", m.mul(m.mul(x, inv), scale))
    sigmoid = m.stage("gate_value", m.sigmoid(gate, recipe.silu.sigmoid))
    gated = normalized if call.activation == "sigmoid" else m.mul(normalized, gate)
    return m.cast(m.mul(gated, sigmoid), call.x.dtype)


def cast_each(
    m: Any, call: Call, recipe: NormRecipe, x: Any, inv: Any, scale: Any, gate: Any
) -> Any:
    """Hugging Face: back to x's dtype before the weight, after it and at the store."""
    dtype = call.x.dtype
    normalized = m.cast(m.mul(x, inv), dtype)
    normalized = m.cast(m.mul(scale, m.widen(normalized)), dtype)
    normalized = m.stage("normalized", m.widen(normalized))
    gate_value = m.stage("gate_value", _gate_value(m, gate, call.activation, recipe))
    return m.cast(m.mul(normalized, gate_value), dtype)


def _gate_value(m: Any, gate: Any, activation: str, recipe: NormRecipe) -> Any:
    if activation == "sigmoid":
        return m.sigmoid(gate, recipe.silu.sigmoid)
    return m.silu(gate, recipe.silu)


FINISHES = {
    "one-store": one_store,
    "gate-then-sigmoid": gate_then_sigmoid,
    "cast-each": cast_each,
}
