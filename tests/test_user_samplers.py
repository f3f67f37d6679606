"""Samplers of the user's own: keyed, resumed by skipping indices, and left as they were."""

import random

import numpy as np
import pytest
import torch
from samples import Keyed, Plain, flat, indices
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from seedcursor import StatefulBatchSampler, StatefulDataLoader

N = 30


class Whim(Sampler):
    """Draws from all three global RNGs as it goes."""

    def __iter__(self):
        for _ in range(N):
            yield int(np.random.randint(10)) + random.randrange(10) + int(torch.randint(10, ()))

    def __len__(self):
        return N


class Epochs(Sampler):
    """Goes by its own epoch."""

    epoch = None

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([(k + self.epoch) % N for k in range(N)])

    def __len__(self):
        return N


class Buckets(Sampler):
    """A batch sampler with batches of many sizes."""

    def __init__(self):
        self.generator = torch.Generator()

    def __iter__(self):
        order = torch.randperm(N, generator=self.generator).tolist()
        while order:
            size = int(torch.randint(1, 6, (), generator=self.generator))
            yield order[:size]
            order = order[size:]


SAMPLERS = {
    "random": lambda: RandomSampler(range(N)),
    "generator": lambda: RandomSampler(range(N), generator=torch.Generator()),
    "replacement": lambda: RandomSampler(range(N), replacement=True, num_samples=70),
    "weighted": lambda: WeightedRandomSampler([1.0, 5.0, 2.0] * 10, N),
    "subset": lambda: SubsetRandomSampler(range(0, N, 2)),
    "whim": Whim,
    "epochs": Epochs,
    "list": lambda: list(range(N))[::-1],
}
BATCH_SAMPLERS = {
    "buckets": Buckets,
    "batched": lambda: BatchSampler(RandomSampler(range(N)), 4, drop_last=True),
    "batched list": lambda: [[3, 1], [2], [0, 7, 9]],
}


def load(name, workers=0, **options):
    dataset = Keyed(N)
    if name in SAMPLERS:
        options |= {"sampler": SAMPLERS[name](), "batch_size": 4}
    else:
        options |= {"batch_sampler": BATCH_SAMPLERS[name]()}
    return StatefulDataLoader(dataset, num_workers=workers, collate_fn=list, **options)


@pytest.mark.parametrize("name", [*SAMPLERS, *BATCH_SAMPLERS])
@pytest.mark.parametrize("workers", [0, 2])
def test_its_order_is_a_function_of_seed_and_epoch_and_resumes(name, workers):
    torch.manual_seed(1)
    loader = load(name)
    full = [list(loader) for _ in range(3)]
    torch.manual_seed(2)
    if name not in ("list", "batched list"):
        assert indices(full[0]) != indices(full[1])
        assert (indices(load(name, seed=1)) != indices(full[0])) == (name != "epochs")
    for step in range(1, len(full[1])):
        first = load(name, workers)
        first.set_epoch(1)
        head = [batch for _, batch in zip(range(step), first, strict=False)]
        assert head == full[1][:step]
        resumed = load(name, 2 - workers)
        resumed.load_state_dict(first.state_dict())
        assert head + list(resumed) == full[1]
        assert list(resumed) == full[2]


@pytest.mark.parametrize("name", [*SAMPLERS, *BATCH_SAMPLERS])
def test_two_passes_do_not_disturb_each_other(name):
    loader = load(name)
    full = [list(loader) for _ in range(2)]
    loader = load(name)
    older = iter(loader)
    batches = [next(older)]
    newer = iter(loader)
    seen = [next(newer)]
    for batch in older:
        batches.append(batch)
        seen += [following for following in [next(newer, None)] if following is not None]
    assert batches == full[0]
    assert seen + list(newer) == full[1]


def test_a_resume_loads_no_sample_that_it_skips():
    for options in (
        {"sampler": RandomSampler(range(100))},
        {"shuffle": True},
        {"batch_sampler": BatchSampler(range(100), 5, drop_last=False)},
    ):
        dataset = Plain(100)
        size = {} if "batch_sampler" in options else {"batch_size": 5}
        loader = StatefulDataLoader(dataset, **size, **options)
        loader.load_state_dict({"epoch": 0, "cursor": 90})
        assert sum(map(len, loader)) == 10
        assert len(dataset.loaded) == 10


