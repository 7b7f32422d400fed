"""The CUDA kernels and torch on an NVIDIA GPU, against every golden case that is not sampled.

    python tests/exhaustive/cuda_verify.py --out DIR [--jobs N]      on a machine with an sm_90 GPU
    python tests/exhaustive/cuda_verify.py --stand-in numba          without one: the runner itself

The cases of the quick and the standard tier are built in memory.  The GPU runs them first; then
each output is judged under policy cuda, and for the project's own kernels also compared with what
`refkern.hardware.sm90` says they compute ("as written": their own order, expf, rsqrtf, tensor
cores), bit for bit.  Then single questions: torch._grouped_mm against a wgmma chain,
torch._scaled_mm against exact dots.

DIR gets results.json, report.md and outputs.npz (the CUDA outputs as codes).  Needs numpy, numba,
ml_dtypes and nvcc, torch only for its own rows; refkern is taken from the checkout.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import refkern  # noqa: E402

# In a checkout that is not installed, goldens lies beside refkern, not inside.
if importlib.util.find_spec("refkern.goldens") is None:
    refkern.__path__.append(str(ROOT))

from refkern import casts, ops  # noqa: E402
from refkern import policy as policies  # noqa: E402
from refkern.arithmetic import Sigmoid, Silu  # noqa: E402
from refkern.formats import codes  # noqa: E402
from refkern.goldens import backends  # noqa: E402
from refkern.goldens.backends import Unavailable, Unsupported, cuda  # noqa: E402
from refkern.goldens.build import check_inputs  # noqa: E402
from refkern.goldens.inputs import make_inputs  # noqa: E402
from refkern.goldens.selection import Selected, select  # noqa: E402
from refkern.hardware import sm90  # noqa: E402
from refkern.hardware.sm90 import group_dots  # noqa: E402
from refkern.hardware.sm90.special_functions import EXPF, RSQRT_APPROX  # noqa: E402
from refkern.hardware.sm90.tensor_cores import TensorCoreChain  # noqa: E402
from refkern.schedules import Lanes, Sequential  # noqa: E402
from refkern.verdict import Judge, difference  # noqa: E402

POLICY = "cuda"
#: outputs larger than this are kept by their hash alone, so that what comes back stays small
LARGEST_KEPT = 192 << 10


def selected_cases() -> list[Selected]:
    """Every case whose output is held whole."""
    return [s for s in select(tier="standard") if not s.case.sampled_rows]


def call_of(selected: Selected) -> Any:
    case = selected.case
    strides = {
        name: tensor.row_stride
        for name, tensor in case.inputs.items()
        if tensor is not None and tensor.row_stride is not None
    }
    return check_inputs(selected.op, make_inputs(case), case.params, strides)


# ------------------------------------------------------------------------- what the kernels compute


def as_written(op: str, recipe: Any, call: Any) -> Any:
    """The recipe with what the CUDA kernel really does in its place, on sm_90."""
    return AS_WRITTEN[op](recipe, call)


def written_gated_group_rmsnorm(recipe: Any, call: Any) -> Any:
    if recipe.name in cuda.APPROXIMATE:
        return recipe
    form = recipe.silu.form if recipe.name in cuda.QUOTIENTS else "product"
    if recipe.name == "mamba-ssm":
        form = "product"
    vector = recipe.squares.vector if recipe.name == "modular-vector" else 1
    return replace(
        recipe,
        silu=Silu(form, Sigmoid("plain", EXPF)),
        squares=Lanes(lanes=32, vector=vector, fused=True),
        rsqrt=RSQRT_APPROX,
        mean_factor=None,
        choose=None,
    )


def written_gated_rmsnorm(recipe: Any, call: Any) -> Any:
    columns = call.scale.size
    across, vector = cuda.ROUTES.get(recipe.name, ("warp", 1 if columns % 4 else 4))
    lanes, part = cuda.shares(across, columns // vector)
    each = recipe.finish == "cast-each"
    squares = Lanes(
        lanes=lanes, vector=vector, fold="sequential", subgroup=None if part == lanes else part
    )
    silu = (
        Silu("quotient", Sigmoid("plain", EXPF))
        if each
        else Silu("product", Sigmoid("stable", EXPF))
    )
    return replace(
        recipe, squares=squares, silu=silu, rsqrt=RSQRT_APPROX, mean_factor=None, choose=None
    )


def written_grouped_matmul(recipe: Any, call: Any) -> Any:
    order = cuda.ORDERS.get(recipe.name)
    if order == cuda.TENSOR_CORES:
        kind = "bf16" if call.a.dtype.name == "bfloat16" else "f16"
        return replace(recipe, order=TensorCoreChain(f"mma.m16n8k16.{kind}"), choose=None)
    return recipe


class FilledUpDots:
    """DenseMlp's dots where the last group is short: the kernel's buffers hold zeros behind it."""

    def __call__(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        return group_dots.DENSEMLP(cuda.filled_up(x), cuda.filled_up(w))


def written_block_scaled_mlp(recipe: Any, call: Any) -> Any:
    from refkern.ops.block_scaled_mlp.recipes import Slices

    in_order = recipe.name in ("deepseek-v4-ref", "deepgemm-sm90")
    order: Any = Sequential(fused=True) if in_order else Slices()
    return replace(
        recipe,
        dots=FilledUpDots(),
        order=order,
        swiglu=replace(recipe.swiglu, exp=EXPF),
    )


AS_WRITTEN = {
    "gated_group_rmsnorm": written_gated_group_rmsnorm,
    "gated_rmsnorm": written_gated_rmsnorm,
    "grouped_matmul": written_grouped_matmul,
    "block_scaled_mlp": written_block_scaled_mlp,
}


# ---------------------------------------------------------------------------------------- judging


def judge(
    backend: str, name: str, outputs: dict[str, np.ndarray], stages: dict[str, np.ndarray]
) -> dict[str, Any]:
    """One output: its rung under the policy, and for the own kernels the bits as written."""
    started = time.perf_counter()
    selected = next(s for s in selected_cases() if f"{s.op.name}/{s.case.name}" == name)
    op, recipe = selected.op, selected.case.recipe
    found: dict[str, Any] = {}
    try:
        call, got = call_of(selected), outputs["out"]
        ruler = Judge(op, call, policy=policies.load(POLICY))
        verdict = ruler.verdict(got, recipe)
        known = {k: v for k, v in stages.items() if k in op.stages}
        first = None
        if known and not verdict.passed:
            first = ruler.first_guilty_stage({**known, "out": got}, recipe)
        want = ruler.expected(recipe)
        worst = verdict.difference.worst
        found = {
            "rung": verdict.rung,
            "headline": verdict.headline,
            "same_bits": list(verdict.same_bits),
            "elements": int(got.size),
            "other_bits": difference(got, want).mismatches,
            "outside": verdict.difference.mismatches,
            "max_ulp": difference(got, want).max_ulp,
            "first_stage": first,
            "worst": [str(element) for element in worst[:2]],
        }
        if backend == "cuda":
            written = as_written(op.name, ruler.chosen(recipe), call)
            expected = op.stages_of(call, written)
            differ = {
                stage: difference(array, expected[stage]).mismatches
                for stage, array in {**known, "out": got}.items()
            }
            found["as_written"] = differ
    except Exception:
        found = {**found, "rung": found.get("rung", "error"), "judge_error": traceback.format_exc()}
    found["judge_seconds"] = round(time.perf_counter() - started, 2)
    return found


# --------------------------------------------------------------------------------- the GPU's part


def run_case(backend: backends.Backend, selected: Selected) -> dict[str, Any]:
    row: dict[str, Any] = {
        "backend": backend.name,
        "op": selected.op.name,
        "case": selected.case.name,
        "recipe": selected.case.recipe,
    }
    try:
        call = call_of(selected)
        outputs, stages = backend(
            selected.op.name, call.inputs, dict(selected.case.params), recipe=selected.case.recipe
        )
        row["outputs"], row["stages"] = dict(outputs), dict(stages)
    except Unsupported as reason:
        row.update(rung="skip", headline=str(reason))
    except Exception as error:
        row.update(rung="error", headline=f"{type(error).__name__}: {error}"[:500])
    return row


def compared(name: str, got: np.ndarray, want: np.ndarray) -> dict[str, Any]:
    found = difference(got, want)
    worst = [str(element) for element in found.worst[:2]]
    return {
        "question": name, "elements": found.elements, "mismatches": found.mismatches,
        "worst": worst,
    }  # fmt: skip


def grouped_mm_bits() -> list[dict[str, Any]]:
    """torch._grouped_mm in bfloat16 on every case that it takes, against a chain of wgmma k16."""
    import torch

    from refkern.goldens.backends.torch import to_numpy, to_torch

    answers = []
    for selected in selected_cases():
        if selected.op.name != "grouped_matmul":
            continue
        call = call_of(selected)
        (_, k), columns = call.a.shape, call.b.shape[1]
        if call.a.dtype.name != "bfloat16" or k % 16 or columns % 8:
            continue
        bounds = call.a_offsets.tolist()
        groups = [
            (start, stop, expert)
            for start, stop, expert in zip(
                bounds, bounds[1:], call.expert_ids.tolist(), strict=False
            )
            if expert >= 0 and stop > start
        ]
        rows = np.concatenate([call.a[start:stop] for start, stop, _ in groups])
        weights = np.stack([call.b[expert] for *_, expert in groups])
        ends = np.cumsum([stop - start for start, stop, _ in groups])
        name = f"torch._grouped_mm on grouped_matmul/{selected.case.name}: wgmma.k16.bf16"
        try:
            got = torch._grouped_mm(
                to_torch(rows, "cuda"),
                to_torch(weights, "cuda").transpose(-2, -1),
                offs=torch.tensor(ends, dtype=torch.int32, device="cuda"),
            )
            want = [
                sm90.gemm_chain("wgmma.k16.bf16", call.a[start:stop], call.b[expert])
                for start, stop, expert in groups
            ]
            answers.append(
                compared(name, to_numpy(got), casts.cast(np.concatenate(want), "bfloat16"))
            )
        except Exception as error:
            answers.append({"question": name, "error": f"{type(error).__name__}: {error}"[:300]})
    return answers


def scaled_mm_bounds() -> list[dict[str, Any]]:
    """torch._scaled_mm on e4m3 codes of one group of 128, against exact dots.

    A wgmma of 32 products cuts each of 33 terms and then the result to 2^-13 of the largest, which
    is at most the sum S of the products' magnitudes (with what came before): four of them err by
    at most 4 * 34 * 2^-13 * S.  Rounding to bfloat16 adds 2^-8 of the result.
    """
    import torch

    answers = []
    random = np.random.default_rng(0)
    for use_fast_accum in (True, False):
        name = f"torch._scaled_mm e4m3, K 128, use_fast_accum={use_fast_accum}"
        try:
            a, b = (
                torch.tensor(random.normal(0, 1, shape).astype(np.float32)).to(torch.float8_e4m3fn)
                for shape in ((256, 128), (256, 128))
            )
            one = torch.ones((), device="cuda")
            got = torch._scaled_mm(
                a.cuda(), b.cuda().t(), scale_a=one, scale_b=one,
                out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum,
            ).float().cpu().numpy().astype(np.float64)  # fmt: skip
            wide = [t.float().numpy().astype(np.float64) for t in (a, b)]
            exact, size = wide[0] @ wide[1].T, np.abs(wide[0]) @ np.abs(wide[1]).T
            bound = 4 * 34 * 2.0**-13 * size
            bound += 2.0**-8 * (np.abs(exact) + bound)
            error = np.abs(got - exact)
            answers.append({
                "question": f"{name}: within the a-priori bound of wgmma",
                "elements": got.size, "mismatches": int((error > bound).sum()),
                "largest_error_of_bound": float((error / bound).max()),
            })  # fmt: skip
        except Exception as error:
            answers.append({"question": name, "error": f"{type(error).__name__}: {error}"[:300]})
    return answers + block_scaled_mm()


def block_scaled_mm() -> list[dict[str, Any]]:
    """Scales per token and 128 of K, and per 128 x 128 block of weights, where torch takes them."""
    import torch

    name = "torch._scaled_mm e4m3 with 1x128 and 128x128 scales, K 512: within the a-priori bound"
    random = np.random.default_rng(1)
    tokens, rows, k = 128, 256, 512
    try:
        a, b = (
            torch.tensor(random.normal(0, 1, shape).astype(np.float32)).to(torch.float8_e4m3fn)
            for shape in ((tokens, k), (rows, k))
        )
        a_scale = torch.tensor(random.uniform(0.5, 2, (tokens, k // 128)).astype(np.float32))
        b_scale = torch.tensor(random.uniform(0.5, 2, (rows // 128, k // 128)).astype(np.float32))
        got = torch._scaled_mm(
            a.cuda(), b.cuda().t(),
            # scale_a with its tokens next to each other
            scale_a=a_scale.cuda().t().contiguous().t(), scale_b=b_scale.cuda().t(),
            out_dtype=torch.bfloat16,
        ).float().cpu().numpy().astype(np.float64)  # fmt: skip
        left = a.float().numpy().astype(np.float64).reshape(tokens, -1, 128)
        right = b.float().numpy().astype(np.float64).reshape(rows, -1, 128)
        scales = a_scale.numpy()[:, None] * np.repeat(b_scale.numpy(), 128, axis=0)[None]
        exact = (np.einsum("tgk,rgk->trg", left, right) * scales).sum(-1)
        size = (np.einsum("tgk,rgk->trg", np.abs(left), np.abs(right)) * scales).sum(-1)
        # As above within a group; 8 float32 roundings for the scales and the groups' sum.
        bound = (4 * 34 * 2.0**-13 + 8 * 2.0**-23) * size
        bound += 2.0**-8 * (np.abs(exact) + bound)
        error = np.abs(got - exact)
        return [{
            "question": name, "elements": got.size, "mismatches": int((error > bound).sum()),
            "largest_error_of_bound": float((error / bound).max()),
        }]  # fmt: skip
    except Exception as error:
        return [{"question": name, "error": f"{type(error).__name__}: {error}"[:300]}]


# ----------------------------------------------------------------------------------------- reports


def describe() -> dict[str, Any]:
    def first_line(*command: str) -> str:
        try:
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return "not found"
        return (ran.stdout.strip().splitlines() or ["no output"])[0]

    query = "--query-gpu=name,driver_version"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "gpu_and_driver": first_line("nvidia-smi", query, "--format=csv,noheader"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "refkern": refkern.__version__,
        "policy": POLICY,
    }


def markdown(results: dict[str, Any]) -> str:
    lines = [f"{key}: {value}" for key, value in results["about"].items()]
    for backend, version in results["backends"].items():
        rows = [r for r in results["rows"] if r["backend"] == backend]
        lines += ["", f"## {backend}: {version}", ""]
        if not rows:
            continue
        lines += ["| op | bits | accept | fail | skip | error | bits as written |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        for op in ops.names():
            of_op = [r for r in rows if r["op"] == op]
            counts = Counter(r["rung"] for r in of_op)
            written = [r["as_written"]["out"] == 0 for r in of_op if "as_written" in r]
            cells = [str(counts[rung]) for rung in ("bits", "accept", "fail", "skip", "error")]
            lines.append(f"| {op} | {' | '.join(cells)} | {sum(written)} of {len(written)} |")
        lines += ["", "| case | rung | whose bits | elements | other bits | max ULP | as written |",
                  "|---|---|---|---|---|---|---|"]  # fmt: skip
        for r in rows:
            if r["rung"] in ("skip", "error") and "elements" not in r:
                lines.append(
                    f"| {r['op']}/{r['case']} | {r['rung']} | {r.get('headline')} | | | | |"
                )
                continue
            whose = ", ".join(r["same_bits"][:2]) or "-"
            written = r.get("as_written")
            wrong = (
                "-" if written is None else ", ".join(f"{s} {n}" for s, n in written.items() if n)
            )
            lines.append(
                f"| {r['op']}/{r['case']} | {r['rung']} | {whose} | {r['elements']} | "
                f"{r['other_bits']} | {r['max_ulp']} | {wrong or 'bits'} |"
            )
        for r in rows:
            if r["rung"] == "fail" or "judge_error" in r:
                title = f"{r['op']}/{r['case']}: {r.get('headline')}"
                stage = f"first guilty stage {r.get('first_stage')}"
                lines += ["", f"{title}; {stage}", *r.get("worst", []), r.get("judge_error", "")]
    lines += ["", "## Single questions", ""]
    for answer in results["questions"]:
        found = answer.get("error") or f"{answer['mismatches']} of {answer['elements']} differ"
        more = answer.get("largest_error_of_bound")
        bound = "" if more is None else f", largest error {more:.4f} of the bound"
        lines.append(f"- {answer['question']}: {found}{bound}")
    return "\n".join(lines) + "\n"


def save(folder: Path, results: dict[str, Any], kept: dict[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(markdown(results))
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    np.savez_compressed(folder / "outputs.npz", **kept)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for what is found")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--stand-in", help="a backend in the place of both")
    parser.add_argument("--op", help="only this op's cases")
    chosen = parser.parse_args()
    started = time.perf_counter()

    names = [(chosen.stand_in, None)] if chosen.stand_in else [("cuda", None), ("torch", "cuda")]
    results: dict[str, Any] = {"about": describe(), "backends": {}, "rows": [], "questions": []}
    kept: dict[str, np.ndarray] = {}
    cases = [s for s in selected_cases() if chosen.op in (None, s.op.name)]
    for name, device in names:
        backend = backends.load(name, device)
        try:
            results["backends"][name] = backend.version()
            for selected in cases:
                row = run_case(backend, selected)
                results["rows"].append(row)
                if "outputs" not in row:
                    print(name, row["op"], row["case"], row["rung"], row["headline"], flush=True)
        except Unavailable as reason:
            results["backends"][name] = f"unavailable: {reason}"
        print(f"{name}: {results['backends'][name]}, {time.perf_counter() - started:.0f} s",
              flush=True)  # fmt: skip
    if not chosen.stand_in:
        try:
            results["questions"] = grouped_mm_bits() + scaled_mm_bounds()
        except Exception as error:
            results["questions"] = [
                {"question": "torch", "error": f"{type(error).__name__}: {error}"}
            ]
        print(f"questions: {time.perf_counter() - started:.0f} s", flush=True)

    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        waiting = {}
        for row in results["rows"]:
            outputs, stages = row.pop("outputs", None), row.pop("stages", {})
            if outputs is None:
                continue
            name = f"{row['op']}/{row['case']}"
            out = np.ascontiguousarray(outputs["out"])
            row["sha256"] = sha256(codes(out).tobytes()).hexdigest()
            row["dtype"], row["shape"] = out.dtype.name, list(out.shape)
            if row["backend"] != "torch" and out.nbytes <= LARGEST_KEPT:
                kept[name] = codes(out)
            waiting[pool.submit(judge, row["backend"], name, outputs, stages)] = row
        for done in as_completed(waiting):
            row = waiting[done]
            try:
                row.update(done.result())
            except Exception as error:
                row.update(rung="error", headline=f"judging: {type(error).__name__}: {error}")
            seconds = f"{row.get('judge_seconds', '')} s"
            print(row["backend"], row["rung"], f"{row['op']}/{row['case']}", seconds, flush=True)
    results["about"]["seconds"] = round(time.perf_counter() - started)
    save(chosen.out, results, kept)
    print(markdown(results))
    counts = Counter(r["rung"] for r in results["rows"])
    return int(not results["rows"] or counts["fail"] + counts["error"] > 0)


if __name__ == "__main__":
    sys.exit(main())
