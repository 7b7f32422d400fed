"""manifest.json of a folder of goldens: which cases, with which hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

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
        return {entry["path"]: Entry(**entry) for entry in listed}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFile(path, f"no readable manifest: {error}") from None


def write(folder: Path, entries: Iterable[Entry]) -> None:
    """The manifest with these entries, those of files that are still there kept beside them."""
    kept = {p: e for p, e in read(folder).items() if (folder / p).exists()}
    kept.update({entry.path: entry for entry in entries})
    listed = [asdict(kept[path]) for path in sorted(kept)]
    text = json.dumps({"schema": 1, "cases": listed}, indent=1)
    with replacing(folder / NAME) as file:
        file.write(f"{text}\n".encode())


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
