"""Several datasets as one, each with its share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import IterableDataset

from seedcursor import _batch, _checks, _keys
from seedcursor._dataset import StatefulDataset, StatefulIterableDataset
from seedcursor._keyed import globals_to_key
from seedcursor._keyed_sampler import KeyedSampler, check_made_for, sampler_digest
from seedcursor._mixed import Mixed
from seedcursor._permutation import KeyedPermutation
from seedcursor._shares import BLOCK

# Positions that are kept at hand; what each costs is as good as least from here on.
_BLOCK = 4096
_END = object()


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


class Mixture(Mixed, StatefulDataset[Any]):
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
        orders: By name, a source's own order in place of a shuffle of all its records: a
            `KeyedSampler` as long as the source. A `WindowedSampler` reads a corpus of many files
            on and on, where a shuffle would read a chunk for each record.

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
        orders: Mapping[str, KeyedSampler] | None = None,
    ) -> None:
        super().__init__(seed=seed)
        self._mix(sources, _map_style, length, stop, weights_from)
        self._take_orders({} if orders is None else orders)
        self._seeds = [_keys.derived_seed(self.seed, name, "mixture.order") for name in self._names]
        self._blocks: dict[int, Draws] = {}  # the last few that were asked for

    def __getitem__(self, index: int) -> Any:
        position = _checks.integer("index", index, low=None)
        if not 0 <= position < self._length:
            raise IndexError(f"index must be in [0, {self._length}), got {position}")
        block, place = divmod(self.epoch * self._length + position, _BLOCK)
        source, epoch, record = (int(column[place]) for column in self._block(block))
        name = self._names[source]
        with self._part(name, epoch, record, self._number(name, position)):
            return self.datasets[name][record]

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

    def _take_orders(self, orders: Mapping[str, KeyedSampler]) -> None:
        if not isinstance(orders, Mapping):
            raise TypeError(f"orders must be a mapping of names, got {type(orders).__name__}")
        lengths = dict(zip(self._names, self._lengths, strict=True))
        for name, order in orders.items():
            if name not in lengths:
                raise ValueError(f"orders must be of sources {self._names}, got one of {name!r}")
            if not isinstance(order, KeyedSampler):
                raise TypeError(
                    f"orders[{name!r}] must be a KeyedSampler, got {type(order).__name__}"
                )
            if len(order) != lengths[name]:
                raise ValueError(
                    f"orders[{name!r}] must be as long as its source, {lengths[name]}, got a "
                    f"{type(order).__name__} of length {len(order)}"
                )
            check_made_for(order, f"orders[{name!r}]", self.datasets[name])
        self._orders = [orders.get(name) for name in self._names]
        if orders:
            digests = [None if order is None else sampler_digest(order) for order in self._orders]
            self._order_digest = _keys.order_digest(self._order_digest, digests)

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
            pieces.append(self._indices(source, epoch, place, min(length, place + stop - first)))
            first += len(pieces[-1])
        epoch = (stop - count) // length
        epochs = np.repeat(np.arange(len(pieces)) + epoch, [len(piece) for piece in pieces])
        return epochs, np.concatenate(pieces)

    def _indices(self, source: int, epoch: int, start: int, stop: int) -> NDArray[np.int64]:
        """The indices at some places of an epoch of a source."""
        order, seed = self._orders[source], self._seeds[source]
        if order is None:
            return KeyedPermutation(self._lengths[source], seed, epoch)[start:stop]
        seed = seed if order.seed is None else order.seed
        indices = np.asarray(order.at(seed, epoch, np.arange(start, stop, dtype=np.int64)))
        if indices.shape != (stop - start,) or indices.dtype.kind not in "iu":
            raise TypeError(
                f"orders[{self._names[source]!r}] must return an integer for each position, got "
                f"{indices.dtype} of shape {indices.shape} from {type(order).__name__}.at"
            )
        return indices.astype(np.int64)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}


class IterableMixture(Mixed, StatefulIterableDataset[Any]):
    """Several streams as one, in which each has its share of the records.

    As `Mixture`, for ``StatefulIterableDataset``s with a length. A source's records come in its own
    order: the one that its ``records(start)`` yields in its own epoch, which goes on where it was
    left. A record that is dropped by ``SKIP`` counts. As of any stream, every worker reads through
    the records and works on its own; what a resume reads is up to the sources.

    Args:
        sources: By name, a stream and its weight. Its length is asked once, and must be the number
            of records that it yields in an epoch.
        length: Positions in an epoch. Give this or ``stop``.
        stop: ``"first_exhausted"`` or ``"all_exhausted"``, as of `Mixture`.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.
        weights_from: Other weights from some positions on, as of `Mixture`.

    Raises:
        TypeError: An argument is of another type, or a source has no length.
        ValueError: An argument is out of range; later, a source has more or fewer records than its
            length.

    Example:
        >>> class Words(StatefulIterableDataset):
        ...     def __init__(self, words):
        ...         super().__init__()
        ...         self.words = words
        ...     def __len__(self):
        ...         return len(self.words)
        ...     def records(self, start):
        ...         return iter(self.words[start:])
        >>> mixture = IterableMixture({"a": (Words("ab"), 1), "c": (Words("cdef"), 1)}, length=8)
        >>> sorted(mixture)
        ['a', 'a', 'b', 'b', 'c', 'd', 'e', 'f']
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
        self._mix(sources, _stream, length, stop, weights_from)

    def records(self, start: int) -> Iterator[Any]:
        """The sources' records, each with where it comes from.

        Args:
            start: The first record's position.
        """
        first, end = self.epoch * self._length + start, (self.epoch + 1) * self._length
        readers = [
            _Reader(name, dataset, length, count, self._number(name, 0))
            for (name, dataset), length, count in zip(
                self.datasets.items(), self._lengths, self._schedule.counts(first), strict=True
            )
        ]
        for at in range(first, end, _BLOCK):
            for source in self._schedule.sources(at, min(_BLOCK, end - at)).tolist():
                yield readers[source].read()

    def sample(self, record: Any, index: int) -> Any:
        """The source's sample.

        Args:
            record: As `records` yielded it.
            index: Its position in the epoch.
        """
        name, epoch, place, raw = record
        with self._part(name, epoch, place, self._number(name, index)):
            return self.datasets[name].sample(raw, place)


