"""The recipes of gated_rmsnorm: in which order a row's squares are added, and what is rounded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from refkern.arithmetic import Sigmoid, Silu
from refkern.elementary import RSQRT, RSQRT_TWO_ROUNDINGS, Function, fma
from refkern.errors import InvalidInput
from refkern.hardware.sm90.special_functions import EXPF, RSQRT_APPROX
from refkern.hardware.sm90.torch_rows import torch_mean_factor, torch_row_order
from refkern.op import Call
from refkern.recipe import Recipe
from refkern.schedules import Exact, Lanes, Schedule, Sequential

#: gate * sigmoid(gate), with exp of -|gate| only
STABLE_SILU = Silu("product", Sigmoid("stable"))


@dataclass(frozen=True, kw_only=True)
class NormRecipe(Recipe):
    #: the order in which a row's squares are added
    squares: Schedule
    #: the mean is the sum times this float32; None: the sum divided by C
    mean_factor: float | None = None
    #: 1 / sqrt(mean + epsilon)
    rsqrt: Function = RSQRT
    #: of the gate; activation "sigmoid" takes the sigmoid in it
    silu: Silu = STABLE_SILU
    #: how scale, gate and the roundings to x's dtype follow on the norm (reference.py)
    finish: Literal["one-store", "gate-then-sigmoid", "cast-each"] = "one-store"


@dataclass(frozen=True, kw_only=True)
class Route:
    """How a WebGPU kernel shares one row of C elements among lanes.

    C is Q = C / vector vectors.  As many lanes take them as the next power of two from Q on, but
    no more than `across` has; the others, and vectors that are not there, count as +0.

    across: "subgroup", one subgroup's lanes (registers and shuffles); "workgroup", any lanes of a
        workgroup (a halving tree in workgroup memory, which gives the descending butterfly's
        bits); "subgroups", two or more whole subgroups, each combined by itself, their sums then
        added in order.
    vector: elements that a lane takes at a time, 4 or 1.
    subgroup: lanes of the device's subgroup.
    workgroup: the most lanes of a workgroup that share a row.
    fewest: the fewest lanes that do.
    strided: lane j takes the vectors j, j + lanes, ...; otherwise a block of consecutive ones.
    accumulators: "dot" adds the dot product ((x*x + y*y) + z*z) + w*w of each vector,
        "components" keeps a sum for each component and adds the four up at the end.
    combine: the order of the butterfly: "descending" from half the lanes down to 1, "ascending"
        from 1 up; "sequential" is a subgroupAdd that goes from lane to lane.
    """

    across: Literal["subgroup", "workgroup", "subgroups"]
    vector: Literal[1, 4]
    subgroup: int = 32
    workgroup: int = 64
    fewest: int = 1
    strided: bool = True
    accumulators: Literal["dot", "components"] = "dot"
    combine: Literal["descending", "ascending", "sequential"] = "descending"

    def lanes(self, columns: int) -> int:
        """How many lanes share a row."""
        vectors = -(-columns // self.vector)
        wanted = max(1 << (vectors - 1).bit_length(), self.fewest)
        if self.across == "subgroup":
            return min(wanted, self.subgroup)
        if self.across == "workgroup":
            return min(wanted, self.workgroup)
        return max(min(wanted, self.workgroup), 2 * self.subgroup)

    def schedule(self, columns: int) -> Lanes:
        """The order of the sum for rows of ``columns``."""
        return Lanes(
            lanes=self.lanes(columns),
            vector=self.vector,
            strided=self.strided,
            components=self.vector if self.accumulators == "components" else 1,
            fold="sequential",
            combine=self.combine,
            subgroup=self.subgroup if self.across == "subgroups" else None,
        )


@dataclass(frozen=True, kw_only=True)
class RouteRecipe(NormRecipe):
    """A WebGPU kernel; the order of its sum follows from the route and C."""

    route: Route
    squares: Schedule = field(default_factory=Lanes)

    def for_call(self, call: Call) -> RouteRecipe:
        columns = call.scale.size
        if columns % self.route.vector:
            raise InvalidInput(
                "scale",
                f"a row of {columns}",
                f"recipe {self.name} takes whole vectors: a multiple of 4 is needed",
            )
        if columns not in self._by_columns:
            self._by_columns[columns] = replace(self, squares=self.route.schedule(columns))
        return self._by_columns[columns]

    @cached_property
    def _by_columns(self) -> dict[int, RouteRecipe]:
        return {}


MLAS_LIMIT = np.float32(18)
#: Eigen's rational approximation of the logistic, as MLAS has it: powers of z^2, highest first
MLAS_NUMERATOR = tuple(
    np.float32(c)
    for c in (
        4.37031012579801e-11,
        1.15627324459942e-07,
        6.08574864600143e-05,
        8.51377133304701e-03,
        2.48287947061529e-01,
    )
)
MLAS_DENOMINATOR = tuple(
    np.float32(c)
    for c in (
        6.10247389755681e-13,
        5.76102136993427e-09,
        6.29106785017040e-06,
        1.70198817374094e-03,
        1.16817656904453e-01,
        9.93151921023180e-01,
    )
)


def mlas_logistic(z: np.ndarray) -> np.ndarray:
    """sigmoid as MLAS computes it on x86-64 with FMA: exactly 0 from -18 down, up to 1 + 2^-23."""
    clamped = np.minimum(np.maximum(z, -MLAS_LIMIT), MLAS_LIMIT)
    square = clamped * clamped
    p = fma(square, MLAS_NUMERATOR[0], MLAS_NUMERATOR[1])
    for coefficient in MLAS_NUMERATOR[2:]:
        p = fma(p, square, coefficient)
    q = fma(square, MLAS_DENOMINATOR[0], MLAS_DENOMINATOR[1])
    for coefficient in MLAS_DENOMINATOR[2:]:
        q = fma(q, square, coefficient)
    # The original clamps at 0 only, and a NaN comes through.
    return np.maximum(p * clamped / q + np.float32(0.5), np.float32(0))


MLAS_LOGISTIC = Function(
    "mlas-logistic", mlas_logistic, "refkern.ops.gated_rmsnorm.kernel:mlas_logistic"
)

ONNXRUNTIME_CPU = NormRecipe(
    name="onnxruntime-cpu",
    source="ONNX Runtime 1.32's CPU kernel on x86-64 with FMA: sequential sum, MLAS logistic",
    squares=Sequential(),
    rsqrt=RSQRT_TWO_ROUNDINGS,
    silu=Silu("product", Sigmoid("function", MLAS_LOGISTIC)),
)
ONNXRUNTIME_WEBGPU = RouteRecipe(
    name="onnxruntime-webgpu",
    source="ONNX Runtime's WebGPU kernel: one workgroup of 64, 128 or 256 a row, halving tree",
    route=Route(across="workgroup", vector=1, fewest=64, workgroup=256),
)
SUBGROUP_ROWS_VEC4 = RouteRecipe(
    name="webgpu-subgroup-rows-vec4",
    source="WebGPU kernel package: a row on the lanes of one subgroup, four elements at a time",
    route=Route(across="subgroup", vector=4),
)
SUBGROUP_ROWS_SCALAR = RouteRecipe(
    name="webgpu-subgroup-rows-scalar",
    source="WebGPU kernel package: a row on the lanes of one subgroup, one element at a time",
    route=Route(across="subgroup", vector=1),
)
PACKED_ROWS_VEC4 = RouteRecipe(
    name="webgpu-packed-rows-vec4",
    source="WebGPU kernel package: rows packed into a workgroup without subgroups, four elements",
    route=Route(across="workgroup", vector=4),
)
PACKED_ROWS_SCALAR = RouteRecipe(
    name="webgpu-packed-rows-scalar",
    source="WebGPU kernel package: rows packed into a workgroup without subgroups, one element",
    route=Route(across="workgroup", vector=1),
)
WIDE_ROWS_VEC4 = RouteRecipe(
    name="webgpu-subgroup-wide-rows-vec4",
    source="WebGPU kernel package: a row on several whole subgroups, four elements at a time",
    route=Route(across="subgroups", vector=4, workgroup=256),
)
WIDE_ROWS_SCALAR = RouteRecipe(
    name="webgpu-subgroup-wide-rows-scalar",
    source="WebGPU kernel package: a row on several whole subgroups, one element at a time",
    route=Route(across="subgroups", vector=1, workgroup=256),
)
FLA = NormRecipe(
    name="fla",
    source="flash-linear-attention FusedRMSNormGated: (y * g) * sigmoid(g), one store",
    squares=Exact(rounded_products=True),
    rsqrt=RSQRT_TWO_ROUNDINGS,
    finish="gate-then-sigmoid",
)
HF_QWEN3_NEXT = NormRecipe(
    name="hf-qwen3-next",
    source="transformers Qwen3NextRMSNormGated: x's dtype before the weight, after it, at the end",
    squares=Exact(rounded_products=True),
    silu=Silu("quotient"),
    finish="cast-each",
)


def torch_cuda_rows(call: Call) -> NormRecipe:
    """torch adds a row in an order that depends on how many rows there are."""
    columns = call.scale.size
    rows = call.x.size // columns
    return replace(
        HF_QWEN3_NEXT_SM90,
        squares=torch_row_order(rows, columns, argument="scale"),
        mean_factor=torch_mean_factor(rows, columns),
        choose=None,
    )


HF_QWEN3_NEXT_SM90: NormRecipe = replace(
    HF_QWEN3_NEXT,
    name="hf-qwen3-next-sm90",
    source="transformers Qwen3NextRMSNormGated with torch 2.11 on an NVIDIA H200",
    silu=Silu("quotient", Sigmoid("plain", EXPF)),
    rsqrt=RSQRT_APPROX,
    batch_invariant=False,
    choose=torch_cuda_rows,
)
RECIPES = (
    SUBGROUP_ROWS_VEC4,
    PACKED_ROWS_VEC4,
    SUBGROUP_ROWS_SCALAR,
    PACKED_ROWS_SCALAR,
    WIDE_ROWS_VEC4,
    WIDE_ROWS_SCALAR,
    ONNXRUNTIME_WEBGPU,
    ONNXRUNTIME_CPU,
    FLA,
    HF_QWEN3_NEXT,
    HF_QWEN3_NEXT_SM90,
)
