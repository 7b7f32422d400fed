"""What a golden's identity covers, and what it does not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from refkern.errors import InvalidInput
from refkern.goldens.golden import (
    DTYPES,
    Accept,
    Golden,
    accept_sha256,
    canonical_json,
    check,
    content_sha256,
    data_bytes,
    decode,
    encode,
    parse_json,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def example(**changes: Any) -> Golden:
    out = np.array([[1, -2], [0.5, np.inf]], BFLOAT16)
    golden = Golden(
        op="some_op",
        case="plain",
        tier="quick",
        recipe="ieee",
        params={"eps": 1e-05, "limit": None, "group_size": 2},
        inputs={"y": out, "gate": np.array([1.5, -0.0], np.float32)},
        stages={"silu": np.array([3.25], np.float64), "absmax": np.array(7, np.int64)},
        outputs={"out": out},
        accept={"cuda": {"out": Accept(out, out, np.array([[0, 0], [0, 1]], np.uint8))}},
        mutants={"cuda": ["eps-dropped"], "bits": []},
        provenance={"refkern": "0.1.0"},
        axes={"y": "rows, width"},
    )
    return replace(golden, **changes)


def changed(array: np.ndarray, index: Any, value: float) -> np.ndarray:
    copy = array.copy()
    copy[index] = value
    return copy


def test_canonical_json() -> None:
    value = {"b": [1, 1.0, 1e-05, -0.0, 1e22], "a": {"z": None, "y": True}, "é": "ü\n"}
    text = '{"a":{"y":true,"z":null},"b":[1,1.0,1e-05,-0.0,1e+22],"\\u00e9":"\\u00fc\\n"}'
    assert canonical_json(value) == text
    assert parse_json(text) == value
    assert canonical_json(parse_json(text)) == text


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), np.int64(1), {1, 2}, b"x", {(1,): 2}]
)
def test_what_json_cannot_hold(value: object) -> None:
    with pytest.raises(InvalidInput, match="JSON"):
        canonical_json({"a": value})


def test_json_that_is_too_deep() -> None:
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InvalidInput):
        canonical_json(nested)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":NaN}', "[-Infinity]", '{"a":1,"a":1}', "[" * 100_000, "1" * 5000]
)
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text)


def test_content_hash_as_documented() -> None:
    """Recomputed from the words of the module's docstring, with literal bytes."""

    def digest(path: str, dtype: str, shape: list[int], data: str) -> str:
        head = json.dumps([path, dtype, shape], separators=(",", ":"))
        return hashlib.sha256(head.encode() + b"\n" + bytes.fromhex(data)).hexdigest()

    bf16 = "803f 00c0 003f 807f"
    tensors = {
        "inputs/gate": digest("inputs/gate", "float32", [2], "0000c03f 00000080"),
        "inputs/y": digest("inputs/y", "bfloat16", [2, 2], bf16),
        "outputs/out": digest("outputs/out", "bfloat16", [2, 2], bf16),
        "stages/00_silu": digest("stages/00_silu", "float64", [1], "0000000000000a40"),
        "stages/01_absmax": digest("stages/01_absmax", "int64", [], "0700000000000000"),
    }
    params = '{"eps":1e-05,"group_size":2,"limit":null}'
    listed = ",".join(f'"{path}":"{sha}"' for path, sha in sorted(tensors.items()))
    text = f'{{"op":"some_op","params":{params},"recipe":"ieee","tensors":{{{listed}}}}}'
    assert content_sha256(example()) == hashlib.sha256(text.encode()).hexdigest()

    bounds = {
        "accept/cuda/out_free": digest("accept/cuda/out_free", "uint8", [2, 2], "00000001"),
        "accept/cuda/out_hi": digest("accept/cuda/out_hi", "bfloat16", [2, 2], bf16),
        "accept/cuda/out_lo": digest("accept/cuda/out_lo", "bfloat16", [2, 2], bf16),
    }
    listed = ",".join(f'"{path}":"{sha}"' for path, sha in sorted(bounds.items()))
    text = f'{{"mutants":{{"bits":[],"cuda":["eps-dropped"]}},"tensors":{{{listed}}}}}'
    assert accept_sha256(example()) == hashlib.sha256(text.encode()).hexdigest()


