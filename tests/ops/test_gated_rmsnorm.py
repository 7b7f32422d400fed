"""gated_rmsnorm: ONNX Runtime itself, real captures, kernel against reference, the edge cases."""

from __future__ import annotations

import math
import platform
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.casts import widen
from refkern.formats import codes, format_of, from_codes
from refkern.ops.gated_rmsnorm.recipes import RouteRecipe, mlas_logistic
from refkern.threads import available_threads, get_num_threads
from refkern.ulp import is_nan
from refkern.verdict import difference

OP = "gated_rmsnorm"
BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
DTYPES = (F32, F16, BF16)
RECIPES = refkern.recipe_names(OP)
ROUTES = [name for name in RECIPES if name.startswith("webgpu-")]
norm, reference = refkern.gated_rmsnorm, refkern.reference.gated_rmsnorm


def random_floats(dtype: np.dtype, shape: tuple[int, ...], seed: int, scale: float = 2.0) -> Any:
    return refkern.cast(np.random.default_rng(seed).normal(0, scale, shape), dtype)


def random_codes(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    fmt = format_of(dtype)
    drawn = np.random.default_rng(seed).integers(0, 1 << fmt.bits, shape, np.uint64)
    return from_codes(drawn.astype(fmt.code_dtype), fmt)


def arrays(dtype: np.dtype, rows: int, columns: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """x, scale, gate; the rows of x from 1e-3 to 1e3, the gates within +-25."""
    drawn = np.random.default_rng(seed)
    x = drawn.normal(0, 1, (rows, columns)) * 10 ** drawn.uniform(-3, 3, (rows, 1))
    gate = drawn.uniform(-25, 25, (rows, columns))
    scale = drawn.normal(0, 1, columns)
    return tuple(refkern.cast(a, dtype) for a in (x, scale, gate))  # type: ignore[return-value]


def same_bits(got: np.ndarray, want: np.ndarray) -> int:
    """Bit for bit, NaN included: both are the canonical one.  Returns how many were compared."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    wrong = codes(np.ascontiguousarray(got)) != codes(np.ascontiguousarray(want))
    assert not wrong.any(), difference(got, want).worst
    return got.size


def compare(x: Any, scale: Any, gate: Any, **params: Any) -> np.ndarray:
    """The kernel's output, which must be the reference's."""
    got = norm(x, scale, gate, **params)
    same_bits(got, reference(x, scale, gate, **params)["out"])
    return got


# ONNX Runtime itself


@cache
def why_not_onnxruntime() -> str:
    """Why ONNX Runtime on this machine is not what `onnxruntime-cpu` models; "" where it is."""
    try:
        import onnx  # noqa: F401
        import onnxruntime
    except ImportError as error:
        return f"{error.name} is not installed"
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return f"ONNX Runtime contracts and clamps otherwise on {platform.machine()}"
    # A logistic without FMA differs on a fifth of all gates.
    z = np.linspace(-17, 17, 64, dtype=np.float32)
    got = run_onnxruntime(np.ones_like(z), np.ones_like(z), z, epsilon=0.0, activation="sigmoid")
    if (codes(got) != codes(mlas_logistic(z))).any():
        return f"onnxruntime {onnxruntime.__version__} takes another logistic (no FMA3?)"
    return ""


def run_onnxruntime(*arrays: np.ndarray, **params: Any) -> np.ndarray:
    from refkern.goldens.backends.onnxruntime import gated_rmsnorm

    return gated_rmsnorm(*arrays, **params)


@pytest.fixture
def onnxruntime() -> None:
    reason = why_not_onnxruntime()
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("onnxruntime")
def test_onnxruntime_bit_for_bit(dtype: np.dtype, capsys: pytest.CaptureFixture[str]) -> None:
    compared = 0
    for columns in (1, 3, 4, 64, 128, 129, 256, 4096):
        for activation in ("silu", "sigmoid"):
            x, scale, gate = arrays(dtype, max(8, 70_000 // columns), columns, seed=columns)
            got = norm(x, scale, gate, activation=activation, recipe="onnxruntime-cpu")
            want = run_onnxruntime(x, scale, gate, activation=activation)
            found = difference(got, want)
            assert found.mismatches == 0, (columns, activation, found.worst)
            compared += found.elements
    with capsys.disabled():
        print(f"\nonnxruntime, {dtype}: {compared} outputs compared, 0 mismatches")
    assert compared >= 1_000_000


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("onnxruntime")
def test_onnxruntime_on_any_bit_pattern(dtype: np.dtype) -> None:
    """NaN, infinities, subnormals and overflow in every input; NaN counts as NaN."""
    for epsilon, columns in ((1e-5, 2), (0.0, 5)):
        x, gate = (random_codes(dtype, (20_000, columns), seed) for seed in (1, 2))
        scale = random_codes(dtype, (columns,), 3 + columns)
        want = run_onnxruntime(x, scale, gate, epsilon=epsilon)
        found = difference(norm(x, scale, gate, epsilon=epsilon, recipe="onnxruntime-cpu"), want)
        assert found.mismatches == 0, found.worst
        assert 0 < found.nans < found.elements


@pytest.mark.usefixtures("onnxruntime")
def test_mlas_logistic() -> None:
    """Every bfloat16 value as float32, 2^21 random bit patterns, and where it exceeds 1."""
    every = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    above = codes(np.float32([17.48]))[0] + np.arange(1 << 19, dtype=np.uint32)
    z = np.concatenate([every, random_codes(F32, (1 << 21,), 7), above.view(np.float32)])
    z = z.reshape(-1, 64)
    # Rows of ones and epsilon 0: the normalised value is exactly 1, and the output the logistic.
    ones = np.ones(z.shape, np.float32), np.ones(64, np.float32), z
    want = run_onnxruntime(*ones, epsilon=0.0, activation="sigmoid")
    with np.errstate(invalid="ignore"):
        assert difference(mlas_logistic(z), want).mismatches == 0
    got = norm(*ones, epsilon=0.0, activation="sigmoid", recipe="onnxruntime-cpu")
    assert difference(got, want).mismatches == 0
    assert want[z <= -18].max() == 0
    assert np.count_nonzero(want == np.float32(1 + 2.0**-23)) == 20


@pytest.mark.usefixtures("onnxruntime")
def test_onnxruntime_flushes_silu() -> None:
    """silu is -0 from -18 down, where the operator's formula is not, and up to 2 x off before."""
    z = np.float32([[-18.0, -25.0, -17.0, -16.0]])
    inputs = np.ones_like(z), np.ones(4, np.float32), z
    flushed = run_onnxruntime(*inputs)
    exact = norm(*inputs)
    assert np.signbit(flushed[0, :2]).all()
    assert (flushed[0, :2] == 0).all()
    assert (exact[0, :2] < 0).all()
    assert not np.allclose(flushed, exact, rtol=1e-2, atol=0)


@pytest.mark.usefixtures("onnxruntime")
def test_what_onnxruntime_refuses() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    x = np.ones((3, 8), np.float32)
    ones = lambda *shape: np.ones(shape, np.float32)  # noqa: E731
    bad = [
        ((x, ones(8), ones(3, 7)), "gate"),
        ((x, ones(8), ones(3, 1)), "gate"),
        ((x, ones(8), ones(24)), "gate"),
        ((x, ones(0), x), "scale"),
        ((x, ones(3), x), "x"),
        ((x, ones(12), x), "x"),
        ((x, ones(24), x), "x"),
        ((ones(0, 8), ones(3), ones(0, 8)), "x"),
        ((x.astype(F16), ones(8), x.astype(F16)), "scale"),
    ]
    for inputs, argument in bad:
        with pytest.raises(refkern.InvalidInput) as error:
            norm(*inputs)
        assert error.value.argument == argument
        if inputs[2].ndim == 2:
            # At run time the binding wraps the error, before it the session raises its own.
            with pytest.raises((RuntimeError, errors.Fail, errors.InvalidGraph)):
                run_onnxruntime(*inputs)
    for activation in ("SiLU", "gelu", "relu", "none", ""):
        with pytest.raises(refkern.InvalidInput, match="activation"):
            norm(x, ones(8), x, activation=activation)
        with pytest.raises((errors.Fail, errors.InvalidArgument)):
            run_onnxruntime(x, ones(8), x, activation=activation)
    # Stricter than ONNX Runtime, on purpose.
    for epsilon in (-1.0, math.nan):
        run_onnxruntime(x, ones(8), x, epsilon=epsilon)
        with pytest.raises(refkern.InvalidInput, match="epsilon"):
            norm(x, ones(8), x, epsilon=epsilon)


@pytest.mark.usefixtures("onnxruntime")
def test_shapes_that_onnxruntime_takes() -> None:
    for shape, scale_shape in (
        ((8,), (8,)), ((8,), ()), ((3, 8), (1, 4)), ((3, 8), (4, 1)), ((2, 3, 8), (2, 2)),
        ((2, 1, 3, 4), (1, 1, 4)), ((1, 2, 1, 2, 2, 8), (8,)), ((3, 0), (4,)), ((0, 8), (4,)),
    ):  # fmt: skip
        x, gate = random_floats(F32, shape, 1), random_floats(F32, shape, 2)
        scale = random_floats(F32, scale_shape, 3)
        got = norm(x, scale, gate, recipe="onnxruntime-cpu")
        assert got.shape == shape
        assert difference(got, run_onnxruntime(x, scale, gate)).mismatches == 0


@pytest.mark.usefixtures("onnxruntime")
def test_the_operator_of_onnx_reference_is_onnxruntimes() -> None:
    from onnx.reference import ReferenceEvaluator

    from refkern.goldens.backends.onnxruntime import model
    from refkern.goldens.onnx_reference import GatedRMSNorm

    x, scale, gate = arrays(F16, 40, 96)
    proto = model(("FLOAT16", "FLOAT16", "FLOAT16"), 2, 1, 1e-4, "sigmoid")
    feeds = {"X": x, "scale": scale, "gate": gate}
    (got,) = ReferenceEvaluator(proto, new_ops=[GatedRMSNorm]).run(None, feeds)
    want = run_onnxruntime(x, scale, gate, epsilon=1e-4, activation="sigmoid")
    assert difference(got, want).mismatches == 0


# The H200


def test_captures_of_hugging_face_on_an_h200(capsys: pytest.CaptureFixture[str]) -> None:
    stored = np.load(Path(__file__).parents[1] / "data" / "h200_torch_hf_norms.npz")
    kinds = {"bf16": BF16, "f16": F16, "f32": F32}
    compared = 0
    for name in stored:
        if not (name.startswith("hf_qwen3next") and name.endswith("_x")):
            continue
        case, dtype = name.removesuffix("_x"), kinds[name.split("_")[2]]
        x, gate, weight, out = (
            stored[f"{case}_{part}"].view(dtype) for part in ("x", "gate", "weight", "out")
        )
        got = compare(x, weight, gate, epsilon=1e-6, recipe="hf-qwen3-next-sm90")
        compared += same_bits(got, out.reshape(x.shape))
    with capsys.disabled():
        print(f"\nhf-qwen3-next-sm90: {compared} captured outputs compared, 0 mismatches")
    assert compared > 50_000


# The kernel is the reference


@pytest.mark.parametrize("recipe", RECIPES)
def test_kernel_in_float32_over_widths(recipe: str) -> None:
    """Widths below, at and beyond every number of lanes; rows that do not fill four."""
    for columns in (1, 2, 3, 4, 7, 8, 20, 33, 64, 100, 128, 129, 256, 300, 1024, 1028, 4100):
        x, scale, gate = arrays(F32, 5, columns, seed=columns)
        try:
            ops.load(OP).recipe(recipe).for_call(ops.load(OP).check(x, scale, gate))
        except refkern.InvalidInput as error:
            assert "vec4" in recipe or "sm90" in recipe
            assert columns % 4, error  # noqa: PT017
            continue
        compare(x, scale, gate, recipe=recipe)


#: each kind of kernel in each dtype once: every one of them is compiled
KINDS = (
    ("webgpu-packed-rows-scalar", F32, "sigmoid"),
    ("webgpu-packed-rows-scalar", F16, "silu"),
    ("webgpu-packed-rows-scalar", BF16, "silu"),
    ("onnxruntime-cpu", F32, "silu"),
    ("onnxruntime-cpu", BF16, "sigmoid"),
    ("fla", F32, "silu"),
    ("fla", F16, "silu"),
    ("fla", F32, "sigmoid"),
    ("hf-qwen3-next", F32, "silu"),
    ("hf-qwen3-next", BF16, "silu"),
    ("hf-qwen3-next", F16, "sigmoid"),
)


@pytest.mark.parametrize(("recipe", "dtype", "activation"), KINDS, ids=str)
def test_kernel_on_any_bit_pattern(recipe: str, dtype: np.dtype, activation: str) -> None:
    for columns in (3, 16):
        x, gate = (random_codes(dtype, (3000, columns), seed) for seed in (1, 2))
        for scale in (random_codes(dtype, (columns,), 3), np.ones(columns, dtype)):
            out = compare(x, scale, gate, recipe=recipe, activation=activation, epsilon=1e-3)
            assert 0 < np.count_nonzero(is_nan(out)) < out.size
            assert (codes(out)[is_nan(out)] == format_of(dtype).nan).all()


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_strides(dtype: np.dtype) -> None:
    """Any view gives what a contiguous copy gives, and what lies between its elements is unread."""
    buffer = random_floats(dtype, (9, 3, 40), 1)
    gates = random_floats(dtype, (9, 3, 40), 2)
    scale = random_floats(dtype, (16,), 3)
    for view in (
        np.s_[:, :, :32], np.s_[::2, 1, 4:20], np.s_[::-1, :, 39:23:-1], np.s_[:, :2, 40:],
        np.s_[0, 0, :16],
    ):  # fmt: skip
        x, gate = buffer[view], gates[view]
        for array in (x, gate):
            assert array.size == 0 or not array.flags.c_contiguous or array.ndim == 1
        same_bits(norm(x, scale, gate), norm(x.copy(), scale, gate.copy()))
        same_bits(norm(x.T.copy().T, scale, gate), norm(x, scale, gate))
    spaced = np.full((32,), np.nan, dtype)
    spaced[::2] = scale
    same_bits(norm(buffer[:, 0, :16], spaced[::2], gates[:, 0, :16]),
              norm(buffer[:, 0, :16].copy(), scale, gates[:, 0, :16].copy()))  # fmt: skip


def test_out() -> None:
    x, scale, gate = arrays(F32, 6, 128)
    want = norm(x, scale, gate)
    out = np.full((6, 128), 7, np.float32)
    assert norm(x, scale, gate, out=out) is out
    same_bits(out, want)
    wide = np.full((6, 256), 7, np.float32)
    norm(x, scale, gate, out=wide[:, ::2])
    same_bits(wide[:, ::2], want)
    assert (wide[:, 1::2] == 7).all()
    for aliased in (0, 2):
        inputs = [x.copy(), scale, gate.copy()]
        norm(*inputs, out=inputs[aliased])
        same_bits(inputs[aliased], want)
    untouched = out.copy()
    for bad in (np.zeros((6, 127), np.float32), np.zeros((6, 128), F16)):
        with pytest.raises(refkern.InvalidInput, match="out"):
            norm(x, scale, gate, out=bad)
    with pytest.raises(refkern.InvalidInput):
        norm(x, scale, gate, epsilon=-1.0, out=out)
    same_bits(out, untouched)


@pytest.mark.parametrize(
    ("recipe", "dtype"),
    [("webgpu-subgroup-wide-rows-vec4", F32), ("onnxruntime-cpu", F16), ("fla", F32)],
    ids=str,
)
def test_any_number_of_threads(recipe: str, dtype: np.dtype) -> None:
    """Many rows, and one row wide enough to be shared among threads."""
    before = get_num_threads()
    try:
        for rows, columns in ((700, 128), (1, 1 << 17)):
            x, scale, gate = arrays(dtype, rows, columns)
            outs = []
            for threads in sorted({1, available_threads()}):
                refkern.set_num_threads(threads)
                outs.append(norm(x, scale, gate, recipe=recipe))
                same_bits(outs[-1], outs[0])
        # The wide row is also what the reference says.
        same_bits(outs[-1], reference(x, scale, gate, recipe=recipe)["out"])
    finally:
        refkern.set_num_threads(before)


@pytest.mark.skipif(available_threads() < 2, reason="one core: rows are not shared")
@pytest.mark.parametrize("changed", [{}, {"strided": False}, {"accumulators": "components"},
                                     {"combine": "ascending"}, {"subgroup": 8}])  # fmt: skip
def test_parameters_of_a_route(changed: dict[str, Any]) -> None:
    """Every parameter of a route, alone and in rows that threads share."""
    from dataclasses import replace

    recipe = ops.load(OP).recipes["webgpu-subgroup-wide-rows-vec4"]
    changed = replace(recipe, route=replace(recipe.route, **changed))
    sums = []
    for rows, columns in ((20, 4100), (1, 1 << 16)):
        x, scale, gate = arrays(F32, rows, columns)
        compare(x, scale, gate, recipe=changed)
        sums.append(reference(x, scale, gate, recipe=changed)["sum_of_squares"])
    usual = reference(*arrays(F32, 20, 4100), recipe=recipe)["sum_of_squares"]
    assert (changed.route == recipe.route) == (codes(usual) == codes(sums[0])).all()


# What the recipes say of each other


def test_halving_tree_is_the_descending_butterfly() -> None:
    """Rows of the same number of lanes: without subgroups and with them, the same bits."""
    for columns in (4, 12, 64, 100, 128):
        x, scale, gate = arrays(F32, 50, columns, seed=columns)
        packed, subgroup = (
            reference(x, scale, gate, recipe=f"webgpu-{route}-rows-vec4")["sum_of_squares"]
            for route in ("packed", "subgroup")
        )
        assert (codes(packed) == codes(subgroup)).all()


def test_routes_whose_orders_differ_differ() -> None:
    """On rows of 1024 float32 no two routes but onnxruntime-webgpu's own kind give equal sums."""
    x, scale, gate = arrays(F32, 200, 1024)
    sums = {r: codes(reference(x, scale, gate, recipe=r)["sum_of_squares"]).tobytes()
            for r in [*ROUTES, "onnxruntime-webgpu", "onnxruntime-cpu"]}  # fmt: skip
    assert len(set(sums.values())) == len(sums)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "hf-qwen3-next-sm90"])
