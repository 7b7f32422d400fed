"""grouped_matmul on the CPU: GEMV over whole weight rows, or tiles of 64 x 64 in Morton order.

Weights are read where they lie, one expert after the other, by 64-bit offsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numba
import numpy as np

from refkern import schedules
from refkern.casts import cast
from refkern.compiled import casts, sums
from refkern.compiled.bits import bits_float64, float64_bits, fma, jit
from refkern.compiled.rows import flat_output, rows_of
from refkern.formats import FLOAT32, Format, codes, format_of
from refkern.hardware.sm90.tensor_cores import TensorCoreChain
from refkern.op import Call
from refkern.ops.grouped_matmul.recipes import STRIP, STRIP_ORDER, Gemv, GroupedRecipe, MmaStrips
from refkern.ops.grouped_matmul.spec import NO_EXPERT, groups
from refkern.schedules import Schedule
from refkern.threads import launch

ZERO, NAN = np.float32(0), np.float32(np.nan)
#: an index that numba takes as it is; a signed one is tested for being negative, which keeps a
#: loop from being vectorised
index = numba.uint64
#: lanes of a simdgroup, neighbours that a lane takes, and what all of them take in a step
LANES, VECTOR = 32, 8
STEP = LANES * VECTOR
#: tokens of a group whose activations are held as float32 at a time
TOKENS = 64
EXPONENT_FIELD = 0x7FF0_0000_0000_0000
#: rows and columns of a threadgroup's tile
TILE = 64
GEMV_NANOSECONDS_A_PRODUCT, TILE_NANOSECONDS_A_PRODUCT = 0.2, 0.15


def run(call: Call, recipe: GroupedRecipe, out: np.ndarray) -> None:
    """Write the covered rows of ``out`` (contiguous); the recipe's bits for any thread count."""
    columns, k = call.b.shape[1:]
    work = []
    for start, stop, expert in groups(call):
        if expert == NO_EXPERT or k == 0:
            out[start:stop] = 0
        elif start < stop:
            work.append((start, stop - start, expert))
    if not work or columns == 0:
        return
    if isinstance(recipe.order, TensorCoreChain):
        run_tensor_cores(recipe.order, call, work, out)
        return
    a, a_stride = rows_of(call.a)
    source, target = format_of(call.a.dtype), format_of(out.dtype)
    wide = out if target is FLOAT32 else np.empty(out.shape, np.float32)
    flat = wide.reshape(-1)
    for b, expert_stride, row_stride, table in weights(call.b, work):
        shared = (a, a_stride, b, expert_stride, row_stride, table, columns, k, flat)
        if recipe.gemv is not None:
            run_gemv(recipe.gemv, source, shared)
        else:
            run_tiles(recipe.order, source, shared)
    if target is not FLOAT32:
        narrow_rows = _narrow_rows(target)
        for start, rows, _ in work:
            narrow_rows(flat, flat_output(out), start * columns, (start + rows) * columns)


def run_tensor_cores(
    order: TensorCoreChain, call: Call, work: list[tuple[int, int, int]], out: np.ndarray
) -> None:
    """A group after the other; the model of the tensor cores shares its outputs out itself."""
    # numba compiles nothing of it for those who never come here
    from refkern.hardware.sm90.compiled_tensor_cores import gemm_chain

    for start, rows, expert in work:
        sums = gemm_chain(order.instruction, call.a[start : start + rows], call.b[expert])
        out[start : start + rows] = cast(sums, format_of(out.dtype))


@cache
def _narrow_rows(target: Format) -> Any:
    """Apart from the kernels, which would be compiled once for each output format otherwise."""
    narrow = casts.narrow(FLOAT32, target)

    @jit
    def narrow_rows(values: Any, out: Any, first: int, stop: int) -> None:
        for i in range(first, stop):
            out[index(i)] = narrow(values[index(i)])

    return narrow_rows


