"""--html: one page without scripts and without network; light and dark, wide and narrow."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

import numpy as np

from refkern.goldens.details import Details, Distance, HeatMap
from refkern.goldens.reports import Run, environment, is_problem, label
from refkern.goldens.verify import Report
from refkern.policy import Policy

#: shades of a heat map's cell, from the first wrong element to all
LEVELS = 8
#: pixels of the map's height
SHORTEST, TALLEST = 48, 320

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2027; --soft: #5a6472; --line: #d9dee5;
  --good: #0b7a4b; --near: #1f63c4; --bad: #c02b30; --skip: #8a6100; --empty: #eceff3;
  --tile: #8b95a3; }
@media (prefers-color-scheme: dark) { :root {
  --page: #101317; --card: #191e24; --ink: #e6e9ee; --soft: #9aa5b3; --line: #303843;
  --good: #4cc38a; --near: #7fb0ff; --bad: #ff7b7f; --skip: #e3b341; --empty: #232a33;
  --tile: #6b7684; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 20px 64px; }
h1 { font-size: 1.5rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 36px 0 12px; }
h3 { font-size: .8rem; margin: 20px 0 8px; color: var(--soft); font-weight: 600; }
p { margin: 0 0 8px; }
.soft { color: var(--soft); }
code, .mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .86em; overflow-wrap: anywhere; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 16px 18px; margin: 0 0 16px; }
.counts { display: flex; flex-wrap: wrap; gap: 8px; margin: 16px 0 0; padding: 0;
  list-style: none; }
.counts li { border: 1px solid var(--line); border-radius: 999px; padding: 2px 12px;
  background: var(--card); }
.bits, .accept, .fail, .error, .damaged, .skip { font-weight: 650; }
.bits { color: var(--good); } .accept { color: var(--near); } .skip { color: var(--skip); }
.fail, .error, .damaged { color: var(--bad); }
table { width: 100%; border-collapse: collapse; }
th { text-align: left; font-size: .8rem; color: var(--soft); font-weight: 600; }
th, td { padding: 6px 12px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
td a { color: inherit; } td.case { min-width: 12.5em; } td.case code { overflow-wrap: normal; }
.stages { display: flex; flex-wrap: wrap; gap: 6px; padding: 0; margin: 0; list-style: none; }
.stages li { border: 1px solid var(--line); border-radius: 6px; padding: 3px 10px; }
.stages .follows { border-color: var(--good); }
.stages .guilty { border-color: var(--bad); background: var(--bad); color: var(--card);
  font-weight: 650; }
.stages .differs { border-color: var(--bad); }
.stages .absent { color: var(--soft); border-style: dashed; }
.map { display: block; width: 100%; background: var(--empty); border-radius: 4px; }
.map rect { fill: var(--bad); } .map line { stroke: var(--tile); stroke-width: 1;
  vector-effect: non-scaling-stroke; stroke-dasharray: 2 3; }
.axis { display: flex; justify-content: space-between; font-size: .8rem; color: var(--soft);
  gap: 12px; }
.key { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: center; font-size: .8rem;
  color: var(--soft); }
.key i { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin-right: 6px;
  vertical-align: -1px; background: var(--bad); }
.key i.none { background: var(--empty); border: 1px solid var(--line); }
.key i.near { background: var(--near); }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 4px 12px;
  align-items: center; font-variant-numeric: tabular-nums; }
.bars .of { display: flex; height: 14px; background: var(--empty); border-radius: 3px;
  overflow: hidden; }
.bars .of span { background: var(--near); } .bars .of .bad { background: var(--bad); }
.bars .count { text-align: right; font-size: .86rem; }
ul.said { margin: 0; padding-left: 20px; } ul.said li { margin-bottom: 4px; }
ul.worst { margin: 0; padding: 0; list-style: none; }
ul.worst li { padding: 3px 0; border-bottom: 1px solid var(--line); }
ul.worst li:last-child { border-bottom: 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 16px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 16px 12px 48px; } .card { padding: 12px; }
  .verdicts thead { display: none; }
  .verdicts tr { display: grid; grid-template-columns: max-content 1fr; gap: 0 10px;
    padding: 8px 0; border-bottom: 1px solid var(--line); }
  .verdicts tr:last-child { border-bottom: 0; }
  .verdicts td { border: 0; padding: 0; min-width: 0; } td.case code { overflow-wrap: anywhere; }
  .verdicts td.number { display: none; } .verdicts td.verdict { grid-column: 1 / -1; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: 6px; } }
"""