def test_the_identity_never_changes() -> None:
    """Committed goldens and manifests hold it."""
    assert (
        content_sha256(example())
        == "99cac4755c0e6b6b12487a6c7495cc4be4e8313e5b3811f5ddd1c8f233c45677"
    )
    assert (
        accept_sha256(example())
        == "91fdd2e56f80fb7426682f3e6d66ca936e2fea0a1db84a49e2c6a4083aad8610"
    )


def _content_changes() -> dict[str, dict[str, Any]]:
    y, gate = example().inputs["y"], example().inputs["gate"]
    silu, absmax = example().stages.values()
    rows = np.array([0, 5], np.int64)
    return {
        "op": {"op": "other_op"},
        "recipe": {"recipe": "cuda"},
        "parameter": {"params": {"eps": 1e-05, "limit": 0, "group_size": 2}},
        "parameter type": {"params": {"eps": 1e-05, "limit": None, "group_size": 2.0}},
        "one bit": {"inputs": {"y": changed(y, (0, 0), 1.0078125), "gate": gate}},
        "sign of zero": {"inputs": {"y": y, "gate": np.array([1.5, 0.0], np.float32)}},
        "shape": {"inputs": {"y": y.reshape(4, 1), "gate": gate}},
        "dtype": {"inputs": {"y": y.view(np.float16), "gate": gate}},
        "input's name": {"inputs": {"x": y, "gate": gate}},
        "input less": {"inputs": {"y": y}},
        "stage": {"stages": {"silu": silu * 2, "absmax": absmax}},
        "order of stages": {"stages": {"absmax": absmax, "silu": silu}},
        "output": {"outputs": {"out": changed(y, (1, 1), np.nan)}},
        "output to stage": {"stages": {"silu": silu, "absmax": absmax, "out": y}},
        "row stride": {"row_strides": {"y": 3}},
        "input recipe": {"input_recipe": "{}"},
        "sampled rows": {"sampled_rows": rows},
        "other rows": {"sampled_rows": rows + 1},
    }


def test_every_part_of_the_content_counts() -> None:
    hashes = {
        name: content_sha256(example(**change)) for name, change in _content_changes().items()
    }
    hashes["nothing"] = content_sha256(example())
    assert len(set(hashes.values())) == len(hashes), hashes
    for name in _content_changes():
        assert accept_sha256(example()) == accept_sha256(example(**_content_changes()[name])), name


def test_what_is_not_content() -> None:
    out = example().outputs["out"]
    for change in (
        {"case": "renamed"},
        {"tier": "full"},
        {"provenance": {"refkern": "9"}},
        {"axes": {}},
        {"mutants": {}},
        {"accept": {}},
        {"accept": {"cuda": {"out": Accept(out, out)}}},
    ):
        assert content_sha256(example(**change)) == content_sha256(example()), change


def test_what_is_accepted_has_its_own_hash() -> None:
    out = example().outputs["out"]
    free = np.array([[0, 0], [0, 1]], np.uint8)
    hashes = [
        accept_sha256(example(**change))
        for change in (
            {},
            {"mutants": {"cuda": ["eps-dropped"], "metal": []}},
            {"accept": {"metal": {"out": Accept(out, out, free)}}},
            {"accept": {"cuda": {"out": Accept(changed(out, (0, 0), 0.5), out, free)}}},
            {"accept": {"cuda": {"out": Accept(out, changed(out, (0, 0), 1.5), free)}}},
            {"accept": {"cuda": {"out": Accept(out, out, free[::-1].copy())}}},
            {"accept": {"cuda": {"out": Accept(out, out)}}},
        )
    ]
    assert len(set(hashes)) == len(hashes)
    unmasked = example(accept={"cuda": {"out": Accept(out, out, np.zeros((2, 2), np.uint8))}})
    assert accept_sha256(unmasked) == hashes[-1]


