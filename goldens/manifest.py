"""manifest.json of a folder of goldens: which cases, with which hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import Field, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from refkern.goldens.atomic import replacing
from refkern.goldens.errors import DamagedFile

NAME = "manifest.json"


@dataclass(frozen=True)
class Entry:
    op: str
    case: str
    tier: str
    recipe: str
    #: below the folder, with forward slashes
    path: str
    bytes: int
    content_sha256: str
    accept_sha256: str
    #: of the file itself: the same for one version of h5py
    file_sha256: str


def read(folder: Path) -> dict[str, Entry]:
    """Entries by path; none if the folder has no manifest."""
    path = folder / NAME
    try:
        listed = json.loads(path.read_text("utf-8"))["cases"]
        entries = [Entry(**entry) for entry in listed]
        wrong = [
            f.name for e in entries for f in fields(e) if type(getattr(e, f.name)) is not _of(f)
        ]
        if wrong:
            raise ValueError(f"{wrong[0]} is of another type")
        return {entry.path: entry for entry in entries}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFile(path, f"no readable manifest: {error}") from None


def write(folder: Path, entries: Iterable[Entry], *, replace_damaged: bool = False) -> None:
    """The manifest with these entries, those of files that are still there kept beside them.

    A manifest that cannot be read is left alone and raises DamagedFile unless ``replace_damaged``.
    """
    try:
        there = read(folder)
    except DamagedFile:
        if not replace_damaged:
            raise
        there = {}
    kept = {p: e for p, e in there.items() if (folder / p).exists()}
    kept.update({entry.path: entry for entry in entries})
    listed = [asdict(kept[path]) for path in sorted(kept)]
    text = json.dumps({"schema": 1, "cases": listed}, indent=1)
    with replacing(folder / NAME) as file:
        file.write(f"{text}\n".encode())


def _of(field: Field[Any]) -> type:
    return int if field.name == "bytes" else str


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
