"""grouped_matmul: the contract, every order against independent arithmetic, kernel and reference.

"reported n" are faults of other libraries, by their number in the project's list.
"""

from __future__ import annotations

import hashlib
import itertools
import mmap
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.goldens.build import build, remake_inputs
from refkern.goldens.inputs import describe_inputs, make_inputs, make_tensor, parse_description
from refkern.goldens.selection import Selected
from refkern.ops.grouped_matmul import kernel
from refkern.ops.grouped_matmul.recipes import GEMV_UP_TO, STRIP_ORDER, MmaStrips
from refkern.verdict import difference

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
OP = ops.load("grouped_matmul")
RECIPES = tuple(OP.recipes)
QUICK = [case for case in OP.part("cases").CASES if case.tier == "quick"]
U = 2.0**-24
#: a recipe for each kernel: what does not depend on the order is tested with these two
GEMV, MMA = "modular-gemv", "modular-mma"


def random(shape: tuple[int, ...], dtype: Any, seed: int = 0, *, binades: int = 0) -> np.ndarray:
    """Normal values, times a power of two from -binades to binades."""
    rng = np.random.default_rng(seed)
    wide = rng.standard_normal(shape) * 2.0 ** rng.integers(-binades, binades + 1, shape)
    with np.errstate(over="ignore"):
        return wide.astype(np.float32).astype(dtype)


def array(values: Any, dtype: Any = BF16) -> np.ndarray:
    return np.array(values, np.float32).astype(dtype)


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    found = difference(np.asarray(got), np.asarray(want))
    assert found.mismatches == 0, "\n".join(map(str, found.worst))


def check_kernel(*arguments: Any, recipe: str, **params: Any) -> np.ndarray:
    """Kernel and reference on the same call; the output, if their bits are the same."""
    got = refkern.grouped_matmul(*arguments, recipe=recipe, **params)
    want = refkern.reference.grouped_matmul(*arguments, recipe=recipe, **params)
    assert list(want) == list(OP.stages)
    assert_same(got, want["out"])
    return got


# ------------------------------------------------------------------------- reported faults

A52 = array([[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]])
EYE = np.eye(2)
STACK = array([EYE, 2 * EYE, np.ones((2, 2))])


@pytest.mark.parametrize(
    ("offsets", "want"),
    [
        ([0, 2, 2, 5], [[1, 2], [3, 4], [11, 11], [15, 15], [19, 19]]),
        ([0, 0, 2, 5], [[2, 4], [6, 8], [11, 11], [15, 15], [19, 19]]),
        ([0, 2, 5, 5], [[1, 2], [3, 4], [10, 12], [14, 16], [18, 20]]),
    ],
)
@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_empty_groups_shift_nothing(offsets: list[int], want: Any, recipe: str) -> None:
    """reported 31"""
    out = np.full((5, 2), np.nan, BF16)
    refkern.grouped_matmul(A52, STACK, offsets, [0, 1, 2], recipe=recipe, out=out)
    assert_same(out, array(want))
    check_kernel(A52, STACK, offsets, [0, 1, 2], recipe=recipe)


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_rows_behind_the_last_group(recipe: str) -> None:
    """reported 33: zeros in a fresh result, untouched in ``out``"""
    want = array([[1, 2], [3, 4], [10, 12], [14, 16], [0, 0]])
    call = (A52, STACK, [0, 2, 4], [0, 1])
    first = refkern.grouped_matmul(*call, recipe=recipe)
    second = refkern.grouped_matmul(*call, recipe=recipe)
    assert_same(first, want)
    assert first.tobytes() == second.tobytes()
    assert refkern.reference.grouped_matmul(*call)["out"].tobytes() == first.tobytes()
    out = np.full((5, 2), np.nan, BF16)
    refkern.grouped_matmul(*call, recipe=recipe, out=out)
    assert_same(out[:4], want[:4])
    assert np.isnan(out[4].astype(np.float32)).all()
    named = dict(zip(OP.input_names(), call, strict=True))
    assert refkern.check("grouped_matmul", first, **named)
    assert not refkern.check("grouped_matmul", out, **named)


@pytest.mark.parametrize(
    "offsets",
    [
        [0, 3, 2, 5], [0, -1, 2, 5], [1, 2, 3, 6], [0, 2, 6, 5], [0, 2, 5, 6], [0, 2, 5],
        [0, 1, 2, 4, 5], [0.0, 2.0, 2.0, 5.0], [2, 2, 5], [False, True, True, True], [],
        [[0, 2, 2, 5]], [0, 2, 2, 2**63], [0, 2, 2, 2**64], np.array([0, 2, 2, 2**63], np.uint64),
        np.array([3, 2, 5, 5], np.uint8), None, "0225",
    ],
)  # fmt: skip
def test_offsets_are_not_trusted(offsets: Any) -> None:
    """reported 35"""
    out = np.full((5, 2), 7, BF16)
    with pytest.raises(refkern.InvalidInput, match="a_offsets"):
        refkern.grouped_matmul(A52, STACK, offsets, [0, 1, 2], out=out)
    assert (out == 7).all()


INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


@pytest.mark.parametrize("dtype", INTEGERS)
def test_offsets_and_ids_of_any_integer_dtype(dtype: str) -> None:
    offsets, ids = np.array([0, 2, 2, 5], dtype), np.array([2, 0, 1], dtype)
    want = refkern.grouped_matmul(A52, STACK, [0, 2, 2, 5], (2, 0, 1))
    assert_same(refkern.grouped_matmul(A52, STACK, offsets, ids), want)
    strided = np.repeat(offsets, 2)[::2]
    assert_same(refkern.grouped_matmul(A52, STACK, strided, ids[::-1][::-1]), want)


@pytest.mark.parametrize("k", [1, 31, 32, 33, 65])
@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_nan_of_a_neighbouring_row_stays_there(k: int, recipe: str) -> None:
    """reported 37"""
    a, w = np.full((4, k), np.nan, np.float32), np.ones((1, 2, k), np.float32)
    a[0] = 1
    w[0, :, -1] = [0.5, 0.25]
    got = check_kernel(array(a), array(w), [0, 4], [0], recipe=recipe, out_dtype="float32")
    assert got[0].tolist() == [k - 1 + 0.5, k - 1 + 0.25]
    assert (got[1:].view(np.uint32) == 0x7FC00000).all()


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_columns_behind_n_reach_no_other_row(recipe: str) -> None:
    """reported 37, N tail"""
    a = array([[1, 0], [0, 1], [1, 1]])
    w = array([[[1, 2, 3, 4, 5], [10, 20, 30, 40, 50]]]).swapaxes(1, 2)
    got = check_kernel(a, w, [0, 1, 2, 3], [0, 0, 0], recipe=recipe)
    assert got.tolist() == [[1, 2, 3, 4, 5], [10, 20, 30, 40, 50], [11, 22, 33, 44, 55]]


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_skipped_rows_are_selected_away(recipe: str) -> None:
    """reported 39"""
    a = array([[1, 2], [np.nan, np.inf], [5, 6]])
    got = check_kernel(a, STACK[:1], [0, 1, 2, 3], [0, -1, 0], recipe=recipe)
    assert_same(got, array([[1, 2], [0, 0], [5, 6]]))
    combined = np.float32([0.5, 0, 0.5]) @ got.astype(np.float32)
    assert combined.tolist() == [3, 4]
    used = check_kernel(a, STACK[:1], [0, 3], [0], recipe=recipe)
    assert_same(used[[0, 2]], array([[1, 2], [5, 6]]))
    assert np.isnan(used[1].astype(np.float32)).all()


def test_runs_do_not_race() -> None:
    """reported 48: tokens of two experts by turns, 20 runs, one or more threads: one result"""
    ids = np.arange(4096) % 2
    order, offsets, experts = refkern.groups_from_rows(ids)
    a, b = random((4096, 40), BF16), random((2, 24, 40), BF16, 1)
    digests = set()
    try:
        for run in range(20):
            refkern.set_num_threads(1 if run % 2 else refkern.threads.available_threads())
            out = refkern.grouped_matmul(a[order], b, offsets, experts, out_dtype="float32")
            digests.add(hashlib.sha256(out.tobytes()).hexdigest())
    finally:
        refkern.set_num_threads(refkern.threads.available_threads())
    assert len(digests) == 1


# ---------------------------------------------------------------------- the rest of the contract


@pytest.mark.parametrize(
    ("argument", "changed"),
    [
        ("a", {"a": A52.astype(np.float32)}),
        ("a", {"a": A52[0]}),
        ("b", {"b": STACK.astype(np.float16)}),
        ("b", {"b": STACK[0]}),
        ("b", {"b": np.zeros((3, 2, 3), BF16)}),
        ("expert_ids", {"expert_ids": [0, 1, 3]}),
        ("expert_ids", {"expert_ids": [0, -2, 1]}),
        ("expert_ids", {"expert_ids": [0.0, 1.0, 2.0]}),
        ("expert_ids", {"expert_ids": [True, False, True]}),
        ("expert_ids", {"expert_ids": np.array([0, 1, 2**64 - 1], np.uint64)}),
        ("a_offsets", {"expert_ids": [0, 1]}),
        ("max_num_tokens_per_expert", {"max_num_tokens_per_expert": 2}),
        ("max_num_tokens_per_expert", {"max_num_tokens_per_expert": -1}),
        ("max_num_tokens_per_expert", {"max_num_tokens_per_expert": 3.0}),
        ("max_num_tokens_per_expert", {"max_num_tokens_per_expert": True}),
        ("max_num_tokens_per_expert", {"max_num_tokens_per_expert": 17, "recipe": GEMV}),
        ("out_dtype", {"out_dtype": "float64"}),
        ("out_dtype", {"out_dtype": "float8_e4m3fn"}),
        ("out_dtype", {"out_dtype": 7}),
        ("recipe", {"recipe": "modular-gem"}),
        ("out", {"out_dtype": "float32"}),
    ],
)
def test_errors_name_the_argument_and_write_nothing(argument: str, changed: dict[str, Any]) -> None:
    call: dict[str, Any] = {
        "a": A52, "b": STACK, "a_offsets": [0, 2, 2, 5], "expert_ids": [0, 1, 2],
        "out": np.full((5, 2), 7, BF16),
    }  # fmt: skip
    out = call["out"]
    with pytest.raises(refkern.InvalidInput, match=f"^{argument}: "):
        refkern.grouped_matmul(**{**call, **changed})
    assert (out == 7).all()


