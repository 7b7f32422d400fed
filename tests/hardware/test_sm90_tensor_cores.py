"""Hopper's tensor cores: against an H200's outputs, and against exact rational arithmetic."""

from __future__ import annotations

from dataclasses import replace

import exact_tensor_core as exact
import numpy as np
import pytest
from captures import DATA, DTYPES, load, mismatches
from hard_tiles import CATEGORIES, random_operand, random_tiles

import refkern
from refkern import formats
from refkern.compiled.sums import products
from refkern.hardware import sm90
from refkern.hardware.sm90 import reference, tensor_cores
from refkern.hardware.sm90.special_functions import NAN
from refkern.hardware.sm90.tensor_cores import INSTRUCTIONS, instruction_named

CAPTURED = load("h200_mma")
MATMULS = load("h200_torch_matmul")
#: the captures' kinds in PTX words
KINDS = {
    "mma_e4m3_k32": "mma.m16n8k32.e4m3",
    "mma_e5m2_k32": "mma.m16n8k32.e5m2",
    "mma_bf16_k16": "mma.m16n8k16.bf16",
    "mma_bf16_k8": "mma.m16n8k8.bf16",
    "mma_f16_k16": "mma.m16n8k16.f16",
    "mma_f16_k8": "mma.m16n8k8.f16",
    "mma_f16acc_k16": "mma.m16n8k16.f16.f16acc",
    "mma_tf32_k8": "mma.m16n8k8.tf32",
    "mma_tf32_k4": "mma.m16n8k4.tf32",
    "wg_bf16_k16": "wgmma.k16.bf16",
    "wg_f16_k16": "wgmma.k16.f16",
    "wg_tf32_k8": "wgmma.k8.tf32",
    "wg_e4m3_k32": "wgmma.k32.e4m3",
    "wg_e5m2_k32": "wgmma.k32.e5m2",
}
BOTH = pytest.mark.parametrize("library", [sm90, reference], ids=["compiled", "numpy"])


def captured(kind):
    dtype = DTYPES[kind.split("_")[1]]
    a, b, c, d = (CAPTURED[f"{kind}_{letter}"] for letter in "ABCD")
    accumulator = np.float16 if c.dtype == np.uint16 else np.float32
    return a.view(dtype), b.view(dtype), c.view(accumulator), d.view(accumulator)


def test_all_fourteen_instructions_were_captured():
    assert set(KINDS.values()) == set(INSTRUCTIONS)
    assert {name[:-2] for name in CAPTURED} == set(KINDS)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_captured_outputs(kind, library):
    a, b, c, d = captured(kind)
    assert mismatches(library.mma(KINDS[kind], a, b, c), d) == 0


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("mma_bf16_k16", {"fraction_bits": 24}),
        ("mma_bf16_k16", {"fraction_bits": 26}),
        ("mma_f16_k16", {"kept_bits": 22}),
        ("mma_tf32_k8", {"products": 4}),
        ("mma_e4m3_k32", {"order": tuple(range(32))}),
        ("mma_e4m3_k32", {"adds_outside": False}),
        ("mma_e4m3_k32", {"computes_in": None, "products": 32, "order": ()}),
        ("wg_e4m3_k32", {"fraction_bits": 14}),
        ("wg_e4m3_k32", {"kept_bits": 14}),
        ("wg_e5m2_k32", {"computes_in": formats.FLOAT16}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value)),
)
def test_captures_see_every_choice(kind, wrong):
    """Another width, order or accumulator than the model's does not pass (e5m2 as f16 does)."""
    a, b, c, d = captured(kind)
    got = reference.mma(replace(instruction_named(KINDS[kind]), **wrong), a, b, c)
    same_values = wrong == {"computes_in": formats.FLOAT16}
    assert (mismatches(got, d) == 0) == same_values


@pytest.mark.parametrize("floor", [-132, -134])
def test_captures_see_the_lowest_alignment(floor, monkeypatch):
    monkeypatch.setattr(tensor_cores, "LOWEST_ALIGNMENT", floor)
    a, b, c, d = captured("mma_bf16_k16")
    assert mismatches(reference.mma("mma.m16n8k16.bf16", a, b, c), d) > 0


