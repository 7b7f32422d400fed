"""The `refkern` command."""

from __future__ import annotations

import importlib
import pkgutil

import click

import refkern
from refkern.cli.exits import one_line_errors

#: the modules of this package that are no commands
NO_COMMANDS = {"exits", "main", "options", "output", "report_files", "verdicts"}


class Commands(click.Group):
    """Commands are modules of this package, each loaded when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        package = importlib.import_module("refkern.cli")
        return sorted(
            m.name for m in pkgutil.iter_modules(package.__path__) if m.name not in NO_COMMANDS
        )

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(context):
            return None
        return importlib.import_module(f"refkern.cli.{name}").command

    def invoke(self, context: click.Context) -> object:
        with one_line_errors():
            return super().invoke(context)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 all pass; 1 a mismatch; 2 usage; 3 a file is damaged or unsafe; "
    "4 backend unavailable or every case skipped; 5 nothing selected or nothing compared.",
)
@click.version_option(refkern.__version__, prog_name="refkern")
def main() -> None:
    """Bit-exact golden fixtures for LLM-inference kernels, and verification against them."""
