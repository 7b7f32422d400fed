"""The outputs that refkern's CUDA kernels gave on an H200, judged again.

goldens/recorded/h200_cuda.json and .npz are results.json and outputs.npz of
tests/exhaustive/cuda_verify.py, as that run left them.
"""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_verify import as_written

from refkern import ops
from refkern import policy as policies
from refkern.formats import find_format, from_codes
from refkern.goldens import verify
from refkern.goldens.build import build
from refkern.goldens.selection import select
from refkern.verdict import difference

RECORDED = Path(__file__).parents[2] / "goldens" / "recorded"
RESULTS, OUTPUTS = RECORDED / "h200_cuda.json", RECORDED / "h200_cuda.npz"

pytestmark = pytest.mark.skipif(not RESULTS.exists(), reason="no run on an H200 is recorded yet")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return json.loads(RESULTS.read_text())


@pytest.fixture(scope="module")
def outputs() -> dict[str, np.ndarray]:
    with np.load(OUTPUTS) as file:
        return dict(file)


def own_rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in results["rows"] if row["backend"] == "cuda"]


def test_the_run_says_what_it_ran_on(results: dict[str, Any]) -> None:
    about = results["about"]
    assert "H200" in about["gpu_and_driver"]
    assert about["date"]
    assert "nvcc" in results["backends"]["cuda"]
    assert about["policy"] == "cuda"


def test_every_case_was_run_and_passed(results: dict[str, Any]) -> None:
    rows = own_rows(results)
    assert {row["op"] for row in rows} == set(ops.names())
    counts = Counter(row["rung"] for row in rows)
    assert len(rows) >= 100
    assert set(counts) <= {"bits", "accept"}, counts
    assert counts["bits"] > 0
    assert counts["accept"] > 0


@pytest.mark.parametrize("op", ops.names())
def test_recorded_outputs(op: str, results: dict[str, Any], outputs: dict[str, np.ndarray]) -> None:
    """The same rung as on that day, by what `refkern compare` judges with; and for the bits the
    model of the H200's own arithmetic."""
    policy = policies.load(results["about"]["policy"])
    known = {f"{s.op.name}/{s.case.name}": s for s in select(["*"], op=op)}
    replayed = 0
    for row in own_rows(results):
        name = f"{row['op']}/{row['case']}"
        if row["op"] != op or name not in outputs:
            continue
        codes = outputs[name]
        assert sha256(codes.tobytes()).hexdigest() == row["sha256"], name
        fmt = find_format(row["dtype"])
        assert fmt is not None
        got = from_codes(codes, fmt)
        prepared = build(known[name])
        options = verify.Options(policy=policy)
        report = verify.judge(Path(name), prepared, {"out": got}, {}, options)
        assert report.outcome == row["rung"], f"{name}: {report.headline}"
        assert report.elements == row["elements"] == got.size
        written = as_written(op, prepared.chosen(), prepared.call)
        expected = prepared.op.stages_of(prepared.call, written)["out"]
        assert difference(got, expected).mismatches == row["as_written"]["out"], name
        replayed += 1
    assert replayed >= 15
