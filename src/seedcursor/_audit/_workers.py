"""Samples read by the workers of a real loader, with what each drew."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from seedcursor._audit import _globals, _held
from seedcursor._audit._digest import digest, digest_of_parts, shown
from seedcursor._audit._sources import Source, watch
from seedcursor._audit._trial import Control, put, set_epoch, states
from seedcursor._dataset import StatefulIterableDataset
from seedcursor._loader import StatefulDataLoader


@frozen
class Record:
    """One sample that a worker read.

    Attributes:
        epoch: In which pass.
        place: Its index; in a stream its position in the worker's share.
        worker: Which worker, -1 for the main process.
        digest: Of the value.
        text: The value for a reader.
        draws: What the sample drew from: an RNG's name or a seed's family, and a digest of the
            state or the key.
        sources: The generators that it made or seeded.
        threads: How many threads libraries kept busy in the process afterwards.
    """

    epoch: int
    place: int
    worker: int
    digest: bytes
    text: str
    draws: tuple[tuple[str, bytes], ...]
    sources: tuple[Source, ...]
    threads: int

    @property
    def draw(self) -> bytes | None:
        """One digest of all that the sample drew from; None if it drew nothing."""
        if not self.draws:
            return None
        return digest_of_parts([part for name, key in self.draws for part in (name.encode(), key)])


class _Recorder:
    """Reads a sample of a dataset and records it, in whichever process this is."""

    def __init__(self, dataset: Any, control: Control | None, first: int | None) -> None:
        self.dataset = dataset
        self.control = control
        self._first = first
        self._generators: dict[str, Any] | None = None
        self._idle_threads = 0

    def begin(self) -> None:
        """Before a process's first sample."""
        if self._generators is not None:
            return
        self._idle_threads = _library_threads()
        watch().fixed = self.control is not None
        info = get_worker_info()
        if info is not None:
            # Users' code expects its own dataset there. WorkerInfo is frozen, by convention.
            object.__setattr__(info, "dataset", self.dataset)
        if self.control is not None and self._first is not None:
            put(self.control, 0, {})
            self.dataset[self._first]  # what is made lazily is there afterwards
        self._generators = dict(sorted(_held.held(self.dataset, "dataset").items()))

    def record(self, place: int, state: int, read: Callable[[], Any]) -> Record:
        """Read a sample.

        Args:
            place: What it is called.
            state: The place whose states it begins with, if they are controlled.
            read: Reads it.
        """
        generators = self._generators or {}
        if self.control is not None:
            put(self.control, state, generators)
        before = states(generators)
        with watch().reading(place):
            value = read()
        after = states(generators)
        info = get_worker_info()
        return Record(
            epoch=0,
            place=place,
            worker=-1 if info is None else info.id,
            digest=digest(value),
            text=shown(value),
            draws=_draws(before, after, watch().sources),
            sources=tuple(watch().sources),
            threads=max(torch.get_num_threads(), 1 + _library_threads() - self._idle_threads),
        )


def _draws(
    before: dict[str, bytes], after: dict[str, bytes], sources: Sequence[Source]
) -> tuple[tuple[str, bytes], ...]:
    families = {source.family for source in sources}
    # What was seeded in the sample began there.
    seeded = {name for name in _globals.NAMES if f"{name}-global" in families}
    if "seeded" in families:
        seeded |= set(_globals.NAMES)
    moved = [name for name in after if after[name] != before[name] and name not in seeded]
    drawn = [(name, digest(before[name])) for name in moved]
    return (*drawn, *((source.family, source.key) for source in sources))


def _library_threads() -> int:
    """Threads that Python did not start: pools of OpenCV, OpenMP, BLAS."""
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()
    except FileNotFoundError:
        return 0


class _Recorded(Dataset[Record]):
    def __init__(self, recorder: _Recorder) -> None:
        self._recorder = recorder

    def __getitem__(self, index: int) -> Record:
        recorder = self._recorder
        recorder.begin()
        return recorder.record(index, index, lambda: recorder.dataset[index])


class _RecordedStream(IterableDataset[Record]):
    def __init__(self, recorder: _Recorder, limit: int) -> None:
        self._recorder = recorder
        self._limit = limit

    def __iter__(self) -> Iterator[Record]:
        recorder = self._recorder
        recorder.begin()
        records: list[Iterator[Any]] = []

        def read() -> Any:
            if not records:
                records.append(iter(recorder.dataset))
            return next(records[0])

        with contextlib.suppress(StopIteration):
            for place in range(self._limit):
                # One state for all, so that a record is the same wherever it is read.
                yield recorder.record(place, 0, read)


class _RecordedPositions(StatefulIterableDataset[Record]):
    def __init__(self, recorder: _Recorder, limit: int) -> None:
        self._recorder = recorder
        self._limit = limit

    def records(self, start: int) -> Iterator[Any]:
        self._recorder.begin()
        return itertools.islice(self._recorder.dataset.records(start), max(0, self._limit - start))

    def sample(self, record: Any, index: int) -> Record:
        recorder = self._recorder
        return recorder.record(index, index, lambda: recorder.dataset.sample(record, index))


@frozen
class Crew:
    """How a dataset is read by workers.

    Attributes:
        num_workers: 0 for the main process.
        persistent: Whether workers live on into the next epoch.
        epochs: How many.
        method: How workers are started.
        batch_size: Samples in a batch.
        init: The user's ``worker_init_fn``.
        control: The states that each sample begins with; None to leave them to the loader.
        seed: Of a loader with a position; None for the plain one.
    """

    num_workers: int
    persistent: bool = False
    epochs: int = 2
    method: str = "fork"
    batch_size: int = 1
    init: Callable[[int], None] | None = None
    control: Control | None = None
    seed: int | None = None


def read_by(
    crew: Crew,
    dataset: Any,
    indices: Sequence[int] | None,
    limit: int,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Record]:
    """Read a dataset through a real loader. Only for an experiment's process.

    Args:
        crew: By whom.
        dataset: Map-style, or a stream.
        indices: What to read; None for a stream.
        limit: The most records that a worker reads of a stream.
        progress: Told each index that was read.
    """
    recorder = _Recorder(dataset, crew.control, None if indices is None else min(indices))
    watch()
    make: Any = DataLoader
    options: dict[str, Any] = {}
    if crew.seed is not None:
        make, options["seed"] = StatefulDataLoader, crew.seed
    recorded: Any
    if indices is not None:
        recorded = _Recorded(recorder)
        options["sampler"] = list(indices)
    elif crew.seed is not None:
        recorded = _RecordedPositions(recorder, limit)
    else:
        recorded = _RecordedStream(recorder, limit)
    if crew.num_workers:
        options["multiprocessing_context"] = crew.method
    loader: DataLoader[Any] = make(
        recorded,
        batch_size=crew.batch_size,
        num_workers=crew.num_workers,
        persistent_workers=crew.persistent,
        worker_init_fn=crew.init,
        collate_fn=_same,
        **options,
    )
    found = []
    for epoch in range(crew.epochs):
        set_epoch(dataset, epoch)
        for batch in loader:
            for record in batch:
                progress(record.place)
                found.append(evolve(record, epoch=epoch))
    return found


def _same(batch: list[Record]) -> list[Record]:
    return batch