def weights(
    b: np.ndarray, work: list[tuple[int, int, int]]
) -> Iterator[tuple[np.ndarray, int, int, np.ndarray]]:
    """Codes of the weights, elements from expert to expert and from row to row, and the groups.

    One view of the whole stack where every row's elements are neighbours (experts and rows may
    lie anywhere behind the first, a stride of 0 included).  Otherwise a copy of one used expert
    after the other.
    """
    experts, columns, k = b.shape
    item = b.itemsize
    expert_stride, row_stride = (
        0 if n == 1 else s for n, s in zip(b.shape[:2], b.strides[:2], strict=True)
    )
    if (
        (k == 1 or b.strides[2] == item)
        and expert_stride >= 0 == expert_stride % item
        and row_stride >= 0 == row_stride % item
        and b.flags.aligned
    ):
        expert_stride, row_stride = expert_stride // item, row_stride // item
        length = (experts - 1) * expert_stride + (columns - 1) * row_stride + k
        flat = np.lib.stride_tricks.as_strided(codes(b), (length,), (item,), writeable=False)
        yield flat, expert_stride, row_stride, np.array(work, np.int64)
        return
    for expert in sorted({expert for _, _, expert in work}):
        one = np.ascontiguousarray(codes(b)[expert]).reshape(-1)
        one.flags.writeable = False
        mine = [(start, rows, 0) for start, rows, of in work if of == expert]
        yield one, 0, k, np.array(mine, np.int64)


# ------------------------------------------------------------------------------------- GEMV


