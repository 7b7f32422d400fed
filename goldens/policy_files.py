"""Policies by name, or from a user's own TOML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from refkern import policy as policies
from refkern.errors import InvalidInput
from refkern.policy import Policy


def find_policy(text: str, *, any_order: bool = False) -> Policy:
    """``text``: a policy's name, FILE.toml with one policy, or FILE.toml:NAME.

    any_order: sums may be added in any order, whatever the policy says of their chains.
    """
    file, _, name = text.partition(".toml")
    found = policies.load(text) if file == text else _from_file(Path(f"{file}.toml"), name)
    return replace(found, chain=None, name=f"{found.name}, any sum") if any_order else found


def _from_file(path: Path, name: str) -> Policy:
    known = policies.parse(path.read_text("utf-8"), policies.built_in(), str(path))
    wanted = name.removeprefix(":") if name else next(iter(known), "")
    if wanted not in known or (not name and len(known) != 1):
        raise InvalidInput(
            "policy", f"{path}{name}", f"{path}:NAME is needed; it has {list(known)}"
        )
    return known[wanted]
