"""Honest kernels (tests/intervals/honest.py) are accepted, on every stage, under every policy.

CI runs a few per case; tests/exhaustive/no_false_alarms.py runs thousands.
"""

from __future__ import annotations

import numpy as np
import pytest
from honest import Honest

from refkern import ops, policy
from refkern.goldens.build import build
from refkern.goldens.selection import Selected, select

STORED = ("ieee", "cuda", "metal", "wgsl")
#: kernels per op and policy in CI
KERNELS = 50
#: elements of the largest input, and how many cases: the smallest
LARGEST, MOST_CASES = 300_000, 12


def small_cases(op: str) -> list[Selected]:
    sized = []
    for selected in select(op=op):
        largest = max(int(np.prod(t.shape)) for t in selected.case.inputs.values() if t is not None)
        if largest <= LARGEST:
            sized.append((largest, selected))
    sized.sort(key=lambda pair: pair[0])
    return [selected for _, selected in sized[:MOST_CASES]]


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("op", ops.names())
def test_honest_kernels_are_accepted(op: str, name: str) -> None:
    cases = small_cases(op)
    assert cases
    each = -(-KERNELS // len(cases))
    for selected in cases:
        rejected = run(selected, name, range(each))
        assert not rejected, f"{selected.case.name}: {rejected[0]}"


def run(selected: Selected, name: str, seeds: range) -> list[str]:
    """What was rejected, as text."""
    prepared = build(selected)
    op, call = prepared.op, prepared.call
    recipe = op.recipe(selected.case.recipe).for_call(call)
    chosen = policy.load(name)
    accepted = op.accept(call, recipe, chosen)
    rejected = []
    for seed in seeds:
        kernel = Honest(chosen, seed)
        with np.errstate(all="ignore"):
            op.part("reference").reference(kernel, call, recipe)
        for stage, values in kernel.stages.items():
            out = ~accepted[stage].holds(values)
            if out.any():
                where = tuple(int(i) for i in np.argwhere(out)[0])
                interval = accepted[stage]
                rejected.append(
                    f"seed {seed}, {stage}{list(where)}: {values[where]!r} is not within "
                    f"[{interval.lo[where]!r}, {interval.hi[where]!r}]"
                )
                break
    return rejected
