"""refkern compare"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from refkern.cli import options, verdicts


@click.command("compare")
@click.argument("golden", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("result", type=click.Path(path_type=Path, dir_okay=False))
@options.judged_by
@options.policy
@options.sum_freedom
@options.rung
@options.by_stages
@options.as_json
def command(
    golden: Path, result: Path, recipe: str | None, policy: str | None, sum_freedom: str,
    rung: Literal["bits", "accept"], stages: bool, as_json: bool,
) -> None:  # fmt: skip
    """Judge tensors from a file (.h5, .npz or .safetensors) by a golden file.

    RESULT holds the output as "out", and stages by their names if it has them.
    """
    from refkern.goldens.policy_files import find_policy
    from refkern.goldens.results import read_results
    from refkern.goldens.verify import Options, judge, load

    allowed = find_policy(policy or "cuda", any_order=sum_freedom == "any")
    prepared, _ = load(golden)
    outputs, given = read_results(result, prepared.golden)
    asked = Options(recipe, rung, allowed, stages, details=not as_json)
    report = judge(golden, prepared, outputs, given, asked)
    verdicts.show(
        [report],
        as_json=as_json,
        backend=str(result),
        version="",
        policy=allowed.name,
        heat_maps=True,
    )
