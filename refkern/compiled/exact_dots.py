"""Dot products of 128 float64 numbers whose every product and sum is exact, as vector code.

Where nothing rounds, no order can be seen, so the sum may be spread over vector lanes.  LLVM does
not do that by itself to float additions, and must not; here it is written out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

LENGTH, LANES = 128, 8
_VECTOR = ir.VectorType(ir.DoubleType(), LANES)
#: arrays of 8-byte numbers begin on 8 bytes, wherever a group begins
_ALIGN = 8


@cache
def exact_dots(count: int) -> Any:
    """jitted intrinsic (a, b, at, stride, out, to): ``count`` dot products with one a.

    out[to + t] = the sum of a[i] * b[at + t * stride + i] over i < 128; all arrays float64 and
    contiguous.  The caller answers for it that every product and partial sum is exact.
    """

    @intrinsic
    def dots(context: Any, a: Any, b: Any, at: Any, stride: Any, out: Any, to: Any) -> Any:
        arrays = (a, b, out)
        if any(not isinstance(x, types.Array) or x.dtype != types.float64 for x in arrays):
            raise TypeError(f"float64 arrays are needed, not {arrays}")

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a_type, b_type, at_type, stride_type, out_type, to_type = signature.args
            intp = types.intp
            first = context.cast(builder, arguments[2], at_type, intp)
            step = context.cast(builder, arguments[3], stride_type, intp)
            target = context.cast(builder, arguments[5], to_type, intp)
            a_data, b_data, out_data = (
                context.make_array(kind)(context, builder, value).data
                for kind, value in ((a_type, arguments[0]), (b_type, arguments[1]),
                                    (out_type, arguments[4]))
            )  # fmt: skip
            fma = cgutils.get_or_insert_function(
                builder.module,
                ir.FunctionType(_VECTOR, [_VECTOR] * 3),
                f"llvm.fma.v{LANES}f64",
            )

            def load(pointer: Any) -> Any:
                wide = builder.bitcast(pointer, _VECTOR.as_pointer())
                return builder.load(wide, align=_ALIGN)

            rows = []
            for t in range(count):
                start = builder.add(first, builder.mul(step, ir.Constant(step.type, t)))
                rows.append(builder.gep(b_data, [start]))
            # Eight accumulators together, so that none waits for its own last addition.
            chains = max(8 // count, 1)
            sums = [[ir.Constant(_VECTOR, [0.0] * LANES)] * chains for _ in range(count)]
            for i in range(0, LENGTH, LANES):
                index = ir.Constant(first.type, i)
                left = load(builder.gep(a_data, [index]))
                for t, row in enumerate(rows):
                    chain = i // LANES % chains
                    right = load(builder.gep(row, [index]))
                    sums[t][chain] = builder.call(fma, [left, right, sums[t][chain]])
            for t in range(count):
                total = sums[t][0]
                for other in sums[t][1:]:
                    total = builder.fadd(total, other)
                half = LANES // 2
                while half:
                    mask = [half + i if i < half else 0 for i in range(LANES)]
                    upper = builder.shuffle_vector(
                        total, total, ir.Constant(ir.VectorType(ir.IntType(32), LANES), mask)
                    )
                    total = builder.fadd(total, upper)
                    half //= 2
                scalar = builder.extract_element(total, ir.Constant(ir.IntType(32), 0))
                place = builder.add(target, ir.Constant(target.type, t))
                builder.store(scalar, builder.gep(out_data, [place]))
            return context.get_dummy_value()

        return types.void(a, b, at, stride, out, to), generate

    return dots
