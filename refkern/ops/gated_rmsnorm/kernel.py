"""gated_rmsnorm on the CPU: the statistics of a few rows, then those rows element by element.

Rows that are too few for all threads, and wide enough to pay for it, are shared among threads:
first by lanes, which are independent until they are combined, then by columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numba
import numpy as np

from refkern.arithmetic import Sigmoid, Silu
from refkern.compiled import activations, casts, sums
from refkern.compiled.bits import fma, jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.elementary import Function
from refkern.formats import FLOAT32, Format, format_of
from refkern.op import Call
from refkern.ops.gated_rmsnorm import recipes
from refkern.ops.gated_rmsnorm.recipes import NormRecipe
from refkern.schedules import Lanes, Schedule, Sequential
from refkern.threads import get_num_threads, launch

NANOSECONDS_AN_ELEMENT = 1.0
#: rows whose statistics are taken together, so that one row's additions need not wait for the last
TOGETHER = 8
#: rows of at least so many columns are shared among threads where there are too few of them
SHARED_COLUMNS = 1 << 16
#: columns that a thread takes at a time of a shared row
STRIP = 1 << 13
NO_TABLE = np.empty(0, np.float32)
NO_TABLE.flags.writeable = False
ZERO, HALF = np.float32(0), np.float32(0.5)


class How(NamedTuple):
    """What a row's statistics need beside the row."""

    #: the lanes that share a row, in how large subgroups; 1 and 1 for an order without lanes
    lanes: int
    subgroup: int
    #: what the sum is divided by, or multiplied by, to give the mean
    mean_by: float
    epsilon: float


def run(call: Call, recipe: NormRecipe, out: np.ndarray) -> None:
    """Write ``out`` (contiguous); the recipe's bits, whatever the number of threads."""
    if call.x.size == 0:
        return
    width, columns = call.x.shape[-1], call.scale.size
    rows, groups = call.x.size // columns, width // columns
    kernel = _kernel(recipe, call.activation, call.x.dtype)
    x, x_stride = _lines(call.x, width)
    gate, gate_stride = _lines(call.gate, width)
    scale, _ = _lines(call.scale, columns)
    mean_by = columns if recipe.mean_factor is None else recipe.mean_factor
    how = How(kernel.lanes, kernel.subgroup, float(mean_by), call.epsilon)
    flat = flat_output(out)
    if rows < get_num_threads() and columns >= SHARED_COLUMNS:
        _run_shared(kernel, x, x_stride, gate, gate_stride, scale, groups, how, flat, rows)
        return
    table = kernel.table

    def block(first: int, stop: int) -> None:
        kernel.rows(x, x_stride, gate, gate_stride, table, scale, groups, how, flat, first, stop)

    launch(block, rows, columns * NANOSECONDS_AN_ELEMENT)


def _lines(array: np.ndarray, width: int) -> tuple[np.ndarray, int]:
    """x or gate as lines of ``width`` elements: codes, or float32 as it is."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        flat, stride = array.reshape(-1), width
        flat = flat if flat.itemsize == 4 else flat.view(np.uint16)
        flat.flags.writeable = False
        return flat, stride
    flat, stride = rows_of(array.reshape(-1, width))
    return flat.view(np.float32) if flat.itemsize == 4 else flat, stride


def _run_shared(
    kernel: Kernel, x: Any, x_stride: int, gate: Any, gate_stride: int, scale: Any, groups: int,
    how: How, out: Any, rows: int,
) -> None:  # fmt: skip
    """The same bits for few and wide rows: every step shares each row among threads."""
    columns, strips = scale.size, -(-scale.size // STRIP)
    wide_scale = kernel.load(scale, np.empty(columns, np.float32))
    wide = np.empty((rows, columns), np.float32)
    inv = np.empty(rows, np.float32)
    strip_cost = STRIP * NANOSECONDS_AN_ELEMENT

    def load(first: int, stop: int) -> None:
        kernel.load_strips(x, x_stride, groups, strips, wide, first, stop)

    def sum_rows(first: int, stop: int) -> None:
        for row in range(first, stop):
            kernel.sum_rows((wide[row],) * TOGETHER, 1, how, inv[row:])

    def finish(first: int, stop: int) -> None:
        kernel.finish_strips(
            wide, inv, gate, gate_stride, kernel.table, wide_scale, groups, strips, out, first, stop
        )

    launch(load, rows * strips, strip_cost)
    if kernel.lane_sums is None:
        launch(sum_rows, rows, columns * NANOSECONDS_AN_ELEMENT)
    else:
        _share_lanes(kernel, wide, how, inv)
    kernel.invert(inv, rows, how)
    launch(finish, rows * strips, strip_cost)


def _share_lanes(kernel: Kernel, wide: np.ndarray, how: How, sums: np.ndarray) -> None:
    """Every row's sum: neighbouring lanes, which read neighbouring memory, go to one thread."""
    rows, columns = wide.shape
    lanes, parts = how.lanes, min(get_num_threads(), how.lanes)
    totals = np.zeros((rows, lanes * kernel.components), np.float32)

    def share(first: int, stop: int) -> None:
        for unit in range(first, stop):
            row, part = unit // parts, unit % parts
            start, end = part * lanes // parts, (part + 1) * lanes // parts
            kernel.lane_sums(wide[row], lanes, start, end, totals[row])

    launch(share, rows * parts, columns * NANOSECONDS_AN_ELEMENT / parts)
    for row in range(rows):
        sums[row] = kernel.combine(totals[row], how)


