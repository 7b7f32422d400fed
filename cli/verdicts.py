"""How reports of `verify` and `compare` are shown, and which exit code they make."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from refkern.cli import exits
from refkern.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from refkern.goldens.details import HeatMap
    from refkern.goldens.verify import Report


def show(
    reports: Sequence[Report],
    *,
    as_json: bool,
    backend: str,
    version: str,
    policy: str,
    heat_maps: bool = False,
) -> None:
    """Print the reports and end the command with their exit code."""
    counts = Counter(r.outcome for r in reports)
    if as_json:
        counts["error"] += counts["damaged"]
        summary = {rung: counts[rung] for rung in ("bits", "accept", "fail", "skip", "error")}
        print_json(
            {
                "backend": backend,
                "version": version,
                "policy": policy,
                "cases": [r.as_json() for r in reports],
                "summary": summary,
            }
        )
    else:
        rows = [(r.outcome, f"{r.op}/{r.case}", r.headline) for r in reports]
        print_table(f"{backend} ({version})", ("rung", "case", "verdict"), rows)
        for report in reports:
            _show_failure(report, heat_maps)
        note(", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    exits.finish(exit_code(reports))


def _show_failure(report: Report, heat_maps: bool) -> None:
    if report.outcome != "fail":
        return
    click.echo(f"\n{report.op}/{report.case}: {report.headline}")
    if report.first_stage is not None:
        click.echo(f"  first stage that differs: {report.first_stage}")
    for element in report.worst:
        click.echo(f"  {element}")
    if heat_maps and report.details is not None:
        show_heat_map(report.details.heat_map)


def show_heat_map(heat: HeatMap) -> None:
    from refkern.goldens.details import as_text

    for line in as_text(heat, shutil.get_terminal_size((100, 24)).columns):
        click.echo(f"  {line}")


def exit_code(reports: Sequence[Report]) -> int:
    outcomes = {r.outcome for r in reports}
    if "damaged" in outcomes:
        return exits.DAMAGED
    if outcomes & {"fail", "error"}:
        return exits.MISMATCH
    if outcomes == {"skip"}:
        return exits.UNAVAILABLE
    if sum(r.elements for r in reports) == 0:
        return exits.NOTHING
    return exits.PASS
