"""What README.md shows is what happens."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import refkern

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block(kind: str, holds: str) -> tuple[str, str]:
    """The one block of that kind that holds a text, and the block behind it."""
    (at,) = [i for i, (k, text) in enumerate(BLOCKS) if k == kind and holds in text]
    return BLOCKS[at][1], BLOCKS[at + 1][1]


def outputs(command: list[str], folder: Path) -> tuple[int, str]:
    """Exit code and stdout, with this environment's programs first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_the_wrong_kernel(tmp_path: Path) -> None:
    program, commands = block("python", "# kernel.py")
    (tmp_path / "kernel.py").write_text(program)
    golden, verify = commands.splitlines()
    assert outputs(shlex.split(golden), tmp_path)[0] == 0
    code, shown = outputs(shlex.split(verify), tmp_path)
    assert code == 1
    assert shown == block("sh", "refkern verify")[1]


def test_the_right_kernel_of_somebody_else(tmp_path: Path) -> None:
    program, expected = block("python", "refkern.check(")
    code, shown = outputs([sys.executable, "-c", program], tmp_path)
    assert code == 0
    assert shown == expected


def test_the_two_commands_are_one_line_each() -> None:
    commands = [text for kind, text in BLOCKS if kind == "sh" and "venv" in text]
    assert len(commands) == 2
    for command, ends in zip(commands, ("refkern golden", "python -m pytest"), strict=True):
        assert command.count("\n") == 1
        assert command.startswith("python3 -m venv .venv")
        assert command.endswith(f"{ends}\n")


def test_the_table_of_ops() -> None:
    named = re.findall(r"^\| `(\w+)` \|.*\|$", README, re.MULTILINE)
    assert sorted(named) == refkern.op_names()


def test_its_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).parents[1] / target).is_file(), target
