"""An order for corpora of many files: shuffled, and yet each worker reads on where it is."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from seedcursor import _checks, _keys
from seedcursor._keyed_sampler import KeyedSampler
from seedcursor._permutation import KeyedPermutation
from seedcursor._shards._dataset import ShardedDataset


class WindowedSampler(KeyedSampler):
    r"""Records shuffled within windows, in lanes that workers and ranks needn't share.

    Each epoch the shards are permuted and laid end to end. That line is cut into ``ranks *
    workers`` lanes, and each lane into windows, which are shuffled. Positions are dealt to the
    lanes: block after block to each of the ``workers`` in turn, and within a block position after
    position to each of the ``ranks``. All that is a function of ``(seed, epoch, position)``, found
    in O(shards) memory.

    The lanes are a property of the order, not of the job: any number of ranks and workers, and any
    batch size, gives the same order. But where ``block == batch_size * world_size``, the number of
    ranks divides ``ranks`` and that of workers divides ``workers``, each lane is read by one worker
    of one rank only, so that each byte is read once in an epoch, but for chunks that lie across the
    border of two lanes. Elsewhere several read a lane, each of them all of it; the result is the
    same. So it is for the rest of an epoch that is resumed with another ``batch_size *
    world_size``.

    A process keeps, of each lane that it reads, the current window and up to three chunks, as
    their bytes are in the file. After a resume these are read again, as their records are asked
    for, and nothing before them.

    Args:
        dataset: What is read.
        window: How many records of a lane are shuffled together. A larger one shuffles better, and
            takes more memory.
        block: How many positions lie side by side in one of the ``workers`` turns: the samples of
            a step, ``batch_size * world_size``.
        ranks: Over how many ranks a lane's reading can be shared out; a multiple of all numbers
            that the job may have.
        workers: Over how many workers of a rank, likewise.
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> import pathlib, tempfile
        >>> from seedcursor import StatefulDataLoader, index_shards
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jsonl").write_text("".join(f"{k}\n" for k in range(12)))
        >>> index_shards([folder / "a.jsonl"], folder / "index.json")
        12
        >>> dataset = ShardedDataset(folder / "index.json")
        >>> sampler = WindowedSampler(dataset, window=2, block=3, ranks=1, workers=2)
        >>> [batch.tolist() for batch in StatefulDataLoader(dataset, 3, sampler=sampler, seed=3)]
        [[0, 1, 3], [7, 6, 8], [2, 5, 4], [9, 11, 10]]
    """

    def __init__(
        self,
        dataset: ShardedDataset,
        *,
        window: int,
        block: int,
        ranks: int = 8,
        workers: int = 8,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed)
        if not isinstance(dataset, ShardedDataset):
            raise TypeError(
                f"dataset must be a ShardedDataset, got {type(dataset).__name__}; of one in a "
                "wrapper give the one inside, in a mixture a sampler for each source, as orders=; "
                "for a subset index its files"
            )
        self._window = _checks.integer("window", window, low=1, limit=_checks.LENGTH_LIMIT)
        self._block = _checks.integer("block", block, low=1, limit=2**31)
        self._ranks = _checks.integer("ranks", ranks, low=1, limit=2**16)
        self._workers = _checks.integer("workers", workers, low=1, limit=2**16)
        self._lengths = np.array(dataset.shard_lengths, dtype=np.int64)
        self._made_for = len(dataset)
        self._first_records = np.cumsum(self._lengths) - self._lengths
        self._lanes = self._lane_borders()
        self._order_digest = _keys.order_digest(
            self._lengths,
            dataset.shard_names,
            self._window,
            self._block,
            self._ranks,
            self._workers,
        )
        self._line: tuple[tuple[int, int], NDArray[np.int64], NDArray[np.int64]] | None = None
        dataset.hold(self._window, self._ranks * self._workers)

    def __len__(self) -> int:
        return int(self._lengths.sum())

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> list[int]:
        """The indices at some positions of an epoch.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            positions: N of them, each in ``[0, len(self))``.

        Returns:
            N indices.
        """
        lanes, places = self._dealt(positions)
        starts, ends = self._lanes[lanes], self._lanes[lanes + 1]
        begins = starts + places // self._window * self._window
        sizes = np.minimum(ends - begins, self._window)
        within = places % self._window
        on_line = np.empty_like(places)
        by_window = np.argsort(begins, kind="stable")
        changes = np.flatnonzero(np.diff(begins[by_window])) + 1
        for some in np.split(by_window, changes) if len(positions) else []:
            begin, size = int(begins[some[0]]), int(sizes[some[0]])
            on_line[some] = begin + _shuffled(seed, epoch, begin, size)[within[some]]
        indices: list[int] = self._indices(seed, epoch, on_line).tolist()
        return indices

    def _dealt(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lane of each position, and its place there."""
        blocks, inside = np.divmod(positions, self._block)
        turns, workers = np.divmod(blocks, self._workers)
        inside, ranks = np.divmod(inside, self._ranks)
        lanes = workers * self._ranks + ranks
        return lanes, turns * self._shares(self._block, ranks) + inside

    def _shares(self, size: int | NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the first ``size`` places of a block some ranks have."""
        return (size - ranks + self._ranks - 1) // self._ranks

    def _lane_borders(self) -> NDArray[np.int64]:
        """Where each lane starts on the line, and the last one ends."""
        workers, ranks = np.divmod(np.arange(self._workers * self._ranks), self._ranks)
        turns, rest = divmod(len(self), self._workers * self._block)
        last = np.clip(rest - workers * self._block, 0, self._block)
        sizes = turns * self._shares(self._block, ranks) + self._shares(last, ranks)
        return np.concatenate([[0], np.cumsum(sizes)])

    def _indices(self, seed: int, epoch: int, on_line: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._line is None or self._line[0] != (seed, epoch):
            own_seed = _keys.derived_seed(seed, 0, "shards")
            shards = KeyedPermutation(len(self._lengths), own_seed, epoch)[:]
            lengths = self._lengths[shards]
            self._line = (seed, epoch), np.cumsum(lengths) - lengths, self._first_records[shards]
        _, starts, first_records = self._line
        shards = np.searchsorted(starts, on_line, side="right") - 1
        return on_line - starts[shards] + first_records[shards]


@functools.lru_cache(maxsize=256)
def _shuffled(seed: int, epoch: int, begin: int, size: int) -> KeyedPermutation:
    return KeyedPermutation(size, _keys.derived_seed(seed, begin, "window"), epoch)
