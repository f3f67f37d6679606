"""Orders that draw some records more often than others, with random access."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedcursor import _checks, _keys
from seedcursor._keyed_sampler import KeyedSampler
from seedcursor._permutation import KeyedPermutation
from seedcursor._record import Occurrence

# How many words are sorted at once, to bound the memory that they take.
_WORDS = 2**20


class WeightedSampler(KeyedSampler):
    """Records drawn by weight, with replacement.

    The record at a position is a function of ``(seed, epoch, position)``, found in O(1) by an alias
    table. A record that is drawn again has draws of its own: it comes as an `Occurrence`, numbered
    by its position. So use it in a ``StatefulDataLoader``; a plain one would hand the dataset the
    occurrence.

    Args:
        weights: One for each record, finite and not negative. They need not sum to 1.
        num_samples: Positions in an epoch; by default as many as records.
        seed: In ``[0, 2**128)``; by default that of the loader.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> sampler = WeightedSampler([0.0, 1.0, 3.0], num_samples=400)
        >>> (batch,) = StatefulDataLoader(range(3), 400, sampler=sampler, seed=1)
        >>> batch.bincount().div(100).round().tolist()
        [0.0, 1.0, 3.0]

    References:
        M. D. Vose, "A linear algorithm for generating random numbers with a given distribution",
        1991; the table is built as in L. Hübschle-Schneider, P. Sanders, "Parallel weighted random
        sampling", 2022.
    """

    def __init__(
        self, weights: Any, num_samples: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        given = _weights(weights)
        self._kept, self._alias = _alias_table(given)
        self._made_for = len(given)
        self._order_digest = _keys.order_digest(given)
        self._length = _num_samples(num_samples, len(self._kept))

    def __len__(self) -> int:
        return self._length

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Sequence[Occurrence]:
        """The records at some positions of an epoch.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            positions: N of them, each in ``[0, len(self))``.

        Returns:
            N occurrences, each numbered by its position.
        """
        words = _words(seed, epoch, positions, "weighted", 2)
        column, chance = ((words >> np.uint64(11)) * 2.0**-53).T
        drawn = (column * len(self._kept)).astype(np.int64)
        records = np.where(chance < self._kept[drawn], drawn, self._alias[drawn])
        return _occurrences(records, positions)


class WeightedShuffle(KeyedSampler):
    """Records in a weighted random order, without replacement: heavier ones tend to come earlier.

    As if each were drawn by weight from those that are left. Records of weight 0 never come.

    Args:
        weights: One for each record, finite and not negative.
        num_samples: Positions in an epoch; by default as many as records of a weight above 0.
            With fewer, an epoch is a weighted sample of the records.
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Note:
        The order of an epoch is made whole, once, and takes 8 bytes per record; while it is made,
        about 24 more. It follows from logarithms, whose last bit may depend on the machine: two
        records that are equal to that bit may change places.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> sampler = WeightedShuffle([1e-9, 1.0, 0.0, 1e9])
        >>> loader = StatefulDataLoader("abcd", 3, sampler=sampler, seed=1)
        >>> list(loader)
        [['d', 'b', 'a']]

    References:
        P. S. Efraimidis, P. G. Spirakis, "Weighted random sampling with a reservoir", 2006.
    """

    def __init__(
        self, weights: Any, num_samples: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        self._weights = _weights(weights)
        self._order_digest = _keys.order_digest(self._weights)
        self._made_for = len(self._weights)
        possible = int(np.count_nonzero(self._weights))
        self._length = _num_samples(num_samples, possible)
        if self._length > possible:
            raise ValueError(
                f"num_samples must be at most the {possible} records of a weight above 0, got "
                f"{self._length}; WeightedSampler draws with replacement"
            )
        self._order: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return self._length

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> list[int]:
        """The records at some positions of an epoch.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            positions: N of them, each in ``[0, len(self))``.

        Returns:
            N indices.
        """
        if self._order is None or self._order[0] != (seed, epoch):
            self._order = (seed, epoch), self._whole(seed, epoch)
        indices: list[int] = self._order[1][positions].tolist()
        return indices

    def _whole(self, seed: int, epoch: int) -> NDArray[np.int64]:
        bits = np.random.PCG64(_keys.sequence(seed, epoch, domain="weighted.shuffle"))
        raw = bits.random_raw(len(self._weights)) >> np.uint64(11)
        # A clock for each record: the heavier, the sooner it rings. The logarithms of the times are
        # compared, for the times of very light ones are too large.
        with np.errstate(divide="ignore", invalid="ignore"):
            times = np.log(-np.log((raw + np.uint64(1)) * 2.0**-53)) - np.log(self._weights)
        return np.argsort(times, kind="stable")[: self._length]


class BalancedSampler(KeyedSampler):
    """Records such that each class comes equally often, however many records it has.

    Of every ``C`` positions, ``C`` the number of classes, each class has one, in a shuffled order.
    Within a class records come in a shuffled order too, each once before any comes again. Both go
    on from epoch to epoch; so a small class is repeated and a large one is not cut short. A
    record that is drawn again in an epoch has draws of its own: it comes as an `Occurrence`. So use
    it in a ``StatefulDataLoader``; a plain one would hand the dataset the occurrence.

    Args:
        labels: The class of each record: ints or strings.
        num_samples: Positions in an epoch; by default as many as records, rounded up to a multiple
            of the number of classes. If it is no multiple, classes differ by one in an epoch.
        seed: In ``[0, 2**128)``; by default that of the loader.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range; later, a class has been read through 2**32 times.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> names = ["cat1", "cat2", "cat3", "dog1"]
        >>> sampler = BalancedSampler(["cat", "cat", "cat", "dog"], num_samples=6)
        >>> (batch,) = StatefulDataLoader(names, 6, sampler=sampler)
        >>> sorted(batch)
        ['cat1', 'cat2', 'cat3', 'dog1', 'dog1', 'dog1']
    """

    def __init__(
        self, labels: Any, num_samples: int | None = None, seed: int | None = None
    ) -> None:
        super().__init__(seed)
        numbers = _class_numbers(labels)
        self._order_digest = _keys.order_digest(numbers)
        self._made_for = len(numbers)
        sizes = np.bincount(numbers)
        self._classes = len(sizes)
        members = np.argsort(numbers, kind="stable")
        self._members = np.split(members, np.cumsum(sizes)[:-1])
        whole = -(-len(numbers) // self._classes) * self._classes
        self._length = _num_samples(num_samples, whole)

    def __len__(self) -> int:
        return self._length

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Sequence[Occurrence]:
        """The records at some positions of an epoch.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            positions: N of them, each in ``[0, len(self))``.

        Returns:
            N occurrences, each numbered by how often its class was read through in the epoch.
        """
        # Rounds go on from epoch to epoch, so the first may have begun in an earlier one.
        before, begun = divmod(epoch * self._length, self._classes)
        rounds, in_round = np.divmod(positions + begun, self._classes)
        numbers = self._drawn_classes(seed, epoch, rounds, in_round)
        records, repeats = np.empty_like(positions), np.empty_like(positions)
        by_class = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=self._classes))
        for number in np.unique(numbers).tolist():
            places = by_class[ends[number - 1] if number else 0 : ends[number]]
            records[places], repeats[places] = self._members_at(
                seed, number, before, rounds[places]
            )
        return _occurrences(records, repeats)

    def _drawn_classes(
        self, seed: int, epoch: int, rounds: NDArray[np.int64], in_round: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The class at each position: in every round each class once."""
        different, inverse = np.unique(rounds, return_inverse=True)
        numbers = np.empty_like(rounds)
        at_once = max(1, _WORDS // self._classes)
        for start in range(0, len(different), at_once):
            orders = self._orders(seed, epoch, different[start : start + at_once])
            here = (start <= inverse) & (inverse < start + at_once)
            numbers[here] = orders[inverse[here] - start, in_round[here]]
        return numbers

    def _orders(self, seed: int, epoch: int, rounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """The classes in the order of some rounds, a row each, keyed by where the round begins."""
        everyone = np.arange(self._classes)
        first = epoch * self._length
        begun = first % self._classes
        words = []
        if begun and rounds[0] == 0:
            earlier, place = divmod(first - begun, self._length)
            words.append(_words(seed, earlier, place + everyone, "balanced", 1))
            rounds = rounds[1:]
        if len(rounds):
            places = rounds[:, None] * self._classes - begun + everyone
            words.append(_words(seed, epoch, places.ravel(), "balanced", 1))
        keys = np.concatenate(words).reshape(-1, self._classes)
        return np.argsort(keys, axis=1, kind="stable")

    def _members_at(
        self, seed: int, number: int, before: int, rounds: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A class's records in some rounds, and how often it was read through before."""
        members = self._members[number]
        turn, place = divmod(before, len(members))
        turns, places = np.divmod(rounds + place, len(members))
        if turn + int(turns.max()) >= _checks.EPOCH_LIMIT:
            raise ValueError(
                f"a class must be read through less than 2**32 times, got one of {len(members)} "
                f"records, read through {turn} times before; give it more, or leave it out"
            )
        records = np.empty_like(rounds)
        own_seed = _keys.derived_seed(seed, number, "balanced.order")
        for later in np.unique(turns).tolist():
            order = KeyedPermutation(len(members), own_seed, turn + later)
            now = turns == later
            records[now] = members[order[places[now]]]
        return records, turns


def _words(
    seed: int, epoch: int, positions: NDArray[np.int64], domain: str, size: int
) -> NDArray[np.uint64]:
    """Some 64-bit words for each position, a row each."""
    words = _keys.keys(seed, epoch, positions.tolist(), domain=domain, size=2 * size)
    wide = words.astype(np.uint64)
    return wide[:, ::2] | wide[:, 1::2] << np.uint64(32)


def _occurrences(records: NDArray[np.int64], numbers: NDArray[np.int64]) -> list[Occurrence]:
    pairs = zip(records.tolist(), numbers.tolist(), strict=True)
    return [Occurrence(record, number) for record, number in pairs]


def _alias_table(
    weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """For each column the chance that it stands for its own record, and the other one if not.

    What light records leave free in their columns is taken by heavy ones, one after the other. So
    who fills a column is found among the sums of what they have too much, for all at once.
    """
    scaled = weights / weights.max()
    scaled *= len(weights) / scaled.sum()
    heavy = scaled >= min(1.0, scaled.max())
    lights, heavies = np.flatnonzero(~heavy), np.flatnonzero(heavy)
    free = np.concatenate([[0.0], np.cumsum(1 - scaled[lights])])
    excess = np.cumsum(scaled[heavies] - 1)
    alias = np.arange(len(weights))
    kept = np.minimum(scaled, 1.0)
    filler = np.searchsorted(excess, free[:-1], side="right")
    alias[lights] = heavies[np.minimum(filler, len(heavies) - 1)]
    # Whoever filled the last column too far is short in its own, and the next heavy one fills it.
    last = np.searchsorted(free, excess, side="left")
    over = np.append(free, np.inf)[last] - excess
    short = np.flatnonzero(np.isfinite(over[:-1]))
    kept[heavies[short]] = np.maximum(0.0, 1 - over[short])
    alias[heavies[short]] = heavies[short + 1]
    return kept, alias


def _weights(weights: Any) -> NDArray[np.float64]:
    given = _checks.one_each("weights", "numbers", "biuf", weights).astype(np.float64)
    wrong = np.flatnonzero(~((given >= 0) & (given < np.inf)))
    if wrong.size:
        raise ValueError(
            f"weights must be finite and not negative, got {given[wrong[0]]} at index {wrong[0]}"
        )
    if not given.any():
        raise ValueError(f"weights must have one above 0, got {len(given)} times 0")
    return given


def _class_numbers(labels: Any) -> NDArray[np.int64]:
    given = _checks.one_each("labels", "ints or strings", "biuUS", labels)
    return np.unique(given, return_inverse=True)[1]


def _num_samples(given: int | None, default: int) -> int:
    if given is None:
        return default
    return _checks.integer("num_samples", given, low=1, limit=_checks.LENGTH_LIMIT)
