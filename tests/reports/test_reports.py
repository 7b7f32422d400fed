"""JUnit, GitHub and HTML reports, and the heat map of the terminal."""

from __future__ import annotations

import json
import re
import shlex
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import refkern
from refkern import policy
from refkern.cli.main import main
from refkern.goldens import hdf5, report_github, report_html, report_junit, safetensors
from refkern.goldens.build import Prepared, build
from refkern.goldens.details import as_text, details, heat_map, histogram
from refkern.goldens.reports import Run
from refkern.goldens.selection import select
from refkern.goldens.verify import Options, Report, judge

OP = "gated_group_rmsnorm"
CUDA = policy.load("cuda")


def case(name: str) -> Prepared:
    (selected,) = select([f"{OP}/{name}"])
    return build(selected)


@pytest.fixture(scope="module")
def few() -> dict[str, Prepared]:
    return {name: case(name) for name in ("groups_of_7", "no_gate", "zero_groups")}


def without_eps(prepared: Prepared) -> dict[str, np.ndarray]:
    params = {**prepared.golden.params, "eps": 0.0}
    return refkern.reference.gated_group_rmsnorm(**prepared.call.inputs, **params)


def report_of(prepared: Prepared, stages: dict[str, np.ndarray]) -> Report:
    own = {name: array for name, array in stages.items() if name != "out"}
    path = Path(f"{prepared.golden.case}.h5")
    asked = Options(policy=CUDA, details=True)
    return judge(path, prepared, {"out": stages["out"]}, own, asked)


@pytest.fixture(scope="module")
def run(few: dict[str, Prepared]) -> Run:
    """Two failures, a pass, and one of each of the rest with hostile texts."""
    bad = {name: report_of(p, without_eps(p)) for name, p in few.items()}
    assert [r.outcome for r in bad.values()] == ["fail", "bits", "fail"]
    text = "<b>&\"'\x00\x1b[31m|`* ::error:: a,b:c%\r\n"
    return Run(
        f"exec:{text}",
        "1.0",
        "cuda",
        (
            *bad.values(),
            Report(f"{text}.h5", text, "", "", "damaged", text),
            Report("e.h5", "raises", OP, "modular-apple", "error", f"ValueError: {text}"),
            Report("s.h5", "skipped", OP, "modular-apple", "skip", "no such kernel"),
        ),
    )


# ---------------------------------------------------------------- details


def test_details_of_a_fault(few: dict[str, Prepared]) -> None:
    prepared = few["groups_of_7"]
    stages = without_eps(prepared)
    found = details(prepared, stages.pop("out"), stages, CUDA)
    assert dict(found.stages) == {
        "gated": "follows",
        "sum_of_squares": "follows",
        "rstd": "guilty",
        "normalized": "follows",
        "out": "follows",
    }
    assert (
        "what: bit-identical to mutant eps-dropped (the kernel left eps out)" in found.explanation
    )
    assert sum(d.accepted + d.wrong for d in found.histogram) == 5 * 77
    assert sum(d.wrong for d in found.histogram) == 20 == found.heat_map.wrong.sum()


def test_a_stage_of_another_shape_is_guilty_and_no_crash(few: dict[str, Prepared]) -> None:
    prepared = few["groups_of_7"]
    stages = without_eps(prepared)
    stages["sum_of_squares"] = stages["sum_of_squares"][:, :3]
    stages["normalized"] = stages["normalized"].astype(np.float64)
    found = details(prepared, stages.pop("out"), stages, CUDA)
    assert dict(found.stages) == {
        "gated": "follows",
        "sum_of_squares": "guilty",
        "rstd": "differs",
        "normalized": "differs",
        "out": "follows",  # from the candidate's own rstd
    }


