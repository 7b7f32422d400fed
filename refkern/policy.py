"""Policies: what a backend is allowed.  The numbers, with their sources, are in policies.toml."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from refkern.errors import InvalidInput

Rounding = Literal["nearest", "nearest-or-zero", "any"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "nearest-or-zero", "any")


@dataclass(frozen=True)
class Policy:
    """One policy; the fields are explained in policies.toml."""

    name: str
    summary: str
    source: str
    #: ULP of exp: exp[0] + exp[1] * |x|
    exp: tuple[float, float]
    rsqrt: float
    sqrt: float
    div: float
    rcp: float
    div_range: int
    rounding: Rounding
    fuse: bool
    flush: bool
    finite: bool
    #: (lanes, extra); None: any order
    chain: tuple[int, int] | None
    accumulator_bits: int
    products: int

    def chain_length(self, n: int) -> int:
        """The most rounded additions that one of ``n`` terms goes through."""
        longest = max(n - 1, 0)
        if self.chain is None:
            return longest
        lanes, extra = self.chain
        return min(-(-n // lanes) + extra, longest)

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of one rounding."""
        return 2.0**-24 if self.rounding == "nearest" else 2.0**-23


def parse(text: str, known: Mapping[str, Policy], origin: str) -> dict[str, Policy]:
    """The policies of a TOML text, by name; each may extend an earlier or a ``known`` one."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("policy", origin, f"TOML is needed: {error}") from None
    found: dict[str, Policy] = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidInput("policy", f"{origin}: {name}", "a table per policy is needed")
        found[name] = _policy(name, table, {**known, **found}, origin)
    return found


def _policy(
    name: str, table: Mapping[str, Any], known: Mapping[str, Policy], origin: str
) -> Policy:
    where = f"{origin}: {name}"
    values = dict(table)
    base = values.pop("extends", None)
    if base is not None and base not in known:
        raise InvalidInput("policy", where, f"extends must be one of {', '.join(known)}")
    allowed = {f.name for f in fields(Policy)} - {"name"}
    unknown = sorted(set(values) - allowed)
    if unknown:
        raise InvalidInput(
            "policy", f"{where}: {', '.join(unknown)}", f"keys are {sorted(allowed)}"
        )
    start = {} if base is None else {f: getattr(known[base], f) for f in allowed}
    if "exp" in values:
        values["exp"] = _pair(where, "exp", values["exp"])
    if "chain" in values:
        values["chain"] = _chain(where, values["chain"])
    merged = {**start, **values}
    missing = sorted(allowed - set(merged))
    if missing:
        raise InvalidInput("policy", where, f"missing are {', '.join(missing)}")
    for key in ("rsqrt", "sqrt", "div", "rcp", "div_range", "accumulator_bits", "products"):
        _number(where, key, merged[key])
    for key in ("fuse", "flush", "finite"):
        if not isinstance(merged[key], bool):
            raise InvalidInput("policy", f"{where}: {key} = {merged[key]!r}", "a bool is needed")
    if merged["rounding"] not in ROUNDINGS:
        raise InvalidInput(
            "policy", f"{where}: {merged['rounding']!r}", f"roundings are {ROUNDINGS}"
        )
    return Policy(name=name, **merged)


def _number(where: str, key: str, value: Any) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not math.isfinite(value) or value < 0:
        raise InvalidInput("policy", f"{where}: {key} = {value!r}", "a number >= 0 is needed")
    return value


def _pair(where: str, key: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidInput("policy", f"{where}: {key} = {value!r}", "two numbers are needed")
    return _number(where, key, value[0]), _number(where, key, value[1])


def _chain(where: str, value: Any) -> tuple[int, int] | None:
    if value == "any":
        return None
    if isinstance(value, dict) and set(value) == {"lanes", "extra"}:
        lanes, extra = value["lanes"], value["extra"]
        if all(isinstance(v, int) and v >= 0 for v in (lanes, extra)) and lanes:
            return lanes, extra
    raise InvalidInput("policy", f"{where}: chain = {value!r}", '"any" or {lanes, extra} is needed')


@cache
def built_in() -> Mapping[str, Policy]:
    """refkern's own policies by name."""
    text = files("refkern").joinpath("policies.toml").read_text("utf-8")
    return parse(text, {}, "policies.toml")


def load(policy: str | Policy) -> Policy:
    """A policy by name; a `Policy` comes back as it is."""
    if isinstance(policy, Policy):
        return policy
    known = built_in()
    if policy not in known:
        raise InvalidInput("policy", repr(policy), f"there are {', '.join(known)}")
    return known[policy]
