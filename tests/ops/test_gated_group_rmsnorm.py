"""gated_group_rmsnorm: the real thing's outputs, a second model, and kernel against reference."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import gmpy2
import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern.formats import codes, format_of, from_codes
from refkern.threads import available_threads, get_num_threads
from refkern.verdict import difference

OP = "gated_group_rmsnorm"
BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
DTYPES = (BF16, F16, F32)
RECIPES = refkern.recipe_names(OP)
#: what a recipe other than the default is compiled for in these tests
PAIRS = ((BF16, BF16), (F16, F32), (F32, F32), (F32, None))
norm, reference = refkern.gated_group_rmsnorm, refkern.reference.gated_group_rmsnorm


def random_floats(dtype: np.dtype, shape: tuple[int, ...], seed: int, scale: float = 3.0) -> Any:
    values = np.random.default_rng(seed).normal(0, scale, shape)
    return refkern.cast(values, dtype)


def random_codes(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
    fmt = format_of(dtype)
    drawn = np.random.default_rng(seed).integers(0, 1 << fmt.bits, shape, np.uint64)
    return from_codes(drawn.astype(fmt.code_dtype), fmt)


def weights(width: int) -> np.ndarray:
    """float32 that float16 and bfloat16 hold, so that every recipe takes them."""
    return (33 + np.arange(width) % 89).astype(np.float32) / np.float32(64)


def same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Bit for bit, NaN included: both are the canonical one."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    wrong = codes(np.ascontiguousarray(got)) != codes(np.ascontiguousarray(want))
    assert not wrong.any(), difference(got, want).worst


def compare(y: Any, gate: Any, weight: Any, **params: Any) -> np.ndarray:
    """The kernel's output, which must be the reference's."""
    got = norm(y, gate, weight, **params)
    same_bits(got, reference(y, gate, weight, **params)["out"])
    return got


# What the shipped kernel returned


def captures() -> Iterator[tuple[str, dict[str, Any]]]:
    path = Path(__file__).parents[1] / "data" / "modular_cpu_gated_group_rmsnorm.npz"
    stored = dict(np.load(path))
    for case in sorted({name.split("_")[0] for name in stored}):
        fields = {n.partition("_")[2]: a for n, a in stored.items() if n.split("_")[0] == case}
        for name in ("y", "gate", "out"):
            if fields[name].dtype == np.uint16:
                fields[name] = fields[name].view(BF16)
        yield case, fields


def test_captures_of_modulars_cpu_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    cases = elements = 0
    for case, stored in captures():
        want = stored.pop("out")
        params = {"group_size": int(stored.pop("group_size")), "eps": float(stored.pop("eps"))}
        got = compare(**stored, **params, recipe="modular-cpu")
        found = difference(got, want)
        assert found.mismatches == 0, (case, found.worst)
        cases, elements = cases + 1, elements + found.elements
    with capsys.disabled():
        print(f" [{elements} elements of {cases} captures equal]", end="")
    assert (cases, elements) == (5, 7680 + 900 + 1024 + 384 + 1536)


# A second model, in MPFR: written apart, one number at a time


def context(precision: int, lowest: int, highest: int) -> Any:
    return gmpy2.context(precision=precision, emin=lowest, emax=highest, subnormalize=True)


MPFR = {F32: context(24, -148, 128), F16: context(11, -23, 16), BF16: context(8, -132, 128)}
RN = MPFR[F32]


def model(
    recipe: str, y: list[Any], gate: list[Any], weight: list[Any], eps: Any, dtype: Any
) -> list[float]:
    """One group of one row, as recipes.md writes the recipe."""
    size = len(y)
    exps = [RN.exp(-g) for g in gate]
    if recipe == "hf-zamba2":
        silu = [RN.div(g, RN.add(1, e)) for g, e in zip(gate, exps, strict=True)]
    else:
        silu = [RN.mul(g, RN.div(1, RN.add(1, e))) for g, e in zip(gate, exps, strict=True)]
    x = [RN.mul(a, s) for a, s in zip(y, silu, strict=True)]
    if recipe in ("hf-zamba2", "mamba-ssm"):
        total = gmpy2.mpfr(0)
        exact = sum((Fraction(gmpy2.mpq(RN.mul(v, v))) for v in x), Fraction(0))
        total = RN.div(gmpy2.mpz(exact.numerator), gmpy2.mpz(exact.denominator))
    else:
        lanes = [gmpy2.mpfr(0)] * 32
        vector = {"modular-apple": 1, "modular-vector": 4}[recipe]
        for start in range(0, size, vector):
            lane = start // vector % 32
            if vector == 1:
                lanes[lane] = RN.fma(x[start], x[start], lanes[lane])
            else:
                a, b, c, d = x[start : start + 4]
                low = RN.fma(a, a, RN.mul(c, c))
                high = RN.fma(b, b, RN.mul(d, d))
                lanes[lane] = RN.add(lanes[lane], RN.add(low, high))
        for step in (16, 8, 4, 2, 1):
            lanes = [RN.add(lanes[i], lanes[i ^ step]) for i in range(32)]
        total = lanes[0]
    mean = RN.add(RN.div(total, size), eps)
    rstd = RN.div(1, RN.sqrt(mean)) if recipe == "mamba-ssm" else RN.rec_sqrt(mean)
    scaled = [RN.mul(v, rstd) for v in x]
    if recipe != "mamba-ssm":
        scaled = [MPFR[dtype].plus(v) for v in scaled]
    return [float(MPFR[dtype].plus(RN.mul(w, v))) for w, v in zip(weight, scaled, strict=True)]


@pytest.mark.parametrize("recipe", ["modular-apple", "modular-vector", "hf-zamba2", "mamba-ssm"])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_second_model_gives_the_same_bits(recipe: str, dtype: np.dtype) -> None:
    size, groups, eps = (36 if recipe == "modular-vector" else 37), 3, np.float32(1e-5)
    y = random_floats(dtype, (2, groups * size), 1)
    gate = random_floats(F32, (2, groups * size), 2, 4.0)
    y[1, :size] = refkern.cast(refkern.widen(y[1, :size]) * 2.0**-70, dtype)
    gate[1, size : size + 4] = np.float32([-88.0, -87.4, -100.0, 60.0])
    w = weights(groups * size)
    got = norm(y, gate, w, group_size=size, eps=eps, recipe=recipe)
    numbers = [[[gmpy2.mpfr(float(v)) for v in row] for row in a] for a in (y, gate)]
    for row in range(2):
        for at in range(0, groups * size, size):
            part = slice(at, at + size)
            want = model(
                recipe, numbers[0][row][part], numbers[1][row][part],
                [gmpy2.mpfr(float(v)) for v in w[part]], gmpy2.mpfr(float(eps)), dtype,
            )  # fmt: skip
            same_bits(got[row, part], refkern.cast(np.array(want), dtype))


# The kernel against the reference


def shapes_of(recipe: str) -> list[tuple[int, int, int]]:
    """rows, groups, group size"""
    if recipe == "modular-vector":
        return [(1, 2, 960), (5, 3, 8), (5, 4, 40), (300, 2, 8), (0, 2, 8), (1, 1, 5120)]
    return [
        (1, 2, 960), (5, 3, 7), (5, 2, 31), (1, 4, 33), (5, 3, 100), (300, 2, 1), (0, 2, 7),
        (1, 1, 5120), (5, 1, 960),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "y_dtype", "gate_dtype"),
    [
        *(("modular-apple", y, g) for y in DTYPES for g in (*DTYPES, None)),
        *((r, y, g) for r in RECIPES if r != "modular-apple" for y, g in PAIRS),
    ],
    ids=str,
)
def test_kernel_follows_reference(recipe: str, y_dtype: Any, gate_dtype: Any) -> None:
    for rows, groups, size in shapes_of(recipe):
        shape = (rows, groups * size)
        params = {"group_size": size, "eps": 1e-6, "recipe": recipe}
        for draw in (random_floats, random_codes):
            y = draw(y_dtype, shape, size)
            gate = None if gate_dtype is None else draw(gate_dtype, shape, size + 1)
            compare(y, gate, weights(shape[1]), **params)


@pytest.mark.parametrize("recipe", RECIPES)
def test_bits_that_any_order_gives(recipe: str) -> None:
    """gate 64, y +-1, eps 0: silu(64) = 64, the sum 4096 S is exact, rstd is 2^-6."""
    for size in (8, 960):
        y = np.resize(np.array([1, -1, -1, 1, -1], BF16), (5, 2 * size))
        gate = np.full_like(y, 64)
        w = weights(2 * size)
        got = norm(y, gate, w, group_size=size, eps=0.0, recipe=recipe)
        same_bits(got, refkern.cast(refkern.widen(y) * w, BF16))
        got = norm(refkern.widen(y), gate, w, group_size=size, eps=0, recipe=recipe)
        same_bits(got, refkern.widen(y) * w)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_row_alone_gives_the_same_bits(recipe: str) -> None:
    y, gate = random_codes(BF16, (5, 192), 7), random_floats(BF16, (5, 192), 8)
    params = {"group_size": 96, "recipe": recipe}
    whole = compare(y, gate, weights(192), **params)
    if not refkern.ops.load(OP).recipe(recipe).batch_invariant:
        pytest.skip("this recipe's order depends on the number of rows, and it says so")
    for row in range(5):
        alone = slice(row, row + 1)
        same_bits(compare(y[alone], gate[alone], weights(192), **params), whole[alone])


@pytest.mark.skipif(available_threads() < 2, reason="one core")
def test_the_number_of_threads_changes_nothing() -> None:
    y, gate = random_floats(F32, (300, 960), 3), random_codes(BF16, (300, 960), 4)
    before, found = get_num_threads(), []
    try:
        for threads in (1, 2):
            refkern.set_num_threads(threads)
            found.append(compare(y, gate, weights(960), group_size=96))
    finally:
        refkern.set_num_threads(before)
    same_bits(found[0], found[1])


def unaligned(array: np.ndarray) -> np.ndarray:
    buffer = np.zeros(array.nbytes + 1, np.uint8)
    view = buffer[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def strided(array: np.ndarray) -> np.ndarray:
    wide = np.ones((array.shape[0], array.shape[1] + 29), array.dtype)
    wide[:, 5 : 5 + array.shape[1]] = array
    return wide[:, 5 : 5 + array.shape[1]]


def every_second(array: np.ndarray) -> np.ndarray:
    wide = np.ones((array.shape[0], 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


LAYOUTS = {
    "strided": strided,
    "fortran": np.asfortranarray,
    "rows-backwards": lambda a: a[::-1].copy()[::-1],
    "columns-backwards": lambda a: a[:, ::-1].copy()[:, ::-1],
    "every-second-column": every_second,
    "read-only": read_only,
    "unaligned": unaligned,
    "list-of-rows": lambda a: np.stack(list(a)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_change_nothing(layout: str) -> None:
    y, gate, w = random_floats(BF16, (5, 99), 1), random_floats(F32, (5, 99), 2), weights(99)
    want = norm(y, gate, w, group_size=33)
    change = LAYOUTS[layout]
    for a, b in ((change(y), gate), (y, change(gate)), (change(y), change(gate))):
        given = a.tobytes(), b.tobytes()
        same_bits(compare(a, b, w, group_size=33), want)
        assert (a.tobytes(), b.tobytes()) == given
    same_bits(compare(y, gate, np.stack([w, w], 1)[:, 0], group_size=33), want)


def test_the_other_byte_order_and_broadcast_rows() -> None:
    y, gate, w = random_floats(F32, (3, 64), 1), random_floats(F16, (3, 64), 2), weights(64)
    want = norm(y, gate, w, group_size=32)
    swapped = [a.astype(a.dtype.newbyteorder(">")) for a in (y, gate, w)]
    assert all(not a.dtype.isnative for a in swapped)
    same_bits(norm(*swapped, group_size=32), want)
    row = np.broadcast_to(y[:1], (3, 64))
    same_bits(compare(row, gate, w, group_size=32), norm(row.copy(), gate, w, group_size=32))


def test_out_takes_the_result() -> None:
    y, gate, w = random_floats(F32, (4, 64), 1), random_floats(F32, (4, 64), 2), weights(64)
    want = norm(y, gate, w, group_size=32)
    plain = np.empty_like(y)
    wide = np.full((4, 100), np.float32(7))
    fortran = np.asfortranarray(np.empty_like(y))
    for out in (plain, wide[:, 10:74], fortran, unaligned(y), y[::-1].copy()[::-1]):
        assert norm(y, gate, w, group_size=32, out=out) is out
        same_bits(np.ascontiguousarray(out), want)
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 74:] == 7).all()


def test_out_may_be_an_input() -> None:
    for alias in ("y", "gate", "shifted"):
        y, gate, w = random_floats(F32, (4, 64), 1), random_floats(F32, (4, 64), 2), weights(64)
        want = norm(y, gate, w, group_size=32)
        if alias == "shifted":
            buffer = np.empty(5 * 64, np.float32)
            buffer[:256] = y.ravel()
            y, out = buffer[:256].reshape(4, 64), buffer[64:].reshape(4, 64)
        else:
            out = {"y": y, "gate": gate}[alias]
        norm(y, gate, w, group_size=32, out=out)
        same_bits(out, want)


def test_a_refused_out_is_untouched() -> None:
    y, gate, w = random_floats(F32, (2, 8), 1), random_floats(F32, (2, 8), 2), weights(8)
    locked = np.full((2, 8), np.float32(5))
    locked.flags.writeable = False
    refused = [
        (np.full((2, 8), 5.0, np.float64), "dtype float64"),
        (np.full((2, 8), 5, np.float32).astype(">f4"), "dtype >f4"),
        (np.full((8, 2), 5, np.float32), "(8, 2)"),
        (np.full(16, 5, np.float32), "(16,)"),
        (locked, "read-only"),
        (np.lib.stride_tricks.as_strided(np.full(8, np.float32(5)), (2, 8), (0, 4)), "broadcast"),
        ([[5.0] * 8] * 2, "list"),
    ]
    for out, says in refused:
        with pytest.raises(refkern.InvalidInput, match=r"^out: ") as caught:
            norm(y, gate, w, group_size=4, out=out)
        assert says in str(caught.value)
        assert (np.asarray(out) == 5).all()
    out = np.full((2, 8), np.float32(5))
    with pytest.raises(refkern.InvalidInput, match=r"^group_size: 3 "):
        norm(y, gate, w, group_size=3, out=out)
    assert (out == 5).all()


# Arguments that are refused


ONES = np.ones((2, 8), np.float32)
REFUSED = [
    ({"y": np.ones((2, 8))}, "y", "float64"),
    ({"y": np.ones((2, 8), np.int32)}, "y", "int32"),
    ({"y": np.ones((2, 8), ml_dtypes.float8_e4m3fn)}, "y", "float8_e4m3fn"),
    ({"y": np.ones(8, np.float32)}, "y", "(8,)"),
    ({"y": np.ones((1, 2, 8), np.float32)}, "y", "(1, 2, 8)"),
    ({"y": None}, "y", "object"),
    ({"y": "text"}, "y", "<U4"),
    ({"y": np.ma.masked_array(ONES)}, "y", "masked"),
    ({"y": [[1, 2], [3]]}, "y", "list"),
    ({"gate": np.ones((2, 8))}, "gate", "float64"),
    ({"gate": ONES[:1]}, "gate", "(1, 8)"),
    ({"gate": ONES[0]}, "gate", "(8,)"),
    ({"gate": np.ones((8, 2), np.float32)}, "gate", "(8, 2)"),
    ({"weight": np.ones(7, np.float32)}, "weight", "(7,)"),
    ({"weight": np.ones((1, 8), np.float32)}, "weight", "(1, 8)"),
    ({"weight": np.ones(8)}, "weight", "float64"),
    ({"group_size": 3}, "group_size", "3"),
    ({"group_size": 0}, "group_size", "0"),
    ({"group_size": -4}, "group_size", "-4"),
    ({"group_size": 16}, "group_size", "16"),
    ({"group_size": 4.0}, "group_size", "4.0"),
    ({"group_size": True}, "group_size", "True"),
    ({"group_size": "4"}, "group_size", "'4'"),
    ({"group_size": None}, "group_size", "None"),
    ({"eps": -1e-5}, "eps", "-1e-05"),
    ({"eps": math.nan}, "eps", "nan"),
    ({"eps": "1e-5"}, "eps", "'1e-5'"),
    ({"eps": None}, "eps", "None"),
    ({"eps": True}, "eps", "True"),
    ({"eps": -(10**400)}, "eps", "-inf"),
    ({"recipe": "modular"}, "recipe", "'modular'"),
    ({"recipe": 1}, "recipe", "1"),
    ({"group_size": 2, "recipe": "modular-vector"}, "group_size", "2"),
    (
        {"y": ONES.astype(BF16), "weight": np.full(8, 1.00390625, np.float32),
         "recipe": "hf-zamba2"},
        "weight", "bfloat16",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "argument", "given"), REFUSED)
def test_what_is_refused_is_named(changed: dict[str, Any], argument: str, given: str) -> None:
    good = {"y": ONES, "gate": ONES, "weight": ONES[0], "group_size": 4}
    for function in (norm, reference):
        with pytest.raises(refkern.InvalidInput) as caught:
            function(**{**good, **changed})
        assert caught.value.argument == argument
        text = str(caught.value)
        assert text.startswith(f"{argument}: ")
        assert given in text
        assert "\n" not in text
    assert isinstance(caught.value, ValueError)


def test_eps_is_rounded_to_float32_and_may_be_huge() -> None:
    for eps in (1e300, math.inf, 10**400, Fraction(1, 3), np.float32(1e-5), 0):
        out = compare(ONES, ONES, ONES[0], group_size=4, eps=eps)
        assert np.isfinite(out).all()
        assert (out == 0).all() == (eps > 10**38)


# Arrays of others


class Dlpack:
    """Only the DLPack protocol."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **more: Any) -> Any:
        return self.array.__dlpack__(**more)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class ArrayLike:
    """Only ``__array__``."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.array


def test_protocols() -> None:
    y, gate, w = random_floats(F32, (3, 64), 1), random_floats(F16, (3, 64), 2), weights(64)
    want = norm(y, gate, w, group_size=32)
    for wrap in (Dlpack, ArrayLike, memoryview):
        got = norm(wrap(y), wrap(gate), wrap(w), group_size=32)
        assert type(got) is np.ndarray
        same_bits(got, want)
    same_bits(norm(y, ArrayLike(y.astype(BF16)), w, group_size=32),
              norm(y, y.astype(BF16), w, group_size=32))  # fmt: skip


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32"])
def test_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, name)
    y, gate = torch.randn(4, 128).to(dtype), torch.randn(4, 256).to(dtype)[:, ::2]
    weight = torch.from_numpy(weights(128))
    got = norm(y, gate, weight, group_size=32)
    assert isinstance(got, torch.Tensor)
    assert got.dtype == dtype

    def as_numpy(tensor: Any) -> np.ndarray:
        bits = {4: torch.int32, 2: torch.int16}[tensor.element_size()]
        return tensor.contiguous().view(bits).numpy().view(refkern.formats.FORMATS[name].dtype)

    want = norm(as_numpy(y), as_numpy(gate), weights(128), group_size=32)
    same_bits(as_numpy(got), want)
    out = torch.zeros(4, 128, dtype=dtype)
    pointer = out.data_ptr()
    assert norm(y, gate, weight, group_size=32, out=out) is out
    assert out.data_ptr() == pointer
    same_bits(as_numpy(out), want)
    with_gradient = y.float().requires_grad_()
    assert isinstance(norm(with_gradient, None, weight, group_size=32), torch.Tensor)
    assert refkern.check(OP, got, y=y, gate=gate, weight=weight, group_size=32).rung == "bits"
    for wrong, says in (
        (torch.empty(4, 128, dtype=dtype, device="meta"), "meta"),
        (torch.eye(4, 128, dtype=torch.float32).to_sparse(), "sparse"),
        (torch.zeros(4, 128, dtype=torch.complex64), "complex64"),
    ):
        with pytest.raises(refkern.InvalidInput, match=f"^y: .*{says}"):
            norm(wrong, gate, weight, group_size=32)


def test_torch_memory_is_used_in_place() -> None:
    torch = pytest.importorskip("torch")
    from refkern.arguments import as_array, numpy_to_torch

    for name in ("bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "int64"):
        tensor = torch.zeros(3, 4, dtype=getattr(torch, name))[:, ::2]
        array = as_array("x", tensor)
        assert array.ctypes.data == tensor.data_ptr()
        assert array.strides == tuple(s * tensor.element_size() for s in tensor.stride())
        assert numpy_to_torch(array).data_ptr() == tensor.data_ptr()


def test_torch_is_never_imported() -> None:
    code = (
        "import sys, numpy as np, refkern\n"
        "one = np.ones((1, 4), np.float32)\n"
        f"refkern.{OP}(one, one, one[0], group_size=4)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# What people reported, with their numbers (shared case list: 1, 3, 5, 7, 9, 11)


def bits_of(array: np.ndarray) -> list[str]:
    return [f"{int(code):04x}" for code in codes(array).ravel()]


def close(got: np.ndarray, want: list[Any]) -> None:
    np.testing.assert_allclose(np.asarray(got, np.float64).ravel(), np.ravel(want), rtol=2e-6)


def row(*values: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array([values], dtype)


@pytest.mark.parametrize("recipe", RECIPES)
def test_reported_1_gate_then_norm(recipe: str) -> None:
    x, z, w = row(1, 2, 3, 4), row(0.5, -1, 2, 0), np.float32([1, 1, 2, 1])
    got = norm(x, z, w, group_size=4, recipe=recipe)
    close(got, [0.11697729, -0.20216607, 3.9726261, 0])
    other = np.float32([[0.11364493, -0.19640691, 3.8594569, 0]])  # normalised, then gated
    verdict = refkern.check(OP, other, recipe=recipe, y=x, gate=z, weight=w, group_size=4)
    assert verdict.rung == "fail"
    assert verdict.difference.mismatches == 3
    # a float32 gate, which holds the same values: four elements are then a whole vector
    bf16 = norm(x.astype(BF16), z, w, group_size=4, recipe=recipe)
    assert bits_of(bf16) == ["3df0", "be4f", "407e", "0000"]


def test_reported_1_is_named() -> None:
    x, z, w = random_floats(BF16, (2, 64), 1), random_floats(BF16, (2, 64), 2), weights(64)
    op = refkern.ops.load(OP)
    call = op.check(x, z, w, group_size=32)
    (wrong,) = [m for m in op.part("mutants").MUTANTS if m.name == "norm-before-gate"]
    got = wrong.stages(op, call, op.recipe(None).for_call(call))["out"]
    verdict = refkern.check(OP, got, y=x, gate=z, weight=w, group_size=32)
    assert not verdict
    assert "mutant norm-before-gate" in verdict.hint


@pytest.mark.parametrize("recipe", [r for r in RECIPES if r != "modular-vector"])
def test_reported_3_groups_of_a_shard(recipe: str) -> None:
    x, w = row(3, 4, 6, 8, 5, 12, 8, 15), np.ones(8, np.float32)
    params = {"group_size": 2, "recipe": recipe}
    got = norm(x, None, w, **params)
    want = [0.8485278, 1.1313704, 0.8485281, 1.1313707]
    close(got, [*want, 0.5439283, 1.3054278, 0.6655122, 1.2478355])
    shards = [norm(x[:, part], None, w[part], **params) for part in (slice(0, 4), slice(4, 8))]
    same_bits(np.concatenate(shards, axis=1), got)


def test_reported_5_group_of_three() -> None:
    x, w = row(1, 2, 2, 10, 20, 20), np.ones(6, np.float32)
    got = norm(x, None, w, group_size=3)
    close(got, [0.5773493, 1.1546986, 1.1546986, 0.5773503, 1.1547005, 1.1547005])
    for width, size in ((8, 3), (8, 0), (8, 16)):
        with pytest.raises(refkern.InvalidInput, match=r"^group_size: "):
            norm(np.ones((1, width), np.float32), None, np.ones(width, np.float32), group_size=size)


def test_reported_7_float32_weight() -> None:
    x, w = row(11, 8, dtype=BF16), np.full(2, 1.00390625, np.float32)
    got = norm(x, None, w, group_size=2)
    assert got.dtype == BF16
    assert bits_of(got) == ["3f93", "3f56"]
    rounded = norm(x, None, np.ones(2, np.float32), group_size=2)
    assert bits_of(rounded) == ["3f92", "3f55"]
    verdict = refkern.check(OP, rounded, y=x, gate=None, weight=w, group_size=2)
    assert not verdict
    assert "weight-rounded" in verdict.hint


def test_reported_9_eps() -> None:
    x, w = row(1e-3, -1e-3, 1e-3, -1e-3), np.ones(4, np.float32)
    signs = np.float64([1, -1, 1, -1])
    for eps, want in ((1e-5, 0.30151134), (1e-6, 0.70710678)):
        close(norm(x, None, w, group_size=4, eps=eps), list(want * signs))
    got = norm(x, None, w, group_size=4, eps=1e-2)
    np.testing.assert_allclose(np.abs(got), 0.0099995, rtol=1e-6)
    zeros = norm(row(-0.0, 0, 0, 0), None, w, group_size=4)
    assert [f"{int(c):08x}" for c in codes(zeros)[0]] == ["80000000", *["00000000"] * 3]
    for eps in (-1.0, math.nan):
        with pytest.raises(refkern.InvalidInput, match=r"^eps: "):
            norm(x, None, w, group_size=4, eps=eps)


def test_reported_11_strided_gate() -> None:
    x = np.float32([[3, 4], [6, 8]])
    big = np.float32([[1, 9, -2, 9], [0.5, 9, 2, 9]])
    want = [[1.2969158, -0.5639171], [0.1857684, 1.4019593]]
    w = np.ones(2, np.float32)
    close(norm(x, big[:, ::2], w, group_size=2), want)
    close(norm(np.asfortranarray(x), big[:, ::2], w, group_size=2), want)
    close(norm(x[::-1], big[::-1, ::2], w, group_size=2), want[::-1])


# Documented facts


def last_group(gate: float, recipe: str, y: float = 2.0) -> np.ndarray:
    """Eight ones, then a group whose first element has this gate."""
    gates = np.ones((1, 16), np.float32)
    gates[0, 8] = gate
    ys = np.full((1, 16), y, np.float32)
    out = compare(ys, gates, np.ones(16, np.float32), group_size=8, recipe=recipe)
    first = ys[:, :8], gates[:, :8], np.ones(8, np.float32)
    same_bits(out[:, :8], norm(*first, group_size=8, recipe=recipe))
    return out[0, 8:]


@pytest.mark.parametrize("recipe", RECIPES)
def test_specials(recipe: str) -> None:
    assert np.isnan(last_group(-math.inf, recipe)).all()
    assert np.isnan(last_group(math.nan, recipe)).all()
    infinite = last_group(math.inf, recipe)
    assert np.isnan(infinite[0])
    assert (infinite[1:] == 0).all()
    deep = last_group(-1000.0, recipe)
    assert deep[0] == 0
    assert np.signbit(deep[0])
    ones = np.ones(8, np.float32)
    huge = np.full((1, 8), 1e18, np.float32)
    huge[0, 3] = -3e19
    out = compare(huge, ones[None] * 20, ones, group_size=8, recipe=recipe)
    assert (out == 0).all()
    assert list(np.signbit(out[0])) == [False, False, False, True, *[False] * 4]
    zeros = np.zeros((1, 8), np.float32)
    assert (compare(zeros, ones[None], ones, group_size=8, recipe=recipe) == 0).all()
    assert np.isnan(compare(zeros, ones[None], ones, group_size=8, eps=0, recipe=recipe)).all()
    nan = compare(zeros, ones[None], ones, group_size=8, eps=0, recipe=recipe)
    assert (codes(nan) == format_of(F32).nan).all()
    big_gate = np.full((1, 8), 30, np.float32)
    stages = reference(ones[None], big_gate, ones, group_size=8, recipe=recipe)
    assert (stages["gated"] == 30).all()


def test_stages_have_their_shapes_and_names() -> None:
    y, gate = random_floats(BF16, (3, 64), 1), random_floats(F32, (3, 64), 2)
    stages = reference(y, gate, weights(64), group_size=16)
    assert {n: (str(a.dtype), a.shape) for n, a in stages.items()} == {
        "gated": ("float32", (3, 64)),
        "sum_of_squares": ("float32", (3, 4)),
        "rstd": ("float32", (3, 4)),
        "normalized": ("bfloat16", (3, 64)),
        "out": ("bfloat16", (3, 64)),
    }
    assert list(stages) == list(refkern.ops.load(OP).stages)
    wide = reference(y, gate, weights(64), group_size=16, recipe="mamba-ssm")
    assert wide["normalized"].dtype == F32
