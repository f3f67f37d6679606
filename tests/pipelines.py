"""What each adapter must keep, through loaders of every shape."""

import itertools
import random

import numpy as np
import torch
from samples import flat

from seedcursor import StatefulDataLoader

N = 9
EPOCHS = 2

# Workers, start method, batch size, world size.
SHAPES = list(itertools.product([0, 1, 2, 3], ["fork", "spawn"], [4, 7], [1, 2]))
# A process started by spawn imports its libraries anew, which takes seconds.
FEWER_SHAPES = [
    *(shape for shape in SHAPES if shape[1] == "fork"),
    (1, "spawn", 7, 2),
    (3, "spawn", 4, 1),
]


def main_process():
    """The global RNGs' states, to the bit."""
    python, numpy = random.getstate(), np.random.get_state(legacy=False)
    return repr((python, numpy["state"]["key"].tobytes(), numpy["has_gauss"], numpy["gauss"])), (
        torch.get_rng_state().numpy().tobytes()
    )


def loaded(dataset, workers, method, batch_size, world_size):
    """Each sample that loaders of this shape deliver, by epoch and index."""
    seen = {}
    for rank in range(world_size):
        loader = StatefulDataLoader(
            dataset,
            batch_size,
            shuffle=True,
            num_workers=workers,
            multiprocessing_context=method if workers else None,
            persistent_workers=workers > 0,
            collate_fn=list,
            rank=rank,
            world_size=world_size,
        )
        for epoch in range(EPOCHS):
            for index, *draws in flat(loader):
                assert seen.setdefault((epoch, index), draws) == draws
    return seen


def alone(dataset):
    """Each sample, read by itself, in an order of its own."""
    seen = {}
    for epoch in reversed(range(EPOCHS)):
        dataset.set_epoch(epoch)
        for index in reversed(range(N)):
            seen[epoch, index] = list(dataset[index][1:])
    dataset.set_epoch(0)
    return seen


def check(dataset, shape):
    """Samples are a function of epoch and index, no two draw alike, and nobody else notices.

    Sample i of the dataset is ``(i, *draws)``, each draw of enough bits to be the only one.
    """
    random.gauss(0, 1), np.random.randn()  # each keeps another one back
    before = main_process()
    seen = loaded(dataset, *shape)
    assert seen == alone(dataset)
    assert main_process() == before
    draws = [draw for sample in seen.values() for draw in sample]
    assert len(seen) == EPOCHS * N
    assert len(set(draws)) == len(draws) >= 2 * len(seen)
