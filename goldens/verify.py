"""Golden files against a backend, or against a file of results: one report per case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refkern import arguments, casts
from refkern import policy as policies
from refkern.errors import InvalidInput
from refkern.goldens import hdf5
from refkern.goldens.backends import Arrays, Backend, Unsupported
from refkern.goldens.build import Prepared, prepare
from refkern.goldens.details import Details, details
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import Golden
from refkern.intervals import Interval
from refkern.policy import Policy
from refkern.verdict import Element, Judge, Verdict

Outcome = Literal["bits", "accept", "fail", "skip", "error", "damaged"]
#: in the order in which a summary counts them
OUTCOMES: tuple[Outcome, ...] = ("bits", "accept", "fail", "skip", "error", "damaged")


@dataclass(frozen=True)
class Report:
    """What became of one file."""

    file: str
    case: str
    op: str
    #: by which the case was judged
    recipe: str
    outcome: Outcome
    #: one line: whose bits, or what went wrong
    headline: str
    elements: int = 0
    mismatches: int = 0
    max_ulp: int = 0
    #: elements that the policy leaves open
    undetermined: int = 0
    #: the first stage that differs; None where the candidate gave no stages
    first_stage: str | None = None
    worst: tuple[Element, ...] = ()
    #: what the candidate did instead
    hint: str = ""
    #: of a failed case, where they were asked for
    details: Details | None = field(default=None, repr=False)

    @property
    def passed(self) -> bool:
        return self.outcome in ("bits", "accept")

    def as_json(self) -> dict[str, Any]:
        worst = asdict(self.worst[0]) if self.worst else None
        return {
            "case": self.case,
            "op": self.op,
            "recipe": self.recipe,
            "file": self.file,
            "rung": "error" if self.outcome == "damaged" else self.outcome,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "max_ulp": self.max_ulp,
            "undetermined": self.undetermined,
            "first_stage": self.first_stage,
            "worst": worst,
            "headline": self.headline,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class Options:
    """How strictly, and by whose bits."""

    #: None: each case by its own recipe; "any": by any recipe of the op
    recipe: str | None = None
    rung: Literal["bits", "accept"] = "accept"
    #: by which intervals are computed; None: only bits pass
    policy: Policy | None = None
    #: judge every stage that the candidate gives, each from its own stage before it
    stages: bool = False
    #: explain every failed case in its report; takes a run of each recipe and mutant
    details: bool = False


def load(path: Path) -> tuple[Prepared, Mapping[str, np.ndarray | None]]:
    """A golden file's case, and the inputs that a backend gets.

    Raises DamagedFile also for a file that is whole but contradicts its op.
    """
    golden = hdf5.read(path)
    try:
        prepared, inputs = prepare(golden)
        prepared.chosen()
    except InvalidInput as error:
        raise DamagedFile(path, str(error)) from None
    return prepared, inputs


def verify_file(path: Path, backend: Backend, options: Options) -> Report:
    """Run a backend on one golden file's inputs and judge what it returns."""
    try:
        prepared, inputs = load(path)
    except DamagedFile as error:
        return Report(str(path), path.stem, "", "", "damaged", str(error))
    golden = prepared.golden
    recipe = _judged_by(golden, options)
    try:
        prepared.op.recipe(recipe).for_call(prepared.whole)
    except InvalidInput as outside:
        # another recipe was asked for, and this case is not in its domain
        return _report(path, golden, recipe, "skip", str(outside))
    try:
        outputs, stages = backend(golden.op, inputs, golden.params, recipe=recipe)
    except Unsupported as reason:
        return _report(path, golden, recipe, "skip", str(reason))
    except Exception as error:
        # A backend is foreign code: whatever it raises is a verdict on it, not on refkern.
        return _report(path, golden, recipe, "error", f"{type(error).__name__}: {error}")
    return judge(path, prepared, outputs, stages, options)


