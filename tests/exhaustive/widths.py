"""How wide the intervals of the quick goldens' outputs are: the table of docs/intervals.md.

python tests/exhaustive/widths.py
"""

from __future__ import annotations

import numpy as np

from refkern import ops, policy
from refkern.goldens.build import build
from refkern.goldens.selection import select
from refkern.ulp import ulp_distance

STORED = ("ieee", "cuda", "metal", "wgsl")


def row(op: str, name: str) -> str:
    forced, narrow, widths, free = [], [], [], 0
    for selected in select(op=op):
        prepared = build(selected)
        recipe = prepared.op.recipe(selected.case.recipe).for_call(prepared.call)
        interval = prepared.op.accept(prepared.call, recipe, policy.load(name))["out"]
        lo, hi = interval.bounds()
        same = (interval.is_point | interval.is_nan).ravel()
        forced.append(same)
        if lo.dtype.itemsize == 2:
            narrow.append(same)
        free += int(interval.free.sum())
        determined = ~interval.free & ~interval.is_nan
        widths.append(np.asarray(ulp_distance(lo, hi))[determined])
    every, of_narrow = np.concatenate(forced), np.concatenate(narrow)
    return (
        f"| {op} | {name} | {every.size} | {100 * every.mean():.2f} % | "
        f"{100 * of_narrow.mean():.2f} % | {np.median(np.concatenate(widths)):g} | {free} |"
    )


def main() -> None:
    print("| op | policy | elements | forced | forced, 16-bit outputs | median width | open |")
    print("|---|---|---|---|---|---|---|")
    for op in ops.names():
        for name in STORED:
            print(row(op, name), flush=True)


if __name__ == "__main__":
    main()
