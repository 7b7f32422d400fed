"""refkern verify"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from refkern.cli import exits, options, report_files, verdicts
from refkern.cli.output import progress


@click.command("verify")
@click.argument(
    "paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path)
)
@click.option("--backend", required=True, help="numpy, numba, exec:PROGRAM; see: list backends.")
@click.option("--device", help="Where the backend is to run, e.g. cpu, cuda, mps.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=300.0, show_default=True,
    help="Seconds that exec:PROGRAM may take for one case.",
)  # fmt: skip
@options.judged_by
@options.policy
@options.sum_freedom
@options.rung
@options.by_stages
@options.threads
@options.as_json
@options.junit
@options.html
@options.github
def command(
    paths: tuple[Path, ...], backend: str, device: str | None, timeout: float, recipe: str | None,
    policy: str | None, sum_freedom: str, rung: Literal["bits", "accept"], stages: bool,
    as_json: bool, junit: Path | None, html: Path | None, github: bool,
) -> None:  # fmt: skip
    """Run a backend on golden files' inputs and judge its outputs.

    PATH is a golden file, or a folder of them.
    """
    from refkern.goldens import backends
    from refkern.goldens.policy_files import find_policy
    from refkern.goldens.reports import Run
    from refkern.goldens.selection import find_files
    from refkern.goldens.verify import Options, verify_file

    chosen = backends.load(backend, device, timeout)
    allowed = find_policy(policy or chosen.policy, any_order=sum_freedom == "any")
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise exits.Failure(exits.USAGE, f"{', '.join(missing)}: no such file or folder")
    files = find_files(paths)
    if not files:
        raise exits.Failure(exits.NOTHING, "no golden file was found")
    try:
        version = chosen.version()
    except backends.Unavailable as reason:
        raise exits.Failure(exits.UNAVAILABLE, f"backend {chosen.name}: {reason}") from None
    reports = []
    asked = Options(recipe, rung, allowed, stages, details=bool(junit or html or github))
    with progress(len(files), f"verifying {chosen.name}") as ended:
        for file in files:
            reports.append(verify_file(file, chosen, asked))
            ended(file.stem)
    run = Run(chosen.name, version, allowed.name, tuple(reports))
    report_files.write(run, allowed, junit=junit, html=html, github=github, as_json=as_json)
    verdicts.show(
        reports, as_json=as_json, backend=chosen.name, version=version, policy=allowed.name
    )