def judge(
    path: Path, prepared: Prepared, outputs: Arrays, stages: Arrays, options: Options
) -> Report:
    """A candidate's arrays against a golden."""
    golden, op = prepared.golden, prepared.op
    recipe = _judged_by(golden, options)
    policy = options.policy if options.rung == "accept" else None
    try:
        got = own_output(golden, outputs)
        own = {**own_stages(prepared, stages), "out": got}
        judge = Judge(op, prepared.call, whole=prepared.whole, policy=policy)
        judge.know(golden.recipe, golden.outputs["out"], _stored_interval(golden, policy))
        verdict = judge.verdict(got, recipe, any_recipe=options.recipe == "any")
        first = None
        if len(own) > 1 and (options.stages or not verdict.passed):
            first = judge.first_guilty_stage(own, recipe)
        if options.stages and len(own) > 1 and (first is None) != verdict.passed:
            verdict = _by_stages(verdict, first)
        why = None
        if options.details and options.policy is not None and not verdict.passed:
            given = {name: array for name, array in own.items() if name != "out"}
            why = details(prepared, got, given, options.policy, recipe)
    except InvalidInput as error:
        return _report(path, golden, recipe, "error", str(error))
    found = verdict.difference
    return _report(
        path,
        golden,
        verdict.recipe,
        verdict.rung,
        verdict.headline,
        elements=found.elements,
        mismatches=found.mismatches,
        max_ulp=found.max_ulp,
        undetermined=found.undetermined,
        first_stage=first,
        worst=found.worst,
        hint=verdict.hint,
        details=why,
    )


def _judged_by(golden: Golden, options: Options) -> str:
    return golden.recipe if options.recipe in (None, "any") else str(options.recipe)


def own_output(golden: Golden, outputs: Arrays) -> np.ndarray:
    """The candidate's output, the golden's rows of it."""
    if "out" not in outputs:
        given = ", ".join(sorted(outputs)) or "none"
        raise InvalidInput("outputs", given, "an output named 'out' is needed")
    got = arguments.as_array("out", outputs["out"])
    if golden.sampled_rows is None:
        return got
    if got.ndim == 0 or got.shape[0] <= golden.sampled_rows.max(initial=0):
        raise InvalidInput("out", f"shape {got.shape}", "every row of the output is needed")
    return got[golden.sampled_rows]


def own_stages(prepared: Prepared, stages: Arrays) -> dict[str, np.ndarray]:
    """The stages that the candidate gave, in order; the golden's rows of them."""
    rows = prepared.golden.sampled_rows
    own = {}
    for name in prepared.op.stages[:-1]:
        if name in stages:
            array = arguments.as_array(f"stage {name}", stages[name])
            own[name] = array if rows is None else array[rows]
    return own


def _stored_interval(golden: Golden, policy: Policy | None) -> Interval | None:
    """What the file says that a policy accepts; None where it does not say."""
    if policy is None or policy != policies.built_in().get(policy.name):
        return None
    stored = golden.accept.get(policy.name, {}).get("out")
    if stored is None:
        return None
    free = np.zeros(stored.lo.shape, bool) if stored.free is None else stored.free.astype(bool)
    return Interval(casts.widen(stored.lo), casts.widen(stored.hi), free, stored.lo.dtype)


def _by_stages(verdict: Verdict, first: str | None) -> Verdict:
    """A verdict that the candidate's own stages overrule: all follow, or one does not."""
    if first is None:
        return replace(verdict, rung="accept", hint="every stage follows from the one before it")
    return replace(verdict, rung="fail", hint=f"stage {first} does not follow from the one before")


def _report(
    path: Path, golden: Golden, recipe: str, outcome: Outcome, headline: str, **found: Any
) -> Report:
    # what foreign code says must not repaint the terminal
    line = "".join(c if c.isprintable() else " " for c in headline)
    line = " ".join(line.split())
    return Report(str(path), golden.case, golden.op, recipe, outcome, line, **found)
