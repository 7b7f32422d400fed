"""refkern verify: verdicts, exit codes, JSON."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import refkern
from refkern import ops
from refkern.goldens import backends, hdf5
from refkern.goldens.backends import Backend, Unsupported

OP = "gated_group_rmsnorm"
CASE_KEYS = {
    "case", "op", "rung", "elements", "mismatches", "max_ulp", "first_stage", "worst", "hint",
}  # fmt: skip
WORST_KEYS = {"index", "got", "got_bits", "lo", "hi", "expected", "ulp"}


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put a callable in the place of the backend of that name."""

    def put(compute: Any, name: str = "foreign") -> None:
        backend = Backend(name, "a test's", compute, "ieee", lambda: "1")
        load = backends.load
        monkeypatch.setattr(
            backends, "load", lambda n, *rest: backend if n == name else load(n, *rest)
        )

    return put


def by_mutant(mutant: str) -> Any:
    """A backend that computes what a mutant does."""

    def compute(op: str, inputs: Any, params: Any, *, recipe: str) -> Any:
        loaded = ops.load(op)
        call = loaded.check(**inputs, **params)
        (wrong,) = [m for m in loaded.part("mutants").MUTANTS if m.name == mutant]
        stages = wrong.stages(loaded, call, loaded.recipe(recipe).for_call(call))
        return {"out": stages.pop("out")}, stages

    return compute


def by_recipe(name: str) -> Any:
    def compute(op: str, inputs: Any, params: Any, *, recipe: str) -> Any:
        return {"out": getattr(refkern, op)(**inputs, **params, recipe=name)}

    return compute


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_refkerns_own_backends_reach_bits(run: Any, made: Path, backend: str) -> None:
    done = run("verify", made, "--backend", backend, "--json")
    assert done.code == 0
    document = done.json
    assert document["schema"] == 1
    assert (document["backend"], document["policy"]) == (backend, "ieee")
    assert document["summary"] == {"bits": 3, "accept": 0, "fail": 0, "skip": 0, "error": 0}
    for case in document["cases"]:
        assert case.keys() >= CASE_KEYS
        assert (case["rung"], case["mismatches"], case["worst"]) == ("bits", 0, None)
        assert case["elements"] > 0
    strict = run("verify", made, "--backend", backend, "--rung", "bits", "--threads", 1)
    assert strict.code == 0
    assert "bits of modular-apple" in strict.out


def test_a_file_named_twice_is_verified_once(run: Any, made: Path) -> None:
    file = made / OP / "mamba_ssm.h5"
    cases = run("verify", file, file, made / OP, "--backend", "numba", "--json").json["cases"]
    assert [Path(c["file"]).stem for c in cases] == [
        "mamba_ssm", "groups_of_7", "nemotron_wide_gate",
    ]  # fmt: skip


def test_a_sampled_case_is_verified_end_to_end(run: Any, sampled: Path) -> None:
    assert sampled.stat().st_size < 1 << 20
    golden = hdf5.read(sampled)
    assert (golden.inputs, golden.stages) == ({}, {})
    done = run("verify", sampled, "--backend", "numba", "--json")
    assert done.code == 0
    (case,) = done.json["cases"]
    assert (case["rung"], case["elements"]) == ("bits", 5 * 7680)


def test_a_wrong_kernel_is_named(run: Any, made: Path, foreign: Any) -> None:
    foreign(by_mutant("eps-dropped"))
    done = run("verify", made / OP / "groups_of_7.h5", "--backend", "foreign", "--json")
    assert done.code == 1
    assert done.json["summary"]["fail"] == 1
    (case,) = done.json["cases"]
    assert case["rung"] == "fail"
    assert case["hint"] == "bit-identical to mutant eps-dropped: the kernel left eps out"
    assert case["first_stage"] == "rstd"
    assert 0 < case["mismatches"] <= case["elements"] == 5 * 77
    worst = case["worst"]
    assert worst.keys() >= WORST_KEYS
    assert worst["ulp"] == case["max_ulp"] > 0
    golden = hdf5.read(made / OP / "groups_of_7.h5")
    want = golden.outputs["out"][tuple(worst["index"])]
    assert worst["expected"] == float(want)
    assert worst["expected_bits"] == f"0x{int(want.view(np.uint32)):08x}"
    text = run("verify", made / OP / "groups_of_7.h5", "--backend", "foreign")
    assert text.code == 1
    assert "first stage that differs: rstd" in text.out
    assert f"{worst['expected_bits']}): {worst['ulp']} ULP" in text.out


@pytest.mark.parametrize(
    ("mutant", "stage"),
    [("sigmoid", "gated"), ("size-minus-one", "rstd"), ("cast-added", "normalized")],
)  # fmt: skip
def test_the_first_stage_that_differs(
    run: Any, made: Path, foreign: Any, mutant: str, stage: str
) -> None:
    foreign(by_mutant(mutant))
    done = run("verify", made / OP / "mamba_ssm.h5", "--backend", "foreign", "--json")
    assert done.code == 1
    assert done.json["cases"][0]["first_stage"] == stage


