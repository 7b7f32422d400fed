"""Every op's golden cases: right by two implementations, and each there for a reason."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest

import refkern
from refkern import ops
from refkern.case import TIERS
from refkern.goldens import hdf5
from refkern.goldens.build import Prepared, build, with_proofs
from refkern.goldens.golden import DTYPES
from refkern.goldens.inputs import describe_inputs, make_inputs, make_tensor, parse_description
from refkern.goldens.selection import Selected, all_cases, select
from refkern.verdict import difference


def name_of(selected: Selected) -> str:
    return f"{selected.op.name}/{selected.case.name}"


QUICK = select()
ONE_FILE, ALL_FILES = 1 << 20, 24 << 20
NAMES = [name_of(s) for s in QUICK]
#: a tensor that is larger is described in the file, not stored
LARGEST_STORED = 8 << 20


@cache
def prepared(name: str) -> Prepared:
    (selected,) = select([name])
    return build(selected)


@cache
def rejected(name: str) -> frozenset[str]:
    """The mutants of its op that a case tells from the right semantics."""
    return frozenset(with_proofs(prepared(name), ()).mutants["bits"])


@pytest.mark.parametrize("name", NAMES)
def test_the_kernel_gives_the_bits_of_the_golden(name: str) -> None:
    built = prepared(name)
    call, golden = built.call, built.golden
    got = getattr(refkern, golden.op)(**call.inputs, **call.params, recipe=golden.recipe)
    found = difference(got, golden.outputs["out"])
    assert found.elements > 0
    assert found.mismatches == 0, found.worst


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_case_rejects_what_no_other_does(name: str) -> None:
    """By its own record: `only_here` names at least one mutant, all of them caught here alone."""
    (selected,) = select([name])
    only_here = set(selected.case.only_here)
    others = [s for s in QUICK if s.op is selected.op and name_of(s) != name]
    caught_elsewhere = {m for other in others for m in rejected(name_of(other))}
    assert only_here, "a case that rejects nothing of its own has no reason to be in the tier"
    assert only_here - rejected(name) == set(), "not rejected here"
    assert only_here & caught_elsewhere == set(), "rejected elsewhere too"


@pytest.mark.parametrize("op", ops.names())
def test_every_mutant_is_rejected_and_named_once(op: str) -> None:
    mutants = [m.name for m in ops.load(op).part("mutants").MUTANTS]
    assert len(mutants) == len(set(mutants)) > 0
    caught = {m for s in QUICK if s.op.name == op for m in rejected(name_of(s))}
    assert set(mutants) - caught == set()


@pytest.mark.parametrize("op", ops.names())
def test_cases_have_names_purposes_and_every_recipe(op: str) -> None:
    loaded = ops.load(op)
    cases = [s.case for s in all_cases(op)]
    assert len({c.name for c in cases}) == len(cases)
    assert len({c.purpose for c in cases}) == len(cases)
    for case in cases:
        assert case.name == case.name.lower().replace("-", "_")
        assert len(case.purpose.split()) >= 4, case.name
        assert case.tier in TIERS
        assert case.tier == "quick" or not case.only_here, case.name
    used = {c.recipe for c in cases}
    for case in cases:
        if case.tier == "quick":  # what a recipe that dispatches chose is covered too
            call = loaded.check(**make_inputs(case), **case.params)
            used.add(loaded.recipe(case.recipe).for_call(call).name)
    assert used == set(loaded.recipes)


def test_quick_files_are_small(tmp_path: Path) -> None:
    total = 0
    for selected in QUICK:
        built = prepared(name_of(selected))
        path = tmp_path / f"{selected.op.name}-{selected.case.name}.h5"
        hdf5.write(built.golden, path)
        assert path.stat().st_size < ONE_FILE, name_of(selected)
        total += path.stat().st_size
    assert total < ALL_FILES


def test_a_tensor_is_stored_or_described_by_its_size() -> None:
    for selected in all_cases():
        tensors = [t for t in selected.case.inputs.values() if t is not None]
        largest = max(math.prod(t.shape) * DTYPES[t.dtype].itemsize for t in tensors)
        if selected.case.sampled_rows:
            assert selected.case.tier == "full"
        else:
            assert largest <= LARGEST_STORED, name_of(selected)


@pytest.mark.parametrize("name", NAMES)
def test_inputs_come_again_from_their_description(name: str) -> None:
    (selected,) = select([name])
    seed, tensors = parse_description(describe_inputs(selected.case))
    stored = prepared(name).golden.inputs
    for tensor_name, tensor in tensors.items():
        if tensor is None:
            assert tensor_name not in stored
            continue
        again = make_tensor(seed, tensor_name, tensor)
        assert again.dtype == stored[tensor_name].dtype
        assert again.tobytes() == stored[tensor_name].tobytes()


def test_the_file_names_the_rejected_mutants(tmp_path: Path) -> None:
    name = name_of(QUICK[0])
    path = tmp_path / "case.h5"
    hdf5.write(with_proofs(prepared(name)), path)
    assert set(hdf5.read(path).mutants["bits"]) == rejected(name) != set()
