"""refkern golden"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from refkern.case import Tier
from refkern.cli import exits, options
from refkern.cli.output import megabytes, note, print_json, print_table, progress


@click.command("golden")
@click.argument("globs", metavar="[CASE_GLOB]...", nargs=-1)
@options.op
@options.of_recipe
@options.tier
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default=Path("refkern-goldens"),
    show_default=True, help="Folder of the files: OP/CASE.h5 and manifest.json.",
)  # fmt: skip
@click.option(
    "--jobs", type=click.IntRange(1), help="Cases to make at one time.  [default: one a core]"
)
@options.threads
@click.option("--force", is_flag=True, help="Replace files that hold other content.")
@click.option("--check", is_flag=True, help="Write nothing; compare the files' content hashes.")
@options.as_json
def command(
    globs: tuple[str, ...], op: str | None, recipe: str | None, tier: Tier | None, out: Path,
    jobs: int | None, force: bool, check: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make golden files: inputs, every stage, outputs.

    Without arguments: every op's quick tier.  A file with the same content is kept, a missing one
    is written, and one with other content is left alone and named, with exit code 1.
    """
    from refkern.goldens.generate import generate
    from refkern.goldens.selection import select
    from refkern.threads import available_threads

    if check and force:
        raise click.UsageError("--check writes nothing, so --force has nothing to replace")
    selected = select(globs, op=op, recipe=recipe, tier=tier)
    if not selected:
        raise exits.Failure(exits.NOTHING, "no case was selected; see: refkern list cases")
    with progress(len(selected), "checking" if check else "golden") as ended:
        outcomes = generate(
            selected,
            out,
            check=check,
            force=force,
            jobs=jobs or available_threads(),
            done=lambda o: ended(o.case),
        )
    counts = Counter(o.status for o in outcomes)
    if as_json:
        cases = [asdict(o) for o in outcomes]
        print_json({"out": str(out), "check": check, "cases": cases, "summary": dict(counts)})
    else:
        rows = [(o.status, o.path, o.recipe, o.content_sha256[:12]) for o in outcomes]
        print_table("goldens", ("status", "file", "recipe", "content"), rows)
    for outcome in outcomes:
        if outcome.problem:
            note(outcome.problem)
    present = [out / o.path for o in outcomes if (out / o.path).exists()]
    total = megabytes(sum(path.stat().st_size for path in present))
    said = ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))
    note(f"{said}; {total} in {out}")
    if counts["damaged"]:
        exits.finish(exits.DAMAGED)
    if not all(o.passed for o in outcomes):
        exits.finish(exits.MISMATCH)
