"""refkern compare: results from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from refkern.formats import codes
from refkern.goldens import hdf5, safetensors

OP = "gated_group_rmsnorm"


@pytest.fixture
def golden(made: Path) -> Path:
    return made / OP / "mamba_ssm.h5"


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    if path.suffix == ".safetensors":
        safetensors.write(path, tensors)
    elif path.suffix == ".npz":
        np.savez(path, **tensors)
    else:
        with h5py.File(path, "w") as file:
            for name, array in tensors.items():
                file[name] = array
    return path


@pytest.mark.parametrize(
    ("kind", "as_codes"),
    [("safetensors", False), ("npz", False), ("npz", True), ("h5", False), ("h5", True)],
)
def test_results_of_every_kind(
    run: Any, golden: Path, tmp_path: Path, kind: str, as_codes: bool
) -> None:
    """bfloat16 by its dtype, as the opaque bytes that numpy and h5py make of it, or as codes."""
    read = hdf5.read(golden)
    right = {"out": read.outputs["out"], "gated": read.stages["gated"]}
    wrong = {**right, "out": right["out"].copy()}
    wrong["out"][2, 7] = -wrong["out"][2, 7]
    if as_codes:
        right["out"], wrong["out"] = codes(right["out"]), codes(wrong["out"])
    good = write(tmp_path / f"good.{kind}", right)
    done = run("compare", golden, good, "--json")
    assert done.code == 0, done.out
    assert done.json["summary"]["bits"] == 1
    bad = write(tmp_path / f"bad.{kind}", wrong)
    done = run("compare", golden, bad, "--json")
    assert done.code == 1
    (case,) = done.json["cases"]
    assert (case["mismatches"], case["first_stage"]) == (1, "out")
    assert case["worst"]["index"] == [2, 7]


def test_a_golden_file_is_a_result(run: Any, goldens: Path) -> None:
    path = goldens / OP / "mamba_ssm.h5"
    other = goldens / "other.h5"
    read = hdf5.read(path)
    out = read.outputs["out"].copy()
    out[0, 0] = 0
    hdf5.write(replace(read, outputs={"out": out}), other)
    assert run("compare", path, path).code == 0
    done = run("compare", path, other)
    assert done.code == 1
    assert "1 of 8192 elements" in done.out


def test_another_recipes_result(run: Any, golden: Path, tmp_path: Path) -> None:
    import refkern

    read = hdf5.read(golden)
    out = refkern.gated_group_rmsnorm(**read.inputs, **read.params, recipe="modular-apple")
    result = write(tmp_path / "x.safetensors", {"out": out})
    done = run("compare", golden, result)
    assert done.code == 1
    assert "bit-identical to recipe modular-apple" in done.out
    assert run("compare", golden, result, "--recipe", "any").code == 0
    assert run("compare", golden, result, "--recipe", "modular-apple").code == 0


@pytest.mark.parametrize("kind", ["safetensors", "npz", "h5"])
def test_results_that_cannot_be_judged(run: Any, golden: Path, tmp_path: Path, kind: str) -> None:
    out = hdf5.read(golden).outputs["out"]
    for tensors, says in (
        ({"other": out}, "an output named 'out' is needed"),
        ({"out": out[:, :5]}, "shape (4, 5)"),
        ({"out": out.astype(np.float64)}, "dtype float64"),
        ({"out": np.zeros(out.shape, np.int32)}, "dtype int32"),
        # .safetensors can say bfloat16, so it must
        ({"out": codes(out)}, "dtype uint16" if kind == "safetensors" else ""),
        ({"out": out, "gated": np.zeros(3, np.float32)}, ""),
    ):
        done = run("compare", golden, write(tmp_path / f"x.{kind}", tensors))
        if says:
            assert done.code == 1
            assert says in done.out
        else:  # a stage is looked at when the output differs only
            assert done.code == 0


@pytest.mark.parametrize("kind", ["safetensors", "npz", "h5"])
def test_damaged_results_are_exit_3(run: Any, golden: Path, tmp_path: Path, kind: str) -> None:
    out = hdf5.read(golden).outputs["out"]
    path = write(tmp_path / f"x.{kind}", {"out": out})
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(content)
        done = run("compare", golden, path)
        assert done.code == 3, content[:10]
        assert done.err.startswith(f"Error: {path}: ")
        assert len(done.err.splitlines()) == 1


def test_h5_results_are_not_trusted(run: Any, golden: Path, tmp_path: Path) -> None:
    out = codes(hdf5.read(golden).outputs["out"])
    path = tmp_path / "x.h5"

    def soft(file: h5py.File) -> None:
        file["out"] = h5py.SoftLink("/hidden")

    def external_link(file: h5py.File) -> None:
        file["out"] = h5py.ExternalLink("other.h5", "/out")

    def external_storage(file: h5py.File) -> None:
        file.create_dataset("out", out.shape, out.dtype, external=[("raw.bin", 0, out.nbytes)])

    def group(file: h5py.File) -> None:
        file.create_group("out")

    def huge(file: h5py.File) -> None:
        file.create_dataset("out", (1 << 40,), np.uint16, chunks=(1024,))

    def text(file: h5py.File) -> None:
        file["out"] = "text"

    def virtual(file: h5py.File) -> None:
        layout = h5py.VirtualLayout(out.shape, out.dtype)
        layout[:] = h5py.VirtualSource("other.h5", "out", out.shape)
        file.create_virtual_dataset("out", layout)

    for hostile in (soft, external_link, external_storage, group, huge, text, virtual):
        with h5py.File(path, "w") as file:
            hostile(file)
        done = run("compare", golden, path)
        assert done.code == 3, hostile.__name__
        assert "Traceback" not in done.err


def test_usage(run: Any, golden: Path, tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("x")
    done = run("compare", golden, text)
    assert (done.code, done.err) == (
        2, "Error: RESULT: x.txt was given; allowed are .safetensors, .npz, .h5\n",
    )  # fmt: skip
    for result in ("x.npz", "x.h5", "x.safetensors"):
        done = run("compare", golden, tmp_path / result)
        assert done.code == 2
        assert done.err == f"Error: {tmp_path / result}: No such file or directory\n"
    assert run("compare", tmp_path / "no.h5", golden).code == 2
    assert run("compare", golden, tmp_path).code == 2
    assert run("compare", golden).code == 2
    assert run("compare", golden, golden, "--recipe", "nothing").code == 2
    npz = tmp_path / "x.npz"
    np.savez(npz, out=np.zeros(3, np.float32))
    assert run("compare", npz, golden).code == 3
