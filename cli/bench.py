"""refkern bench"""

from __future__ import annotations

from dataclasses import asdict

import click

from refkern.cli import exits, options
from refkern.cli.output import note, print_json, print_table


@click.command("bench")
@options.op
@click.option("--peer", "peers", multiple=True, help="A backend to time beside; may be repeated.")
@options.threads
@options.as_json
def command(op: str | None, peers: tuple[str, ...], as_json: bool) -> None:
    """Time the CPU kernels, and other backends beside them, on the standard tier's real shapes.

    Backends take turns within one run; the ratio says how many times as long a peer takes.
    """
    from refkern.goldens import backends
    from refkern.goldens.bench import bench
    from refkern.goldens.selection import select

    selected = [s for s in select(op=op, tier="standard") if s.case.tier == "standard"]
    if not selected:
        raise exits.Failure(exits.NOTHING, "no case of the standard tier was selected")
    try:
        timings = list(bench(selected, peers))
    except backends.Unavailable as reason:
        raise exits.Failure(exits.UNAVAILABLE, str(reason)) from None
    if as_json:
        print_json({"timings": [asdict(t) for t in timings]})
        return
    rows = []
    for t in timings:
        if t.seconds is None or t.ratio is None:
            rows.append((f"{t.op}/{t.case}", t.backend, "-", "-", t.problem or "-"))
            continue
        each = f"{t.seconds / max(t.elements, 1) * 1e9:.2f}"
        rows.append(
            (f"{t.op}/{t.case}", t.backend, f"{t.seconds * 1e3:.3f}", each, f"{t.ratio:.2f}")
        )
    print_table("bench", ("case", "backend", "ms", "ns/element", "times numba"), rows)
    note("medians of 7 alternating runs on this machine, as it was")
