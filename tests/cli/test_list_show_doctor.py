"""The commands that only tell."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.cli.main import main
from refkern.goldens import hdf5, selfcheck
from refkern.goldens.golden import content_sha256

OP = "gated_group_rmsnorm"


def test_list_ops(run: Any) -> None:
    assert run("list").out == run("list", "ops").out
    document = run("list", "ops", "--json").json
    assert document["schema"] == 1
    assert [row["op"] for row in document["ops"]] == refkern.op_names()
    for row in document["ops"]:
        assert row.keys() == {"op", "default_recipe", "source", "summary"}
        assert row["default_recipe"] in refkern.recipe_names(row["op"])


@pytest.mark.parametrize(
    ("what", "column"),
    [("recipes", "recipe"), ("cases", "case"), ("mutants", "mutant"), ("backends", "backend")],
)
def test_lists(run: Any, what: str, column: str) -> None:
    rows = run("list", what, "--json").json[what]
    _, *lines = run("list", what).out.splitlines()
    assert len(lines) == len(rows) > 1
    for row, line in zip(rows, lines, strict=True):
        assert row[column] in line
        assert line == line.rstrip()
    one = run("list", what, "--op", OP, "--json").json[what]
    assert 1 < len(one) <= len(rows)
    if "op" in one[0]:
        assert {row["op"] for row in one} == {OP}


def test_list_backends_says_what_can_run(run: Any) -> None:
    listed = run("list", "backends", "--json").json["backends"]
    rows = {row["backend"]: row["state"] for row in listed}
    assert {"numpy", "numba", "exec:PROGRAM"} <= rows.keys()
    assert rows["numpy"] == f"refkern {refkern.__version__}, numpy {np.__version__}"


@pytest.mark.parametrize("command", ["golden", "list"])
def test_an_unknown_op_is_a_usage_error(run: Any, command: str) -> None:
    done = run(command, "--op", "nothing")
    assert done.code == 2
    assert done.err == f"Error: op: 'nothing' was given; there are {', '.join(ops.names())}\n"


def test_show_a_file_and_a_case(run: Any, made: Path) -> None:
    path = made / OP / "mamba_ssm.h5"
    golden = hdf5.read(path)
    by_file, by_case = run("show", path, "--json").json, run("show", "mamba_ssm", "--json").json
    assert by_file == by_case
    assert by_file["schema"] == 1
    assert by_file["content_sha256"] == content_sha256(golden)
    assert by_file["mutants"] == golden.mutants
    assert [t["name"] for t in by_file["tensors"]] == [
        "gate", "weight", "y", "gated", "sum_of_squares", "rstd", "normalized", "out",
    ]  # fmt: skip
    text = run("show", path).out
    assert "recipe:         mamba-ssm" in text
    assert "bfloat16  [4, 2048]" in text


def test_show_values(run: Any, made: Path) -> None:
    path = made / OP / "groups_of_7.h5"
    want = hdf5.read(path).stages["rstd"]
    document = run("show", path, "--stage", "rstd", "--json").json
    assert document["values"] == want.astype(np.float64).ravel().tolist()
    assert run("show", path, "--stage", "rstd").out.startswith("rstd float32 [5, 11]\n")
    nan = run("show", "nan_stays_in_its_group", "--stage", "y", "--json").json["values"]
    assert [v for v in nan if isinstance(v, str)] == ["nan", "inf", "-inf"]
    done = run("show", path, "--stage", "nothing")
    assert done.code == 5
    assert "there are gate, weight, y" in done.err


def test_show_what_is_not_there(run: Any, tmp_path: Path) -> None:
    assert run("show", "nothing").code == 5
    assert run("show", "groups_of_*").code == 5
    assert run("show", tmp_path).code == 3
    text = tmp_path / "x.h5"
    text.write_text("no HDF5 at all, but longer than a signature")
    done = run("show", text)
    assert done.code == 3
    assert done.err == f"Error: {text}: is not an HDF5 file (file signature not found)\n"


def test_show_a_sampled_case_says_so(run: Any, sampled: Path) -> None:
    document = run("show", sampled, "--json").json
    assert document["sampled_rows"] == [0, 1, 777, 1024, 2047]
    assert [t["name"] for t in document["tensors"]] == ["out"]


def test_doctor(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("doctor")
    assert done.code == 0, done.out
    rows = dict(line.split(None, 1) for line in done.out.splitlines())
    assert {"subnormals", "exp", "fma", "kernels"} == selfcheck.CHECKS.keys()
    assert all(rows[check] == "ok" for check in selfcheck.CHECKS)
    assert rows["numpy"] == np.__version__
    monkeypatch.setitem(selfcheck.CHECKS, "exp", lambda: "other bits")
    done = run("doctor")
    assert done.code == 1
    assert "not to be trusted" in done.err


def test_the_self_checks_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check notices the fault that it is there for."""
    exp = selfcheck.exp_correctly_rounded
    monkeypatch.setattr(selfcheck, "exp_correctly_rounded", lambda x: np.nextafter(exp(x), x))
    assert "other bits" in selfcheck.exp_is_portable()
    monkeypatch.setattr(selfcheck, "fma", lambda a, b, c: a * b + c)
    assert selfcheck.fma_rounds_once() == "fma rounds twice"
    monkeypatch.setattr(selfcheck.ops, "names", lambda: (OP,))
    monkeypatch.setattr(refkern, OP, lambda **more: np.zeros_like(more["y"]))
    assert "of the kernel are not the reference's" in selfcheck.kernels_follow_the_reference()


def test_help_and_version(run: Any) -> None:
    text = run("--help").out
    for command in ("compare", "doctor", "golden", "list", "show", "verify"):
        assert f"\n  {command} " in text
        assert run(command, "--help").code == 0
    assert "Exit codes:" in text
    assert run("--version").out == f"refkern, version {refkern.__version__}\n"
    assert run("nothing").code == 2


def refkern_on_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What the command writes where stdout is a terminal."""
    parent, child = pty.openpty()
    code = "from refkern.cli.main import main; main()"
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=child, stderr=subprocess.DEVNULL,
        env={**kept, "TERM": "xterm-256color", **environment},
    )  # fmt: skip
    os.close(child)
    written = b""
    while True:
        try:
            block = os.read(parent, 4096)
        except OSError:  # Linux ends a pty's reading with EIO
            break
        if not block:
            break
        written += block
    assert process.wait() == 0
    os.close(parent)
    return written


def test_colours_on_a_terminal_unless_no_color() -> None:
    assert b"\x1b[1m" in refkern_on_a_terminal("list")
    bare = refkern_on_a_terminal("verify", "--help", NO_COLOR="1") + refkern_on_a_terminal(
        "list", NO_COLOR="1"
    )
    for colour in range(30, 38):
        assert f"\x1b[{colour}m".encode() not in bare


def test_shell_completion_knows_commands_ops_and_recipes() -> None:
    def complete(words: str, index: int) -> list[str]:
        environment = {
            **os.environ, "_REFKERN_COMPLETE": "bash_complete", "COMP_WORDS": words,
            "COMP_CWORD": str(index),
        }  # fmt: skip
        code = "from refkern.cli.main import main; main(prog_name='refkern')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert complete("refkern ve", 1) == ["verify"]
    assert complete("refkern golden --op gated_g", 3) == [OP]
    assert complete("refkern golden --recipe mamba", 3) == ["mamba-ssm"]
    assert complete("refkern list rec", 2) == ["recipes"]


def test_every_command_is_a_module_with_help() -> None:
    context = main.make_context("refkern", ["list"])
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
    assert main.get_command(context, "exits") is None
