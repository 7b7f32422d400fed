"""What goes to the terminal: data on stdout, progress and notes on stderr."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

#: outcome -> colour
COLOURS = {
    "bits": "green", "accept": "green", "written": "green", "kept": "green",
    "fail": "red", "error": "red", "damaged": "red", "other": "red", "missing": "red",
    "skip": "yellow",
}  # fmt: skip


def print_json(document: dict[str, Any]) -> None:
    """One document; what JSON has no number for becomes the text "nan", "inf" or "-inf"."""
    whole = {"schema": 1, **_in_json(document)}
    click.echo(json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False))


def _in_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _in_json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_in_json(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def note(text: str) -> None:
    click.echo(text, err=True)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last column may wrap; plain text where stdout is no terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        # A pipe gets every line whole, so that grep and cut work.
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in (columns, *rows):
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            click.echo("  ".join(cells).rstrip())
        return
    table = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=COLOURS.get(cell, "")) for cell in row))
    console.print(table)


@contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[str], None]]:
    """A bar on stderr if that is a terminal; the function is called as each item ends."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda item: None
        return
    columns = (
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[item]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total, item="")
        yield lambda item: bar.update(task, advance=1, item=item)


def megabytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
