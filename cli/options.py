"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from refkern import ops
from refkern.case import TIERS
from refkern.errors import InvalidInput
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


def _recipes() -> set[str]:
    return {recipe for name in ops.names() for recipe in ops.load(name).recipes}


def _complete_recipe(context: Any, parameter: Any, incomplete: str) -> list[str]:
    return sorted(name for name in _recipes() if name.startswith(incomplete))


def _check_recipe(context: Any, parameter: Any, value: str | None) -> str | None:
    if value not in (None, "any") and value not in _recipes():
        raise InvalidInput("recipe", repr(value), f"there are {', '.join(sorted(_recipes()))}")
    return value


of_recipe = click.option(
    "--recipe",
    callback=_check_recipe,
    shell_complete=_complete_recipe,
    help="Only the cases of this recipe.",
)
judged_by = click.option(
    "--recipe",
    callback=_check_recipe,
    shell_complete=_complete_recipe,
    help="Judge by this recipe instead of each case's own; or 'any'.",
)
policy = click.option(
    "--policy",
    help="What the backend is allowed: a policy, FILE.toml or FILE.toml:NAME.  "
    "[default: the backend's own; compare and explain: cuda]",
)
sum_freedom = click.option(
    "--sum",
    "sum_freedom",
    type=click.Choice(["policy", "any"]),
    default="policy",
    show_default=True,
    help="Orders of sums: as the policy says, or any.",
)
rung = click.option(
    "--rung",
    type=click.Choice(["bits", "accept"]),
    default="accept",
    show_default=True,
    help="How strictly a case must pass: only by bits, or also by its acceptance interval.",
)
by_stages = click.option(
    "--stages",
    is_flag=True,
    help="Judge every stage that the candidate gives, each from its own stage before it.",
)
junit = click.option(
    "--junit", type=click.Path(path_type=Path, dir_okay=False), help="Write JUnit XML (xunit2)."
)
html = click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write one self-contained page: verdicts, heat maps, distances, explanations.",
)
github = click.option(
    "--github",
    is_flag=True,
    help="Annotations as GitHub workflow commands, a table into $GITHUB_STEP_SUMMARY.",
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
