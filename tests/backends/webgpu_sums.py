"""Raw row sums of the WGSL on this machine's adapter, against their replay.  Prints one JSON line.

A script of its own, because the size of Mesa's subgroups is fixed when a process first uses them:
LP_NATIVE_VECTOR_WIDTH=128, 256 and 512 give subgroups of 4, 8 and 16 lanes.
"""

from __future__ import annotations

import itertools
import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from refkern import ops
from refkern.formats import codes
from refkern.goldens.backends import Unavailable
from refkern.goldens.backends.webgpu.device import Device, open_device
from refkern.goldens.backends.webgpu.gated_rmsnorm import ROUTES, Plan, plan_of, run_plan
from refkern.ops.gated_rmsnorm.recipes import RouteRecipe

OP = ops.load("gated_rmsnorm")
ROWS = 48
#: rows of one lane, of idle lanes, of a full subgroup, of several steps; odd widths for scalars
WIDTHS = {4: (4, 12, 100, 128, 1000, 4096), 1: (1, 7, 33, 129, 1001)}
#: orders that the recipes do not take, and a device might
CHANGES: tuple[dict[str, Any], ...] = (
    {"strided": False},
    {"accumulators": "components"},
    {"combine": "ascending"},
)


def row_inputs(dtype: str, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(columns)
    shape = (ROWS, columns)
    arrays = (drawn.normal(0, 1, s).astype(dtype) for s in (shape, columns, shape))
    return tuple(arrays)  # type: ignore[return-value]


def replay(recipe: str, subgroup: int, x: np.ndarray, **changed: Any) -> np.ndarray:
    """The reference's sums of squares on a device with subgroups of that size."""
    chosen: RouteRecipe = OP.recipes[recipe]
    route = replace(chosen.route, subgroup=subgroup, **changed)
    call = OP.check(x, np.ones(x.shape[-1], x.dtype), x)
    return OP.stages_of(call, replace(chosen, route=route).for_call(call))["sum_of_squares"]


def shader(device: Device, plan: Plan, dtype: str, columns: int) -> np.ndarray:
    return run_plan(device, plan, *row_inputs(dtype, columns))[1]


def compare(device: Device, dtypes: tuple[str, ...]) -> tuple[int, int]:
    """(sums compared, sums that differ) over routes, widths and orders."""
    compared = wrong = 0
    for recipe, dtype in itertools.product(ROUTES, dtypes):
        widths = WIDTHS[ROUTES[recipe][1]]
        jobs: list[tuple[int, dict[str, Any]]] = [(columns, {}) for columns in widths]
        if dtype == "float32" and recipe.startswith("webgpu"):
            jobs += [(widths[-1], change) for change in CHANGES if applies(change, recipe)]
        for columns, change in jobs:
            plan = replace(plan_of(recipe, columns, device.subgroup), **change)
            got = shader(device, plan, dtype, columns)
            want = replay(recipe, device.subgroup, row_inputs(dtype, columns)[0], **change)
            compared += got.size
            wrong += int(np.count_nonzero(codes(got) != codes(want)))
    return compared, wrong


def applies(change: dict[str, Any], recipe: str) -> bool:
    if "accumulators" in change:
        return ROUTES[recipe][1] == 4
    return "combine" not in change or ROUTES[recipe][0] != "workgroup"


def confused(device: Device, dtypes: tuple[str, ...]) -> list[str]:
    """Pairs of routes of another order that the sums of rows of 1024 do not tell apart."""
    found = []
    for dtype in dtypes:
        x = row_inputs(dtype, 1024)[0]
        ran = {r: shader(device, plan_of(r, 1024, device.subgroup), dtype, 1024) for r in ROUTES}
        replayed = {r: replay(r, device.subgroup, x) for r in ROUTES}
        for one, other in itertools.product(ROUTES, ROUTES):
            same = bool((codes(ran[one]) == codes(replayed[other])).all())
            plans = [plan_of(r, 1024, device.subgroup) for r in (one, other)]
            if same != (plans[0] == plans[1]):
                found.append(f"{dtype}: {one} as {other}")
    return found


def main() -> int:
    try:
        device = open_device()
    except Unavailable as reason:
        print(json.dumps({"unavailable": str(reason)}))
        return 0
    dtypes = ("float32", "float16") if device.has_float16 else ("float32",)
    compared, wrong = compare(device, dtypes)
    report = {
        "device": device.description,
        "subgroup": device.subgroup,
        "dtypes": dtypes,
        "compared": compared,
        "wrong": wrong,
        "confused": confused(device, dtypes),
    }
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
