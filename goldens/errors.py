"""The error of a file that cannot be trusted."""

from __future__ import annotations

import os

#: a hostile name may be long; the reason stays readable
_LONGEST_REASON = 400


class DamagedFile(Exception):
    """A file is damaged, unsafe, or not what it says it is.

    The text is one line: the file, the dataset or tensor where one is to blame, what is wrong.
    """

    def __init__(self, file: str | os.PathLike[str], what: str, dataset: str | None = None) -> None:
        # all three are kept as `args`, so that the error can be sent between processes
        super().__init__(os.fspath(file), what, dataset)
        self.file = os.fspath(file)
        self.what = what
        self.dataset = dataset

    def __str__(self) -> str:
        what = _one_line(self.what)
        if len(what) > _LONGEST_REASON:
            what = what[:_LONGEST_REASON] + "..."
        where = [] if self.dataset is None else [_one_line(self.dataset)[:_LONGEST_REASON]]
        return ": ".join([_one_line(self.file), *where, what])


def _one_line(text: str) -> str:
    """``text`` with everything escaped that could break or repaint a terminal's line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
