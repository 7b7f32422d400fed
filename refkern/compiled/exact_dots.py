"""Dot products of 128 float64 numbers whose every product and sum is exact, as vector code.

Where nothing rounds, no order can be seen, so the sum may be spread over vector lanes.  LLVM does
not do that by itself to float additions, and must not; here it is written out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic

LENGTH, LANES = 128, 8
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
_INT32 = ir.IntType(32)
#: arrays of 8-byte numbers begin on 8 bytes, wherever a row begins
_ALIGN = 8


@cache
def exact_dots(rows: int, columns: int) -> Any:
    """jitted intrinsic (a, a_at, b, b_at, b_stride, out, out_at, out_stride): a tile of dots.

    out[out_at + r * out_stride + c] = the sum over i < 128 of
    a[a_at + r * 128 + i] * b[b_at + c * b_stride + i], for r < rows and c < columns; all arrays
    are float64 and contiguous.  The caller answers for it that every product and partial sum is
    exact.
    """

    @intrinsic
    def dots(
        context: Any, a: Any, a_at: Any, b: Any, b_at: Any, b_stride: Any, out: Any, out_at: Any,
        out_stride: Any,
    ) -> Any:  # fmt: skip
        arrays = (a, b, out)
        if any(not isinstance(x, types.Array) or x.dtype != types.float64 for x in arrays):
            raise TypeError(f"float64 arrays are needed, not {arrays}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def integer(place: int) -> Any:
                kind = signature.args[place]
                return context.cast(builder, arguments[place], kind, types.intp)

            def pointer(array: int, place: int) -> Any:
                kind = signature.args[array]
                data = context.make_array(kind)(context, builder, arguments[array]).data
                return builder.gep(data, [integer(place)])

            def moved(base: Any, count: int, stride: Any) -> Any:
                return builder.gep(base, [builder.mul(stride, ir.Constant(stride.type, count))])

            def load(base: Any, i: int) -> Any:
                place = builder.gep(base, [ir.Constant(ir.IntType(64), i)])
                return builder.load(builder.bitcast(place, _VECTOR.as_pointer()), align=_ALIGN)

            left, right, results = pointer(0, 1), pointer(2, 3), pointer(5, 6)
            right_stride, result_stride = integer(4), integer(7)
            rights = [moved(right, c, right_stride) for c in range(columns)]
            tile = [(r, c) for r in range(rows) for c in range(columns)]
            # At least eight accumulators, so that none waits for its own last addition.
            chains = max(8 // len(tile), 1)
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            sums = {place: [zero] * chains for place in tile}
            fma = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(_VECTOR, [_VECTOR] * 3),
                f"llvm.fma.v{LANES}f64",
            )
            for i in range(0, LENGTH, LANES):
                chain = i // LANES % chains
                row_values = [load(left, r * LENGTH + i) for r in range(rows)]
                column_values = [load(row, i) for row in rights]
                for r, c in tile:
                    terms = [row_values[r], column_values[c], sums[r, c][chain]]
                    sums[r, c][chain] = builder.call(fma, terms)
            for r, c in tile:
                total = sums[r, c][0]
                for other in sums[r, c][1:]:
                    total = builder.fadd(total, other)
                result = _lanes_added(builder, total)
                place = moved(results, r, result_stride)
                builder.store(result, builder.gep(place, [ir.Constant(ir.IntType(64), c)]))
            return context.get_dummy_value()

        return types.void(a, a_at, b, b_at, b_stride, out, out_at, out_stride), generate

    return dots


def _lanes_added(builder: Any, total: Any) -> Any:
    half = LANES // 2
    while half:
        mask = [half + i if i < half else 0 for i in range(LANES)]
        lanes = ir.Constant(ir.VectorType(_INT32, LANES), mask)
        total = builder.fadd(total, builder.shuffle_vector(total, total, lanes))
        half //= 2
    return builder.extract_element(total, ir.Constant(_INT32, 0))
