"""Batches of records of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedcursor import _checks, _keys
from seedcursor._keyed_sampler import KeyedBatchSampler
from seedcursor._permutation import KeyedPermutation


class _Epoch(NamedTuple):
    """The batches of an epoch.

    Attributes:
        key: The seed and the epoch.
        records: Batch by batch.
        ends: Where among them a batch ends, in the order of delivery.
        stops: How many samples are delivered once a batch is.
    """

    key: tuple[int, int]
    records: NDArray[np.int64]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]


class LengthBatchSampler(KeyedBatchSampler):
    """Batches of records of similar length, so that little is padded, in a shuffled order.

    The records of an epoch are shuffled, sorted by length within a window, cut into batches, and
    the batches are shuffled. Each record comes once. A batch is bounded by its samples, or by its
    tokens once all its samples are padded to the longest, or both. In a batch the longest comes
    first. It is a ``batch_sampler=``; ranks take its batches in turn.

    Args:
        lengths: Of each record, in tokens, or whatever a batch should be bounded by.
        batch_size: Samples in a batch, at most; give this, ``max_tokens`` or both.
        max_tokens: Tokens in a batch, padding included, at most.
        window: How many records are sorted together. The larger, the less is padded, and the more
            often the same records share a batch. Rounded down to a multiple of ``batch_size``.
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or a record has more than ``max_tokens``.

    Note:
        The batches of an epoch are made whole, once: 8 bytes per record are kept, and about 40
        more are used while they are made.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> texts = ["a", "bb", "c", "dd", "eeeee", "f"]
        >>> sampler = LengthBatchSampler([len(text) for text in texts], max_tokens=5)
        >>> loader = StatefulDataLoader(texts, batch_sampler=sampler)
        >>> sorted(sorted(batch) for batch in loader)
        [['a', 'c', 'f'], ['bb', 'dd'], ['eeeee']]
    """

    def __init__(
        self,
        lengths: Any,
        *,
        batch_size: int | None = None,
        max_tokens: int | None = None,
        window: int = 8192,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        if batch_size is None and max_tokens is None:
            raise ValueError("batch_size, max_tokens or both must be given, got neither")
        self._lengths = _checks.lengths(lengths)
        self._made_for = len(self._lengths)
        limit = _checks.LENGTH_LIMIT
        self._size = len(self._lengths)
        if batch_size is not None:
            self._size = _checks.integer("batch_size", batch_size, low=1, limit=limit)
        window = _checks.integer("window", window, low=1, limit=limit)
        self._window = window if batch_size is None else max(1, window // self._size) * self._size
        self._tokens = None
        if max_tokens is not None:
            self._tokens = _checks.integer("max_tokens", max_tokens, low=1, limit=limit)
            longest = int(self._lengths.argmax())
            if self._lengths[longest] > self._tokens:
                raise ValueError(
                    f"max_tokens must be at least the longest record, got {max_tokens}; record "
                    f"{longest} has {self._lengths[longest]}: leave it out, or cut it"
                )
        bounds = self._size, self._tokens, self._window
        self._order_digest = _keys.order_digest(self._lengths, bounds)
        self._made: _Epoch | None = None

    def __len__(self) -> int:
        """Batches in an epoch.

        Raises:
            TypeError: There is ``max_tokens``, and the number differs from epoch to epoch.
        """
        if self._tokens is not None:
            raise TypeError(
                "with max_tokens the number of batches differs from epoch to epoch, so there is no "
                "length; with batch_size alone there is"
            )
        return (len(self._lengths) + self._size - 1) // self._size

    def num_samples(self) -> int:
        """Samples in an epoch: each record once."""
        return len(self._lengths)

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[list[int]]:
        """The batches of an epoch from a position on.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            start: How many samples were delivered already. Within a batch, its rest comes first.

        Returns:
            An iterator of lists of indices.
        """
        if self._made is None or self._made.key != (seed, epoch):
            self._made = self._make(seed, epoch)
        return _from(self._made, start)

    def _make(self, seed: int, epoch: int) -> _Epoch:
        count = len(self._lengths)
        shuffled = _shuffled(count, seed, epoch, "records")
        windows = np.arange(count) // self._window
        records = shuffled[np.lexsort((-self._lengths[shuffled], windows))]
        ends = self._ends(self._lengths[records])
        sizes = np.diff(ends, prepend=0)
        order = _shuffled(len(ends), seed, epoch, "batches")
        return _Epoch((seed, epoch), records, ends[order], np.cumsum(sizes[order]))

    def _ends(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each batch ends, of records that fall in length within each window."""
        count = len(lengths)
        if self._tokens is None:
            return np.append(np.arange(self._size, count, self._size), count)
        ends = [0]
        while (begin := ends[-1]) < count:
            fit = min(self._size, self._tokens // max(1, int(lengths[begin])))
            end_of_window = begin - begin % self._window + self._window
            ends.append(min(begin + fit, end_of_window, count))
        return np.array(ends[1:])


def _from(epoch: _Epoch, start: int) -> Iterator[list[int]]:
    first = int(np.searchsorted(epoch.stops, start, side="right"))
    delivered = start
    for end, stop in zip(epoch.ends[first:].tolist(), epoch.stops[first:].tolist(), strict=True):
        yield epoch.records[end - (stop - delivered) : end].tolist()
        delivered = stop


def _shuffled(count: int, seed: int, epoch: int, what: str) -> NDArray[np.int64]:
    return KeyedPermutation(count, _keys.derived_seed(seed, what, "lengths"), epoch)[:]
