"""The mutants that each committed golden was proven to reject, under each stored policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from refkern import ops
from refkern.goldens import hdf5
from refkern.goldens.build import STORED_POLICIES, build, with_proofs
from refkern.goldens.selection import select

QUICK = Path(__file__).parents[2] / "goldens" / "quick"
#: under ieee a mutant that is not one case's own business is rejected by so many
FEWEST_UNDER_IEEE = 3
#: but for these, which need a dtype, a NaN, a limit or a recipe that only one or two cases have
FEWER = {
    "block_scaled_mlp": {
        "clamp-after-silu", "nan-code-clamped", "nan-not-dropped", "scales-one-by-one",
    },
    "gated_rmsnorm": {
        "cast-ties-away", "casts-added", "normalized-rounded", "stored-through-float16",
    },
    "grouped_matmul": {"cast-toward-zero", "float16-read-as-bfloat16"},
}  # fmt: skip


def rejections(op: str) -> dict[str, dict[str, list[str]]]:
    """policy -> mutant -> the cases that reject it, end to end or by a stage."""
    found: dict[str, dict[str, list[str]]] = {policy: {} for policy in STORED_POLICIES}
    files = sorted((QUICK / op).glob("*.h5"))
    assert files, "no committed goldens"
    for file in files:
        golden = hdf5.read(file)
        for policy in STORED_POLICIES:
            named = golden.mutants.get(policy, []) + golden.mutants.get(f"{policy}+stages", [])
            for mutant in named:
                found[policy].setdefault(mutant, []).append(golden.case)
    return found


@pytest.mark.parametrize("op", ops.names())
def test_every_mutant_is_rejected_under_every_policy_that_does_not_allow_it(op: str) -> None:
    mutants = ops.load(op).part("mutants")
    assert len(mutants.MUTANTS) >= 15
    found = rejections(op)
    for policy in STORED_POLICIES:
        allowed = {name for name, where in mutants.ALLOWED.items() if policy in where}
        for mutant in mutants.MUTANTS:
            rejected = mutant.name in found[policy]
            assert rejected != (mutant.name in allowed), (policy, mutant.name)


@pytest.mark.parametrize("op", ops.names())
def test_several_cases_reject_what_is_not_one_cases_own_business(op: str) -> None:
    loaded = ops.load(op)
    own = {name for case in loaded.part("cases").CASES for name in case.only_here}
    found = rejections(op)["ieee"]
    few = {m for m, cases in found.items() if len(cases) < FEWEST_UNDER_IEEE and m not in own}
    assert few == FEWER.get(op, set())


@pytest.mark.parametrize("op", ops.names())
def test_the_committed_proofs_are_todays(op: str) -> None:
    """The smallest case of the op, proven again."""
    file = min((QUICK / op).glob("*.h5"), key=lambda f: f.stat().st_size)
    stored = hdf5.read(file)
    (selected,) = select([f"{op}/{stored.case}"])
    assert with_proofs(build(selected)).mutants == stored.mutants
