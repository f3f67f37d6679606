"""The report as a page: one file, a picture drawn as SVG, everything from the user escaped."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

_STYLE = """
:root{--ink:#1c2330;--dim:#667085;--paper:#f6f7f9;--card:#fff;--line:#e3e6ec;--none:#e3e6ec;
--error:#c62f3b;--warning:#b26a00;--ok:#1d7f4e;--mark:#fff3d6}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ef;--dim:#98a2b3;--paper:#12161d;--card:#1b212b;
--line:#2e3642;--none:#2e3642;--error:#ff7b83;--warning:#f3b14b;--ok:#5bd19a;--mark:#3b3117}}
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,sans-serif}main{max-width:1040px;margin:0 auto;padding:40px 24px 64px}
h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:36px 0 12px}
h3{font-size:17px;margin:0 0 8px}p{margin:6px 0}.dim{color:var(--dim);font-size:14px}
.card{background:var(--card);border:1px solid var(--line);border-radius:12px;padding:20px 22px;
margin:14px 0;overflow-x:auto}.error{border-left:5px solid var(--error)}
.warning{border-left:5px solid var(--warning)}.pill{border-radius:99px;padding:2px 11px;
font-size:13px;font-weight:600;color:var(--card);margin-right:8px}
pre{background:var(--paper);border:1px solid var(--line);border-radius:8px;padding:10px 12px;
overflow-x:auto;font:13px/1.55 ui-monospace,monospace;margin:8px 0;white-space:pre-wrap}
pre b{display:block;background:var(--mark);font-weight:600}.where{font:13px ui-monospace,monospace}
.epochs{display:flex;flex-wrap:wrap;gap:28px}svg text{fill:var(--ink);
font:11px system-ui,sans-serif}svg .dim{fill:var(--dim)}svg .none{fill:var(--none)}
svg .in{fill:#111;font-size:10px}svg .twin{stroke:var(--ink);stroke-width:2}
""".replace("\n", "")

_CELL, _GAP, _LEFT, _TOP = 26, 3, 66, 22
_COLUMNS = 24


def page(report: Any) -> str:
    """The report as HTML that needs nothing else."""
    body = [_head(report), _picture(report.picture)]
    if report.findings:
        body.append("<h2>Findings</h2>")
        body += [_card(finding) for finding in report.findings]
    body += [f'<p class="dim">Note: {escape(note)}.</p>' for note in report.notes]
    body.append(
        f'<p class="dim">Checks made: {escape(", ".join(report.checks_run))}. '
        f"{report.samples_compared} samples compared in {report.seconds:.1f} s.</p>"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        '<meta name="viewport" content="width=device-width"/>'
        f"<title>seedcursor audit of {escape(report.target)}</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _head(report: Any) -> str:
    count = len(report.findings)
    verdict = "nothing found" if report.ok else f"{count} finding{'s' * (count > 1)}"
    colour = "ok" if report.ok else "error"
    return (
        f"<h1>{escape(report.target)}</h1>"
        f'<p><span class="pill" style="background:var(--{colour})">{verdict}</span>'
        '<span class="dim">seedcursor audit</span></p>'
    )


def _card(finding: Any) -> str:
    return (
        f'<section class="card {escape(finding.severity)}"><h3><span class="pill" '
        f'style="background:var(--{escape(finding.severity)})">{escape(finding.severity)}</span>'
        f"{escape(finding.check)}</h3><p>{escape(finding.message)}</p>"
        f'<p class="where">{escape(finding.where)}</p>{_source(_line(finding))}'
        f'<p class="dim">Seen</p><pre>{escape(finding.evidence)}</pre>'
        f'<p class="dim">To change</p><pre>{escape(finding.fix)}</pre></section>'
    )


def _line(finding: Any) -> str:
    """The ``file:line`` to show: where it is, else the last that the evidence names."""
    named = re.findall(r"(\S+\.py:\d+)", f"{finding.evidence}\n{finding.where}")
    return str(named[-1]) if named else ""


def _source(where: str) -> str:
    """The line and those around it; nothing if there is no such file."""
    file, _, number = where.rpartition(":")
    if not number.isdigit() or not Path(file).is_file():
        return ""
    lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    at = int(number)
    shown = []
    for k in range(max(1, at - 3), min(len(lines), at + 3) + 1):
        line = escape(f"{k:>5}  {lines[k - 1]}")
        shown.append(f"<b>{line}</b>" if k == at else line + "\n")
    return f'<pre class="source">{"".join(shown)}</pre>'


# The picture.


def _picture(records: Sequence[Any]) -> str:
    if not records:
        return ""
    colours = _colours(record.draw for record in records if record.draw)
    epochs = sorted({record.epoch for record in records})
    maps = [_epoch([r for r in records if r.epoch == epoch], colours) for epoch in epochs]
    return (
        "<h2>Who drew what</h2>"
        f'<div class="card"><div class="epochs">{"".join(maps)}</div><p class="dim">'
        "Each square is a sample, in the order in which its worker read it, with its index. Its "
        "colour is the random state that it drew from: equal colours are equal draws. An outline "
        "marks draws that another sample of the same epoch got too. Grey squares drew nothing. "
        f"{_told(records)}</p></div>"
    )


def _told(records: Sequence[Any]) -> str:
    """The picture in a sentence."""
    first = [record for record in records if record.epoch == 0]
    twins = _twins(first)
    if not any(record.draw for record in first):
        return "No sample drew anything."
    if not twins:
        return "No two samples of an epoch drew alike."
    count = sum(record.draw in twins for record in first)
    return f"{count} of {len(first)} samples share their draws with another one."


def _twins(records: Iterable[Any]) -> set[bytes]:
    counts = Counter(record.draw for record in records if record.draw)
    return {draw for draw, count in counts.items() if count > 1}


def _colours(draws: Iterable[bytes]) -> dict[bytes, str]:
    """A colour for each draw; neighbours are far apart on the wheel."""
    angles = itertools.count()
    colours: dict[bytes, str] = {}
    for draw in draws:
        if draw not in colours:
            k = next(angles)
            colours[draw] = f"hsl({k * 137.508 % 360:.0f} 68% {(66, 54, 76)[k // 8 % 3]}%)"
    return colours


def _epoch(records: list[Any], colours: dict[bytes, str]) -> str:
    workers = sorted({record.worker for record in records})
    twins = _twins(records)
    cells, top, widest = [], _TOP, 0
    for worker in workers:
        mine = [record for record in records if record.worker == worker]
        name = "main" if worker < 0 else f"worker {worker}"
        cells.append(f'<text x="0" y="{top + 17}">{name}</text>')
        for k, record in enumerate(mine):
            row, column = divmod(k, _COLUMNS)
            x, y = _LEFT + column * (_CELL + _GAP), top + row * (_CELL + _GAP)
            cells.append(_cell(x, y, record, colours, twins))
            widest = max(widest, column + 1)
        top += (1 + (len(mine) - 1) // _COLUMNS) * (_CELL + _GAP) + 6
    width = _LEFT + widest * (_CELL + _GAP) + 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}" role="img"><text class="dim" x="0" y="12">epoch '
        f"{records[0].epoch}</text>{''.join(cells)}</svg>"
    )


def _cell(x: int, y: int, record: Any, colours: dict[bytes, str], twins: set[bytes]) -> str:
    fill = f'fill="{colours[record.draw]}"' if record.draw else 'class="none"'
    twin = ' class="twin"' if record.draw in twins else ""
    label = str(record.place) if record.place < 1000 else ""
    return (
        f"<g><title>{escape(f'sample {record.place}: {record.text}')}</title>"
        f'<rect x="{x}" y="{y}" width="{_CELL}" height="{_CELL}" rx="5" {fill}{twin}/>'
        f'<text class="in" x="{x + _CELL / 2:g}" y="{y + 17}" text-anchor="middle">{label}</text>'
        "</g>"
    )