def test_a_users_generator_is_where_it_was():
    generator = torch.Generator().manual_seed(5)
    before = generator.get_state()
    loader = StatefulDataLoader(
        Keyed(N), 4, sampler=RandomSampler(range(N), generator=generator), collate_fn=list
    )
    assert len(flat(loader)) == N
    assert torch.equal(generator.get_state(), before)


def test_batches_of_another_size_resume_within_a_batch():
    batches = [[0, 1, 2, 3], [4, 5, 6], [7, 8]]
    loader = StatefulDataLoader(Keyed(N), batch_sampler=batches, collate_fn=list)
    loader.load_state_dict({"epoch": 0, "cursor": 5})
    assert [[sample[0] for sample in batch] for batch in loader] == [[5, 6], [7, 8]]


def test_ranks_take_a_users_batches_in_turn():
    batches = [[0, 1], [2], [3, 4, 5], [6], [7, 8]]
    seen = []
    for rank in range(2):
        loader = StatefulDataLoader(
            Keyed(N), batch_sampler=batches, rank=rank, world_size=2, collate_fn=list
        )
        mine = iter(loader)
        seen.append([[sample[0] for sample in next(mine)]])
        assert loader.cursor == 3
        seen[-1] += [[sample[0] for sample in batch] for batch in mine]
    assert seen == [[[0, 1], [3, 4, 5], [7, 8]], [[2], [6], [7, 8]]]


def test_an_endless_sampler_has_no_length():
    class Endless(Sampler):
        def __iter__(self):
            while True:
                yield from range(N)

    loader = StatefulDataLoader(Keyed(N), 4, sampler=Endless(), num_workers=2, collate_fn=list)
    with pytest.raises(TypeError, match="len"):
        len(loader)
    batches = iter(loader)
    assert [len(next(batches)) for _ in range(20)] == [4] * 20
    assert loader.cursor == 80
    assert loader.state_dict()["length"] is None


class Broken(Sampler):
    """Fails midway."""

    def __iter__(self):
        yield from range(26)
        raise OSError("the list of files is gone")

    def __len__(self):
        return N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_fails_does_not_end_the_epoch(workers):
    loader = StatefulDataLoader(Keyed(N), 4, sampler=Broken(), num_workers=workers, collate_fn=list)
    batches = iter(loader)
    # What was planned before is delivered first, with workers too.
    assert len([next(batches) for _ in range(6)]) == 6
    for _ in range(2):
        with pytest.raises(OSError, match="list of files is gone"):
            next(batches)
    assert (loader.epoch, loader.cursor) == (0, 24)


class Asking(Sampler):
    """Goes by the dataset's epoch, and draws from it."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from [self.dataset.epoch, int(self.dataset.rng(0, "order").integers(N))]

    def __len__(self):
        return 2


def test_a_sampler_may_ask_the_dataset():
    dataset = Keyed(N)
    loader = StatefulDataLoader(dataset, 2, sampler=Asking(dataset), collate_fn=list)
    epochs = [indices(loader) for _ in range(3)]
    assert [epoch[0] for epoch in epochs] == [0, 1, 2]
    assert len({epoch[1] for epoch in epochs}) > 1


def test_a_wrapped_batch_sampler_of_ours_is_not_dealt_twice():
    class Wrapper(Sampler):
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            return iter(self.sampler)

    ours = StatefulBatchSampler(N, 4, rank=0, world_size=2)
    loader = StatefulDataLoader(Keyed(N), batch_sampler=Wrapper(ours), rank=0, world_size=2)
    with pytest.raises(ValueError, match="StatefulBatchSampler with num_replicas=2"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_of_another_loader_is_taken_over(workers):
    first = StatefulDataLoader(Keyed(N), 4, shuffle=True, seed=3, collate_fn=list)
    full = list(first)
    first.load_state_dict({"epoch": 0, "cursor": 8})
    second = StatefulDataLoader(
        Keyed(N), 4, sampler=first.sampler, num_workers=workers, collate_fn=list
    )
    assert second.state_dict()["seed"] == 3
    second.load_state_dict(first.state_dict())
    assert list(second) == full[2:]
    assert (first.epoch, first.cursor) == (0, 8)
