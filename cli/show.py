"""refkern show"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from refkern.cli import exits, options
from refkern.cli.output import print_json, print_table


@click.command("show")
@click.argument("target", metavar="FILE_OR_CASE")
@click.option("--stage", help="Print this tensor's values: a stage, an input or an output.")
@options.as_json
def command(target: str, stage: str | None, as_json: bool) -> None:
    """What a golden file holds, or what a case of that name would."""
    from refkern.goldens import hdf5
    from refkern.goldens.build import build, with_proofs
    from refkern.goldens.golden import content_sha256
    from refkern.goldens.selection import select

    if Path(target).exists():
        golden = hdf5.read(Path(target))
    else:
        found = select([target])
        if len(found) != 1:
            what = "names several cases" if found else "is neither a file nor a case"
            raise exits.Failure(exits.NOTHING, f"{target} {what}; see: refkern list cases")
        golden = with_proofs(build(found[0]))
    tensors = {**golden.inputs, **golden.stages, **golden.outputs}
    if stage is not None:
        if stage not in tensors:
            raise exits.Failure(exits.NOTHING, f"no {stage}; there are {', '.join(tensors)}")
        _show_values(stage, tensors[stage], as_json)
        return
    parts = {
        "input": dict(sorted(golden.inputs.items())),
        "stage": golden.stages,
        "output": golden.outputs,
    }
    listed = [
        {"part": part, "name": name, "dtype": str(a.dtype), "shape": list(a.shape),
         "axes": golden.axes.get(name, "")}
        for part, arrays in parts.items() for name, a in arrays.items()
    ]  # fmt: skip
    facts: dict[str, Any] = {
        "case": golden.case, "op": golden.op, "tier": golden.tier, "recipe": golden.recipe,
        "params": golden.params, "content_sha256": content_sha256(golden),
        "provenance": golden.provenance, "mutants": golden.mutants,
    }  # fmt: skip
    if golden.sampled_rows is not None:
        facts["sampled_rows"] = golden.sampled_rows.tolist()
    if as_json:
        print_json({**facts, "tensors": listed})
        return
    for key, value in facts.items():
        text = ", ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else value
        click.echo(f"{key + ':':16}{text}")
    click.echo()
    rows = [[str(cell) for cell in row.values()] for row in listed]
    print_table("tensors", ("part", "name", "dtype", "shape", "axes"), rows)


def _show_values(name: str, array: np.ndarray, as_json: bool) -> None:
    values = array if array.dtype.kind in "iu" else array.astype(np.float64)
    if as_json:
        print_json({"name": name, "dtype": str(array.dtype), "shape": list(array.shape),
                    "values": values.ravel().tolist()})  # fmt: skip
        return
    click.echo(f"{name} {array.dtype} {list(array.shape)}")
    click.echo(np.array2string(values, threshold=200, max_line_width=100))