@pytest.mark.parametrize("given", ["float16", np.float16, F16, "float32", F32, BF16, BF16.type])
def test_out_dtype(given: Any) -> None:
    call = OP.check(A52, STACK, [0, 5], [0], out_dtype=given)
    name = given if isinstance(given, str) else np.dtype(given).name
    assert call.params["out_dtype"] == name
    got = check_kernel(A52, STACK, [0, 5], [0], recipe=GEMV, out_dtype=given)
    assert got.dtype.name == name
    assert_same(got, A52.astype(name))


@pytest.mark.parametrize("recipe", RECIPES)
def test_empty_shapes(recipe: str) -> None:
    out = np.full((3, 4), 7, F32)
    params = {"recipe": recipe, "out_dtype": "float32"}
    none = np.zeros((3, 0), BF16), np.zeros((2, 4, 0), BF16)
    got = refkern.grouped_matmul(*none, [1, 3], [1], out=out, **params)
    assert got.tolist() == [[7] * 4, [0] * 4, [0] * 4]
    assert not np.signbit(check_kernel(*none, [1, 3], [1], **params)).any()
    for rows, experts, columns, k in ((0, 2, 4, 16), (3, 0, 4, 16), (3, 2, 0, 16), (0, 0, 0, 0)):
        a, b = np.ones((rows, k), BF16), np.ones((experts, columns, k), BF16)
        ids = [0] if experts else [-1]
        assert check_kernel(a, b, [0, rows], ids, **params).shape == (rows, columns)
        assert check_kernel(a, b, [0], [], **params).shape == (rows, columns)


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_out_of_any_layout(recipe: str) -> None:
    """Untouched rows stay untouched in a view, and where ``out`` lies on an input."""
    a, b = random((6, 6), F16), random((2, 6, 6), F16, 1)
    call = (a, b, [1, 3, 5], [1, 0])
    want = refkern.grouped_matmul(*call, recipe=recipe)
    for view in (
        np.full((6, 12), 7, F16)[:, ::2],
        np.full((6, 6), 7, F16).T,
        np.full((6, 6), 7, F16)[::-1, ::-1],
    ):
        assert refkern.grouped_matmul(*call, recipe=recipe, out=view) is view
        assert_same(view[1:5], want[1:5])
        assert (view[[0, 5]] == 7).all()
    shared = a.copy()
    refkern.grouped_matmul(shared, *call[1:], recipe=recipe, out=shared)
    assert_same(shared[1:5], want[1:5])
    assert_same(shared[[0, 5]], a[[0, 5]])


def test_repeated_and_unordered_experts() -> None:
    a, b = random((9, 40), BF16), random((4, 24, 40), BF16, 1)
    got = check_kernel(a, b, [0, 2, 3, 3, 7, 9], [3, 0, 1, 3, 2], recipe="modular")
    bounds = itertools.pairwise([0, 2, 3, 3, 7, 9])
    for (start, stop), expert in zip(bounds, [3, 0, 1, 3, 2], strict=True):
        if start < stop:
            alone = refkern.grouped_matmul(
                a[start:stop], b[expert : expert + 1], [0, stop - start], [0],
                max_num_tokens_per_expert=4,
            )  # fmt: skip
            assert_same(got[start:stop], alone)


# ------------------------------------------------------- orders against independent arithmetic


def round_to_float32(exact: Fraction) -> np.float32:
    """The nearest float32, ties to even, by integer arithmetic alone."""
    if exact == 0:
        return np.float32(0)
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    units, rest = divmod(size, quantum)
    units += rest * 2 > quantum or (rest * 2 == quantum and units % 2 == 1)
    value = units * quantum
    infinite = value >= Fraction(2) ** 128
    return np.float32(np.copysign(np.inf if infinite else float(value), float(exact)))


def exact_sum(a: np.ndarray, b: np.ndarray, start: Any = 0) -> np.float32:
    """start plus all products, in rational numbers, rounded once."""
    terms = (Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True))
    return round_to_float32(sum(terms, Fraction(float(start))))


def by_hand_exact(a: np.ndarray, b: np.ndarray) -> np.float32:
    return exact_sum(a, b)


