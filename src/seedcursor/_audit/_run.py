"""The audit itself: a target in, a report out."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from seedcursor import _checks
from seedcursor._audit._blame import definition
from seedcursor._audit._isolate import Broke
from seedcursor._audit._lab import Lab, Settings, Unreadable
from seedcursor._audit._report import AuditReport, Finding
from seedcursor._audit._said import finding
from seedcursor._audit._verdicts import CHECKS, verdicts
from seedcursor._audit._workers import Record


def audit(
    dataset_or_loader: Any,
    *,
    num_workers: Sequence[int] = (0, 2),
    epochs: int = 2,
    samples: int | None = None,
    batch_size: int | None = None,
    start_method: str = "fork",
    ignore: Collection[str] = (),
    seed: int = 0,
    timeout: float = 30.0,
    name: str | None = None,
    progress: Callable[[], None] = lambda: None,
) -> AuditReport:
    """Find out whether a dataset's randomness, records and state are what a training needs.

    Samples are read in processes of their own, so this one, its random state and the dataset stay
    as they are. A bare dataset is judged as the plain ``DataLoader`` would read it, a loader as it
    is. Large datasets are sampled.

    Args:
        dataset_or_loader: A map-style dataset, a stream, or a ``DataLoader`` of one.
        num_workers: Numbers of workers to compare.
        epochs: How many epochs to compare, at least 1.
        samples: How many samples to look at; by default few enough for half a minute.
        batch_size: Samples in a batch; by default the loader's.
        start_method: How workers are started.
        ignore: Ids of checks that are not made.
        seed: Chooses samples and random states; each audit with the same seed is the same.
        timeout: Seconds that one experiment may take before its sample counts as hanging.
        name: What the report calls the target.
        progress: Called before each experiment.

    Returns:
        What was found; ``str()`` of it is for reading.

    Raises:
        TypeError: The target is neither a dataset nor a loader, or an argument of another type.
        ValueError: An argument is out of range, or names no check.
        RuntimeError: Processes can't be forked here.

    Example:
        >>> import numpy as np
        >>> class Noisy:
        ...     def __len__(self):
        ...         return 100
        ...     def __getitem__(self, index):
        ...         return index + np.random.normal()
        >>> report = audit(Noisy(), samples=4, ignore=["start-method"])
        >>> [finding.check for finding in report.findings]
        ['unkeyed-numpy']
    """
    began = time.monotonic()
    _check_target(dataset_or_loader)
    unknown = sorted(set(ignore) - set(CHECKS))
    if unknown:
        raise ValueError(f"ignore must name checks, got {unknown}; there are {list(CHECKS)}")
    if not hasattr(os, "fork"):
        raise RuntimeError("audit needs os.fork, which this system lacks: run it on Linux or macOS")
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "put audit() under if __name__ == '__main__': a worker imports this file"
        )
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
    settings = Settings(
        num_workers=_counts(num_workers),
        epochs=_checks.integer("epochs", epochs, low=1, limit=100),
        samples=samples if samples is None else _checks.integer("samples", samples, low=1),
        batch_size=batch_size
        if batch_size is None
        else _checks.integer("batch_size", batch_size, low=1),
        start_method=_method(start_method),
        seed=_checks.integer("seed", seed, limit=2**32),
        timeout=timeout,
    )
    lab = Lab(dataset_or_loader, settings, tick=progress)
    findings, done, picture = _judged(lab, frozenset(ignore))
    return AuditReport(
        target=name or type(lab.dataset).__name__,
        findings=tuple(findings),
        checks_run=tuple(done),
        samples_compared=lab.compared,
        seconds=time.monotonic() - began,
        notes=tuple(lab.notes),
        picture=tuple(picture),
    )


def _judged(lab: Lab, ignored: frozenset[str]) -> tuple[list[Finding], list[str], list[Record]]:
    findings: list[Finding] = []
    done: list[str] = []
    try:
        if not lab.places or not lab.base:
            lab.notes.append("the dataset is empty, so there was nothing to look at")
            return [], [], []
        failed = [outcome for outcome in lab.base.values() if outcome.failed]
        if failed:
            shown = ", ".join(str(outcome.place) for outcome in failed[:5])
            lab.notes.append(
                f"{len(failed)} of {len(lab.base)} samples raised, such as {shown}: "
                f"{failed[0].text}"
            )
        if len(failed) == len(lab.base):
            return [_unreadable(lab, f"every sample raised: {failed[0].text}")], [], []
        for check, found in verdicts(lab, ignored):
            done.append(check)
            findings += found
        return findings, done, lab.natural[0]
    except Unreadable as told:
        return [*findings, _unreadable(lab, str(told))], done, []
    except Broke as broke:
        # Forked workers take everything with them, so others may fail where these do not.
        check = "unreadable" if lab.settings.start_method == "fork" else "start-method"
        return [*findings, _unreadable(lab, broke.line, check)], done, []


def _unreadable(lab: Lab, evidence: str, check: str = "unreadable") -> Finding:
    return finding(check, definition(lab.dataset, "__getitem__", "__iter__"), evidence)


def _check_target(target: Any) -> None:
    dataset = target.dataset if isinstance(target, DataLoader) else target
    if isinstance(dataset, IterableDataset):
        return
    if isinstance(dataset, type) or not (
        hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    ):
        raise TypeError(
            "dataset_or_loader must be a dataset, with __getitem__ and __len__ or an "
            f"IterableDataset, or a DataLoader, got {_checks.shown(target)} of type "
            f"{type(target).__name__}"
        )


def _counts(num_workers: Sequence[int]) -> tuple[int, ...]:
    counts = [num_workers] if isinstance(num_workers, int) else list(num_workers)
    if not counts:
        raise ValueError("num_workers must have at least one number, got none; try (0, 2)")
    return tuple(_checks.integer("num_workers", count, limit=1024) for count in counts)


def _method(method: object) -> str:
    known = multiprocessing.get_all_start_methods()
    if method not in known:
        raise ValueError(f"start_method must be one of {known}, got {method!r}")
    return str(method)