def run_gemv(gemv: Gemv, source: Format, shared: tuple[Any, ...]) -> None:
    """A unit of work is a threadgroup: so many columns of one group, all of its tokens."""
    *_, table, columns, k, _ = shared
    kernel = _compile_gemv(gemv.accumulators, source)
    width = gemv.rows_per_simdgroup * gemv.simdgroups
    blocks = -(-columns // width)
    tokens = table[:, 1].mean()

    def block(first: int, stop: int) -> None:
        kernel(*shared, width, blocks, gemv.tokens_per_pass, first, stop)

    each = width * k * tokens * GEMV_NANOSECONDS_A_PRODUCT
    launch(block, len(table) * blocks, each)


@cache
def _compile_gemv(accumulators: int, source: Format) -> Any:
    widen = casts.widen(source)
    halved = accumulators < VECTOR
    load, add, finish = (
        (_load_by_position(source), _add_halved(accumulators), _finish_by_position(accumulators))
        if halved
        else (_load_in_order(source), _add_in_order(source), _finish_in_order)
    )

    @jit
    def kernel(
        a: Any, a_stride: int, b: Any, expert_stride: int, row_stride: int, table: Any,
        columns: int, k: int, out: Any, width: int, blocks: int, per_pass: int,
        first: int, stop: int,
    ) -> None:  # fmt: skip
        steps = k // STEP
        most = 0
        for z in range(len(table)):
            most = max(most, table[z, 1])
        most = min(most, TOKENS)
        x = np.empty(most * k, np.float32)
        w = np.empty(k if halved else 0, np.float32)
        lanes = np.empty(per_pass * STEP, np.float32)
        held = -1
        for unit in range(first, stop):
            z, block = unit // blocks, unit % blocks
            start, rows, expert = table[z, 0], table[z, 1], table[z, 2]
            for t0 in range(0, rows, TOKENS):
                tokens = min(TOKENS, rows - t0)
                if held != z or rows > TOKENS:
                    for t in range(tokens):
                        load(a, (start + t0 + t) * a_stride, k, steps, x, t * k)
                    held = z
                for n in range(block * width, min(block * width + width, columns)):
                    row = expert * expert_stride + n * row_stride
                    if halved:
                        load(b, row, k, steps, w, 0)
                    for p in range(0, tokens, per_pass):
                        some = min(per_pass, tokens - p)
                        for i in range(some * STEP):
                            lanes[i] = ZERO
                        for t in range(some):
                            add(b, row, w, x, (p + t) * k, steps, lanes, t * STEP)
                        for i in range(steps * STEP, k):
                            weight = widen(b[row + i])
                            lane = (i - steps * STEP) % LANES
                            at = lane if halved else lane * VECTOR
                            for t in range(some):
                                lanes[t * STEP + at] += weight * x[(p + t) * k + i]
                        for t in range(some):
                            total = finish(lanes, t * STEP)
                            at = (start + t0 + p + t) * columns + n
                            out[at] = total if total == total else NAN

    return kernel


def _load_in_order(source: Format) -> Any:
    """jitted: a row of K elements as float32."""
    widen = casts.widen(source)

    @jit
    def load(row: Any, at: int, k: int, steps: int, to: Any, to_at: int) -> None:
        for i in range(k):
            to[index(to_at + i)] = widen(row[index(at + i)])

    return load


def _load_by_position(source: Format) -> Any:
    """jitted: a row as float32, each step's 256 ordered by position in the vector, then by lane."""
    widen = casts.widen(source)

    @jit
    def load(row: Any, at: int, k: int, steps: int, to: Any, to_at: int) -> None:
        for step in range(steps):
            read, write = at + step * STEP, to_at + step * STEP
            for i in range(VECTOR):
                for lane in range(LANES):
                    to[index(write + i * LANES + lane)] = widen(
                        row[index(read + lane * VECTOR + i)]
                    )
        for i in range(steps * STEP, k):
            to[index(to_at + i)] = widen(row[index(at + i)])

    return load


def _add_in_order(source: Format) -> Any:
    """jitted: acc[i] += w[i] * x[i], lane by lane as the elements lie.

    One step after the other, though the accumulators then pass through memory each time: taking
    several steps at once was slower, since a row is then read in several short streams.
    """
    widen = casts.widen(source)

    @jit
    def add(b: Any, row: int, w: Any, x: Any, x_at: int, steps: int, lanes: Any, at: int) -> None:
        for step in range(steps):
            r, c = row + step * STEP, x_at + step * STEP
            for i in range(STEP):
                lanes[index(at + i)] += widen(b[index(r + i)]) * x[index(c + i)]

    return add


def _add_halved(accumulators: int) -> Any:
    """jitted: a vector's eight products halved to one or two sums, which the lane adds."""

    @jit
    def products(w: Any, w_at: int, x: Any, x_at: int) -> Any:
        return w[index(w_at)] * x[index(x_at)]

    @jit
    def two_of_four(w: Any, w_at: int, x: Any, x_at: int) -> Any:
        """Positions i, i + 4, i + 2 and i + 6 of a vector."""
        near = products(w, w_at, x, x_at) + products(w, w_at + 4 * LANES, x, x_at + 4 * LANES)
        w_at, x_at = w_at + 2 * LANES, x_at + 2 * LANES
        far = products(w, w_at, x, x_at) + products(w, w_at + 4 * LANES, x, x_at + 4 * LANES)
        return near + far

    @jit
    def add_one(
        b: Any, row: int, w: Any, x: Any, x_at: int, steps: int, lanes: Any, at: int
    ) -> None:
        for step in range(steps):
            r, c = step * STEP, x_at + step * STEP
            for lane in range(LANES):
                even = two_of_four(w, r + lane, x, c + lane)
                odd = two_of_four(w, r + LANES + lane, x, c + LANES + lane)
                lanes[index(at + lane)] += even + odd

    @jit
    def add_two(
        b: Any, row: int, w: Any, x: Any, x_at: int, steps: int, lanes: Any, at: int
    ) -> None:
        for step in range(steps):
            r, c = step * STEP, x_at + step * STEP
            for i in range(2 * LANES):
                lanes[index(at + i)] += two_of_four(w, r + i, x, c + i)

    return {1: add_one, 2: add_two}[accumulators]


@jit
def _finish_in_order(lanes: Any, at: int) -> Any:
    """Each lane's eight accumulators halved, then the lanes."""
    for lane in range(LANES):
        c = at + lane * VECTOR
        even = (lanes[index(c)] + lanes[index(c + 4)]) + (lanes[index(c + 2)] + lanes[index(c + 6)])
        odd = (lanes[index(c + 1)] + lanes[index(c + 5)]) + (
            lanes[index(c + 3)] + lanes[index(c + 7)]
        )
        # Behind this lane's own accumulators nothing is read any more.
        lanes[index(at + lane)] = even + odd
    return _butterfly(lanes, at)


def _finish_by_position(accumulators: int) -> Any:
    if accumulators == 1:
        return _butterfly

    @jit
    def finish(lanes: Any, at: int) -> Any:
        for lane in range(LANES):
            lanes[index(at + lane)] += lanes[index(at + LANES + lane)]
        return _butterfly(lanes, at)

    return finish


@jit
def _butterfly(lanes: Any, at: int) -> Any:
    """The XOR butterfly 16, 8, 4, 2, 1 over 32 lanes, as lane 0 sees it."""
    for i in range(16):
        lanes[index(at + i)] += lanes[index(at + 16 + i)]
    for i in range(8):
        lanes[index(at + i)] += lanes[index(at + 8 + i)]
    for i in range(4):
        lanes[index(at + i)] += lanes[index(at + 4 + i)]
    return (lanes[at] + lanes[at + 2]) + (lanes[at + 1] + lanes[at + 3])


# ------------------------------------------------------------------------------------ tiles


def run_tiles(order: Schedule, source: Format, shared: tuple[Any, ...]) -> None:
    """A unit of work is a tile of 64 x 64."""
    *_, table, columns, k, _ = shared
    kernel = _compile_tiles(order, source)
    tiles = tiles_of(table, columns)

    def block(first: int, stop: int) -> None:
        kernel(*shared, tiles, first, stop)

    rows = min(TILE, table[:, 1].max())
    launch(block, len(tiles), rows * TILE * k * TILE_NANOSECONDS_A_PRODUCT)


def tiles_of(table: np.ndarray, columns: int) -> np.ndarray:
    """(group, tile row, tile column) of every tile, in the order of the original's launches.

    Groups follow each other (launches of a few groups change nothing in that); in a group the
    grid is 2^m x 2^n tiles in Morton order, and those outside the group exit at once.
    """
    across = -(-columns // TILE)
    most = -(-int(table[:, 1].max()) // TILE)
    grid = [(row, column) for row, column in morton(most, across) if row < most and column < across]
    order = np.array(grid, np.int64)
    parts = []
    for z, rows in enumerate(table[:, 1]):
        mine = order[order[:, 0] * TILE < rows]
        parts.append(np.column_stack([np.full(len(mine), z), mine]))
    return np.concatenate(parts)


def morton(down: int, across: int) -> Iterator[tuple[int, int]]:
    """(row, column) over a grid rounded up to powers of two.

    Of the bits that both axes have, the even ones are the column and the odd ones the row; the
    rest extends the longer axis.
    """
    down_bits, across_bits = (math.ceil(math.log2(n)) for n in (down, across))
    both = min(down_bits, across_bits)
    for index in range(1 << (down_bits + across_bits)):
        row = column = 0
        for bit in range(both):
            column |= (index >> (2 * bit) & 1) << bit
            row |= (index >> (2 * bit + 1) & 1) << bit
        rest = index >> (2 * both) << both
        yield (row | rest, column) if down_bits > across_bits else (row, column | rest)


@cache
def _compile_tiles(order: Schedule, source: Format) -> Any:
    match order:
        case MmaStrips(inside="exact"):
            parts = _exact_mma(source)
        case MmaStrips(inside="fma"):
            parts = _chain(source, STRIP_ORDER, ZERO)
        case MmaStrips(inside="tree"):
            parts = _tree(source)
        case schedules.Sequential(fused=True):
            # Behind the end of K the product is -0, which changes no sum, not even -0.
            parts = _chain(source, tuple(range(STRIP)), np.float32(-0.0))
        case schedules.Exact(rounded_products=False):
            parts = _exact(source)
        case _:
            raise TypeError(f"no compiled form of {order}")
    wide, positions, padding, add_strip, finish = parts
    real = np.float64 if wide else np.float32
    place = np.empty(STRIP, np.int64)
    place[list(positions)] = np.arange(STRIP)
    widen = casts.widen(source)
    extent = _extent(source)
    last_place = 2.0**-source.mantissa_bits

    @jit
    def kernel(
        a: Any, a_stride: int, b: Any, expert_stride: int, row_stride: int, table: Any,
        columns: int, k: int, out: Any, tiles: Any, first: int, stop: int,
    ) -> None:  # fmt: skip
        strip_a = np.empty(TILE * STRIP, real)
        strip_b = np.empty(STRIP * TILE, real)
        total = np.empty(TILE * TILE, real)
        #: per row of the tile: the sum of the bounds on the magnitudes of its products
        size = np.empty(TILE, np.float64)
        largest_b, quantum_b = np.zeros(TILE, np.float64), np.zeros(TILE, np.float64)
        for unit in range(first, stop):
            z, tile_row, tile_column = tiles[unit, 0], tiles[unit, 1], tiles[unit, 2]
            row0, n0 = table[z, 0] + tile_row * TILE, tile_column * TILE
            rows = min(TILE, table[z, 1] - tile_row * TILE)
            wanted = min(TILE, columns - n0)
            b0 = table[z, 2] * expert_stride + n0 * row_stride
            total[:] = 0
            size[:] = 0
            strip_b[:] = 0
            for k0 in range(0, k, STRIP):
                valid = min(STRIP, k - k0)
                if valid < STRIP:
                    strip_a[:] = padding
                    strip_b[:] = 0
                for n in range(wanted):
                    at = b0 + n * row_stride + k0
                    for i in range(valid):
                        strip_b[index(place[i] * TILE + n)] = widen(b[index(at + i)])
                most_b = 0.0
                if wide:
                    _column_extents(strip_b, largest_b, quantum_b, last_place)
                    for n in range(TILE):
                        most_b = most_b if largest_b[n] <= most_b else largest_b[n]
                for r in range(rows):
                    at = (row0 + r) * a_stride + k0
                    for i in range(valid):
                        strip_a[index(r * STRIP + place[i])] = widen(a[index(at + i)])
                    largest, quantum_a = 0.0, 0.0
                    if wide:
                        largest, quantum_a = extent(a, at, valid)
                        largest *= most_b
                        size[r] += largest
                    add_strip(
                        strip_a, r * STRIP, strip_b, total, r * TILE, largest, quantum_a, quantum_b
                    )
            for r in range(rows):
                for n in range(wanted):
                    value = finish(
                        total[r * TILE + n], size[r], a, (row0 + r) * a_stride,
                        b, b0 + n * row_stride, k,
                    )  # fmt: skip
                    out[(row0 + r) * columns + n0 + n] = value if value == value else NAN

    return kernel


#: more than any product of two 16-bit floats
HUGE = 2.0**300


@jit
def _column_extents(strip: Any, largest: Any, quantum: Any, last_place: float) -> None:
    """For each column of a strip: the largest magnitude, and a unit that divides every element.

    That is the last place of the smallest element that is not zero; a column of zeros gets a
    huge one.  A NaN becomes neither; it makes its own sums NaN in any case.
    """
    for n in range(TILE):
        largest[n] = 0.0
        quantum[n] = HUGE
    for i in range(STRIP):
        for n in range(TILE):
            size = abs(strip[index(i * TILE + n)])
            largest[n] = size if size > largest[n] else largest[n]
            size = size if size > 0.0 else HUGE
            quantum[n] = size if size < quantum[n] else quantum[n]
    for n in range(TILE):
        power = bits_float64(float64_bits(quantum[n]) & EXPONENT_FIELD)
        quantum[n] = power * last_place


def _extent(source: Format) -> Any:
    """jitted: the same for one row, from its codes."""
    widen = casts.widen(source)
    magnitude = numba.uint16(source.magnitude)
    last_place = 2.0**-source.mantissa_bits

    @jit
    def extent(x: Any, at: int, k: int) -> Any:
        largest = numba.uint16(0)
        smallest = numba.uint16(0xFFFF)
        for i in range(k):
            code = numba.uint16(x[index(at + i)] & magnitude)
            largest = max(largest, code)
            smallest = min(smallest, numba.uint16(code - 1))  # a zero becomes the largest
        if largest == 0:
            return 0.0, HUGE
        power = float64_bits(numba.float64(widen(smallest + 1))) & EXPONENT_FIELD
        return numba.float64(widen(largest)), bits_float64(power) * last_place

    return extent


@jit
def _sixteen(
    a0: Any, a1: Any, a2: Any, a3: Any, a4: Any, a5: Any, a6: Any, a7: Any, a8: Any, a9: Any,
    a10: Any, a11: Any, a12: Any, a13: Any, a14: Any, a15: Any, b: Any, c: int, s: Any,
) -> Any:  # fmt: skip
    """s and 16 products, by fma in the type of the operands."""
    s = fma(a0, b[index(c)], s)
    s = fma(a1, b[index(c + TILE)], s)
    s = fma(a2, b[index(c + 2 * TILE)], s)
    s = fma(a3, b[index(c + 3 * TILE)], s)
    s = fma(a4, b[index(c + 4 * TILE)], s)
    s = fma(a5, b[index(c + 5 * TILE)], s)
    s = fma(a6, b[index(c + 6 * TILE)], s)
    s = fma(a7, b[index(c + 7 * TILE)], s)
    s = fma(a8, b[index(c + 8 * TILE)], s)
    s = fma(a9, b[index(c + 9 * TILE)], s)
    s = fma(a10, b[index(c + 10 * TILE)], s)
    s = fma(a11, b[index(c + 11 * TILE)], s)
    s = fma(a12, b[index(c + 12 * TILE)], s)
    s = fma(a13, b[index(c + 13 * TILE)], s)
    s = fma(a14, b[index(c + 14 * TILE)], s)
    return fma(a15, b[index(c + 15 * TILE)], s)


def _chain(source: Format, positions: tuple[int, ...], padding: np.float32) -> Any:
    """32 fma in a row, in the order of ``positions``."""

    @jit
    def add_strip(
        a: Any,
        at: int,
        b: Any,
        total: Any,
        to: int,
        largest: float,
        quantum_a: float,
        quantum_b: Any,
    ) -> None:
        for half in range(2):
            i, j = at + half * 16, half * 16 * TILE
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            a4, a5, a6, a7 = a[i + 4], a[i + 5], a[i + 6], a[i + 7]
            a8, a9, a10, a11 = a[i + 8], a[i + 9], a[i + 10], a[i + 11]
            a12, a13, a14, a15 = a[i + 12], a[i + 13], a[i + 14], a[i + 15]
            for n in range(TILE):
                total[index(to + n)] = _sixteen(
                    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
                    b, j + n, total[index(to + n)],
                )  # fmt: skip

    return False, positions, padding, add_strip, _as_it_is


@jit
def _as_it_is(value: Any, size: float, a: Any, a_at: int, b: Any, b_at: int, k: int) -> Any:
    return value


def _tree(source: Format) -> Any:
    """Twice: 16 rounded products added up by neighbours, and that to the accumulator."""

    @jit
    def four(a0: Any, a1: Any, a2: Any, a3: Any, b: Any, c: int) -> Any:
        return (a0 * b[index(c)] + a1 * b[index(c + TILE)]) + (
            a2 * b[index(c + 2 * TILE)] + a3 * b[index(c + 3 * TILE)]
        )

    @jit
    def add_strip(
        a: Any,
        at: int,
        b: Any,
        total: Any,
        to: int,
        largest: float,
        quantum_a: float,
        quantum_b: Any,
    ) -> None:
        for half in range(2):
            i, j = at + half * 16, half * 16 * TILE
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            a4, a5, a6, a7 = a[i + 4], a[i + 5], a[i + 6], a[i + 7]
            a8, a9, a10, a11 = a[i + 8], a[i + 9], a[i + 10], a[i + 11]
            a12, a13, a14, a15 = a[i + 12], a[i + 13], a[i + 14], a[i + 15]
            for n in range(TILE):
                c = j + n
                low = four(a0, a1, a2, a3, b, c) + four(a4, a5, a6, a7, b, c + 4 * TILE)
                high = four(a8, a9, a10, a11, b, c + 8 * TILE) + four(
                    a12, a13, a14, a15, b, c + 12 * TILE
                )
                total[index(to + n)] += low + high

    return False, STRIP_ORDER, ZERO, add_strip, _as_it_is


def _exact_mma(source: Format) -> Any:
    """Twice: 16 products and the accumulator added exactly in float64, one rounding to float32.

    Products of 16-bit floats are exact in float64.  Let every product be a multiple of q and at
    most L, and the accumulator s a multiple of its own last place u.  Then every partial sum is a
    multiple of q or of u, whichever is smaller, and at most 16 L + |s|.  If that bound is below
    2^53 q and 2^53 u, all of them fit into 53 bits and no addition rounds:

        |s| <= 2^52 q - 16 L, and s = 0 or |s| >= 2^-24 L

    (|s| < 2^24 u, so the latter gives 16 L + |s| <= (2^28 + 1) |s| < 2^53 u).  Where that does not
    hold, 16 additions are still within 16 * 2^-53 (16 L + |s|), and a little, of the exact sum; if
    everything within twice that rounds to the same float32, not zero (whose sign would be open),
    that is the one.  Otherwise, a tie as a rule, the output becomes NaN, and what is NaN at the end
    is computed again, sum by sum.
    """
    widen = casts.widen(source)
    exact_sum = sums.products(schedules.Exact(rounded_products=False)).run
    place = np.array(STRIP_ORDER)

    @jit
    def add_strip(
        a: Any,
        at: int,
        b: Any,
        total: Any,
        to: int,
        largest: float,
        quantum_a: float,
        quantum_b: Any,
    ) -> None:
        low, room, taken = 2.0**-24 * largest, 2.0**52 * quantum_a, 16 * largest
        for half in range(2):
            i, j = at + half * 16, half * 16 * TILE
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            a4, a5, a6, a7 = a[i + 4], a[i + 5], a[i + 6], a[i + 7]
            a8, a9, a10, a11 = a[i + 8], a[i + 9], a[i + 10], a[i + 11]
            a12, a13, a14, a15 = a[i + 12], a[i + 13], a[i + 14], a[i + 15]
            for n in range(TILE):
                before = total[index(to + n)]
                # The added +0 turns a -0 into +0, so that an exact sum of zero is +0.
                s = _sixteen(
                    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
                    b, j + n, before + 0.0,
                )  # fmt: skip
                size = abs(before)
                high = room * quantum_b[n] - taken
                proven = (size <= high) & ((size >= low) | (size == 0.0))
                margin = (taken + size) * 2.0**-48
                down, up = numba.float32(s - margin), numba.float32(s + margin)
                proven |= (down == up) & (down != ZERO)
                total[index(to + n)] = numba.float64(numba.float32(s)) if proven else np.nan

    @jit
    def finish(value: float, size: float, a: Any, a_at: int, b: Any, b_at: int, k: int) -> Any:
        if value == value:
            return numba.float32(value)
        half = STRIP // 2
        x, y = np.zeros(half + 1, np.float32), np.ones(half + 1, np.float32)
        total = ZERO
        for k0 in range(0, k, STRIP):
            for first in range(0, STRIP, half):
                s, lost = numba.float64(total) + 0.0, 0.0
                for i in range(half):
                    at = k0 + place[first + i]
                    x[i] = widen(a[a_at + at]) if at < k else ZERO
                    y[i] = widen(b[b_at + at]) if at < k else ZERO
                    term = numba.float64(x[i]) * numba.float64(y[i])
                    following = s + term
                    virtual = following - s
                    error = (s - (following - virtual)) + (term - virtual)
                    lost = max(lost, abs(error))
                    s = following
                if lost > 0.0:
                    x[half] = total
                    total = exact_sum(x, y, half + 1, x)
                else:
                    total = numba.float32(s)
        return total

    return True, STRIP_ORDER, ZERO, add_strip, finish


def _exact(source: Format) -> Any:
    """All products added in float64; where that does not decide the rounding, exactly.

    A float64 sum of k products is within k * 2^-53 (and a little) of the exact one, relative to
    the sum of the magnitudes, of which 32 * size is a bound.
    """
    widen = casts.widen(source)
    exact_sum = sums.products(schedules.Exact(rounded_products=False)).run

    @jit
    def add_strip(
        a: Any,
        at: int,
        b: Any,
        total: Any,
        to: int,
        largest: float,
        quantum_a: float,
        quantum_b: Any,
    ) -> None:
        for half in range(2):
            i, j = at + half * 16, half * 16 * TILE
            a0, a1, a2, a3 = a[i], a[i + 1], a[i + 2], a[i + 3]
            a4, a5, a6, a7 = a[i + 4], a[i + 5], a[i + 6], a[i + 7]
            a8, a9, a10, a11 = a[i + 8], a[i + 9], a[i + 10], a[i + 11]
            a12, a13, a14, a15 = a[i + 12], a[i + 13], a[i + 14], a[i + 15]
            for n in range(TILE):
                total[index(to + n)] = _sixteen(
                    a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11, a12, a13, a14, a15,
                    b, j + n, total[index(to + n)],
                )  # fmt: skip

    @jit
    def finish(value: float, size: float, a: Any, a_at: int, b: Any, b_at: int, k: int) -> Any:
        margin = numba.float64(k) * 2.0**-52 * (STRIP * size)
        low, high = numba.float32(value - margin), numba.float32(value + margin)
        # Zeros compare as equal, but a sum that rounds to zero has the sign of the exact sum.
        if low == high and (low != ZERO or size == 0.0):
            return low
        x, y = np.empty(k, np.float32), np.empty(k, np.float32)
        for i in range(k):
            x[i], y[i] = widen(a[a_at + i]), widen(b[b_at + i])
        return exact_sum(x, y, k, x)

    return True, tuple(range(STRIP)), ZERO, add_strip, finish
