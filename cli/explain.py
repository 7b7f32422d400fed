"""refkern explain"""

from __future__ import annotations

from pathlib import Path

import click

from refkern.cli import options, verdicts
from refkern.cli.output import print_json


@click.command("explain")
@click.argument("golden", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("result", type=click.Path(path_type=Path, dir_okay=False))
@options.policy
@options.sum_freedom
@options.as_json
def command(
    golden: Path, result: Path, policy: str | None, sum_freedom: str, as_json: bool
) -> None:
    """Say what a kernel did: which stage, where, and which semantics gives its values.

    RESULT holds the output as "out", and stages by their names if it has them.
    """
    from refkern.goldens.details import heat_map
    from refkern.goldens.explain import explain, summary
    from refkern.goldens.policy_files import find_policy
    from refkern.goldens.results import read_results
    from refkern.goldens.verify import load, own_output, own_stages

    allowed = find_policy(policy or "cuda", any_order=sum_freedom == "any")
    prepared, _ = load(golden)
    read = prepared.golden
    outputs, given = read_results(result, read)
    explanation = explain(prepared, own_output(read, outputs), own_stages(prepared, given), allowed)
    if as_json:
        print_json(
            {"case": read.case, "op": read.op, "policy": allowed.name, **summary(explanation)}
        )
        return
    for line in explanation.lines():
        click.echo(line)
    for element in explanation.verdict.difference.worst:
        click.echo(f"  {element}")
    if explanation.wrong.any():
        verdicts.show_heat_map(heat_map(explanation.wrong, prepared))
