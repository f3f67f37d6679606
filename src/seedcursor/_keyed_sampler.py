"""Orders with random access: any place of an epoch, without those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from seedcursor import _checks, _keys

# Positions that are asked for at once.
_SLICE = 4096


T_co = TypeVar("T_co", covariant=True)


class _Seeded(Sampler[T_co]):
    """A sampler with a seed, and with an epoch for a plain ``DataLoader``."""

    _order_digest: int | None = None  # of its arguments
    _made_for: int | None = None  # how many records the dataset must have

    def __init__(self, seed: int | None = None) -> None:
        self.seed = None if seed is None else _checks.seed(seed)
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for a plain ``DataLoader``; under a ``StatefulDataLoader`` its own rules.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        self._epoch = _checks.epoch(epoch)


class KeyedSampler(_Seeded[Any]):
    """An order that is a function of ``(seed, epoch, position)``, for ``sampler=``.

    A subclass says which index stands at which positions; so a ``StatefulDataLoader`` resumes
    without drawing what was delivered, and a rank never draws for another. Write ``__len__`` and
    `at`, and keep no state that moves.

    Args:
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.

    Raises:
        TypeError: Not an integer.
        ValueError: Out of range.

    Example:
        >>> from seedcursor import KeyedPermutation, StatefulDataLoader
        >>> class TwiceEach(KeyedSampler):
        ...     def __len__(self):
        ...         return 8
        ...     def at(self, seed, epoch, positions):
        ...         order = KeyedPermutation(8, seed, epoch)
        ...         return [order[position] // 2 for position in positions]
        >>> loader = StatefulDataLoader(range(4), 8, sampler=TwiceEach(), seed=1)
        >>> sorted(next(iter(loader)).tolist())
        [0, 0, 1, 1, 2, 2, 3, 3]
    """

    def at(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> Sequence[Any]:
        """The indices at some positions of an epoch.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            positions: N of them, each in ``[0, len(self))``.

        Returns:
            N indices, as the dataset takes them; an array is taken as well.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define at(seed, epoch, positions), which returns the "
            "index at each of the positions"
        )

    def __len__(self) -> int:
        """Positions in an epoch."""
        raise NotImplementedError(
            f"{type(self).__name__} must define __len__, the number of positions in an epoch"
        )

    def __iter__(self) -> Iterator[Any]:
        length = len(self)
        for start in range(0, length, _SLICE):
            positions = np.arange(start, min(start + _SLICE, length), dtype=np.int64)
            yield from listed(self.at(self.seed or 0, self._epoch, positions))


class KeyedBatchSampler(_Seeded[list[int]]):
    """Batches that are a function of ``(seed, epoch)``, with random access by position.

    Args:
        seed: In ``[0, 2**128)``; by default that of the loader, in a plain ``DataLoader`` 0.
    """

    def num_samples(self) -> int:
        """Samples in an epoch, all batches together."""
        raise NotImplementedError

    def batches(self, seed: int, epoch: int, start: int) -> Iterator[list[int]]:
        """The batches of an epoch, less the samples before a position.

        Args:
            seed: The root seed, in ``[0, 2**128)``.
            epoch: In ``[0, 2**32)``.
            start: How many samples were delivered already. Within a batch, its rest comes first.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[list[int]]:
        return self.batches(self.seed or 0, self._epoch, 0)


def sampler_digest(sampler: KeyedSampler | KeyedBatchSampler) -> int | None:
    """What an order is made of besides a loader's seed, as a number; None if that is not known."""
    if sampler.seed is None:
        return sampler._order_digest
    return _keys.order_digest(sampler._order_digest, sampler.seed)


def check_made_for(sampler: object, name: str, dataset: object) -> None:
    """Refuse a sampler that was made for a dataset of another length.

    Args:
        sampler: What was given; only one of ours knows.
        name: As what it was given.
        dataset: What it is to be the order of.

    Raises:
        ValueError: They don't fit.
    """
    made_for = sampler._made_for if isinstance(sampler, _Seeded) else None
    if made_for is None or not isinstance(dataset, Sized) or len(dataset) == made_for:
        return
    raise ValueError(
        f"{name} must be made for the {len(dataset)} records of the dataset, got a "
        f"{type(sampler).__name__} for {made_for}; make it from this dataset"
    )


def listed(indices: Sequence[Any]) -> list[Any]:
    """A list of plain values."""
    return indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
