"""The batch that is being built: which epoch it is of, and its samples' keys."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seedcursor import _rng

# Below this a key by itself costs less than a block.
_FEW = 4


class Batch:
    """What the code that builds a batch may ask for.

    Attributes:
        seed: The loader's.
        epoch: The pass's.
        position: Of the batch's first sample.
        indices: What is fetched.
    """

    __slots__ = ("_rows", "epoch", "indices", "position", "seed")

    def __init__(self, seed: int, epoch: int, position: int, indices: Sequence[object]) -> None:
        self.seed = seed
        self.epoch = epoch
        self.position = position
        self.indices = indices
        self._rows: dict[tuple[int, str | None], dict[int, NDArray[np.uint64]]] = {}

    def generator(self, seed: int, index: int | str, stream: str | None) -> np.random.Generator:
        """A sample's generator. The first call derives the keys of the whole batch."""
        rows = self._rows.get((seed, stream))
        if rows is None:
            rows = self._rows[seed, stream] = self._derive(seed, stream)
        words = rows.get(index)  # type: ignore[arg-type]
        if words is None:
            return _rng.generator(seed, self.epoch, index, stream)
        return _rng.ready_generator(words, seed, self.epoch, index, stream)  # type: ignore[arg-type]

    def _derive(self, seed: int, stream: str | None) -> dict[int, NDArray[np.uint64]]:
        indices = [k for k in self.indices if type(k) is int and 0 <= k < 2**64]
        if len(indices) < _FEW:
            return {}
        return dict(zip(indices, _rng.ready_words(seed, self.epoch, indices, stream), strict=True))


_building: dict[int, Batch] = {}
os.register_at_fork(after_in_child=_building.clear)


def current() -> Batch | None:
    """The batch that this thread builds, or helps to build.

    A thread without a batch of its own helps with the only one there is: a pool inside
    ``__getitem__`` sees its epoch.

    Raises:
        RuntimeError: Several threads build batches, and this thread is none of them.
    """
    if not _building:
        return None
    batch = _building.get(threading.get_ident())
    if batch is not None:
        return batch
    batches = list(_building.values())
    if len({other.epoch for other in batches}) > 1:
        raise RuntimeError(
            "several threads build batches of different epochs, and this thread belongs to none of "
            "them: draw the generator in the thread that builds the batch, and hand it over"
        )
    return batches[0] if batches else None


def enter(batch: Batch) -> Batch | None:
    """Make it this thread's batch; returns the one it was inside, for `leave`."""
    thread = threading.get_ident()
    outer = _building.get(thread)
    _building[thread] = batch
    return outer


def leave(outer: Batch | None) -> None:
    """The batch is built."""
    if outer is None:
        del _building[threading.get_ident()]
    else:
        _building[threading.get_ident()] = outer
