"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from refkern.cli.main import main
from refkern.goldens.generate import generate
from refkern.goldens.selection import select


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="session")
def run() -> Callable[..., Ran]:
    """Run `refkern ARGUMENTS` in this process.  An exception that is no exit is a failure."""

    def command(*arguments: object, **environment: str) -> Ran:
        result = CliRunner().invoke(main, [str(a) for a in arguments], env=environment)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)

    return command


#: the cases that tests of files and backends use
FEW = ("nemotron_wide_gate", "groups_of_7", "mamba_ssm")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a few goldens.  Not to be written to: `goldens` is a copy for that."""
    folder = tmp_path_factory.mktemp("made") / "goldens"
    outcomes = generate(select(FEW), folder)
    assert [o.status for o in outcomes] == ["written"] * len(FEW)
    return folder


@pytest.fixture
def goldens(made: Path, tmp_path: Path) -> Path:
    """A folder of a few goldens that a test may change."""
    folder = tmp_path / "goldens"
    for path in made.rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A golden of a real model's size: sampled rows, described inputs.  Not to be written to."""
    folder = tmp_path_factory.mktemp("sampled")
    (outcome,) = generate(select(["nemotron_prefill"]), folder)
    assert outcome.status == "written"
    return folder / outcome.path
