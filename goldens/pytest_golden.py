"""The object behind the pytest fixture `golden`: one golden file, and the check of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from refkern.errors import InvalidInput
from refkern.goldens import frameworks, hdf5, obtained
from refkern.goldens.build import prepare
from refkern.goldens.details import as_text
from refkern.goldens.errors import DamagedFile
from refkern.goldens.inputs import with_strides
from refkern.goldens.policy_files import find_policy
from refkern.goldens.reports import failure_lines
from refkern.goldens.verify import Options, Report, judge


class Golden:
    """A golden case: ``golden.check(my_kernel(**golden.inputs, **golden.params))``."""

    def __init__(
        self,
        path: Path,
        *,
        policy: str,
        recipe: str | None,
        rung: Literal["bits", "accept"],
        test: str,
        fail: Callable[[str], Any],
        record: Callable[[str, object], None],
        elsewhere: Callable[[], Path],
    ) -> None:
        self.path = path
        self._policy = find_policy(policy)
        self._options = Options(recipe, rung, self._policy, details=True)
        self._test, self._fail, self._record, self._elsewhere = test, fail, record, elsewhere
        try:
            self._prepared, self._inputs = prepare(hdf5.read(path))
        except InvalidInput as error:
            raise DamagedFile(path, str(error)) from None
        #: why the case cannot be judged by the recipe that was asked for; "" where it can
        self.outside = ""
        if recipe not in (None, "any"):
            chosen = self._prepared.op.recipe(recipe)
            try:
                chosen.for_call(self._prepared.whole)
            except InvalidInput as outside:
                self.outside = str(outside)
        #: whether `check` was called: a test that compares nothing must not pass
        self.checked = False

    @property
    def op(self) -> str:
        return self._prepared.golden.op

    @property
    def case(self) -> str:
        return self._prepared.golden.case

    @property
    def recipe(self) -> str:
        """By which the case is judged unless `check` is told otherwise."""
        return self._options.recipe or self._prepared.golden.recipe

    @property
    def params(self) -> dict[str, Any]:
        return dict(self._prepared.golden.params)

    @property
    def inputs(self) -> dict[str, np.ndarray | None]:
        """Every input by name, an optional one that is not there as None.

        Copies, with the case's row strides: a kernel that writes into its inputs spoils nothing.
        """
        strides = self._prepared.golden.row_strides
        return {
            name: None if array is None else with_strides(array.copy(), strides.get(name))
            for name, array in self._inputs.items()
        }

    def as_torch(self, device: str = "cpu") -> dict[str, Any]:
        """The inputs as torch tensors, bfloat16 and fp8 as torch's own types."""
        return self._as(lambda array: frameworks.to_torch(array, device))

    def as_jax(self) -> dict[str, Any]:
        """The inputs as JAX arrays on the default device."""
        return self._as(frameworks.to_jax)

    def as_mlx(self) -> dict[str, Any]:
        """The inputs as MLX arrays; fp8 as uint8 codes, as MLX's own functions take it."""
        return self._as(frameworks.to_mlx)

    def _as(self, convert: Callable[[np.ndarray], Any]) -> dict[str, Any]:
        return {n: None if a is None else convert(a) for n, a in self.inputs.items()}

    def check(self, got: Any, stages: Mapping[str, Any] | None = None) -> None:
        """Judge what a kernel gave, and fail the test with what it did instead.

        got: the output, an array or tensor; or a mapping with "out" and stages by their names.
        stages: further stages by name.
        """
        self.checked = True
        given = {**got, **(stages or {})} if isinstance(got, Mapping) else {"out": got}
        given = {**given, **(stages or {})}
        arrays = {}
        problem = ""
        try:
            for name, value in given.items():
                arrays[name] = frameworks.to_numpy(name, value)
        except InvalidInput as error:
            problem = f"case {self.op}/{self.case}: {error}"
        if problem:  # outside of the handler, so that it is shown once
            self._fail(problem)
        unknown = sorted(set(arrays) - set(self._prepared.op.stages))
        if unknown:
            known = ", ".join(self._prepared.op.stages)
            self._fail(f"{self.op} has no stage {', '.join(unknown)}; it has {known}")
        own = {name: array for name, array in arrays.items() if name != "out"}
        outputs = {name: array for name, array in arrays.items() if name == "out"}
        report = judge(self.path, self._prepared, outputs, own, self._options)
        self._record("rung", report.outcome)
        self._record("max_ulp", report.max_ulp)
        self._record("policy", self._policy.name)
        self._record("recipe", report.recipe)
        if not report.passed:
            self._fail(self._text(report, arrays))
        if report.elements == 0 and self._prepared.golden.outputs["out"].size:
            self._fail(f"case {self.op}/{self.case}: no element was compared")

    def _text(self, report: Report, arrays: Mapping[str, np.ndarray]) -> str:
        lines = failure_lines(report, self._policy.name)
        lines.insert(1, f"test {self._test}")
        if report.details is not None:
            lines += as_text(report.details.heat_map)
        kept = obtained.write(arrays, self.path, self._elsewhere)
        if kept is not None:
            lines.append(f"what the kernel gave: {kept}")
            lines.append(f"more: refkern explain {self.path} {kept}")
        return "\n".join(lines)
