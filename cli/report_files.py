"""Where the reports of `verify` go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from refkern.goldens.reports import Run
    from refkern.policy import Policy


def write(
    run: Run,
    policy: Policy,
    *,
    junit: Path | None,
    html: Path | None,
    github: bool,
    as_json: bool,
) -> None:
    from refkern.goldens import report_github, report_html, report_junit
    from refkern.goldens.atomic import replacing

    if junit is not None:
        with replacing(junit) as file:
            file.write(report_junit.junit_xml(run))
    if html is not None:
        with replacing(html) as file:
            file.write(report_html.page(run, policy).encode())
    if github:
        # They are found on stderr too, where they do not break a JSON document.
        for line in report_github.workflow_commands(run):
            click.echo(line, err=as_json)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            with open(summary, "ab") as file:
                left = report_github.MOST_SUMMARY_BYTES - file.tell()
                file.write(report_github.step_summary(run, left).encode())
