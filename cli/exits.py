"""Exit codes, and errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from refkern.errors import InvalidInput
from refkern.goldens.errors import DamagedFile

PASS, MISMATCH, USAGE, DAMAGED, UNAVAILABLE, NOTHING = range(6)


class Failure(Exception):
    """An error that ends the command with its own exit code."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def finish(exit_code: int) -> NoReturn:
    click.get_current_context().exit(exit_code)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can run into, as one line and an exit code instead of a traceback."""
    try:
        yield
    except Failure as failure:
        _end(failure.exit_code, str(failure))
    except DamagedFile as damage:
        _end(DAMAGED, str(damage))
    except InvalidInput as error:
        _end(USAGE, str(error))
    except OSError as error:
        named = error.filename is not None and error.strerror
        _end(USAGE, f"{error.filename}: {error.strerror}" if named else str(error))


def _end(exit_code: int, message: str) -> NoReturn:
    click.echo(f"Error: {' '.join(message.split())}", err=True)
    finish(exit_code)
