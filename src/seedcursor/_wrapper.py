"""Anybody's dataset, its global randomness keyed per sample."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from seedcursor import _checks, _record, _rng
from seedcursor._around import Around, map_style
from seedcursor._dataset import StatefulDataset
from seedcursor._keyed import as_drawn, globals_to_key, hand_epoch
from seedcursor._record import Index


def seeded(
    seed: int, epoch: int, index: Index, stream: str | None = None
) -> contextlib.AbstractContextManager[None]:
    """Key the global RNGs inside, and leave them untouched outside.

    The pure function behind ``StatefulDataset.seeded``, for use anywhere.

    Args:
        seed: The root seed, in ``[0, 2**128)``.
        epoch: In ``[0, 2**32)``.
        index: Which record: an int in ``[0, 2**64)`` or a record id.
        stream: A name that separates draws for the same record.

    Returns:
        A context manager. It nests, and restores after an exception.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.
        RuntimeError: On entering, while another thread has the global RNGs keyed.

    Example:
        >>> with seeded(seed=7, epoch=2, index=5):
        ...     first = torch.rand(2)
        >>> with seeded(seed=7, epoch=2, index=5):
        ...     torch.equal(first, torch.rand(2))
        True
    """
    key = _rng.global_key(
        _checks.seed(seed),
        _checks.epoch(epoch),
        _record.index(index),
        _checks.stream(stream),
        "global",
    )
    return _rng.keyed_globals(key)


class SeededDataset(Around, StatefulDataset[Any]):
    """Any map-style dataset, made pure: each sample runs with the global RNGs keyed by its index.

    So ``dataset[index]`` depends on ``(seed, epoch, index)`` and on nothing else, whatever
    transforms it runs, as long as they draw from ``random``, ``np.random`` or torch's global
    generator. The dataset's attributes stay reachable.

    Args:
        base: A map-style dataset: torchvision's, a list, a Hugging Face ``datasets.Dataset``.
            Where it fetches whole batches by ``__getitems__`` and draws nothing, that is used.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``base`` is not map-style, or ``seed`` not an integer.
        ValueError: ``seed`` is out of range.

    Example:
        >>> class Augmented:
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return index + random.random()
        >>> dataset = SeededDataset(Augmented(), seed=1)
        >>> dataset[2] == dataset[2], dataset[1] - 1 == dataset[2] - 2
        (True, False)
    """

    def __init__(self, base: Any, seed: int = 0) -> None:
        checked = map_style(base, ", subclass StatefulIterableDataset")
        super().__init__(seed=seed)
        self.base = checked
        # Not where sample() does more, nor once the base was seen to move a global RNG.
        self._by_batch = type(self).sample is SeededDataset.sample

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, of the base too if it has one.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        super().set_epoch(epoch)
        hand_epoch(self.base, epoch)

    def __getitem__(self, index: Any) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        drawn = as_drawn(self, indices)
        keys = _rng.global_keys(_checks.seed(self.seed), self.epoch, drawn, "global")
        with globals_to_key():
            return self._fetch(indices, keys)

    def _fetch(self, indices: Sequence[Any], keys: list[bytes]) -> list[Any]:
        if len(indices) > 1 and self._by_batch and hasattr(self.base, "__getitems__"):
            _rng.key_globals(keys[0])
            untouched = _probe()
            _rng.key_globals(keys[0])
            samples = list(self.base.__getitems__(list(indices)))
            if len(samples) != len(indices):
                raise ValueError(
                    f"base.__getitems__ must return a sample for each of {len(indices)} indices, "
                    f"got {len(samples)}"
                )
            if _probe() == untouched:
                return samples
            # One key can't serve a whole batch: fetch again, each sample by its own.
            self._by_batch = False
        samples = []
        for index, key in zip(indices, keys, strict=True):
            _rng.key_globals(key)
            samples.append(self.sample(index))
        return samples

    def sample(self, index: Any) -> Any:
        """One sample of the base; called with the global RNGs keyed for it.

        Override it to key what else the base draws from, and end with ``super().sample(index)``.

        Args:
            index: As the base takes it.

        Returns:
            ``base[index]``.
        """
        return self.base[index]


def _probe() -> tuple[float, float, float]:
    """A draw from each global RNG: the same again only if nothing was drawn in between."""
    drawn = torch.rand((), dtype=torch.float64, generator=torch.default_generator, device="cpu")
    return random.random(), np.random.random_sample(), float(drawn)
