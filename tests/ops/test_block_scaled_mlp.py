"""block_scaled_mlp: an H200's every stage, exact rationals, torch, and kernel against reference."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from densemlp_inputs import Inputs, make, make_ue8m0

import refkern
from refkern import ops
from refkern.arithmetic import Bits
from refkern.casts import widen
from refkern.compiled.group_dots import project_exactly
from refkern.formats import codes
from refkern.hardware.sm90 import group_dots as sm90
from refkern.threads import available_threads, get_num_threads
from refkern.verdict import difference

OP = ops.load("block_scaled_mlp")
DATA = Path(__file__).parents[1] / "data"
BF16, E4M3 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
mlp, reference = refkern.block_scaled_mlp, refkern.reference.block_scaled_mlp
RECIPES = refkern.recipe_names("block_scaled_mlp")
PORTABLE = [name for name in RECIPES if "sm90" not in name]
#: what the captures call the stages
STAGES = {
    "xq": "x_codes", "xs": "x_scales", "sum13": "gate_up_sums", "act": "act", "aq": "act_codes",
    "as_": "act_scales", "sum2": "down_sums", "out": "out",
}  # fmt: skip


@cache
def capture(name: str) -> dict[str, np.ndarray]:
    with np.load(DATA / f"h200_densemlp_{name}.npz") as file:
        return dict(file)


class CompiledDots(Bits):
    """The reference with its groups' dots by the compiled chain, whose bits are the numpy one's
    (compared in `test_group_dots_are_the_captured_ones`): large captures in seconds."""

    def group_dots(self, x: np.ndarray, w: np.ndarray, dots: Any) -> np.ndarray:
        return np.moveaxis(dots.load_compiled()(x, w), 0, -1)


def stages(inputs: Inputs, recipe: str, **params: Any) -> dict[str, np.ndarray]:
    call = OP.check(**inputs.arguments(), **params)
    m = CompiledDots()
    with np.errstate(all="ignore"):
        OP.part("reference").reference(m, call, OP.recipe(recipe).for_call(call))
    return m.stages


def mismatches(got: np.ndarray, captured: np.ndarray) -> int:
    """Elements with other bits; the device's NaN is any NaN here."""
    want = np.ascontiguousarray(captured).view(got.dtype).reshape(got.shape)
    return difference(got, want).mismatches


def compare(found: dict[str, np.ndarray], captured: dict[str, np.ndarray], prefix: str) -> None:
    compared = 0
    for short, name in STAGES.items():
        if prefix + short in captured:
            assert mismatches(found[name], captured[prefix + short]) == 0, name
            compared += 1
    assert compared >= 4


def small() -> Inputs:
    z = capture("small")
    return Inputs(
        z["x"].view(BF16), z["w13"].view(E4M3), z["s13"], z["w2"].view(E4M3), z["s2"]
    )  # fmt: skip


SMALL = {"limit": 7.0, "scale_format": "float32"}

# ------------------------------------------------------------------------------ what the H200 gave


def test_small_capture_with_and_without_fma() -> None:
    z = capture("small")
    for recipe, prefix in (
        ("vllm-densemlp-sm90", ""),
        ("vllm-densemlp-sm90-nofma", "nofma_"),
    ):
        found = reference(**small().arguments(), **SMALL, recipe=recipe)
        compare(found, z, prefix)
        out = mlp(**small().arguments(), **SMALL, recipe=recipe)
        assert mismatches(out, z[prefix + "out"]) == 0
    two = Inputs(small().x[:2], *list(small().arguments().values())[1:])
    found = stages(two, "vllm-densemlp-sm90", **SMALL)
    assert mismatches(found["act"], z["cute_act"]) == 0
    assert mismatches(found["out"], z["cute_out"]) == 0


def test_group_dots_are_the_captured_ones() -> None:
    """Every group's accumulator before its scales, by numpy and by the compiled chain."""
    z = capture("small")
    for x, w, want in (("xq", "w13", "acc13"), ("aq", "w2", "acc2")):
        found = sm90.DENSEMLP(z[x].view(E4M3), z[w].view(E4M3))
        assert mismatches(found, z[want]) == 0
        compiled = sm90.DENSEMLP.load_compiled()(z[x].view(E4M3), z[w].view(E4M3))
        assert mismatches(np.ascontiguousarray(np.moveaxis(compiled, 0, -1)), z[want]) == 0