@pytest.mark.parametrize("mma", [sm90.mma, reference.mma])
def test_a_float16_accumulator_aligns_to_no_less_than_2_to_the_minus_21(mma):
    """Ties of half a quantum that a term down to 2^-46 breaks and a smaller one does not."""
    with np.load(DATA / "h200_f16_accumulator.npz") as file:
        a, b, c, d = (file[name].view(np.float16) for name in "abcd")
    got = mma("mma.m16n8k16.f16.f16acc", a[:, None], b[:, None], c[:, None, None])
    assert mismatches(got[:, 0, 0], d) == 0


@pytest.mark.parametrize("floor", [-20, -22])
def test_the_device_sees_the_lowest_alignment_of_float16(floor, monkeypatch):
    monkeypatch.setattr(tensor_cores, "LOWEST_ALIGNMENT_OF_FLOAT16", floor)
    with np.load(DATA / "h200_f16_accumulator.npz") as file:
        a, b, c, d = (file[name].view(np.float16) for name in "abcd")
    got = reference.mma("mma.m16n8k16.f16.f16acc", a[:, None], b[:, None], c[:, None, None])
    assert mismatches(got[:, 0, 0], d) > 0


# ------------------------------------------------------------------------ exact rational arithmetic


def exactly(name, a, b, c):
    """The slow model over tiles."""
    if a.dtype == np.float32:
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a, b))
    a, b = refkern.widen(a).tolist(), refkern.widen(b).tolist()
    out = np.array([
        [[exact.chain(name, row, column, float(c[t, i, j])) for j, column in enumerate(b[t])]
         for i, row in enumerate(a[t])]
        for t in range(len(a))
    ])  # fmt: skip
    nan = np.uint16(0x7FFF) if c.dtype == np.float16 else np.uint32(0x7FFFFFFF)
    result = out.astype(c.dtype)  # exact: the model's results are in the accumulator's format
    return np.where(np.isnan(out), nan.view(c.dtype), result)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_one_instruction_against_rational_arithmetic(name):
    random = np.random.default_rng(sum(name.encode()))
    instruction = INSTRUCTIONS[name]
    for category in CATEGORIES:
        a, b, c = random_tiles(random, instruction, instruction.k, category)
        want = exactly(name, a, b, c)
        for library in (reference, sm90):
            assert mismatches(library.mma(name, a, b, c), want) == 0, (category, library.__name__)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_chain_against_rational_arithmetic(name):
    random = np.random.default_rng(1 + sum(name.encode()))
    instruction = INSTRUCTIONS[name]
    for steps, category in ((3, "near"), (7, "cancel"), (2, "codes")):
        k = steps * instruction.k
        a, b, c = random_tiles(random, instruction, k, category, tiles=1, m=3, n=4)
        want = exactly(name, a, b, np.zeros_like(c))
        for library in (reference, sm90):
            assert mismatches(library.gemm_chain(name, a, b), want) == 0, (category, steps)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_numpy_and_compiled_agree_on_many_tiles(name):
    """More outputs than the slow model can do, with more columns than lanes and a partial block."""
    random = np.random.default_rng(2 + sum(name.encode()))
    instruction = INSTRUCTIONS[name]
    for category in CATEGORIES:
        a, b, c = random_tiles(random, instruction, instruction.k, category, tiles=20, m=7, n=19)
        assert mismatches(sm90.mma(name, a, b, c), reference.mma(name, a, b, c)) == 0, category


# ------------------------------------------------------------------------------ chains and kernels


@pytest.mark.parametrize("name", [n[:-2] for n in MATMULS if n.startswith("mm_") and n[-1] == "a"])
@BOTH
def test_torch_mm(name, library):
    kind = name.split("_")[1]
    a, b = (MATMULS[f"{name}_{letter}"].view(DTYPES[kind]) for letter in "ab")
    got = library.gemm_chain(f"wgmma.k16.{kind}", a, b)
    assert mismatches(got, MATMULS[f"{name}_out32"].view(np.float32)) == 0
    assert mismatches(refkern.cast(got, a.dtype), MATMULS[f"{name}_out"].view(a.dtype)) == 0


