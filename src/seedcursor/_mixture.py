"""Several datasets as one, each with its share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from seedcursor import _batch, _checks, _keys, _rng
from seedcursor._dataset import StatefulDataset
from seedcursor._keyed import as_drawn, globals_to_key
from seedcursor._permutation import KeyedPermutation
from seedcursor._record import Occurrence
from seedcursor._shares import BLOCK, Schedule

# Positions that are kept at hand; what each costs is as good as least from here on.
_BLOCK = 4096
# A source of less would have no share in any run.
_LEAST_SHARE = 1e-12
_RULES = {"first_exhausted": any, "all_exhausted": all}


class Draws(NamedTuple):
    """What some positions of a mixture are made of.

    Attributes:
        sources: The source's number, in the order in which the sources were given.
        epochs: The source's own epoch.
        indices: The record.
    """

    sources: NDArray[np.int64]
    epochs: NDArray[np.int64]
    indices: NDArray[np.int64]


class Mixture(StatefulDataset[Any]):
    """Several map-style datasets as one, in which each has its share of the samples.

    Its index is a position: which source comes there, and which of its records, is a function of
    ``(seed, epoch, position)``. In any 1,000 positions in a row, each source comes as often as its
    weight says, to within one. So read it in order, ``shuffle=False``: it is mixed well already.

    Each source has epochs of its own, shuffled anew each time: a small one is read again and again,
    a large one once. While a sample is built, its source sees the source's epoch; generators by
    index and the global RNGs are keyed by that epoch and by the source's name. So a repeat has an
    augmentation of its own, and sources with equal seeds draw apart.

    The mixture's epoch e goes on where the one before it ended, at position ``e * length``: no
    source starts again before it was read through.

    Args:
        sources: By name, a dataset and its weight. Weights need not sum to 1. A dataset is any that
            has ``__getitem__`` and ``__len__``; its length is asked once.
        length: Positions in an epoch. Give this or ``stop``.
        stop: Where an epoch ends: ``"first_exhausted"``, as soon as a source was read through once,
            or ``"all_exhausted"``, once each was. That is so in epoch 0; the others are as long.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.
        weights_from: Other weights from some positions on, each time of all sources by name. The
            positions count on from epoch to epoch. A stretch of 1,000 that has a change in it may
            be further off.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or the epoch would never end.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> text, code = ["t0", "t1", "t2", "t3", "t4"], ["c0", "c1"]
        >>> mixture = Mixture({"text": (text, 0.75), "code": (code, 0.25)}, length=8)
        >>> loader = StatefulDataLoader(mixture, batch_size=8)
        >>> [sum(name.startswith("c") for name in batch) for batch in (*loader, *loader)]
        [2, 2]

    References:
        Where the loose slots fall is a rotation of a circle, counted by the sum of floors of R. L.
        Graham, D. E. Knuth, O. Patashnik, "Concrete Mathematics", section 3.5.
    """

    def __init__(
        self,
        sources: Mapping[str, tuple[Any, float]],
        length: int | None = None,
        stop: str | None = None,
        seed: int = 0,
        *,
        weights_from: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self.datasets = {name: _dataset(name, pair) for name, pair in _named(sources).items()}
        weights = {0: {name: pair[1] for name, pair in sources.items()}}
        for position, changed in _changes(weights_from).items():
            weights[position] = _complete(position, changed, set(self.datasets))
        self._names = list(self.datasets)
        self._lengths = [len(dataset) for dataset in self.datasets.values()]
        by_position = {
            position: [_weight(name, given[name]) for name in self._names]
            for position, given in weights.items()
        }
        for position, given in by_position.items():
            self._check_shares(position, given)
        self._schedule = Schedule(by_position, self.seed)
        self._length = self._epoch_length(length, stop)
        self._order_digest = _keys.order_digest(self._names, self._lengths, by_position)
        self._seeds = [_keys.derived_seed(self.seed, name, "mixture.order") for name in self._names]
        self._blocks: dict[int, Draws] = {}  # the last few that were asked for

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        position = _checks.integer("index", index, low=None)
        if not 0 <= position < self._length:
            raise IndexError(f"index must be in [0, {self._length}), got {position}")
        block, place = divmod(self.epoch * self._length + position, _BLOCK)
        source, epoch, record = (int(column[place]) for column in self._block(block))
        drawn = as_drawn(self, [position])[0]
        repeat = drawn.number if isinstance(drawn, Occurrence) else 0
        return self._sample(self._names[source], epoch, record, repeat)

    def draws(self, start: int, stop: int) -> Draws:
        """What the positions from ``start`` to ``stop`` are made of, in this epoch.

        Args:
            start: The first position, in ``[0, len(self)]``.
            stop: The end, in ``[start, len(self)]``.

        Returns:
            For each position the source's number, the source's epoch and the record's index.

        Raises:
            TypeError: An argument is not an integer.
            ValueError: An argument is out of range.

        Example:
            >>> mixture = Mixture({"a": ("xy", 1), "b": ("z", 1)}, length=6)
            >>> draws = mixture.draws(0, 6)
            >>> sorted(zip(*(column.tolist() for column in draws)))[:4]
            [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
        """
        start = _checks.integer("start", start, limit=self._length + 1)
        stop = _checks.integer("stop", stop, low=start, limit=self._length + 1)
        first = self.epoch * self._length
        pieces = [
            self._drawn(at, min(BLOCK, first + stop - at))
            for at in range(first + start, first + max(stop, start + 1), BLOCK)
        ]
        return Draws(*(np.concatenate(columns) for columns in zip(*pieces, strict=True)))

    def _sample(self, name: str, epoch: int, record: int, repeat: int) -> Any:
        dataset, number = self.datasets[name], _keys.part_number(name, repeat)
        key = _keys.part_key(self.seed, epoch, record, number, 4 * _rng.GLOBAL_WORDS)
        outer = _batch.own()
        with globals_to_key():
            _rng.key_globals(key)
            _batch.enter(_batch.Part(_batch.whole(), epoch, number, dataset))
            try:
                return dataset[record]
            except Exception as error:
                _batch.note(error, f"in source {name!r}, its record {record}, its epoch {epoch}")
                raise
            finally:
                _batch.leave(outer)

    def _block(self, number: int) -> Draws:
        """The draws of a whole block, for a loader asks for the positions one by one."""
        found = self._blocks.get(number)
        if found is None:
            found = self._drawn(number * _BLOCK, _BLOCK)
            # Not all of them, nor just one: a batch may begin in a block and end in the next.
            self._blocks = {**dict(list(self._blocks.items())[-1:]), number: found}
        return found

    def _drawn(self, start: int, count: int) -> Draws:
        """The draws at positions that count on from epoch to epoch, at most ``BLOCK``."""
        sources = self._schedule.sources(start, count)
        epochs, records = np.empty_like(sources), np.empty_like(sources)
        before = self._schedule.counts(start)
        by_source = np.argsort(sources, kind="stable")
        counts = np.bincount(sources, minlength=len(before))
        ends = np.cumsum(counts)
        for source in np.flatnonzero(counts).tolist():
            places = by_source[ends[source] - counts[source] : ends[source]]
            epochs[places], records[places] = self._records(source, before[source], len(places))
        return Draws(sources, epochs, records)

    def _records(
        self, source: int, first: int, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The epochs and records of a source's draws from the ``first`` on."""
        length, stop = self._lengths[source], first + count
        if (stop - 1) // length >= _checks.EPOCH_LIMIT:
            raise ValueError(
                f"source {self._names[source]!r} must be read through less than 2**32 times, got "
                f"its draw {stop - 1} of {length} records"
            )
        pieces = []
        while first < stop:
            epoch, place = divmod(first, length)
            order = KeyedPermutation(length, self._seeds[source], epoch)
            pieces.append(order[place : place + stop - first])
            first += len(pieces[-1])
        epoch = (stop - count) // length
        epochs = np.repeat(np.arange(len(pieces)) + epoch, [len(piece) for piece in pieces])
        return epochs, np.concatenate(pieces)

    def _check_shares(self, position: int, weights: list[float]) -> None:
        total = math.fsum(weights)
        if not 0 < total < math.inf:
            raise ValueError(
                f"weights must have a sum above 0 and finite, got {total} from position {position}"
            )
        for name, weight, length in zip(self._names, weights, self._lengths, strict=True):
            if weight and not length:
                raise ValueError(
                    f"sources[{name!r}] must have records, got a dataset of length 0 with weight "
                    f"{weight}; leave it out, or give it weight 0"
                )
            if 0 < weight / total < _LEAST_SHARE:
                raise ValueError(
                    f"the weight of {name!r} must be 0 or at least {_LEAST_SHARE:g} of the sum, "
                    f"got {weight} of {total}"
                )

    def _epoch_length(self, length: int | None, stop: str | None) -> int:
        if (length is None) == (stop is None):
            raise ValueError(
                f"one of length and stop must be given, got length={length!r}, stop={stop!r}"
            )
        if stop is None:
            return _checks.integer("length", length, low=1, limit=_checks.LENGTH_LIMIT)
        if not isinstance(stop, str) or stop not in _RULES:
            raise ValueError(f"stop must be one of {list(_RULES)}, got {_checks.shown(stop)}")
        enough = _RULES[stop]
        found = self._schedule.first(
            lambda counts: enough(
                count >= n for count, n in zip(counts, self._lengths, strict=True) if n
            )
        )
        if found is None:
            raise ValueError(
                f"stop={stop!r} must be reached below position 2**63; does a source keep weight 0?"
            )
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}


