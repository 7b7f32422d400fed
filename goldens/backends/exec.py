"""Any program as a backend: PROGRAM IN.safetensors OUT.safetensors, once per case.

IN holds the inputs by name (an optional input that is not given is not there) and, in the metadata
key "refkern", one JSON object: schema, op, recipe, params.  The program writes its outputs, and
stages if it has them, by name into OUT and exits 0.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from refkern import ops
from refkern.errors import InvalidInput
from refkern.goldens import safetensors
from refkern.goldens.backends import TIMEOUT_SECONDS, Backend, Computed, Unavailable
from refkern.goldens.errors import DamagedFile
from refkern.goldens.golden import canonical_json

#: of what a program says on stderr, where its last line is looked for
LAST_BYTES = 4096


class ProgramFailed(Exception):
    """What the program did instead of writing its outputs; one line."""


def backend(command: str, timeout: float = TIMEOUT_SECONDS) -> Backend:
    """command: the program, and arguments before IN and OUT, as a shell would split them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InvalidInput("backend", repr(f"exec:{command}"), str(error)) from None
    if not words:
        raise InvalidInput("backend", "'exec:'", "exec:PROGRAM is needed")
    program = shutil.which(words[0])

    def version() -> str:
        if program is None:
            raise Unavailable(f"no program {words[0]!r} that can be run")
        return program

    def compute(
        op: str, inputs: dict[str, Any], params: dict[str, Any], *, recipe: str
    ) -> Computed:
        return run([version(), *words[1:]], op, inputs, params, recipe, timeout)

    return Backend(
        name=f"exec:{command}",
        summary="any program that reads and writes safetensors",
        compute=compute,
        policy="cuda",
        version=version,
    )


def run(
    program: Sequence[str],
    op: str,
    inputs: Mapping[str, np.ndarray | None],
    params: Mapping[str, Any],
    recipe: str,
    timeout: float,
) -> Computed:
    """One case: outputs and stages.  Raises ProgramFailed."""
    with tempfile.TemporaryDirectory(prefix="refkern-", ignore_cleanup_errors=True) as folder:
        given, wanted = Path(folder) / "in.safetensors", Path(folder) / "out.safetensors"
        description = {"schema": 1, "op": op, "recipe": recipe, "params": dict(params)}
        present = {n: np.ascontiguousarray(a) for n, a in inputs.items() if a is not None}
        safetensors.write(given, present, {"refkern": canonical_json(description)})
        _call([*program, str(given), str(wanted)], Path(folder) / "stderr", timeout)
        try:
            tensors, _ = safetensors.read(wanted)
        except FileNotFoundError:
            raise ProgramFailed("it exited 0 without writing its output file") from None
        except DamagedFile as error:
            where = f"{error.dataset}: " if error.dataset else ""
            raise ProgramFailed(f"its output file is damaged: {where}{error.what}") from None
    stages = {n: tensors.pop(n) for n in ops.load(op).stages[:-1] if n in tensors}
    return tensors, stages


def _call(words: Sequence[str], log: Path, timeout: float) -> None:
    """Run to the end, or end it and whatever it started."""
    with log.open("wb") as stderr:
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramFailed(f"it could not be started: {error.strerror}") from None
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ProgramFailed(f"no result after {timeout:g} s") from None
        finally:
            _end(process)
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"killed by {_signal_name(-code)}"
        raise ProgramFailed(": ".join([how, *_last_line(log)]))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the program's session; nothing is, where it ended by itself."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError, AttributeError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_BYTES))
        return file.read().decode(errors="replace").strip().splitlines()[-1:]
