"""What a candidate did instead: where its wrong elements lie, and which semantics gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from refkern.formats import codes
from refkern.goldens.build import Prepared
from refkern.policy import Policy
from refkern.ulp import is_nan
from refkern.verdict import Judge, Verdict, difference

#: sizes that a tile, a warp, a vector or a scale group usually has
TILES = (256, 128, 64, 32, 16, 8, 4)


@dataclass(frozen=True)
class Reproduction:
    """A recipe or a mutant whose output is the candidate's."""

    #: "recipe" or "mutant"
    kind: str
    name: str
    says: str
    #: bit for bit; otherwise the candidate lies within its acceptance interval
    exact: bool

    def __str__(self) -> str:
        how = "bit-identical to" if self.exact else "within the interval of"
        return f"{how} {self.kind} {self.name} ({self.says})"


@dataclass(frozen=True)
class Closest:
    """The mutant whose output has most of the candidate's bits, where it has nearly all of them."""

    name: str
    says: str
    #: elements with other bits than the mutant's, and than the recipe's
    differing: int
    differing_from_recipe: int

    def __str__(self) -> str:
        return (
            f"close to mutant {self.name} (the kernel {self.says}): other bits than its in "
            f"{self.differing}, than the recipe's in {self.differing_from_recipe}"
        )


@dataclass(frozen=True)
class Explanation:
    verdict: Verdict
    #: the first stage that does not follow from the candidate's own; None if none was given
    first_stage: str | None
    #: where the wrong elements lie, as sentences
    where: tuple[str, ...]
    reproduced_by: tuple[Reproduction, ...]
    #: bool, the output's shape: which elements are wrong
    wrong: np.ndarray = field(repr=False)
    #: of a failure that nothing reproduces
    closest: Closest | None = None

    def lines(self) -> list[str]:
        found = [self.verdict.headline]
        if self.first_stage is not None:
            found.append(
                f"first stage that does not follow from the one before: {self.first_stage}"
            )
        found += [f"where: {sentence}" for sentence in self.where]
        found += [f"what: {reproduction}" for reproduction in self.reproduced_by]
        if self.closest is not None:
            found.append(f"what: {self.closest}")
        elif not self.verdict.passed and not self.reproduced_by:
            found.append("what: no recipe and no mutant of this op gives these values")
        return found


def explain(
    prepared: Prepared,
    got: np.ndarray,
    stages: Mapping[str, np.ndarray],
    policy: Policy,
    recipe: str | None = None,
) -> Explanation:
    """stages: those of its own that the candidate gave; its output is added to them.

    recipe: by which it is judged; None: the golden's own.
    """
    op, golden = prepared.op, prepared.golden
    judged_by = golden.recipe if recipe is None else recipe
    judge = Judge(op, prepared.call, whole=prepared.whole, policy=policy)
    judge.know(golden.recipe, golden.outputs["out"])
    verdict = judge.verdict(got, judged_by)
    want, interval = judge.expected(judged_by), judge.interval(judged_by)
    assert want is not None
    assert interval is not None
    wrong = ~interval.holds(got)
    if verdict.rung == "accept":
        # Accepted, and yet other bits: those are what there is to explain.
        wrong = (codes(got) != codes(want)) & ~(is_nan(got) & is_nan(want))
    if verdict.rung == "bits":
        wrong = np.zeros(got.shape, bool)
    first = judge.first_guilty_stage({**stages, "out": got}, judged_by) if stages else None
    reproduced: tuple[Reproduction, ...] = ()
    closest = None
    if verdict.rung != "bits":
        apart = list(judge.apart_from_mutants(got, judged_by))
        reproduced = tuple(_reproductions(judge, got, judged_by, apart))
        if verdict.rung == "fail" and not reproduced:
            closest = _closest(apart, difference(got, want).mismatches)
    return Explanation(verdict, first, tuple(describe(wrong, prepared)), reproduced, wrong, closest)


def _reproductions(
    judge: Judge, got: np.ndarray, recipe: str, apart: list[tuple[Any, int]]
) -> list[Reproduction]:
    """Recipes and mutants that give the candidate's bits; without any, those that accept it.

    apart: of each mutant, in how many elements it has other bits.
    """
    exact = [
        Reproduction("recipe", name, judge.op.recipe(name).source, True)
        for name in judge.same_bits(got)
    ]
    exact += [
        Reproduction("mutant", m.name, f"the kernel {m.says}", True)
        for m, elements in apart
        if elements == 0
    ]
    if exact:
        return exact
    near = []
    for name in judge.op.recipes:
        interval = judge.interval(name)
        if name != recipe and interval is not None and interval.accepts(got):
            near.append(Reproduction("recipe", name, judge.op.recipe(name).source, False))
    if judge.policy is not None:
        for mutant in judge.op.part("mutants").MUTANTS:
            interval = mutant.accept(judge.op, judge.call, judge.chosen(recipe), judge.policy)
            if interval is not None and interval.accepts(got):
                near.append(Reproduction("mutant", mutant.name, f"the kernel {mutant.says}", False))
    return near


