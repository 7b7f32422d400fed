"""Golden files: what goes in comes out, the same bytes each time, and nothing is believed."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest

from refkern.errors import InvalidInput
from refkern.goldens import atomic, hdf5, untrusted
from refkern.goldens.attribute_texts import AttributeTexts
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import (
    DTYPES,
    Accept,
    Golden,
    accept_sha256,
    content_sha256,
    encode,
    tensor_sha256,
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)


def example(**changes: Any) -> Golden:
    """A small golden that has everything."""
    y = np.arange(32).astype(BFLOAT16).reshape(4, 8)
    codes = np.arange(32, dtype=np.uint8).view(E4M3).reshape(4, 8)
    free = np.zeros((4, 8), np.uint8)
    free[2, 3] = 1
    golden = Golden(
        op="some_op",
        case="ragged-rows_7",
        tier="quick",
        recipe="ieee",
        params={"eps": 1e-05, "limit": None, "scale_format": "ue8m0"},
        inputs={"y": y, "a_offsets": np.array([0, 2, 4], np.int32)},
        stages={"silu": y.astype(np.float32), "gated": y, "codes": codes},
        outputs={"out": y, "aux": np.array(1.5, np.float64)},
        accept={
            "cuda": {"out": Accept(y - y, y, free)},
            "cuda-fp8-fast": {"out": Accept(y, y)},
        },
        mutants={"bits": ["eps-dropped", "gate-first"], "cuda": []},
        provenance={"refkern": "0.1.0", "command": "refkern golden ü", "empty": ""},
        axes={"y": "rows, width", "silu": "rows, width", "out": "rows, width"},
        row_strides={"y": 12},
    )
    return replace(golden, **changes)


def assert_same(got: Golden, want: Golden) -> None:
    """Field by field, arrays bit for bit; stages in order."""
    for field in fields(Golden):
        assert _plain(getattr(got, field.name)) == _plain(getattr(want, field.name)), field.name
    assert list(got.stages) == list(want.stages)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, encode(value).tobytes()
    if isinstance(value, Accept):
        return _plain([value.lo, value.hi, value.free])
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds `example`."""
    path = tmp_path / "case.h5"
    hdf5.write(example(), path)
    return path


def refused(path: Path, **options: Any) -> str:
    """What `read` says of a file that it must refuse."""
    with pytest.raises(DamagedFile) as caught:
        hdf5.read(path, **options)
    text = str(caught.value)
    assert text.startswith(f"{path}: ")
    assert len(text.splitlines()) == 1
    return text.removeprefix(f"{path}: ")


# what goes in comes out


def test_round_trip(path: Path) -> None:
    got = hdf5.read(path)
    assert_same(got, example())
    assert content_sha256(got) == content_sha256(example())
    assert got.inputs["y"].flags.c_contiguous
    assert got.inputs["y"].flags.writeable
    assert hdf5.read(str(path)).case == example().case


def test_sampled_round_trip(tmp_path: Path) -> None:
    golden = example(
        inputs={},
        stages={},
        axes={},
        accept={},
        row_strides={},
        input_recipe='{"seed":7}',
        sampled_rows=np.array([0, 3, 4000, 2**40], np.int64),
        outputs={"out": np.arange(8, dtype=np.float16).reshape(4, 2)},
        mutants={},
        provenance={},
    )
    hdf5.write(golden, tmp_path / "a.h5")
    assert_same(hdf5.read(tmp_path / "a.h5"), golden)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 4), (3,), (2, 0), (2, 3, 4)], ids=str)
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    size = int(np.prod(shape)) * DTYPES[dtype].itemsize
    raw = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    array = raw.view(DTYPES[dtype]).reshape(shape)
    golden = example(
        inputs={"y": array},
        stages={"a": array},
        outputs={"out": array},
        accept={"ieee": {"out": Accept(array, array)}},
        row_strides={},
        axes={},
    )
    hdf5.write(golden, tmp_path / "a.h5")
    assert_same(hdf5.read(tmp_path / "a.h5"), golden)


def test_every_code_of_narrow_floats(tmp_path: Path) -> None:
    codes16, codes8 = np.arange(1 << 16, dtype=np.uint16), np.arange(256, dtype=np.uint8)
    arrays = {
        dtype.name: (codes16 if dtype.itemsize == 2 else codes8).view(dtype)
        for dtype in DTYPES.values()
        if dtype.itemsize <= 2 and dtype.kind not in "iu"
    }
    assert len(arrays) == 5
    golden = example(inputs=arrays, stages={}, axes={}, row_strides={})
    hdf5.write(golden, tmp_path / "a.h5")
    assert_same(hdf5.read(tmp_path / "a.h5"), golden)


def test_strides_and_byte_order_of_the_arrays_given(tmp_path: Path, path: Path) -> None:
    given = example()
    stages = {**given.stages, "silu": given.stages["silu"].astype(">f4")}
    inputs = {**given.inputs, "y": np.asfortranarray(given.inputs["y"])}
    hdf5.write(example(stages=stages, inputs=inputs), tmp_path / "a.h5")
    assert (tmp_path / "a.h5").read_bytes() == path.read_bytes()


# the layout: what others may rely on


