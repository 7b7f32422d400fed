"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from refkern import ops
from refkern.case import TIERS
from refkern.threads import set_num_threads

as_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")


def _complete_op(context: Any, parameter: Any, incomplete: str) -> list[str]:
    return [name for name in ops.names() if name.startswith(incomplete)]


def _check_op(context: Any, parameter: Any, value: str | None) -> str | None:
    if value is not None:
        ops.load(value)
    return value


op = click.option(
    "--op", callback=_check_op, shell_complete=_complete_op, help="Only this op's cases."
)
tier = click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="This tier and those before it.  [default: quick; with a glob: all]",
)


def _set_threads(context: Any, parameter: Any, value: int | None) -> None:
    if value is not None:
        set_num_threads(value)


threads: Callable[[Any], Any] = click.option(
    "--threads",
    type=int,
    callback=_set_threads,
    expose_value=False,
    help="Threads of the CPU kernels.  [default: all cores]",
)
