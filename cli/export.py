"""refkern export"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from refkern.cli import exits
from refkern.cli.output import megabytes, note, progress

if TYPE_CHECKING:
    from refkern.goldens.export import Kind


@click.command("export")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option(
    "--to", "kind", type=click.Choice(["safetensors", "raw", "npz"]), required=True,
    help="safetensors and npz: one file a case; raw: a folder with one file a tensor.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Folder of the exports: OP/CASE.",
)  # fmt: skip
@click.option(
    "--inputs-up-to", "most_mebibytes", type=click.IntRange(0), default=256, show_default=True,
    help="Inputs that a golden only describes are made again up to this many MiB.",
)  # fmt: skip
def command(paths: tuple[Path, ...], kind: Kind, out: Path, most_mebibytes: int) -> None:
    """Golden files as safetensors, raw or npz files: inputs, stages, outputs, intervals.

    PATH is a golden file, or a folder of them.  The same golden gives the same bytes.
    """
    from refkern.goldens.errors import DamagedFile
    from refkern.goldens.export import export
    from refkern.goldens.selection import find_files

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise exits.Failure(exits.USAGE, f"{', '.join(missing)}: no such file or folder")
    files = find_files(paths)
    if not files:
        raise exits.Failure(exits.NOTHING, "no golden file was found")
    done, damaged = [], False
    with progress(len(files), f"exporting to {kind}") as ended:
        for file in files:
            try:
                done.append(export(file, out, kind, most_input_bytes=most_mebibytes << 20))
            except DamagedFile as error:
                damaged = True
                note(str(error))
            ended(file.stem)
    for exported in done:
        click.echo(exported.path)
        if exported.left_out:
            note(f"{exported.path}: without {exported.left_out}")
    note(f"{len(done)} exported, {megabytes(sum(e.bytes for e in done))} of tensors in {out}")
    if damaged:
        exits.finish(exits.DAMAGED)