def test_batch_invariant(recipe: str) -> None:
    x, scale, gate = arrays(F32, 9, 128)
    together = norm(x, scale, gate, recipe=recipe)
    for row in range(9):
        same_bits(norm(x[row], scale, gate[row], recipe=recipe), together[row])


@pytest.mark.parametrize("recipe", ["webgpu-subgroup-rows-vec4", "onnxruntime-cpu"])
def test_packed_heads(recipe: str) -> None:
    x, scale, gate = arrays(F16, 64, 128)
    want = norm(x, scale, gate, recipe=recipe)
    packed = norm(x.reshape(1, -1), scale, gate.reshape(1, -1), recipe=recipe)
    same_bits(packed.reshape(64, 128), want)


def test_domain_of_vec4() -> None:
    x, scale, gate = arrays(F32, 2, 6)
    for recipe in (r for r in ROUTES if r.endswith("vec4")):
        with pytest.raises(refkern.InvalidInput, match="multiple of 4"):
            norm(x, scale, gate, recipe=recipe)
        assert isinstance(ops.load(OP).recipes[recipe], RouteRecipe)
    with pytest.raises(refkern.InvalidInput, match="multiples of 4"):
        norm(*arrays(F32, 2, 129), recipe="hf-qwen3-next-sm90")


# Reported faults and the edges of the operator