def _named(sources: object) -> Mapping[str, Any]:
    if not isinstance(sources, Mapping):
        raise TypeError(
            f"sources must be a mapping of names to (dataset, weight), got {type(sources).__name__}"
        )
    if not sources:
        raise ValueError("sources must name at least one dataset, got none")
    for name in sources:
        if not isinstance(name, str):
            raise TypeError(f"sources must have names of type str, got {_checks.shown(name)}")
    return sources


def _dataset(name: str, pair: object) -> Any:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(
            f"sources[{name!r}] must be a pair (dataset, weight), got {type(pair).__name__}"
        )
    dataset = pair[0]
    mapped = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, (IterableDataset, Mapping)) or not mapped:
        raise TypeError(
            f"sources[{name!r}] must be a map-style dataset, with __getitem__ and __len__, got "
            f"{type(dataset).__name__}"
        )
    return dataset


def _weight(name: str, weight: object) -> float:
    try:
        number = float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"the weight of {name!r} must be a number, got {_checks.shown(weight)} of type "
            f"{type(weight).__name__}"
        ) from None
    if not 0 <= number < math.inf:
        raise ValueError(f"the weight of {name!r} must be finite and not negative, got {number}")
    return number


def _changes(weights_from: object) -> dict[int, object]:
    if weights_from is None:
        return {}
    if not isinstance(weights_from, Mapping):
        raise TypeError(
            "weights_from must be a mapping of positions to weights, got "
            f"{type(weights_from).__name__}"
        )
    return {
        _checks.integer("a position of weights_from", position, low=1): weights
        for position, weights in weights_from.items()
    }


def _complete(position: int, weights: object, names: set[str]) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights_from[{position}] must be a mapping of names to weights, got "
            f"{type(weights).__name__}"
        )
    if set(weights) != names:
        raise ValueError(
            f"weights_from[{position}] must give a weight to each of {sorted(names)}, got "
            f"{list(weights)}; a source that is to be left out has weight 0"
        )
    return dict(weights)