def test_a_heat_map_counts_every_element(few: dict[str, Prepared]) -> None:
    prepared = few["no_gate"]
    rng = np.random.default_rng(0)
    for shape in ((3, 768), (1, 1), (1000, 5000), (2, 3, 40), (7,), (0, 5), (5, 0)):
        wrong = rng.random(shape) < 0.01
        heat = heat_map(wrong, prepared)
        assert heat.wrong.sum() == wrong.sum()
        assert heat.sizes.sum() == wrong.size
        assert heat.wrong.shape[0] <= 64
        assert heat.wrong.shape[1] <= 192
        assert (heat.share <= 1).all()
    exact = np.zeros((3, 768), bool)
    exact[1, 256:512] = True
    heat = heat_map(exact, prepared)
    assert (heat.column_lines, heat.column_tile) == ((256, 512), "groups of 256 columns")
    assert 256 % heat.column_step == 0
    assert np.array_equal(np.unique(heat.share), [0, 1])
    assert set(zip(*np.nonzero(heat.wrong), strict=True)) == {
        (1, c) for c in range(256 // heat.column_step, 512 // heat.column_step)
    }


def test_the_terminal_s_map(few: dict[str, Prepared]) -> None:
    wrong = np.zeros((4, 64), bool)
    wrong[1, 8:24] = True
    wrong[3, 0] = True
    head, *rows = as_text(heat_map(wrong, few["no_gate"]), width=28)
    assert head == "heat map of 4 x 64, a cell is 1 x 4: ░▒▓█ from few to all"
    assert rows == [
        "        0 |                |",
        "        1 |  ████          |",
        "        2 |                |",
        "        3 |░               |",
    ]
    assert as_text(heat_map(np.zeros((0, 4), bool), few["no_gate"])) == []


def test_the_histogram_s_places() -> None:
    want = np.array([1, 1, 1, 1, 1, 1, 0, 1, np.nan, np.inf], np.float32)
    got = want.copy()
    steps = np.array([0, 1, 2, 3, 4, 5, 0, 0, 0, 0])
    got.view(np.int32)[...] += steps.astype(np.int32)
    got[6], got[7] = -0.0, np.nan
    wrong = np.array([0, 0, 0, 1, 1, 1, 1, 1, 0, 0], bool)
    found = [(d.ulp, d.accepted, d.wrong) for d in histogram(got, want, wrong)]
    assert found == [
        ("0", 3, 0),
        ("sign of 0", 0, 1),
        ("1", 1, 0),
        ("2", 1, 0),
        ("3..4", 0, 2),
        ("5..8", 0, 1),
        ("no distance", 0, 1),
    ]
    huge = histogram(np.array([3e38], np.float32), np.array([1.0], np.float32), np.array([True]))
    assert huge[0].ulp == "2^29..2^30"


# ---------------------------------------------------------------- JUnit


def test_junit(run: Run) -> None:
    root = ElementTree.fromstring(report_junit.junit_xml(run))
    (suite,) = root
    counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "6", "failures": "2", "errors": "2", "skipped": "1"}
    cases = suite.findall("testcase")
    kinds = [[child.tag for child in c if child.tag != "properties"] for c in cases]
    assert kinds == [["failure"], [], ["failure"], ["error"], ["error"], ["skipped"]]
    told = {p.get("name"): p.get("value") for p in cases[0].iter("property")}
    assert told["rung"] == "fail"
    assert told["max_ulp"] == "37"
    assert told["policy"] == "cuda"
    assert told["recipe"] == "modular-apple"
    assert cases[0].get("classname") == f"refkern.{OP}"
    failure = cases[0].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "first stage that does not follow from the one before: rstd" in failure.text
    assert "mutant eps-dropped" in failure.text
    versions = {p.get("name") for p in suite.find("properties") or ()}
    assert {"backend", "refkern", "numpy", "python"} <= versions


# ---------------------------------------------------------------- GitHub


def many(number: int) -> Run:
    reports = [
        Report(f"d/{n}.h5", f"case{n}", OP, "modular-apple", "fail", f"{n} wrong", 10, 5)
        for n in range(number)
    ]
    passed = Report("p.h5", "passes", OP, "modular-apple", "bits", "bits of modular-apple", 10)
    return Run("numpy", "1", "cuda", (passed, *reports))


def test_annotations_are_one_escaped_line_each(run: Run) -> None:
    commands = report_github.workflow_commands(run)
    assert len(commands) == 4
    form = r"::error file=([^,:\r\n]*),title=([^,:\r\n]*)::([^\r\n]*)"
    for command in commands:
        assert re.fullmatch(form, command), command
        assert not re.search("%(?!25|0D|0A|3A|2C)", command)
    hostile = re.fullmatch(form, commands[2])
    assert hostile is not None
    text = hostile[1]
    for code, plain in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, plain)
    assert text == run.reports[3].file


@pytest.mark.parametrize(
    ("problems", "shown"), [(0, 0), (1, 1), (9, 9), (10, 10), (11, 10), (50, 10)]
)
def test_github_s_limit_of_annotations(problems: int, shown: int) -> None:
    commands = report_github.workflow_commands(many(problems))
    assert len(commands) == shown
    if problems > shown:
        assert commands[-1].endswith(f"::{problems - 9} more in the summary")


def test_the_summary_s_table(run: Run) -> None:
    text = report_github.step_summary(run)
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6
    # Problems first, and no text can end a cell or begin a tag.
    assert [row.split(" | ")[0] for row in rows] == [
        "| fail", "| fail", "| damaged", "| error", "| bits", "| skip",
    ]  # fmt: skip
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 6 for row in rows)
    assert "<b>" not in text
    assert "mutant eps-dropped" in text
    assert text.count("<details>") == 4


def test_the_summary_is_capped() -> None:
    for most in (2000, 10_000, 1 << 20):
        text = report_github.step_summary(many(20_000), most)
        assert len(text.encode()) < most
    left = re.search(r"(\d+) more cases do not fit here", text)
    assert left is not None
    assert text.count("\n| ") - 1 + int(left[1]) == 20_001


# ---------------------------------------------------------------- HTML


