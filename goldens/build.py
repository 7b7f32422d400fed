"""Case -> golden: inputs, every stage, outputs, and the mutants that the case rejects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import numpy as np

import refkern
from refkern import ops
from refkern import policy as policies
from refkern.errors import InvalidInput
from refkern.goldens.golden import Accept, Golden
from refkern.goldens.inputs import (
    describe_inputs,
    make_inputs,
    make_tensor,
    parse_description,
    with_strides,
)
from refkern.goldens.selection import Selected
from refkern.intervals import Interval
from refkern.op import Call, Op
from refkern.verdict import Judge, difference

#: the policies whose intervals a golden file holds
STORED_POLICIES = ("ieee", "cuda", "metal", "wgsl")


@dataclass(frozen=True)
class Prepared:
    """A golden together with the call that it is about."""

    op: Op
    golden: Golden
    #: the call whose output the golden holds: the sampled rows only, where it is sampled
    call: Call
    #: the call with all its rows, by which a recipe makes its choices
    whole: Call

    def chosen(self) -> Any:
        """The golden's recipe with its choices made."""
        return self.op.recipe(self.golden.recipe).for_call(self.whole)


def build(selected: Selected) -> Prepared:
    """A case's golden, without what is proven about it; see `with_proofs`."""
    op, case = selected.op, selected.case
    inputs = make_inputs(case)
    strides = {
        name: tensor.row_stride
        for name, tensor in case.inputs.items()
        if tensor is not None and tensor.row_stride is not None
    }
    whole = check_inputs(op, inputs, case.params, strides)
    rows = np.array(case.sampled_rows, np.int64) if case.sampled_rows else None
    call = whole if rows is None else op.take_rows(whole, rows)
    stages = dict(op.stages_of(call, op.recipe(case.recipe).for_call(whole)))
    outputs = {"out": stages.pop("out")}
    stored = {name: array for name, array in inputs.items() if array is not None}
    names = [*stored, *stages, *outputs]
    golden = Golden(
        op=op.name,
        case=case.name,
        tier=case.tier,
        recipe=case.recipe,
        params=dict(case.params),
        inputs=stored if rows is None else {},
        stages=stages if rows is None else {},
        outputs=outputs,
        axes={name: op.axes[name] for name in names if name in op.axes},
        row_strides=strides if rows is None else {},
        input_recipe=None if rows is None else describe_inputs(case),
        sampled_rows=rows,
        provenance={
            "refkern": refkern.__version__,
            "command": f"refkern golden {op.name}/{case.name}",
            "purpose": case.purpose,
            # no other version changes a bit of the file
            "h5py": version("h5py"),
        },
    )
    return Prepared(op, golden, call, whole)


def check_inputs(
    op: Op,
    inputs: Mapping[str, np.ndarray | None],
    params: Mapping[str, object],
    row_strides: Mapping[str, int],
) -> Call:
    """The op's own check of a golden's arrays; an input that is not there is None."""
    arguments: dict[str, Any] = dict.fromkeys(op.input_names())
    _check_names(op, "inputs", inputs, op.input_names())
    _check_names(op, "params", params, op.param_names())
    for name, array in inputs.items():
        arguments[name] = None if array is None else with_strides(array, row_strides.get(name))
    return op.check(**arguments, **params)


def _check_names(op: Op, what: str, given: Iterable[str], known: tuple[str, ...]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise InvalidInput(what, ", ".join(unknown), f"{op.name} has {', '.join(known)}")


def with_proofs(prepared: Prepared, names: Iterable[str] = STORED_POLICIES) -> Golden:
    """The golden with what the policies accept and which mutants it rejects.

    Rejected under "bits", under each policy end to end, and under POLICY+stages those more that
    only a look at each stage rejects, from the mutant's own stage before it.
    """
    op, golden, call, chosen = prepared.op, prepared.golden, prepared.call, prepared.chosen()
    want = golden.outputs["out"]
    wrong = {m.name: m.stages(op, call, chosen) for m in op.part("mutants").MUTANTS}
    rejected = {"bits": [m for m, stages in wrong.items() if not _passes(stages["out"], want)]}
    accept = {}
    right = {**golden.stages, **golden.outputs}
    for name in names:
        policy = policies.load(name)
        interval = op.accept(call, chosen, policy)["out"]
        lo, hi = interval.bounds()
        free = interval.free.astype(np.uint8)
        accept[name] = {"out": Accept(lo, hi, free if free.any() else None)}
        judge = Judge(op, call, whole=prepared.whole, policy=policy)
        if not interval.accepts(want) or judge.first_guilty_stage(right, golden.recipe):
            # The recipe's own arithmetic is not within this policy: nothing is proven by it.
            continue
        rejected[name] = [
            m for m in rejected["bits"] if not _passes(wrong[m]["out"], want, interval)
        ]
        rejected[f"{name}+stages"] = [
            m
            for m, stages in wrong.items()
            if m not in rejected[name] and judge.first_guilty_stage(stages, golden.recipe)
        ]
    return replace(golden, accept=accept, mutants=rejected)


def _passes(got: np.ndarray, want: np.ndarray, interval: Interval | None = None) -> bool:
    same_kind = got.shape == want.shape and got.dtype == want.dtype
    return same_kind and difference(got, want, interval).mismatches == 0


def prepare(golden: Golden) -> tuple[Prepared, Mapping[str, np.ndarray | None]]:
    """A golden from a file -> its call, and the full inputs that a backend gets.

    Raises InvalidInput if the op refuses the file's inputs or gives another output.
    """
    op = ops.load(golden.op)
    if golden.sampled_rows is None:
        call = whole = check_inputs(op, golden.inputs, golden.params, golden.row_strides)
    else:
        whole = check_inputs(op, remake_inputs(golden), golden.params, {})
        rows = op.output(whole)[0][0]
        if golden.sampled_rows.max(initial=-1) >= rows:
            raise InvalidInput("sampled_rows", golden.sampled_rows.max(), f"there are {rows} rows")
        call = op.take_rows(whole, golden.sampled_rows)
    shape, dtype = op.output(call)
    held = {name: (a.shape, a.dtype) for name, a in golden.outputs.items()}
    if held != {"out": (shape, dtype)}:
        given = ", ".join(f"{name} {a.dtype} {list(a.shape)}" for name, a in golden.outputs.items())
        raise InvalidInput("outputs", given, f"{op.name} gives out {dtype} {list(shape)}")
    return Prepared(op, golden, call, whole), whole.inputs


def remake_inputs(golden: Golden) -> dict[str, np.ndarray | None]:
    """The inputs of a sampled golden, made again from the description that it holds."""
    seed, tensors = parse_description(golden.input_recipe or "")
    return {
        name: None if tensor is None else make_tensor(seed, name, tensor)
        for name, tensor in tensors.items()
    }
