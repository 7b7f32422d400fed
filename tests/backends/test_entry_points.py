"""Backends of other packages, found by the entry-point group refkern.backends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

MODULE = '''
"""A package that knows refkern's contract only."""

def follows(op, inputs, params, *, recipe):
    "Follows the case's recipe."
    import refkern
    return {"out": getattr(refkern, op)(**inputs, **params, recipe=recipe)}

def plain(op, inputs, params):
    """
    Has one arithmetic only.

    More text.
    """
    import refkern
    stages = dict(getattr(refkern.reference, op)(**inputs, **params, recipe="mamba-ssm"))
    return {"out": stages.pop("out")}, stages

plain.version = "2.5"
plain.policy = "metal"

class Kernel:
    ops = ("another_op",)
    def __call__(self, op, inputs, params, **more):
        raise AssertionError("it does not serve this op")

instance = Kernel()
'''
ENTRIES = """
[refkern.backends]
theirs-follows = theirs:follows
theirs-plain = theirs:plain
theirs-other-op = theirs:instance
theirs-broken = theirs_broken:compute
numba = theirs:plain
"""


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution, as importlib.metadata sees one."""
    (tmp_path / "theirs.py").write_text(MODULE)
    (tmp_path / "theirs_broken.py").write_text("import no_such_framework\n")
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(tmp_path)


def test_they_are_listed_with_what_they_say_of_themselves(run: Any) -> None:
    done = run("list", "backends", "--json")
    assert done.code == 0
    rows = {row["backend"]: row for row in done.json["backends"]}
    assert rows["theirs-follows"]["summary"] == "Follows the case's recipe."
    assert rows["theirs-plain"]["summary"] == "Has one arithmetic only."
    assert rows["theirs-plain"]["state"] == "2.5"
    assert rows["theirs-broken"]["state"] == (
        "unavailable: ModuleNotFoundError: No module named 'no_such_framework'"
    )
    assert rows["numba"]["summary"] == "refkern's CPU kernels", "refkern's own names stay its own"


def test_one_that_takes_the_recipe_gets_it(run: Any, made: Path) -> None:
    done = run("verify", made, "--backend", "theirs-follows", "--json")
    assert done.code == 0
    assert done.json["summary"]["bits"] == 3
    assert done.json["policy"] == "ieee"


def test_one_that_does_not_is_called_without(run: Any, made: Path) -> None:
    done = run("verify", made, "--backend", "theirs-plain", "--json")
    assert done.code == 1
    assert done.json["policy"] == "metal"
    assert done.json["version"] == "2.5"
    rungs = {case["case"]: case["rung"] for case in done.json["cases"]}
    assert rungs == {"groups_of_7": "accept", "mamba_ssm": "bits", "nemotron_wide_gate": "fail"}
    (failed,) = [c for c in done.json["cases"] if c["case"] == "nemotron_wide_gate"]
    assert failed["hint"].startswith("bit-identical to recipe mamba-ssm")
    assert failed["first_stage"] == "rstd"


def test_one_for_another_op_skips(run: Any, made: Path) -> None:
    done = run("verify", made, "--backend", "theirs-other-op", "--json")
    assert done.code == 4
    assert done.json["summary"]["skip"] == 3
    assert "theirs-other-op does not serve" in done.json["cases"][0]["headline"]


def test_one_that_cannot_be_imported_is_unavailable(run: Any, made: Path) -> None:
    done = run("verify", made, "--backend", "theirs-broken")
    assert done.code == 4
    assert done.err == (
        "Error: backend theirs-broken: ModuleNotFoundError: No module named 'no_such_framework'\n"
    )
