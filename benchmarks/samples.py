"""Datasets whose samples cost next to nothing, so that what is measured is the loading."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from seedcursor import StatefulDataset, StatefulIterableDataset


class Ints(Dataset[int]):
    """The index itself: the cheapest sample there is."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index


class Rows(Dataset[torch.Tensor]):
    """The rows of a tensor."""

    def __init__(self, length: int) -> None:
        self._rows = torch.zeros(length, 8)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._rows[index]


class KeyedDraws(StatefulDataset[float]):
    """A draw per sample from the library's generator."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> float:
        return self.rng(index).random()


class NumpyDraws(Dataset[float]):
    """A draw per sample from a generator that NumPy seeds with ``(seed, epoch, index)``."""

    seed = 0
    epoch = 0

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> float:
        return np.random.default_rng((self.seed, self.epoch, index)).random()


class KeyedGenerators(StatefulDataset[int]):
    """Makes a batch's generators, and keeps the time that they took.

    Attributes:
        spent: Seconds, all batches together.
    """

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length
        self.spent = 0.0

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> list[int]:
        start = time.perf_counter()
        generators = [self.rng(index) for index in indices]
        self.spent += time.perf_counter() - start
        return [len(generators)]


class NumpyGenerators(Dataset[int]):
    """Likewise, each generator made by the one line of NumPy that gives the same bits.

    Attributes:
        spent: Seconds, all batches together.
    """

    seed = 0
    epoch = 0

    def __init__(self, length: int) -> None:
        self._length = length
        self.spent = 0.0

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> list[int]:
        start = time.perf_counter()
        generators = [
            np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(self.epoch, index)))
            for index in indices
        ]
        self.spent += time.perf_counter() - start
        return [len(generators)]


class Stream(StatefulIterableDataset[int]):
    """Ints as records, which can start anywhere."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self._length = length

    def records(self, start: int) -> range:
        """From ``start`` to the end."""
        return range(start, self._length)


class PlainStream(IterableDataset[int]):
    """The same ints, dealt to workers, without a state to restore."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self._length, step))
