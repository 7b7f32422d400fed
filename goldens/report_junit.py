"""--junit: JUnit XML (xunit2), one test case per golden, properties for what was measured."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping

from refkern.goldens.reports import Run, environment, failure_lines
from refkern.goldens.verify import Report

#: what XML 1.0 cannot hold, not even escaped
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(run: Run) -> bytes:
    counts = run.counts()
    suite = ElementTree.Element(
        "testsuite",
        name=_clean(f"refkern verify {run.backend}"),
        tests=str(len(run.reports)),
        failures=str(counts.get("fail", 0)),
        errors=str(counts.get("error", 0) + counts.get("damaged", 0)),
        skipped=str(counts.get("skip", 0)),
    )
    told = {"backend": run.backend, "backend_version": run.version, "policy": run.policy}
    _properties(suite, {**told, **environment()})
    for report in run.reports:
        suite.append(_case(report, run.policy))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(report: Report, policy: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        classname=_clean(f"refkern.{report.op}" if report.op else "refkern"),
        name=_clean(report.case),
        file=_clean(report.file),
    )
    measured = {
        "rung": report.outcome,
        "max_ulp": report.max_ulp,
        "policy": policy,
        "recipe": report.recipe,
        "elements": report.elements,
        "mismatches": report.mismatches,
    }
    _properties(case, measured)
    kind = {"fail": "failure", "error": "error", "damaged": "error", "skip": "skipped"}
    if report.outcome in kind:
        child = ElementTree.SubElement(case, kind[report.outcome], message=_clean(report.headline))
        if report.outcome != "skip":
            child.set("type", report.outcome)
            child.text = _clean("\n".join(failure_lines(report, policy)))
    return case


def _properties(parent: ElementTree.Element, values: Mapping[str, object]) -> None:
    properties = ElementTree.SubElement(parent, "properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_clean(str(value)))


def _clean(text: str) -> str:
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