class _Reader:
    """Reads a source from one of its records on, epoch by epoch.

    Args:
        name: The source's.
        dataset: The source.
        length: How many records it has in an epoch.
        drawn: How many were read before, all epochs together.
        number: Tells its draws apart.
    """

    def __init__(
        self,
        name: str,
        dataset: StatefulIterableDataset[Any],
        length: int,
        drawn: int,
        number: int,
    ) -> None:
        self._name = name
        self._dataset = dataset
        self._length = length
        self._number = number
        self._epoch, self._place = divmod(drawn, length) if length else (0, 0)
        self._records: Iterator[Any] | None = None

    def read(self) -> tuple[str, int, int, Any]:
        """The next record, with the source's name, its epoch and its place there."""
        epoch, place = self._epoch, self._place
        outer = _batch.own()
        with globals_to_key():
            part = _batch.Part(_batch.whole(), epoch, self._number, self._dataset)
            _batch.enter(part)
            try:
                return self._name, epoch, place, self._next()
            finally:
                _batch.leave(outer)

    def _next(self) -> Any:
        if self._records is None:
            self._records = iter(self._dataset.records(self._place))
        record = next(self._records, _END)
        if record is _END:
            raise self._wrong(f"only {self._place}")
        self._place += 1
        if self._place == self._length:
            if next(self._records, _END) is not _END:
                raise self._wrong("more")
            self._records = None
            self._epoch, self._place = self._epoch + 1, 0
        return record

    def _wrong(self, found: str) -> ValueError:
        return ValueError(
            f"sources[{self._name!r}] must have as many records in an epoch as its length says, "
            f"{self._length}, got {found} in its epoch {self._epoch}"
        )


def _map_style(name: str, dataset: Any) -> Any:
    mapped = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if isinstance(dataset, (IterableDataset, Mapping)) or not mapped:
        raise TypeError(
            f"sources[{name!r}] must be a map-style dataset, with __getitem__ and __len__, got "
            f"{type(dataset).__name__}; for streams there is IterableMixture"
        )
    return dataset


def _stream(name: str, dataset: Any) -> Any:
    if not isinstance(dataset, StatefulIterableDataset) or not hasattr(dataset, "__len__"):
        raise TypeError(
            f"sources[{name!r}] must be a StatefulIterableDataset with __len__, the number of its "
            f"records, got {type(dataset).__name__}; for map-style datasets there is Mixture"
        )
    return dataset
