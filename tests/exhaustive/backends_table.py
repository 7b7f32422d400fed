"""Every backend that runs here, on every golden case of the quick and standard tier: one table.

    python tests/exhaustive/backends_table.py [--backend NAME[@DEVICE] ...] [--json FILE]

Each is judged under its own policy, by the recipe of the case, as `refkern verify` does.  Prints
markdown, with the library's version or why the backend was skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from cuda_verify import call_of, selected_cases

from refkern import ops
from refkern import policy as policies
from refkern.goldens import backends
from refkern.goldens.backends import Backend, Unavailable, Unsupported
from refkern.verdict import Judge

RUNGS = ("bits", "accept", "fail", "skip", "error")


def verdict(backend: Backend, selected: Any, call: Any) -> tuple[str, str]:
    """(rung, headline) of one case."""
    op, recipe = selected.op, selected.case.recipe
    try:
        outputs, _ = backend(op.name, call.inputs, dict(selected.case.params), recipe=recipe)
        judge = Judge(op, call, policy=policies.load(backend.policy))
        found = judge.verdict(outputs["out"], recipe)
    except Unsupported as reason:
        return "skip", str(reason)
    except Exception as error:
        # A backend is foreign code: whatever it raises is a verdict on it.
        return "error", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return found.rung, found.headline


def run(backend: Backend) -> dict[str, dict[str, tuple[str, str]]]:
    """op -> case -> (rung, headline)."""
    results: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for selected in selected_cases():
        if backend.ops is None or selected.op.name in backend.ops:
            found = verdict(backend, selected, call_of(selected))
            results[selected.op.name][selected.case.name] = found
    return results


def cell(of_op: dict[str, tuple[str, str]] | None) -> str:
    if not of_op:
        return "-"
    counts = Counter(rung for rung, _ in of_op.values())
    return ", ".join(f"{counts[rung]} {rung}" for rung in RUNGS if counts[rung])


def report(name: str, backend: Backend, version: str, results: dict[str, Any]) -> list[str]:
    """What did not pass, case by case; skips by their reason."""
    lines = []
    skips: dict[str, list[str]] = defaultdict(list)
    for op, of_op in results.items():
        for case, (rung, headline) in of_op.items():
            if rung in ("fail", "error"):
                lines.append(f"- {name}, {op}/{case}: {rung}: {headline}")
            elif rung == "skip":
                skips[headline].append(f"{op}/{case}")
    lines += [f"- {name}, {len(cases)} skipped: {why}" for why, cases in skips.items()]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", action="append", help="NAME or NAME@DEVICE; default: all")
    parser.add_argument("--json", type=Path, help="the same as data")
    chosen = parser.parse_args()
    wanted = chosen.backend or [n for n in backends.names() if not n.startswith("exec:")]
    table = [
        f"| backend | policy | {' | '.join(ops.names())} | version |",
        "|---" * (len(ops.names()) + 3) + "|",
    ]
    details: list[str] = []
    data: dict[str, Any] = {}
    for name in wanted:
        kind, _, device = name.partition("@")
        backend = backends.load(kind, device or None)
        try:
            version = backend.version()
        except Unavailable as reason:
            table.append(f"| {name} | {backend.policy} |{' - |' * len(ops.names())} {reason} |")
            data[name] = {"unavailable": str(reason)}
            continue
        started = time.perf_counter()
        results = run(backend)
        print(f"{name}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        cells = " | ".join(cell(results.get(op)) for op in ops.names())
        table.append(f"| {name} | {backend.policy} | {cells} | {version} |")
        details += report(name, backend, version, results)
        data[name] = {"version": version, "policy": backend.policy, "cases": results}
    print("\n".join([*table, "", *details]))
    if chosen.json:
        chosen.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