def by_hand_mma(a: np.ndarray, b: np.ndarray) -> np.float32:
    """Two sets of 16 a strip, as the semantics lists them."""
    total = np.float32(0)
    for start in range(0, len(a), 32):
        for shift in (0, 4):
            ks = [
                start + k + shift
                for k in (0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
            ]
            ks = [k for k in ks if k < len(a)]
            total = exact_sum(a[ks], b[ks], total)
    return total


def by_hand_sequential(a: np.ndarray, b: np.ndarray) -> np.float32:
    total = np.float32(0)
    for x, y in zip(a, b, strict=True):
        total = exact_sum([x], [y], total)
    return total


def by_hand_gemv(accumulators: int) -> Any:
    """One lane after the other; a product is rounded (exact but for underflow), then added."""

    def halved(values: list[np.float32], left: int) -> list[np.float32]:
        while len(values) > left:
            half = len(values) // 2
            values = [values[i] + values[i + half] for i in range(half)]
        return values

    def total(a: np.ndarray, b: np.ndarray) -> np.float32:
        steps = len(a) // 256
        lanes = []
        for lane in range(32):
            sums = [np.float32(0)] * accumulators
            for step in range(steps):
                at = 256 * step + 8 * lane
                products = [a[at + i] * b[at + i] for i in range(8)]
                folded = halved(products, accumulators)
                sums = [s + p for s, p in zip(sums, folded, strict=True)]
            for k in range(256 * steps + lane, len(a), 32):
                sums[0] = sums[0] + a[k] * b[k]
            lanes.append(halved(sums, 1)[0])
        return halved(lanes, 1)[0]

    return total


BY_HAND = {
    "sequential": by_hand_sequential,
    "exact": by_hand_exact,
    "modular-mma": by_hand_mma,
    "modular-gemv-4-2-2": by_hand_gemv(2),
}


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("binades", [0, 12, 50])
@pytest.mark.parametrize("recipe", BY_HAND)
def test_every_order_by_hand(recipe: str, binades: int, dtype: np.dtype) -> None:
    """50 binades: sums that float64 does not hold, underflow, and float16 infinities kept out."""
    k = 300 if recipe == "modular-gemv-4-2-2" else 75
    a, b = (random((2, k), dtype, 7 + i, binades=binades) for i in (0, 1))
    for x in (a, b):
        x[~np.isfinite(x.astype(np.float32))] = 1
    got = check_kernel(a, b[None], [0, 2], [0], recipe=recipe, out_dtype="float32")
    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    want = [[BY_HAND[recipe](x, y) for y in wide_b] for x in wide_a]
    assert_same(got, np.array(want, np.float32))


@pytest.mark.parametrize(("tokens", "accumulators"), [(1, 8), (4, 8), (5, 1), (16, 1)])
def test_gemv_configurations_by_hand(tokens: int, accumulators: int) -> None:
    a, b = random((2, 600), BF16), random((1, 2, 600), BF16, 1)
    params = {"max_num_tokens_per_expert": tokens, "out_dtype": "float32"}
    rows = min(tokens, 2)
    got = check_kernel(a[:rows], b, [0, rows], [0], recipe=GEMV, **params)
    by_hand = by_hand_gemv(accumulators)
    wide_a, wide_b = a.astype(np.float32), b[0].astype(np.float32)
    want = [[by_hand(x, y) for y in wide_b] for x in wide_a[:rows]]
    assert_same(got, np.array(want, np.float32))


@pytest.mark.parametrize("middle", [2.0**-24, 3 * 2.0**-24, -(2.0**-25)])
@pytest.mark.parametrize("beside", [0, 2.0**-60, -(2.0**-60), 2.0**-120])
def test_ties_of_an_mma_see_the_smallest_product(middle: float, beside: float) -> None:
    """1 + half a last place + next to nothing: where float64 loses the third term."""
    a = array([[1, middle, beside] + [0] * 20])
    got = check_kernel(
        a, np.ones((1, 1, 23), BF16), [0, 1], [0], recipe="modular-mma", out_dtype="float32"
    )
    assert got[0, 0] == exact_sum(a[0], np.ones(23))


def test_strip_order_takes_every_k_once() -> None:
    assert sorted(STRIP_ORDER) == list(range(32))
    assert STRIP_ORDER[:16] == (0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)


def test_an_mma_replays_terms_alone() -> None:
    terms = random((3, 70), F32)
    for inside in ("exact", "fma", "tree"):
        schedule = MmaStrips(inside)
        assert_same(schedule.replay(terms), schedule.replay(terms, np.ones((1, 70), np.float32)))


# --------------------------------------------------------------------------- torch on an H200

H200 = np.load(Path(__file__).parent.parent / "data" / "h200_torch_matmul.npz")


@pytest.mark.parametrize("name", ["gmm_a", "gmm_b"])
def test_captured_grouped_mm(name: str) -> None:
    a, b, want = (H200[f"{name}_{part}"].view(BF16) for part in ("a", "b", "out"))
    offsets = np.concatenate([[0], H200[f"{name}_offs"]])
    ids = np.arange(len(b), dtype=np.int32)
    assert_same(check_kernel(a, b, offsets, ids, recipe="torch-sm90"), want)


@pytest.mark.parametrize("name", [n[:-2] for n in H200 if n.startswith("mm_") and n.endswith("_a")])
def test_captured_mm(name: str) -> None:
    """One group is a plain matmul; torch's float32 outputs are the sums themselves."""
    dtype = {"bf16": BF16, "f16": F16}[name.split("_")[1]]
    a, b = (H200[f"{name}_{part}"].view(dtype) for part in "ab")
    call = (a, b[None], [0, len(a)], [0])
    for part, out in (("out", dtype), ("out32", F32)):
        got = refkern.grouped_matmul(*call, recipe="torch-sm90", out_dtype=out.name)
        assert_same(got, H200[f"{name}_{part}"].view(out))


def test_torch_sm90_takes_whole_instructions() -> None:
    with pytest.raises(refkern.InvalidInput, match="K % 16"):
        refkern.grouped_matmul(A52, STACK, [0, 5], [0], recipe="torch-sm90")


# ------------------------------------------------------------------------ kernel and reference

SHAPES = [(1, 5), (31, 70), (33, 3), (200, 64), (203, 45), (320, 96)]
GROUPS = [0, 3, 3, 20, 21, 37]


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("recipe", RECIPES)
def test_kernel_is_the_reference(recipe: str, dtype: np.dtype) -> None:
    """Odd N, tails of K, N below a tile; plain values, and 24 binades of them."""
    for (k, n), binades in (*((shape, 0) for shape in SHAPES), ((33, 3), 12), ((203, 45), 12)):
        k = k if recipe != "torch-sm90" else 16 * -(-k // 16)
        a = random((40, k), dtype, 1, binades=binades)
        b = random((3, n, k), dtype, 2, binades=binades)
        offsets, ids = GROUPS, [2, 0, 1, -1, 0]
        if recipe == "modular-gemv":
            offsets = [0, 3, 3, 16, 17, 33]
        check_kernel(a, b, offsets, ids, recipe=recipe, out_dtype="float32")


@pytest.mark.parametrize("recipe", ["modular-mma", "modular-gemv-4-2-2"])
@pytest.mark.parametrize("k", [1856, 2880])
def test_groups_of_every_size(recipe: str, k: int) -> None:
    sizes = (0, 1, 16, 17, 64) if k == 2880 else (300, 1)
    offsets = [0, *itertools.accumulate(sizes)]
    a, b = random((offsets[-1], k), BF16), random((2, 6, k), BF16, 1)
    ids = [z % 2 for z in range(len(sizes))]
    check_kernel(a, b, offsets, ids, recipe=recipe, out_dtype="float32")


@pytest.mark.parametrize("recipe", ["modular-mma", "modular-mma-tree", "sequential", "exact", GEMV])
def test_all_bit_patterns(recipe: str) -> None:
    """NaN, infinities and subnormals wherever they fall, and both zeros."""
    rng = np.random.default_rng(3)
    a = rng.integers(0, 1 << 16, (16, 70)).astype(np.uint16).view(BF16)
    b = rng.integers(0, 1 << 16, (1, 70, 70)).astype(np.uint16).view(BF16)
    got = check_kernel(a, b, [0, 16], [0], recipe=recipe, out_dtype="float32")
    assert np.isinf(got).any()
    assert np.isnan(got).any()
    assert (got.view(np.uint32)[np.isnan(got)] == 0x7FC00000).all()
    tiny = (a.view(np.uint16) & np.uint16(0x9FFF)).view(BF16)  # below 2^-64
    small = (b.view(np.uint16) & np.uint16(0xAFFF)).view(BF16)  # below 2^-32
    got = check_kernel(tiny, small, [0, 16], [0], recipe=recipe, out_dtype="float32")
    assert (np.abs(got) > 2.0**-126).any()
    small = (b.view(np.uint16) & np.uint16(0x807F)).view(BF16)  # subnormals, below 2^-126
    got = check_kernel(tiny, small, [0, 16], [0], recipe=recipe, out_dtype="float32")
    assert (got == 0).all()  # every product is below half of 2^-149; the sign is the order's


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_kernel_on_quick_cases(case: Any) -> None:
    prepared = build(Selected(OP, case))
    call = prepared.call
    got = refkern.grouped_matmul(**call.inputs, **call.params, recipe=case.recipe)
    assert_same(got, prepared.golden.outputs["out"])


def test_threads_do_not_matter() -> None:
    a, b = random((70, 200), BF16), random((3, 150, 200), BF16, 1)
    try:
        for offsets in ([0, 40, 41, 70], [0, 10, 11, 16]):
            outputs = []
            for threads in (1, refkern.threads.available_threads()):
                refkern.set_num_threads(threads)
                outputs.append(
                    refkern.grouped_matmul(a, b, offsets, [0, 2, 1], out_dtype="float32")
                )
            assert_same(*outputs)
    finally:
        refkern.set_num_threads(refkern.threads.available_threads())


def test_tiles_in_morton_order() -> None:
    assert list(kernel.morton(2, 8))[:8] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3),
    ]  # fmt: skip
    tiles = kernel.tiles_of(np.array([[0, 65, 0], [65, 64, 1]]), 130)
    assert tiles[:, 0].tolist() == [0] * 6 + [1] * 3
    assert tiles[:6, 1:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [1, 2]]
    for down, across in ((1, 1), (3, 5), (5, 2)):
        seen = [tile for tile in kernel.morton(down, across) if tile < (down, across)]
        assert len(seen) == len(set(seen))


