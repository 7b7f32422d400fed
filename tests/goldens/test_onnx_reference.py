"""The operator class for onnx.reference: whole models, against the op and ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern.goldens.backends import onnxruntime as backend
from refkern.verdict import difference

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")


def evaluate(model: Any, operator: Any, **feeds: np.ndarray) -> np.ndarray:
    from onnx.reference import ReferenceEvaluator

    (out,) = ReferenceEvaluator(model, new_ops=[operator]).run(None, feeds)
    return out


def inputs(dtype: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    drawn = np.random.default_rng(5)
    x, gate = (drawn.normal(0, 4, (2, 3, 64)).astype(dtype) for _ in range(2))
    return x, drawn.normal(0, 1, 32).astype(dtype), gate


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "swish", "sigmoid"])
def test_a_model_of_one_node(dtype: Any, activation: str) -> None:
    from refkern.goldens.onnx_reference import GatedRMSNorm, with_recipe

    x, scale, gate = inputs(dtype)
    kind = backend.ELEMENT_TYPES[x.dtype.name]
    model = backend.model((kind, kind, kind), 3, 1, 1e-3, activation)
    params = {"epsilon": 1e-3, "activation": activation}
    for recipe, operator in (
        ("onnxruntime-cpu", GatedRMSNorm),
        ("webgpu-packed-rows-vec4", with_recipe("webgpu-packed-rows-vec4")),
    ):
        got = evaluate(model, operator, X=x, scale=scale, gate=gate)
        want = refkern.gated_rmsnorm(x, scale, gate, **params, recipe=recipe)
        assert difference(got, want).mismatches == 0


def test_attributes_left_out_and_other_nodes_around() -> None:
    """Neg(GatedRMSNorm(X)): the operator's defaults, inside a larger model."""
    from onnx import TensorProto, helper

    from refkern.goldens.onnx_reference import GatedRMSNorm

    x, scale, gate = inputs(np.float32)
    nodes = [
        helper.make_node("GatedRMSNorm", ["X", "scale", "gate"], ["Y"], domain="com.microsoft"),
        helper.make_node("Neg", ["Y"], ["Z"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "norm_and_more",
        [value(n, TensorProto.FLOAT, a.shape) for n, a in
         (("X", x), ("scale", scale), ("gate", gate))],
        [value("Z", TensorProto.FLOAT, x.shape)],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    got = evaluate(model, GatedRMSNorm, X=x, scale=scale, gate=gate)
    want = refkern.gated_rmsnorm(x, scale, gate, recipe="onnxruntime-cpu")
    assert difference(got, -want).mismatches == 0


def test_bad_inputs_are_the_ops_own_errors() -> None:
    from refkern.goldens.onnx_reference import GatedRMSNorm

    x, scale, gate = inputs(np.float32)
    model = backend.model(("FLOAT", "FLOAT", "FLOAT"), 3, 1, 1e-5, "silu")
    with pytest.raises(refkern.InvalidInput, match="gate"):
        evaluate(model, GatedRMSNorm, X=x, scale=scale, gate=gate[:1])


def test_refkern_imports_no_onnx() -> None:
    code = "import refkern.goldens.verify, sys; assert 'onnx' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
