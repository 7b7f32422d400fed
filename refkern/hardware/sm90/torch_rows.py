"""The order in which torch's CUDA kernels add up rows, as observed on torch 2.11 and an H200.

`sum`, `mean` (and so ``x.pow(2).mean(-1)``) over the last, contiguous axis of float32.
"""

from __future__ import annotations

import numpy as np

from refkern.errors import InvalidInput
from refkern.schedules import Lanes

MAX_THREADS = 512
WARP = 32
#: from this length on, a lane loads four neighbouring elements at a time
VECTORISED_FROM, VECTOR = 128, 4
#: with this many elements each, lanes of other warps, and then other blocks, share a row
MANY_EACH = 256


def _power_of_two(n: int) -> int:
    """The largest power of two that is at most ``n``."""
    return 1 << n.bit_length() - 1


def torch_row_order(rows: int, n: int, *, argument: str = "n") -> Lanes:
    """The schedule of a sum over rows of ``n`` when the whole call has ``rows`` of them.

    So a row alone may have other bits than among others.  The order is not known for rows of 128
    and more whose length is no multiple of 4, and for rows so long (131,072 with 512 lanes) that
    several blocks share one: InvalidInput, which names ``argument``.

    Long rows: lane l takes the elements 4 (l + t lanes) + i into its accumulator i; then the
    accumulators are added in order.  Short rows: the element l + t lanes goes into accumulator
    t % 4; with fewer than 128 elements t never exceeds 3, so that is one accumulator in order.
    Lanes are combined upper half onto lower half, first through shared memory, then by shuffles.

    Captures reach to rows of 7,680, where a row stays with the lanes of one row of threads.  From
    where on (7,940 to 8,164) all threads of a block share it is taken from torch's source.
    """
    if n >= VECTORISED_FROM and n % VECTOR:
        raise InvalidInput(
            argument,
            n,
            f"torch's order is known for rows below {VECTORISED_FROM} and multiples of {VECTOR}",
        )
    vector = VECTOR if n >= VECTORISED_FROM else 1
    across, down = (min(_power_of_two(max(size, 1)), MAX_THREADS) for size in (n // vector, rows))
    width = min(across, WARP)
    height = min(down, MAX_THREADS // width)
    width = min(across, MAX_THREADS // height)
    # A block's rows of threads share one row of the input if that is long, else take one each.
    lanes = width
    if n > (min(16 * height, MANY_EACH) - 1) * width:
        lanes = width * height
        if n > (MANY_EACH - 1) * lanes:
            most = (MANY_EACH - 1) * lanes
            raise InvalidInput(argument, n, f"torch's order of {rows} rows is known up to {most}")
    return Lanes(lanes=lanes, vector=vector, components=vector, fold="sequential")


def torch_mean_factor(rows: int, n: int) -> float:
    """By what torch multiplies a row's sum to get its mean: float32(rows) / float32(rows * n)."""
    with np.errstate(all="ignore"):
        return float(np.float32(rows) / np.float32(rows * n)) if rows else 0.0
