"""com.microsoft.GatedRMSNorm for `onnx.reference`, which does not know ONNX Runtime's operators.

    import onnx.reference
    from refkern.goldens.onnx_reference import GatedRMSNorm

    onnx.reference.ReferenceEvaluator(model, new_ops=[GatedRMSNorm]).run(None, feeds)

Only this module imports onnx.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

import refkern

#: whose bits a model gets; another one: `with_recipe`
RECIPE = "onnxruntime-cpu"


class GatedRMSNorm(OpRun):
    """The operator by refkern's reference, with the bits of `recipe`."""

    op_domain = "com.microsoft"
    recipe = RECIPE

    def _run(
        self,
        x: np.ndarray,
        scale: np.ndarray,
        gate: np.ndarray,
        epsilon: float | None = None,
        activation: str | None = None,
    ) -> tuple[np.ndarray]:
        """X, scale, gate -> (Y,).  An attribute that the model leaves out has its default."""
        given: dict[str, Any] = {"epsilon": epsilon, "activation": activation}
        params = {name: value for name, value in given.items() if value is not None}
        stages = refkern.reference.gated_rmsnorm(x, scale, gate, **params, recipe=self.recipe)
        return (stages["out"],)


def with_recipe(recipe: str) -> type[GatedRMSNorm]:
    """The operator with the bits of another recipe, such as "webgpu-subgroup-rows-vec4"."""
    return type("GatedRMSNorm", (GatedRMSNorm,), {"recipe": recipe})
