"""`refkern golden`: make the files of the selected cases, or check that they are what they were."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import refkern
from refkern import ops
from refkern.goldens import hdf5, manifest
from refkern.goldens.build import Prepared, build, with_proofs
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import Golden, accept_sha256, content_sha256
from refkern.goldens.selection import Selected
from refkern.threads import get_num_threads

#: "kept": there already; "other": there with other content and left alone; "missing": only checked
Status = Literal["written", "kept", "other", "missing", "damaged"]


@dataclass(frozen=True)
class Outcome:
    op: str
    case: str
    tier: str
    recipe: str
    path: str
    status: Status
    content_sha256: str
    #: what is wrong; "" where nothing is
    problem: str = ""

    @property
    def passed(self) -> bool:
        return self.status in ("written", "kept")


@dataclass(frozen=True)
class Job:
    """One case to make or to check; plain data, so that another process can do it."""

    op: str
    case: str
    folder: Path
    check: bool
    #: never together with ``check``
    force: bool
    threads: int


def generate(
    selected: Iterable[Selected],
    folder: Path,
    *,
    check: bool = False,
    force: bool = False,
    jobs: int = 1,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Make (or with ``check`` only compare) the cases' files below ``folder``.

    A file with the case's content is kept, one with other content is left alone.  With ``force``
    the latter is replaced, and the former too where its tier, its rejected mutants or what it
    accepts are no longer what they would be.  ``done`` is told of each case as it ends.
    """
    work = [Job(s.op.name, s.case.name, folder, check, force, get_num_threads()) for s in selected]
    outcomes = []
    for outcome in _run(work, jobs):
        done(outcome)
        outcomes.append(outcome)
    outcomes.sort(key=lambda o: (o.op, o.path))
    if not check:
        entries = [_entry(folder, o) for o in outcomes if o.passed]
        if entries:
            manifest.write(folder, entries, replace_damaged=force)
    return outcomes


def _run(work: list[Job], jobs: int) -> Iterator[Outcome]:
    if jobs <= 1 or len(work) <= 1:
        yield from map(make, work)
        return
    # spawn: a forked child of a process with threads may find a lock held for ever
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=context) as pool:
        yield from pool.map(make, work)


def make(job: Job) -> Outcome:
    """One case: build it, look at what is there, write it where that is due."""
    refkern.set_num_threads(job.threads)
    op = ops.load(job.op)
    case = next(c for c in op.part("cases").CASES if c.name == job.case)
    selected = Selected(op, case)
    prepared = build(selected)
    content = content_sha256(prepared.golden)
    path = job.folder / selected.path

    def outcome(status: Status, problem: str = "") -> Outcome:
        name = selected.path.as_posix()
        return Outcome(op.name, case.name, case.tier, case.recipe, name, status, content, problem)

    try:
        there = hdf5.read(path)
    except FileNotFoundError:
        if job.check:
            return outcome("missing", f"{path} is not there")
    except DamagedFile as error:
        if not job.force:
            return outcome("damaged", str(error))
    else:
        same = content_sha256(there) == content
        if same and not (job.force and _is_stale(there, prepared)):
            return outcome("kept")
        if not job.force:
            other = f"{content_sha256(there)[:12]}, not {content[:12]}"
            return outcome("other", f"{path} has other content: {other}")
    path.parent.mkdir(parents=True, exist_ok=True)
    hdf5.write(with_proofs(prepared), path)
    return outcome("written")


def _is_stale(there: Golden, prepared: Prepared) -> bool:
    """Whether what is not content would be written differently today."""
    return there.tier != prepared.golden.tier or accept_sha256(there) != accept_sha256(
        with_proofs(prepared)
    )


def _entry(folder: Path, outcome: Outcome) -> manifest.Entry:
    path = folder / outcome.path
    return manifest.Entry(
        op=outcome.op,
        case=outcome.case,
        tier=outcome.tier,
        recipe=outcome.recipe,
        path=outcome.path,
        bytes=path.stat().st_size,
        content_sha256=outcome.content_sha256,
        accept_sha256=accept_sha256(hdf5.read(path)),
        file_sha256=manifest.file_sha256(path),
    )