def test_layout_in_memory_does_not_count() -> None:
    y, gate = example().inputs["y"], example().inputs["gate"]
    wide = np.zeros((2, 5), BFLOAT16)
    wide[:, :4:2] = y
    same = [
        {"y": wide[:, :4:2], "gate": gate},
        {"y": np.asfortranarray(y), "gate": gate},
        {"gate": gate.astype(">f4"), "y": y},
        {"gate": np.repeat(gate, 2)[::2], "y": y},
    ]
    for inputs in same:
        assert content_sha256(example(inputs=inputs)) == content_sha256(example())


@pytest.mark.parametrize("name", DTYPES)
def test_encoding_keeps_every_bit(name: str) -> None:
    dtype = DTYPES[name]
    raw = np.random.default_rng(1).integers(0, 256, 24 * dtype.itemsize, np.uint8)
    array = raw.view(dtype).reshape(2, 3, 4)
    carried = encode(array)
    assert carried.dtype.kind in "fiu"
    assert carried.dtype.kind == "u" or name in ("float32", "float64") or name.startswith("int")
    assert carried.tobytes() == raw.tobytes()
    assert bytes(data_bytes(array)) == raw.tobytes()
    back = decode(carried, name)
    assert back.dtype == dtype
    assert back.tobytes() == raw.tobytes()
    swapped = carried.astype(carried.dtype.newbyteorder(">"))
    assert decode(swapped, name).tobytes() == raw.tobytes()
    assert encode(array[0, 0, 0]).shape == ()
    assert encode(array[:0]).shape == (0, 3, 4)


def test_float16_is_carried_as_bits() -> None:
    assert encode(np.array([1.0], np.float16)).tolist() == [0x3C00]
    assert encode(np.array([1.0], ">f2")).tolist() == [0x3C00]


@pytest.mark.parametrize(
    "change",
    [
        {"op": "../up"},
        {"op": ""},
        {"case": "a/b"},
        {"case": ".hidden"},
        {"case": "a\\b"},
        {"case": "a\nb"},
        {"case": "x" * 201},
        {"tier": 1},
        {"recipe": "a\x1b[2J"},
        {"params": {"eps": float("nan")}},
        {"params": []},
        {"params": {"text": "x" * 70_000}},
        {"inputs": {"a/b": np.zeros(2)}},
        {"inputs": {"": np.zeros(2)}},
        {"inputs": {"y": np.zeros(2, np.complex64)}},
        {"inputs": {"y": np.zeros(2, bool)}},
        {"inputs": {"y": np.array(["text"])}},
        {"inputs": {"y": np.zeros(2, ml_dtypes.float8_e4m3fnuz)}},
        {"stages": {f"s{i}": np.zeros(1) for i in range(101)}},
        {"outputs": {}},
        {"accept": {"cu/da": {}}},
        {"accept": {"cuda": {"none": Accept(np.zeros(1), np.zeros(1))}}},
        {"accept": {"cuda": {"out": Accept(np.zeros((2, 2)), np.zeros((2, 2)))}}},
        {"accept": {"cuda": {"out": Accept(np.zeros(2, BFLOAT16), np.zeros(2, BFLOAT16))}}},
        {"mutants": {"cuda": "eps-dropped"}},
        {"mutants": {"cuda": [1]}},
        {"provenance": {"": "x"}},
        {"provenance": {"x": 1}},
        {"provenance": {"x": "\ud800"}},
        {"provenance": {"x": "\0"}},
        {"axes": {"y": "x" * 70_000}},
        {"row_strides": {"y": 1}},
        {"row_strides": {"y": 2.0}},
        {"row_strides": {"gate": 8}},
        {"row_strides": {"none": 8}},
        {"input_recipe": "{"},
        {"input_recipe": '{"a":NaN}'},
        {"sampled_rows": np.array([0, 1], np.int32)},
        {"sampled_rows": np.array([0, -1], np.int64)},
        {"sampled_rows": np.array([0, 1, 2], np.int64)},
        {"sampled_rows": np.array([[0, 1]], np.int64)},
    ],
    ids=lambda change: "-".join(change),
)
def test_check_refuses(change: dict[str, Any]) -> None:
    check(example())
    with pytest.raises(InvalidInput):
        check(example(**change))
