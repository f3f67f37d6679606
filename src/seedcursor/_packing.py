"""Token sequences, packed into rows of a fixed length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from seedcursor import _checks, _keys
from seedcursor._keyed_sampler import KeyedBatchSampler
from seedcursor._permutation import KeyedPermutation


class Packer:
    """Packs token sequences into rows of a fixed length: a ``collate_fn=``.

    A sequence that is longer than a row is split: into full rows, and a last piece that shares a
    row with others. Nothing is cut off. The rows are found by best-fit decreasing: the longest
    piece first, each where the least space is left.

    Used alone, it packs each batch as a window of its own; so give the loader a large
    ``batch_size``, in records. The number of rows differs from batch to batch. For batches of equal
    size, where lengths are known, there is `PackedBatchSampler`, whose ``packer()`` makes one of
    these.

    Args:
        length: Tokens in a row.
        pad: The token where a row has none.
        batch_size: Rows that sequences which share one may take in all, at most; by default any
            number. ``PackedBatchSampler.packer`` gives its own.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is out of range.

    Example:
        >>> packer = Packer(length=6, pad=-1)
        >>> packed = packer([[10, 11], [20, 21, 22, 23], [30, 31, 32, 33, 34, 35, 36]])
        >>> packed["tokens"].tolist()
        [[20, 21, 22, 23, 10, 11], [36, -1, -1, -1, -1, -1], [30, 31, 32, 33, 34, 35]]
        >>> packed["documents"].tolist()
        [[1, 1, 1, 1, 2, 2], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]
        >>> packed["positions"].tolist()
        [[0, 1, 2, 3, 0, 1], [0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5]]

    References:
        H. Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024.
    """

    def __init__(self, length: int, *, pad: int = 0, batch_size: int | None = None) -> None:
        limit = _checks.LENGTH_LIMIT
        self.length = _checks.integer("length", length, low=1, limit=limit)
        self.pad = _checks.integer("pad", pad, low=-limit, limit=limit)
        self.batch_size = None
        if batch_size is not None:
            self.batch_size = _checks.integer("batch_size", batch_size, low=1, limit=limit)

    def __call__(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Pack a batch.

        Args:
            samples: N sequences of integers, in one dimension: lists, arrays or tensors.

        Returns:
            Three ``int64`` tensors, each ``[rows, length]``. ``tokens``; ``documents``, which tells
            the sequences of a row apart: 1, 2, ..., and 0 where there is no token; ``positions``,
            the place in the sequence, which begins at 0 again in each piece of a split one.

        Raises:
            TypeError: A sample is no sequence of integers.
            ValueError: There is no sample, or one has another number of dimensions.
        """
        if not len(samples):
            raise ValueError("samples must not be empty, got none to pack")
        sequences = [_tokens(place, sample) for place, sample in enumerate(samples)]
        lengths = np.array([len(sequence) for sequence in sequences])
        order, homes = _packed(lengths, self.length, self.batch_size)
        return self._filled([sequences[k] for k in order.tolist()], homes)

    def _filled(
        self, sequences: list[NDArray[np.int64]], homes: list[int]
    ) -> dict[str, torch.Tensor]:
        """The rows, given where the last piece of each sequence belongs."""
        pieces = list(self._pieces(sequences, homes))
        shape = 1 + max([*homes, *(row for row, _ in pieces)]), self.length
        tokens = np.full(shape, self.pad, dtype=np.int64)
        documents, positions = np.zeros_like(tokens), np.zeros_like(tokens)
        used, seen = [0] * len(tokens), [0] * len(tokens)
        for row, piece in pieces:
            place = slice(used[row], used[row] + len(piece))
            used[row], seen[row] = place.stop, seen[row] + 1
            tokens[row, place] = piece
            documents[row, place] = seen[row]
            positions[row, place] = np.arange(len(piece))
        arrays = {"tokens": tokens, "documents": documents, "positions": positions}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _pieces(
        self, sequences: list[NDArray[np.int64]], homes: list[int]
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Each piece with its row; full ones get rows of their own, after the others."""
        full = 1 + max(homes)
        for sequence, home in zip(sequences, homes, strict=True):
            for start in range(0, len(sequence), self.length):
                piece = sequence[start : start + self.length]
                if start + self.length < len(sequence):
                    yield full, piece
                    full += 1
                else:
                    yield home, piece


class PackedBatchSampler(KeyedBatchSampler):
    """Batches of records that fill rows of a fixed length, with random access.

    The records of an epoch are shuffled and cut into windows. Those of a window are packed into
    rows by best-fit decreasing, and its rows are shuffled and dealt to batches. Each record comes
    once. It is a ``batch_sampler=``, and ``packer()`` is its ``collate_fn=``; ranks take its
    batches in turn.

    Where no record is longer than a row, a batch has ``batch_size`` rows, but for one in each
    window, which may have fewer. A longer record is split, and all its pieces come in one batch,
    with the records that share its last row; then a batch has ``batch_size`` rows at most. A record
    of no tokens shares a row with others.

    Args:
        lengths: Of each record, in tokens.
        length: Tokens in a row.
        batch_size: Rows in a batch.
        window: How many records are packed together. The larger, the less is padded, and the more
            a resume packs again. It should be many times the records of a batch.
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or a record takes more than ``batch_size`` rows.

    Note:
        8 bytes per record are kept, and some hundred per record of a window. A resume packs no
        window but the one that it begins in.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> texts = [[1] * 2, [2] * 6, [3] * 3, [4] * 4, [5] * 5, [6] * 4]
        >>> sampler = PackedBatchSampler([len(text) for text in texts], 8, batch_size=3)
        >>> loader = StatefulDataLoader(texts, batch_sampler=sampler, collate_fn=sampler.packer())
        >>> for row in next(iter(loader))["tokens"].tolist():
        ...     print(*row)
        2 2 2 2 2 2 1 1
        5 5 5 5 5 3 3 3
        6 6 6 6 4 4 4 4

    References:
        H. Ding et al., "Fewer Truncations Improve Language Modeling", ICML 2024.
    """

    def __init__(
        self,
        lengths: Any,
        length: int,
        *,
        batch_size: int,
        window: int = 8192,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        limit = _checks.LENGTH_LIMIT
        self._lengths = _checks.lengths(lengths)
        self._made_for = len(self._lengths)
        self._length = _checks.integer("length", length, low=1, limit=limit)
        self._size = _checks.integer("batch_size", batch_size, low=1, limit=limit)
        self._window = _checks.integer("window", window, low=1, limit=limit)
        longest = int(self._lengths.argmax())
        rows = -(-int(self._lengths[longest]) // self._length)
        if rows > self._size:
            raise ValueError(
                f"batch_size must be at least the rows that a record takes, got {self._size}; "
                f"record {longest} has {self._lengths[longest]} tokens, {rows} rows of "
                f"{self._length}: cut it, leave it out, or raise batch_size"
            )
        bounds = "packed", self._length, self._size, self._window
        self._order_digest = _keys.order_digest(self._lengths, bounds)

    def __len__(self) -> int:
        """There is none.

        Raises:
            TypeError: The number of batches differs from epoch to epoch.
        """
        raise TypeError(
            "the number of batches differs from epoch to epoch, for other records are packed "
            "together, so there is no length; num_samples() is the number of records"
        )

    def num_samples(self) -> int:
        """Records in an epoch: each once."""
        return len(self._lengths)

    def packer(self, pad: int = 0) -> Packer:
        """What makes of each batch the rows that it was planned for, for ``collate_fn=``.

        Args:
            pad: The token where a row has none.

        Returns:
            A `Packer`, whose samples must be as long as ``lengths`` says. If they are not, nothing
            is lost, but a batch may have another number of rows.

        Raises:
            TypeError: ``pad`` is not an integer.
            ValueError: ``pad`` is out of range.
        """
        return Packer(self._length, pad=pad, batch_size=self._size)

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[list[int]]:
        """The batches of an epoch from a position on.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            start: How many records were delivered already. Within a batch, its rest comes first.

        Returns:
            An iterator of lists of indices.
        """
        windows = -(-len(self._lengths) // self._window)
        first, before = divmod(start, self._window)
        for window in range(first, windows):
            for batch in self._batches(seed, epoch, window):
                if rest := batch[before:]:
                    yield rest
                before = max(0, before - len(batch))

    def _batches(self, seed: int, epoch: int, window: int) -> Iterator[list[int]]:
        """The batches of a window."""
        begin = window * self._window
        shuffled = _shuffled(len(self._lengths), seed, epoch, "records", 0)
        records = shuffled[begin : begin + self._window]
        order, homes = _packed(self._lengths[records], self._length, self._size)
        records, rows = records[order], np.array(homes)
        dealt = self._dealt(self._weights(records, rows), seed, epoch, window)[rows]
        # Stable, for in a batch its records must come as they were packed.
        by_batch = records[np.argsort(dealt, kind="stable")]
        ends = np.cumsum(np.bincount(dealt))
        return (batch.tolist() for batch in np.split(by_batch, ends[:-1]))

    def _weights(self, records: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many rows each row brings: itself, and the full ones of its records."""
        weights = np.ones(rows.max() + 1, dtype=np.int64)
        np.add.at(weights, rows, _full_rows(self._lengths[records], self._length))
        return weights

    def _dealt(
        self, weights: NDArray[np.int64], seed: int, epoch: int, window: int
    ) -> NDArray[np.int64]:
        """The batch of each row."""
        rows = _shuffled(len(weights), seed, epoch, "rows", window)[:]
        rows = rows[np.argsort(-weights[rows], kind="stable")]
        dealt = np.empty_like(weights)
        dealt[rows] = _best_fit(((weight, 0) for weight in weights[rows].tolist()), self._size, 0)
        # Else those of heavy rows would come first.
        return _shuffled(int(dealt.max()) + 1, seed, epoch, "batches", window)[:][dealt]


def _shuffled(count: int, seed: int, epoch: int, what: str, window: int) -> KeyedPermutation:
    return KeyedPermutation(count, _keys.derived_seed(seed, window, f"packing.{what}"), epoch)


def _full_rows(lengths: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """How many rows a record fills before its last piece."""
    return np.maximum(lengths - 1, 0) // length


# Best-fit decreasing has a property that joins the sampler, which plans a window, to the packer,
# which sees a batch: pack only the records of some of the rows, in the same order, and exactly
# those rows are found again. For where a piece goes depends on each row alone, on what it has left
# and since when. By induction the rows that are there have in both packings the same pieces in the
# same order. A piece that joined one of them found it the best among all rows, so it is among the
# fewer; one that opened a row found none that could take it, so there is none among the fewer.
def _packed(
    lengths: NDArray[np.int64], length: int, batch_size: int | None
) -> tuple[NDArray[np.int64], list[int]]:
    """Where the last piece of each record goes; those before it fill rows of their own.

    Returns:
        The records by falling length of that piece, then by falling number of full rows, equals in
        the order given; and the row of each.
    """
    full = _full_rows(lengths, length)
    last = lengths - full * length
    # What shares a row shares a batch, with all its full rows. A batch has to hold them.
    taken = full if batch_size else np.zeros_like(full)
    order = np.lexsort((-taken, -last))
    pieces = zip(last[order].tolist(), taken[order].tolist(), strict=True)
    return order, _best_fit(pieces, length, batch_size - 1 if batch_size else 0)


def _best_fit(items: Iterable[tuple[int, int]], size: int, extra: int) -> list[int]:
    """Put each item where the least is left of what can take it, or where nothing is yet.

    Args:
        items: Each of a size and an extra, which take away from what is left of both.
        size: What there is of the first.
        extra: What there is of the second. Among equals the least left of it is best, and then
            what has been as it is for longest.

    Returns:
        Where each item goes, numbered in the order of opening.
    """
    goes: list[int] = []
    opened = 0
    waiting: defaultdict[tuple[int, int], deque[int]] = defaultdict(deque)
    # What is left of the first, each value once, rising, by what is left of the second.
    lefts: defaultdict[int, list[int]] = defaultdict(list)
    for item_size, item_extra in items:
        fitting = [
            (sizes[at], spare, at)
            for spare, sizes in lefts.items()
            if spare >= item_extra and (at := bisect_left(sizes, item_size)) < len(sizes)
        ]
        if fitting:
            left, spare, at = min(fitting)
            queue = waiting[left, spare]
            goes.append(queue.popleft())
            if not queue:
                del lefts[spare][at]
        else:
            left, spare = size, extra
            goes.append(opened)
            opened += 1
        left, spare = left - item_size, spare - item_extra
        queue = waiting[left, spare]
        if not queue:
            insort(lefts[spare], left)
        queue.append(goes[-1])
    return goes


def _tokens(place: int, sample: Any) -> NDArray[np.int64]:
    """A sample as an array."""
    try:
        given = np.asarray(sample.cpu() if isinstance(sample, torch.Tensor) else sample)
    except (TypeError, ValueError):  # bfloat16, or lists of unlike lengths
        raise _refused(TypeError, place, type(sample).__name__) from None
    if given.ndim != 1:
        if not given.ndim:
            raise _refused(TypeError, place, type(sample).__name__)
        raise _refused(ValueError, place, f"{type(sample).__name__} in {given.ndim}")
    # An empty list has no type. What int64 can't hold would become another token.
    whole = given.dtype.kind in "iu" and np.can_cast(given.dtype, np.int64)
    if given.size and not whole:
        raise _refused(TypeError, place, f"{type(sample).__name__} of {given.dtype}")
    return given.astype(np.int64, copy=False)


def _refused(error: type[Exception], place: int, got: str) -> Exception:
    return error(
        f"samples must be sequences of integers that int64 holds, in one dimension, got {got} for "
        f"sample {place} of the batch; let the dataset return its token ids alone, such as "
        'item["input_ids"]'
    )
