"""Golden files against a backend, or against a file of results: one report per case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from refkern.goldens import hdf5
from refkern.goldens.backends import Arrays, Backend, Unsupported
from refkern.goldens.build import Prepared, prepare
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import Golden

from refkern import arguments
from refkern.errors import InvalidInput
from refkern.verdict import Element, Judge, Verdict, difference

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
    #: the first stage that differs; None where the candidate gave no stages
    first_stage: str | None = None
    worst: tuple[Element, ...] = ()
    #: what the candidate did instead
    hint: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome in ("bits", "accept")

    def as_json(self) -> dict[str, Any]:
        worst = asdict(self.worst[0]) if self.worst else None
        if worst is not None:
            worst |= {"lo": None, "hi": None}
        return {
            "case": self.case,
            "op": self.op,
            "recipe": self.recipe,
            "file": self.file,
            "rung": "error" if self.outcome == "damaged" else self.outcome,
            "elements": self.elements,
            "mismatches": self.mismatches,
            "max_ulp": self.max_ulp,
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


def load(path: Path) -> tuple[Prepared, Mapping[str, np.ndarray | None]]:
    """A golden file's case, and the inputs that a backend gets.

    Raises DamagedFile also for a file that is whole but contradicts its op.
    """
    golden = hdf5.read(path)
    try:
        prepared, inputs = prepare(golden)
        prepared.op.recipe(golden.recipe).for_call(prepared.call)
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
        prepared.op.recipe(recipe).for_call(prepared.call)
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
    try:
        got = _output(golden, outputs)
        judge = Judge(op, prepared.call)
        judge.know(golden.recipe, golden.outputs["out"])
        verdict = judge.verdict(got, recipe, any_recipe=options.recipe == "any")
        first = _first_stage(prepared, recipe, stages, verdict)
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
        first_stage=first,
        worst=found.worst,
        hint=verdict.hint,
    )


def _judged_by(golden: Golden, options: Options) -> str:
    return golden.recipe if options.recipe in (None, "any") else str(options.recipe)


def _output(golden: Golden, outputs: Arrays) -> np.ndarray:
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


def _first_stage(prepared: Prepared, recipe: str, stages: Arrays, verdict: Verdict) -> str | None:
    """The first stage that differs, of those that the candidate gave."""
    if verdict.rung == "bits" or not stages:
        return None
    op, golden = prepared.op, prepared.golden
    own = recipe == golden.recipe and golden.stages
    expected: Mapping[str, np.ndarray] = (
        golden.stages
        if own
        else op.stages_of(prepared.call, op.recipe(recipe).for_call(prepared.call))
    )
    for name in op.stages[:-1]:
        if name in stages and name in expected:
            got, want = arguments.as_array(f"stage {name}", stages[name]), expected[name]
            # one of another dtype is where the candidate went its own way
            same_kind = got.dtype == want.dtype and got.shape == want.shape
            if not same_kind or difference(got, want).mismatches:
                return name
    return "out"


def _report(
    path: Path, golden: Golden, recipe: str, outcome: Outcome, headline: str, **found: Any
) -> Report:
    # what foreign code says must not repaint the terminal
    line = "".join(c if c.isprintable() else " " for c in headline)
    line = " ".join(line.split())
    return Report(str(path), golden.case, golden.op, recipe, outcome, line, **found)