# ---------------------------------------------------------------------------------- memory


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_weights_of_any_strides(recipe: str) -> None:
    a, b = random((7, 48), BF16), random((3, 20, 48), BF16, 1)
    want = refkern.grouped_matmul(a, b, [0, 3, 7], [2, 0], recipe=recipe)
    wide = np.zeros((6, 20, 100), BF16)
    wide[::2, :, :48] = b
    by_k = np.ascontiguousarray(b.swapaxes(1, 2)).swapaxes(1, 2)
    by_row = np.ascontiguousarray(b.swapaxes(0, 1)).swapaxes(0, 1)
    backward = np.ascontiguousarray(b[::-1, ::-1, ::-1])[::-1, ::-1, ::-1]
    read_only = b.copy()
    read_only.setflags(write=False)
    for same in (wide[::2, :, :48], by_k, by_row, backward, read_only):
        assert_same(refkern.grouped_matmul(a, same, [0, 3, 7], [2, 0], recipe=recipe), want)
    for same_a in (np.asfortranarray(a), a[::-1].copy()[::-1]):
        assert_same(refkern.grouped_matmul(same_a, b, [0, 3, 7], [2, 0], recipe=recipe), want)


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_a_stack_beyond_32_bits_is_not_copied(recipe: str) -> None:
    """Experts that share their memory: 2^32 elements and more in a view of stride 0."""
    one = random((256, 256), BF16)
    for stack in (
        np.broadcast_to(one, (1 << 17, 256, 256)),
        np.broadcast_to(one[:, ::2], (1 << 18, 256, 128)),  # no neighbours: a copy of one expert
    ):
        assert stack.size > 1 << 32
        a, k = random((5, stack.shape[2]), BF16, 1), stack.shape[2]
        call = (a, stack, [0, 2, 5], [stack.shape[0] - 1, 3])
        tracemalloc.start()
        got = refkern.grouped_matmul(*call, recipe=recipe)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 64 << 20
        assert_same(got, refkern.grouped_matmul(a, stack[:1, :, :k], [0, 5], [0], recipe=recipe))