def page(run: Run, policy: Policy | None = None, when: datetime | None = None) -> str:
    """The whole page; ``when``: of the run, now if it is not given."""
    at = (when or datetime.now(UTC)).strftime("%Y-%m-%d %H:%M UTC")
    title = f"refkern verify: {run.backend}"
    counts = "".join(
        f'<li><span class="{outcome}">{outcome}</span> {number}</li>'
        for outcome, number in run.counts().items()
    )
    failed = [(n, r) for n, r in enumerate(run.reports) if is_problem(r)]
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(run.version)}; policy {escape(run.policy)}; {at}</p>',
        f'<ul class="counts">{counts}</ul>',
        "<h2>Verdicts</h2>",
        _table(run),
        *(["<h2>What went wrong</h2>"] if failed else []),
        *(_problem(number, report) for number, report in failed),
        "<h2>Run</h2>",
        _facts(run, policy),
        "</main></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _table(run: Run) -> str:
    rows = []
    for number, report in enumerate(run.reports):
        name = f"<code>{escape(label(report)).replace('/', '/<wbr>')}</code>"
        linked = f'<a href="#case-{number}">{name}</a>' if is_problem(report) else name
        rows.append(
            f'<tr><td class="{report.outcome}">{report.outcome}</td><td class="case">{linked}</td>'
            f'<td class="number">{report.mismatches} of {report.elements}</td>'
            f'<td class="number">{_max_ulp(report)}</td>'
            f'<td class="verdict">{escape(report.headline)}</td></tr>'
        )
    head = (
        '<thead><tr><th>rung</th><th>case</th><th class="number">mismatches</th>'
        '<th class="number">max ULP</th><th>verdict</th></tr></thead>'
    )
    body = "".join(rows)
    return f'<div class="card"><table class="verdicts">{head}<tbody>{body}</tbody></table></div>'


def _max_ulp(report: Report) -> str:
    if report.mismatches and not report.max_ulp:
        return "none"  # NaN has no distance
    return str(report.max_ulp) if report.max_ulp < 100_000 else f"{report.max_ulp:.1e}"


def _problem(number: int, report: Report) -> str:
    parts = [
        f'<section class="card" id="case-{number}">',
        f'<p><span class="{report.outcome}">{report.outcome}</span> '
        f"<code>{escape(label(report))}</code></p>",
        f"<p>{escape(report.headline)}</p>",
        f'<p class="soft">recipe <code>{escape(report.recipe or "?")}</code>, '
        f"file <code>{escape(report.file)}</code></p>",
    ]
    if report.details is not None:
        parts += list(_details(report.details))
    if report.worst:
        listed = "".join(f"<li><code>{escape(str(e))}</code></li>" for e in report.worst)
        parts.append(f'<h3>Worst elements</h3><ul class="worst">{listed}</ul>')
    parts.append("</section>")
    return "\n".join(parts)


def _details(details: Details) -> Iterator[str]:
    said = "".join(f"<li>{escape(line)}</li>" for line in details.explanation)
    yield f'<h3>Explanation</h3><ul class="said">{said}</ul>'
    marks = {"follows": "✓", "guilty": "✗", "differs": "✗", "absent": "·"}
    words = {
        "follows": "follows from the candidate's own stages before it",
        "guilty": "the first that does not follow from the one before it",
        "differs": "does not follow from the one before it either",
        "absent": "not given by the candidate",
    }
    strip = "".join(
        f'<li class="{state}" title="{escape(words[state])}">{marks[state]} {escape(name)}</li>'
        for name, state in details.stages
    )
    occurring = dict.fromkeys(state for _, state in details.stages)
    key = "; ".join(f"{marks[state]} {words[state]}" for state in occurring)
    yield "<h3>Stages</h3>"
    if set(occurring) == {"absent"}:
        yield '<p class="soft">The candidate gave none but the output.</p>'
    else:
        yield f'<ul class="stages">{strip}</ul>'
        yield f'<p class="key" style="margin-top:6px">{escape(key)}</p>'
    yield _heat_map(details.heat_map)
    yield _histogram(details.histogram)


