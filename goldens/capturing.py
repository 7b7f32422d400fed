"""Live calls -> case files: `refkern.goldens.capture`.

Every public function goes through `Op.run`, so that is where its calls are seen, however the
caller got hold of the function.  Other callables are seen where they are registered.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ContextDecorator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import refkern
from refkern import arguments, ops
from refkern.goldens import frameworks, hdf5, obtained
from refkern.goldens.golden import Golden, content_sha256
from refkern.op import Call, Op
from refkern.recipe import Recipe

log = logging.getLogger("refkern.capture")
#: the tier of cases that were not made but met
TIER = "captured"


class Capture(ContextDecorator):
    """Writes calls made while it is active to ``folder``/OP/captured_HASH.h5.

    A context manager, or a decorator of the function during which calls are captured.  Calls with
    the same op, recipe, parameters and inputs are one case.  A captured case holds inputs and
    output, no stages and no intervals: those are computed when it is verified.

    most_cases, most_bytes: of all cases of this capture; most_bytes_each: of one.  What is beyond
    is only counted.  Nothing that goes wrong here reaches the caller: it is counted, and said by
    the logger "refkern.capture" when the capture ends.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        most_cases: int = 64,
        most_bytes_each: int = 16 << 20,
        most_bytes: int = 256 << 20,
    ) -> None:
        self.folder = Path(folder)
        self.most_cases, self.most_bytes = most_cases, most_bytes
        self.most_bytes_each = most_bytes_each
        #: the files written, in order
        self.files: list[Path] = []
        #: written, duplicate, too large, over the limit, error
        self.counts: Counter[str] = Counter()
        #: what went wrong the first time
        self.first_error = ""
        self._lock = threading.Lock()
        self._seen: set[str] = set()
        self._bytes = 0
        self._depth = 0

    def __enter__(self) -> Capture:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                _activate(self)
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._depth -= 1
            if self._depth:
                return
            _deactivate(self)
        if self.counts["error"]:
            log.warning("%s; the first error: %s", self.summary(), self.first_error)
        else:
            log.info("%s", self.summary())

    @property
    def active(self) -> bool:
        return self._depth > 0

    def summary(self) -> str:
        said = ", ".join(f"{number} {what}" for what, number in sorted(self.counts.items()))
        return f"captured calls in {self.folder}: {said or 'none'}"

    def kernel(
        self,
        op: str,
        *,
        recipe: str | None = None,
        takes: Callable[..., Mapping[str, Any]] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A decorator of any callable that computes ``op``: its calls are captured too.

        recipe: whose bits the case holds; None: the op's default.  takes: the callable's own
        arguments -> the op's arguments by name, where the two signatures differ.  What the
        callable returned is kept beside the case as captured_HASH.obtained.h5.

        Raises InvalidInput for an unknown op or recipe.
        """
        loaded = ops.load(op)
        wanted = loaded.recipe(recipe)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not self.active or getattr(_here, "busy", False):
                    return function(*args, **kwargs)
                taken = self._guarded(self._taken, loaded, wanted, takes, args, kwargs)
                result = function(*args, **kwargs)
                if taken is not None:
                    self._guarded(self._keep_foreign, loaded, *taken, result)
                return result

            return wrapper

        return decorate

    def _taken(
        self, op: Op, recipe: Recipe, takes: Any, args: Any, kwargs: Any
    ) -> tuple[Call, Recipe, Golden] | None:
        """The call's arguments as the op understands them, copied: the kernel may overwrite."""
        if takes is not None:
            args, kwargs = (), dict(takes(*args, **kwargs))
        call = op.check(*map(_on_cpu, args), **{name: _on_cpu(v) for name, v in kwargs.items()})
        chosen = recipe.for_call(call)
        golden = self._before(op, call, chosen)
        return None if golden is None else (call, chosen, golden)

    def _keep_foreign(
        self, op: Op, call: Call, chosen: Recipe, golden: Golden, result: Any
    ) -> None:
        # From the copies: the kernel may have written into the caller's arrays.
        copied = Call({n: golden.inputs.get(n) for n in call.inputs}, call.params)
        path = self._keep(golden, _run(op, copied, chosen))
        got = {"out": frameworks.to_numpy("out", result)}
        if path is not None:
            obtained.write(got, path, lambda: path.parent)

    def _before(self, op: Op, call: Call, recipe: Recipe) -> Golden | None:
        """The case without its output; None where it is not to be kept."""
        inputs = {name: array for name, array in call.inputs.items() if array is not None}
        shape, dtype = op.output(call)
        output_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        size = sum(array.nbytes for array in inputs.values()) + output_bytes
        with self._lock:
            if size > self.most_bytes_each:
                self.counts["too large"] += 1
                return None
            if len(self._seen) >= self.most_cases or self._bytes + size > self.most_bytes:
                self.counts["over the limit"] += 1
                return None
        names = [*inputs, "out"]
        return Golden(
            op=op.name,
            case="captured",
            tier=TIER,
            recipe=recipe.name,
            params=dict(call.params),
            inputs={name: np.array(array, order="C") for name, array in inputs.items()},
            stages={},
            outputs={},
            axes={name: op.axes[name] for name in names if name in op.axes},
            row_strides=_row_strides(inputs),
            provenance={"refkern": refkern.__version__, "purpose": "a live call"},
        )

    def _keep(self, golden: Golden, out: np.ndarray) -> Path | None:
        """Write the case, unless the same is there already."""
        key = content_sha256(golden)
        size = sum(array.nbytes for array in golden.inputs.values()) + out.nbytes
        with self._lock:
            if key in self._seen:
                self.counts["duplicate"] += 1
                return None
            # Again, now that it is certain: other threads may have filled what was left.
            if len(self._seen) >= self.most_cases or self._bytes + size > self.most_bytes:
                self.counts["over the limit"] += 1
                return None
            self._seen.add(key)
            self._bytes += size
        name = f"captured_{key[:16]}"
        path = self.folder / golden.op / f"{name}.h5"
        whole = replace(golden, case=name, outputs={"out": np.array(out)})
        path.parent.mkdir(parents=True, exist_ok=True)
        hdf5.write(whole, path)
        with self._lock:
            self.files.append(path)
            self.counts["written"] += 1
        return path

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        """The function's result; None, and the error counted, where it raises."""
        _here.busy = True
        try:
            return function(*args)
        except Exception as error:
            # Whatever it is: the caller's call must go on.
            with self._lock:
                self.counts["error"] += 1
                self.first_error = self.first_error or f"{type(error).__name__}: {error}"
            return None
        finally:
            _here.busy = False


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if arguments.is_torch(value) else value


def _row_strides(inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Inputs of two axes whose rows lie apart, as views of a wider buffer do."""
    found = {}
    for name, array in inputs.items():
        if array.ndim != 2 or array.size == 0 or array.flags.c_contiguous:
            continue
        rows_apart, step = array.strides
        elements, rest = divmod(rows_apart, array.itemsize)
        # Farther apart than this is a gather of single rows, not a view of a projection.
        usual = array.shape[1] <= elements <= 64 * array.shape[1]
        if step == array.itemsize and rest == 0 and usual:
            found[name] = elements
    return found


#: whether this thread is capturing right now: its own calls are none of the caller's
_here = threading.local()
_registry = threading.Lock()
_active: list[Capture] = []
_run = Op.run


def _activate(capture: Capture) -> None:
    with _registry:
        if not _active:
            Op.run = _observed_run  # type: ignore[assignment, method-assign]
        _active.append(capture)


def _deactivate(capture: Capture) -> None:
    with _registry:
        _active.remove(capture)
        if not _active:
            Op.run = _run  # type: ignore[method-assign]


def _observed_run(op: Op, call: Call, recipe: Recipe, out: np.ndarray | None = None) -> np.ndarray:
    with _registry:
        watching = () if getattr(_here, "busy", False) else tuple(_active)
    # Before the call: ``out`` may be one of the inputs.
    before = [(c, c._guarded(c._before, op, call, recipe)) for c in watching]
    result = _run(op, call, recipe, out)
    for capture, golden in before:
        if golden is not None:
            capture._guarded(capture._keep, golden, result)
    return result
