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
@click.option(
    "--rung", type=click.Choice(["bits", "accept"]), default="accept", show_default=True,
    help="How strictly the case must pass.",
)  # fmt: skip
@options.as_json
def command(
    golden: Path, result: Path, recipe: str | None, rung: Literal["bits", "accept"], as_json: bool
) -> None:
    """Judge tensors from a file (.h5, .npz or .safetensors) by a golden file.

    RESULT holds the output as "out", and stages by their names if it has them.
    """
    from refkern.goldens.results import read_results
    from refkern.goldens.verify import Options, judge, load

    prepared, _ = load(golden)
    read = prepared.golden
    tensors = read_results(result, read)
    stages = {name: array for name, array in tensors.items() if name not in read.outputs}
    outputs = {name: array for name, array in tensors.items() if name in read.outputs}
    report = judge(golden, prepared, outputs, stages, Options(recipe, rung))
    verdicts.show([report], as_json=as_json, backend=str(result), version="", policy="")