@dataclass(frozen=True)
class Kernel:
    """The compiled pieces of one recipe, activation and format."""

    #: whole rows: statistics, then every element
    rows: Any
    #: the same in steps, for rows that are shared
    load: Any
    load_strips: Any
    sum_rows: Any
    invert: Any
    finish_strips: Any
    #: the order of the sum, where it has lanes
    lanes: int
    subgroup: int
    components: int
    lane_sums: Any
    combine: Any
    #: the gate's function at each code of a 16-bit format
    table: np.ndarray


@cache
def _kernel(recipe: NormRecipe, activation: str, dtype: np.dtype) -> Kernel:
    fmt, squares, finish = format_of(dtype), recipe.squares, recipe.finish
    gate_function: Silu | Sigmoid = recipe.silu
    if activation == "sigmoid" or finish == "gate-then-sigmoid":
        gate_function = recipe.silu.sigmoid
    if activation == "sigmoid" and finish == "gate-then-sigmoid":
        finish = "one-store"
    by_table = fmt.bits == 16
    finish_row = _finish_row(finish, None if by_table else gate_function, fmt)
    invert = _invert(recipe.mean_factor is not None, recipe.rsqrt)
    if isinstance(squares, Lanes):
        lane_sums, combine, sum_rows = _sum_in_lanes(
            squares.vector, squares.components, squares.strided, squares.combine
        )
        lanes, components = squares.lanes, squares.components
        subgroup = squares.subgroup or lanes
    else:
        lane_sums = combine = None
        lanes = subgroup = components = 1
        sum_rows = _sum_in_order if squares == Sequential() else _sum_by_schedule(squares)
    return Kernel(
        rows=_rows(sum_rows, invert, finish_row, fmt),
        load=_load(fmt),
        load_strips=_load_strips(fmt),
        sum_rows=sum_rows,
        invert=invert,
        finish_strips=_finish_strips(finish_row),
        lanes=lanes,
        subgroup=subgroup,
        components=components,
        lane_sums=lane_sums,
        combine=combine,
        table=activations.table_of(gate_function, fmt) if by_table else NO_TABLE,
    )


@jit
def _same(value: Any) -> Any:
    return value


def _widen(fmt: Format) -> Any:
    """jitted: an element as `_lines` gives it -> float32."""
    return _same if fmt is FLOAT32 else casts.widen(fmt)


@jit
def _line(flat: Any, stride: int, row: int, groups: int, columns: int) -> Any:
    """Row ``row``, of which every line holds ``groups``."""
    start = row // groups * stride + row % groups * columns
    return flat[start : start + columns]


@jit
def _line_as_it_is(
    x: Any, stride: int, start: int, k: int, groups: int, columns: int, buffer: Any
) -> Any:
    return _line(x, stride, start + k, groups, columns)


@jit
def _line_of_buffer(
    x: Any, stride: int, start: int, k: int, groups: int, columns: int, buffer: Any
) -> Any:
    return buffer[k * columns : k * columns + columns]


@cache
def _load(fmt: Format) -> Any:
    """jitted (row, buffer): the row in float32, in the buffer unless it was float32."""
    if fmt is FLOAT32:
        return jit(lambda row, buffer: row)
    widen = casts.widen(fmt)

    @jit
    def load(row: Any, buffer: Any) -> Any:
        for i in range(row.size):
            buffer[i] = widen(row[i])
        return buffer

    return load


