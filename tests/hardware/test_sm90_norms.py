"""gated_group_rmsnorm's sm_90 recipes against the kernels that ran on an H200."""

from __future__ import annotations

import re

import numpy as np
import pytest
from captures import DTYPES, load, mismatches, mismatches_but_nan

import refkern
from refkern.ops.gated_group_rmsnorm.recipes import MODULAR_NVIDIA_SM90
from refkern.ops.gated_group_rmsnorm.spec import check

TORCH = load("h200_torch_hf_norms")
MODULAR = load("modular_h200_gated_group_rmsnorm")
ZAMBA2 = sorted(name[:-2] for name in TORCH if "zamba2" in name and name.endswith("_x"))
GIVEN = sorted({int(name.split("_")[1]) for name in MODULAR})
#: each dtype pair compiles a kernel of its own: these run compiled too
COMPILED = {("float32", "float32"), ("bfloat16", "bfloat16")}


@pytest.mark.parametrize("name", ZAMBA2)
def test_zamba2(name):
    kind, width, groups = re.fullmatch(r"hf_zamba2_(\w+?)_\d+x(\d+)g(\d+)", name).groups()
    dtype = DTYPES[kind]
    y, gate, weight = (TORCH[f"{name}_{part}"].view(dtype) for part in ("x", "gate", "weight"))
    keywords = {"group_size": int(width) // int(groups), "eps": 1e-5, "recipe": "hf-zamba2-sm90"}
    stages = refkern.reference.gated_group_rmsnorm(y, gate, weight, **keywords)
    want = TORCH[f"{name}_out"]
    assert mismatches_but_nan(stages["out"], want) == 0
    if f"{name}_rs" in TORCH:
        assert (
            mismatches(stages["rstd"].reshape(-1), TORCH[f"{name}_rs"].view("f4").reshape(-1)) == 0
        )
    if kind == "f32":
        got = refkern.gated_group_rmsnorm(y, gate, weight, **keywords)
        assert mismatches_but_nan(got, want) == 0


def test_zamba2_differs_from_the_portable_recipe():
    """float32 outputs see expf, rsqrt.approx and the order of the rows."""
    name = "hf_zamba2_f32_33x256g2"
    y, gate, weight = (TORCH[f"{name}_{part}"].view("f4") for part in ("x", "gate", "weight"))
    portable = refkern.gated_group_rmsnorm(y, gate, weight, group_size=128, recipe="hf-zamba2")
    assert mismatches_but_nan(portable, TORCH[f"{name}_out"]) > 0


def test_zamba2_refuses_groups_of_unknown_order():
    y = np.ones((2, 260), np.float32)
    with pytest.raises(refkern.InvalidInput, match=r"^group_size: 130 .*multiples of 4"):
        refkern.gated_group_rmsnorm(y, y, y[0], group_size=130, recipe="hf-zamba2-sm90")


def given(i):
    y_type, gate_type = map(str, MODULAR[f"give_{i}_dtypes"])
    call = {
        "y": MODULAR[f"give_{i}_y"].view(DTYPES[y_type]),
        "gate": MODULAR[f"give_{i}_gate"].view(DTYPES[gate_type]),
        "weight": MODULAR[f"give_{i}_weight"],
        "group_size": int(MODULAR[f"give_{i}_group_size"]),
        "eps": float(MODULAR[f"give_{i}_eps"]),
    }
    return call, (y_type, gate_type)


@pytest.mark.parametrize("i", GIVEN)
def test_modular(i):
    call, dtypes = given(i)
    wants = {"modular-nvidia-sm90": MODULAR[f"give_{i}_out"]}
    if f"give_{i}_out_scalar" in MODULAR:
        wants["modular-nvidia-sm90-scalar"] = MODULAR[f"give_{i}_out_scalar"]
    for recipe, want in wants.items():
        stages = refkern.reference.gated_group_rmsnorm(**call, recipe=recipe)
        assert mismatches_but_nan(stages["out"], want) == 0, recipe
        if dtypes in COMPILED:
            got = refkern.gated_group_rmsnorm(**call, recipe=recipe)
            assert mismatches_but_nan(got, want) == 0, recipe


@pytest.mark.parametrize("i", GIVEN)
def test_launcher_picks_the_kernel_by_shape_and_dtypes(i):
    call, _ = given(i)
    chosen = MODULAR_NVIDIA_SM90.for_call(check(**call))
    assert chosen.name == "modular-nvidia-sm90"
    assert (chosen.squares.vector > 1) == (str(MODULAR[f"give_{i}_path"]) == "vec")


def test_a_gate_may_be_missing():
    y = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    weight = np.ones(512, np.float32)
    for recipe in ("modular-nvidia-sm90", "modular-nvidia-sm90-scalar", "hf-zamba2-sm90"):
        keywords = {"group_size": 128, "recipe": recipe}
        got = refkern.gated_group_rmsnorm(y, None, weight, **keywords)
        stages = refkern.reference.gated_group_rmsnorm(y, None, weight, **keywords)
        assert mismatches(got, stages["out"]) == 0
