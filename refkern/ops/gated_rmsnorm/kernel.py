"""gated_rmsnorm on the CPU: the statistics of a few rows, then those rows element by element.

Rows that are too few for all threads, and wide enough to pay for it, are shared among threads:
first by lanes, which are independent until they are combined, then by columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np

from refkern.arithmetic import Sigmoid, Silu
from refkern.casts import widen
from refkern.compiled import activations, casts, sums
from refkern.compiled.bits import fma, jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.elementary import Function
from refkern.formats import FLOAT32, Format, format_of
from refkern.op import Call
from refkern.ops.gated_rmsnorm import recipes
from refkern.ops.gated_rmsnorm.recipes import NormRecipe
from refkern.schedules import Exact, Lanes, Schedule, Sequential
from refkern.threads import get_num_threads, launch

NANOSECONDS_AN_ELEMENT = 1.0
#: rows of at least so many columns are shared among threads where there are too few of them
SHARED_COLUMNS = 1 << 16
#: columns that a thread takes at a time of a shared row
STRIP = 1 << 13
#: rows whose statistics are taken together, so that one row's additions need not wait for the last
TOGETHER = 4
NO_TABLE = np.empty(0, np.float32)
NO_TABLE.flags.writeable = False
ZERO, HALF = np.float32(0), np.float32(0.5)


def run(call: Call, recipe: NormRecipe, out: np.ndarray) -> None:
    """Write ``out`` (contiguous); the recipe's bits, whatever the number of threads."""
    if call.x.size == 0:
        return
    width, columns = call.x.shape[-1], call.scale.size
    rows, groups = call.x.size // columns, width // columns
    x, x_stride = rows_of(call.x.reshape(-1, width))
    gate, gate_stride = rows_of(call.gate.reshape(-1, width))
    scale = np.ascontiguousarray(widen(call.scale)).reshape(-1)
    scale.flags.writeable = False
    kernel = _kernel(recipe.squares, recipe.rsqrt, recipe.silu, recipe.finish, call.activation,
                     format_of(call.x.dtype))  # fmt: skip
    lanes, subgroup = kernel.lanes, kernel.subgroup
    epsilon = float(call.epsilon)
    flat = flat_output(out)

    if rows < 2 * get_num_threads() and columns >= SHARED_COLUMNS:
        inv = _shared_statistics(kernel, x, x_stride, groups, columns, rows, epsilon)
        strips = -(-columns // STRIP)

        def strip(first: int, stop: int) -> None:
            kernel.finish_strips(
                x, x_stride, gate, gate_stride, kernel.table, scale, inv, groups, strips, flat,
                first, stop,
            )  # fmt: skip

        launch(strip, rows * strips, STRIP * NANOSECONDS_AN_ELEMENT)
        return

    def block(first: int, stop: int) -> None:
        kernel.rows(
            x, x_stride, gate, gate_stride, kernel.table, scale, groups, epsilon, lanes, subgroup,
            flat, first, stop,
        )  # fmt: skip

    launch(block, rows, columns * NANOSECONDS_AN_ELEMENT)


def _shared_statistics(
    kernel: _Kernel, x: Any, x_stride: int, groups: int, columns: int, rows: int, epsilon: float
) -> np.ndarray:
    """inv, float32 [rows]; a row's lanes are shared among threads where its order has lanes."""
    inv = np.empty(rows, np.float32)
    cost = columns * NANOSECONDS_AN_ELEMENT

    if kernel.lane_sums is None:

        def block(first: int, stop: int) -> None:
            kernel.statistics(
                x, x_stride, groups, columns, epsilon, kernel.lanes, kernel.subgroup, first, stop,
                inv[first:stop],
            )  # fmt: skip

        launch(block, rows, cost)
        return inv

    # Neighbouring lanes read neighbouring memory: one run of lanes a thread.
    parts = min(get_num_threads(), kernel.lanes)
    lane_sums = np.zeros((rows, kernel.lanes * kernel.components), np.float32)

    def share(first: int, stop: int) -> None:
        for unit in range(first, stop):
            row, part = unit // parts, unit % parts
            kernel.lane_sums(
                x, row // groups * x_stride + row % groups * columns, columns, kernel.lanes,
                part * kernel.lanes // parts, (part + 1) * kernel.lanes // parts, lane_sums[row],
            )  # fmt: skip

    launch(share, rows * parts, cost / parts)
    for row in range(rows):
        inv[row] = kernel.combine(lane_sums[row], kernel.lanes, kernel.subgroup, columns, epsilon)
    return inv


@dataclass(frozen=True)
class _Kernel:
    """The compiled pieces of one recipe, activation and format."""

    rows: Any
    statistics: Any
    finish_strips: Any
    #: the order of the sum, where it has lanes; 1 lane of 1 component where it has none
    lanes: int
    subgroup: int
    components: int
    lane_sums: Any
    combine: Any
    table: np.ndarray


@cache
def _kernel(
    squares: Schedule, rsqrt: Function, silu: Silu, finish: str, activation: str, fmt: Format
) -> _Kernel:
    gate_function: Silu | Sigmoid = silu
    if activation == "sigmoid" or finish == "gate-then-sigmoid":
        gate_function = silu.sigmoid
    by_table = fmt.bits == 16
    element = _element(
        finish if activation != "sigmoid" or finish == "cast-each" else "one-store",
        None if by_table else gate_function,
        fmt,
    )
    table = activations.table_of(gate_function, fmt) if by_table else NO_TABLE
    if isinstance(squares, Lanes):
        lane_sums, combine, statistics = _lane_statistics(
            squares.vector, squares.components, squares.strided, squares.combine, rsqrt, fmt
        )
        lanes, components = squares.lanes, squares.components
        subgroup = squares.subgroup or lanes
    else:
        lane_sums = combine = None
        lanes = subgroup = components = 1
        statistics = _row_statistics(squares, rsqrt, fmt)
    return _Kernel(
        rows=_rows(statistics, element),
        statistics=statistics,
        finish_strips=_finish_strips(element),
        lanes=lanes,
        subgroup=subgroup,
        components=components,
        lane_sums=lane_sums,
        combine=combine,
        table=table,
    )


@cache
def _rows(statistics: Any, element: Any) -> Any:
    @jit
    def rows(
        x: Any, x_stride: int, gate: Any, gate_stride: int, table: Any, scale: Any, groups: int,
        epsilon: float, lanes: int, subgroup: int, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        columns = scale.size
        inv = np.empty(TOGETHER, np.float32)
        for start in range(first, stop, TOGETHER):
            end = min(start + TOGETHER, stop)
            statistics(x, x_stride, groups, columns, epsilon, lanes, subgroup, start, end, inv)
            for row in range(start, end):
                line, column = row // groups, row % groups * columns
                x_at, gate_at = line * x_stride + column, line * gate_stride + column
                factor = inv[row - start]
                for i in range(columns):
                    out[row * columns + i] = element(
                        x[x_at + i], factor, scale[i], gate[gate_at + i], table
                    )

    return rows


@cache
def _finish_strips(element: Any) -> Any:
    @jit
    def finish_strips(
        x: Any, x_stride: int, gate: Any, gate_stride: int, table: Any, scale: Any, inv: Any,
        groups: int, strips: int, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        columns = scale.size
        for unit in range(first, stop):
            row, strip = unit // strips, unit % strips
            line, column = row // groups, row % groups * columns
            x_at, gate_at = line * x_stride + column, line * gate_stride + column
            for i in range(strip * STRIP, min(strip * STRIP + STRIP, columns)):
                out[row * columns + i] = element(
                    x[x_at + i], inv[row], scale[i], gate[gate_at + i], table
                )

    return finish_strips


@cache
def _element(finish: str, gate_function: Silu | Sigmoid | None, fmt: Format) -> Any:
    """jitted (x, inv, scale, gate, table) -> code of the output: all that follows on the norm.

    gate_function: None where the gate is looked up in the table.
    """
    widen, narrow = casts.widen(fmt), casts.narrow(FLOAT32, fmt)
    gate_value = _look_up if gate_function is None else _compute(gate_function, widen)

    if finish == "one-store":

        @jit
        def one_store(x: Any, inv: Any, scale: Any, gate: Any, table: Any) -> Any:
            return narrow(((widen(x) * inv) * scale) * gate_value(gate, table))

        return one_store

    if finish == "gate-then-sigmoid":

        @jit
        def gate_then_sigmoid(x: Any, inv: Any, scale: Any, gate: Any, table: Any) -> Any:
            gated = ((widen(x) * inv) * scale) * widen(gate)
            return narrow(gated * gate_value(gate, table))

        return gate_then_sigmoid

    @jit
    def cast_each(x: Any, inv: Any, scale: Any, gate: Any, table: Any) -> Any:
        normalized = widen(narrow(widen(x) * inv))
        normalized = widen(narrow(scale * normalized))
        return narrow(normalized * gate_value(gate, table))

    return cast_each


@jit
def _look_up(gate: Any, table: Any) -> Any:
    return table[gate]


def _compute(choice: Silu | Sigmoid, widen: Any) -> Any:
    function = activations.silu(choice) if isinstance(choice, Silu) else activations.sigmoid(choice)
    return jit(lambda gate, table: function(widen(gate)))


@cache
def _lane_statistics(
    vector: int, components: int, strided: bool, order: str, rsqrt: Function, fmt: Format
) -> tuple[Any, Any, Any]:
    """jitted: the sums of a run of lanes; lanes' sums -> inv; rows -> inv."""
    add = _add_vector(vector, components, casts.widen(fmt))
    combine_lanes = sums.combining(order)
    rsqrt_function = rsqrt.load_compiled()

    @jit
    def lane_sums(
        x: Any, at: int, columns: int, lanes: int, first: int, stop: int, totals: Any
    ) -> None:
        vectors = columns // vector
        steps = (vectors + lanes - 1) // lanes
        for i in range(first * components, stop * components):
            totals[i] = ZERO
        for step in range(steps):
            # Lanes from `live` on have no vector in this step.
            if strided:
                live = vectors - step * lanes
                for lane in range(first, min(stop, live)):
                    add(x, at + (step * lanes + lane) * vector, totals, lane)
            else:
                live = (vectors - step + steps - 1) // steps
                for lane in range(first, min(stop, live)):
                    add(x, at + (lane * steps + step) * vector, totals, lane)

    @jit
    def combine(totals: Any, lanes: int, subgroup: int, columns: int, epsilon: float) -> Any:
        if components > 1:
            for lane in range(lanes):
                total = totals[lane * components]
                for i in range(1, components):
                    total += totals[lane * components + i]
                totals[lane] = total
        total = combine_lanes(totals, 0, subgroup)
        for start in range(subgroup, lanes, subgroup):
            total += combine_lanes(totals, start, subgroup)
        return rsqrt_function(total / numba.float32(columns) + numba.float32(epsilon))

    @jit
    def statistics(
        x: Any, x_stride: int, groups: int, columns: int, epsilon: float, lanes: int,
        subgroup: int, first: int, stop: int, inv: Any,
    ) -> None:  # fmt: skip
        totals = np.empty(lanes * components, np.float32)
        for row in range(first, stop):
            at = row // groups * x_stride + row % groups * columns
            lane_sums(x, at, columns, lanes, 0, lanes, totals)
            inv[row - first] = combine(totals, lanes, subgroup, columns, epsilon)

    return lane_sums, combine, statistics


def _add_vector(vector: int, components: int, widen: Any) -> Any:
    """jitted (x, at, totals, lane): one lane takes the vector at x[at]."""
    if vector == 1:

        @jit
        def add_one(x: Any, at: int, totals: Any, lane: int) -> None:
            value = widen(x[at])
            totals[lane] += value * value

        return add_one

    if components == vector:

        @jit
        def add_each(x: Any, at: int, totals: Any, lane: int) -> None:
            for i in range(vector):
                value = widen(x[at + i])
                totals[lane * vector + i] += value * value

        return add_each

    @jit
    def add_dot(x: Any, at: int, totals: Any, lane: int) -> None:
        a, b, c, d = widen(x[at]), widen(x[at + 1]), widen(x[at + 2]), widen(x[at + 3])
        totals[lane] += ((a * a + b * b) + c * c) + d * d

    return add_dot


@cache
def _row_statistics(squares: Schedule, rsqrt: Function, fmt: Format) -> Any:
    """jitted: rows -> inv, for an order without lanes."""
    widen, rsqrt_function = casts.widen(fmt), rsqrt.load_compiled()

    if squares == Sequential():

        @jit
        def sequential(
            x: Any, x_stride: int, groups: int, columns: int, epsilon: float, lanes: int,
            subgroup: int, first: int, stop: int, inv: Any,
        ) -> None:  # fmt: skip
            # Four rows side by side; where there are fewer, the last one again.
            last = stop - 1
            row0, row1, row2 = first, min(first + 1, last), min(first + 2, last)
            at0 = row0 // groups * x_stride + row0 % groups * columns
            at1 = row1 // groups * x_stride + row1 % groups * columns
            at2 = row2 // groups * x_stride + row2 % groups * columns
            at3 = last // groups * x_stride + last % groups * columns
            total0 = total1 = total2 = total3 = ZERO
            for i in range(columns):
                a, b = widen(x[at0 + i]), widen(x[at1 + i])
                c, d = widen(x[at2 + i]), widen(x[at3 + i])
                total0 += a * a
                total1 += b * b
                total2 += c * c
                total3 += d * d
            totals = (total0, total1, total2, total3)
            for row in range(first, stop):
                mean = totals[row - first] / numba.float32(columns)
                inv[row - first] = rsqrt_function(mean + numba.float32(epsilon))

        return sequential

    run = sums.products(squares).run

    @jit
    def by_schedule(
        x: Any, x_stride: int, groups: int, columns: int, epsilon: float, lanes: int,
        subgroup: int, first: int, stop: int, inv: Any,
    ) -> None:  # fmt: skip
        row_of_x = np.empty(columns, np.float32)
        for row in range(first, stop):
            at = row // groups * x_stride + row % groups * columns
            for i in range(columns):
                row_of_x[i] = widen(x[at + i])
            mean = run(row_of_x, row_of_x, columns, row_of_x) / numba.float32(columns)
            inv[row - first] = rsqrt_function(mean + numba.float32(epsilon))

    return by_schedule


LIMIT = recipes.MLAS_LIMIT
P4, P3, P2, P1, P0 = recipes.MLAS_NUMERATOR
Q5, Q4, Q3, Q2, Q1, Q0 = recipes.MLAS_DENOMINATOR


@jit
def mlas_logistic(z: Any) -> Any:
    # A NaN fails both comparisons and goes through, here and at the end.
    v = -LIMIT if z < -LIMIT else z
    v = LIMIT if v > LIMIT else v
    s = v * v
    p = fma(fma(fma(fma(s, P4, P3), s, P2), s, P1), s, P0) * v
    q = fma(fma(fma(fma(fma(s, Q5, Q4), s, Q3), s, Q2), s, Q1), s, Q0)
    y = p / q + HALF
    return ZERO if y < ZERO else y
