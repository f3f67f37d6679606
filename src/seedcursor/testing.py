"""For users' own test suites."""

from __future__ import annotations

from typing import Any

from seedcursor._audit._run import audit as _audit


def assert_reproducible(dataset_or_loader: Any, **options: Any) -> None:
    """Fail a test if the audit of a dataset, or of a loader, finds anything.

    Args:
        dataset_or_loader: As for ``seedcursor.audit``.
        **options: Passed on to ``seedcursor.audit``, such as ``samples`` and ``ignore``.

    Raises:
        AssertionError: Something was found; with the report.

    Example:
        >>> from seedcursor import StatefulDataset
        >>> class Noisy(StatefulDataset):
        ...     def __len__(self):
        ...         return 8
        ...     def __getitem__(self, index):
        ...         return index + self.rng(index).normal()
        >>> assert_reproducible(Noisy(), ignore=["start-method"])
    """
    __tracebackhide__ = True
    report = _audit(dataset_or_loader, **options)
    if not report.ok:
        raise AssertionError(str(report))