def test_layout(path: Path) -> None:
    assert path.read_bytes()[8] == 0  # superblock version 0
    with h5py.File(path) as file:
        assert set(file.attrs) == {
            "format", "format_version", "op", "case", "tier", "recipe", "params", "shapes",
            "content_sha256", "accept_sha256",
        }  # fmt: skip
        assert file.attrs["format"] == "refkern-golden"
        assert file.attrs["format_version"] == 1
        assert file.attrs["case"] == "ragged-rows_7"
        assert file.attrs["params"] == '{"eps":1e-05,"limit":null,"scale_format":"ue8m0"}'
        assert file.attrs["content_sha256"] == content_sha256(example())
        assert file.attrs["accept_sha256"] == accept_sha256(example())
        assert list(file) == ["accept", "inputs", "mutants", "outputs", "provenance", "stages"]
        assert list(file["stages"]) == ["00_silu", "01_gated", "02_codes"]
        assert list(file["accept"]) == ["cuda", "cuda-fp8-fast"]
        assert list(file["accept/cuda"]) == ["out_free", "out_hi", "out_lo"]
        assert list(file["accept/cuda-fp8-fast"]) == ["out_hi", "out_lo"]
        assert dict(file["mutants"].attrs) == {"bits": '["eps-dropped","gate-first"]', "cuda": "[]"}
        assert dict(file["provenance"].attrs) == example().provenance
        y = file["inputs/y"]
        assert y.dtype == np.dtype("<u2")
        assert y.attrs["dtype"] == "bfloat16"
        assert y.attrs["axes"] == "rows, width"
        assert y.attrs["row_stride"] == 12
        assert y.attrs["sha256"] == tensor_sha256("inputs/y", example().inputs["y"])
        assert y.chunks is None
        assert y.compression is None
        assert y[0, :2].tolist() == [0x0000, 0x3F80]
        assert file["stages/00_silu"].dtype == np.dtype("<f4")
        assert file["stages/02_codes"].dtype == np.dtype("u1")
        assert file["inputs/a_offsets"].dtype == np.dtype("<i4")
        assert file["outputs/aux"].shape == ()


def test_mask_without_a_bit_is_absent(tmp_path: Path) -> None:
    y = example().outputs["out"]
    masked = example(accept={"cuda": {"out": Accept(y, y, np.zeros(y.shape, np.uint8))}})
    hdf5.write(masked, tmp_path / "a.h5")
    assert hdf5.read(tmp_path / "a.h5").accept["cuda"]["out"].free is None


def test_same_bytes_each_time(tmp_path: Path, path: Path) -> None:
    given = example()
    # nothing depends on the time, the file's name or the order of the dicts (but for stages)
    backwards = replace(
        given,
        **{
            name: dict(reversed(getattr(given, name).items()))
            for name in ("params", "inputs", "outputs", "accept", "mutants", "provenance", "axes")
        },
    )
    hdf5.write(backwards, tmp_path / "other name.h5")
    assert (tmp_path / "other name.h5").read_bytes() == path.read_bytes()
    assert list(hdf5.read(path).inputs) == ["a_offsets", "y"]


def test_same_bytes_as_plain_h5py_writes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image in memory has the bytes of h5py's default driver."""
    plain = h5py.File

    def on_disk(name: str, mode: str, **_: Any) -> h5py.File:
        return plain(tmp_path / "disk.h5", mode)

    monkeypatch.setattr(h5py, "File", on_disk)
    hdf5._image(example())
    assert (tmp_path / "disk.h5").read_bytes() == path.read_bytes()


def test_threads_write_at_the_same_time(tmp_path: Path, path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: hdf5.write(example(), tmp_path / f"{n}.h5"), range(16)))
    assert {(tmp_path / f"{n}.h5").read_bytes() for n in range(16)} == {path.read_bytes()}


