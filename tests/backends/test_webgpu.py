"""The WGSL of gated_rmsnorm, run: raw row sums bit for bit, outputs within the policy wgsl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.goldens import backends
from refkern.goldens.backends import Unavailable, Unsupported
from refkern.goldens.backends.webgpu.gated_rmsnorm import ROUTES, plan_of, source

SCRIPT = Path(__file__).with_name("webgpu_sums.py")


def without_adapter(reason: str) -> None:
    """Skip; or fail, where tests/webgpu_setup.sh could install what an adapter needs."""
    if os.environ.get("REFKERN_REQUIRE_WEBGPU") == "1":
        pytest.fail(f"an adapter is required here: {reason}")
    pytest.skip(reason)


@pytest.mark.parametrize("vector_bits", [128, 256, 512])
def test_raw_row_sums(vector_bits: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Mesa's subgroups of 4, 8 and 16 lanes; another driver runs its own size three times."""
    environment = {**os.environ, "LP_NATIVE_VECTOR_WIDTH": str(vector_bits)}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    report = json.loads(ran.stdout.splitlines()[-1])
    if "unavailable" in report:
        without_adapter(report["unavailable"])
    with capsys.disabled():
        print(f"\n{report['device']}: {report['compared']} row sums compared, "
              f"{report['wrong']} differ")  # fmt: skip
    assert report["compared"] >= 2000
    assert report["wrong"] == 0
    assert report["confused"] == []
    if "llvmpipe" in report["device"]:
        assert report["subgroup"] == vector_bits // 32
        assert report["dtypes"] == ["float32", "float16"]


def test_outputs_are_within_the_policy() -> None:
    """The backend on a case of each route: inside the interval, with the stage that it gives."""
    backend = backends.load("webgpu")
    try:
        backend.version()
    except Unavailable as reason:
        without_adapter(str(reason))
    rng = np.random.default_rng(0)
    x, gate = (rng.normal(0, 2, (6, 200)).astype(np.float32) for _ in range(2))
    scale = rng.normal(0, 1, 200).astype(np.float32)
    inputs = {"x": x, "scale": scale, "gate": gate}
    for activation in ("silu", "sigmoid"):
        params = {"epsilon": 1e-6, "activation": activation}
        lo, hi = refkern.accept.gated_rmsnorm(**inputs, **params, policy="wgsl")
        for recipe in [*ROUTES, "onnxruntime-cpu"]:
            outputs, stages = backend("gated_rmsnorm", inputs, params, recipe=recipe)
            assert ((outputs["out"] >= lo) & (outputs["out"] <= hi)).all(), recipe
            assert stages["sum_of_squares"].shape == (6,)
    narrow = {name: refkern.cast(array, "bfloat16") for name, array in inputs.items()}
    with pytest.raises(Unsupported, match="bfloat16"):
        backend("gated_rmsnorm", narrow, params, recipe="webgpu-packed-rows-vec4")


def test_the_source_for_browsers_has_the_directives() -> None:
    """No adapter is needed for this."""
    for recipe in ROUTES:
        plan = plan_of(recipe, 128, 32)
        text, workgroups = source(plan, 64, 128, "float16", "silu", enable_subgroups=True)
        assert text.startswith("enable f16;\nenable subgroups;\n")
        assert "$" not in text
        assert 1 <= workgroups <= 64
        assert plan.lanes == ops.load("gated_rmsnorm").recipes[recipe].route.lanes(128)
    with pytest.raises(Unsupported, match="whole vectors"):
        plan_of("webgpu-packed-rows-vec4", 6, 32)