@pytest.mark.parametrize("recipe", [GEMV, MMA])
def test_experts_beyond_32_bits_apart(recipe: str) -> None:
    """Offsets above 2^32 elements into memory that is there, though not all of it is used."""
    apart = (1 << 32) + 64
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # Linux: MAP_NORESERVE
        memory = mmap.mmap(-1, 2 * (apart + 4096), flags=flags)
    except (AttributeError, OSError) as reason:
        pytest.skip(f"no 8 GiB of address space: {reason}")
    flat = np.frombuffer(memory, np.uint16).view(BF16)
    b = np.lib.stride_tricks.as_strided(flat, (2, 8, 40), (2 * apart, 2 * 40, 2))
    values = random((2, 8, 40), BF16, 1)
    b[...] = values
    a = random((3, 40), BF16)
    got = refkern.grouped_matmul(a, b, [0, 1, 3], [1, 0], recipe=recipe)
    assert_same(got, refkern.grouped_matmul(a, values, [0, 1, 3], [1, 0], recipe=recipe))


# ------------------------------------------------------------------------ recipes and rows


def test_dispatch_by_tokens() -> None:
    a, b = random((40, 520), BF16), random((2, 6, 520), BF16, 1)

    def run(count: int, recipe: str, most: int | None = None) -> np.ndarray:
        return refkern.grouped_matmul(
            a, b, [0, count, count + 1], [0, 1], recipe=recipe, out_dtype="float32",
            max_num_tokens_per_expert=most,
        )  # fmt: skip

    for count in (1, 2, 4, 5, 8, 16):
        assert_same(run(count, "modular"), run(count, GEMV))
        assert_same(run(count, "modular", 17), run(count, MMA))
    assert_same(run(17, "modular"), run(17, MMA))
    with pytest.raises(refkern.InvalidInput, match="up to 16 tokens"):
        run(17, GEMV)
    first = {tuple(run(c, "modular")[0].tolist()) for c in (1, 16, 17)}
    assert len(first) == 3
    assert not OP.recipes["modular"].batch_invariant
    assert not OP.recipes["modular-gemv"].batch_invariant
    assert list(GEMV_UP_TO) == [1, 4, 16]