def test_edge_inputs() -> None:
    """Zeros, -0, tiny, huge, infinity and NaN, by the CUDA kernel and by vLLM's own text."""
    z = capture("small")
    edge = Inputs(z["edge_x"].view(BF16), *list(small().arguments().values())[1:])
    found = stages(edge, "vllm-densemlp-sm90", **SMALL)
    compare(found, z, "edge_")
    for first in (0, 2, 4, 6):
        pair = slice(first, first + 2)
        assert mismatches(found["act"][pair], z[f"edge_cute_act{first}"]) == 0
        assert mismatches(found["out"][pair], z[f"edge_cute_out{first}"]) == 0


@pytest.mark.parametrize(
    ("name", "shape", "random_bytes"),
    [("mid", (2048, 1024, 512, 8, 102), False), ("large", (6144, 2048, 512, 8, 103), True)],
)
def test_larger_captures(name: str, shape: tuple[int, ...], random_bytes: bool) -> None:
    z = capture("mid_large")
    inputs = make(*shape, random_bytes=random_bytes)  # type: ignore[misc]
    assert inputs.sha256() == str(z[f"{name}_sha"])
    compare(stages(inputs, "vllm-densemlp-sm90", **SMALL), z, f"{name}_")
    out = mlp(**inputs.arguments(), **SMALL, recipe="vllm-densemlp-sm90")
    assert mismatches(out, z[f"{name}_out"]) == 0


@pytest.mark.parametrize("name", ["small", "glm_tp8"])
def test_ue8m0_captures(name: str) -> None:
    z = capture("ue8m0")
    inputs = make_ue8m0(*map(int, z[f"{name}_config"]))
    assert inputs.sha256() == str(z[f"{name}_sha"])
    params = {"limit": float(z[f"{name}_limit"]), "scale_format": "ue8m0"}
    compare(stages(inputs, "vllm-densemlp-sm90", **params), z, f"{name}_")
    out = mlp(**inputs.arguments(), **params, recipe="vllm-densemlp-sm90")
    assert mismatches(out, z[f"{name}_out"]) == 0
    # Weight scales in their own format give the same bits.
    narrow = {
        key: refkern.cast(value, E8M0, rounding="nearest") if key.endswith("scale") else value
        for key, value in inputs.arguments().items()
    }
    assert mismatches(mlp(**narrow, **params, recipe="vllm-densemlp-sm90"), z[f"{name}_out"]) == 0


def test_the_portable_recipe_is_the_h200s_to_a_few_last_bits() -> None:
    """The same codes and scales of x; float32 sums off by what the tensor core cuts."""
    z = capture("small")
    found = reference(**small().arguments(), **SMALL)
    assert mismatches(found["x_codes"], z["xq"]) == 0
    assert mismatches(found["x_scales"], z["xs"]) == 0
    sums = found["gate_up_sums"]
    assert 0 < (sums != z["sum13"]).mean() < 0.2
    np.testing.assert_allclose(sums, z["sum13"], rtol=2e-5, atol=2e-5 * np.abs(sums).max())


# --------------------------------------------------------------------------------- exact rationals


