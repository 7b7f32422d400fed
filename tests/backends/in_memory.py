"""A backend on golden cases that are built in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from refkern import policy as policies
from refkern.goldens import verify
from refkern.goldens.backends import Backend, Unavailable, Unsupported
from refkern.goldens.build import Prepared, build
from refkern.goldens.selection import Selected, select


def require(backend: Backend) -> str:
    """The library's version; skips the test without it."""
    try:
        return backend.version()
    except Unavailable as reason:
        pytest.skip(str(reason))


def built(*patterns: str) -> Iterator[tuple[Selected, Prepared]]:
    for selected in select(patterns):
        if not selected.case.sampled_rows:
            yield selected, build(selected)


def report(
    backend: Backend, selected: Selected, prepared: Prepared, recipe: str | None = None
) -> verify.Report | None:
    """What `refkern verify` says of one case, under the backend's policy; None: not supported."""
    case = selected.case
    options = verify.Options(recipe=recipe, policy=policies.load(backend.policy))
    try:
        outputs, stages = backend(
            selected.op.name, prepared.call.inputs, dict(case.params), recipe=recipe or case.recipe
        )
    except Unsupported:
        return None
    return verify.judge(Path(case.name), prepared, outputs, stages, options)
