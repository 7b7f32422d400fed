"""exec:PROGRAM: a program that reads and writes safetensors, and every way it can fail."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from refkern import ops

OP = "gated_group_rmsnorm"
#: a program in another language knows no refkern: this one reads the file by its definition
PROGRAM = """
import json, os, signal, struct, sys, time

MODE, GIVEN, WANTED = sys.argv[1:4]
data = open(GIVEN, "rb").read()
(length,) = struct.unpack("<Q", data[:8])
header = json.loads(data[8:8 + length])
told = json.loads(header.pop("__metadata__")["refkern"])
assert told.keys() == {"schema", "op", "recipe", "params"}, told
assert told["schema"] == 1

def tensor(name):
    start, stop = header[name]["data_offsets"]
    return header[name]["dtype"], header[name]["shape"], data[8 + length:][start:stop]

def write(tensors):
    entries, body = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        offsets = [len(body), len(body) + len(content)]
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        body += content
    text = json.dumps(entries).encode()
    with open(WANTED, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)

if MODE == "crash":
    print("first line", file=sys.stderr)
    print("\\033[31mno device found", file=sys.stderr)
    sys.exit(3)
if MODE == "killed":
    os.kill(os.getpid(), signal.SIGSEGV)
if MODE == "slow":
    if os.fork() == 0:
        time.sleep(60)
    time.sleep(60)
if MODE == "silent":
    sys.exit(0)

import numpy as np
import refkern
from refkern.formats import FORMATS, codes

names = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
arrays = {}
for name in header:
    dtype, shape, content = tensor(name)
    fmt = FORMATS[names[dtype]]
    arrays[name] = np.frombuffer(content, fmt.code_dtype).view(fmt.dtype).reshape(shape)
gate = arrays.pop("gate", None)
stages = getattr(refkern.reference, told["op"])(
    **arrays, gate=gate, **told["params"], recipe=told["recipe"]
)
short = {name: code for code, name in names.items()}
made = {
    name: (short[str(a.dtype)], list(a.shape), codes(a).tobytes()) for name, a in stages.items()
}
dtype, shape, content = made["out"]
if MODE == "good":
    write(made)
elif MODE == "only-out":
    write({"out": made["out"]})
elif MODE == "missing":
    write({"gated": made["gated"]})
elif MODE == "wrong-dtype":
    write({"out": ("F16" if dtype == "BF16" else "I32", shape, content)})
elif MODE == "wrong-shape":
    write({"out": (dtype, shape[::-1], content)})
elif MODE == "nan":
    nan = b"\\xc0\\x7f" if dtype == "BF16" else b"\\x00\\x00\\xc0\\x7f"
    write({"out": (dtype, shape, nan * (len(content) // len(nan)))})
elif MODE == "short":
    write(made)
    os.truncate(WANTED, os.path.getsize(WANTED) - 1)
elif MODE == "no-safetensors":
    open(WANTED, "wb").write(b"nothing of the kind")
elif MODE == "one-bit":
    flipped = bytearray(content)
    flipped[0] ^= 1
    write({**made, "out": (dtype, shape, bytes(flipped))})
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("a program") / "kernel.py"
    path.write_text(PROGRAM)
    return shlex.join([sys.executable, str(path)])


@pytest.fixture
def case(made: Path) -> Path:
    return made / OP / "mamba_ssm.h5"


def test_a_good_program_reaches_bits(run: Any, made: Path, program: str) -> None:
    done = run("verify", made, "--backend", f"exec:{program} good", "--json")
    assert done.code == 0, done.out
    assert done.json["summary"]["bits"] == 3
    assert done.json["policy"] == "cuda"
    assert done.json["backend"] == f"exec:{program} good"


def test_an_input_that_is_none_is_not_in_the_file(run: Any, program: str, tmp_path: Path) -> None:
    assert run("golden", "no_gate", "--out", tmp_path).code == 0
    done = run("verify", tmp_path, "--backend", f"exec:{program} only-out")
    assert done.code == 0, done.out


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("crash", "ProgramFailed: exit code 3: [31mno device found"),
        ("killed", "ProgramFailed: killed by SIGSEGV"),
        ("silent", "ProgramFailed: it exited 0 without writing its output file"),
        ("missing", "outputs: none was given; an output named 'out' is needed"),
        ("wrong-dtype", "got: dtype float16 was given; bfloat16 is needed"),
        ("wrong-shape", "got: shape (2048, 4) was given; (4, 2048) is needed"),
        ("short", "ProgramFailed: its output file is damaged: is truncated"),
        ("no-safetensors", "ProgramFailed: its output file is damaged: "),
    ],
)
def test_a_program_that_fails_is_an_error(
    run: Any, case: Path, program: str, mode: str, says: str
) -> None:
    done = run("verify", case, "--backend", f"exec:{program} {mode}", "--json")
    assert done.code == 1
    assert done.json["summary"] == {"bits": 0, "accept": 0, "fail": 0, "skip": 0, "error": 1}
    (found,) = done.json["cases"]
    assert found["rung"] == "error"
    assert found["headline"].startswith(says)
    assert found["headline"].isprintable()


@pytest.mark.parametrize(("mode", "mismatches"), [("nan", 8192), ("one-bit", 1)])
def test_wrong_values_fail(run: Any, case: Path, program: str, mode: str, mismatches: int) -> None:
    done = run("verify", case, "--backend", f"exec:{program} {mode}", "--json")
    assert done.code == 1
    (found,) = done.json["cases"]
    assert (found["rung"], found["mismatches"]) == ("fail", mismatches)
    assert found["first_stage"] == ("out" if mode == "one-bit" else None)


def test_a_slow_program_is_ended_with_its_children(run: Any, case: Path, program: str) -> None:
    before = time.monotonic()
    done = run("verify", case, "--backend", f"exec:{program} slow", "--timeout", 2, "--json")
    assert time.monotonic() - before < 50  # not the child's minute
    assert done.code == 1
    assert done.json["cases"][0]["headline"] == "ProgramFailed: no result after 2 s"


def test_a_program_that_is_not_there_is_exit_4(run: Any, case: Path, tmp_path: Path) -> None:
    plain = tmp_path / "not-executable"
    plain.write_text("x")
    for name in ("/nothing/at/all", "no-such-program-anywhere", str(plain)):
        done = run("verify", case, "--backend", f"exec:{name}")
        assert done.code == 4
        assert done.err == f"Error: backend exec:{name}: no program {name!r} that can be run\n"


def test_a_program_that_cannot_start_is_an_error(run: Any, case: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/nothing/at/all\n")
    broken.chmod(0o755)
    done = run("verify", case, "--backend", f"exec:{broken}", "--json")
    assert done.code == 1
    assert "could not be started" in done.json["cases"][0]["headline"]


def test_the_timeout_is_a_positive_number(run: Any, case: Path) -> None:
    for value in ("0", "-1", "soon"):
        assert run("verify", case, "--backend", "numba", "--timeout", value).code == 2


def test_nothing_is_left_behind(
    run: Any, case: Path, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    for mode in ("only-out", "crash", "short"):
        run("verify", case, "--backend", f"exec:{program} {mode}")
    assert list(tmp_path.iterdir()) == []
    assert ops.load(OP).stages[-1] == "out"