def test_norm_before_gate() -> None:
    """Report 1: the operator normalises first."""
    x, z, w = np.float32([1, 2, 3, 4]), np.float32([0.5, -1, 2, 0]), np.float32([1, 1, 2, 1])
    want = np.uint32([0x3DE8BEAB, 0xBE491EE5, 0x40770158, 0])
    got = norm(x, w, z, epsilon=1e-5, recipe="onnxruntime-cpu")
    assert (codes(got) == want).all()
    bf16 = [a.astype(BF16) for a in (x, w, z)]
    assert codes(norm(*bf16)).tolist() == [0x3DE9, 0xBE49, 0x4077, 0]
    gated_first = refkern.cast(np.float64([0.11697729, -0.20216607, 3.9726261, 0]), F32)
    verdict = refkern.check(OP, gated_first, x=x, scale=w, gate=z)
    assert not verdict.passed


def test_epsilon() -> None:
    """Report 9: inside the root, the caller's, and zero rows are zeros."""
    x = np.float32([1e-3, -1e-3, 1e-3, -1e-3])
    ones = np.ones(4, np.float32)
    infinite = np.full(4, np.inf, np.float32)  # sigmoid of it is 1
    for epsilon, want in ((1e-5, 0.30151134), (1e-6, 0.70710678), (1e-2, 0.0099995)):
        got = norm(x, ones, infinite, epsilon=epsilon, activation="sigmoid")
        np.testing.assert_allclose(np.abs(got), want, rtol=2e-6)
    zeros = np.float32([-0.0, 0, 0, 0])
    got = norm(zeros, ones, ones)
    assert (got == 0).all()
    assert np.signbit(got).tolist() == [True, False, False, False]
    assert np.isnan(norm(zeros, ones, ones, epsilon=0.0)).all()
    assert (norm(x, ones, ones, epsilon=math.inf) == 0).all()


