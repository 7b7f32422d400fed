"""What every report of a run is made from."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import refkern
from refkern.goldens.verify import OUTCOMES, Report

PACKAGES = ("numpy", "ml_dtypes", "numba", "h5py")


@dataclass(frozen=True)
class Run:
    """One backend, one policy, and what became of each file."""

    backend: str
    #: of what computed
    version: str
    policy: str
    reports: tuple[Report, ...]

    def counts(self) -> dict[str, int]:
        """How many cases came out each way, those that occur."""
        found = Counter(report.outcome for report in self.reports)
        return {outcome: found[outcome] for outcome in OUTCOMES if found[outcome]}

    def summary(self) -> str:
        """Such as "24 bits, 1 fail of 25 cases"."""
        said = ", ".join(f"{number} {outcome}" for outcome, number in self.counts().items())
        return f"{said or 'nothing'} of {len(self.reports)} cases"


def environment() -> Mapping[str, str]:
    """Where a run took place: versions and the machine."""
    found = {"refkern": refkern.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return {**found, "machine": f"{platform.system()} {platform.machine()}"}


def label(report: Report) -> str:
    """OP/CASE, or the file where it could not be read."""
    return f"{report.op}/{report.case}" if report.op else report.file


def is_problem(report: Report) -> bool:
    return report.outcome in ("fail", "error", "damaged")


def failure_lines(report: Report, policy: str) -> list[str]:
    """What a failure must tell, as plain lines; the heat map is not among them."""
    lines = [f"case {label(report)}, recipe {report.recipe or '?'}, policy {policy}"]
    lines.append(report.headline)
    if report.first_stage is not None:
        lines.append(f"first stage that does not follow from the one before: {report.first_stage}")
    if report.details is not None:
        lines += [line for line in report.details.explanation if not line.startswith("first stage")]
    if report.worst:
        lines.append("worst elements:")
        lines += [f"  {element}" for element in report.worst]
    return lines