def test_every_recipe_has_bits_of_its_own() -> None:
    """On float data; where `modular` dispatches it has the bits of what it chose."""
    named = {case.name: case for case in QUICK}
    for name, chosen in (("decode_4_tokens", "modular-gemv"), ("prefill_ragged", "modular-mma")):
        call = build(Selected(OP, named[name])).call
        outputs = {}
        for recipe in RECIPES:
            try:
                out = refkern.grouped_matmul(**call.inputs, **call.params, recipe=recipe)
            except refkern.InvalidInput:
                assert (name, recipe) == ("prefill_ragged", "modular-gemv")
                continue
            outputs[recipe] = out.tobytes()
        assert outputs["modular"] == outputs.pop(chosen)
        assert len(set(outputs.values())) == len(outputs)


@pytest.mark.parametrize("recipe", [r for r in RECIPES if OP.recipes[r].batch_invariant])
def test_a_row_alone_has_the_same_bits(recipe: str) -> None:
    a, b = random((70, 304), BF16), random((2, 9, 304), BF16, 1)
    whole = refkern.grouped_matmul(a, b, [0, 67, 70], [1, 0], recipe=recipe, out_dtype="float32")
    for row in (0, 66, 69):
        alone = refkern.grouped_matmul(
            a[row : row + 1], b, [0, 1], [int(row < 67)], recipe=recipe, out_dtype="float32"
        )
        assert_same(alone[0], whole[row])


@pytest.mark.parametrize("offsets", [[1, 4, 4, 6, 7], [1, 21, 21, 23, 24]])
def test_sampled_rows(offsets: list[int]) -> None:
    """Rows in any order, of groups with and without an expert and of none, keep their kernel."""
    a, b = random((25, 304), BF16), random((3, 9, 304), BF16, 1)
    call = OP.check(a, b, np.array(offsets, np.uint32), [2, 1, -1, 0], out_dtype="float32")
    rows = np.array([24, offsets[-1] - 1, 0, 1, 3, 2, 2])
    for name in RECIPES:
        if name == "modular-gemv" and offsets[1] > 17:
            continue
        recipe = OP.recipe(name)
        whole = OP.stages_of(call, recipe.for_call(call))
        few = OP.take_rows(call, rows)
        stages = OP.stages_of(few, recipe.for_call(few))
        for stage in OP.stages:
            assert_same(stages[stage], whole[stage][rows])
        assert_same(OP.run(few, recipe.for_call(few)), whole["out"][rows])


def test_regenerated_inputs_are_the_stored_ones() -> None:
    """What a sampled golden makes again has the bits of what another stores, integers too."""
    case = next(c for c in QUICK if c.name == "experts_beyond_127")
    stored = build(Selected(OP, case)).golden.inputs
    seed, tensors = parse_description(describe_inputs(case))
    assert set(tensors) == set(stored) == set(make_inputs(case))
    for name, tensor in tensors.items():
        again = make_tensor(seed, name, tensor)
        assert again.dtype == stored[name].dtype
        assert again.tobytes() == stored[name].tobytes()
    assert stored["a_offsets"].dtype == np.uint32
    assert stored["expert_ids"].dtype == np.int32
    assert stored["expert_ids"].tolist() == [5, 127, 200, 255]


def test_sampled_golden() -> None:
    from dataclasses import replace

    case = next(c for c in QUICK if c.name == "count_overstated")
    rows = (0, 3, 10)
    sampled = build(Selected(OP, replace(case, sampled_rows=rows)))
    whole = build(Selected(OP, case)).golden
    assert sampled.golden.inputs == sampled.golden.stages == {}
    assert_same(sampled.golden.outputs["out"], whole.outputs["out"][list(rows)])
    for name, again in remake_inputs(sampled.golden).items():
        assert again.tobytes() == whole.inputs[name].tobytes()


# ------------------------------------------------------------------------------- error bounds


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_a_priori_bounds(dtype: np.dtype) -> None:
    """Section 2.3's: (K/256 + 16) u sum |a b| for the GEMV, (K + 2) u sum |a b| for the MMA."""
    k = 600
    a, b = random((4, k), dtype), random((1, 30, k), dtype, 1)
    wide_a, wide_b = a.astype(np.float64), b[0].astype(np.float64)
    want = (wide_a[:, None] * wide_b[None]).sum(-1)
    size = np.abs(wide_a[:, None] * wide_b[None]).sum(-1)
    for recipe, depth in ((GEMV, k / 256 + 16), (MMA, k + 2), ("sequential", k), ("exact", 1)):
        got = refkern.grouped_matmul(a, b, [0, 4], [0], recipe=recipe, out_dtype="float32")
        # one more u of the result for the float64 sum and the rounding of the bound
        assert (np.abs(got - want) <= depth * U * size * (1 + 1e-6)).all()


# ---------------------------------------------------------------------------------- adapters