@pytest.mark.parametrize("name", ["gmm_a", "gmm_b"])
def test_torch_grouped_mm(name):
    a, b = (MATMULS[f"{name}_{letter}"].view(DTYPES["bf16"]) for letter in "ab")
    want = MATMULS[f"{name}_out"].view(DTYPES["bf16"])
    start = 0
    for expert, stop in enumerate(MATMULS[f"{name}_offs"].tolist()):
        got = sm90.gemm_chain("wgmma.k16.bf16", a[start:stop], b[expert])
        assert mismatches(refkern.cast(got, "bfloat16"), want[start:stop]) == 0
        start = stop
    assert start == len(a)


@pytest.mark.parametrize("shape", ["16x16x32", "16x16x128", "64x32x512"])
def test_torch_scaled_mm(shape):
    a, b = (MATMULS[f"smm_{shape}_{letter}"].view(DTYPES["e4m3"]) for letter in "ab")
    fast = sm90.gemm_chain("wgmma.k32.e4m3", a, b)
    assert mismatches(fast, MATMULS[f"smm_{shape}_f32_fast1"].view(np.float32)) == 0
    total = np.zeros_like(fast)
    for part in sm90.gemm_chain("wgmma.k32.e4m3", a, b, group=min(128, a.shape[1])):
        total = total + part
    assert mismatches(total, MATMULS[f"smm_{shape}_f32_fast0"].view(np.float32)) == 0


def test_order_and_group():
    """Chains of groups are chains of slices, in the order that is asked for."""
    random = np.random.default_rng(3)
    a, b = (random_operand(random, DTYPES["e4m3"], (1, n, 256), 9)[0] for n in (2, 21))
    order = random.permutation(64)
    for library in (sm90, reference):
        got = library.gemm_chain("mma.m16n8k32.e4m3", a, b, order=order, group=64)
        assert got.shape == (4, 2, 21)
        for g in range(4):
            part = slice(64 * g, 64 * g + 64)
            alone = reference.gemm_chain(
                "mma.m16n8k32.e4m3", a[:, part][:, order], b[:, part][:, order]
            )
            assert mismatches(got[g], alone) == 0
        plain = library.gemm_chain("mma.m16n8k32.e4m3", a, b, group=64)
        assert mismatches(plain, got) > 0


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_schedule_is_the_chain(name):
    """`TensorCoreChain`, replayed and compiled, on widened operands; also a row that ends early."""
    instruction = INSTRUCTIONS[name]
    random = np.random.default_rng(4)
    a, b, _ = random_tiles(random, instruction, 2 * instruction.k, "wide", tiles=1, m=6, n=1)
    codes_a, codes_b, _ = random_tiles(
        random, instruction, 2 * instruction.k, "codes", tiles=1, m=6, n=1
    )
    schedule = sm90.TensorCoreChain(name)
    compiled = products(schedule)
    for x, y in ((a, b), (codes_a, codes_b)):
        want = refkern.widen(reference.gemm_chain(name, x, y))[0, :, 0]
        want = np.where(np.isnan(want), NAN, want)  # a schedule returns float32
        wide_x, wide_y = refkern.widen(x)[0], np.ascontiguousarray(refkern.widen(y)[0, 0])
        assert mismatches(schedule.replay(wide_x, wide_y), want) == 0
        for row, value in zip(wide_x, want, strict=True):
            got = compiled.run(np.ascontiguousarray(row), wide_y, row.size, np.zeros(0, np.float32))
            assert mismatches(np.float32(got), value) == 0
        short = instruction.k + 1
        filled = x.copy()
        filled[..., short:] = 0
        want = refkern.widen(reference.gemm_chain(name, filled, y))[0, :, 0]
        if np.isfinite(wide_y).all():  # 0 * inf would not be nothing
            assert mismatches(schedule.replay(wide_x[:, :short], wide_y[:short]), want) == 0
    assert compiled.padded(instruction.k + 1) == 2 * instruction.k


