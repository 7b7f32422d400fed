"""What a report shows of one case beyond its numbers: a heat map, distances, stages, sentences.

All of it is small, so that reports of many cases can be held at one time: no array of the size of
an output is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from refkern.formats import codes
from refkern.goldens.build import Prepared
from refkern.goldens.explain import TILES, Explanation, explain
from refkern.policy import Policy
from refkern.ulp import NO_DISTANCE, is_nan, ulp_distance
from refkern.verdict import Judge

#: the most cells of a heat map
MOST_ROWS, MOST_COLUMNS = 64, 192
#: more lines than this hide the cells
MOST_LINES = 40
State = Literal["follows", "guilty", "differs", "absent"]


@dataclass(frozen=True, eq=False)
class HeatMap:
    """Where the wrong elements of a [rows, columns] output lie, counted in cells."""

    rows: int
    columns: int
    #: elements of a cell, but for those at the right and at the bottom
    row_step: int
    column_step: int
    #: int64 [cells down, cells across]: wrong elements of each cell
    wrong: np.ndarray = field(repr=False)
    #: int64, the same shape: elements of each cell
    sizes: np.ndarray = field(repr=False)
    #: rows and columns at which a tile, a group or an expert begins, 0 left out
    row_lines: tuple[int, ...]
    column_lines: tuple[int, ...]
    #: what the lines are, such as "group_size 960"; "" where there are none
    row_tile: str
    column_tile: str

    @property
    def share(self) -> np.ndarray:
        """float64, the shape of ``wrong``: which part of each cell is wrong."""
        return self.wrong / np.maximum(self.sizes, 1)


@dataclass(frozen=True)
class Distance:
    """How many elements lie that far from the expected value."""

    #: such as "0", "1", "3..4", "no distance"
    ulp: str
    accepted: int
    wrong: int


@dataclass(frozen=True)
class Details:
    heat_map: HeatMap
    histogram: tuple[Distance, ...]
    #: every stage of the op; the first that does not follow from the one before is "guilty"
    stages: tuple[tuple[str, State], ...]
    explanation: tuple[str, ...]


def details(
    prepared: Prepared,
    got: np.ndarray,
    stages: Mapping[str, np.ndarray],
    policy: Policy,
    recipe: str | None = None,
) -> Details:
    """Of a candidate's output and stages, judged by ``recipe``; None: the golden's own."""
    return of_explanation(
        prepared, got, stages, policy, explain(prepared, got, stages, policy, recipe), recipe
    )


def of_explanation(
    prepared: Prepared,
    got: np.ndarray,
    stages: Mapping[str, np.ndarray],
    policy: Policy,
    explanation: Explanation,
    recipe: str | None = None,
) -> Details:
    judged_by = recipe or prepared.golden.recipe
    judge = Judge(prepared.op, prepared.call, whole=prepared.whole, policy=policy)
    judge.know(prepared.golden.recipe, prepared.golden.outputs["out"])
    want = judge.expected(judged_by)
    assert want is not None, "who explains a recipe has its output"
    return Details(
        heat_map(explanation.wrong, prepared),
        histogram(got, want, explanation.wrong),
        _states(judge, {**stages, "out": got}, judged_by),
        tuple(explanation.lines()[1:]),
    )


def heat_map(wrong: np.ndarray, prepared: Prepared) -> HeatMap:
    """wrong: bool, the output's shape; leading axes are taken as rows."""
    columns = wrong.shape[-1] if wrong.ndim else 1
    rows = wrong.size // columns if columns else 0
    matrix = wrong.reshape(rows, columns)
    row_lines, row_tile = _row_lines(prepared, rows)
    tile, column_tile = _column_tile(prepared, columns)
    row_step = max(1, -(-rows // MOST_ROWS))
    column_step = _step(columns, tile)
    row_starts = np.arange(0, rows, row_step)
    column_starts = np.arange(0, columns, column_step)

    def per_cell(values: np.ndarray) -> np.ndarray:
        if values.size == 0:
            return np.zeros((row_starts.size, column_starts.size), np.int64)
        by_rows = np.add.reduceat(values.astype(np.int64), row_starts, axis=0)
        return np.add.reduceat(by_rows, column_starts, axis=1)

    return HeatMap(
        rows, columns, row_step, column_step,
        per_cell(matrix), per_cell(np.ones(matrix.shape, np.int8)),
        row_lines, tuple(range(tile, columns, tile)) if tile else (), row_tile, column_tile,
    )  # fmt: skip


def _row_lines(prepared: Prepared, rows: int) -> tuple[tuple[int, ...], str]:
    """Where the experts' groups begin, in an op that has them; else tiles of rows."""
    offsets = prepared.call.inputs.get("a_offsets")
    if offsets is not None and prepared.golden.sampled_rows is None:
        starts = sorted({int(n) for n in np.asarray(offsets) if 0 < n < rows})
        return (tuple(starts), "experts' groups") if len(starts) <= MOST_LINES else ((), "")
    # Sampled rows are not neighbours.
    if prepared.golden.sampled_rows is not None:
        return (), ""
    tile = _tile(rows, 8)
    return (tuple(range(tile, rows, tile)), f"{tile} rows") if tile else ((), "")


def _column_tile(prepared: Prepared, columns: int) -> tuple[int, str]:
    size = prepared.golden.params.get("group_size")
    if isinstance(size, int) and 1 <= columns // max(size, 1) <= MOST_LINES:
        return (size, f"groups of {size} columns") if size < columns else (0, "")
    tile = _tile(columns, 32)
    return tile, f"{tile} columns" if tile else ""


def _tile(count: int, smallest: int) -> int:
    """The smallest usual tile, but not below ``smallest``, that needs few lines; 0: none does."""
    fits = [t for t in TILES if smallest <= t < count and count // t <= MOST_LINES]
    return min(fits, default=0)


def _step(columns: int, tile: int) -> int:
    """Columns of a cell: few enough cells, and whole cells in a tile where that is possible."""
    least = max(1, -(-columns // MOST_COLUMNS))
    whole = [n for n in range(least, tile + 1) if tile % n == 0]
    return whole[0] if whole and whole[0] <= 4 * least else least


def histogram(got: np.ndarray, want: np.ndarray, wrong: np.ndarray) -> tuple[Distance, ...]:
    """Elements by their distance from the expected value, in powers of two."""
    distance = np.where(is_nan(got) & is_nan(want), 0, ulp_distance(got, want))
    same = (codes(got) == codes(want)) | (is_nan(got) & is_nan(want))
    # -0 where +0 is expected has distance 0, and is not the same bits
    place = np.where(same, 0, 1 + np.ceil(np.log2(np.maximum(distance, 1))).astype(np.int64))
    place = np.where((distance == 0) & ~same, -2, place)
    place = np.where(distance == NO_DISTANCE, -1, place)
    found = []
    for at in np.unique(place):
        here = place == at
        bad = int((wrong & here).sum())
        found.append((_order(int(at)), Distance(_label(int(at)), int(here.sum()) - bad, bad)))
    return tuple(row for _, row in sorted(found, key=lambda pair: pair[0]))


def _order(place: int) -> float:
    return {-1: math.inf, -2: 0.5}.get(place, place)


def _label(place: int) -> str:
    if place <= 1:
        return {-1: "no distance", -2: "sign of 0", 0: "0", 1: "1"}[place]
    if place > 11:
        return f"2^{place - 2}..2^{place - 1}"
    low, high = (1 << (place - 2)) + 1, 1 << (place - 1)
    return str(high) if low == high else f"{low}..{high}"


def _states(
    judge: Judge, stages: Mapping[str, np.ndarray], recipe: str
) -> tuple[tuple[str, State], ...]:
    """Each stage from the candidate's own before it."""
    follows = judge.follows(stages, recipe) if len(stages) > 1 else {}
    guilty = next((name for name, good in follows.items() if not good), None)
    states: list[tuple[str, State]] = []
    for name in judge.op.stages:
        if name not in follows:
            states.append((name, "absent"))
        elif follows[name]:
            states.append((name, "follows"))
        else:
            states.append((name, "guilty" if name == guilty else "differs"))
    return tuple(states)


#: from nothing wrong to everything wrong, without colour
SHADES = " ░▒▓█"


def as_text(heat: HeatMap, width: int = 100, height: int = 24) -> list[str]:
    """The map for a terminal: block characters, darker where more of a cell is wrong."""
    down = max(1, -(-heat.wrong.shape[0] // height))
    across = max(1, -(-heat.wrong.shape[1] // max(width - 12, 8)))
    if heat.wrong.size == 0:
        return []
    starts = (range(0, heat.wrong.shape[0], down), range(0, heat.wrong.shape[1], across))

    def fewer(counts: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(counts, starts[0], axis=0), starts[1], axis=1)

    wrong, sizes = fewer(heat.wrong), fewer(heat.sizes)
    cell = f"{heat.row_step * down} x {heat.column_step * across}"
    lines = [f"heat map of {heat.rows} x {heat.columns}, a cell is {cell}: ░▒▓█ from few to all"]
    for number, (bad, size) in enumerate(zip(wrong, sizes, strict=True)):
        shades = np.ceil(bad / np.maximum(size, 1) * (len(SHADES) - 1)).astype(int)
        row = number * heat.row_step * down
        lines.append(f"{row:>9} |{''.join(SHADES[s] for s in shades)}|")
    return lines
