"""Any program as a backend: PROGRAM IN.safetensors OUT.safetensors, once per case.

IN holds the inputs by name and, in the metadata key "refkern", one JSON object: schema, op,
recipe, params.  The program writes its outputs (and stages, if it has them) by name and exits 0.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
from refkern.goldens import safetensors
from refkern.goldens.backends import Backend, Computed, Unavailable
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import canonical_json

from refkern import ops
from refkern.errors import InvalidInput

#: a case that takes longer is reported as an error
TIMEOUT_SECONDS = 300.0


def backend(command: str) -> Backend:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput("backend", repr(f"exec:{command}"), str(error)) from None
    if not words:
        raise InvalidInput("backend", "'exec:'", "exec:PROGRAM is needed")
    program = shutil.which(words[0])

    def compute(op: str, inputs: dict, params: dict, *, recipe: str) -> Computed:
        assert program is not None
        return run([program, *words[1:]], op, inputs, params, recipe)

    def version() -> str:
        if program is None:
            raise Unavailable(f"no program {words[0]!r} that can be run")
        return program

    return Backend(
        name=f"exec:{command}",
        summary="any program that reads and writes safetensors",
        compute=compute,
        policy="cuda",
        version=version,
    )


class ProgramFailed(Exception):
    """What the program did instead of writing its outputs; one line."""


def run(
    program: list[str], op: str, inputs: dict, params: dict, recipe: str,
    timeout: float = TIMEOUT_SECONDS,
) -> Computed:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="refkern-") as folder:
        given, wanted = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
        description = {"schema": 1, "op": op, "recipe": recipe, "params": params}
        present = {n: np.ascontiguousarray(a) for n, a in inputs.items() if a is not None}
        safetensors.write(given, present, {"refkern": canonical_json(description)})
        try:
            done = subprocess.run(
                [*program, str(given), str(wanted)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"no result after {timeout:g} s") from None
        except OSError as error:
            raise ProgramFailed(f"it could not be started: {error.strerror}") from None
        if done.returncode != 0:
            how = (
                f"exit code {done.returncode}"
                if done.returncode > 0
                else f"killed by signal {-done.returncode}"
            )
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise ProgramFailed(": ".join([how, *last]))
        if not wanted.exists():
            raise ProgramFailed("it exited 0 without writing its output file")
        try:
            tensors, _ = safetensors.read(wanted)
        except DamagedFile as error:
            raise ProgramFailed(f"its output file is damaged: {error.what}") from None
    known = ops.load(op).stages
    stages = {name: tensors.pop(name) for name in known[:-1] if name in tensors}
    return tensors, stages
