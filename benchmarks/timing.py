"""Ours against theirs: alternating pairs, and the median of their ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable

from attrs import frozen

Unit = tuple[tuple[float, str], ...]
SECONDS: Unit = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
BYTES: Unit = ((1e6, "MB"), (1e3, "kB"), (1.0, "B"))


@frozen
class Comparison:
    """Two trials that stand for the same work.

    Attributes:
        against: What ours is compared with.
        at_most: The ratio that ours should not exceed.
        ours: One trial of ours; returns what it cost.
        theirs: One trial of theirs.
        pairs: How many are counted.
        unit: Of the costs.
    """

    against: str
    at_most: float
    ours: Callable[[], float]
    theirs: Callable[[], float]
    pairs: int
    unit: Unit = SECONDS


@frozen
class Result:
    """Medians over the pairs.

    Attributes:
        ours: Of our costs.
        theirs: Of their costs.
        ratio: Of the ratios, pair by pair.
    """

    ours: float
    theirs: float
    ratio: float


def compare(comparison: Comparison) -> Result:
    """Run ours, theirs, ours, theirs, and so on; a first pair warms up and is not counted.

    The two of a pair run within moments of each other, so a machine that is slow for a while is
    slow for both, and their ratio stays.
    """
    comparison.ours(), comparison.theirs()
    pairs = [(comparison.ours(), comparison.theirs()) for _ in range(comparison.pairs)]
    return Result(
        ours=statistics.median(ours for ours, _ in pairs),
        theirs=statistics.median(theirs for _, theirs in pairs),
        ratio=statistics.median(ours / theirs for ours, theirs in pairs),
    )


def seconds(action: Callable[[], object], calls: int = 1) -> float:
    """What a call costs, averaged over ``calls`` of them.

    What the last call returned is let go when the clock has stopped: stopping workers is not timed.
    """
    start = time.perf_counter()
    for _ in range(calls):
        kept = action()
    spent = time.perf_counter() - start
    del kept
    return spent / calls


def exhaust(items: Iterable[object]) -> None:
    """Go through all of them, as a training loop with an empty body."""
    for _ in items:
        pass


def readable(cost: float, unit: Unit) -> str:
    """Three digits, and the largest unit that leaves one before the point."""
    size, name = next((part for part in unit if cost >= part[0]), unit[-1])
    return f"{cost / size:.3g} {name}"
