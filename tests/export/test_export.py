"""refkern export: the same bytes each time, and read back by others' readers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from safetensors import safe_open

from refkern.cli.main import main
from refkern.formats import FORMATS, codes, from_codes
from refkern.goldens import export as exports
from refkern.goldens import hdf5, inputs
from refkern.goldens.build import build, prepare, with_proofs
from refkern.goldens.export import KINDS, Kind, export
from refkern.goldens.golden import Golden, accept_tensors, content_tensors, encode
from refkern.goldens.selection import Selected, select

OP = "gated_group_rmsnorm"
FEW = ("nemotron_wide_gate", "gate_of_fused_projection", "nan_stays_in_its_group", "no_gate")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    for selected in select(FEW, op=OP):
        golden = with_proofs(build(selected), ["cuda", "wgsl"])
        hdf5.write(golden, folder / f"{selected.case.name}.h5")
    return folder


def every_dtype(tmp_path: Path) -> tuple[Path, Golden]:
    """A golden with a tensor of every narrow dtype, all bit patterns, and odd shapes."""
    stages = {
        name: from_codes(np.arange(1 << fmt.bits).astype(fmt.code_dtype), fmt)
        for name, fmt in FORMATS.items()
        if fmt.bits <= 16
    }
    golden = Golden(
        op=OP,
        case="every_dtype",
        tier="quick",
        recipe="modular-apple",
        params={"group_size": 1, "eps": 1e-5},
        inputs={"ids": np.arange(-3, 4), "empty": np.zeros((0, 3), np.float32)},
        stages=stages,
        outputs={"out": np.array([[1.5, np.nan]], np.float32)},
    )
    path = tmp_path / "every_dtype.h5"
    hdf5.write(golden, path)
    return path, golden


def files_below(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_golden_gives_the_same_bytes(kind: Kind, made: Path, tmp_path: Path) -> None:
    for out in ("a", "b"):
        for path in sorted(made.glob("*.h5"), reverse=out == "b"):
            export(path, tmp_path / out, kind)
    first, second = files_below(tmp_path / "a"), files_below(tmp_path / "b")
    assert first == second
    assert len(first) >= len(FEW)


#: SHA-256 of exports of a golden made of literals: other machines and versions give these bytes
PINNED = {
    "npz": "efedac40e5ffd402c43c2a82d26edc8488e0e7d87d752f198b753dae83862251",
    "safetensors": "00669345b238017d34e92792475b3e9e1ce05c3b4aa9d5b9e09162f3dc2136c6",
}


@pytest.mark.parametrize("kind", sorted(PINNED))
def test_the_bytes_are_those_of_other_machines(kind: Kind, tmp_path: Path) -> None:
    path, _ = every_dtype(tmp_path)
    written = export(path, tmp_path, kind).path
    assert hashlib.sha256(written.read_bytes()).hexdigest() == PINNED[kind]


def test_the_official_package_reads_safetensors(tmp_path: Path) -> None:
    """By its own names of the dtypes, and bit for bit; its numpy API has no fp8."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    path, golden = every_dtype(tmp_path)
    written = export(path, tmp_path, "safetensors").path
    assert written == tmp_path / OP / "every_dtype.safetensors"
    names = {"bfloat16": "BF16", "float16": "F16", "float8_e4m3fn": "F8_E4M3",
             "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0"}  # fmt: skip
    with safe_open(written, "pt") as file:
        told = json.loads(file.metadata()["refkern"])
        assert file.metadata().keys() == {"refkern"}
        assert {"op", "case", "recipe", "params", "axes", "content_sha256"} <= told.keys()
        assert set(file.keys()) == content_tensors(golden).keys()
        for number, (name, want) in enumerate(golden.stages.items()):
            key = f"stages/{number:02}_{name}"
            assert file.get_slice(key).get_dtype() == names[name]
            tensor = file.get_tensor(key)
            assert tensor.dtype == getattr(torch, name)
            carried = tensor.view(torch.uint8 if want.itemsize == 1 else torch.int16).numpy()
            assert np.array_equal(carried.view(codes(want).dtype), codes(want))
        assert file.get_tensor("inputs/empty").shape == (0, 3)
        assert file.get_tensor("inputs/ids").tolist() == [-3, -2, -1, 0, 1, 2, 3]


def test_the_official_package_reads_bfloat16_without_torch(made: Path, tmp_path: Path) -> None:
    path = made / "nemotron_wide_gate.h5"
    golden = hdf5.read(path)
    with safe_open(export(path, tmp_path, "safetensors").path, "np") as file:
        y = file.get_tensor("inputs/y")
    assert y.dtype == ml_dtypes.bfloat16
    assert np.array_equal(codes(y), codes(golden.inputs["y"]))


