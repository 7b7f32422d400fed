"""gated_rmsnorm in WGSL: one template for every way of sharing a row among lanes."""

from __future__ import annotations

from dataclasses import dataclass
from string import Template
from typing import Literal

import numpy as np

from refkern.goldens.backends import Computed, Unsupported
from refkern.goldens.backends.webgpu.device import MOST_WORKGROUPS, Device

#: recipe -> (what a row's lanes are, elements that a lane takes at a time)
ROUTES = {
    "webgpu-subgroup-rows-vec4": ("subgroup", 4),
    "webgpu-subgroup-rows-scalar": ("subgroup", 1),
    "webgpu-packed-rows-vec4": ("workgroup", 4),
    "webgpu-packed-rows-scalar": ("workgroup", 1),
    "webgpu-subgroup-wide-rows-vec4": ("subgroups", 4),
    "webgpu-subgroup-wide-rows-scalar": ("subgroups", 1),
    "onnxruntime-webgpu": ("whole workgroup", 1),
}
#: a workgroup has at least so many lanes; rows that need fewer share it
WORKGROUP = 64


@dataclass(frozen=True)
class Plan:
    """How one row of a call is shared."""

    across: Literal["subgroup", "workgroup", "subgroups"]
    vector: int
    lanes: int
    #: lanes of a subgroup
    subgroup: int
    strided: bool = True
    accumulators: Literal["dot", "components"] = "dot"
    combine: Literal["descending", "ascending", "sequential"] = "descending"


def plan_of(recipe: str, columns: int, subgroup: int) -> Plan:
    """The plan of a route for rows of ``columns`` on a device with subgroups of ``subgroup``."""
    across, vector = ROUTES[recipe]
    if columns % vector:
        raise Unsupported(f"{recipe} takes rows of whole vectors of {vector}")
    lanes = 1
    while lanes * vector < columns:
        lanes *= 2
    if across == "subgroup":
        return Plan("subgroup", vector, min(lanes, subgroup), subgroup)
    if across == "subgroups":
        return Plan("subgroups", vector, max(min(lanes, 256), 2 * subgroup), subgroup)
    if across == "whole workgroup":
        return Plan("workgroup", vector, min(max(lanes, 64), 256), subgroup)
    return Plan("workgroup", vector, min(lanes, 64), subgroup)


TEMPLATE = Template("""\
$directives
alias Element = $element;
alias Vector = $vector;
alias Wide = $wide;

@group(0) @binding(0) var<storage, read> x: array<Vector>;
@group(0) @binding(1) var<storage, read> scale: array<Vector>;
@group(0) @binding(2) var<storage, read> gate: array<Vector>;
@group(0) @binding(3) var<storage, read> epsilon: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<Vector>;
@group(0) @binding(5) var<storage, read_write> sums: array<f32>;
@group(0) @binding(6) var<storage, read_write> subgroups: array<u32>;

const ROWS: u32 = ${rows}u;
const VECTORS: u32 = ${vectors}u;    // of a row
const LANES: u32 = ${lanes}u;      // that share a row
const STEPS: u32 = ${steps}u;      // vectors of a lane
const WORKGROUP: u32 = ${workgroup}u;
const SUBGROUP: u32 = ${subgroup}u;

$memory

// One of the two exponents overflows nowhere.
fn sigmoid(z: f32) -> f32 {
  if (z >= 0.0) { return 1.0 / (1.0 + exp(-z)); }
  let e = exp(z);
  return e / (1.0 + e);
}

fn activation(z: f32) -> f32 { return $activation; }

fn activations(z: Wide) -> Wide { return $activations; }

@compute @workgroup_size(WORKGROUP)
fn main(
    @builtin(local_invocation_index) index: u32,
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) subgroup_lane: u32) {
  // What the plan takes for granted; read back beside the result.
  if (subgroup_size != SUBGROUP) { subgroups[0] = subgroup_size; }
  if (subgroup_lane != index % SUBGROUP) { subgroups[1] = 1u; }

  let lane = index % LANES;
  let row = (workgroup.y * ${most_workgroups}u + workgroup.x) * (WORKGROUP / LANES) + index / LANES;
  let live = row < ROWS;
  let start = row * VECTORS;

  $begin
  for (var step = 0u; step < STEPS; step++) {
    let i = $place;
    var v = Wide(0.0);
    if (live && i < VECTORS) { v = Wide(x[start + i]); }
    $add
  }
  $fold
  $combine
  if (live && lane == 0u) { sums[row] = sum; }

  let inv = inverseSqrt(sum / $columns + epsilon[0]);
  if (!live) { return; }
  for (var step = 0u; step < STEPS; step++) {
    let i = $place;
    if (i < VECTORS) {
      let normalized = Wide(x[start + i]) * inv * Wide(scale[i]);
      out[start + i] = Vector(normalized * activations(Wide(gate[start + i])));
    }
  }
}
""")