def random_inputs(
    tokens: int, k: int, inter: int, hidden: int, seed: int = 0, *, any_code: bool = False
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> np.ndarray:
        drawn = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
        if not any_code:
            drawn[(drawn & 127) == 127] ^= 1
        return drawn.view(E4M3)

    def scales(rows: int, columns: int) -> np.ndarray:
        return rng.uniform(2e-4, 6e-4, (-(-rows // 128), -(-columns // 128))).astype(np.float32)

    x = rng.standard_normal((tokens, k)) * np.exp2(rng.integers(-2, 3, (tokens, 1)))
    gate, up = scales(inter, k), scales(inter, k)
    return {
        "x": x.astype(np.float32).astype(BF16),
        "w13": weights(2 * inter, k),
        "w13_scale": np.concatenate([gate, up]),
        "w2": weights(hidden, inter),
        "w2_scale": scales(hidden, inter),
    }


def rounded(x: Fraction, mantissa_bits: int) -> Fraction:
    """To nearest even with so many bits behind the first; no under- or overflow here."""
    if x == 0:
        return x
    exponent = 0
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (exponent - mantissa_bits)
    return round(x / quantum) * quantum


def exact_dots(x: np.ndarray, w: np.ndarray) -> list[Fraction]:
    a, b = (widen(v).astype(np.float64) for v in (x, w))
    return [
        sum((Fraction(p) * Fraction(q) for p, q in zip(a[i:j], b[i:j], strict=True)), Fraction(0))
        for i, j in ((g, min(g + 128, len(a))) for g in range(0, len(a), 128))
    ]


def test_sums_of_the_default_recipe_in_exact_rationals() -> None:
    """Exact dots, RN(w scale * x scale), fma over slices of four groups, slices added in order."""
    given = random_inputs(2, 800, 130, 3)
    found = reference(**given, scale_format="float32")
    for token, row in ((0, 0), (0, 129), (1, 130), (1, 128), (0, 259)):
        block = row // 128 if row < 130 else 2 + (row - 130) // 128
        dots = exact_dots(found["x_codes"][token], given["w13"][row])
        value = Fraction(0)
        for start in range(0, len(dots), 4):
            total = Fraction(0)
            for g in range(start, min(start + 4, len(dots))):
                w_scale = Fraction(float(given["w13_scale"][block, g]))
                scale = rounded(w_scale * Fraction(float(found["x_scales"][token, g])), 23)
                total = rounded(rounded(dots[g], 23) * scale + total, 23)
            value = rounded(value + total, 23)
        assert Fraction(float(found["gate_up_sums"][token, row])) == value, (token, row)


def test_the_exact_recipe_rounds_once() -> None:
    """gate, up and out are the nearest bfloat16 of the exact sum, and sums its nearest float32."""
    given = random_inputs(2, 800, 130, 40)
    found = reference(**given, limit=7.0, scale_format="float32", recipe="exact")

    def exact(stage: str, scale: str, w: str, token: int, row: int, block: int) -> Fraction:
        dots = exact_dots(found[stage][token], given[w][row])
        return sum(
            (
                dot
                * Fraction(float(given[f"{w}_scale"][block, g]))
                * Fraction(float(found[scale][token, g]))
                for g, dot in enumerate(dots)
            ),
            Fraction(0),
        )

    for token, row in ((0, 0), (0, 129), (1, 130), (1, 258)):
        block = row // 128 if row < 130 else 2 + (row - 130) // 128
        value = exact("x_codes", "x_scales", "w13", token, row, block)
        assert Fraction(float(found["gate_up_sums"][token, row])) == rounded(value, 23)
        half = found["gate" if row < 130 else "up"][token, row % 130]
        assert Fraction(float(half)) == rounded(value, 7)
    for token, row in ((0, 0), (1, 39), (1, 17)):
        value = exact("act_codes", "act_scales", "w2", token, row, 0)
        assert Fraction(float(found["down_sums"][token, row])) == rounded(value, 23)
        assert Fraction(float(found["out"][token, row])) == rounded(value, 7)


@pytest.mark.parametrize("rest", [-40, -70])
def test_the_exact_recipe_does_not_round_twice(rest: int) -> None:
    """1 + 2^-8 + 2^rest, just above the midpoint of two bfloat16: on it in float32, and for the
    second rest in float64 too."""
    x, w13 = np.zeros((1, 384), np.float32), np.zeros((2, 384), np.float32)
    x[:, ::128], w13[:, ::128] = 1, 256
    scale = np.ldexp(np.float32(1), np.array([[-8, -16, rest - 8]] * 2))
    given = {
        "x": x.astype(BF16),
        "w13": w13.astype(E4M3),
        "w13_scale": scale,
        "w2": np.ones((1, 1), np.float32).astype(E4M3),
        "w2_scale": np.ones((1, 1), np.float32),
    }
    found = reference(**given, recipe="exact")
    assert found["gate_up_sums"][0, 0] == np.float32(1 + 2.0**-8)
    assert float(found["gate"][0, 0]) == 1 + 2.0**-7
    twice = reference(**given)
    assert float(twice["gate"][0, 0]) == 1.0  # ties to even, after float32 lost the rest
    wide = np.zeros((2, 1), np.uint16)
    project_exactly(
        found["x_codes"], found["x_scales"], given["w13"], scale, np.arange(2), wide.T
    )  # fmt: skip
    assert [f"{c:04x}" for c in wide[:, 0]] == ["3f81", "3f81"]
    assert difference(mlp(**given, recipe="exact"), found["out"]).mismatches == 0


# ----------------------------------------------------------------------------- kernel = reference

SHAPES = [(3, 1024, 512, 64), (2, 300, 130, 70), (1, 128, 128, 1), (5, 640, 96, 257), (1, 1, 1, 1)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_kernel_has_the_bits_of_the_reference(recipe: str) -> None:
    compared = 0
    for shape in SHAPES:
        for any_code in (False, True):
            given = random_inputs(*shape, seed=sum(shape), any_code=any_code)
            if shape[0] > 2:
                x = given["x"].copy()
                x[1, :128], x[2, 5], x[0, 7] = 0, np.inf, np.nan
                given["x"] = x
            for scale_format, limit in (("ue8m0", 7.0), ("float32", None)):
                params = {"limit": limit, "scale_format": scale_format, "recipe": recipe}
                try:
                    want = reference(**given, **params)["out"]
                except refkern.InvalidInput:
                    continue
                got = mlp(**given, **params)
                found = difference(got, want)
                assert found.mismatches == 0, (shape, params, found.worst)
                compared += found.elements
    assert compared > 0


def test_domains() -> None:
    for recipe, size in (
        ("vllm-densemlp-sm90", 512),
        ("vllm-densemlp-sm90-nofma", 512),
        ("deepgemm-sm90", 128),
    ):
        mlp(**random_inputs(1, size, size, 1), recipe=recipe)
        for k, inter in ((size + 64, size), (size, size + 64)):
            with pytest.raises(refkern.InvalidInput, match=f"whole {size}s"):
                mlp(**random_inputs(1, k, inter, 1), recipe=recipe)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_token_alone_gives_the_same_bits(recipe: str) -> None:
    given = random_inputs(9, 512, 512, 40, seed=3)
    together = mlp(**given, recipe=recipe, limit=7.0)
    assert OP.recipe(recipe).batch_invariant
    for token in (0, 8):
        alone = mlp(**{**given, "x": given["x"][token : token + 1]}, recipe=recipe, limit=7.0)
        assert difference(alone, together[token : token + 1]).mismatches == 0


def test_any_number_of_threads_gives_the_same_bits() -> None:
    given = random_inputs(4, 1024, 640, 300, seed=4)
    before = get_num_threads()
    try:
        found = []
        for threads in {1, available_threads()}:
            refkern.set_num_threads(threads)
            found.append([codes(mlp(**given, recipe=r)).tobytes() for r in ("exact", None)])
    finally:
        refkern.set_num_threads(before)
    assert all(f == found[0] for f in found)


def test_strides_out_and_empty_batches() -> None:
    given = random_inputs(4, 300, 130, 70, seed=5)
    want = mlp(**given)
    wide = {name: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2] for name, a in given.items()}
    fortran = {name: np.asfortranarray(a) for name, a in given.items()}
    for views in (wide, fortran):
        assert difference(mlp(**views), want).mismatches == 0
    out = np.zeros((4, 140), BF16)
    assert mlp(**given, out=out[:, ::2]) is not None
    assert difference(np.ascontiguousarray(out[:, ::2]), want).mismatches == 0
    assert (out[:, 1::2].astype(np.float32) == 0).all()
    empty = {**given, "x": given["x"][:0]}
    for recipe in RECIPES[:5]:
        assert mlp(**empty, recipe=recipe if "sm90" not in recipe else None).shape == (0, 70)
    assert reference(**empty)["gate_up_sums"].shape == (0, 260)


# ------------------------------------------------------------------------ edges that docs describe


def test_what_nan_infinity_and_huge_values_become() -> None:
    """One NaN or infinity in x: the token's gates become the limit, its ups +limit, and the output
    is finite.  Finite but huge: sums overflow, -inf gates make NaN."""
    given = random_inputs(5, 512, 512, 64, seed=6)
    x = given["x"].copy()
    x[1, 17], x[2, 400] = np.nan, -np.inf
    x[3] = np.copysign(np.float32(3e38), x[3].astype(np.float32)).astype(BF16)
    given["x"] = x
    plain = random_inputs(5, 512, 512, 64, seed=6)
    for recipe in ("vllm-densemlp", "vllm-densemlp-sm90"):
        found = reference(**given, limit=7.0, scale_format="float32", recipe=recipe)
        act = found["act"].astype(np.float32)
        limit_both = refkern.swiglu(*[np.array([7.0], np.float32).astype(BF16)] * 2, limit=7.0)
        for token in (1, 2):
            assert (act[token] == float(limit_both[0])).all()
            assert np.isfinite(found["out"][token].astype(np.float32)).all()
        assert np.isnan(found["out"][3].astype(np.float32)).all()
        untouched = reference(**plain, limit=7.0, scale_format="float32", recipe=recipe)
        for token in (0, 4):
            assert difference(found["out"][token], untouched["out"][token]).mismatches == 0
    # tilelang's clamp makes -448 of a NaN in x, and of an infinity too, whose scale is infinite:
    # sums of +-inf, of which torch's clamp makes the limit, and silu NaN.
    kept = reference(**given, limit=7.0, recipe="deepseek-v4-ref")["act"].astype(np.float32)
    assert np.isfinite(kept[1]).all()
    assert 0 < np.isnan(kept[2]).mean() < 1


def test_zero_tokens_and_blocks() -> None:
    given = random_inputs(2, 256, 128, 64, seed=7)
    given["x"] = np.zeros_like(given["x"])
    given["x"][1, ::3] = -0.0
    for scale_format, floor in (("ue8m0", 2.0**-33), ("float32", 2.2321428e-13)):
        found = reference(**given, scale_format=scale_format)
        np.testing.assert_allclose(found["x_scales"], floor, rtol=1e-7)
        np.testing.assert_allclose(found["act_scales"], floor, rtol=1e-7)
        assert set(codes(found["x_codes"])[0]) == {0}
        assert set(codes(found["x_codes"])[1]) == {0, 0x80}
        assert (found["gate_up_sums"].view(np.uint32) == 0).all()
        assert (codes(found["out"]) == 0).all()


def test_the_intermediate_is_rounded_before_its_amax() -> None:
    """Fault 23: gate 21, up 21.375: 448.875 in float32 makes scale 2, 448 in bfloat16 makes 1."""
    gate = np.full(128, 1.0, np.float32)
    up = np.full(128, 1.3671875, np.float32)  # silu(1) * this is 0.9995, bfloat16 1.0
    gate[0], up[0] = 21, 21.375
    act = refkern.swiglu(gate.astype(BF16), up.astype(BF16))
    made, scales = refkern.quantize_fp8(act)
    assert float(act[0]) == 448
    assert float(act[1]) == 1
    assert scales.view(np.uint8).tolist() == [127]
    assert codes(made)[:2].tolist() == [0x7E, 0x38]
    wide = refkern.swiglu(gate.astype(BF16), up.astype(BF16), variant="sglang-dsv4")
    assert wide.dtype == np.float32
    made, scales = refkern.quantize_fp8(wide)
    assert scales.view(np.uint8).tolist() == [128]
    assert codes(made)[:2].tolist() == [0x76, 0x30]


def test_scales_of_the_two_halves_are_tiled_separately() -> None:
    """Fault 19: inter 130; up's first row is row 0 of up's own blocks."""
    w13 = np.ones((260, 128), np.float32).astype(E4M3)
    x = np.zeros((1, 128), np.float32)
    x[0, 0] = 1.75
    given = {
        "x": x.astype(BF16),
        "w13": w13,
        "w13_scale": np.array([[2], [8], [32], [128]], np.float32),
        "w2": np.ones((1, 130), np.float32).astype(E4M3),
        "w2_scale": np.ones((1, 2), np.float32),
    }
    found = reference(**given)
    sums = found["gate_up_sums"][0] / np.float32(1.75)
    assert sums.tolist() == [2.0] * 128 + [8.0] * 2 + [32.0] * 128 + [128.0] * 2
    for shape in ((1, 1), (3, 1), (2, 2), (2, 1), (4, 2)):
        with pytest.raises(refkern.InvalidInput, match="w13_scale"):
            mlp(**{**given, "w13_scale": np.ones(shape, np.float32)})


# -------------------------------------------------------------------------------------- arguments

GOOD = random_inputs(2, 256, 128, 64)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("x", GOOD["x"].astype(np.float32)),
        ("x", GOOD["x"][0]),
        ("w13", GOOD["w13"][:, :200]),
        ("w13", GOOD["w13"].view(np.uint8)),
        ("w13", GOOD["w13"][:-1]),
        ("w13_scale", GOOD["w13_scale"].astype(np.float64)),
        ("w13_scale", GOOD["w13_scale"].T.copy()[:1]),
        ("w2", GOOD["w2"][:, :-1]),
        ("w2_scale", np.ones((2, 1), np.float32)),
        ("limit", -1.0),
        ("limit", np.nan),
        ("limit", "7"),
        ("scale_format", "fp32"),
        ("recipe", "densemlp"),
    ],
)
def test_bad_arguments(argument: str, value: Any) -> None:
    out = np.full((2, 64), 7, np.float32).astype(BF16)
    for function in (lambda **a: mlp(**a, out=out), reference):
        with pytest.raises(refkern.InvalidInput) as error:
            function(**{**GOOD, argument: value})
        assert error.value.argument == argument
    assert (out.astype(np.float32) == 7).all()


# ------------------------------------------------------------------------------------------- torch


def test_against_torch() -> None:
    """Dequantise and multiply in float64: within what the recipe's own roundings can add up to.

    gate_up: each of the 2 * groups + slices float32 roundings is within 2^-24 of a partial sum,
    and no partial sum is larger than the sum of magnitudes M (1 + small): n * 2^-24 * M, doubled.
    out the same from the recipe's own act codes, and 2^-9 of the value for bfloat16.
    """
    torch = pytest.importorskip("torch")
    given = random_inputs(4, 1024, 640, 200, seed=8)
    found = reference(**given, limit=7.0)

    def dequantised(name: str, halves: int) -> Any:
        w = torch.from_numpy(codes(given[name]).copy()).view(torch.float8_e4m3fn).double()
        rows = len(w) // halves
        block = np.concatenate(
            [h * -(-rows // 128) + np.arange(rows) // 128 for h in range(halves)]
        )
        scale = torch.from_numpy(given[f"{name}_scale"]).double()[block]
        return w * scale.repeat_interleave(128, dim=1)[:, : w.shape[1]]

    def activations(codes_of: str, scales: str) -> Any:
        a = torch.from_numpy(codes(found[codes_of]).copy()).view(torch.float8_e4m3fn).double()
        wide = torch.from_numpy(found[scales]).double().repeat_interleave(128, dim=1)
        return a * wide[:, : a.shape[1]]

    for stage, name, halves, x in (
        ("gate_up_sums", "w13", 2, activations("x_codes", "x_scales")),
        ("down_sums", "w2", 1, activations("act_codes", "act_scales")),
    ):
        w = dequantised(name, halves)
        groups = -(-w.shape[1] // 128)
        n = 3 * groups + -(-groups // 4)
        bound = 2 * n * 2.0**-24 * (x.abs() @ w.abs().T)
        error = (torch.from_numpy(found[stage]).double() - x @ w.T).abs()
        assert bool((error <= bound).all())
        assert float((error / bound).max()) > 1e-4  # the bound is not idle
    gate = torch.from_numpy(found["gate"].astype(np.float32)).clamp(max=7.0)
    up = torch.from_numpy(found["up"].astype(np.float32)).clamp(-7.0, 7.0)
    act = (torch.nn.functional.silu(gate) * up).bfloat16()
    ours = torch.from_numpy(codes(found["act"]).view(np.int16)).view(torch.bfloat16)
    assert bool(((act.double() - ours.double()).abs() <= 2.0**-7 * act.double().abs()).all())
    # A torch tensor in gives a torch tensor out, of the same bits.
    tensors = {
        key: torch.from_numpy(np.ascontiguousarray(value).view(f"i{value.itemsize}"))
        .view(getattr(torch, value.dtype.name))
        for key, value in given.items()
    }  # fmt: skip
    out = mlp(**tensors, limit=7.0)
    assert out.dtype == torch.bfloat16
    assert out.view(torch.int16).numpy().tolist() == codes(found["out"]).view(np.int16).tolist()
    made, scales = refkern.quantize_fp8(tensors["x"])
    assert (made.dtype, scales.dtype) == (torch.float8_e4m3fn, torch.float8_e8m0fnu)
