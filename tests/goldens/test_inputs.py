"""Inputs: the generator's words, each fill's map, and sampled cases against stored ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.case import Case, Codes, Integers, Put, Scale, Spread, Tensor, Uniform, Values, region
from refkern.formats import codes
from refkern.goldens import hdf5
from refkern.goldens.build import build, prepare
from refkern.goldens.inputs import describe_inputs, make_tensor, parse_description
from refkern.goldens.philox import words
from refkern.goldens.selection import Selected

OP = "gated_group_rmsnorm"
SHAPE = (4, 64)
CASE = Case(
    name="small",
    purpose="a case that is built in both ways",
    inputs={
        "y": Tensor("bfloat16", SHAPE, Uniform(2), (Put(region(1, None), (math.nan, -0.0)),)),
        "gate": Tensor("float32", SHAPE, Spread(-3, 4), (Scale(region(None, 3), 40),), "float16"),
        "weight": Tensor("float32", SHAPE[1:], Integers(33, 127, -6)),
    },
    params={"group_size": 16, "eps": 1e-5},
    recipe="modular-apple",
    seed=7,
)
EXPECTED_WORDS = ["bf0ff909", "1b0d031a", "75c5a265", "d0c0b622", "3261bd97", "7a86506b"]
FILLS = (
    Uniform(), Uniform(3, signed=False, binades=2), Spread(-5, 9), Integers(-3, 3, 2), Codes(),
    Values((1.0, -math.inf, math.nan, -math.nan)),
)  # fmt: skip


def test_words_of_a_tensor_are_what_docs_format_says() -> None:
    """docs/format.md prints these."""
    assert [f"{w:08x}" for w in words(1, "y", 6)] == EXPECTED_WORDS
    assert words(1, "y", 3, start=2).tolist() == words(1, "y", 5)[2:].tolist()
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")
    assert " ".join(EXPECTED_WORDS) in page


def one(fill: object, dtype: str = "float32", count: int = 20000) -> np.ndarray:
    return make_tensor(3, "x", Tensor(dtype, (count,), fill))  # type: ignore[arg-type]


def test_a_scalar_program_makes_the_same_values() -> None:
    """Each fill's map, written as docs/format.md describes it: integers, one element at a time."""
    random = words(3, "x", 400).tolist()
    for index in range(200):
        a, b = random[2 * index], random[2 * index + 1]
        assert one(Integers(-3, 3, 2), count=200)[index] == ((a * 7 >> 32) - 3) * 4
        assert int(codes(one(Codes(), "bfloat16", 200))[index]) == a >> 16
        trailing = (b & -b).bit_length() - 1 if b else 32
        exponent = 2 - 1 - min(trailing, 24 - 1)
        want = (a >> 31) << 15 | (exponent + 127) << 7 | a & 127
        assert int(codes(one(Uniform(2), "bfloat16", 200))[index]) == want
        exponent = (b * 15 >> 32) - 5
        want = (a >> 31) << 31 | (exponent + 127) << 23 | a & 0x7FFFFF
        assert int(codes(one(Spread(-5, 9), count=200))[index]) == want


def test_fills_cover_what_they_promise() -> None:
    assert set(one(Integers(-3, 3, 2)).tolist()) == {-12.0, -8.0, -4.0, 0.0, 4.0, 8.0, 12.0}
    uniform = one(Uniform(3))
    assert np.abs(uniform).max() < 8
    assert 0.45 < (np.abs(uniform) >= 4).mean() < 0.55
    assert (one(Uniform(3, signed=False, binades=2)) >= 2).all()
    spread = np.floor(np.log2(np.abs(one(Spread(-5, 9)).astype(np.float64))))
    assert set(spread.tolist()) == set(range(-5, 10))
    every = one(Codes(), "bfloat16", 1 << 20)
    assert len(np.unique(codes(every))) == 1 << 16
    values = one(Values((1.0, -math.inf, math.nan)), count=5)
    np.testing.assert_array_equal(values, np.float32([1, -np.inf, np.nan, 1, -np.inf]))
    narrow = make_tensor(3, "x", Tensor("float32", (999,), Uniform(2), coarse="bfloat16"))
    assert (codes(narrow) & 0xFFFF == 0).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_uniform_stays_finite_in_every_format(dtype: str) -> None:
    for fill in (Uniform(3), Spread(-30, 30)):
        assert np.isfinite(refkern.widen(one(fill, dtype))).all()


def test_a_description_is_the_tensor() -> None:
    for fill in FILLS:
        tensor = Tensor("float16", (3, 5), fill, (Put(region(0, -1), (2.0,)),), row_stride=9)
        case = replace(CASE, inputs={"x": tensor, "none": None})
        seed, parsed = parse_description(describe_inputs(case))
        assert (seed, parsed["none"]) == (7, None)
        again = parsed["x"]
        assert again is not None
        # NaN is not equal to itself: compare by their text
        assert repr(again) == repr(tensor)


def test_another_name_or_seed_gives_other_values() -> None:
    tensor = Tensor("float32", (64,), Codes())
    made = [make_tensor(s, n, tensor).tobytes() for s in (1, 2) for n in ("y", "gate", "Y")]
    assert len(set(made)) == 6


def test_a_sampled_case_is_the_stored_one(tmp_path: Path) -> None:
    """Built both ways, through files: the same inputs, and the same rows of the output."""
    op = ops.load(OP)
    whole = build(Selected(op, CASE)).golden
    rows = (0, 1, 3)
    sampled = build(Selected(op, replace(CASE, sampled_rows=rows, tier="full"))).golden
    for golden, name in ((whole, "whole"), (sampled, "sampled")):
        hdf5.write(golden, tmp_path / f"{name}.h5")
    whole, sampled = (hdf5.read(tmp_path / f"{n}.h5") for n in ("whole", "sampled"))
    assert whole.input_recipe is None
    assert sampled.input_recipe is not None
    assert (sampled.inputs, sampled.stages) == ({}, {})
    made, inputs = prepare(sampled)
    for name, stored in whole.inputs.items():
        again = inputs[name]
        assert again is not None
        assert again.tobytes() == stored.tobytes()
    assert sampled.outputs["out"].tobytes() == whole.outputs["out"][list(rows)].tobytes()
    assert made.call.y.shape == (3, 64)
    assert whole.outputs["out"].dtype == ml_dtypes.bfloat16
