"""Which cases, and which files, a command is about."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from refkern import ops
from refkern.case import TIERS, Case, Tier
from refkern.op import Op

#: the end of the name of what a failed kernel gave, beside its golden
OBTAINED = ".obtained.h5"


@dataclass(frozen=True)
class Selected:
    op: Op
    case: Case

    @property
    def path(self) -> Path:
        """Where its file lies in a folder of goldens."""
        return Path(self.op.name) / f"{self.case.name}.h5"


def all_cases(op: str | None = None) -> Iterator[Selected]:
    """Every case of one op, or of all, in the order in which the ops list them."""
    for name in ops.names() if op is None else [op]:
        loaded = ops.load(name)
        for case in loaded.part("cases").CASES:
            yield Selected(loaded, case)


def select(
    patterns: Sequence[str] = (),
    *,
    op: str | None = None,
    recipe: str | None = None,
    tier: Tier | None = None,
) -> list[Selected]:
    """Cases whose name or OP/NAME matches one of the globs; without globs, all.

    tier: this tier and those before it.  Without one: the quick tier, or with globs every tier.
    """
    limit = tier or ("full" if patterns else "quick")
    tiers = TIERS[: TIERS.index(limit) + 1]
    return [
        s
        for s in all_cases(op)
        if s.case.tier in tiers
        and (recipe is None or s.case.recipe == recipe)
        and (not patterns or _matches(s, patterns))
    ]


def _matches(selected: Selected, patterns: Iterable[str]) -> bool:
    names = (selected.case.name, f"{selected.op.name}/{selected.case.name}")
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def find_files(paths: Iterable[Path]) -> list[Path]:
    """The files named, and every golden below the folders named, sorted; each once."""
    found: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.rglob("*.h5")) if path.is_dir() else [path]
        kept = [p for p in inside if p == path or not p.name.endswith(OBTAINED)]
        found.update(dict.fromkeys(kept))
    return list(found)
