"""Judging a candidate's output: whose bits are these, and if nobody's, where and how far off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from refkern import arguments, ops
from refkern import policy as policies
from refkern.errors import InvalidInput
from refkern.formats import codes, format_of
from refkern.op import Call, Op
from refkern.policy import Policy
from refkern.ulp import NO_DISTANCE, is_nan, ulp_distance

if TYPE_CHECKING:
    from refkern.intervals import Interval

#: from the strictest
Rung = Literal["bits", "accept", "fail"]
#: how many of the worst elements a verdict keeps
WORST = 5


@dataclass(frozen=True)
class Element:
    """One element that is not what was expected."""

    index: tuple[int, ...]
    got: float
    got_bits: str
    expected: float
    expected_bits: str
    #: from what was expected; None where one of the two is NaN
    ulp: int | None
    #: what the policy allows; None where only bits were asked for
    lo: float | None = None
    hi: float | None = None

    def __str__(self) -> str:
        distance = "no distance" if self.ulp is None else f"{self.ulp} ULP"
        where = ", ".join(map(str, self.index))
        allowed = "" if self.lo is None else f", allowed [{self.lo!r}, {self.hi!r}]"
        return (
            f"[{where}] got {self.got!r} ({self.got_bits}), "
            f"expected {self.expected!r} ({self.expected_bits}): {distance}{allowed}"
        )


@dataclass(frozen=True)
class Difference:
    """A candidate's array against what is expected of it; NaN equals NaN in the same place."""

    elements: int
    #: elements that are not accepted: other bits, or outside the interval
    mismatches: int
    #: the farthest from what was expected, of the mismatches that have a distance
    max_ulp: int
    #: the worst first: what has no distance, then the farthest, then the first
    worst: tuple[Element, ...]
    #: NaN in both
    nans: int
    #: elements that the policy leaves open
    undetermined: int = 0


def difference(
    got: np.ndarray, expected: np.ndarray, interval: Interval | None = None
) -> Difference:
    """By bits, or by an acceptance interval where one is given.

    Raises InvalidInput if shape or dtype differ: nothing is broadcast or converted.
    """
    if got.dtype != expected.dtype:
        raise InvalidInput("got", f"dtype {got.dtype}", f"{expected.dtype} is needed")
    if got.shape != expected.shape:
        raise InvalidInput("got", f"shape {got.shape}", f"{expected.shape} is needed")
    both_nan = is_nan(got) & is_nan(expected)
    nans = int(both_nan.sum())
    if interval is None:
        wrong, free = (codes(got) != codes(expected)) & ~both_nan, 0
    else:
        wrong, free = ~interval.holds(got), int(interval.free.sum())
    wrong = np.asarray(wrong)
    count = int(wrong.sum())
    if count == 0:
        return Difference(got.size, 0, 0, (), nans, free)
    at = np.nonzero(wrong)
    distances = ulp_distance(got[at], expected[at])
    # Infinity against a finite value is one step on the line, but no rounding leads there.
    rank = np.where(distances == NO_DISTANCE, np.iinfo(np.int64).max, distances)
    order = np.argsort(-rank, kind="stable")[:WORST]
    worst = tuple(
        element(tuple(int(axis[i]) for axis in at), got, expected, int(distances[i]), interval)
        for i in order
    )
    return Difference(got.size, count, int(distances.max(initial=0)), worst, nans, free)


def element(
    index: tuple[int, ...],
    got: np.ndarray,
    expected: np.ndarray,
    distance: int,
    interval: Interval | None = None,
) -> Element:
    digits = format_of(got.dtype).bits // 4
    return Element(
        index,
        float(got[index]),
        f"0x{int(codes(got)[index]):0{digits}x}",
        float(expected[index]),
        f"0x{int(codes(expected)[index]):0{digits}x}",
        None if distance == NO_DISTANCE else distance,
        None if interval is None else float(interval.lo[index]),
        None if interval is None else float(interval.hi[index]),
    )


