"""Each mutant against the usual tolerances and against refkern, on the same outputs.

    python tests/exhaustive/against_tolerances.py > docs/against-tolerances.md

A check catches a mutant if it rejects its output in at least one quick case of the op.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from refkern import casts, ops, policy
from refkern.formats import BFLOAT16, FLOAT16, format_of
from refkern.goldens.build import build
from refkern.goldens.selection import select
from refkern.intervals import Interval
from refkern.verdict import Judge, difference

Check = Callable[[np.ndarray, np.ndarray, np.dtype, str], bool]


def close(got: np.ndarray, want: np.ndarray, rtol: float, atol: float) -> bool:
    return bool(np.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True))


def torch_testing(got: np.ndarray, want: np.ndarray, dtype: np.dtype, op: str) -> bool:
    """torch.testing.assert_close's defaults of the output's dtype."""
    fmt = format_of(dtype)
    rtol = {BFLOAT16: 1.6e-2, FLOAT16: 1e-3}.get(fmt, 1.3e-6)
    return close(got, want, rtol, 1e-5)


def finite(got: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Both where both are finite; None if they are not finite in the same places."""
    kept = np.isfinite(got) & np.isfinite(want)
    alike = np.array_equal(np.isfinite(got), np.isfinite(want))
    return (got[kept], want[kept]) if alike else None


def aggregate(
    measure: Callable[[np.ndarray, np.ndarray], float], limit: Callable[[str], float]
) -> Check:
    def check(got: np.ndarray, want: np.ndarray, dtype: np.dtype, op: str) -> bool:
        pair = finite(got, want)
        return pair is not None and measure(*pair) <= limit(op)

    return check


def calc_diff(got: np.ndarray, want: np.ndarray) -> float:
    """DeepGEMM's 1 - 2 <x, y> / (<x, x> + <y, y>)."""
    total = (got * got + want * want).sum()
    return 0.0 if total == 0 else float(1 - 2 * (got * want).sum() / total)


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """llama.cpp's normalised mean squared error."""
    total = (want * want).sum()
    return 0.0 if total == 0 else float(((got - want) ** 2).sum() / total)


def cosine_distance(got: np.ndarray, want: np.ndarray) -> float:
    size = np.sqrt((got * got).sum() * (want * want).sum())
    return 0.0 if size == 0 else float(1 - (got * want).sum() / size)


INTRODUCTION = """\
Made by `python tests/exhaustive/against_tolerances.py`.  "caught": the check rejects the mutant in
at least one quick case of the op; "-": the mutant passes everywhere.  refkern, cuda: by the
acceptance interval under policy cuda, of the output or of a stage judged from the mutant's own
stage before it.  A mutant that passes there is one that the policy allows: another order of a sum,
another form of silu, a function within its budget."""
MATMULS = ("grouped_matmul", "block_scaled_mlp")
CHECKS: dict[str, Check] = {
    "allclose(2e-2, 1e-2)": lambda got, want, dtype, op: close(got, want, 2e-2, 1e-2),
    "torch.testing": torch_testing,
    "calc_diff < 1e-3": aggregate(calc_diff, lambda op: 1e-3),
    "llama.cpp NMSE": aggregate(nmse, lambda op: 5e-4 if op in MATMULS else 1e-7),
    "cosine > 0.99": aggregate(cosine_distance, lambda op: 0.01),
}


def caught_by(op_name: str) -> dict[str, set[str]]:
    """mutant -> the checks that reject it in some quick case."""
    caught: dict[str, set[str]] = {m.name: set() for m in ops.load(op_name).part("mutants").MUTANTS}
    for selected in select(op=op_name):
        prepared = build(selected)
        op, call, chosen = prepared.op, prepared.call, prepared.chosen()
        want = prepared.golden.outputs["out"]
        judge = Judge(op, call, policy=policy.load("cuda"))
        interval = judge.interval(selected.case.recipe)
        own = {**prepared.golden.stages, "out": want}
        usable = judge.first_guilty_stage(own, selected.case.recipe) is None
        for mutant in op.part("mutants").MUTANTS:
            stages = mutant.stages(op, call, chosen)
            names = rejections(stages["out"], want, interval if usable else None, op_name)
            if usable and judge.first_guilty_stage(stages, selected.case.recipe) is not None:
                names.add("refkern, cuda")
            caught[mutant.name] |= names
    return caught


def rejections(got: np.ndarray, want: np.ndarray, interval: Interval | None, op: str) -> set[str]:
    if got.dtype != want.dtype or got.shape != want.shape:
        return {*CHECKS, "refkern, bits", "refkern, cuda"}
    wide_got = casts.widen(got).astype(np.float64)
    wide_want = casts.widen(want).astype(np.float64)
    found = {
        name for name, check in CHECKS.items() if not check(wide_got, wide_want, got.dtype, op)
    }
    if difference(got, want).mismatches:
        found.add("refkern, bits")
    if interval is not None and not interval.accepts(got):
        found.add("refkern, cuda")
    return found


def main() -> None:
    columns = [*CHECKS, "refkern, bits", "refkern, cuda"]
    print("# The usual tolerances against refkern\n")
    print(INTRODUCTION)
    for op in ops.names():
        caught = caught_by(op)
        print(f"\n## {op}\n")
        print("| the kernel | " + " | ".join(columns) + " |")
        print("|---|" + "---|" * len(columns))
        for mutant in ops.load(op).part("mutants").MUTANTS:
            cells = ["caught" if c in caught[mutant.name] else "-" for c in columns]
            print(f"| {mutant.says} (`{mutant.name}`) | " + " | ".join(cells) + " |")
        totals = [str(sum(c in names for names in caught.values())) for c in columns]
        print(f"| **caught, of {len(caught)}** | " + " | ".join(totals) + " |")


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
