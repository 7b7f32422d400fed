"""docs/verify-my-kernel.md: what it says was run here is run here."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from refkern.goldens import hdf5
from refkern.goldens.build import build
from refkern.goldens.selection import select

pytest_plugins = ["pytester"]
TEXT = (Path(__file__).parents[2] / "docs" / "verify-my-kernel.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    names = ["groups_of_7", "no_gate", "tiny_values", "mamba_ssm", "gate_sweep", "zero_rows"]
    for selected in select(names):
        (folder / selected.path).parent.mkdir(exist_ok=True)
        hdf5.write(build(selected).golden, folder / selected.path)
    return folder


def test_every_block_is_python_and_short() -> None:
    blocks = [block for text in SECTIONS.values() for block in BLOCK.findall(text)]
    assert len(blocks) >= 6
    for block in blocks:
        compile(block, "docs", "exec")
        assert len(block.splitlines()) < 20


@pytest.mark.parametrize(
    ("section", "passed"),
    [
        ("A Python function", 4),
        ("A CUDA or PyTorch extension", 4),
        ("An ONNX Runtime custom op", 2),
    ],
)
def test_what_was_run_here(
    section: str, passed: int, goldens: Path, pytester: pytest.Pytester
) -> None:
    text = SECTIONS[section]
    assert text.strip().startswith("Run here")
    for needed in ("torch", "onnxruntime"):
        # Only looked for: pytester forgets what a test imports, and torch cannot be imported twice.
        if f"import {needed}\n" in text and find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    (block,) = BLOCK.findall(text)
    pytester.makepyfile(test_block=block, my_extension="from refkern import gated_group_rmsnorm")
    result = pytester.runpytest_subprocess(
        "-p", "no:cacheprovider", "--refkern-goldens", str(goldens)
    )
    result.assert_outcomes(passed=passed)


@pytest.mark.parametrize("section", ["Triton", "Metal"])
def test_what_was_not_run_says_so(section: str) -> None:
    assert SECTIONS[section].strip().startswith("Not run.")