class Page(HTMLParser):
    """What is in a page: tags, attributes, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page(run: Run) -> None:
    text = report_html.page(run, CUDA)
    page = Page(text)
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    # Self-contained: nothing runs, nothing is fetched.
    assert not set(names) & {"script", "link", "img", "iframe", "object", "b"}
    assert not re.search(r"https?:|url\(|@import", text)
    assert all(a.get("href", "#").startswith("#") for t, a in page.tags if t == "a")  # type: ignore[union-attr]
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert names.count("section") == 4
    assert names.count("svg") == 2
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    words = "".join(page.words)
    for said in ("mutant eps-dropped", "✗ rstd", "groups of 7 columns", "numpy", "n/32 + 8"):
        assert said in words, said
    ids = [a["id"] for _, a in page.tags if "id" in a]
    targets = [str(a["href"])[1:] for t, a in page.tags if t == "a"]
    assert sorted(map(str, ids)) == sorted(targets)


def test_the_page_s_map_shows_the_cells_that_are_wrong(run: Run) -> None:
    text = report_html.page(replace(run, reports=run.reports[:1]))
    report = run.reports[0]
    assert report.details is not None
    heat = report.details.heat_map
    covered = np.zeros(heat.wrong.shape, bool)
    for tag, a in Page(text).tags:
        if tag == "rect":
            x, y, width = (int(str(a[k])) for k in ("x", "y", "width"))
            assert not covered[y, x : x + width].any()
            covered[y, x : x + width] = True
    assert np.array_equal(covered, heat.wrong > 0)


def test_a_page_of_many_cases_stays_small(few: dict[str, Prepared]) -> None:
    """The map of the largest output is bounded; so is a page of a hundred failures."""
    prepared = few["no_gate"]
    rng = np.random.default_rng(0)
    heat = heat_map(rng.random((4096, 8192)) < 0.5, prepared)
    one = report_of(few["groups_of_7"], without_eps(few["groups_of_7"]))
    assert one.details is not None
    worst = replace(one, details=replace(one.details, heat_map=heat))
    assert len(report_html.page(Run("x", "1", "cuda", (worst,)))) < 1 << 20


# ---------------------------------------------------------------- the commands

PROGRAM = """
import json, sys
import refkern
from refkern.goldens import safetensors
inputs, told = safetensors.read(sys.argv[1])
params = {**json.loads(told["refkern"])["params"], "eps": 0.0}
stages = refkern.reference.gated_group_rmsnorm(**{"gate": None, **inputs}, **params)
safetensors.write(sys.argv[2], stages)
"""


@pytest.fixture
def folder(few: dict[str, Prepared], tmp_path: Path) -> Path:
    goldens = tmp_path / "goldens" / OP
    goldens.mkdir(parents=True)
    for name, prepared in few.items():
        hdf5.write(prepared.golden, goldens / f"{name}.h5")
    return goldens.parent


def command(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments], env=environment)


def test_verify_writes_every_report(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "kernel.py"
    program.write_text(PROGRAM)
    backend = f"exec:{shlex.quote(sys.executable)} {shlex.quote(str(program))}"
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    asked = ["--junit", tmp_path / "r.xml", "--html", tmp_path / "r.html", "--github"]
    ran = command("verify", folder, "--backend", backend, *asked, GITHUB_STEP_SUMMARY=str(summary))
    assert ran.exit_code == 1
    assert ran.stdout.count("::error ") == 2
    assert summary.read_text("utf-8").startswith("before\n### refkern verify: exec:")
    assert ElementTree.parse(tmp_path / "r.xml").getroot()[0].get("failures") == "2"
    assert Page((tmp_path / "r.html").read_text("utf-8")).open == []
    ran = command("verify", folder, "--backend", backend, *asked, "--json", GITHUB_STEP_SUMMARY="")
    document: dict[str, Any] = json.loads(ran.stdout)
    assert document["summary"]["fail"] == 2
    assert ran.stderr.count("::error ") == 2


def test_a_report_that_cannot_be_written_is_one_line(folder: Path, tmp_path: Path) -> None:
    ran = command("verify", folder, "--backend", "numpy", "--junit", tmp_path / "no" / "r.xml")
    assert ran.exit_code == 2
    assert ran.stderr.splitlines()[-1].startswith("Error: ")


def test_compare_and_explain_draw_the_map(
    folder: Path, few: dict[str, Prepared], tmp_path: Path
) -> None:
    result = tmp_path / "r.safetensors"
    safetensors.write(result, without_eps(few["groups_of_7"]))
    for what in ("compare", "explain"):
        ran = command(what, folder / OP / "groups_of_7.h5", result, NO_COLOR="1", COLUMNS="100")
        assert "heat map of 5 x 77, a cell is 1 x 1" in ran.stdout
        assert "\x1b" not in ran.stdout
    ran = command("compare", folder / OP / "groups_of_7.h5", result, "--json")
    assert json.loads(ran.stdout)["summary"]["fail"] == 1
