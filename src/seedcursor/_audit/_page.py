"""The report as a page."""

from typing import Any


def page(report: Any) -> str:
    """A page."""
    return ""
