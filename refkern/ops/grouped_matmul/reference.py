"""grouped_matmul in the order of its stages."""

from __future__ import annotations

from typing import Any

from refkern.op import Call
from refkern.ops.grouped_matmul.recipes import GroupedRecipe
from refkern.ops.grouped_matmul.spec import NO_EXPERT, groups, output

#: products that are held at a time; how many columns are computed at once decides no bit
PRODUCTS_AT_ONCE = 1 << 23


def reference(m: Any, call: Call, recipe: GroupedRecipe) -> None:
    """a: [rows, K]; b: [experts, N, K].  One float32 accumulator an output, one cast at the end.

    Rows in front of the first group, behind the last, and of groups without an expert are +0.
    """
    rows, columns = call.a.shape[0], call.b.shape[1]
    parts, done = [], 0
    for start, stop, expert in groups(call):
        if expert != NO_EXPERT and start < stop:
            parts.append(m.zeros((start - done, columns)))
            parts.append(product(m, m.widen(call.a[start:stop]), m.widen(call.b[expert]), recipe))
            done = stop
    parts.append(m.zeros((rows - done, columns)))

    accumulator = m.stage("accumulator", m.concatenate(parts, axis=0))

    _, dtype = output(call)
    m.stage("out", m.cast(accumulator, dtype))


def product(m: Any, a: Any, b: Any, recipe: GroupedRecipe) -> Any:
    """[rows, K] times [N, K] transposed: every output is a sum of K products of its own."""
    (rows, k), columns = a.shape, b.shape[0]
    step = max(1, PRODUCTS_AT_ONCE // (rows * max(k, 256)))
    parts = [
        m.dot(a[:, None, :], b[None, first : first + step, :], recipe.order)
        for first in range(0, max(columns, 1), step)
    ]
    return m.concatenate(parts, axis=1)