def _closest(apart: list[tuple[Any, int]], of_recipe: int) -> Closest | None:
    """A kernel with a mutant's fault and its own order of sums has most of the mutant's bits.

    One that leaves a tenth of the differences, or fewer, says what happened; more would be a guess.
    """
    mutant, least = min(apart, key=lambda pair: pair[1], default=(None, of_recipe))
    if mutant is None or 10 * least > of_recipe:
        return None
    return Closest(mutant.name, mutant.says, least, of_recipe)


def describe(wrong: np.ndarray, prepared: Prepared) -> list[str]:
    """Where the wrong elements of a [.., columns] output lie."""
    count = int(wrong.sum())
    if count == 0 or wrong.ndim == 0:
        return []
    if count == wrong.size:
        return ["every element"]
    matrix = wrong.reshape(-1, wrong.shape[-1])
    rows, columns = np.any(matrix, axis=1), np.any(matrix, axis=0)
    found = [f"{count} of {wrong.size} elements"]
    if not rows.all():
        found.append(_places("row", rows))
        found += _experts(rows, prepared)
    if not columns.all():
        found.append(_columns(columns, prepared))
    return found


def _experts(rows: np.ndarray, prepared: Prepared) -> list[str]:
    """In an op whose rows are grouped by expert: which groups and experts hold them all."""
    inputs = prepared.call.inputs
    if not {"a_offsets", "expert_ids"} <= set(inputs) or prepared.golden.sampled_rows is not None:
        return []
    starts, experts = np.asarray(inputs["a_offsets"]), np.asarray(inputs["expert_ids"])
    groups = np.searchsorted(starts, np.flatnonzero(rows), side="right") - 1
    if (groups < 0).any() or (groups >= experts.size).any():
        return ["some of them in no group"]
    hit = np.isin(np.arange(experts.size), groups)
    if hit.all():
        return []
    named = sorted({int(expert) for expert in experts[hit]})
    listed = ", ".join(map(str, named[:8]))
    return [f"{_places('group', hit)}; of experts {listed}{', ...' if len(named) > 8 else ''}"]


def _places(what: str, flags: np.ndarray) -> str:
    at = np.flatnonzero(flags)
    if at.size == 1:
        return f"only in {what} {at[0]}"
    if at[-1] - at[0] + 1 == at.size:
        return f"only in {what}s {at[0]} to {at[-1]} of {flags.size}"
    listed = ", ".join(map(str, at[:8]))
    return f"in {at.size} of {flags.size} {what}s: {listed}{', ...' if at.size > 8 else ''}"


def _columns(flags: np.ndarray, prepared: Prepared) -> str:
    at = np.flatnonzero(flags)
    width = flags.size
    size = prepared.golden.params.get("group_size")
    if isinstance(size, int) and size < width:
        groups = np.unique(at // size)
        if groups.size < width // size:
            return _places("group", np.isin(np.arange(width // size), groups))
    steps = np.unique(np.diff(at))
    if at.size > 2 and steps.size == 1 and steps[0] > 1:
        return f"every {steps[0]}th column from column {at[0]}"
    for tile in TILES:
        tail = width // tile * tile
        if at[0] >= tail > 0:
            return f"only in the last {width - tail} columns, behind the last whole tile of {tile}"
    for tile in TILES:
        places = np.unique(at % tile)
        if tile < width and at.size > 4 and places.size <= tile // 4:
            listed = ", ".join(map(str, places[:8]))
            return f"only in columns whose number is {listed} modulo {tile}"
    return _places("column", flags)


def summary(explanation: Explanation) -> dict[str, object]:
    """The explanation as JSON holds it."""
    found = explanation.verdict.difference
    return {
        "rung": explanation.verdict.rung,
        "headline": explanation.verdict.headline,
        "elements": found.elements,
        "mismatches": found.mismatches,
        "first_stage": explanation.first_stage,
        "where": list(explanation.where),
        "reproduced_by": [
            {"kind": r.kind, "name": r.name, "says": r.says, "exact": r.exact}
            for r in explanation.reproduced_by
        ],
        "closest": None if explanation.closest is None else asdict(explanation.closest),
        "worst": [str(e) for e in found.worst],
    }