def test_offsets_from_ends_and_counts() -> None:
    a, b = random((9, 40), BF16), random((4, 24, 40), BF16, 1)
    want = refkern.grouped_matmul(a, b, [0, 2, 2, 5, 9], [0, 1, 2, 3])
    for grouping in (
        refkern.offsets_from_ends(np.array([2, 2, 5, 9], np.int32)),
        refkern.offsets_from_counts(np.array([2, 0, 3, 4], np.int64)),
        refkern.offsets_from_counts([2, 0, 3, 4]),
    ):
        assert_same(refkern.grouped_matmul(a, b, *grouping), want)
    assert [x.tolist() for x in refkern.offsets_from_ends([])] == [[0], []]
    for bad in ([3, 2], [-1, 2], [0.0, 1.0], [[1]], [True]):
        with pytest.raises(refkern.InvalidInput):
            refkern.offsets_from_ends(bad)
    for bad in ([3, -2], [0.5], [2**63 - 1, 2**63 - 1], [[1]]):
        with pytest.raises(refkern.InvalidInput, match="counts"):
            refkern.offsets_from_counts(bad)


def test_groups_from_rows() -> None:
    ids = np.array([2, 0, -1, 2, 0, 3], np.int32)
    order, offsets, experts = refkern.groups_from_rows(ids)
    assert order.tolist() == [2, 1, 4, 0, 3, 5]
    assert offsets.tolist() == [0, 1, 3, 5, 6]
    assert experts.tolist() == [-1, 0, 2, 3]
    a, b = random((6, 40), BF16), random((4, 24, 40), BF16, 1)
    grouped = refkern.grouped_matmul(a[order], b, offsets, experts)
    out = np.empty_like(grouped)
    out[order] = grouped
    for row, expert in enumerate(ids):
        want = np.zeros(24, BF16)
        if expert >= 0:
            alone = (a[row : row + 1], b[expert : expert + 1], [0, 1], [0])
            want = refkern.grouped_matmul(*alone, max_num_tokens_per_expert=2)[0]
        assert_same(out[row], want)
    assert [x.tolist() for x in refkern.groups_from_rows([])] == [[], [0], []]
    with pytest.raises(refkern.InvalidInput, match="row_ids"):
        refkern.groups_from_rows([0, -2])


def test_groups_from_pairs_of_token_and_expert() -> None:
    """llama.cpp's mul_mat_id: every token with its own experts."""
    ids = np.array([[1, 0], [2, 1], [0, 2]])
    order, offsets, experts = refkern.groups_from_rows(ids)
    a, b = array([[1.0], [10.0], [100.0]]), array([[[1.0]], [[2.0]], [[3.0]]])
    grouped = refkern.grouped_matmul(a[order // 2], b, offsets, experts, out_dtype="float32")
    out = np.empty_like(grouped)
    out[order] = grouped
    assert out.reshape(3, 2).tolist() == [[2, 1], [30, 20], [100, 300]]


# ------------------------------------------------------------------------------------- torch


def test_against_torch() -> None:
    """Integers: the same bits.  Floats: within the a-priori bound and the rounding to bfloat16."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(0)
    experts, columns, k = 4, 48, 320
    for sizes in ((1, 1, 1, 1), (20, 0, 3, 33)):
        ends = torch.cumsum(torch.tensor(sizes), 0).to(torch.int32)
        rows = int(ends[-1])
        for integers in (True, False):
            shape_a, shape_b = (rows, k), (experts, columns, k)
            if integers:
                a = torch.randint(-8, 9, shape_a, generator=generator)
                b = torch.randint(-8, 9, shape_b, generator=generator)
            else:
                a = torch.randn(shape_a, generator=generator)
                b = torch.randn(shape_b, generator=generator)
            a, b = a.to(torch.bfloat16), b.to(torch.bfloat16)
            theirs = torch._grouped_mm(a, b.transpose(-2, -1), ends)
            ours = refkern.grouped_matmul(a, b, *refkern.offsets_from_ends(ends))
            assert isinstance(ours, torch.Tensor)
            assert ours.dtype == torch.bfloat16
            if integers:
                assert torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
                continue
            start = 0
            for expert, stop in enumerate(ends.tolist()):
                x, w = a[start:stop].double(), b[expert].double()
                exact, size = x @ w.T, x.abs() @ w.abs().T
                for result in (ours, theirs):
                    error = (result[start:stop].double() - exact).abs()
                    # bfloat16 keeps 8 bits: half a last place is 2^-8 of the float32 sum at most
                    bound = (k + 2) * U * size
                    assert (error <= bound + 2.0**-8 * (exact.abs() + bound)).all()
                start = stop


def test_torch_tensors_in_and_out() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(3, 8, dtype=torch.float16), torch.ones(2, 4, 8, dtype=torch.float16)
    out = torch.full((3, 4), 7.0)
    offsets, ids = torch.tensor([1, 3]), torch.tensor([1], dtype=torch.int32)
    got = refkern.grouped_matmul(a, b, offsets, ids, out_dtype=torch.float32, out=out)
    assert got is out
    assert out.tolist() == [[7] * 4, [8] * 4, [8] * 4]