@dataclass(frozen=True)
class Verdict:
    """What became of one candidate."""

    rung: Rung
    #: whose bits these are or whose interval they lie in; on failure, whose they were to be
    recipe: str
    #: under which the interval was computed; "" where only bits were asked for
    policy: str
    difference: Difference
    #: recipes that give exactly these bits
    same_bits: tuple[str, ...]
    #: what the candidate did instead, where a recipe or mutant reproduces it
    hint: str = ""

    @property
    def headline(self) -> str:
        """One line: "bits of X" or "inside the interval of Y" or what is wrong."""
        d = self.difference
        bits = f"bits of {self.same_bits[0]}" if self.same_bits else ""
        if self.rung == "bits":
            line = bits
        elif self.rung == "accept":
            inside = f"inside the interval of {self.recipe} under {self.policy}"
            line = f"{bits}, {inside}" if bits else inside
        else:
            what = f"outside the interval of {self.recipe} under {self.policy}"
            what = what if self.policy else f"not the bits of {self.recipe}"
            line = f"{d.mismatches} of {d.elements} elements are {what}"
        notes = []
        if d.elements == 0:
            notes.append("0 elements compared")
        elif d.nans == d.elements:
            notes.append("100% NaN")
        if d.undetermined:
            notes.append(f"{d.undetermined} elements undetermined")
        if self.hint:
            notes.append(self.hint)
        return "; ".join([line, *notes])

    @property
    def passed(self) -> bool:
        return self.rung != "fail"

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {e}" for e in self.difference.worst)])


