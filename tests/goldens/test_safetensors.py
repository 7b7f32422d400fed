"""Our safetensors writer and reader against the format's official package, and against damage."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors as official
import safetensors.numpy as official_numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from refkern.errors import InvalidInput
from refkern.goldens import atomic
from refkern.goldens import safetensors as ours
from refkern.goldens.errors import DamagedFile

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def random_array(code: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    dtype = ours.CODES[code]
    raw = np.random.default_rng(seed).integers(0, 256, math.prod(shape) * dtype.itemsize, np.uint8)
    return (raw & 1 if code == "BOOL" else raw).view(dtype).reshape(shape)


def bits(tensors: dict[str, np.ndarray]) -> dict[str, Any]:
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in tensors.items()}


EVERY = {code.lower(): random_array(code, (3, 5), seed) for seed, code in enumerate(ours.CODES)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.safetensors"


# our own round trip


@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (2, 0), (7,), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape(shape: tuple[int, ...], path: Path) -> None:
    tensors = {code: random_array(code, shape) for code in ours.CODES}
    ours.write(path, tensors, {"refkern": '{"op":"ü"}', "a": ""})
    got, metadata = ours.read(path)
    assert bits(got) == bits(tensors)
    assert metadata == {"refkern": '{"op":"ü"}', "a": ""}
    assert all(a.flags.c_contiguous and a.flags.writeable for a in got.values())


def test_bytes_are_these() -> None:
    """The layout, spelled out: widest items first, names in order, header padded to 8 bytes."""
    file = io.BytesIO()
    tensors = {
        "b": np.array([1.0, -2.0], BFLOAT16),
        "c": np.array([1], np.int32),
        "a": np.array([3.0], BFLOAT16),
    }
    ours.write(file, tensors, {"y": "1", "x": "2"})
    header = (
        b'{"__metadata__":{"x":"2","y":"1"},'
        b'"a":{"data_offsets":[4,6],"dtype":"BF16","shape":[1]},'
        b'"b":{"data_offsets":[6,10],"dtype":"BF16","shape":[2]},'
        b'"c":{"data_offsets":[0,4],"dtype":"I32","shape":[1]}}'
    )
    padded = header + b" " * (-len(header) % 8)
    assert len(padded) > len(header)
    data = bytes.fromhex("01000000 4040 803f00c0")
    assert file.getvalue() == len(padded).to_bytes(8, "little") + padded + data


def test_same_bytes_each_time() -> None:
    files = []
    for tensors in (EVERY, dict(reversed(EVERY.items()))):
        for metadata in ({"a": "1", "b": "2", "c": "3"}, {"c": "3", "b": "2", "a": "1"}):
            file = io.BytesIO()
            ours.write(file, tensors, metadata)
            files.append(file.getvalue())
    assert len(set(files)) == 1


def test_every_tensor_is_aligned_for_its_type(path: Path) -> None:
    odd = {f"{code}_{n}": random_array(code, (n,)) for code in ours.CODES for n in (1, 3)}
    ours.write(path, odd)
    header, start = _header(path)
    assert start % 8 == 0
    for name, entry in header.items():
        assert (start + entry["data_offsets"][0]) % odd[name].dtype.itemsize == 0, name


def test_layout_in_memory_does_not_count(path: Path) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    wide = np.zeros((3, 8), np.float32)
    wide[:, ::2] = array
    flags = np.array([True, False, True])
    for same in (array, np.asfortranarray(array), wide[:, ::2], array.astype(">f4")):
        ours.write(path, {"a": same, "flags": np.repeat(flags, 2)[::2]})
        assert bits(ours.read(path)[0]) == bits({"a": array, "flags": flags})


def test_nothing_at_all(path: Path) -> None:
    ours.write(path, {})
    assert ours.read(path) == ({}, {})
    assert path.read_bytes() == b"\x08" + bytes(7) + b"{}      "
    assert official_numpy.load_file(path) == {}


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(
            st.sampled_from(list(ours.CODES)), st.lists(st.integers(0, 3), max_size=3).map(tuple)
        ),
        max_size=6,
    ),
    st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2),
)
@settings(max_examples=40, deadline=None, database=None)
def test_any_names_and_shapes(
    described: dict[str, tuple[str, tuple[int, ...]]], metadata: dict[str, str]
) -> None:
    tensors = {name: random_array(code, shape) for name, (code, shape) in described.items()}
    file = io.BytesIO()
    ours.write(file, tensors, metadata)
    got = dict(official.deserialize(file.getvalue()))
    assert got.keys() == tensors.keys()
    for name, array in tensors.items():
        assert got[name]["shape"] == list(array.shape)
        assert bytes(got[name]["data"]) == array.tobytes()


# the official package


def test_official_package_reads_ours(path: Path) -> None:
    ours.write(path, EVERY, {"refkern": "{}"})
    got = dict(official.deserialize(path.read_bytes()))
    assert got.keys() == EVERY.keys()
    for name, array in EVERY.items():
        assert got[name]["dtype"] == name.upper()
        assert got[name]["shape"] == list(array.shape)
        assert bytes(got[name]["data"]) == array.tobytes()
    with official.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"refkern": "{}"}
        # its numpy reader knows bfloat16, but not the 8-bit floats
        for name in ("bf16", "f16", "f32", "f64", "i8", "u64", "bool"):
            assert file.get_tensor(name).tobytes() == EVERY[name].tobytes()
        assert file.get_tensor("bf16").dtype == BFLOAT16


def test_ours_reads_the_official_package(path: Path) -> None:
    official_numpy.save_file(EVERY, path, metadata={"a": "b"})
    got, metadata = ours.read(path)
    assert bits(got) == bits(EVERY)
    assert metadata == {"a": "b"}
    assert {"bf16", "f8_e4m3", "f8_e5m2", "f8_e8m0"} <= got.keys()


# what cannot be written


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"a": np.zeros(2, complex)}, {}),
        ({"a": np.array(["text"])}, {}),
        ({"a": np.zeros(2, ml_dtypes.float8_e4m3fnuz)}, {}),
        ({"a": np.zeros(2, "V2")}, {}),
        ({"__metadata__": np.zeros(2)}, {}),
        ({"\ud800": np.zeros(2)}, {}),
        ({1: np.zeros(2)}, {}),
        ({}, {"a": 1}),
        ({}, {"a": "\udfff"}),
        ({}, {1: "a"}),
    ],
)
def test_refused_before_anything_is_written(
    tensors: dict[str, np.ndarray], metadata: dict[str, str], path: Path
) -> None:
    path.write_bytes(b"old")
    with pytest.raises(InvalidInput):
        ours.write(path, tensors, metadata)
    assert path.read_bytes() == b"old"
    file = io.BytesIO()
    with pytest.raises(InvalidInput):
        ours.write(file, tensors, metadata)
    assert file.getvalue() == b""
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_keeps_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours.write(path, EVERY)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(atomic.os, "replace", fail)
    with pytest.raises(OSError, match="disk"):
        ours.write(path, {})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# damage


def _header(path: Path) -> tuple[dict[str, Any], int]:
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    return json.loads(whole[8 : 8 + length]), 8 + length


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DamagedFile) as caught:
        ours.read(path)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value).removeprefix(f"{path}: ")


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: Any = "U8", shape: Any = None) -> dict[str, Any]:
    shape = [end - begin] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


#: a header (or a whole file), its data, what the message must contain
DAMAGED: dict[str, tuple[Any, bytes, str]] = {
    "hole": ({"a": entry(0, 2), "b": entry(3, 4)}, bytes(4), "b: leaves a hole before"),
    "hole at the start": ({"a": entry(1, 2)}, bytes(2), "a: leaves a hole before"),
    "overlap": ({"a": entry(0, 2), "b": entry(1, 3)}, bytes(3), "b: overlaps the one before"),
    "same bytes twice": ({"a": entry(0, 2), "b": entry(0, 2)}, bytes(2), "b: overlaps"),
    "bytes behind": ({"a": entry(0, 2)}, bytes(3), "has bytes behind the last tensor"),
    "no tensors but bytes": ({}, bytes(1), "has bytes behind the last tensor"),
    "data cut off": ({"a": entry(0, 2)}, bytes(1), "is truncated: 1 bytes of data"),
    "too large": ({"a": entry(0, 1 << 60)}, bytes(4), "is truncated"),
    "shape and size differ": ({"a": entry(0, 4, "F32", [2])}, bytes(4), "a: has 4 bytes"),
    "end before begin": ({"a": entry(4, 0, shape=[])}, bytes(4), "a: has -4 bytes"),
    "huge empty shape": ({"a": entry(0, 0, shape=[0, 1 << 63])}, b"", "a: has the shape"),
    "many axes": ({"a": entry(0, 1, shape=[1] * 99)}, bytes(1), "a: has the shape"),
    "unknown dtype": ({"a": entry(0, 1, "F4")}, bytes(1), "a: has the dtype 'F4'; known are"),
    "dtype of a list": ({"a": entry(0, 1, ["U8"])}, bytes(1), "a: has the dtype ['U8']"),
    "dtype missing": ({"a": {"shape": [1], "data_offsets": [0, 1]}}, bytes(1), "a: needs dtype"),
    "more keys": ({"a": {**entry(0, 1), "x": 1}}, bytes(1), "a: needs dtype"),
    "no object": ({"a": 1}, b"", "a: needs dtype"),
    "negative size": ({"a": entry(0, 1, shape=[-1, -1])}, bytes(1), "a: has a shape or offsets"),
    "size is a float": ({"a": entry(0, 1, shape=[1.0])}, bytes(1), "a: has a shape or offsets"),
    "size is a bool": ({"a": entry(0, 1, shape=[True])}, bytes(1), "a: has a shape or offsets"),
    "shape is a number": ({"a": entry(0, 1, shape=1)}, bytes(1), "a: has a shape or offsets"),
    "three offsets": (
        {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 1]}},
        bytes(1),
        "a: has a shape or offsets",
    ),
    "bool of 2": ({"a": entry(0, 2, "BOOL")}, b"\x01\x02", "a: has a BOOL that is neither"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "is not an object of texts"),
    "metadata is a list": ({"__metadata__": []}, b"", "is not an object of texts"),
    "surrogate": (b'{"\\ud800":{}}', b"", "not Unicode"),
    "name twice": (b'{"a":{},"a":{}}', b"", "a key is there twice"),
    "no JSON": (b'{"a":', b"", "is not JSON"),
    "NaN": (b'{"a":NaN}', b"", "is not JSON"),
    "no UTF-8": (b'{"\xff":1}', b"", "is not JSON"),
    "deep": (b'{"a":' + b"[" * 100_000, b"", "nested too deeply"),
    "a list": (b"[]", b"", "does not start with '{'"),
    "leading space": (b" {}", b"", "does not start with '{'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged(name: str, path: Path) -> None:
    header, data, expected = DAMAGED[name]
    assert expected in refused(path, file_of(header, data))


@pytest.mark.parametrize("length", [0, 1, 3, 1 << 20, 100_000_001, (1 << 64) - 1])
def test_header_length_out_of_bounds(length: int, path: Path) -> None:
    assert "declares a header of" in refused(path, length.to_bytes(8, "little") + b"{}")


def test_cut_anywhere(path: Path) -> None:
    ours.write(path, {"a": np.arange(3, dtype=np.int16), "b": np.zeros(3, np.uint8)}, {"x": "y"})
    whole = path.read_bytes()
    for end in range(len(whole)):
        refused(path, whole[:end])
    refused(path, whole + b"\0")


def test_the_order_of_the_header_does_not_matter(path: Path) -> None:
    header = {"b": entry(2, 3), "e": entry(2, 2), "a": entry(0, 2), "f": entry(3, 3, "F64", [0])}
    path.write_bytes(file_of(header, b"\1\2\3"))
    got, _ = ours.read(path)
    assert {name: array.tolist() for name, array in got.items()} == {
        "a": [1, 2], "e": [], "b": [3], "f": [],
    }  # fmt: skip


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ours.read(tmp_path / "none")
    with pytest.raises(DamagedFile, match="regular file"):
        ours.read(tmp_path)


def test_nothing_is_allocated_for_what_is_not_there(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    empty: Callable[..., np.ndarray] = np.empty

    def noted(*args: Any) -> np.ndarray:
        made.append(args)
        return empty(*args)

    monkeypatch.setattr(ours.np, "empty", noted)
    refused(path, file_of({"a": entry(0, 4), "b": entry(4, 1 << 40)}, bytes(8)))
    assert made == []
