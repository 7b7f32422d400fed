"""refkern list"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from refkern import ops
from refkern.cli import options
from refkern.cli.output import print_json, print_table

Row = dict[str, Any]


def list_ops(op: str | None) -> list[Row]:
    loaded = map(ops.load, ops.names() if op is None else [op])
    return [
        {"op": o.name, "default recipe": o.default_recipe, "source": o.source, "summary": o.summary}
        for o in loaded
    ]


def list_recipes(op: str | None) -> list[Row]:
    return [
        {
            "op": name,
            "recipe": r.name,
            "batch invariant": r.batch_invariant,
            "source": r.source,
        }
        for name in (ops.names() if op is None else [op])
        for r in ops.load(name).recipes.values()
    ]


def list_cases(op: str | None) -> list[Row]:
    from refkern.goldens.selection import all_cases

    return [
        {
            "op": s.op.name,
            "case": s.case.name,
            "tier": s.case.tier,
            "recipe": s.case.recipe,
            "purpose": s.case.purpose,
        }
        for s in all_cases(op)
    ]


def list_backends(op: str | None) -> list[Row]:
    from refkern.goldens import backends

    rows = []
    for name in backends.names():
        if name == "exec:PROGRAM":
            state, summary = "available", "any program that reads and writes safetensors"
        else:
            backend = backends.load(name)
            if op is not None and backend.ops is not None and op not in backend.ops:
                continue
            summary = backend.summary
            try:
                state = backend.version()
            except backends.Unavailable as reason:
                state = f"unavailable: {reason}"
        rows.append({"backend": name, "state": state, "summary": summary})
    return rows


def list_policies(op: str | None) -> list[Row]:
    from refkern import policy as policies

    rows = []
    for policy in policies.built_in().values():
        a, b = policy.exp
        lanes = "any" if policy.chain is None else f"n/{policy.chain[0]} + {policy.chain[1]}"
        rows.append(
            {
                "policy": policy.name,
                "exp": f"{a:g} + {b:g}|x|" if b else f"{a:g}",
                "rsqrt": f"{policy.rsqrt:g}",
                "div": f"{policy.div:g}",
                "rounding": policy.rounding,
                "fuse": policy.fuse,
                "flush": policy.flush,
                "chain": lanes,
                "bits": policy.accumulator_bits,
                "summary": policy.summary,
            }
        )
    return rows


def list_mutants(op: str | None) -> list[Row]:
    return [
        {"op": name, "mutant": m.name, "the kernel": m.says}
        for name in (ops.names() if op is None else [op])
        for m in ops.load(name).part("mutants").MUTANTS
    ]


LISTS: dict[str, Callable[[str | None], list[Row]]] = {
    "ops": list_ops,
    "recipes": list_recipes,
    "policies": list_policies,
    "cases": list_cases,
    "backends": list_backends,
    "mutants": list_mutants,
}


@click.command("list")
@click.argument("what", type=click.Choice(list(LISTS)), default="ops")
@options.op
@options.as_json
def command(what: str, op: str | None, as_json: bool) -> None:
    """What there is: ops, recipes, cases, backends or mutants."""
    rows = LISTS[what](op)
    if as_json:
        print_json({what: [{k.replace(" ", "_"): v for k, v in row.items()} for row in rows]})
    elif rows:
        cells = [[_cell(value) for value in row.values()] for row in rows]
        print_table(what, list(rows[0]), cells)


def _cell(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
