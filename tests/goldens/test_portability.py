"""The same content on other instruction sets, with other thread counts, in other processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refkern.goldens import hdf5
from refkern.goldens.golden import content_sha256
from refkern.threads import available_threads

#: switches numpy to its loops for machines without AVX2 and AVX-512
BASELINE = {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4"}
NUMPY_EXP = """
import hashlib, numpy as np
x = np.linspace(-80, 80, 100001, dtype=np.float32)
print(hashlib.sha256(np.exp(x).tobytes()).hexdigest())
"""


def python(code: str, *arguments: str, expect: int = 0, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == expect, done.stderr
    return done.stdout


def refkern(*arguments: str, **environment: str) -> str:
    return python("from refkern.cli.main import main; main()", *arguments, **environment)


def hashes_of_quick_cases(folder: Path, *arguments: str, **environment: str) -> dict[str, str]:
    """Made in another process; --check on an empty folder makes everything and writes nothing."""
    command = "from refkern.cli.main import main; main()"
    given = ("golden", "--check", "--json", "--out", str(folder), *arguments)
    document = json.loads(python(command, *given, expect=1, **environment))
    assert document["summary"] == {"missing": len(document["cases"])}
    return {case["path"]: case["content_sha256"] for case in document["cases"]}


@pytest.fixture(scope="module")
def hashes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every quick case's content hash, by this process's numpy."""
    from refkern.goldens.generate import generate
    from refkern.goldens.selection import select

    folder = tmp_path_factory.mktemp("here")
    return {o.path: o.content_sha256 for o in generate(select(), folder, check=True)}


def test_numpy_without_its_wide_vectors(hashes: dict[str, str], tmp_path: Path) -> None:
    x = np.linspace(-80, 80, 100001, dtype=np.float32)
    here = hashlib.sha256(np.exp(x).tobytes()).hexdigest()
    if python(NUMPY_EXP, **BASELINE).strip() == here:
        pytest.skip("numpy's exp has the same bits either way on this machine: nothing is shown")
    assert hashes_of_quick_cases(tmp_path, **BASELINE) == hashes


@pytest.mark.parametrize("threads", [1, 2])
def test_threads(hashes: dict[str, str], tmp_path: Path, threads: int) -> None:
    if threads > available_threads():
        pytest.skip("one core")
    several = ("--threads", str(threads), "--jobs", str(threads))
    assert hashes_of_quick_cases(tmp_path, *several) == hashes


def test_numba_for_a_generic_processor(made: Path) -> None:
    """The kernels, compiled without this machine's AVX and FMA instructions."""
    done = json.loads(
        refkern("verify", str(made), "--backend", "numba", "--json", NUMBA_CPU_NAME="generic")
    )
    assert done["summary"] == {"bits": 3, "accept": 0, "fail": 0, "skip": 0, "error": 0}
    assert sum(case["elements"] for case in done["cases"]) > 10_000


def test_a_file_says_what_it_holds(made: Path) -> None:
    for path in sorted(made.rglob("*.h5")):
        golden = hdf5.read(path)
        provenance = golden.provenance
        assert provenance["command"] == f"refkern golden {golden.op}/{golden.case}"
        assert content_sha256(golden) == content_sha256(hdf5.read(path))
