"""gated_group_rmsnorm on the CPU: one (row, group) after the other, as a GPU's warps take them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from refkern.arithmetic import Silu
from refkern.casts import widen
from refkern.compiled import activations, casts, sums
from refkern.compiled.bits import jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.elementary import Function
from refkern.formats import FLOAT32, Format, format_of
from refkern.op import Call
from refkern.ops.gated_group_rmsnorm.recipes import NormRecipe
from refkern.schedules import Schedule
from refkern.threads import launch

NANOSECONDS_AN_ELEMENT = 1.5
NO_TABLE = np.empty(0, np.float32)
NO_TABLE.flags.writeable = False


def run(call: Call, recipe: NormRecipe, out: np.ndarray) -> None:
    """Write ``out`` (contiguous); the recipe's bits, whatever the number of threads."""
    rows, width = call.y.shape
    size = call.group_size
    gate_format = None if call.gate is None else format_of(call.gate.dtype)
    kernel = _compile(
        recipe.silu,
        recipe.squares,
        recipe.rsqrt,
        recipe.cast_before_weight,
        recipe.mean_factor is not None,
        format_of(call.y.dtype),
        gate_format,
    )
    total = sums.products(recipe.squares)
    y, y_stride = rows_of(call.y)
    gate, gate_stride = (y, y_stride) if call.gate is None else rows_of(call.gate)
    by_table = gate_format is not None and gate_format.bits == 16
    table = activations.table_of(recipe.silu, gate_format) if by_table else NO_TABLE
    weight = np.ascontiguousarray(widen(call.weight)).view()
    weight.flags.writeable = False
    eps = np.float32(call.eps)
    mean_by = np.float32(size if recipe.mean_factor is None else recipe.mean_factor)
    flat = flat_output(out)
    padded, scratch = total.padded(size), total.scratch(size)

    def block(first: int, stop: int) -> None:
        kernel(
            y, y_stride, gate, gate_stride, table, weight, size, mean_by, eps, flat,
            first, stop, padded, scratch,
        )  # fmt: skip

    launch(block, rows * (width // size), size * NANOSECONDS_AN_ELEMENT)


@cache
def _compile(
    silu: Silu,
    squares: Schedule,
    rsqrt: Function,
    cast_before_weight: bool,
    mean_by_product: bool,
    y_format: Format,
    gate_format: Format | None,
) -> Any:
    gate_group = _gate_group(silu, y_format, gate_format)
    widen_y, narrow_y = casts.widen(y_format), casts.narrow(FLOAT32, y_format)
    sum_products = sums.products(squares).run
    rsqrt_function = rsqrt.load_compiled()

    @jit
    def kernel(
        y: Any, y_stride: int, gate: Any, gate_stride: int, table: Any, weight: Any,
        size: int, mean_by: Any, eps: Any, out: Any, first: int, stop: int, padded: int,
        scratch_size: int,
    ) -> None:  # fmt: skip
        gated = np.zeros(padded, np.float32)
        scratch = np.zeros(scratch_size, np.float32)
        width = weight.size
        groups = width // size
        for unit in range(first, stop):
            row, column = unit // groups, unit % groups * size
            gate_group(
                y, row * y_stride + column, gate, row * gate_stride + column, table, size, gated
            )
            squares = sum_products(gated, gated, size, scratch)
            mean = squares * mean_by if mean_by_product else squares / mean_by
            rstd = rsqrt_function(mean + eps)
            for i in range(size):
                value = gated[i] * rstd
                if cast_before_weight:
                    value = widen_y(narrow_y(value))
                out[row * width + column + i] = narrow_y(weight[column + i] * value)

    return kernel


def _gate_group(silu: Silu, y_format: Format, gate_format: Format | None) -> Any:
    """jitted: one group's gated values into a float32 buffer."""
    widen_y = casts.widen(y_format)

    if gate_format is None:

        @jit
        def copy(y: Any, y_at: int, gate: Any, gate_at: int, table: Any, n: int, out: Any) -> None:
            for i in range(n):
                out[i] = widen_y(y[y_at + i])

        return copy

    if gate_format.bits == 16:

        @jit
        def look_up(
            y: Any, y_at: int, gate: Any, gate_at: int, table: Any, n: int, out: Any
        ) -> None:
            for i in range(n):
                out[i] = widen_y(y[y_at + i]) * table[gate[gate_at + i]]

        return look_up

    widen_gate, function = casts.widen(gate_format), activations.silu(silu)

    @jit
    def compute(y: Any, y_at: int, gate: Any, gate_at: int, table: Any, n: int, out: Any) -> None:
        for i in range(n):
            out[i] = widen_y(y[y_at + i]) * function(widen_gate(gate[gate_at + i]))

    return compute