@cache
def _rows(sum_rows: Any, invert: Any, finish_row: Any, fmt: Format) -> Any:
    load, loaded = _load(fmt), _line_as_it_is if fmt is FLOAT32 else _line_of_buffer
    buffered = 0 if fmt is FLOAT32 else 1

    @jit
    def rows(
        x: Any, x_stride: int, gate: Any, gate_stride: int, table: Any, scale: Any, groups: int,
        how: How, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        n = scale.size
        buffer = np.empty(buffered * TOGETHER * n, np.float32)
        gate_values = np.empty(n, np.float32)
        inv = np.empty(TOGETHER, np.float32)
        wide_scale = load(scale, np.empty(buffered * n, np.float32))
        for start in range(first, stop, TOGETHER):
            count = min(TOGETHER, stop - start)
            for k in range(buffered * count):
                load(_line(x, x_stride, start + k, groups, n), buffer[k * n : k * n + n])
            last = count - 1
            together = (
                loaded(x, x_stride, start, 0, groups, n, buffer),
                loaded(x, x_stride, start, min(1, last), groups, n, buffer),
                loaded(x, x_stride, start, min(2, last), groups, n, buffer),
                loaded(x, x_stride, start, min(3, last), groups, n, buffer),
                loaded(x, x_stride, start, min(4, last), groups, n, buffer),
                loaded(x, x_stride, start, min(5, last), groups, n, buffer),
                loaded(x, x_stride, start, min(6, last), groups, n, buffer),
                loaded(x, x_stride, start, last, groups, n, buffer),
            )
            sum_rows(together, count, how, inv)
            invert(inv, count, how)
            for k in range(count):
                row = start + k
                finish_row(
                    together[k], inv[k], wide_scale, _line(gate, gate_stride, row, groups, n),
                    table, gate_values, out[row * n : row * n + n],
                )  # fmt: skip

    return rows


@cache
def _load_strips(fmt: Format) -> Any:
    widen = _widen(fmt)

    @jit
    def load_strips(
        x: Any, x_stride: int, groups: int, strips: int, wide: Any, first: int, stop: int
    ) -> None:
        columns = wide.shape[1]
        for unit in range(first, stop):
            row, start = unit // strips, unit % strips * STRIP
            end = min(start + STRIP, columns)
            source = _line(x, x_stride, row, groups, columns)[start:end]
            target = wide[row, start:end]
            for i in range(source.size):
                target[i] = widen(source[i])

    return load_strips


@cache
def _finish_strips(finish_row: Any) -> Any:
    @jit
    def finish_strips(
        wide: Any, inv: Any, gate: Any, gate_stride: int, table: Any, scale: Any, groups: int,
        strips: int, out: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        columns = scale.size
        gate_values = np.empty(STRIP, np.float32)
        for unit in range(first, stop):
            row, start = unit // strips, unit % strips * STRIP
            end = min(start + STRIP, columns)
            gate_line = _line(gate, gate_stride, row, groups, columns)
            finish_row(
                wide[row, start:end], inv[row], scale[start:end], gate_line[start:end], table,
                gate_values[: end - start], out[row * columns + start : row * columns + end],
            )  # fmt: skip

    return finish_strips


@cache
def _finish_row(finish: str, gate_function: Silu | Sigmoid | None, fmt: Format) -> Any:
    """jitted: all that follows on the norm, in plain loops over whole arrays, which vectorise.

    gate_function: None where the gate is looked up in the table.
    """
    element = _element(finish, fmt)

    if gate_function is None:

        @jit
        def by_table(
            x: Any, inv: Any, scale: Any, gate: Any, table: Any, gate_values: Any, out: Any
        ) -> None:
            for i in range(out.size):
                gate_values[i] = table[gate[i]]
            for i in range(out.size):
                out[i] = element(x[i], inv, scale[i], gate[i], gate_values[i])

        return by_table

    if isinstance(gate_function, Silu):
        function = activations.silu(gate_function)
    else:
        function = activations.sigmoid(gate_function)

    @jit
    def computed(
        x: Any, inv: Any, scale: Any, gate: Any, table: Any, gate_values: Any, out: Any
    ) -> None:
        for i in range(out.size):
            out[i] = element(x[i], inv, scale[i], gate[i], function(gate[i]))

    return computed


def _element(finish: str, fmt: Format) -> Any:
    """jitted (x, inv, scale, gate, gate_value) -> code of the output."""
    narrow = casts.narrow(FLOAT32, fmt)
    widen_gate, widen_code = _widen(fmt), casts.widen(fmt)

    if finish == "one-store":

        @jit
        def one_store(x: Any, inv: Any, scale: Any, gate: Any, gate_value: Any) -> Any:
            return narrow(((x * inv) * scale) * gate_value)

        return one_store

    if finish == "gate-then-sigmoid":

        @jit
        def gate_then_sigmoid(x: Any, inv: Any, scale: Any, gate: Any, gate_value: Any) -> Any:
            return narrow((((x * inv) * scale) * widen_gate(gate)) * gate_value)

        return gate_then_sigmoid

    @jit
    def cast_each(x: Any, inv: Any, scale: Any, gate: Any, gate_value: Any) -> Any:
        normalized = widen_code(narrow(x * inv))
        normalized = widen_code(narrow(scale * normalized))
        return narrow(normalized * gate_value)

    return cast_each


@cache
def _invert(mean_by_product: bool, rsqrt: Function) -> Any:
    """jitted (sums of squares, count, how): each sum becomes its row's inv."""
    rsqrt_function = rsqrt.load_compiled()

    @jit
    def invert(sums: Any, count: int, how: How) -> None:
        mean_by, epsilon = numba.float32(how.mean_by), numba.float32(how.epsilon)
        for row in range(count):
            mean = sums[row] * mean_by if mean_by_product else sums[row] / mean_by
            sums[row] = rsqrt_function(mean + epsilon)

    return invert


@cache
def _sum_in_lanes(vector: int, components: int, strided: bool, order: str) -> tuple[Any, Any, Any]:
    """jitted: the sums of a run of lanes; all lanes' sums -> the row's; rows -> their sums."""
    add = _add_vector(vector, components)
    combine_lanes = sums.combining(order)

    @jit
    def lane_sums(x: Any, lanes: int, first: int, stop: int, totals: Any) -> None:
        vectors = x.size // vector
        steps = (vectors + lanes - 1) // lanes
        for i in range(first * components, stop * components):
            totals[i] = ZERO
        for step in range(steps):
            # A lane takes part as long as there is a vector for it.
            if strided:
                mine = x[step * lanes * vector :]
                for lane in range(first, min(stop, vectors - step * lanes)):
                    add(mine, lane * vector, totals, lane)
            else:
                mine = x[step * vector :]
                for lane in range(first, min(stop, (vectors - step + steps - 1) // steps)):
                    add(mine, lane * steps * vector, totals, lane)

    @jit
    def combine(totals: Any, how: How) -> Any:
        if components > 1:
            for lane in range(how.lanes):
                total = totals[lane * components]
                for i in range(1, components):
                    total += totals[lane * components + i]
                totals[lane] = total
        total = combine_lanes(totals, 0, how.subgroup)
        for start in range(how.subgroup, how.lanes, how.subgroup):
            total += combine_lanes(totals, start, how.subgroup)
        return total

    @jit
    def sum_rows(together: Any, count: int, how: How, sums: Any) -> None:
        totals = np.empty(how.lanes * components, np.float32)
        for row in range(count):
            lane_sums(together[row], how.lanes, 0, how.lanes, totals)
            sums[row] = combine(totals, how)

    return lane_sums, combine, sum_rows


def _add_vector(vector: int, components: int) -> Any:
    """jitted (x, at, totals, lane): one lane takes the vector at x[at]."""
    if vector == 1:

        @jit
        def add_one(x: Any, at: int, totals: Any, lane: int) -> None:
            totals[lane] += x[at] * x[at]

        return add_one

    if components == vector:

        @jit
        def add_each(x: Any, at: int, totals: Any, lane: int) -> None:
            for i in range(vector):
                totals[lane * vector + i] += x[at + i] * x[at + i]

        return add_each

    @jit
    def add_dot(x: Any, at: int, totals: Any, lane: int) -> None:
        a, b, c, d = x[at], x[at + 1], x[at + 2], x[at + 3]
        totals[lane] += ((a * a + b * b) + c * c) + d * d

    return add_dot


@jit
def _sum_in_order(together: Any, count: int, how: How, sums: Any) -> None:
    # Where there are fewer than eight rows, the last one stands in for the others.
    a, b, c, d, e, f, g, h = together
    total_a = total_b = total_c = total_d = total_e = total_f = total_g = total_h = ZERO
    for i in range(a.size):
        total_a += a[i] * a[i]
        total_b += b[i] * b[i]
        total_c += c[i] * c[i]
        total_d += d[i] * d[i]
        total_e += e[i] * e[i]
        total_f += f[i] * f[i]
        total_g += g[i] * g[i]
        total_h += h[i] * h[i]
    totals = (total_a, total_b, total_c, total_d, total_e, total_f, total_g, total_h)
    for row in range(count):
        sums[row] = totals[row]


def _sum_by_schedule(squares: Schedule) -> Any:
    run = sums.products(squares).run

    @jit
    def sum_rows(together: Any, count: int, how: How, sums: Any) -> None:
        for row in range(count):
            sums[row] = run(together[row], together[row], together[row].size, sums)

    return sum_rows


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
