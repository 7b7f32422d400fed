"""Exit codes, and errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import click

from refkern.errors import InvalidInput

PASS, MISMATCH, USAGE, DAMAGED, UNAVAILABLE, NOTHING = range(6)


class Failure(click.ClickException):
    """An error that ends the command with its own exit code."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.exit_code = exit_code


def finish(exit_code: int) -> NoReturn:
    click.get_current_context().exit(exit_code)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """What a user can run into, as one line and an exit code instead of a traceback."""
    try:
        yield
    except InvalidInput as error:
        raise Failure(USAGE, str(error)) from None
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        raise Failure(USAGE, f"{error.filename}: {error.strerror}") from None
    except OSError as error:
        raise Failure(USAGE, str(error)) from None