def source(
    plan: Plan,
    rows: int,
    columns: int,
    dtype: str,
    activation: str,
    *,
    enable_subgroups: bool = False,
) -> tuple[str, int]:
    """(WGSL, number of workgroups).

    enable_subgroups: with the directive that browsers require and wgpu does not know.
    """
    element = {"float32": "f32", "float16": "f16"}[dtype]
    vectors = columns // plan.vector
    workgroup = max(WORKGROUP, plan.lanes, plan.subgroup)
    silu = "z * sigmoid(z)" if activation in ("silu", "swish") else "sigmoid(z)"
    directives = ["enable f16;"] * (element == "f16")
    directives += ["enable subgroups;"] * enable_subgroups
    scalar = plan.vector == 1
    text = TEMPLATE.substitute(
        directives="\n".join(directives),
        element=element,
        vector="Element" if scalar else "vec4<Element>",
        wide="f32" if scalar else "vec4<f32>",
        rows=rows,
        vectors=vectors,
        lanes=plan.lanes,
        steps=-(-vectors // plan.lanes),
        workgroup=workgroup,
        subgroup=plan.subgroup,
        most_workgroups=MOST_WORKGROUPS,
        columns=float(columns),
        activation=silu,
        activations="activation(z)"
        if scalar
        else "vec4<f32>(activation(z.x), activation(z.y), activation(z.z), activation(z.w))",
        place="lane + step * LANES" if plan.strided else "lane * STEPS + step",
        **_accumulation(plan),
        **_combination(plan, workgroup),
    )
    return text, -(-rows // (workgroup // plan.lanes))


def _accumulation(plan: Plan) -> dict[str, str]:
    if plan.vector == 1:
        return {"begin": "var sum = 0.0;", "add": "sum = sum + v * v;", "fold": ""}
    if plan.accumulators == "dot":
        return {"begin": "var sum = 0.0;", "add": "sum = sum + dot(v, v);", "fold": ""}
    return {
        "begin": "var each = vec4<f32>(0.0);",
        "add": "each = each + v * v;",
        "fold": "var sum = ((each.x + each.y) + each.z) + each.w;",
    }


def _combination(plan: Plan, workgroup: int) -> dict[str, str]:
    """The lanes' sums -> the row's, in every lane of the row."""
    if plan.across == "workgroup":
        if plan.combine != "descending":
            raise ValueError("in workgroup memory the halves are added first")
        memory = f"var<workgroup> shared_sums: array<f32, {workgroup}>;"
        lines = ["shared_sums[index] = sum;", "workgroupBarrier();"]
        for half in _halves(plan.lanes):
            upper = f"shared_sums[index + {half}u]"
            lines += [
                f"if (lane < {half}u) {{ shared_sums[index] = shared_sums[index] + {upper}; }}",
                "workgroupBarrier();",
            ]
        lines.append("sum = shared_sums[index - lane];")
        return {"memory": memory, "combine": "\n  ".join(lines)}

    within = plan.lanes if plan.across == "subgroup" else plan.subgroup
    if plan.combine == "sequential":
        if within != plan.subgroup:
            raise ValueError("subgroupAdd adds whole subgroups")
        lines = ["sum = subgroupAdd(sum);"]
    else:
        masks = _halves(within) if plan.combine == "descending" else _halves(within)[::-1]
        lines = [f"sum = sum + subgroupShuffleXor(sum, {mask}u);" for mask in masks]
    if plan.across == "subgroup":
        return {"memory": "", "combine": "\n  ".join(lines)}

    count = plan.lanes // plan.subgroup
    lines += [
        "if (index % SUBGROUP == 0u) { parts[index / SUBGROUP] = sum; }",
        "workgroupBarrier();",
        f"let first = index / LANES * {count}u;",
        "sum = 0.0;",
        f"for (var i = 0u; i < {count}u; i++) {{ sum = sum + parts[first + i]; }}",
    ]
    memory = f"var<workgroup> parts: array<f32, {workgroup // plan.subgroup}>;"
    return {"memory": memory, "combine": "\n  ".join(lines)}


def _halves(lanes: int) -> list[int]:
    """lanes / 2, lanes / 4, ... 1."""
    return [lanes >> i for i in range(1, lanes.bit_length())]


def run(device: Device, inputs: dict, params: dict, recipe: str) -> Computed:
    """out, and the raw sums of squares of the rows.

    Another recipe than a route: as the package chooses, vec4 where C allows it.
    """
    columns = inputs["scale"].size
    if recipe not in ROUTES:
        vectors = "vec4" if columns % 4 == 0 else "scalar"
        recipe = f"webgpu-subgroup-rows-{vectors}"
    plan = plan_of(recipe, columns, device.subgroup)
    out, sums = run_plan(device, plan, inputs["x"], inputs["scale"], inputs["gate"], **params)
    return {"out": out}, {"sum_of_squares": sums}


def run_plan(
    device: Device,
    plan: Plan,
    x: np.ndarray,
    scale: np.ndarray,
    gate: np.ndarray,
    *,
    epsilon: float = 1e-5,
    activation: str = "silu",
) -> tuple[np.ndarray, np.ndarray]:
    """out like x, and the raw sums of squares, float32 [rows]."""
    dtype = x.dtype.name
    if dtype not in ("float32", "float16") or (dtype == "float16" and not device.has_float16):
        raise Unsupported(f"no {dtype} on {device.description}")
    if x.size == 0:
        return np.empty_like(x), np.empty(0, np.float32)
    rows, columns = x.size // scale.size, scale.size
    code, workgroups = source(plan, rows, columns, dtype, activation)
    word = np.dtype(np.uint32)
    out, sums, subgroups = device.run(
        code,
        [x, scale, gate, np.array([epsilon], np.float32)],
        [(x.size, x.dtype), (rows, np.dtype(np.float32)), (2, word)],
        workgroups,
    )
    if subgroups.any():
        raise Unsupported(
            f"subgroups are not runs of {plan.subgroup} local indices here: {subgroups.tolist()}"
        )
    return out.reshape(x.shape), sums
