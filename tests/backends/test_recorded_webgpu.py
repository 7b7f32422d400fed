"""The raw row sums that the WGSL of gated_rmsnorm gave on an NVIDIA H200, replayed.

goldens/recorded/h200_webgpu_sums.npz: wgpu 0.32.0 through Vulkan, driver 580.159.04, subgroups of
32, 2026-11-30; one array for every route, dtype and width of webgpu_sums.py.  float16 squares are
exact in float32, so those sums show the order alone.  The driver contracts float32 products with
the sums they go into, as WGSL allows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from webgpu_sums import OP, ROUTES, row_inputs

from refkern.elementary import fma
from refkern.ops.gated_rmsnorm.recipes import RouteRecipe
from refkern.schedules import Lanes
from refkern.verdict import difference

SUMS = np.load(Path(__file__).parents[2] / "goldens" / "recorded" / "h200_webgpu_sums.npz")


def order_of(recipe: str, columns: int) -> Lanes:
    chosen = OP.recipes[recipe]
    if isinstance(chosen, RouteRecipe):
        return replace(chosen.route, subgroup=32).schedule(columns)
    call = OP.check(*(np.ones(s, np.float32) for s in ((1, columns), columns, (1, columns))))
    found = chosen.for_call(call).squares
    assert isinstance(found, Lanes)
    return found


def contracted(order: Lanes, x: np.ndarray) -> np.ndarray:
    """((x*x + y*y) + z*z) + w*w with an fma for each sum of products; sum + v*v likewise."""
    if order.vector == 1:
        return replace(order, fused=True).replay(x, x)
    x, y, z, w = (x[..., i :: order.vector] for i in range(order.vector))
    dots = fma(w, w, fma(z, z, fma(x, x, y * y)))
    return replace(order, vector=1).replay(dots)


@pytest.mark.parametrize("key", SUMS)
def test_sums_of_an_h200(key: str) -> None:
    recipe, dtype, columns = key.split("/")
    x = row_inputs(dtype, int(columns))[0].astype(np.float32)
    order = order_of(recipe, int(columns))
    assert SUMS[key].size == len(x)
    assert difference(SUMS[key], contracted(order, x)).mismatches == 0
    if dtype == "float16":
        assert difference(SUMS[key], order.replay(x, x)).mismatches == 0


def test_every_route_and_the_contraction_are_seen() -> None:
    assert {key.split("/")[0] for key in SUMS} == set(ROUTES)
    differ = 0
    for key in SUMS:
        recipe, dtype, columns = key.split("/")
        if dtype == "float32":
            x = row_inputs(dtype, int(columns))[0]
            differ += difference(SUMS[key], order_of(recipe, int(columns)).replay(x, x)).mismatches
    assert differ > 100
