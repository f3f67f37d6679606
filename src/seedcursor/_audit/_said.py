"""How a check says what it found."""

from __future__ import annotations

from seedcursor._audit._blame import definition
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._trial import Outcome
from seedcursor._audit._wording import WORDS


def finding(check: str, where: str, *evidence: str) -> Finding:
    """A finding in the words of its check, with lines of evidence."""
    words = WORDS[check]
    return Finding(check, words.severity, words.message, "\n".join(evidence), where, words.fix)


def named(lab: Lab, place: int) -> str:
    """A sample as the user would write it."""
    return f"record {place}" if lab.is_stream else f"{lab.reader.name}[{place}]"


def reading(lab: Lab) -> str:
    """Where the dataset's own code reads a sample."""
    return definition(lab.dataset, "__getitem__", "__getitems__", "__iter__", "sample")


def changed(lab: Lab, before: dict[int, Outcome], after: dict[int, Outcome], place: int) -> str:
    """A sample's value in two trials."""
    return f"{named(lab, place)} is {before[place].text}, then {after[place].text}"