def test_strided_gate() -> None:
    """Report 11: the view's values, not the buffer's."""
    x = np.float32([[3, 4], [6, 8]])
    big = np.float32([[1, 9, -2, 9], [0.5, 9, 2, 9]])
    want = [[0.6203235, -0.2697253], [0.2640871, 1.9930161]]
    ones = np.ones(2, np.float32)
    for recipe in ("webgpu-packed-rows-scalar", "onnxruntime-cpu"):
        got = norm(x, ones, big[:, ::2], recipe=recipe)
        np.testing.assert_allclose(got, want, rtol=2e-6)
        turned = norm(np.asfortranarray(x)[::-1], ones, big[::-1, ::2], recipe=recipe)
        same_bits(turned[::-1], got)


def test_overflow_and_underflow() -> None:
    """Squares that overflow give zeros, squares that vanish infinities; nothing is flushed."""
    ones = np.ones(4, np.float32)
    gate = np.full((6, 4), 2.0, np.float32)
    x = np.float32([[1e20] * 4, [1.8e19, 1.8e19, 0, -1], [1e-40] * 4, [2e-23] * 4, [3e-23] * 4,
                    [1e-22] * 4])  # fmt: skip
    stages = reference(x, ones, gate, epsilon=0.0)
    same_bits(norm(x, ones, gate, epsilon=0.0), stages["out"])
    assert np.isinf(stages["sum_of_squares"][:2]).all()
    assert (stages["out"][:2] == 0).all()
    assert np.signbit(stages["out"][1, 3])
    assert np.isposinf(stages["out"][2:4]).all()
    exact = 2 / (1 + math.exp(-2))
    assert stages["out"][4, 0] == pytest.approx(0.8 * exact, rel=0.02)
    assert stages["out"][5, 0] == pytest.approx(1.01 * exact, rel=0.01)
    top = np.full((1, 4), 65504, F16)
    assert np.isfinite(norm(top, np.ones(4, F16), np.ones((1, 4), F16))).all()