def _heat_map(heat: HeatMap) -> str:
    if heat.wrong.size == 0:
        return ""
    down, across = heat.wrong.shape
    height = min(max(down * 14, SHORTEST), TALLEST)
    cells = "".join(
        f'<rect x="{left}" y="{row}" width="{right - left}" height="1" '
        f'fill-opacity="{0.2 + 0.8 * level / LEVELS:.2f}"/>'
        for row, left, right, level in _runs(heat)
    )
    lines = "".join(
        f'<line x1="{x:g}" x2="{x:g}" y1="0" y2="{down}"/>'
        for x in (c / heat.column_step for c in heat.column_lines)
    ) + "".join(
        f'<line x1="0" x2="{across}" y1="{y:g}" y2="{y:g}"/>'
        for y in (r / heat.row_step for r in heat.row_lines)
    )
    tiles = " and ".join(part for part in (heat.row_tile, heat.column_tile) if part)
    cell = (
        f"row 0 at the top, row {heat.rows - 1} at the bottom; "
        f"a cell is {heat.row_step} x {heat.column_step} elements"
    )
    notes = f"{cell}; dotted lines: {tiles}" if tiles else cell
    alt = f"{int(heat.wrong.sum())} of {heat.rows * heat.columns} elements are wrong"
    return (
        "<h3>Where</h3>"
        f'<svg class="map" viewBox="0 0 {across} {down}" preserveAspectRatio="none" '
        f'style="height:{height}px" role="img" aria-label="{alt}">'
        f"{cells}{lines}</svg>"
        f'<div class="axis"><span>column 0</span><span>column {heat.columns - 1}</span></div>'
        '<p class="key"><span><i class="none"></i>nothing wrong</span>'
        '<span><i style="opacity:.3"></i>a few</span><span><i></i>every element wrong</span>'
        f"<span>{escape(notes)}</span></p>"
    )


def _runs(heat: HeatMap) -> Iterator[tuple[int, int, int, int]]:
    """Neighbours of one shade as one: row, first cell, cell behind the last, level 1..LEVELS."""
    levels = np.ceil(heat.share * LEVELS).astype(int)
    for row, line in enumerate(levels):
        edges = [0, *(np.flatnonzero(np.diff(line)) + 1).tolist(), line.size]
        for left, right in pairwise(edges):
            if line[left]:
                yield row, left, right, int(line[left])


def _histogram(distances: tuple[Distance, ...]) -> str:
    most = max((d.accepted + d.wrong for d in distances), default=0)
    rows = []
    for d in distances:
        total = d.accepted + d.wrong
        # logarithmic, so that one wrong element among a million is seen
        whole = 100 * math.log1p(total) / math.log1p(most)
        bad = whole * d.wrong / total
        counts = f"{total}" if d.wrong in (0, total) else f"{total}, {d.wrong} wrong"
        rows.append(
            f'<span>{escape(d.ulp)}</span><span class="of">'
            f'<span style="width:{whole - bad:.2f}%"></span>'
            f'<span class="bad" style="width:{bad:.2f}%"></span></span>'
            f'<span class="count">{counts}</span>'
        )
    return (
        "<h3>Distance from the expected value, in ULP</h3>"
        f'<div class="bars">{"".join(rows)}</div>'
        '<p class="key" style="margin-top:6px"><span><i class="near"></i>accepted</span>'
        "<span><i></i>wrong</span><span>lengths are logarithmic</span></p>"
    )


def _facts(run: Run, policy: Policy | None) -> str:
    facts = {"backend": run.backend, "version": run.version, "policy": run.policy}
    if policy is not None:
        lanes = "any order" if policy.chain is None else "n/{} + {} additions".format(*policy.chain)
        facts["policy allows"] = (
            f"{policy.summary}; exp {policy.exp[0]:g} + {policy.exp[1]:g}|x| ULP, rsqrt "
            f"{policy.rsqrt:g} ULP, division {policy.div:g} ULP; sums: {lanes}; "
            f"fma {'allowed' if policy.fuse else 'not allowed'}; flush to zero "
            f"{'allowed' if policy.flush else 'not allowed'}"
        )
    facts |= environment()
    rows = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    return f'<div class="card"><dl>{rows}</dl></div>'
