"""The CUDA backend: what can be said without a GPU, and where there is one, its bits."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.goldens import backends
from refkern.goldens.backends import Unavailable, cuda
from refkern.goldens.backends.cuda import library

SOURCES = sorted(Path(cuda.__file__).parent.glob("*.cu"))


def why_no_gpu() -> str:
    try:
        backends.load("cuda").version()
    except Unavailable as reason:
        return str(reason)
    return ""


def test_without_a_gpu_it_says_why() -> None:
    reason = why_no_gpu()
    if not reason:
        pytest.skip("there is a GPU")
    assert "NVIDIA" in reason or "nvcc" in reason
    with pytest.raises(Unavailable, match="cuda:NUMBER is needed"):
        backends.load("cuda", "cuda:first").version()
    assert backends.load("cuda").policy == "cuda"


@pytest.mark.parametrize(
    ("device", "index"), [(None, 0), ("cuda", 0), ("cuda:0", 0), ("cuda:3", 3), ("1", 1)]
)
def test_device_names(device: str | None, index: int) -> None:
    assert library.device_index(device) == index


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    """As far as PTX for Hopper, which is quicker than the whole way."""
    try:
        nvcc, _ = library.toolkit()
    except Unavailable as reason:
        pytest.skip(str(reason))
    assert len(SOURCES) == 5
    flags = [flag for flag in library.FLAGS if flag.startswith(("-std", "--fmad", "-O"))]
    command = [nvcc, "-ptx", "-arch=sm_90a", "-Werror", "all-warnings", *flags]
    command += ["-odir", str(tmp_path), *map(str, SOURCES)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    ptx = {source.stem: (tmp_path / f"{source.stem}.ptx").read_text() for source in SOURCES}
    assert "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32" in ptx["block_scaled_mlp"]
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in ptx["grouped_matmul"]
    # expf, rsqrtf and Mojo's two; nothing else is approximated, and no division.
    inexact = set(re.findall(r"\w+\.(?:approx|full)[\w.]*", "".join(ptx.values())))
    assert inexact == {"ex2.approx.ftz.f32", "rsqrt.approx.f32", "rsqrt.approx.ftz.f32"}


def test_a_library_is_compiled_once_and_for_its_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def compile_nothing(command: list[str], **more: object) -> subprocess.CompletedProcess:
        commands.append(command)
        Path(command[command.index("-o") + 1]).write_text("a library")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(library, "toolkit", lambda: ("nvcc", "13.0"))
    monkeypatch.setattr(library.subprocess, "run", compile_nothing)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = library.compiled("sm_90a")
    assert first.parent == tmp_path / "refkern" / "cuda"
    assert library.compiled("sm_90a") == first
    assert len(commands) == 1
    assert library.compiled("sm_80") != first
    monkeypatch.setattr(library, "toolkit", lambda: ("nvcc", "13.1"))
    assert library.compiled("sm_90a") != first
    assert len(commands) == 3
    assert sorted(p.suffix for p in first.parent.iterdir()) == [".so"] * 3


def test_a_compiler_that_fails_is_no_backend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(command: list[str], **more: object) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(command, 2, "", "error: no\nsuch thing")

    monkeypatch.setattr(library, "toolkit", lambda: ("nvcc", "13.0"))
    monkeypatch.setattr(library.subprocess, "run", fail)
    with pytest.raises(Unavailable, match="nvcc fails: error: no such thing"):
        library.compiled("sm_90a", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("columns", [1, 4, 33, 64, 100, 128, 1000, 1024, 4096])
def test_rows_are_shared_as_the_recipes_say(columns: int) -> None:
    """The kernel's plan, from the route's name alone, against the recipe's own."""
    recipes = ops.load("gated_rmsnorm").recipes
    for name, (across, vector) in cuda.ROUTES.items():
        if columns % vector:
            continue
        order = recipes[name].route.schedule(columns)
        lanes, part = cuda.shares(across, columns // vector)
        assert (lanes, vector) == (order.lanes, order.vector), name
        assert part == (order.subgroup or order.lanes), name


def test_tiles_cover_every_row_once() -> None:
    tiles = [*cuda.tiles_of(0, 3, -1), *cuda.tiles_of(3, 40, 2), *cuda.tiles_of(40, 40, 1)]
    rows = [row for first, count, _ in tiles for row in range(first, first + count)]
    assert rows == list(range(40))
    assert all(count <= cuda.TILE_ROWS for _, count, _ in tiles)


def test_short_groups_are_filled_up_by_zeros() -> None:
    codes = refkern.cast(np.ones((2, 130), np.float32), "float8_e4m3fn")
    filled = cuda.filled_up(codes)
    assert filled.shape == (2, 256)
    assert filled.view(np.uint8)[:, 130:].max() == 0
    assert (filled[:, :130].view(np.uint8) == codes.view(np.uint8)).all()


def test_bits_on_a_gpu() -> None:
    """Its bfloat16 and order-free outputs are the recipes' bits; more in tests/exhaustive."""
    reason = why_no_gpu()
    if reason:
        pytest.skip(reason)
    backend = backends.load("cuda")
    random = np.random.default_rng(0)
    y, gate = (refkern.cast(random.uniform(-3, 3, (3, 512)), "bfloat16") for _ in range(2))
    weight = np.ones(512, np.float32)
    inputs = {"y": y, "gate": gate, "weight": weight}
    outputs, _ = backend(
        "gated_group_rmsnorm", inputs, {"group_size": 128}, recipe="modular-nvidia-sm90"
    )
    verdict = refkern.check(
        "gated_group_rmsnorm", outputs["out"], recipe="modular-nvidia-sm90", group_size=128,
        **inputs,
    )  # fmt: skip
    assert verdict.rung == "bits", str(verdict)