def test_another_recipes_bits_fail_unless_any(run: Any, made: Path, foreign: Any) -> None:
    foreign(by_recipe("modular-cpu"))
    path = made / OP / "groups_of_7.h5"
    done = run("verify", path, "--backend", "foreign", "--json")
    assert done.code == 0
    assert done.json["cases"][0]["rung"] == "accept", "inside the interval of the case's own recipe"
    done = run("verify", path, "--backend", "foreign", "--rung", "bits", "--json")
    assert done.code == 1
    assert done.json["cases"][0]["hint"].startswith("bit-identical to recipe modular-cpu (Modular")
    anyone = run("verify", path, "--backend", "foreign", "--recipe", "any", "--json")
    assert anyone.code == 0
    assert anyone.json["cases"][0]["rung"] == "bits"
    assert anyone.json["cases"][0]["recipe"] == "modular-cpu"
    named = run("verify", path, "--backend", "foreign", "--recipe", "modular-cpu")
    assert named.code == 0
    assert "bits of modular-cpu" in named.out


def test_a_recipe_outside_its_domain_is_skipped(run: Any, made: Path) -> None:
    arguments = ("--backend", "numba", "--recipe", "modular-vector", "--json")
    done = run("verify", made, *arguments)
    assert done.code == 0
    assert done.json["summary"] == {"bits": 2, "accept": 0, "fail": 0, "skip": 1, "error": 0}
    only = run("verify", made / OP / "groups_of_7.h5", *arguments)
    assert only.code == 4
    assert "whole vectors" in only.json["cases"][0]["headline"]


def test_all_skipped_is_exit_4(run: Any, made: Path, foreign: Any) -> None:
    def compute(op: str, inputs: Any, params: Any, *, recipe: str) -> Any:
        raise Unsupported("not this one")

    foreign(compute)
    done = run("verify", made, "--backend", "foreign", "--json")
    assert done.code == 4
    assert done.json["summary"]["skip"] == 3


def test_a_backend_that_raises_is_an_error_of_its_own(run: Any, made: Path, foreign: Any) -> None:
    answers = iter(
        [
            lambda: 1 / 0, lambda: None, dict, lambda: {"out": np.zeros((5, 77))},
            lambda: {"out": np.zeros((77, 5), np.float32)}, lambda: {"out": "\x1b[31mred\nline"},
        ]
    )  # fmt: skip
    says = [
        "ZeroDivisionError", "foreign returned NoneType", "an output named 'out' is needed",
        "dtype float64 was given; float32 is needed", "shape (77, 5)", "dtype <U13",
    ]  # fmt: skip
    foreign(lambda op, inputs, params, *, recipe: next(answers)())
    for text in says:
        done = run("verify", made / OP / "groups_of_7.h5", "--backend", "foreign", "--json")
        assert done.code == 1, text
        (case,) = done.json["cases"]
        assert case["rung"] == "error"
        assert text in case["headline"]
        assert case["headline"].isprintable()


def test_nan_is_no_match_and_is_said(run: Any, made: Path, foreign: Any) -> None:
    foreign(lambda op, inputs, params, *, recipe: {"out": np.full((5, 77), np.nan, np.float32)})
    done = run("verify", made / OP / "groups_of_7.h5", "--backend", "foreign", "--json")
    assert done.code == 1
    (case,) = done.json["cases"]
    assert case["mismatches"] == case["elements"] == 385
    assert (case["worst"]["got"], case["worst"]["ulp"]) == ("nan", None)


def test_a_damaged_file_wins_over_a_mismatch(run: Any, goldens: Path, foreign: Any) -> None:
    foreign(by_mutant("eps-dropped"))
    assert run("verify", goldens, "--backend", "foreign").code == 1
    path = goldens / OP / "mamba_ssm.h5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    done = run("verify", goldens, "--backend", "foreign", "--json")
    assert done.code == 3
    assert done.json["summary"]["error"] == 1
    (case,) = [c for c in done.json["cases"] if c["rung"] == "error"]
    assert str(path) in case["headline"]
    assert "sha256" in case["headline"]


