"""What an audit found."""

from __future__ import annotations

import json
import os
from pathlib import Path

from attrs import asdict, field, frozen

from seedcursor._audit import _page, _text
from seedcursor._audit._workers import Record


@frozen
class Finding:
    """One fault of a dataset or a loader.

    Args:
        check: The check's id, which stays the same from version to version.
        severity: ``"error"`` for what spoils a training, ``"warning"`` for what may be meant.
        message: In one sentence, what happens to the training.
        evidence: What was seen.
        where: ``file:line``, or the attribute path of a generator.
        fix: The few lines to change, with this library and with plain PyTorch.

    Example:
        >>> import seedcursor, torch
        >>> class Cropped:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return torch.randint(8, (2,))
        >>> report = seedcursor.audit(Cropped(), ignore=["start-method"])
        >>> report.findings[0].check, report.findings[0].severity
        ('unkeyed-torch', 'error')
    """

    check: str
    severity: str
    message: str
    evidence: str
    where: str
    fix: str


@frozen
class AuditReport:
    """What an audit found, and how much it looked at. ``str()`` of it is for reading.

    Args:
        target: What was audited.
        findings: The faults, each root cause once.
        checks_run: The ids of the checks that could be made.
        samples_compared: How many samples were read and compared.
        seconds: How long it took.
        notes: What the reader should know besides, such as samples that raise.
        picture: What the page draws: the samples as real workers read them.

    Example:
        >>> import seedcursor
        >>> report = seedcursor.audit([1, 2, 3], ignore=["start-method"])
        >>> report.ok, report.findings
        (True, ())
    """

    target: str
    findings: tuple[Finding, ...]
    checks_run: tuple[str, ...]
    samples_compared: int
    seconds: float
    notes: tuple[str, ...] = ()
    picture: tuple[Record, ...] = field(default=(), repr=False)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        return _text.text(self)

    def to_json(self) -> str:
        """The report as JSON.

        Returns:
            One object with ``target``, ``ok``, ``findings``, ``checks_run``, ``samples_compared``
            and ``seconds``.
        """
        return json.dumps(
            {
                "target": self.target,
                "ok": self.ok,
                "findings": [asdict(finding) for finding in self.findings],
                "checks_run": list(self.checks_run),
                "samples_compared": self.samples_compared,
                "seconds": round(self.seconds, 3),
            }
        )

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one file that needs no network, with a picture of who drew what.

        Args:
            path: Where to; a file there is overwritten.

        Raises:
            OSError: It can't be written.
        """
        Path(path).write_text(_page.page(self), encoding="utf-8")