@pytest.mark.parametrize("case", FEW)
def test_an_npz_holds_everything(case: str, made: Path, tmp_path: Path) -> None:
    golden = hdf5.read(made / f"{case}.h5")
    everything = content_tensors(golden) | accept_tensors(golden)
    assert any(name.startswith("accept/") for name in everything)
    written = export(made / f"{case}.h5", tmp_path, "npz").path
    with np.load(written, allow_pickle=False) as archive:
        dtypes = json.loads(archive.zip.read("dtypes.json"))
        told = json.loads(archive.zip.read("refkern.json"))
        assert set(archive.files) == {*everything, "dtypes.json", "refkern.json"}
        for name, array in everything.items():
            assert dtypes[name] == str(array.dtype)
            assert archive[name].dtype == encode(array).dtype
            assert np.array_equal(archive[name], encode(array), equal_nan=array.dtype.kind == "f")
        assert all(member.date_time == (1980, 1, 1, 0, 0, 0) for member in archive.zip.infolist())
    assert told["params"] == golden.params


def test_raw_files_and_their_index(made: Path, tmp_path: Path) -> None:
    golden = hdf5.read(made / "gate_of_fused_projection.h5")
    folder = export(made / "gate_of_fused_projection.h5", tmp_path, "raw").path
    index = json.loads((folder / "index.json").read_text("utf-8"))
    everything = content_tensors(golden) | accept_tensors(golden)
    assert index["tensors"].keys() == everything.keys()
    for name, entry in index["tensors"].items():
        content = (folder / entry["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == entry["sha256"]
        fmt = FORMATS[entry["dtype"]]
        read = np.frombuffer(content, fmt.code_dtype.newbyteorder("<")).reshape(entry["shape"])
        assert np.array_equal(read, codes(everything[name]))
        assert entry["bytes"] == len(content)
    assert index["tensors"]["inputs/gate"]["row_stride"] == 8192
    assert index["tensors"]["inputs/gate"]["axes"] == "rows, width"
    assert "row_stride" not in index["tensors"]["inputs/y"]
    assert set(files_below(folder)) == {"index.json", *(f"{name}.bin" for name in everything)}


def test_described_inputs_are_made_again(tmp_path: Path) -> None:
    """A golden that holds sampled rows only; a small one, with the same description."""
    (selected,) = select(["nemotron_prefill"])
    case = selected.case
    tensors = {
        name: None if t is None else t.__class__(**{**t.__dict__, "shape": (8, 1920)})
        for name, t in case.inputs.items()
        if name != "weight"
    }
    weight = case.inputs["weight"]
    assert weight is not None
    tensors["weight"] = weight.__class__(**{**weight.__dict__, "shape": (1920,)})
    small = case.__class__(**{**case.__dict__, "inputs": tensors, "sampled_rows": (0, 5)})
    golden = build(Selected(selected.op, small)).golden
    assert golden.inputs == {}
    hdf5.write(golden, tmp_path / "sampled.h5")
    done = export(tmp_path / "sampled.h5", tmp_path / "out", "raw")
    index = json.loads((done.path / "index.json").read_text("utf-8"))
    assert done.left_out == ""
    assert index["input_recipe"] == golden.input_recipe
    for name, array in inputs.make_inputs(small).items():
        assert array is not None
        assert (done.path / f"inputs/{name}.bin").read_bytes() == encode(array).tobytes()
    assert index["tensors"]["sampled_rows"]["shape"] == [2]
    assert prepare(golden)[1].keys() == {"y", "gate", "weight"}

    done = export(tmp_path / "sampled.h5", tmp_path / "less", "raw", most_input_bytes=1000)
    assert "more than 1000" in done.left_out
    assert not (done.path / "inputs").exists()


def test_the_command(made: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> tuple[int, str, str]:
        ran = CliRunner().invoke(main, ["export", *map(str, arguments)])
        return ran.exit_code, ran.stdout, ran.stderr

    code, said, noted = run(made, "--to", "npz", "--out", tmp_path / "out")
    assert code == 0
    assert sorted(map(Path, said.splitlines())) == sorted((tmp_path / "out" / OP).iterdir())
    assert "4 exported" in noted
    assert run(made, "--to", "zip", "--out", tmp_path)[0] == 2
    assert run(made, "--to", "npz")[0] == 2
    assert run(tmp_path / "nix", "--to", "npz", "--out", tmp_path)[0] == 2
    (tmp_path / "empty").mkdir()
    assert run(tmp_path / "empty", "--to", "npz", "--out", tmp_path)[0] == 5
    (tmp_path / "damaged.h5").write_bytes((made / "no_gate.h5").read_bytes()[:-100])
    code, said, noted = run(tmp_path / "damaged.h5", made, "--to", "raw", "--out", tmp_path / "o")
    assert code == 3
    assert len(said.splitlines()) == 4
    assert "damaged.h5" in noted
    (tmp_path / "file").write_text("")
    assert run(made, "--to", "npz", "--out", tmp_path / "file")[0] == 2


def test_every_kind_is_an_option() -> None:
    assert set(exports.WRITERS) == set(KINDS)
    help_text = CliRunner().invoke(main, ["export", "--help"]).stdout
    assert all(kind in help_text for kind in KINDS)