@pytest.mark.parametrize(
    "change",
    [
        {"op": "nothing"},
        {"recipe": "nothing"},
        {"params": {"group_size": 7}},
        {"params": {"group_size": 7, "eps": 1e-6, "limit": 1.0}},
        {"params": {"group_size": 8, "eps": 1e-6}},
        {"params": {"group_size": 7, "eps": -1.0}},
        {"recipe": "modular-vector"},
    ],
    ids=str,
)
def test_a_file_that_the_op_refuses(run: Any, goldens: Path, change: dict[str, Any]) -> None:
    path = goldens / OP / "groups_of_7.h5"
    hdf5.write(replace(hdf5.read(path), accept={}, **change), path)
    done = run("verify", path, "--backend", "numba", "--rung", "bits")
    right_anyway = change == {"params": {"group_size": 7}}  # eps is the default then: other bits
    assert done.code == (1 if right_anyway else 3)
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": {}},
        {"inputs": {"y": np.ones((5, 77), np.float32)}},
        {"inputs": {"x": np.ones((5, 77), np.float32)}},
        {"outputs": {"other": np.ones((5, 77), np.float32)}},
        {"outputs": {"out": np.ones((5, 76), np.float32)}},
    ],
    ids=["none", "one", "unknown", "output-name", "output-shape"],
)
def test_a_file_that_lacks_something(run: Any, goldens: Path, change: dict[str, Any]) -> None:
    path = goldens / OP / "groups_of_7.h5"
    hdf5.write(replace(hdf5.read(path), accept={}, **change), path)
    done = run("verify", path, "--backend", "numba")
    assert done.code == 3


@pytest.mark.parametrize(
    "recipe",
    [
        "[]",
        "{}",
        '{"seed":1,"tensors":{"y":{}}}',
        '{"seed":-1,"tensors":{}}',
        '{"seed":1,"tensors":{"y":{"dtype":"float32","shape":[1000000,1000000],"coarse":null,'
        '"edits":[],"row_stride":null,"fill":{"kind":"codes"}}}}',
        '{"seed":1,"tensors":{"y":{"dtype":"float32","shape":[4,-4],"coarse":null,'
        '"edits":[],"row_stride":null,"fill":{"kind":"codes"}}}}',
        '{"seed":1,"tensors":{"y":{"dtype":"float32","shape":[4,4],"coarse":null,'
        '"edits":[],"row_stride":null,"fill":{"kind":"uniform","exponent":"9"}}}}',
        '{"seed":1,"tensors":{"y":{"dtype":"int32","shape":[4,4],"coarse":null,'
        '"edits":[],"row_stride":null,"fill":{"kind":"codes"}}}}',
    ],
)
def test_a_description_of_inputs_is_not_trusted(run: Any, goldens: Path, recipe: str) -> None:
    path = goldens / OP / "groups_of_7.h5"
    golden = hdf5.read(path)
    rows = np.arange(5, dtype=np.int64)
    sampled = replace(golden, inputs={}, stages={}, axes={}, input_recipe=recipe, sampled_rows=rows)
    hdf5.write(sampled, path)
    done = run("verify", path, "--backend", "numba")
    assert done.code == 3
    assert "input_recipe" in done.out


def test_rows_that_are_not_there(run: Any, sampled: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    golden = hdf5.read(sampled)
    assert golden.sampled_rows is not None
    hdf5.write(replace(golden, sampled_rows=golden.sampled_rows + 1), path)
    done = run("verify", path, "--backend", "numba")
    assert done.code == 3
    assert "there are 2048 rows" in done.out


def test_nothing_found_or_compared_is_exit_5(run: Any, goldens: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run("verify", empty, "--backend", "numba")
    assert (done.code, done.err) == (5, "Error: no golden file was found\n")
    path = goldens / OP / "groups_of_7.h5"
    golden = hdf5.read(path)
    none = {name: a[:0] if a.ndim == 2 else a for name, a in golden.inputs.items()}
    stages = {name: a[:0] for name, a in golden.stages.items()}
    outputs = {"out": golden.outputs["out"][:0]}
    hdf5.write(replace(golden, inputs=none, stages=stages, outputs=outputs, accept={}), path)
    done = run("verify", path, "--backend", "numba")
    assert done.code == 5
    assert "0 elements compared" in done.out
    assert run("verify", goldens, "--backend", "numba").code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--backend", "nothing"), 2, "backend: 'nothing' was given; there are "),
        (("--backend", "numba:x"), 2, "backend: 'numba:x'"),
        (("--backend", "exec:"), 2, "exec:PROGRAM is needed"),
        (("--backend", "exec:'"), 2, "No closing quotation"),
        (("--backend", "exec:/nothing/at/all"), 4, "no program '/nothing/at/all'"),
        (("--backend", "numba", "--recipe", "nothing"), 2, "recipe: 'nothing' was given"),
        (("--backend", "numba", "--rung", "nothing"), 2, "'nothing' is not one of"),
        (("--backend", "numba", "--threads", "99"), 2, "n: 99 was given"),
        ((), 2, "Missing option '--backend'"),
    ],
)
def test_what_is_refused(run: Any, made: Path, arguments: Any, code: int, says: str) -> None:
    done = run("verify", made, *arguments)
    assert done.code == code
    assert says in done.err
    assert "Traceback" not in done.err
    assert done.out == ""


def test_paths_that_are_not_there(run: Any, made: Path) -> None:
    done = run("verify", made, "nothing.h5", "--backend", "numba")
    assert (done.code, done.err) == (2, "Error: nothing.h5: no such file or folder\n")
    assert run("verify", "--backend", "numba").code == 2
