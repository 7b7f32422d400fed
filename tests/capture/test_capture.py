"""Live calls become cases that verify."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import refkern
import refkern.goldens
from refkern import gated_group_rmsnorm as by_name
from refkern.cli.main import main
from refkern.formats import codes
from refkern.goldens import hdf5
from refkern.goldens.results import read_results
from refkern.goldens.selection import find_files
from refkern.op import Op

OP = "gated_group_rmsnorm"
capture = refkern.goldens.capture


def arguments(seed: int, rows: int = 3, width: int = 64) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y, gate = rng.normal(size=(2, rows, width)).astype(np.float32)
    return {"y": y, "gate": gate, "weight": np.ones(width, np.float32), "group_size": 32}


def test_calls_of_a_public_function_become_cases_that_verify(tmp_path: Path) -> None:
    run = Op.run
    wide = np.ones((3, 200), np.float32)
    with capture(tmp_path) as c:
        first = refkern.gated_group_rmsnorm(**arguments(1))
        by_name(**arguments(2), recipe="mamba-ssm")  # imported by name, and still seen
        refkern.gated_group_rmsnorm(**arguments(1))  # the same once more
        refkern.gated_group_rmsnorm(**{**arguments(3), "gate": wide[:, 100:164]})
        refkern.gated_group_rmsnorm(**{**arguments(3), "gate": None})
    assert Op.run is run
    refkern.gated_group_rmsnorm(**arguments(9))
    assert c.counts == {"written": 4, "duplicate": 1}
    assert find_files([tmp_path]) == sorted(c.files)
    goldens = [hdf5.read(path) for path in c.files]
    assert [g.recipe for g in goldens] == ["modular-apple", "mamba-ssm"] + 2 * ["modular-apple"]
    assert {g.tier for g in goldens} == {"captured"}
    assert [g.row_strides for g in goldens] == [{}, {}, {"gate": 200}, {}]
    assert "gate" not in goldens[3].inputs
    assert goldens[0].params == {"group_size": 32, "eps": 1e-5}
    assert np.array_equal(codes(goldens[0].outputs["out"]), codes(first))
    for backend in ("numpy", "numba"):
        ran = CliRunner().invoke(
            main, ["verify", str(tmp_path), "--backend", backend, "--rung", "bits"]
        )
        assert ran.exit_code == 0, ran.output


def test_as_a_decorator(tmp_path: Path) -> None:
    c = capture(tmp_path)

    @c
    def serve() -> Any:
        return refkern.gated_group_rmsnorm(**arguments(1))

    serve()
    refkern.gated_group_rmsnorm(**arguments(2))
    serve()
    assert c.counts == {"written": 1, "duplicate": 1}


def test_an_input_that_the_call_overwrites(tmp_path: Path) -> None:
    given = arguments(1)
    original = given["y"].copy()
    with capture(tmp_path) as c:
        refkern.gated_group_rmsnorm(**given, out=given["y"])
    golden = hdf5.read(c.files[0])
    assert np.array_equal(golden.inputs["y"], original)
    assert np.array_equal(golden.outputs["out"], given["y"])


def wrong_kernel(x: Any, z: Any, w: Any, groups: int) -> Any:
    """Another signature, and a fault."""
    x[...] = x * 2  # and it spoils its input
    return x


def test_a_registered_callable(tmp_path: Path) -> None:
    def takes(x: Any, z: Any, w: Any, groups: int) -> dict[str, Any]:
        return {"y": x, "gate": z, "weight": w, "group_size": x.shape[1] // groups}

    c = capture(tmp_path)
    kernel = c.kernel(OP, recipe="mamba-ssm", takes=takes)(wrong_kernel)
    given = arguments(1)
    kernel(given["y"].copy(), given["gate"], given["weight"], 2)
    assert c.counts == {}  # not active
    with c:
        returned = kernel(given["y"].copy(), given["gate"], given["weight"], 2)
        own = c.kernel(OP)(lambda *args, **more: refkern.gated_group_rmsnorm(*args, **more))
        own(**arguments(5))
    assert c.counts == {"written": 2, "duplicate": 1}  # the kernel's own call of refkern
    golden = hdf5.read(c.files[0])
    want = refkern.gated_group_rmsnorm(**given, recipe="mamba-ssm")
    assert golden.recipe == "mamba-ssm"
    assert np.array_equal(codes(golden.outputs["out"]), codes(want))
    beside = c.files[0].with_suffix(".obtained.h5")
    assert np.array_equal(read_results(beside, golden)[0]["out"], returned)
    assert beside not in find_files([tmp_path])


def test_torch_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    given = {
        name: torch.from_numpy(v).to(torch.bfloat16) if isinstance(v, np.ndarray) else v
        for name, v in arguments(1).items()
    }
    with capture(tmp_path) as c:
        out = refkern.gated_group_rmsnorm(**given)
        c.kernel(OP)(lambda **more: refkern.reference.gated_group_rmsnorm(**more)["out"])(**given)
    assert out.dtype == torch.bfloat16
    golden = hdf5.read(c.files[0])
    assert golden.inputs["y"].dtype.name == "bfloat16"
    assert c.counts["error"] == 0


def test_limits(tmp_path: Path) -> None:
    with capture(tmp_path / "a", most_cases=2) as c:
        for seed in range(4):
            refkern.gated_group_rmsnorm(**arguments(seed))
    assert c.counts == {"written": 2, "over the limit": 2}
    one = 3 * 64 * 4 * 3 + 64 * 4
    with capture(tmp_path / "b", most_bytes_each=one) as c:
        refkern.gated_group_rmsnorm(**arguments(1))
        refkern.gated_group_rmsnorm(**arguments(1, rows=4))
    assert c.counts == {"written": 1, "too large": 1}
    with capture(tmp_path / "c", most_bytes=2 * one) as c:
        for seed in range(3):
            refkern.gated_group_rmsnorm(**arguments(seed))
    assert c.counts == {"written": 2, "over the limit": 1}


def test_an_error_of_the_capture_is_not_the_caller_s(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING), capture(tmp_path / "file") as c:
        out = refkern.gated_group_rmsnorm(**arguments(1))
        odd = c.kernel(OP)(lambda text: text)
        assert odd("no arguments of this op") == "no arguments of this op"
    assert np.array_equal(out, refkern.gated_group_rmsnorm(**arguments(1)))
    assert c.counts == {"error": 2}
    assert "2 error; the first error: NotADirectoryError" in caplog.text
    with capture(tmp_path / "x") as c, pytest.raises(refkern.InvalidInput):
        refkern.gated_group_rmsnorm(**{**arguments(1), "group_size": 7})
    assert c.counts == {}
    with pytest.raises(refkern.InvalidInput):
        c.kernel("softmax")


def test_captures_overlap_in_any_order(tmp_path: Path) -> None:
    run = Op.run
    a, b = capture(tmp_path / "a"), capture(tmp_path / "b")
    a.__enter__()
    refkern.gated_group_rmsnorm(**arguments(1))
    b.__enter__()
    refkern.gated_group_rmsnorm(**arguments(2))
    a.__exit__()
    refkern.gated_group_rmsnorm(**arguments(3))
    b.__exit__()
    assert (a.counts["written"], b.counts["written"]) == (2, 2)
    assert Op.run is run


def test_many_threads(tmp_path: Path) -> None:
    """Each case once, and every call with its own result."""
    results: dict[tuple[int, int], np.ndarray] = {}

    def work(worker: int) -> None:
        for seed in range(6):
            results[worker, seed] = refkern.gated_group_rmsnorm(**arguments(seed))

    with capture(tmp_path, most_cases=5) as c:
        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert c.counts["written"] == 5 == len(find_files([tmp_path]))
    assert c.counts["error"] == 0
    assert sum(c.counts.values()) == 36
    for (_, seed), out in results.items():
        assert np.array_equal(out, results[0, seed])
