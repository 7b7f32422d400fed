"""What must hold on a machine for its bits to be refkern's; each check returns "" or a problem."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import refkern
from refkern import ops
from refkern.elementary import exp_correctly_rounded, fma
from refkern.formats import codes
from refkern.goldens.build import build
from refkern.goldens.selection import select
from refkern.verdict import difference


def subnormals_are_kept() -> str:
    """A library that sets flush-to-zero for the whole process changes results."""
    tiny = np.float32(2.0**-126) * np.float32(0.5)
    return "" if tiny > 0 else "this process flushes subnormals to zero"


def exp_is_portable() -> str:
    x = np.arange(-3200, 2816, dtype=np.float32) / np.float32(32)
    total = int(codes(exp_correctly_rounded(x)).astype(np.uint64).sum())
    return "" if total == EXP_SUM else f"exp has other bits: {total}, not {EXP_SUM}"


def fma_rounds_once() -> str:
    a = np.float32(1 + 2.0**-12)
    once = fma(np.array([a]), np.array([a]), np.array([np.float32(-1 - 2.0**-11)]))[0]
    return "" if once == np.float32(2.0**-24) else "fma rounds twice"


def kernels_follow_the_reference() -> str:
    """The first quick case of every op, by the numba kernel."""
    for name in ops.names():
        prepared = build(select(op=name)[0])
        got = getattr(refkern, name)(
            **prepared.call.inputs, **prepared.call.params, recipe=prepared.golden.recipe
        )
        wrong = difference(got, prepared.golden.outputs["out"]).mismatches
        if wrong:
            return f"{name}: {wrong} elements of the kernel are not the reference's"
    return ""


#: sum of the bit patterns of exp at the points of `exp_is_portable`
EXP_SUM = 5_996_482_259_652
CHECKS: dict[str, Callable[[], str]] = {
    "subnormals": subnormals_are_kept,
    "exp": exp_is_portable,
    "fma": fma_rounds_once,
    "kernels": kernels_follow_the_reference,
}
