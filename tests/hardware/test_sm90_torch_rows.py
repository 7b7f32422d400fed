"""torch's CUDA row sums and means against an H200 (torch 2.11)."""

from __future__ import annotations

import numpy as np
import pytest
from captures import load, mismatches

import refkern
from refkern.compiled.sums import products
from refkern.hardware.sm90 import torch_mean_factor, torch_row_order

CAPTURED = load("h200_torch_row_sums")
NAMES = sorted(name[:-2] for name in CAPTURED if name.endswith("_x"))
UNKNOWN = "red_3x130"


def compiled_sums(order, a, b):
    summed = products(order)
    n = a.shape[-1]
    padded = np.zeros((2, summed.padded(n)), np.float32)
    scratch = np.zeros(summed.scratch(n), np.float32)
    sums = []
    for x, y in zip(a, np.broadcast_to(b, a.shape), strict=True):
        padded[0, :n], padded[1, :n] = x, y
        sums.append(summed.run(padded[0], padded[1], n, scratch))
    return np.array(sums, np.float32)


@pytest.mark.parametrize("name", [n for n in NAMES if n != UNKNOWN])
def test_sums_and_means(name):
    x = CAPTURED[f"{name}_x"].view(np.float32)
    order = torch_row_order(*x.shape)
    factor = np.float32(torch_mean_factor(*x.shape))
    results = {
        "sum": order.replay(x),
        "mean": order.replay(x) * factor,
        "sq": order.replay(x, x) * factor,  # x.pow(2).mean(-1)
    }
    compared = 0
    for what, got in results.items():
        want = CAPTURED.get(f"{name}_{what}")
        if want is not None:
            assert mismatches(got, want.view(np.float32)) == 0, what
            compared += want.size
    assert compared
    few = x[:8]
    assert mismatches(compiled_sums(order, few, np.float32(1)), order.replay(few)) == 0
    assert mismatches(compiled_sums(order, few, few), order.replay(few, few)) == 0


def test_the_order_of_a_row_depends_on_the_rows_beside_it():
    x = CAPTURED["red_300x960_x"].view(np.float32)
    alone = torch_row_order(1, 960).replay(x)
    assert mismatches(alone, CAPTURED["red_300x960_sum"].view(np.float32)) > 0


def test_rows_of_unknown_order_are_refused():
    rows, n = CAPTURED[f"{UNKNOWN}_x"].shape
    with pytest.raises(refkern.InvalidInput, match=r"^n: 130 .*multiples of 4"):
        torch_row_order(rows, n)


def test_every_shape_of_the_domain_has_an_order():
    """Each element counts once: small integers sum exactly in any order."""
    for rows in (0, 1, 2, 3, 5, 16, 100, 511, 512, 4097):
        for n in [*range(1, 128), 128, 132, 956, 960, 2052, 7680, 16384, 100_000, 130_560]:
            order = torch_row_order(rows, n)
            assert order.lanes & (order.lanes - 1) == 0
            assert order.lanes <= 512
            if n <= 2052:
                x = np.arange(1, n + 1, dtype=np.float32)
                assert order.replay(x) == n * (n + 1) // 2


@pytest.mark.parametrize(
    ("rows", "n", "lanes"),
    [(4, 7680, 128), (4, 8064, 128), (4, 8068, 512), (2, 7936, 256), (2, 7940, 512),
     (64, 7680, 32), (64, 8160, 32), (64, 8164, 512), (1, 130_560, 512), (7, 12, 8)],
)  # fmt: skip
def test_from_where_on_a_block_shares_a_row(rows, n, lanes):
    """ceil(n / width) >= min(16 height, 256): torch's Reduce.cuh."""
    assert torch_row_order(rows, n).lanes == lanes


def test_rows_shared_by_blocks_are_refused():
    with pytest.raises(refkern.InvalidInput, match=r"^n: 130564 .*up to 130560"):
        torch_row_order(1, 130_564)


def test_mean_factor():
    assert torch_mean_factor(4, 1024) == 2.0**-10
    assert torch_mean_factor(3, 960) == float(np.float32(1) / np.float32(960))
    # 4097 * 4099 = 16793603 is odd and above 2^24: the number of elements is rounded first.
    want = np.float32(4097) / np.float32(16793604)
    assert torch_mean_factor(4097, 4099) == float(want)
