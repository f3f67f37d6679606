"""What builds a batch: in a worker process, or in the main one."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import Dataset, get_worker_info

from seedcursor import _batch, _rng
from seedcursor._dataset import SKIP, StatefulIterableDataset
from seedcursor._record import Occurrence
from seedcursor._sharding import Shape
from seedcursor._worker import cap_threads


class Request(NamedTuple):
    """All that a worker needs to know of a batch; sent as a plain tuple, which costs less.

    Attributes:
        epoch: The pass's.
        position: Of the batch's first sample.
        stop: The cursor once the batch is delivered.
        key: Keys the global RNGs.
        indices: What to fetch; for a stream, the range of this rank's positions.
    """

    epoch: int
    position: int
    stop: int
    key: bytes
    indices: Sequence[Any]


# What became of a request: the cursor once it is delivered, whether the records ended in this step
# or before, the batch in a list, which is empty if there is none to deliver, and what was passed
# over on the way.
Built = tuple[int, bool, list[Any], list[_batch.Fault]]


class Fetcher(Dataset[Built]):
    """Stands before the dataset in a ``DataLoader``: its items are whole batches.

    Args:
        dataset: The user's.
        collate_fn: The user's.
        batched: Whether samples are collected to batches.
        seed: The loader's.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[Any], Any], batched: bool, seed: int
    ) -> None:
        self.dataset = dataset
        self._collate_fn = collate_fn
        self._batched = batched
        self._seed = seed
        # In a worker of its own there is nobody's state to put back.
        self.owns_process = False

    def __getitem__(self, sent: tuple[Any, ...]) -> Built:
        request = Request(*sent)
        batch = _batch.Batch(
            self._seed, request.epoch, request.position, request.indices, self.dataset
        )
        outer = _batch.own()
        try:
            _batch.enter(batch)
            if self.owns_process and outer is None:
                _rng.key_globals(request.key)
                return *self._build(request), batch.faults
            with _rng.globals_aside():
                _rng.key_globals(request.key)
                return *self._build(request), batch.faults
        except StopIteration as error:
            raise RuntimeError(
                f"the dataset or collate_fn raised StopIteration for the batch at epoch "
                f"{request.epoch}, position {request.position}; it would have ended the epoch early"
            ) from error
        except Exception as error:
            where = f"epoch {request.epoch}, position {request.position}"
            _batch.note(error, f"while the batch at {where} was built")
            raise
        finally:
            _batch.leave(outer)

    def _build(self, request: Request) -> tuple[int, bool, list[Any]]:
        samples = self._samples(request.indices)
        if request.indices and isinstance(samples, list) and not samples:
            return request.stop, False, []
        return request.stop, False, [self._collate_fn(samples if self._batched else samples[0])]

    def _samples(self, indices: Sequence[Any]) -> Any:
        if indices and type(indices[0]) is Occurrence:
            return self._occurrences(indices)
        if self._batched and getattr(self.dataset, "__getitems__", None):
            samples = self.dataset.__getitems__(indices)
            # What is no list is somebody's batch, collected already.
            return _kept(samples) if isinstance(samples, list) else samples
        return self._one_by_one(indices)

    def _occurrences(self, drawn: Sequence[Occurrence]) -> list[Any]:
        batch = _batch.own()
        assert batch is not None
        samples = []
        for occurrence in drawn:
            batch.number = occurrence.number
            samples += self._one_by_one([occurrence.index])
        batch.number = 0
        return samples

    def _one_by_one(self, indices: Sequence[Any]) -> list[Any]:
        dataset, left = self.dataset, iter(indices)
        try:
            return [sample for index in left if (sample := dataset[index]) is not SKIP]
        except Exception as error:
            # The iterator knows how far it came; counting would cost every batch.
            index = indices[len(indices) - operator.length_hint(left) - 1]
            _batch.note(error, f"in dataset[{index!r}]")
            raise


def _kept(samples: list[Any]) -> list[Any]:
    return [sample for sample in samples if sample is not SKIP]


class StreamFetcher(Fetcher):
    """Reads through a stream's records, and builds this rank's share of the steps asked for.

    Args:
        dataset: The user's.
        collate_fn: The user's.
        batched: Whether samples are collected to batches.
        seed: The loader's.
        drop_last: Whether a short last step is left out.
        pad: Whether every rank makes the same number of steps.
    """

    def __init__(
        self,
        dataset: StatefulIterableDataset[Any],
        collate_fn: Callable[[Any], Any],
        batched: bool,
        seed: int,
        drop_last: bool,
        pad: bool,
    ) -> None:
        super().__init__(dataset, collate_fn, batched, seed)
        self._drop_last = drop_last
        self._pad = pad
        self._records: Iterator[Any] | None = None  # open at the position _at of _epoch
        self._epoch = 0
        self._at = 0

    def _build(self, request: Request) -> tuple[int, bool, list[Any]]:
        places = request.indices
        assert isinstance(places, range)
        first = request.stop - len(places) * places.step
        shape = Shape(len(places), self._drop_last, self._pad, places.start - first, places.step)
        try:
            end, samples = self._read(request.epoch, first, request.stop, shape)
        except BaseException:
            self._records = None
            raise
        ended = end < request.stop
        if not samples or (ended and self._drop_last):
            return end, ended, []
        return end, ended, [self._collate_fn(samples if self._batched else samples[0])]

    def _read(self, epoch: int, first: int, stop: int, shape: Shape) -> tuple[int, list[Any]]:
        """Where the step ends, and this rank's samples of it."""
        samples: list[Any] = []
        opening: Any = None
        records = self._seek(epoch, first)
        for record in itertools.islice(records, stop - first):
            if self._at == first:
                opening = record
            if (self._at - first) % shape.world_size == shape.rank:
                samples += self._kept(record, self._at)
            self._at += 1
        end = max(first, self._at)
        if shape.short_of(first, end):
            samples += self._kept(opening, first)
        if not samples and shape.pad and shape.world_size > 1:
            samples = self._first_kept(first, end)
        return end, samples

    def _seek(self, epoch: int, first: int) -> Iterator[Any]:
        if self._records is None or epoch != self._epoch or first < self._at:
            self._records = iter(self.dataset.records(first))
            self._epoch, self._at = epoch, first
        for _ in itertools.islice(self._records, first - self._at):
            self._at += 1
        return self._records

    def _kept(self, record: Any, position: int) -> list[Any]:
        try:
            sample = self.dataset.sample(record, position)
        except Exception as error:
            _batch.note(error, f"in sample(record, {position})")
            raise
        return [] if sample is SKIP else [sample]

    def _first_kept(self, first: int, end: int) -> list[Any]:
        # Nothing is left for this rank, but there may be for others: all must make this step.
        for position, record in zip(range(first, end), self.dataset.records(first), strict=False):
            if samples := self._kept(record, position):
                return samples
        return []


def start_worker(init: Callable[[int], None] | None, worker: int) -> None:
    """Let a worker process belong to the fetcher in it: the ``worker_init_fn`` of a pass.

    Args:
        init: The user's own, called last.
        worker: The worker's id.
    """
    info = get_worker_info()
    assert info is not None
    fetcher = info.dataset
    assert isinstance(fetcher, Fetcher)
    fetcher.owns_process = True
    # Users' code expects its own dataset here. WorkerInfo is frozen, by convention.
    object.__setattr__(info, "dataset", fetcher.dataset)
    cap_threads()
    if init is not None:
        init(worker)
