"""The steps of a pass: which positions each covers, and what this rank fetches.

An order turns ``(epoch, cursor, shape)`` into steps, here and only here. There are four: the keyed
one, a user's sampler (which may have random access), a user's batch sampler, and a stream, whose
records the worker reads itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from seedcursor import _batch, _keys, _rng
from seedcursor._keyed_sampler import (
    KeyedBatchSampler,
    KeyedSampler,
    listed,
    sampler_digest,
)
from seedcursor._permutation import SLICE, KeyedPermutation
from seedcursor._position import Position
from seedcursor._sharding import Shape

_FIRST_SLICE = 2048


class Step(NamedTuple):
    """One batch of one rank.

    Attributes:
        position: Of the batch's first sample. A batch that only repeats another rank's has one that
            no other batch has, so that its draws are its own.
        stop: The cursor once the step is delivered.
        indices: What to fetch; of a stream, the range of its positions.
    """

    position: int
    stop: int
    indices: Sequence[Any]


class Order(Protocol):
    """What a pass visits."""

    @property
    def length(self) -> int | None:
        """Positions in an epoch; None if that is not known."""

    @property
    def limit(self) -> int | None:
        """The largest cursor that there can be; None if that is not known."""

    @property
    def digest(self) -> int | None:
        """What the order is made of, besides seed and length, as a number; None if not known."""

    def count(self, shape: Shape) -> int:
        """Steps in an epoch; TypeError if that is not known."""

    def steps(self, start: Position, shape: Shape) -> Iterator[Step]:
        """The steps from a position on."""


class KeyedOrder:
    """The dataset's own order, or a permutation of it keyed by ``(seed, epoch)``."""

    def __init__(self, sized: Sized | int, seed: int, shuffle: bool) -> None:
        self.sized = sized
        self.seed = seed
        self.shuffle = shuffle

    @property
    def length(self) -> int:
        return self.sized if isinstance(self.sized, int) else len(self.sized)

    @property
    def limit(self) -> int:
        return self.length

    @property
    def digest(self) -> int | None:
        return getattr(self.sized, "_order_digest", None)

    def count(self, shape: Shape) -> int:
        return shape.steps(self.length)

    def steps(self, start: Position, shape: Shape) -> Iterator[Step]:
        length, size, span = self.length, shape.batch_size, shape.span
        indices_at = self._at(start.epoch)
        short = start.cursor + (length - start.cursor) // span * span
        # Full steps go on with one stride, so a rank's indices come in slices: first a small one,
        # for a quick first batch.
        first, count = start.cursor, -(-_FIRST_SLICE // size)
        while first < short:
            last = min(first + count * span, short)
            indices = indices_at(range(first + shape.rank, last, shape.world_size))
            for k, begin in enumerate(range(first, last, span)):
                own = indices[k * size : (k + 1) * size]
                yield Step(begin + shape.rank, begin + span, own)
            first, count = last, -(-SLICE // size)
        if short < length and not shape.drop_last:
            own_places = list(shape.share(short, length))
            if shape.short_of(short, length):
                own_places.append(short)
            if own_places:
                own = [index for k in own_places for index in indices_at(range(k, k + 1))]
                yield Step(short + shape.rank, length, own)

    def _at(self, epoch: int) -> Callable[[range], list[Any]]:
        """What gives the indices at some positions."""
        if not self.shuffle:
            return list
        order = KeyedPermutation(self.length, self.seed, epoch)
        return lambda places: order[places.start : places.stop : places.step].tolist()


class KeyedSamplerOrder(KeyedOrder):
    """The order of a user's sampler that has random access."""

    def __init__(self, sampler: KeyedSampler, seed: int) -> None:
        super().__init__(sampler, seed if sampler.seed is None else sampler.seed, shuffle=False)
        self.sampler = sampler

    @property
    def digest(self) -> int | None:
        return sampler_digest(self.sampler)

    def _at(self, epoch: int) -> Callable[[range], list[Any]]:
        def indices_at(places: range) -> list[Any]:
            # Not np.arange(start, stop, step), which counts in floating point.
            positions = np.arange(len(places), dtype=np.int64) * places.step + places.start
            indices = listed(self.sampler.at(self.seed, epoch, positions))
            if len(indices) != len(places):
                raise ValueError(
                    f"{type(self.sampler).__name__}.at must return an index for each of "
                    f"{len(places)} positions, got {len(indices)}"
                )
            return indices

        return indices_at


class SamplerOrder:
    """The order of a user's sampler, its randomness keyed by ``(seed, epoch)``."""

    def __init__(self, sampler: Iterable[Any], seed: int) -> None:
        self.sampler = sampler
        self._seed = seed

    @property
    def length(self) -> int | None:
        return _length(self.sampler)

    @property
    def limit(self) -> int | None:
        return self.length

    @property
    def digest(self) -> int | None:
        return None

    def count(self, shape: Shape) -> int:
        return shape.steps(len(self.sampler))  # type: ignore[arg-type]

    def steps(self, start: Position, shape: Shape) -> Iterator[Step]:
        check_unsharded(self.sampler, shape)
        drawn = KeyedIterator(self.sampler, self._seed, start.epoch)
        drawn.skip(start.cursor)
        first = start.cursor
        while chunk := drawn.take(shape.span):
            stop = first + len(chunk)
            if len(chunk) < shape.span and shape.drop_last:
                return
            own = [chunk[place - first] for place in shape.share(first, stop)]
            if shape.short_of(first, stop):
                own.append(chunk[0])
            if own:
                yield Step(first + shape.rank, stop, own)
            first = stop


class BatchSamplerOrder:
    """The batches of a user's batch sampler; ranks take them in turn."""

    def __init__(self, batch_sampler: Iterable[list[Any]], seed: int) -> None:
        self._batch_sampler = batch_sampler
        self._seed = seed

    @property
    def length(self) -> int | None:
        return None

    @property
    def limit(self) -> int | None:
        return self.length

    @property
    def digest(self) -> int | None:
        return None

    def count(self, shape: Shape) -> int:
        return shape.steps(len(self._batch_sampler))  # type: ignore[arg-type]

    def steps(self, start: Position, shape: Shape) -> Iterator[Step]:
        check_unsharded(self._batch_sampler, shape)
        rest, take = self._from(start)
        first = start.cursor
        while chunk := [*rest, *take(shape.world_size - len(rest))]:
            rest = []
            sizes = [len(batch) for batch in chunk]
            stop = first + sum(sizes)
            if shape.rank < len(chunk):
                yield Step(first + sum(sizes[: shape.rank]), stop, list(chunk[shape.rank]))
            elif shape.pad:
                yield Step(stop + shape.rank, stop, list(chunk[0]))
            first = stop

    def _from(self, start: Position) -> tuple[list[list[Any]], Callable[[int], list[list[Any]]]]:
        """What is left of a batch that was begun, and what takes the batches after it."""
        drawn = KeyedIterator(self._batch_sampler, self._seed, start.epoch)
        return self._rest_of_batch(drawn, start.cursor), drawn.take

    @staticmethod
    def _rest_of_batch(drawn: KeyedIterator, cursor: int) -> list[list[Any]]:
        """Skip ``cursor`` positions; what is left of the batch that they end in.

        They end within a batch if the state was saved with another batch size.
        """
        while cursor > 0 and (chunk := drawn.take(1)):
            if cursor < len(chunk[0]):
                return [list(chunk[0])[cursor:]]
            cursor -= len(chunk[0])
        return []


class KeyedBatchSamplerOrder(BatchSamplerOrder):
    """The batches of a batch sampler that has random access."""

    _batch_sampler: KeyedBatchSampler

    def __init__(self, batch_sampler: KeyedBatchSampler, seed: int) -> None:
        super().__init__(batch_sampler, seed if batch_sampler.seed is None else batch_sampler.seed)

    @property
    def length(self) -> int:
        return self._batch_sampler.num_samples()

    @property
    def digest(self) -> int | None:
        return sampler_digest(self._batch_sampler)

    def _from(self, start: Position) -> tuple[list[list[Any]], Callable[[int], list[list[Any]]]]:
        batches = self._batch_sampler.batches(self._seed, start.epoch, start.cursor)
        return [], lambda count: list(itertools.islice(batches, count))


class StreamOrder:
    """A stream of records: whole steps without end, for the worker knows where the records end."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset

    @property
    def length(self) -> int | None:
        return _length(self._dataset)

    @property
    def limit(self) -> None:
        # Its length may count the samples that are left, and the cursor counts records.
        return None

    @property
    def digest(self) -> int | None:
        return getattr(self._dataset, "_order_digest", None)

    def count(self, shape: Shape) -> int:
        return shape.steps(len(self._dataset))  # type: ignore[arg-type]

    def steps(self, start: Position, shape: Shape) -> Iterator[Step]:
        for first in itertools.count(start.cursor, shape.span):
            stop = first + shape.span
            yield Step(first + shape.rank, stop, shape.share(first, stop))


def _length(sized: object) -> int | None:
    """Its length, or None if it has none or won't tell."""
    try:
        return len(sized)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


class KeyedIterator:
    """A user's sampler, drawing as if nobody else drew.

    While it draws, everybody's global RNGs and its own generators are set aside; afterwards its
    states are kept for its next draw. So it moves nobody's state, and nobody moves its.
    """

    def __init__(self, sampler: Iterable[Any], seed: int, epoch: int) -> None:
        self._sampler = sampler
        self._seed = seed
        self._epoch = epoch
        self._iterator: Iterator[Any] | None = None
        held = [getattr(part, "generator", None) for part in _sampler_parts(sampler)]
        self._generators = [each for each in held if isinstance(each, torch.Generator)]
        self._key = _rng.global_key(seed, epoch, None, None, "sampler")
        words = _keys.sequence(seed, epoch, domain="sampler.generator")
        self._words = words.generate_state(len(self._generators), np.uint64).tolist()
        self._globals: _rng.Globals | None = None
        self._states: list[torch.Tensor] = []

    def take(self, count: int) -> list[Any]:
        """The next items, fewer at the end."""
        with self._drawing() as iterator:
            return list(itertools.islice(iterator, count))

    def skip(self, count: int) -> None:
        """Leave out items without keeping them."""
        with self._drawing() as iterator:
            next(itertools.islice(iterator, count, count), None)

    @contextlib.contextmanager
    def _drawing(self) -> Iterator[Iterator[Any]]:
        outer = _batch.own()
        with _rng.globals_aside():
            states = [generator.get_state() for generator in self._generators]
            try:
                # A sampler may ask the dataset for its epoch, or draw from it.
                _batch.enter(_batch.Batch(self._seed, self._epoch, 0))
                self._resume()
                if self._iterator is None:
                    # Not iter(): some are their own iterators, and start anew when asked again.
                    self._iterator = (item for item in self._sampler)
                yield self._iterator
                self._states = [generator.get_state() for generator in self._generators]
                self._globals = _rng.take_globals()
            finally:
                _batch.leave(outer)
                for generator, state in zip(self._generators, states, strict=True):
                    generator.set_state(state)

    def _resume(self) -> None:
        for part in _sampler_parts(self._sampler):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(self._epoch)
        if self._globals is None:
            _rng.own_globals(self._key)
            for generator, word in zip(self._generators, self._words, strict=True):
                generator.manual_seed(word)
            return
        _rng.put_globals(self._globals)
        for generator, state in zip(self._generators, self._states, strict=True):
            generator.set_state(state)


def _sampler_parts(sampler: object) -> Iterator[object]:
    seen: list[object] = []
    while sampler is not None and not any(sampler is part for part in seen):
        seen.append(sampler)
        yield sampler
        sampler = getattr(sampler, "sampler", None)


def check_unsharded(sampler: object, shape: Shape) -> None:
    """Refuse a sampler that deals to ranks by itself, where positions are dealt to ranks too.

    Raises:
        ValueError: It has several replicas, and so has the shape.
    """
    for part in _sampler_parts(sampler):
        replicas = getattr(part, "num_replicas", 1)
        if shape.world_size > 1 and isinstance(replicas, int) and replicas > 1:
            raise ValueError(
                f"sampler must give the order of all ranks, got a {type(part).__name__} with "
                f"num_replicas={replicas} at world_size={shape.world_size}, which would deal the "
                "samples to ranks twice; leave it out and use shuffle=True or False. If a trainer "
                "has put it there, turn that off: Trainer(use_distributed_sampler=False) in "
                "Lightning"
            )
