"""ONNX Runtime's CPU provider: com.microsoft.GatedRMSNorm as a model of one node."""

from __future__ import annotations

from functools import lru_cache
from importlib.metadata import version
from typing import Any

import numpy as np

from refkern.goldens.backends import Backend, Computed, Unavailable

#: numpy dtype -> name of the element type in onnx.TensorProto
ELEMENT_TYPES = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "BFLOAT16"}


def backend(device: str | None = None) -> Backend:
    return Backend(
        name="onnxruntime",
        summary="ONNX Runtime's CPU kernels",
        compute=compute,
        policy="ieee",
        version=installed_version,
        ops=("gated_rmsnorm",),
    )


def installed_version() -> str:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    return f"onnxruntime {version('onnxruntime')}"


def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
    x, scale, gate = (inputs[name] for name in ("x", "scale", "gate"))
    return {"out": gated_rmsnorm(x, scale, gate, **params)}


def gated_rmsnorm(
    x: np.ndarray,
    scale: np.ndarray,
    gate: np.ndarray,
    *,
    epsilon: float = 1e-5,
    activation: str = "silu",
    threads: int = 0,
) -> np.ndarray:
    """What ONNX Runtime makes of these arrays; its own exception where it refuses them."""
    out = np.empty_like(x, order="C")
    bound(x, scale, gate, out, epsilon=epsilon, activation=activation, threads=threads)()
    return out


def bound(
    x: np.ndarray,
    scale: np.ndarray,
    gate: np.ndarray,
    out: np.ndarray,
    *,
    epsilon: float = 1e-5,
    activation: str = "silu",
    threads: int = 0,
    spins: bool = True,
) -> Any:
    """A function of no argument that runs the operator from these arrays into ``out``.

    threads: of the session; 0: as many as ONNX Runtime likes.
    spins: idle workers wait in a loop, which keeps their cores busy after a run.
    """
    import onnx

    types = tuple(ELEMENT_TYPES[a.dtype.name] for a in (x, scale, gate))
    session = _session(types, x.ndim, scale.ndim, epsilon, activation, threads, spins)
    binding = session.io_binding()
    held = []
    for name, array in (("X", x), ("scale", scale), ("gate", gate), ("Y", out)):
        array = array if name == "Y" else np.ascontiguousarray(array).reshape(array.shape)
        held.append(array)
        bind = binding.bind_output if name == "Y" else binding.bind_input
        element_type = getattr(onnx.TensorProto, ELEMENT_TYPES[array.dtype.name])
        bind(name, "cpu", 0, element_type, list(array.shape), array.ctypes.data)

    def run() -> None:
        # `held`: the arrays live as long as this function, which hands out their addresses.
        assert held
        session.run_with_iobinding(binding)

    return run


@lru_cache(maxsize=64)
def _session(
    types: tuple[str, str, str],
    rank: int,
    scale_rank: int,
    epsilon: float,
    activation: str,
    threads: int,
    spins: bool,
) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model(types, rank, scale_rank, epsilon, activation).SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
    )


def model(
    types: tuple[str, str, str], rank: int, scale_rank: int, epsilon: float, activation: str
) -> Any:
    """An onnx model of one GatedRMSNorm; types: of X, scale and gate."""
    from onnx import TensorProto, helper

    x_type, scale_type, gate_type = (getattr(TensorProto, t) for t in types)
    shape = [f"d{i}" for i in range(rank)]
    scale_shape = [f"s{i}" for i in range(scale_rank)]
    node = helper.make_node(
        "GatedRMSNorm",
        ["X", "scale", "gate"],
        ["Y"],
        domain="com.microsoft",
        epsilon=float(epsilon),
        activation=activation,
    )
    graph = helper.make_graph(
        [node],
        "gated_rmsnorm",
        [
            helper.make_tensor_value_info("X", x_type, shape),
            helper.make_tensor_value_info("scale", scale_type, scale_shape),
            helper.make_tensor_value_info("gate", gate_type, [f"g{i}" for i in range(rank)]),
        ],
        [helper.make_tensor_value_info("Y", x_type, shape)],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
