"""The batch that is being built: which epoch it is of, and its samples' keys."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import NamedTuple

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray

from seedcursor import _checks, _keys, _rng
from seedcursor._record import INDEX_LIMIT

# Below this a key by itself costs less than a block.
_FEW = 4


class Fault(NamedTuple):
    """A record that raised, and was passed over; text, since not every error pickles.

    Attributes:
        record: What was asked for, such as ``dataset[57]``.
        cause: The error and its words.
        details: Its traceback.
        at_most: How many the pass may pass over.
    """

    record: str
    cause: str
    details: str
    at_most: int


class Batch:
    """What the code that builds a batch may ask for.

    Attributes:
        seed: The loader's.
        epoch: The pass's.
        position: Of the batch's first sample.
        indices: What is fetched.
        dataset: What it is fetched from.
        faults: The records that were passed over.
        number: Of the occurrence that is being built; 0 for the record itself.
    """

    __slots__ = ("_rows", "dataset", "epoch", "faults", "indices", "number", "position", "seed")

    def __init__(
        self,
        seed: int,
        epoch: int,
        position: int,
        indices: Sequence[object] = (),
        dataset: object = None,
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self.epoch = epoch
        self.position = position
        self.indices = indices
        self.faults: list[Fault] = []
        self.number = 0
        self._rows: dict[tuple[int, str | None], dict[int, NDArray[np.uint64]]] = {}

    def row(self, seed: int, index: int, stream: str | None) -> NDArray[np.uint64] | None:
        """PCG64's words for a sample, if it is one of the batch's.

        The first call derives the keys of the whole batch, so a batch that draws nothing pays
        nothing.
        """
        try:
            return self._rows[seed, stream].get(index)
        except KeyError:
            key = _checks.seed(seed), _checks.stream(stream)
            self._rows[key] = self._derive(*key)
            return self._rows[key].get(index)
        except TypeError:  # a stream that can't be hashed is refused elsewhere
            return None

    def _derive(self, seed: int, stream: str | None) -> dict[int, NDArray[np.uint64]]:
        indices = [k for k in self.indices if type(k) is int and 0 <= k < INDEX_LIMIT]
        if len(indices) < _FEW:
            return {}
        return dict(zip(indices, _rng.ready_words(seed, self.epoch, indices, stream), strict=True))


class Part(Batch):
    """One sample of a part of the dataset that is in an epoch of its own.

    Attributes:
        around: The batch that a loader builds, if one does.
    """

    __slots__ = ("around",)

    def __init__(self, around: Batch | None, epoch: int, number: int, dataset: object) -> None:
        seed, position = (around.seed, around.position) if around else (0, 0)
        super().__init__(seed, epoch, position, dataset=dataset)
        self.number = number
        self.around = around


def batch_rng(stream: str | None = None) -> np.random.Generator:
    """A generator keyed on the batch being built, for what mixes samples: MixUp, CutMix.

    Call it in a ``collate_fn``, or in ``__getitem__``, that a ``StatefulDataLoader`` runs.

    Args:
        stream: A name that separates draws for the same batch.

    Returns:
        A new generator keyed by the loader's seed, the epoch and the position of the batch's first
        sample, so another one on each rank. Equal for equal keys, as ``StatefulDataset.rng`` is.

    Raises:
        RuntimeError: No batch is being built here.
        TypeError: ``stream`` is not a str.

    Example:
        >>> import torch
        >>> from seedcursor import StatefulDataLoader
        >>> def mix_up(samples):
        ...     batch = torch.stack(samples)
        ...     rng = batch_rng()
        ...     partner = torch.from_numpy(rng.permutation(len(batch)))
        ...     share = rng.beta(0.4, 0.4)
        ...     return share * batch + (1 - share) * batch[partner]
        >>> loader = StatefulDataLoader(torch.eye(4), batch_size=4, collate_fn=mix_up)
        >>> torch.equal(next(iter(loader)), loader.replay(epoch=0, cursor=0))
        True

    References:
        H. Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018.
    """
    stream = _checks.stream(stream)
    batch = own()
    if batch is None and len(_building) == 1:
        batch = helped(lambda _: True)
    batch = _whole(batch)
    if batch is None:
        raise RuntimeError(
            "batch_rng() has no batch here: call it in collate_fn or __getitem__ while a "
            "StatefulDataLoader builds a batch; a plain DataLoader tells nobody its position"
        )
    words = _keys.sequence(batch.seed, batch.epoch, batch.position, stream, "batch_rng")
    return np.random.Generator(np.random.PCG64(words))


_building: dict[int, Batch] = {}


def _keep_own() -> None:
    """In a forked child there is one thread: the one that forked."""
    batch = _building.get(get_ident())
    _building.clear()
    if batch is not None:
        _building[get_ident()] = batch


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_own)


def any_building() -> bool:
    """Whether any thread builds a batch."""
    return bool(_building)


def own() -> Batch | None:
    """The batch that this thread builds."""
    return _building.get(get_ident())


def whole() -> Batch | None:
    """The batch that this thread builds for a loader, whatever part of it is at hand."""
    return _whole(own())


def _whole(batch: Batch | None) -> Batch | None:
    return batch.around if isinstance(batch, Part) else batch


def note(error: Exception, text: str) -> None:
    """Name the record in the traceback. Python 3.10 has no place for it."""
    if hasattr(error, "add_note"):
        error.add_note(f"seedcursor: {text}")


def ready_generator(seed: int, index: int, stream: str | None) -> np.random.Generator | None:
    """A sample's generator, if it is one of the batch's that this thread builds."""
    batch = _building.get(get_ident())
    if batch is None:
        return None
    words = batch.row(seed, index, stream)
    if words is None:
        return None
    return Generator(PCG64(_rng.ReadyWords(words, (seed, batch.epoch, index, stream))))


def helped(belongs: Callable[[Batch], bool]) -> Batch | None:
    """The batch that another thread builds, and this one helps with.

    A pool inside ``__getitem__`` must see the epoch of its batch.

    Args:
        belongs: Whether what this thread does belongs to a batch.

    Raises:
        RuntimeError: It belongs to batches of several epochs.
    """
    batches = [batch for batch in list(_building.values()) if belongs(batch)]
    if len({batch.epoch for batch in batches}) > 1:
        raise RuntimeError(
            "several threads build batches of this dataset, of different epochs, and this thread "
            "is none of them: draw in the thread that builds the batch, and hand over what is drawn"
        )
    return batches[0] if batches else None


def enter(batch: Batch) -> None:
    """Make it this thread's batch."""
    _building[get_ident()] = batch


def leave(outer: Batch | None) -> None:
    """The batch is built, or was never begun; ``outer`` is the one around it."""
    if outer is None:
        _building.pop(get_ident(), None)
    else:
        _building[get_ident()] = outer
