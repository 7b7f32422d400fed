"""The example programs, built and verified as a user would."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import refkern
from refkern.cli.main import main
from refkern.goldens import hdf5, safetensors
from refkern.goldens.build import build, with_proofs
from refkern.goldens.export import export
from refkern.goldens.selection import select

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
GROUPS = "gated_group_rmsnorm"
#: cases that the JavaScript example checks by itself
CHECKED = ("nano_float16", "nan_stays_in_its_group", "hf_zamba2")
needs_cpp = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node on this machine")


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("examples") / "goldens"

    def of(op: str) -> Path:
        if not (folder / op).exists():
            (folder / op).mkdir(parents=True)
            for selected in select(op=op):
                # Intervals are computed when they are needed; one program reads them.
                prepared = build(selected)
                stored = selected.case.name in CHECKED
                golden = with_proofs(prepared, ["wgsl"]) if stored else prepared.golden
                hdf5.write(golden, folder / selected.path)
        return folder / op

    return of


@pytest.fixture(scope="module")
def cpp(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("cpp") / "gated_group_rmsnorm"
    source = EXAMPLES / "exec_cpp" / "gated_group_rmsnorm.cpp"
    strict = ["-std=c++17", "-O2", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *strict, str(source), "-o", str(program)], check=True)
    return shlex.quote(str(program))


NODE = f"node {shlex.quote(str(EXAMPLES / 'exec_js' / 'kernels.mjs'))}"


def verified(folder: Path, program: str) -> dict[str, str]:
    """Rung by case of a run that must pass."""
    ran = CliRunner().invoke(
        main, ["verify", str(folder), "--backend", f"exec:{program}", "--json"]
    )
    assert ran.exit_code == 0, ran.output
    return {case["case"]: case["rung"] for case in json.loads(ran.stdout)["cases"]}


def assert_bits_of_their_recipe(rungs: dict[str, str]) -> None:
    """The recipe that the examples follow to the bit; others are only accepted."""
    cases = {s.case.name: s.case.recipe for s in select(op=GROUPS)}
    assert rungs.keys() == cases.keys()
    for name, recipe in cases.items():
        assert rungs[name] == ("bits" if recipe in ("modular-apple", "mamba-ssm") else "accept")


@needs_cpp
def test_cpp_passes_every_quick_case(cpp: str, goldens: Callable[[str], Path]) -> None:
    assert_bits_of_their_recipe(verified(goldens(GROUPS), cpp))


@needs_node
def test_javascript_passes_every_quick_case(goldens: Callable[[str], Path]) -> None:
    assert_bits_of_their_recipe(verified(goldens(GROUPS), NODE))


@needs_node
@pytest.mark.skipif("gated_rmsnorm" not in refkern.op_names(), reason="the op is not here yet")
def test_javascript_passes_gated_rmsnorm(goldens: Callable[[str], Path]) -> None:
    assert set(verified(goldens("gated_rmsnorm"), NODE).values()) <= {"bits", "accept"}


@needs_node
def test_javascript_checks_an_export_by_itself(
    goldens: Callable[[str], Path], tmp_path: Path
) -> None:
    for case in CHECKED:
        path = export(goldens(GROUPS) / f"{case}.h5", tmp_path, "safetensors").path
        ran = subprocess.run(
            [*shlex.split(NODE), path], capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout.startswith(f"{GROUPS}/{case}: 0 of ")
    # An export whose weights are others than those of which the intervals were made.
    tensors, metadata = safetensors.read(path)
    tensors["inputs/weight"] = -tensors["inputs/weight"]
    safetensors.write(path, tensors, metadata)
    ran = subprocess.run([*shlex.split(NODE), path], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ": 0 of" not in ran.stdout


@needs_cpp
def test_cpp_reads_an_export(cpp: str, goldens: Callable[[str], Path], tmp_path: Path) -> None:
    golden = goldens(GROUPS) / "nano_float16.h5"
    exported = export(golden, tmp_path, "safetensors").path
    out = tmp_path / "out.safetensors"
    subprocess.run([*shlex.split(cpp), exported, out], check=True)
    ran = CliRunner().invoke(main, ["compare", str(golden), str(out), "--rung", "bits"])
    assert ran.exit_code == 0, ran.output


@pytest.mark.parametrize(
    "program", [pytest.param("cpp", marks=needs_cpp), pytest.param("js", marks=needs_node)]
)
def test_an_op_that_they_do_not_have_is_an_error_with_its_name(
    program: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    command = NODE if program == "js" else request.getfixturevalue("cpp")
    told = json.dumps({"schema": 1, "op": "softmax", "recipe": "x", "params": {}})
    given = tmp_path / "in.safetensors"
    safetensors.write(given, {"x": np.zeros(3, np.float32)}, {"refkern": told})
    ran = subprocess.run(
        [*shlex.split(command), given, tmp_path / "out"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == "op softmax is not supported"