def test_a_golden_that_a_file_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    for change in ({"inputs": {"y": np.zeros(2, complex)}}, {"case": "a/b"}):
        with pytest.raises(InvalidInput):
            hdf5.write(example(**change), tmp_path / "a.h5")
    many = {f"{'x' * 90}{n}": np.zeros(0) for n in range(700)}
    with pytest.raises(InvalidInput, match="cannot hold so many"):
        hdf5.write(example(inputs=many, axes={}, row_strides={}), tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


# old file or new file, never half of one


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failure_keeps_the_old_file(
    step: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(atomic.os, step, full)
    with pytest.raises(OSError, match="no space"):
        hdf5.write(example(tier="full"), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupt_within_the_block_keeps_the_old_file(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(KeyboardInterrupt), atomic.replacing(path) as file:  # noqa: PT012
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_order_of_what_reaches_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File synced, renamed, then its directory synced; the temporary file lies beside."""
    calls: list[str] = []
    fsync, rename = os.fsync, os.replace

    def noted_fsync(descriptor: int) -> None:
        is_directory = Path(f"/proc/self/fd/{descriptor}").is_dir()
        calls.append("fsync directory" if is_directory else "fsync file")
        fsync(descriptor)

    def noted_replace(old: Path, new: Path) -> None:
        assert old.parent == new.parent
        calls.append("replace")
        rename(old, new)

    monkeypatch.setattr(atomic.os, "fsync", noted_fsync)
    monkeypatch.setattr(atomic.os, "replace", noted_replace)
    with atomic.replacing(tmp_path / "a") as file:
        file.write(b"x")
    expected = ["fsync file", "replace", "fsync directory"]
    if not Path("/proc/self/fd").exists():
        expected[2] = "fsync file"
    assert calls == expected
    assert (tmp_path / "a").read_bytes() == b"x"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        hdf5.write(example(), tmp_path / "a.h5")
    finally:
        os.umask(old)
    assert (tmp_path / "a.h5").stat().st_mode & 0o777 == 0o640


def test_no_such_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hdf5.write(example(), tmp_path / "none" / "a.h5")


KILLED = """
import os, sys, time
import numpy as np
from refkern.goldens import atomic, hdf5
golden = hdf5.read(sys.argv[1])
step = sys.argv[2]

def stop(*_):
    print("here", flush=True)
    time.sleep(60)

if step == "half":
    class Half:
        def __init__(self, file): self.file = file
        def write(self, data):
            self.file.write(data[: len(data) // 2]); self.file.flush(); stop()
    image = hdf5._image
    real = atomic.replacing
    from contextlib import contextmanager
    @contextmanager
    def replacing(path):
        with real(path) as file:
            yield Half(file)
    hdf5.replacing = replacing
else:
    setattr(atomic.os, step, stop)
from dataclasses import replace
hdf5.write(replace(golden, tier="full"), sys.argv[3])
"""


@pytest.mark.parametrize("step", ["half", "fsync", "replace"])
def test_killed_while_writing(step: str, path: Path) -> None:
    """SIGKILL with half of the file written, before it is synced, before it is renamed."""
    before = path.read_bytes()
    fresh = path.with_name("fresh.h5")
    for target in (path, fresh) if step == "half" else (path,):
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(path), step, str(target)],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    assert path.read_bytes() == before
    assert not fresh.exists()
    assert_same(hdf5.read(path), example())


# damage


def test_one_flipped_bit_is_named_with_both_hashes(tmp_path: Path) -> None:
    """64 ones; bit 0x40 of byte 3 turns element 1 into an infinity, which h5py returns."""
    ones = np.ones(64, BFLOAT16)
    path = tmp_path / "a.h5"
    hdf5.write(example(inputs={"y": ones}, row_strides={}, axes={}), path)
    with h5py.File(path) as file:
        offset = file["inputs/y"].id.get_offset()
    damaged = bytearray(path.read_bytes())
    damaged[offset + 3] ^= 0x40
    path.write_bytes(damaged)
    with h5py.File(path) as file:
        assert file["inputs/y"][1] == 0x7F80
    infinite = ones.copy()
    infinite[1] = np.inf
    assert refused(path) == (
        f"inputs/y: sha256 is {tensor_sha256('inputs/y', ones)}, "
        f"recomputed it is {tensor_sha256('inputs/y', infinite)}"
    )


def test_a_flipped_bit_in_any_data_byte_is_named(path: Path) -> None:
    whole = path.read_bytes()
    with h5py.File(path) as file:
        names = list(json.loads(file.attrs["shapes"]))
        where = {name: (file[name].id.get_offset(), file[name].nbytes) for name in names}
    assert len(where) == 12
    bits = np.random.default_rng(3)
    for name, (offset, size) in where.items():
        for byte in bits.choice(size, min(size, 4), replace=False):
            damaged = bytearray(whole)
            damaged[offset + byte] ^= 1 << bits.integers(8)
            path.write_bytes(damaged)
            assert refused(path).startswith(f"{name}: sha256 is ")


def test_a_flipped_bit_anywhere_is_refused_or_harmless(path: Path) -> None:
    """Harmless: a byte that HDF5 does not use, or a label that is not hashed."""
    whole = path.read_bytes()
    random = np.random.default_rng(4)
    caught = 0
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[random.integers(len(whole))] ^= 1 << random.integers(8)
        path.write_bytes(damaged)
        try:
            got = hdf5.read(path)
        except DamagedFile:
            caught += 1
            continue
        labels = {n: getattr(example(), n) for n in ("case", "tier", "provenance", "axes")}
        assert_same(replace(got, **labels), example())
    assert caught > 15


def test_a_text_heap_that_stalls_hdf5(path: Path) -> None:
    """One bit in the heap's size and HDF5 2.0 never comes back."""
    damaged = bytearray(path.read_bytes())
    heap = damaged.index(b"GCOL")
    damaged[heap + 8] ^= 0x80
    path.write_bytes(damaged)
    assert "heap of texts" in refused(path)


def test_a_text_that_says_it_is_2_gib_long(path: Path) -> None:
    """HDF5 would allocate them."""
    whole = path.read_bytes()
    heap = whole.index(b"GCOL")
    reference = len("refkern-golden").to_bytes(4, "little") + heap.to_bytes(8, "little")
    damaged = bytearray(whole)
    damaged[whole.index(reference) + 3] = 0x7F
    path.write_bytes(damaged)
    assert "allowed are 65536" in refused(path)


def test_an_object_header_that_goes_on_in_a_ring() -> None:
    """16 bytes of header, then one message: go on at this very message."""
    superblock = b"\x89HDF\r\n\x1a\n" + bytes(5) + b"\x08\x08" + bytes(17)
    message = struct.pack("<HHB3xQQ", 0x0010, 16, 0, 48, 24)
    header = struct.pack("<BxHIIxxxx", 1, 1, 1, len(message))
    file = io.BytesIO(superblock + header + message)
    with pytest.raises(ValueError, match="too long"):
        AttributeTexts(file, 100).check(32)


@pytest.mark.parametrize("end", [0, 1, 7, 8, 31, 96, 2000, -4097, -2, -1])
def test_truncated(end: int, path: Path) -> None:
    path.write_bytes(path.read_bytes()[:end])
    text = refused(path)
    if end == 0:
        assert text == "is empty (file signature not found)"
    if end == -1:
        assert text.startswith("truncated file")


@pytest.mark.parametrize("content", [b"this is text\n", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n" * 90])
def test_not_hdf5(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    text = refused(path)
    if not content.startswith(b"\x89"):
        assert text == "is not an HDF5 file (file signature not found)"


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        hdf5.read(tmp_path / "none.h5")
    assert refused(tmp_path) == "is not a regular file"
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "is not a regular file"


def test_not_permitted_passes_through(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(untrusted.h5py, "File", refuse)
    with pytest.raises(PermissionError):
        hdf5.read(path)


def test_errors_can_be_sent_between_processes() -> None:
    error = DamagedFile("a.h5", "is empty", "inputs/y")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "a.h5: inputs/y: is empty"


def test_errors_are_one_line_whatever_the_names() -> None:
    text = str(DamagedFile("a\nb.h5", "the dtype '\x1b[2J" + "x" * 9000 + "'", "in\rputs"))
    assert text.startswith("a\\nb.h5: in\\rputs: the dtype '\\x1b[2Jxxx")
    assert len(text) < 500


# hostile files: each a golden that was changed through h5py


def _again(file: h5py.File, path: str, **options: Any) -> h5py.Dataset:
    """Replace a dataset by one that was made with other options, attributes kept."""
    attributes = dict(file[path].attrs)
    options.setdefault("data", None if "shape" in options else file[path][()])
    del file[path]
    dataset = file.create_dataset(path, **options)
    for name, value in attributes.items():
        dataset.attrs[name] = value
    return dataset


def _relist(file: h5py.File, **shapes: list[int]) -> None:
    """Make the list of shapes agree, as an attacker would."""
    listed = json.loads(file.attrs["shapes"])
    listed.update({path.replace("__", "/"): shape for path, shape in shapes.items()})
    file.attrs["shapes"] = json.dumps(listed)


def _link(name: str, link: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[name]
        file[name] = link

    return change


def _attribute(target: str, name: str, value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        file[target].attrs[name] = value

    return change


def _without(target: str, name: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[target].attrs[name]

    return change


def _data(path: str, data: Any, **options: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        _again(file, path, data=data, **options)

    return change


def _external_storage(file: h5py.File) -> None:
    _again(file, "inputs/y", shape=(4, 8), dtype="<u2", external=[("/etc/hostname", 0, 64)])


def _virtual(file: h5py.File) -> None:
    layout = h5py.VirtualLayout((4, 8), "<u2")
    layout[...] = h5py.VirtualSource("other.h5", "y", (4, 8))
    attributes = dict(file["inputs/y"].attrs)
    del file["inputs/y"]
    file.create_virtual_dataset("inputs/y", layout).attrs.update(attributes)


def _reference(file: h5py.File) -> None:
    _again(file, "inputs/y", data=[file["stages"].ref], dtype=h5py.ref_dtype)


def _variable_length(file: h5py.File) -> None:
    _again(file, "inputs/y", shape=(4, 8), dtype=h5py.vlen_dtype(np.dtype("<u2")))


def _named_type(file: h5py.File) -> None:
    file["type"] = np.dtype("<u2")
    _again(file, "inputs/y", dtype=file["type"])
    del file["type"]


def _named_type_as_member(file: h5py.File) -> None:
    file["inputs/type"] = np.dtype("<u2")


def _named_type_of_an_attribute(file: h5py.File) -> None:
    file["type"] = np.dtype("<i8")
    file["inputs/y"].attrs.create("row_stride", 12, dtype=file["type"])
    del file["type"]


def _null_space(file: h5py.File) -> None:
    _again(file, "inputs/y", data=h5py.Empty("<u2"))


def _missing(path: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file[path]

    return change


def _extra(path: str) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        dataset = file.create_dataset(path, data=np.arange(3.0, dtype="<f4"))
        dataset.attrs["dtype"] = "float32"
        dataset.attrs["sha256"] = tensor_sha256(path, dataset[()])

    return change


def _group_for_a_dataset(file: h5py.File) -> None:
    del file["inputs/y"]
    file.create_group("inputs/y")


def _dataset_for_a_group(file: h5py.File) -> None:
    del file["inputs"]
    file["inputs"] = np.zeros(3)


def _filter(number: int, *more: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2, 8))
        for setting in (number, *more):
            if setting == "scaleoffset":
                properties.set_scaleoffset(h5py.h5z.SO_INT, 0)
            elif setting == "deflate":
                properties.set_deflate(9)
            elif setting == "shuffle":
                properties.set_shuffle()
        attributes = dict(file["inputs/y"].attrs)
        del file["inputs/y"]
        space = h5py.h5s.create_simple((4, 8))
        parent = file["inputs"].id
        made = h5py.h5d.create(parent, b"y", h5py.h5t.STD_U16LE, space, properties)
        h5py.Dataset(made).attrs.update(attributes)

    return change


def _bomb(file: h5py.File) -> None:
    """A chunk of 64 bytes that inflates to 50 MB."""
    dataset = _again(file, "inputs/y", compression="gzip", chunks=(4, 8))
    dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(50_000_000), 9))


def _no_zlib(file: h5py.File) -> None:
    dataset = _again(file, "inputs/y", compression="gzip", chunks=(4, 8))
    dataset.id.write_direct_chunk((0, 0), b"\xff" * 64)


def _terabytes(file: h5py.File) -> None:
    _again(file, "inputs/y", shape=(1 << 40, 8), dtype="<u2", chunks=(4, 8))
    _relist(file, inputs__y=[1 << 40, 8])


def _huge_chunk(file: h5py.File) -> None:
    wide = {"chunks": (1 << 20, 1 << 10), "maxshape": (None, None)}
    _again(file, "inputs/y", shape=(4, 8), dtype="<u2", **wide)


def _expansion(file: h5py.File) -> None:
    _again(file, "inputs/y", shape=(1 << 14, 1 << 14), dtype="<u2", chunks=(1024, 1024))
    _relist(file, inputs__y=[1 << 14, 1 << 14])


def _many_chunks(file: h5py.File) -> None:
    _again(file, "inputs/y", shape=(1 << 10, 1 << 8), dtype="<u2", chunks=(1, 1))
    _relist(file, inputs__y=[1 << 10, 1 << 8])


def _wide_stride(file: h5py.File) -> None:
    file["inputs/y"].attrs["row_stride"] = 1 << 40


def _two_axes(file: h5py.File) -> None:
    file["outputs/out"].attrs["axes"] = "tokens"
    file["stages"].move("01_gated", "01_out")


def _cycle(file: h5py.File) -> None:
    file["accept/cuda/accept"] = file["accept"]
    file["accept/loop"] = file["accept"]


def _stage_gap(file: h5py.File) -> None:
    file["stages"].move("01_gated", "07_gated")
    listed = json.loads(file.attrs["shapes"])
    listed["stages/07_gated"] = listed.pop("stages/01_gated")
    file.attrs["shapes"] = json.dumps(listed)
    values = example().stages["gated"]
    file["stages/07_gated"].attrs["sha256"] = tensor_sha256("stages/07_gated", values)


def _lo_without_hi(file: h5py.File) -> None:
    del file["accept/cuda/out_hi"]
    listed = json.loads(file.attrs["shapes"])
    del listed["accept/cuda/out_hi"]
    file.attrs["shapes"] = json.dumps(listed)


def _neither_lo_nor_hi(file: h5py.File) -> None:
    _extra("accept/cuda/out_mid")(file)
    _relist(file, accept__cuda__out_mid=[3])


COMPOUND = np.zeros((4, 8), np.dtype([("a", "<u1"), ("b", "<u1")]))
Y_BITS = encode(example().inputs["y"])

#: name -> (change, what the message must contain)
HOSTILE: dict[str, tuple[Callable[[h5py.File], None], str]] = {
    # links
    "soft link": (_link("inputs/y", h5py.SoftLink("/outputs/out")), "inputs/y: is a soft link"),
    "dangling soft link": (_link("inputs/y", h5py.SoftLink("/none")), "inputs/y: is a soft link"),
    "soft link to itself": (_link("inputs", h5py.SoftLink("/inputs")), "inputs: is a soft link"),
    "external link": (
        _link("inputs/y", h5py.ExternalLink("/etc/passwd", "/y")),
        "inputs/y: is an external link",
    ),
    "soft link on the way": (_link("inputs", h5py.SoftLink("/stages")), "inputs: is a soft link"),
    "external link on the way": (
        _link("accept/cuda", h5py.ExternalLink("other.h5", "/")),
        "accept/cuda: is an external link",
    ),
    "cycle of hard links": (_cycle, "accept/cuda/accept: is not a dataset"),
    # where the data lies
    "external storage": (_external_storage, "inputs/y: has external storage"),
    "virtual dataset": (_virtual, "inputs/y: is a virtual dataset"),
    "scale-offset filter": (_filter("scaleoffset"), "inputs/y: has the filters [6]"),
    "deflate twice": (_filter("deflate", "deflate"), "inputs/y: has the filters [1, 1]"),
    "shuffle behind deflate": (_filter("deflate", "shuffle"), "inputs/y: has the filters [1, 2]"),
    "lzf filter": (_data("inputs/y", Y_BITS, compression="lzf"), "inputs/y: has the filters"),
    "deflate bomb": (_bomb, "inputs/y: has a chunk that inflates beyond its size"),
    "chunk that is not deflated": (_no_zlib, "inputs/y: cannot be inflated"),
    "terabytes": (_terabytes, "the budget is 2147483648"),
    "huge chunk": (_huge_chunk, "the budget is 2147483648"),
    "expansion": (_expansion, "more than 1000 times its size"),
    "many chunks": (_many_chunks, "inputs/y: has 262144 chunks"),
    "wide row stride": (_wide_stride, "the budget is 2147483648"),
    # what the data is
    "reference": (_reference, "inputs/y: is stored as a 64-bit reference type"),
    "compound": (_data("inputs/y", COMPOUND), "inputs/y: is stored as a 16-bit compound type"),
    "opaque": (
        _data("inputs/y", example().inputs["y"]),
        "inputs/y: is stored as a 16-bit opaque type, bfloat16 is stored as uint16",
    ),
    "fixed string": (_data("inputs/y", np.array([b"ab"])), "16-bit string type"),
    "variable string": (_data("inputs/y", "text"), "inputs/y: is stored as a"),
    "variable length": (_variable_length, "inputs/y: is stored as a 128-bit variable-length type"),
    "enum": (
        _data("inputs/y", Y_BITS, dtype=h5py.enum_dtype({"A": 1}, basetype="<u2")),
        "16-bit enum type",
    ),
    "bool": (_data("inputs/y", np.zeros((4, 8), bool)), "8-bit enum type"),
    "named type": (_named_type, "inputs/y: has a named datatype"),
    "named type as a member": (_named_type_as_member, "inputs/type: is not a dataset"),
    "signed carrier": (_data("inputs/y", Y_BITS.view("<i2")), "16-bit integer type"),
    "HDF5's own float16": (_data("inputs/y", Y_BITS.view("<f2")), "16-bit float type"),
    "e4m3 in 16 bits": (
        _attribute("inputs/y", "dtype", "float8_e4m3fn"),
        "inputs/y: is stored as a 16-bit integer type, float8_e4m3fn is stored as uint8",
    ),
    "unknown dtype": (
        _attribute("stages/02_codes", "dtype", "float8_e4m3fnuz"),
        "stages/02_codes: the dtype 'float8_e4m3fnuz' is unknown",
    ),
    "other dtype of that width": (
        _attribute("inputs/y", "dtype", "float16"),
        "inputs/y: sha256 is",
    ),
    "no dtype": (_without("inputs/y", "dtype"), "inputs/y: the attribute dtype is missing"),
    "no sha256": (_without("inputs/y", "sha256"), "inputs/y: the attribute sha256 is missing"),
    "dtype is a number": (_attribute("inputs/y", "dtype", 16), "inputs/y: the attribute dtype"),
    "no shape": (_null_space, "inputs/y: has no shape"),
    # what is there
    "missing dataset": (_missing("inputs/y"), "inputs/y: is missing"),
    "missing stage": (_missing("stages/01_gated"), "stages/01_gated: is missing"),
    "missing mask": (_missing("accept/cuda/out_free"), "accept/cuda/out_free: is missing"),
    "missing group": (_missing("accept"), "accept/cuda-fp8-fast/out_hi: is missing"),
    "extra dataset": (_extra("inputs/z"), "inputs/z: is not a dataset of this golden"),
    "extra dataset at the root": (_extra("z"), "z: is not part of a golden file"),
    "extra group": (lambda file: file.create_group("more"), "more: is not part of a golden file"),
    "extra in provenance": (_extra("provenance/z"), "provenance/z: is not part of a golden file"),
    "group for a dataset": (_group_for_a_dataset, "inputs/y: is not a dataset"),
    "dataset for a group": (_dataset_for_a_group, "inputs: is not a group"),
    "wrong shape": (
        _data("inputs/y", Y_BITS.reshape(8, 4)),
        "inputs/y: has the shape [8, 4], written was [4, 8]",
    ),
    "wrong name": (_extra("inputs/a b"), "inputs/a b: is not a name"),
    "swapped": (
        lambda file: (
            file.move("accept/cuda/out_lo", "accept/cuda/x"),
            file.move("accept/cuda/out_hi", "accept/cuda/out_lo"),
            file.move("accept/cuda/x", "accept/cuda/out_hi"),
        ),
        "accept/cuda/out_hi: sha256 is",
    ),
    "stages out of order": (_stage_gap, "stages/02_codes: is out of order"),
    "bound without the other": (_lo_without_hi, "accept/cuda/out: needs both"),
    "neither bound nor mask": (_neither_lo_nor_hi, "accept/cuda/out_mid"),
    # attributes
    "other format": (_attribute("/", "format", "other"), "is not a golden file"),
    "no format": (_without("/", "format"), "is not a golden file"),
    "format 2": (_attribute("/", "format_version", 2), "format_version is 2, this reader knows 1"),
    "format '1'": (_attribute("/", "format_version", "1"), "format_version is '1'"),
    "no format version": (_without("/", "format_version"), "format_version is None"),
    "no op": (_without("/", "op"), "the attribute op is missing"),
    "no shapes": (_without("/", "shapes"), "the attribute shapes is missing"),
    "shapes are a list": (_attribute("/", "shapes", "[]"), "shapes is not a JSON object"),
    "other op": (_attribute("/", "op", "other_op"), "content_sha256 is"),
    "op is a path": (_attribute("/", "op", "../../up"), "op: '../../up' was given"),
    "case is a path": (_attribute("/", "case", "/etc/passwd"), "case: '/etc/passwd' was given"),
    "unknown attribute": (_attribute("/", "more", "x"), "the attribute more is unknown"),
    "attribute of a group": (_attribute("inputs", "x", "y"), "inputs: the attribute x is unknown"),
    "array attribute": (_attribute("/", "op", [1, 2]), "/: the attribute op is neither"),
    "float attribute": (_attribute("/", "op", 1.5), "/: the attribute op is neither"),
    "reference attribute": (
        lambda file: file.attrs.create("op", file.ref, dtype=h5py.ref_dtype),
        "/: the attribute op is neither",
    ),
    "empty attribute": (_attribute("/", "op", h5py.Empty("S1")), "/: the attribute op is neither"),
    "bool attribute": (_attribute("/", "op", True), "/: the attribute op is neither"),
    "attribute of a named type": (
        _named_type_of_an_attribute,
        "inputs/y: has an attribute of a named datatype",
    ),
    "long attribute": (_attribute("/", "tier", "x" * 70_000), "/: has an attribute of 70000 bytes"),
    "attribute that is not UTF-8": (
        _attribute("/", "tier", np.bytes_(b"\xff")),
        "tier is not UTF-8",
    ),
    "vlen bytes that are not UTF-8": (
        lambda file: file.attrs.create("tier", b"\xff\xfe", dtype=h5py.string_dtype()),
        "tier is not UTF-8",
    ),
    "params are not JSON": (_attribute("/", "params", "{"), "params is not JSON"),
    "params are a list": (_attribute("/", "params", "[]"), "params is not a JSON object"),
    "params hold NaN": (_attribute("/", "params", '{"eps":NaN}'), "NaN is not JSON"),
    "params overflow": (_attribute("/", "params", '{"eps":1e999}'), "JSON cannot hold it"),
    "params hold a key twice": (_attribute("/", "params", '{"a":1,"a":2}'), "twice"),
    "params are deep": (_attribute("/", "params", "[" * 60_000), "nested too deeply"),
    "other params": (_attribute("/", "params", '{"eps":0.1}'), "content_sha256 is"),
    "other content hash": (_attribute("/", "content_sha256", "0" * 64), "content_sha256 is 000"),
    "other accept hash": (_attribute("/", "accept_sha256", "0" * 64), "accept_sha256 is 000"),
    "other mutants": (_attribute("mutants", "cuda", '["x"]'), "accept_sha256 is"),
    "mutants are not JSON": (_attribute("mutants", "cuda", "x"), "mutants: cuda is not JSON"),
    "mutants are not a list": (_attribute("mutants", "cuda", "{}"), "mutants['cuda']"),
    "mutants are a number": (_attribute("mutants", "cuda", 1), "mutants: the attribute cuda"),
    "row stride is text": (_attribute("inputs/y", "row_stride", "12"), "row_stride is not"),
    "other row stride": (_attribute("inputs/y", "row_stride", 16), "content_sha256 is"),
    "row stride too small": (_attribute("inputs/y", "row_stride", 7), "row_strides['y']"),
    "row stride negative": (_attribute("inputs/y", "row_stride", -12), "row_strides['y']"),
    "row stride of a stage": (
        _attribute("stages/01_gated", "row_stride", 12),
        "stages/01_gated: the attribute row_stride is unknown",
    ),
    "input recipe": (_attribute("/", "input_recipe", "x"), "input_recipe"),
    "provenance is a number": (
        _attribute("provenance", "refkern", 1),
        "provenance: the attribute refkern is not a text",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name: str, path: Path) -> None:
    change, expected = HOSTILE[name]
    with h5py.File(path, "r+") as file:
        change(file)
    assert expected in refused(path)


def test_two_texts_for_the_axes_of_one_name(tmp_path: Path) -> None:
    y = example().inputs["y"]
    path = tmp_path / "a.h5"
    hdf5.write(example(stages={"y": y}), path)
    axes = {"y": "rows, width", "out": "rows, width"}
    assert_same(hdf5.read(path), example(stages={"y": y}, axes=axes))
    with h5py.File(path, "r+") as file:
        file["stages/00_y"].attrs["axes"] = "tokens"
    assert "stages/00_y: has the axes 'tokens', elsewhere" in refused(path)


def test_the_budget_is_checked_before_anything_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with h5py.File(path) as file:
        needed = sum(file[name].nbytes for name in json.loads(file.attrs["shapes"]))
    needed += 4 * 12 * 2  # the strided view of y
    hdf5.read(path, byte_budget=needed)
    reads: list[str] = []
    values = untrusted.UntrustedFile.values

    def noted(file: untrusted.UntrustedFile, declared: untrusted.Declared) -> np.ndarray:
        reads.append(declared.path)
        return values(file, declared)

    monkeypatch.setattr(untrusted.UntrustedFile, "values", noted)
    expected = f"declares {needed} bytes of data, the budget is {needed - 1}"
    assert refused(path, byte_budget=needed - 1) == expected
    assert reads == []
    hdf5.read(path)
    assert len(reads) == 12


def test_the_number_of_objects_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "_MOST_OBJECTS", 30)
    assert "holds more than 30 objects and attributes" in refused(path)


def test_another_superblock_is_refused(tmp_path: Path, path: Path) -> None:
    latest = tmp_path / "latest.h5"
    with h5py.File(path) as old, h5py.File(latest, "w", libver="latest") as new:
        for name in old:
            old.copy(name, new)
        new.attrs.update(old.attrs)
    assert "superblock" in refused(latest)


# harmless differences


def test_filters_that_are_allowed(path: Path) -> None:
    """Repacked with shuffle, deflate and fletcher32 it is the same golden; damage is found."""
    with h5py.File(path, "r+") as file:
        for name in json.loads(file.attrs["shapes"]):
            if file[name].shape:
                _again(file, name, compression="gzip", shuffle=True, fletcher32=True)
    assert_same(hdf5.read(path), example())
    with h5py.File(path) as file:
        chunk = file["stages/00_silu"].id.get_chunk_info(0)
    for byte in range(0, chunk.size, 7):
        damaged = bytearray(path.read_bytes())
        damaged[chunk.byte_offset + byte] ^= 4
        path.with_name("damaged.h5").write_bytes(damaged)
        text = refused(path.with_name("damaged.h5"))
        assert text.startswith("stages/00_silu: cannot be ")


def test_other_byte_order_reads_by_value(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in json.loads(file.attrs["shapes"]):
            _again(file, name, dtype=file[name].dtype.newbyteorder(">"))
        assert file["inputs/y"].dtype == np.dtype(">u2")
        assert file["stages/00_silu"].dtype == np.dtype(">f4")
    assert_same(hdf5.read(path), example())


def test_signalling_nan_survives(tmp_path: Path) -> None:
    signalling = np.array([0x7F800001, 0xFFBFFFFF], np.uint32).view(np.float32)
    golden = example(stages={"a": signalling}, axes={}, row_strides={})
    hdf5.write(golden, tmp_path / "a.h5")
    assert_same(hdf5.read(tmp_path / "a.h5"), golden)
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        swapped = signalling.astype(">f4").view(">u4").view(">f4")
        _again(file, "stages/00_a", data=swapped)
    assert hdf5.read(tmp_path / "a.h5").stages["a"].tobytes() == signalling.tobytes()


def test_fixed_length_texts_are_texts(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["tier"] = np.bytes_("quick")
        file["provenance"].attrs["command"] = np.bytes_(example().provenance["command"].encode())
    assert_same(hdf5.read(path), example())


def test_reading_takes_no_lock(path: Path) -> None:
    """Read-only media do not give one, and a writer elsewhere may hold one."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert_same(hdf5.read(path), example())


def test_readers_do_not_disturb_each_other(path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(hdf5.read, [path] * 8):
            assert_same(got, example())


# results of other programs


def test_is_golden(path: Path, tmp_path: Path) -> None:
    assert hdf5.is_golden(path)
    for libver in ("earliest", "latest"):
        other = tmp_path / f"{libver}.h5"
        with h5py.File(other, "w", libver=libver) as file:
            file["out"] = np.zeros(3)
            file.attrs["about"] = [1.0, 2.0]
        assert not hdf5.is_golden(other)
    (tmp_path / "text").write_text("text")
    with pytest.raises(DamagedFile):
        hdf5.is_golden(tmp_path / "text")
    with pytest.raises(FileNotFoundError):
        hdf5.is_golden(tmp_path / "none")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_flat_file(libver: str, tmp_path: Path) -> None:
    plain = {
        "f2": np.array([1.5, np.nan], np.float16),
        "f4": np.array([[1.5]], np.float32),
        "f8": np.array(2.5),
        "i4": np.arange(-2, 3, dtype=np.int32),
        "u1": np.zeros((0, 4), np.uint8),
        "big": np.array([1.0, 2.0], ">f4"),
    }
    coded = {"bf16": example().inputs["y"], "e4m3": example().stages["codes"]}
    path = tmp_path / "flat.h5"
    with h5py.File(path, "w", libver=libver) as file:
        for name, array in plain.items():
            file[name] = array
        for name, array in coded.items():
            file[name] = encode(array)
            file[name].attrs["dtype"] = array.dtype.name
        file.create_dataset("zip", data=np.arange(99.0), compression="gzip")
        file.create_group("not_a_tensor")
        file.attrs["anything"] = [1.0]
    with h5py.File(path) as file:
        got = hdf5.read_flat(file, path)
    expected = {**plain, **coded, "zip": np.arange(99.0)}
    assert _plain(got) == _plain({**expected, "big": plain["big"].astype(np.float32)})


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda file: file.update({"s": h5py.SoftLink("/out")}), "s: is a soft link"),
        (lambda file: file.create_dataset("b", data=[True]), "b: has a type of the class enum"),
        (lambda file: file.create_dataset("b", data=example().inputs["y"]), "class opaque"),
        (lambda file: file["out"].attrs.update({"dtype": "float4"}), "dtype 'float4' is unknown"),
        (lambda file: file["out"].attrs.update({"dtype": "bfloat16"}), "is stored as uint16"),
        (lambda file: file.create_dataset("t", (1 << 40,), "f4", chunks=(8,)), "the budget is"),
        (lambda file: file.pop("out"), "has no dataset at its root"),
    ],
)
def test_flat_file_is_not_believed(
    change: Callable[[h5py.File], object], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "flat.h5"
    with h5py.File(path, "w") as file:
        file["out"] = np.zeros(3)
        change(file)
    with h5py.File(path) as file, pytest.raises(DamagedFile) as caught:
        hdf5.read_flat(file, path)
    assert expected in str(caught.value)
