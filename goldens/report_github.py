"""--github: annotations as workflow commands, and a table for the step's summary."""

from __future__ import annotations

from refkern.goldens.reports import Run, failure_lines, is_problem, label

#: GitHub drops what a step says beyond ten annotations of a kind, without a word
MOST_ANNOTATIONS = 10
#: a step's summary beyond 1 MiB is refused as a whole
MOST_SUMMARY_BYTES = 1 << 20
#: explained one by one below the table
MOST_EXPLAINED = 50


def workflow_commands(run: Run) -> list[str]:
    """Lines for stdout: an error for each problem, at most ten in all."""
    problems = [report for report in run.reports if is_problem(report)]
    shown = problems
    if len(problems) > MOST_ANNOTATIONS:
        shown = problems[: MOST_ANNOTATIONS - 1]
    commands = [
        f"::error file={_property(report.file)},"
        f"title={_property(f'{label(report)} ({report.outcome})')}::"
        + _data("\n".join(failure_lines(report, run.policy)))
        for report in shown
    ]
    if len(shown) < len(problems):
        more = f"{len(problems) - len(shown)} more in the summary"
        commands.append(f"::error title={_property(f'refkern {run.backend}')}::{_data(more)}")
    return commands


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def step_summary(run: Run, most_bytes: int = MOST_SUMMARY_BYTES) -> str:
    """Markdown, below ``most_bytes`` in UTF-8: problems first, what does not fit is counted."""
    ordered = sorted(run.reports, key=lambda report: not is_problem(report))
    head = [
        f"### refkern verify: {_markdown(run.backend)}",
        "",
        f"{_markdown(run.summary())}; policy {_markdown(run.policy)}; {_markdown(run.version)}",
        "",
        "| rung | case | mismatches | max ULP | verdict |",
        "|---|---|---:|---:|---|",
    ]
    rows = [
        f"| {r.outcome} | {_markdown(label(r))} | {r.mismatches} of {r.elements} | {r.max_ulp} "
        f"| {_markdown(r.headline)} |"
        for r in ordered
    ]
    explained = [
        f"\n<details><summary>{_html(label(r))}</summary>\n\n<pre>"
        + _html("\n".join(failure_lines(r, run.policy)))
        + "</pre>\n\n</details>"
        for r in ordered
        if is_problem(r)
    ][:MOST_EXPLAINED]
    left = most_bytes - _size(head) - 200
    kept = _fitting(rows, left)
    text = [*head, *kept]
    if len(kept) < len(rows):
        text.append(f"\n{len(rows) - len(kept)} more cases do not fit here")
    else:
        text += _fitting(explained, left - _size(kept))
    return "\n".join(text) + "\n"


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _fitting(lines: list[str], most_bytes: int) -> list[str]:
    kept: list[str] = []
    for line in lines:
        most_bytes -= len(line.encode()) + 1
        if most_bytes < 0:
            break
        kept.append(line)
    return kept


def _markdown(text: str) -> str:
    """Text inside a cell: neither a cell's end nor markup."""
    escaped = "".join(f"\\{c}" if c in "\\|`*_[]~#" else c for c in " ".join(text.split()))
    return _html(escaped)


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
