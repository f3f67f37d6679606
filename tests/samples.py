"""Datasets whose samples show everything that a sample may depend on."""

import os
import random

import numpy as np
import torch

from seedcursor import SKIP, StatefulDataset, StatefulIterableDataset


def draws(dataset, index):
    """The index, the epoch, a keyed draw, and a draw of each global RNG."""
    return (
        index,
        dataset.epoch,
        int(dataset.rng(index).integers(2**63)),
        random.getrandbits(60),
        int(np.random.randint(2**60)),
        int(torch.randint(2**60, ())),
    )


class Mapped(StatefulDataset):
    """Map-style: sample i is ``draws(self, i)``."""

    def __init__(self, n, seed=0):
        super().__init__(seed=seed)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return draws(self, index)


class Stream(StatefulIterableDataset):
    """Records ``0 .. n-1`` of an unknown number; positions in ``skipped`` are dropped."""

    def __init__(self, n, skipped=(), seed=0):
        super().__init__(seed=seed)
        self.n = n
        self.skipped = frozenset(skipped)

    def records(self, start):
        return iter(range(start, self.n))

    def sample(self, record, index):
        assert record == index
        return SKIP if index in self.skipped else draws(self, index)


class Keyed(StatefulDataset):
    """Sample i is ``(i, epoch, keyed draw)``: independent of the batch it is in."""

    def __init__(self, n, seed=0):
        super().__init__(seed=seed)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index, self.epoch, int(self.rng(index).integers(2**63))


class KeyedStream(Stream):
    """As ``Keyed``, of a stream."""

    def sample(self, record, index):
        if index in self.skipped:
            return SKIP
        return index, self.epoch, int(self.rng(index).integers(2**63))


class Plain:
    """Sample i is i; the dataset knows nothing of seedcursor, and counts what was loaded."""

    def __init__(self, n):
        self.n = n
        self.loaded = []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.loaded.append(index)
        return index


class Failing(Keyed):
    """Raises at one index for as long as a file exists."""

    def __init__(self, n, bad, path):
        super().__init__(n)
        self.bad = bad
        self.path = path

    def __getitem__(self, index):
        if index == self.bad and os.path.exists(self.path):
            raise KeyError(f"record {index} is broken")
        return super().__getitem__(index)


def flat(batches):
    """The samples of batches that were collected by ``list``."""
    return [sample for batch in batches for sample in batch]


def indices(batches):
    """The indices in batches of samples that begin with theirs."""
    return [sample[0] for sample in flat(batches)]