def test_leading_axes_broadcast():
    a, b, c, _ = captured("mma_bf16_k16")
    name = "mma.m16n8k16.bf16"
    got = sm90.mma(name, a[:2, None], b[None, :3], c[0])
    assert got.shape == (2, 3, 16, 8)
    assert mismatches(got[1, 2], sm90.mma(name, a[1], b[2], c[0])) == 0
    assert mismatches(got, reference.mma(name, a[:2, None], b[None, :3], c[0])) == 0


def test_strides_do_not_matter():
    a, b, c, d = captured("wg_f16_k16")
    backward = np.asfortranarray(a)[:, ::-1]
    got = sm90.mma("wgmma.k16.f16", backward, b, c[:, ::-1])
    assert mismatches(got, d[:, ::-1]) == 0


def test_threads_do_not_matter():
    random = np.random.default_rng(8)
    a, b = (random.normal(size=(n, 512)).astype(DTYPES["e4m3"]) for n in (3, 300))
    want = sm90.gemm_chain("wgmma.k32.e4m3", a, b)
    try:
        refkern.set_num_threads(1)
        assert mismatches(sm90.gemm_chain("wgmma.k32.e4m3", a, b), want) == 0
    finally:
        refkern.set_num_threads(refkern.threads.available_threads())


@BOTH
def test_empty_shapes(library):
    bf16 = DTYPES["bf16"]
    name = "wgmma.k16.bf16"
    nothing, two = np.zeros((0, 16), bf16), np.zeros((2, 16), bf16)
    assert library.gemm_chain(name, nothing, two).shape == (0, 2)
    assert library.mma(name, two, nothing, np.zeros((2, 0), np.float32)).shape == (2, 0)
    no_k = library.gemm_chain(name, np.zeros((3, 0), bf16), np.zeros((2, 0), bf16))
    assert no_k.tobytes() == np.zeros((3, 2), np.float32).tobytes()


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"instruction": "wgmma.k16"}, "instruction"),
        ({"a": np.zeros((16, 16), np.float32)}, "a"),
        ({"a": np.zeros((16, 15), DTYPES["bf16"])}, "a"),
        ({"b": np.zeros((8, 32), DTYPES["bf16"])}, "b"),
        ({"b": np.zeros(16, DTYPES["bf16"])}, "b"),
        ({"c": np.zeros((8, 16), np.float32)}, "c"),
        ({"c": np.zeros((16, 8), np.float16)}, "c"),
        ({"a": np.zeros((2, 16, 16), DTYPES["bf16"]), "b": np.zeros((3, 8, 16), DTYPES["bf16"])},
         "a, b, c"),
    ],
)  # fmt: skip
@BOTH
def test_what_does_not_fit_is_refused(change, argument, library):
    right = {
        "instruction": "wgmma.k16.bf16",
        "a": np.zeros((16, 16), DTYPES["bf16"]),
        "b": np.zeros((8, 16), DTYPES["bf16"]),
        "c": np.zeros((16, 8), np.float32),
    }
    with pytest.raises(refkern.InvalidInput) as error:
        library.mma(**{**right, **change})
    assert error.value.argument == argument


@pytest.mark.parametrize(
    ("k", "more", "argument"),
    [(24, {}, "a"), (64, {"group": 24}, "group"), (64, {"order": [0] * 64}, "order"),
     (64, {"group": 32, "order": range(64)}, "order"), (64, {"group": 0}, "group")],
)  # fmt: skip
def test_a_chain_that_does_not_fit_is_refused(k, more, argument):
    a = np.zeros((2, k), DTYPES["bf16"])
    with pytest.raises(refkern.InvalidInput, match=f"^{argument}: "):
        sm90.gemm_chain("wgmma.k16.bf16", a, a, **more)