def test_nan_and_infinity() -> None:
    x, scale, gate = (np.ones(s, np.float32) for s in ((5, 4), (4,), (5, 4)))
    x[0, 1], x[1, 2], gate[2, 3] = math.nan, math.inf, math.nan
    got = norm(x, scale, gate)
    assert np.isnan(got).tolist() == [
        [True] * 4, [False, False, True, False], [False, False, False, True],
        [False] * 4, [False] * 4,
    ]  # fmt: skip
    assert (got[1, [0, 1, 3]] == 0).all()
    x[3, 0], scale[0] = 0, math.inf
    assert np.isnan(norm(x, scale, gate)[3, 0])


@pytest.mark.parametrize(
    ("argument", "bad"),
    [
        ("x", np.float32(1)),
        ("x", np.ones((2, 4))),
        ("x", np.ones((2, 4), np.int32)),
        ("scale", np.ones(4, F16)),
        ("scale", np.ones(0, np.float32)),
        ("gate", np.ones((2, 4), BF16)),
        ("gate", np.ones((1, 4), np.float32)),
        ("gate", None),
        ("epsilon", "1e-5"),
        ("epsilon", -1e-9),
        ("activation", None),
        ("activation", "SILU"),
        ("recipe", "onnxruntime"),
    ],
)
def test_bad_arguments(argument: str, bad: Any) -> None:
    arguments: dict[str, Any] = {
        "x": np.ones((2, 4), np.float32),
        "scale": np.ones(4, np.float32),
        "gate": np.ones((2, 4), np.float32),
    }
    out = np.full((2, 4), 7, np.float32)
    with pytest.raises(refkern.InvalidInput) as error:
        norm(**{**arguments, argument: bad}, out=out)
    assert error.value.argument == argument
    assert (out == 7).all()


def test_accept_holds_the_recipes_that_store_once() -> None:
    """Every order of the sum is inside the interval of the operator; torch's casts are not."""
    x, scale, gate = arrays(F32, 20, 128)
    gate = np.clip(gate, np.float32(-5), np.float32(5))
    lo, hi = refkern.accept.gated_rmsnorm(x, scale, gate, policy="ieee")
    for recipe in RECIPES:
        out = norm(x, scale, gate, recipe=recipe)
        inside = ((out >= lo) & (out <= hi)).mean()
        if recipe.startswith("webgpu-") or recipe in ("onnxruntime-webgpu", "fla"):
            assert inside == 1, recipe
    assert (widen(hi) - widen(lo)).max() > 0
