"""Judging a candidate's output: whose bits are these, and if nobody's, where and how far off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from refkern import arguments, ops
from refkern.errors import InvalidInput
from refkern.formats import codes, format_of
from refkern.op import Call, Op
from refkern.ulp import NO_DISTANCE, is_nan, ulp_distance

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
    #: None where one of the two is NaN
    ulp: int | None

    def __str__(self) -> str:
        distance = "no distance" if self.ulp is None else f"{self.ulp} ULP"
        where = ", ".join(map(str, self.index))
        return (
            f"[{where}] got {self.got!r} ({self.got_bits}), "
            f"expected {self.expected!r} ({self.expected_bits}): {distance}"
        )


@dataclass(frozen=True)
class Difference:
    """Two arrays of one shape and dtype, compared by bits; NaN equals NaN in the same place."""

    elements: int
    mismatches: int
    #: of the mismatches that have a distance
    max_ulp: int
    #: the worst first: what has no distance, then the farthest, then the first
    worst: tuple[Element, ...]
    #: NaN in both
    nans: int


def difference(got: np.ndarray, expected: np.ndarray) -> Difference:
    """Raises InvalidInput if shape or dtype differ: nothing is broadcast or converted."""
    if got.dtype != expected.dtype:
        raise InvalidInput("got", f"dtype {got.dtype}", f"{expected.dtype} is needed")
    if got.shape != expected.shape:
        raise InvalidInput("got", f"shape {got.shape}", f"{expected.shape} is needed")
    both_nan = is_nan(got) & is_nan(expected)
    wrong = np.asarray((codes(got) != codes(expected)) & ~both_nan)
    count = int(wrong.sum())
    if count == 0:
        return Difference(got.size, 0, 0, (), int(both_nan.sum()))
    at = np.nonzero(wrong)
    distances = ulp_distance(got[at], expected[at])
    # Infinity against a finite value is one step on the line, but no rounding leads there.
    rank = np.where(distances == NO_DISTANCE, np.iinfo(np.int64).max, distances)
    order = np.argsort(-rank, kind="stable")[:WORST]
    worst = tuple(
        element(tuple(int(axis[i]) for axis in at), got, expected, int(distances[i])) for i in order
    )
    return Difference(got.size, count, int(distances.max(initial=0)), worst, int(both_nan.sum()))


def element(
    index: tuple[int, ...], got: np.ndarray, expected: np.ndarray, distance: int
) -> Element:
    digits = format_of(got.dtype).bits // 4
    return Element(
        index,
        float(got[index]),
        f"0x{int(codes(got)[index]):0{digits}x}",
        float(expected[index]),
        f"0x{int(codes(expected)[index]):0{digits}x}",
        None if distance == NO_DISTANCE else distance,
    )


@dataclass(frozen=True)
class Verdict:
    """What became of one candidate."""

    rung: Rung
    #: whose bits these are or whose interval they lie in; on failure, whose they were to be
    recipe: str
    difference: Difference
    #: recipes that give exactly these bits
    same_bits: tuple[str, ...]
    #: what the candidate did instead, where a recipe or mutant reproduces it
    hint: str = ""

    @property
    def headline(self) -> str:
        d = self.difference
        if self.rung == "bits":
            line = f"bits of {self.recipe}"
        else:
            line = f"{d.mismatches} of {d.elements} elements are not {self.recipe}'s"
        notes = []
        if d.elements == 0:
            notes.append("0 elements compared")
        elif d.nans == d.elements:
            notes.append("100% NaN")
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
    """Everything that one call is compared with; each reference runs once, when it is needed."""

    def __init__(self, op: Op, call: Call) -> None:
        self.op, self.call = op, call
        self._outputs: dict[str, np.ndarray | None] = {}

    def expected(self, recipe: str) -> np.ndarray | None:
        """The output of a recipe; None where the call is outside its domain."""
        if recipe not in self._outputs:
            try:
                chosen = self.op.recipe(recipe).for_call(self.call)
            except InvalidInput:
                self._outputs[recipe] = None
            else:
                self._outputs[recipe] = self.op.stages_of(self.call, chosen)["out"]
        return self._outputs[recipe]

    def know(self, recipe: str, output: np.ndarray) -> None:
        """Take ``output`` for the recipe's, as a golden file holds it."""
        self._outputs[recipe] = output

    def same_bits(self, got: np.ndarray) -> tuple[str, ...]:
        """Every recipe of the op that gives exactly these bits."""
        found = []
        for name in self.op.recipes:
            want = self.expected(name)
            if want is not None and _same(got, want):
                found.append(name)
        return tuple(found)

    def verdict(self, got: np.ndarray, recipe: str, *, any_recipe: bool = False) -> Verdict:
        """recipe: by whose bits the candidate passes; ``any_recipe``: or by any other's."""
        want = self.expected(recipe)
        if want is None:
            self.op.recipe(recipe).for_call(self.call)  # raises InvalidInput with the rule
            raise AssertionError("a recipe without output is outside its domain")
        found = difference(got, want)
        if found.mismatches == 0:
            return Verdict("bits", recipe, found, (recipe,))
        same = self.same_bits(got)
        if same and any_recipe:
            exact = difference(got, self._outputs[same[0]])  # type: ignore[arg-type]
            return Verdict("bits", same[0], exact, same)
        return Verdict("fail", recipe, found, same, self._hint(got, recipe, same))

    def _hint(self, got: np.ndarray, recipe: str, same: tuple[str, ...]) -> str:
        if same:
            return f"bit-identical to recipe {same[0]} ({self.op.recipe(same[0]).source})"
        for mutant in self.reproducing_mutants(got, recipe):
            return f"bit-identical to mutant {mutant.name}: the kernel {mutant.says}"
        return ""

    def reproducing_mutants(self, got: np.ndarray, recipe: str) -> Iterator[Any]:
        chosen = self.op.recipe(recipe).for_call(self.call)
        for mutant in self.op.part("mutants").MUTANTS:
            wrong = mutant.stages(self.op, self.call, chosen)["out"]
            if wrong.dtype == got.dtype and wrong.shape == got.shape and _same(got, wrong):
                yield mutant


def _same(got: np.ndarray, want: np.ndarray) -> bool:
    return difference(got, want).mismatches == 0


def check(op: str, got: Any, recipe: str | None = None, **inputs_and_params: Any) -> Verdict:
    """Judge one output tensor, without a file.

    op: an op's name; got: its output, an array or tensor; inputs_and_params: the op's arguments by
    name.  Without a recipe the candidate passes by any of the op's recipes, and the verdict says
    by which.  Raises InvalidInput for arguments that the op refuses and for a ``got`` of another
    shape or dtype.
    """
    chosen = ops.load(op)
    judge = Judge(chosen, chosen.check(**inputs_and_params))
    wanted = chosen.recipe(recipe).name
    return judge.verdict(arguments.as_array("got", got), wanted, any_recipe=recipe is None)
