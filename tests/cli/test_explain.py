"""refkern explain: the guilty stage, where, and which semantics gives a kernel's values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.goldens import hdf5, safetensors

OP = "gated_group_rmsnorm"
QUICK = Path(__file__).parents[2] / "goldens" / "quick"
DECODE = QUICK / OP / "nemotron_decode.h5"


@pytest.fixture
def explain(run: Any, tmp_path: Path) -> Any:
    def command(golden: Path, tensors: dict[str, np.ndarray], *more: str) -> Any:
        result = tmp_path / "result.safetensors"
        safetensors.write(result, tensors)
        return run("explain", golden, result, *more)

    return command


def own_kernel(*, rounds_twice: bool) -> np.ndarray:
    """A kernel of somebody who has never seen refkern: numpy's exp, order of sums and root."""
    golden = hdf5.read(DECODE)
    y, gate = (golden.inputs[name].astype(np.float32) for name in ("y", "gate"))
    gated = y * (gate / (1 + np.exp(-gate)))
    if rounds_twice:
        gated = refkern.cast(gated, "bfloat16").astype(np.float32)
    groups = gated.reshape(len(y), -1, golden.params["group_size"])
    mean = (groups * groups).mean(axis=-1, keepdims=True)
    normed = groups / np.sqrt(mean + np.float32(golden.params["eps"]))
    cast = refkern.cast(normed.reshape(y.shape), "bfloat16").astype(np.float32)
    return refkern.cast(cast * golden.inputs["weight"].astype(np.float32), "bfloat16")


def test_one_rounding_is_accepted_and_two_are_named(explain: Any) -> None:
    right = explain(DECODE, {"out": own_kernel(rounds_twice=False)}, "--json").json
    assert right["rung"] in ("bits", "accept")  # numpy's exp depends on the processor
    assert right["closest"] is None
    wrong = explain(DECODE, {"out": own_kernel(rounds_twice=True)}, "--json").json
    assert wrong["rung"] == "fail"
    assert wrong["reproduced_by"] == []
    assert wrong["closest"]["name"] == "gated-rounded"
    assert 10 * wrong["closest"]["differing"] <= wrong["closest"]["differing_from_recipe"]
    text = explain(DECODE, {"out": own_kernel(rounds_twice=True)}).out
    assert "close to mutant gated-rounded (the kernel rounded the gated value" in text


def test_a_mutant_and_its_stage(explain: Any) -> None:
    golden = hdf5.read(DECODE)
    op = ops.load(OP)
    call = op.check(**golden.inputs, **golden.params)
    (mutant,) = [m for m in op.part("mutants").MUTANTS if m.name == "silu-rounded"]
    stages = mutant.stages(op, call, op.recipe(None).for_call(call))
    found = explain(DECODE, stages, "--json").json
    assert found["first_stage"] == "gated"
    assert [(r["kind"], r["name"], r["exact"]) for r in found["reproduced_by"]] == [
        ("mutant", "silu-rounded", True)
    ]
    assert found["closest"] is None


def test_another_recipe(explain: Any) -> None:
    golden = hdf5.read(DECODE)
    out = refkern.gated_group_rmsnorm(**golden.inputs, **golden.params, recipe="mamba-ssm")
    found = explain(DECODE, {"out": out}, "--json").json
    assert found["reproduced_by"][0]["kind"] == "recipe"
    assert found["reproduced_by"][0]["name"] == "mamba-ssm"


def test_values_of_nobody(explain: Any) -> None:
    golden = hdf5.read(DECODE)
    out = golden.outputs["out"].copy()
    out[:, 64:128] = refkern.cast(np.float32(7), "bfloat16")
    found = explain(DECODE, {"out": out})
    assert "what: no recipe and no mutant of this op gives these values" in found.out
    assert "where: 64 of 7680 elements" in found.out
    assert "where: only in group 0" in found.out
    assert explain(DECODE, {"out": golden.outputs["out"]}, "--json").json["rung"] == "bits"


def test_the_group_of_an_expert_is_named(explain: Any) -> None:
    path = QUICK / "grouped_matmul" / "constants_per_expert_and_token.h5"
    out = hdf5.read(path).outputs["out"].copy()
    out[2:5] *= 2
    found = explain(path, {"out": out}, "--json").json
    assert "only in group 1; of experts 2" in found["where"]
