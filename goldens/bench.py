"""Speed of the CPU kernels beside that of other backends: the same inputs, alternating, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from refkern.goldens import backends
from refkern.goldens.build import check_inputs
from refkern.goldens.inputs import make_inputs
from refkern.goldens.selection import Selected

#: runs of each backend, after one that does not count (compilation, first touch)
ROUNDS = 7


@dataclass(frozen=True)
class Timing:
    op: str
    case: str
    recipe: str
    backend: str
    #: elements of the output
    elements: int
    #: median of one call; None where the backend does not do this case
    seconds: float | None
    #: how many times as long as the numba kernel
    ratio: float | None
    problem: str = ""


def bench(selected: Sequence[Selected], peers: Sequence[str]) -> Iterator[Timing]:
    """Time numba and the peers on every case, in turns."""
    names = ["numba", *dict.fromkeys(p for p in peers if p != "numba")]
    loaded = [backends.load(name) for name in names]
    for backend in loaded:
        backend.version()  # raises Unavailable
    for s in selected:
        inputs = make_inputs(s.case)
        call = check_inputs(s.op, inputs, s.case.params, {})
        shape, _ = s.op.output(call)
        elements = 1
        for n in shape:
            elements *= n
        times: dict[str, list[float]] = {}
        problems: dict[str, str] = {}
        for backend in loaded:
            try:
                backend(s.op.name, call.inputs, s.case.params, recipe=s.case.recipe)
            except Exception as error:
                problems[backend.name] = " ".join(f"{type(error).__name__}: {error}".split())
        working = [b for b in loaded if b.name not in problems]
        for _ in range(ROUNDS):
            for backend in working:
                started = time.perf_counter()
                backend(s.op.name, call.inputs, s.case.params, recipe=s.case.recipe)
                times.setdefault(backend.name, []).append(time.perf_counter() - started)
        medians = {name: statistics.median(taken) for name, taken in times.items()}
        for name in names:
            seconds = medians.get(name)
            own = medians.get("numba")
            ratio = seconds / own if seconds is not None and own else None
            yield Timing(
                s.op.name, s.case.name, s.case.recipe, name, elements, seconds, ratio,
                problems.get(name, ""),
            )  # fmt: skip
