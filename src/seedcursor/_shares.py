"""Which source comes at which position, so that every stretch has its share of each.

Positions come in periods of 1,000. A source with a share of ``n + f`` in each, ``n`` whole and
``f < 1``, has ``n`` slots that are the same in every period. What is left are ``r`` loose slots per
period. The m-th of them reads the point ``(A * m + B) mod R`` of a circle that measures ``r``
units, on which the source owns an arc of ``f`` units. The step ``A`` is less than one unit and no
shorter than any arc, so of ``r`` loose slots in a row a source gets one at most; hence of any 1,000
positions it gets ``n`` or ``n + 1``.

How often it got one before is a sum of floors, which an algorithm like Euclid's finds in O(log).
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from seedcursor import _checks, _keys

PERIOD = 1000
# How many positions may be asked for at once: their points on the circle fit 63 bits.
BLOCK = 65536
_SHARE = 32  # bits of a 1,000th; smaller shares are rounded
_SPARE = 10  # bits that leave room for a step between the longest arc and the unit
_UNIT = 1 << (_SHARE + _SPARE)
_GOLDEN = (math.sqrt(5) - 1) / 2


class Shares:
    """The slots of some sources at fixed weights, each a function of its position alone.

    Args:
        weights: One for each source, finite, not negative, and not all zero.
        seed: Keys the slots.
    """

    def __init__(self, weights: Sequence[float], seed: int) -> None:
        shares = _rounded(weights)
        self.drawn = [share > 0 for share in shares]
        self._whole = [share >> _SHARE for share in shares]
        arcs = [(share % (1 << _SHARE)) << _SPARE for share in shares]
        self._loose = PERIOD - sum(self._whole)
        self._circle = self._loose * _UNIT
        self._edges = list(itertools.accumulate(arcs))
        self._step = _step(max(arcs), self._loose)
        raw = np.random.PCG64(_keys.sequence(seed, 0, domain="mixture.slots")).random_raw(
            PERIOD + 1
        )
        self._first = int(raw[PERIOD]) % max(1, self._circle)
        self._slots = _spread([*self._whole, self._loose], raw[:PERIOD])

    def sources(self, start: int, count: int) -> NDArray[np.int64]:
        """The source at each of ``count`` positions, at most ``BLOCK``."""
        periods, rest = divmod(start, PERIOD)
        chosen = self._slots[(np.arange(count) + rest) % PERIOD]
        loose = np.flatnonzero(chosen == len(self._whole))
        if loose.size:
            point = self._point(self._loose_before(periods, rest))
            points = (np.arange(loose.size) * self._step + point) % self._circle
            chosen[loose] = np.searchsorted(self._edges, points, side="right")
        return chosen

    def counts(self, position: int) -> list[int]:
        """How often each source comes before a position."""
        periods, rest = divmod(position, PERIOD)
        fixed = np.bincount(self._slots[:rest], minlength=len(self._whole) + 1).tolist()
        below = self._below(self._loose_before(periods, rest))
        arcs = (end - start for start, end in itertools.pairwise([0, *below]))
        return [
            periods * whole + begun + arc
            for whole, begun, arc in zip(self._whole, fixed[:-1], arcs, strict=True)
        ]

    def _loose_before(self, periods: int, rest: int) -> int:
        return periods * self._loose + int(np.count_nonzero(self._slots[:rest] == len(self._whole)))

    def _point(self, loose: int) -> int:
        return (self._step * loose + self._first) % self._circle

    def _below(self, loose: int) -> list[int]:
        """How many of the first loose slots read a point below each edge."""
        if not loose:
            return [0] * len(self._edges)
        turns = _floor_sum(loose, self._circle, self._step, self._first)
        sums: dict[int, int] = {}  # a source without an arc ends where the one before it does
        for edge in self._edges:
            if edge not in sums:
                from_edge = self._first - edge + self._circle
                shifted = _floor_sum(loose, self._circle, self._step, from_edge)
                sums[edge] = turns - shifted + loose
        return [sums[edge] for edge in self._edges]


def _rounded(weights: Sequence[float]) -> list[int]:
    """The weights as whole numbers that sum to ``PERIOD << _SHARE``."""
    total = sum(map(Fraction, weights))
    exact = [Fraction(weight) * (PERIOD << _SHARE) / total for weight in weights]
    shares = [math.floor(share) for share in exact]
    missing = (PERIOD << _SHARE) - sum(shares)
    by_remainder = sorted(range(len(exact)), key=lambda k: shares[k] - exact[k])
    for k in by_remainder[:missing]:
        shares[k] += 1
    return shares


def _step(longest: int, loose: int) -> int:
    """A step from the longest arc to the unit, which comes by every point of the circle."""
    step = longest + int((_UNIT - longest) * _GOLDEN)
    while math.gcd(step, loose * _UNIT) != 1 and loose:
        step += 1
    return step


def _spread(counts: Sequence[int], raw: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Slots of which each number has its count, each in its own part of the whole.

    Where within the part is drawn: slots in step would give a rank the same source every time.
    """
    numbers = np.repeat(np.arange(len(counts)), counts)
    turns = np.concatenate([np.arange(count) for count in counts])
    jitter = (raw >> np.uint64(11)) * 2.0**-53
    times = (turns + jitter) / np.repeat(np.array(counts), counts)
    return numbers[np.argsort(times, kind="stable")]


def _floor_sum(count: int, modulus: int, factor: int, term: int) -> int:
    """The sum of ``(factor * k + term) // modulus`` over k in ``range(count)``."""
    total = 0
    while True:
        whole, factor = divmod(factor, modulus)
        total += whole * (count * (count - 1) // 2)
        whole, term = divmod(term, modulus)
        total += whole * count
        last = factor * count + term
        if last < modulus:
            return total
        count, term = divmod(last, modulus)
        modulus, factor = factor, modulus


class Schedule:
    """Shares that change at some positions.

    Args:
        weights: From which position on, which weights; one position is 0.
        seed: Keys the slots.
    """

    def __init__(self, weights: Mapping[int, Sequence[float]], seed: int) -> None:
        self._starts = sorted(weights)
        self._shares = [Shares(weights[start], seed) for start in self._starts]
        self._before = [[0] * len(weights[0])]  # counts at each start
        for start in self._starts[1:]:
            self._before.append(self.counts(start))

    def counts(self, position: int) -> list[int]:
        """How often each source comes before a position."""
        phase = max(0, bisect.bisect_left(self._starts, position) - 1)
        since = self._shares[phase].counts(position - self._starts[phase])
        return [before + count for before, count in zip(self._before[phase], since, strict=True)]

    def sources(self, start: int, count: int) -> NDArray[np.int64]:
        """The source at each of ``count`` positions, at most ``BLOCK``."""
        pieces: list[NDArray[np.int64]] = []
        stop = start + count
        while start < stop or not pieces:
            phase = bisect.bisect_right(self._starts, start) - 1
            end = min([stop, *self._starts[phase + 1 : phase + 2]])
            pieces.append(self._shares[phase].sources(start - self._starts[phase], end - start))
            start = end
        return np.concatenate(pieces)

    def drawn_for_ever(self, source: int) -> bool:
        """Whether a source has a share in the end."""
        return self._shares[-1].drawn[source]

    def first(self, reached: Callable[[list[int]], bool]) -> int | None:
        """The first position before which the counts have reached what they can't leave again.

        Returns:
            None if there is none below ``2**63``.
        """
        high = 1
        while not reached(self.counts(high)):
            high *= 2
            if high >= _checks.LENGTH_LIMIT:
                return None
        low = high // 2
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if reached(self.counts(middle)) else (middle + 1, high)
        return high
