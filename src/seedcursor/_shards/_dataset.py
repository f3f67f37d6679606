"""A dataset over the shards of an index."""

from __future__ import annotations

import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seedcursor import _checks
from seedcursor._dataset import StatefulDataset
from seedcursor._shards._format import ShardFormat
from seedcursor._shards._index import Path, Shard, open_index
from seedcursor._shards._source import naming

_KEPT = 1024


class ShardedDataset(StatefulDataset[Any]):
    r"""The records of a corpus of many files, each by its number.

    Records are numbered through the shards in the order of the index. Reading one reads its whole
    chunk, and keeps it until each of its records was asked for once; so read them in an order that
    stays in a chunk for a while, which a `WindowedSampler` gives. For work on a record, subclass
    and write `sample`.

    Args:
        index: The path of an index, which ``python -m seedcursor index FILES...`` writes, or
            `index_shards`. Shards whose size or modification time has changed are indexed anew,
            and the index is rewritten.
        formats: Formats of your own, as `index_shards` had them.
        keep: How many records a process may keep for other orders than a `WindowedSampler`'s,
            which raises it to what it needs. They are kept as they are in the file: lines of JSON,
            and tables of Parquet.
        seed: The root seed, in ``[0, 2**128)``.

    Raises:
        OSError: The index or a shard can't be read, or a stale index can't be written.
        ValueError: The index or a shard is malformed.

    Example:
        >>> import pathlib, tempfile
        >>> from seedcursor import StatefulDataLoader, WindowedSampler, index_shards
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> files = [folder / "a.jsonl", folder / "b.jsonl"]
        >>> for number, file in enumerate(files):
        ...     _ = file.write_text("".join(f"{10 * number + k}\n" for k in range(10)))
        >>> index_shards(files, folder / "index.json")
        20
        >>> dataset = ShardedDataset(folder / "index.json", seed=1)
        >>> dataset[12]
        12
        >>> sampler = WindowedSampler(dataset, window=5, block=4)
        >>> loader = StatefulDataLoader(dataset, batch_size=4, sampler=sampler)
        >>> sorted(record for batch in loader for record in batch.tolist()) == list(range(20))
        True
    """

    def __init__(
        self,
        index: Path,
        *,
        formats: Sequence[ShardFormat] = (),
        keep: int = _KEPT,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self._shards = open_index(index, formats)
        counts = np.concatenate([shard.chunks[:, 0] for shard in self._shards])
        self._starts = np.concatenate([[0], np.cumsum(counts)])
        chunks = [len(shard.chunks) for shard in self._shards]
        self._first_chunks = np.concatenate([[0], np.cumsum(chunks)])
        self._kept = _Kept(_checks.integer("keep", keep))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @property
    def shard_lengths(self) -> list[int]:
        """How many records each shard has."""
        lengths: list[int] = np.diff(self._starts[self._first_chunks]).tolist()
        return lengths

    @property
    def shard_names(self) -> list[str]:
        """The shards' paths, without the folders that all of them are in."""
        names = [shard.source.path.replace(os.sep, "/").split("/") for shard in self._shards]
        levels = zip(*(name[:-1] for name in names), strict=False)
        shared = len(list(itertools.takewhile(lambda level: len(set(level)) == 1, levels)))
        return ["/".join(name[shared:]) for name in names]

    def sample(self, record: Any, index: int) -> Any:
        """What becomes of a record.

        Args:
            record: As it was read: what JSON says, a dict of a row's columns, or of the bytes of a
                sample's files.
            index: Its number: draw from ``self.rng(index)``.

        Returns:
            The sample, or ``SKIP`` to drop the record. As it stands, the record itself.
        """
        return record

    def __getitem__(self, index: int) -> Any:
        number = _checks.integer("index", index, low=None)
        if not 0 <= number < len(self):
            raise IndexError(f"index must be in [0, {len(self)}), got {_checks.shown(number)}")
        chunk = int(self._starts.searchsorted(number, "right")) - 1
        records = self._kept.take(self.epoch, chunk, self._read)
        return self.sample(records[number - int(self._starts[chunk])], number)

    def hold(self, window: int, lanes: int) -> None:
        """Keep at least what an order needs that reads some windows side by side.

        A `WindowedSampler` calls it. Besides a lane's window, up to three chunks that belong to it
        in part are kept.

        Args:
            window: How many records are shuffled together.
            lanes: How many windows are read side by side.
        """
        largest = int(np.diff(self._starts).max())
        self._kept.limit = max(self._kept.limit, lanes * (window + 3 * largest))

    def _read(self, chunk: int) -> Sequence[Any]:
        number = int(self._first_chunks.searchsorted(chunk, "right")) - 1
        shard: Shard = self._shards[number]
        count, *where = shard.chunks[chunk - self._first_chunks[number]].tolist()
        with naming(shard.source.path):
            records = shard.reader.read(shard.source, tuple(where))
        if len(records) != count:
            raise shard.source.changed(f"a chunk had {count} records, and has {len(records)}")
        return records


class _Kept:
    """Chunks that have records which were not asked for yet, the oldest dropped beyond a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A fork may come while another thread holds the lock.
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._epoch = 0
        self._records = 0
        self._chunks: OrderedDict[int, tuple[Sequence[Any], int]] = OrderedDict()

    def take(self, epoch: int, chunk: int, read: Callable[[int], Sequence[Any]]) -> Sequence[Any]:
        """A chunk's records, one of which is used."""
        if self._process != os.getpid():
            self.__init__(self.limit)  # type: ignore[misc]
        with self._lock:
            return self._take(epoch, chunk, read)

    def _take(self, epoch: int, chunk: int, read: Callable[[int], Sequence[Any]]) -> Sequence[Any]:
        if epoch != self._epoch:
            # What is left of the last epoch were others' records.
            self._chunks.clear()
            self._epoch, self._records = epoch, 0
        records, left = self._chunks.pop(chunk, (None, 0))
        if records is None:
            records = read(chunk)
            left = len(records)
            self._records += left
        if left > 1:
            self._chunks[chunk] = records, left - 1
        else:
            self._records -= len(records)
        while self._records > self.limit and len(self._chunks) > 1:
            _, (dropped, _) = self._chunks.popitem(last=False)
            self._records -= len(dropped)
        return records

    def __reduce__(self) -> tuple[type[_Kept], tuple[int]]:
        # A copy reads for itself.
        return _Kept, (self.limit,)
