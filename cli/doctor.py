"""refkern doctor"""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import click

from refkern.cli import exits
from refkern.cli.output import print_table

PACKAGES = ("numpy", "ml_dtypes", "numba", "llvmlite", "h5py", "click", "rich")


@click.command("doctor")
def command() -> None:
    """Versions, threads, backends, and a self-check of numpy against numba."""
    import refkern
    from refkern.cli.list import list_backends
    from refkern.goldens.selfcheck import CHECKS
    from refkern.threads import available_threads, get_num_threads

    rows = [("refkern", refkern.__version__), ("python", platform.python_version())]
    for package in PACKAGES:
        try:
            rows.append((package, version(package)))
        except PackageNotFoundError:
            rows.append((package, "not installed"))
    features = import_module("numpy._core._multiarray_umath").__cpu_features__
    enabled = ", ".join(name for name, on in features.items() if on)
    rows += [
        ("machine", f"{platform.system()} {platform.machine()}"),
        ("cpu features", enabled),
        ("threads", f"{get_num_threads()} of {available_threads()}"),
    ]
    rows += [(f"backend {row['backend']}", row["state"]) for row in list_backends(None)]
    failed = False
    for name, check in CHECKS.items():
        problem = check()
        failed = failed or bool(problem)
        rows.append((name, problem or "ok"))
    print_table("doctor", ("what", "found"), rows)
    if failed:
        click.echo("a self-check failed: results on this machine are not to be trusted", err=True)
        exits.finish(exits.MISMATCH)
