"""refkern golden: what is written, kept, left alone, replaced."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from refkern.goldens import hdf5, manifest
from refkern.goldens.golden import content_sha256

OP = "gated_group_rmsnorm"
CASES = ["groups_of_7", "mamba_ssm", "nemotron_wide_gate"]


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_default_is_every_quick_case_in_the_working_directory(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("golden", "--check", "--json")
    assert done.code == 1
    assert done.json["schema"] == 1
    assert done.json["out"] == "refkern-goldens"
    listed = run("list", "cases", "--json").json["cases"]
    quick = {f"{c['op']}/{c['case']}.h5" for c in listed if c["tier"] == "quick"}
    assert {c["path"] for c in done.json["cases"]} == quick
    assert done.json["summary"] == {"missing": len(quick)}
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_and_then_kept(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "goldens"
    done = run("golden", *CASES, "--out", folder, "--json")
    assert done.code == 0
    paths = {f"{OP}/{case}.h5" for case in CASES}
    assert files(folder).keys() == paths | {"manifest.json"}
    assert {c["path"] for c in done.json["cases"]} == paths
    assert {c["status"] for c in done.json["cases"]} == {"written"}
    entries = json.loads((folder / "manifest.json").read_text())
    assert entries["schema"] == 1
    for entry in entries["cases"]:
        path = folder / entry["path"]
        golden = hdf5.read(path)
        assert entry["content_sha256"] == content_sha256(golden)
        assert entry["file_sha256"] == manifest.file_sha256(path)
        assert entry["bytes"] == path.stat().st_size
        assert (entry["op"], entry["case"]) == (golden.op, golden.case)
    before = files(folder)
    again = run("golden", *CASES, "--out", folder, "--json")
    assert again.code == 0
    assert again.json["summary"] == {"kept": len(CASES)}
    assert files(folder) == before


def test_a_rerun_completes_an_interrupted_run(run: Any, goldens: Path) -> None:
    before = files(goldens)
    (goldens / OP / "mamba_ssm.h5").unlink()
    (goldens / "manifest.json").unlink()  # it is written last
    done = run("golden", *CASES, "--out", goldens, "--json")
    assert done.code == 0
    assert {c["case"]: c["status"] for c in done.json["cases"]} == {
        "groups_of_7": "kept",
        "mamba_ssm": "written",
        "nemotron_wide_gate": "kept",
    }
    assert files(goldens) == before


def other_content(path: Path) -> None:
    golden = hdf5.read(path)
    hdf5.write(replace(golden, params={**golden.params, "eps": 0.5}), path)


def test_other_content_is_left_alone_unless_forced(run: Any, goldens: Path) -> None:
    right = files(goldens)
    path = goldens / OP / "groups_of_7.h5"
    other_content(path)
    wrong = files(goldens)
    done = run("golden", *CASES, "--out", goldens)
    assert done.code == 1
    assert f"{path} has other content" in done.err
    assert files(goldens) == wrong
    assert run("golden", *CASES, "--out", goldens, "--check").code == 1
    done = run("golden", *CASES, "--out", goldens, "--force", "--json")
    assert done.code == 0
    assert done.json["summary"] == {"kept": 2, "written": 1}
    assert files(goldens) == right


def test_force_renews_what_is_not_content(run: Any, goldens: Path) -> None:
    right = files(goldens)
    path = goldens / OP / "groups_of_7.h5"
    hdf5.write(replace(hdf5.read(path), mutants={"bits": ["long-gone"]}), path)
    assert run("golden", "groups_of_7", "--out", goldens, "--json").json["summary"] == {"kept": 1}
    done = run("golden", "groups_of_7", "--out", goldens, "--force", "--json")
    assert done.json["summary"] == {"written": 1}
    assert files(goldens) == right


def test_check_writes_nothing(run: Any, goldens: Path) -> None:
    assert run("golden", *CASES, "--out", goldens, "--check").code == 0
    (goldens / OP / "mamba_ssm.h5").unlink()
    before = files(goldens)
    done = run("golden", *CASES, "--out", goldens, "--check", "--json")
    assert done.code == 1
    assert done.json["summary"] == {"kept": 2, "missing": 1}
    assert "mamba_ssm.h5 is not there" in done.err
    assert files(goldens) == before
    empty = goldens.parent / "empty"
    assert run("golden", "mamba_ssm", "--out", empty, "--check").code == 1
    assert not empty.exists()
    assert run("golden", "--check", "--force").code == 2


def test_a_damaged_file_is_exit_3_and_wins_over_1(run: Any, goldens: Path) -> None:
    other_content(goldens / OP / "groups_of_7.h5")
    damaged = goldens / OP / "mamba_ssm.h5"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    before = files(goldens)
    for more in ((), ("--check",)):
        done = run("golden", *CASES, "--out", goldens, *more)
        assert done.code == 3
        assert str(damaged) in done.err
        assert files(goldens) == before
    assert run("golden", *CASES, "--out", goldens, "--force").code == 0
    assert run("golden", *CASES, "--out", goldens, "--check").code == 0


def test_a_damaged_manifest_is_exit_3_until_forced(run: Any, goldens: Path) -> None:
    path = goldens / "manifest.json"
    right = path.read_text()
    typed = right.replace('"tier": "quick"', '"tier": 1')
    for text in ("{", "[]", '{"cases": [{"path": 1}]}', typed):
        path.write_text(text)
        done = run("golden", *CASES, "--out", goldens)
        assert done.code == 3, text
        assert done.err.splitlines()[-1].startswith(f"Error: {path}: ")
        assert path.read_text() == text
        assert run("golden", *CASES, "--out", goldens, "--force").code == 0
        assert path.read_text() == right


def test_a_manifest_keeps_the_files_of_other_runs(run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "goldens"
    for case in ("groups_of_7", "mamba_ssm", "no_gate"):
        assert run("golden", case, "--out", folder).code == 0
    (folder / OP / "mamba_ssm.h5").unlink()
    assert run("golden", "groups_of_7", "--out", folder).code == 0
    assert [e.case for e in manifest.read(folder).values()] == ["groups_of_7", "no_gate"]


def test_jobs_and_threads_change_no_byte(run: Any, goldens: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    assert run("golden", *CASES, "--out", other, "--jobs", 2, "--threads", 1).code == 0
    assert files(other) == files(goldens)


def test_selection(run: Any, tmp_path: Path) -> None:
    def chosen(*arguments: str) -> set[str]:
        done = run("golden", *arguments, "--out", tmp_path / "x", "--check", "--json")
        return {c["case"] for c in done.json["cases"]}

    assert chosen("groups_of_*") == {"groups_of_100", "groups_of_7"}
    assert chosen(f"{OP}/no_*") == {"no_gate"}
    assert chosen("--recipe", "mamba-ssm") == {"mamba_ssm"}
    assert chosen("vllm*") == {"vllm_mixer2_groups", "vllm_mixer2_one_group"}
    assert chosen("vllm*", "groups_of_7", "--tier", "quick", "--op", OP) == {"groups_of_7"}
    for arguments in (("nothing*",), ("--recipe", "vllm-mixer2")):
        done = run("golden", *arguments, "--out", tmp_path / "x")
        assert done.code == 5
        assert done.err.startswith("Error: no case was selected")
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--op", "nothing"), "op: 'nothing' was given; there are "),
        (("--recipe", "nothing"), "recipe: 'nothing' was given; there are "),
        (("--tier", "nothing"), "'nothing' is not one of"),
        (("--jobs", "0"), "0 is not in the range"),
        (("--threads", "99"), "n: 99 was given; threads are available here from 1 to "),
        (("--threads", "0"), "n: 0 was given"),
        (("--nothing",), "No such option"),
    ],
)
def test_usage_errors(run: Any, tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    done = run("golden", *arguments, "--out", tmp_path / "x")
    assert done.code == 2
    assert says in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_written_is_one_line(run: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / OP).write_text("a file where the folder must be")
    done = run("golden", "groups_of_7", "--out", blocked)
    assert done.code == 2
    assert done.err.startswith(f"Error: {blocked / OP}")
    assert len(done.err.splitlines()) == 1


def test_the_text_goes_to_stdout_and_the_rest_to_stderr(run: Any, goldens: Path) -> None:
    done = run("golden", *CASES, "--out", goldens)
    header, *rows = done.out.splitlines()
    assert header.split() == ["status", "file", "recipe", "content"]
    assert [row.split()[1] for row in rows] == [f"{OP}/{case}.h5" for case in CASES]
    assert done.err.startswith("3 kept; ")


def test_a_file_is_plain_hdf5_with_the_documented_layout(goldens: Path) -> None:
    with h5py.File(goldens / OP / "nemotron_wide_gate.h5") as file:
        assert set(file) == {"inputs", "stages", "outputs", "accept", "mutants", "provenance"}
        assert dict(file.attrs)["format"] == "refkern-golden"
        assert file.attrs["format_version"] == 1
        assert json.loads(file.attrs["params"]) == {"eps": 1e-5, "group_size": 960}
        assert list(file["stages"]) == [
            "00_gated", "01_sum_of_squares", "02_rstd", "03_normalized",
        ]  # fmt: skip
        assert file["inputs/y"].dtype == np.uint16
        assert file["inputs/y"].attrs["dtype"] == "bfloat16"
        assert file["inputs/gate"].dtype == np.float32
        assert file["outputs/out"].attrs["axes"] == "rows, width"
        assert {"refkern", "command", "h5py", "purpose"} <= set(file["provenance"].attrs)


def test_a_folder_may_be_moved(run: Any, goldens: Path, tmp_path: Path) -> None:
    """The files do not know where they lie."""
    moved = tmp_path / "moved"
    shutil.move(goldens, moved)
    assert run("golden", *CASES, "--out", moved, "--check").code == 0