class Judge:
    """Everything that one call is compared with; each reference runs once, when it is needed.

    whole: the call by which recipes make their choices, where ``call`` is only some of its rows.
    policy: by which intervals are computed; None: only bits pass.
    """

    def __init__(
        self, op: Op, call: Call, *, whole: Call | None = None, policy: Policy | None = None
    ) -> None:
        self.op, self.call, self.policy = op, call, policy
        self._whole = call if whole is None else whole
        self._outputs: dict[str, np.ndarray | None] = {}
        self._intervals: dict[str, Interval] = {}
        self._right: dict[str, dict[str, np.ndarray]] = {}
        self._shared: dict[str, Any] = {}

    def chosen(self, recipe: str) -> Any:
        """The recipe with its choices made.  Raises InvalidInput outside its domain."""
        return self.op.recipe(recipe).for_call(self._whole)

    def expected(self, recipe: str) -> np.ndarray | None:
        """The output of a recipe; None where the call is outside its domain."""
        if recipe not in self._outputs:
            try:
                chosen = self.chosen(recipe)
            except InvalidInput:
                self._outputs[recipe] = None
            else:
                self._outputs[recipe] = self.op.stages_of(self.call, chosen)["out"]
        return self._outputs[recipe]

    def interval(self, recipe: str) -> Interval | None:
        """What the policy accepts of a recipe; None without a policy or outside the domain."""
        if self.policy is None or self.expected(recipe) is None:
            return None
        if recipe not in self._intervals:
            stages = self.op.accept(self.call, self.chosen(recipe), self.policy)
            self._intervals[recipe] = stages["out"]
        return self._intervals[recipe]

    def know(self, recipe: str, output: np.ndarray, interval: Interval | None = None) -> None:
        """Take what a golden file holds for the recipe's output, and for what is accepted."""
        self._outputs[recipe] = output
        if interval is not None:
            self._intervals[recipe] = interval

    def same_bits(self, got: np.ndarray) -> tuple[str, ...]:
        """Every recipe of the op that gives exactly these bits."""
        found = []
        for name in self.op.recipes:
            want = self.expected(name)
            if want is not None and _same(got, want):
                found.append(name)
        return tuple(found)

    def verdict(self, got: np.ndarray, recipe: str, *, any_recipe: bool = False) -> Verdict:
        """By the bits or the interval of ``recipe``, or with ``any_recipe`` of any of the op's."""
        want = self.expected(recipe)
        if want is None:
            self.chosen(recipe)  # raises InvalidInput with the rule
            raise AssertionError("a recipe without output is outside its domain")
        by_bits = difference(got, want)
        if by_bits.mismatches == 0:
            return Verdict("bits", recipe, "", by_bits, (recipe,))
        same = self.same_bits(got)
        if same and any_recipe:
            exact = difference(got, self._outputs[same[0]])  # type: ignore[arg-type]
            return Verdict("bits", same[0], "", exact, same)
        under = "" if self.policy is None else self.policy.name
        found = by_bits
        candidates = [recipe, *self.op.recipes] if any_recipe else [recipe]
        for name in candidates:
            interval = self.interval(name)
            if interval is None:
                continue
            judged = difference(got, self._outputs[name], interval)  # type: ignore[arg-type]
            if judged.mismatches == 0:
                return Verdict("accept", name, under, judged, same)
            found = judged if name == recipe else found
        return Verdict("fail", recipe, under, found, same, self.hint(got, recipe, same))

    def hint(self, got: np.ndarray, recipe: str, same: tuple[str, ...]) -> str:
        """What the candidate did instead, if a recipe or a mutant does just that."""
        if same:
            return f"bit-identical to recipe {same[0]} ({self.op.recipe(same[0]).source})"
        for mutant in self.reproducing_mutants(got, recipe):
            return f"bit-identical to mutant {mutant.name}: the kernel {mutant.says}"
        return ""

    def reproducing_mutants(self, got: np.ndarray, recipe: str) -> Iterator[Any]:
        return (mutant for mutant, apart in self.apart_from_mutants(got, recipe) if apart == 0)

    def apart_from_mutants(self, got: np.ndarray, recipe: str) -> Iterator[tuple[Any, int]]:
        """Each mutant that gives an output of this kind, and in how many elements it has others."""
        for mutant in self.op.part("mutants").MUTANTS:
            wrong = mutant.stages(self.op, self.call, self.chosen(recipe))["out"]
            if _same_kind(got, wrong):
                yield mutant, difference(got, wrong).mismatches

    def first_guilty_stage(self, stages: Mapping[str, np.ndarray], recipe: str) -> str | None:
        """The first stage that does not follow from the candidate's own stages before it.

        Each stage is judged from what the candidate itself computed, so that a stage is not blamed
        for another's fault, and by bits where there is no policy.  None: all follow.
        """
        return next((name for name, good in self.follows(stages, recipe).items() if not good), None)

    def follows(self, stages: Mapping[str, np.ndarray], recipe: str) -> dict[str, bool]:
        """Of each stage given, in order: does it follow from the candidate's own before it."""
        chosen = self.chosen(recipe)
        if recipe not in self._right:
            self._right[recipe] = self.op.stages_of(self.call, chosen)
        right = self._right[recipe]
        # Nothing can be computed from a stage of another shape: what follows is judged without it.
        own = {n: a for n, a in stages.items() if n in right and _same_kind(a, right[n])}
        if self.policy is None:
            expected = self.op.stages_of(self.call, chosen, own)
            return {n: n in own and _same(own[n], expected[n]) for n in expected if n in stages}
        shared = self._shared.setdefault(recipe, ({}, right))
        accepted = self.op.accept(self.call, chosen, self.policy, own, shared)
        return {n: n in own and accepted[n].accepts(own[n]) for n in accepted if n in stages}


def _same_kind(got: np.ndarray, want: np.ndarray) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    return _same_kind(got, want) and difference(got, want).mismatches == 0


def check(
    op: str,
    got: Any,
    policy: str | Policy = "cuda",
    recipe: str | None = None,
    **inputs_and_params: Any,
) -> Verdict:
    """Judge one output tensor, without a file.

    op: an op's name; got: its output, an array or tensor; policy: what the backend is allowed;
    inputs_and_params: the op's arguments by name.  Without a recipe the candidate passes by any of
    the op's recipes, and the verdict says by which.  Raises InvalidInput for arguments that the op
    refuses and for a ``got`` of another shape or dtype.
    """
    chosen = ops.load(op)
    call = chosen.check(**inputs_and_params)
    judge = Judge(chosen, call, policy=policies.load(policy))
    wanted = chosen.recipe(recipe).name
    if recipe is None and judge.expected(wanted) is None:
        # The default recipe does not know this shape: measure against one that does.
        wanted = next((r for r in chosen.recipes if judge.expected(r) is not None), wanted)
    return judge.verdict(arguments.as_array("got", got), wanted, any_recipe=recipe is None)
