"""gated_rmsnorm in the order of its stages."""

from __future__ import annotations

from typing import Any

from refkern.op import Call
from refkern.ops.gated_rmsnorm.recipes import NormRecipe


def reference(m: Any, call: Call, recipe: NormRecipe) -> None:
    """x, gate: any shape, taken as [rows, C]; scale: C elements."""
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

    product = FINISHES[recipe.finish](m, call, recipe, m.mul(x, inv[..., None]), scale, gate)
    m.stage("out", m.cast(product, call.x.dtype).reshape(call.x.shape))


def one_store(m: Any, call: Call, recipe: NormRecipe, x: Any, scale: Any, gate: Any) -> Any:
    """The operator: nothing is rounded to x's dtype before the store."""
    normalized = m.stage("normalized", m.mul(x, scale))
    return m.mul(normalized, gate_value(m, call, recipe, gate))


def gate_then_sigmoid(m: Any, call: Call, recipe: NormRecipe, x: Any, scale: Any, gate: Any) -> Any:
    """flash-linear-attention: times the gate, then times its sigmoid (here the gate value)."""
    normalized = m.stage("normalized", m.mul(x, scale))
    sigmoid = m.stage("gate_value", m.sigmoid(gate, recipe.silu.sigmoid))
    return m.mul(normalized if call.activation == "sigmoid" else m.mul(normalized, gate), sigmoid)


def cast_each(m: Any, call: Call, recipe: NormRecipe, x: Any, scale: Any, gate: Any) -> Any:
    """Hugging Face: rounded to x's dtype before the weight and after it."""
    normalized = m.widen(m.cast(x, call.x.dtype))
    weighed = m.widen(m.cast(m.mul(scale, normalized), call.x.dtype))
    return m.mul(m.stage("normalized", weighed), gate_value(m, call, recipe, gate))


def gate_value(m: Any, call: Call, recipe: NormRecipe, gate: Any) -> Any:
    sigmoid = call.activation == "sigmoid"
    value = m.sigmoid(gate, recipe.silu.sigmoid) if sigmoid else m.silu(gate, recipe.silu)
    return m.stage("gate_value", value)


FINISHES = {"one-store": one_store, "gate-then-sigmoid": gate_then_sigmoid, "cast-each": cast_each}
