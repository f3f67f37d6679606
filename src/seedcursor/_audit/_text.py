"""The report as text."""

from __future__ import annotations

import textwrap
from typing import Any

_WIDTH = 96


def text(report: Any) -> str:
    """The report for a terminal: findings first, then how much was looked at."""
    count = len(report.findings)
    verdict = {0: "nothing found", 1: "1 finding"}.get(count, f"{count} findings")
    lines = [f"seedcursor audit of {report.target}: {verdict}", ""]
    for finding in report.findings:
        lines += [f"{finding.severity}: {finding.check}", _field("where", finding.where)]
        lines += [_field("what", finding.message), _field("seen", finding.evidence)]
        lines += [_field("fix", finding.fix), ""]
    lines += [f"note: {note}" for note in report.notes]
    lines.append(
        f"{report.samples_compared} samples compared, {len(report.checks_run)} checks: "
        f"{', '.join(report.checks_run)}"
    )
    return "\n".join(lines)


def _field(name: str, value: str) -> str:
    indent = " " * 9
    wrapped = []
    for line in value.splitlines() or [""]:
        # Code keeps its lines; prose is filled.
        wrapped += [line] if line.startswith(" ") else textwrap.wrap(line, _WIDTH - 9) or [""]
    return f"  {name:<7}" + f"\n{indent}".join(wrapped)
