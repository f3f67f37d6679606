"""``StatefulBatchSampler`` with the plain ``DataLoader``."""

import json

import pytest
import torch
from samples import Keyed, flat, indices
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from seedcursor import KeyedPermutation, StatefulBatchSampler, StatefulDataLoader

N, BATCH = 22, 4


def pair(workers=0, dataset=None, **options):
    dataset = Keyed(N, seed=3) if dataset is None else dataset
    sampler = StatefulBatchSampler(dataset, BATCH)
    loader = DataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list, **options
    )
    return sampler, loader


def test_its_order_is_the_loaders():
    sampler = StatefulBatchSampler(N, BATCH, seed=3)
    for epoch in range(2):
        assert sum(list(sampler), []) == KeyedPermutation(N, 3, epoch)[:].tolist()
    assert len(sampler) == 6
    assert len(StatefulBatchSampler(N, BATCH, drop_last=True)) == 5
    assert sum(StatefulBatchSampler(N, BATCH, shuffle=False), []) == list(range(N))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tracked_epochs_are_the_loaders_own(workers, persistent, method):
    loader = StatefulDataLoader(Keyed(N, seed=3), BATCH, shuffle=True, collate_fn=list)
    expected = [list(loader) for _ in range(3)]
    sampler, plain = pair()
    assert [list(sampler.track(plain)) for _ in range(3)] == expected
    sampler, plain = pair(workers, persistent_workers=persistent, multiprocessing_context=method)
    assert [list(sampler.track(plain)) for _ in range(3)] == expected


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (3, 1)])
def test_interrupted_at_every_step(before, after):
    sampler, loader = pair()
    full = [list(sampler.track(loader)) for _ in range(3)]
    for step in range(1, 6):
        sampler, loader = pair(before)
        sampler.set_epoch(1)
        head = []
        for batch in sampler.track(loader):
            head.append(batch)
            if len(head) == step:
                break
        assert (sampler.epoch, sampler.cursor) == (1, step * BATCH)
        state = json.loads(json.dumps(sampler.state_dict()))
        sampler, loader = pair(after)
        sampler.load_state_dict(state)
        assert head + list(sampler.track(loader)) == full[1]
        assert list(sampler.track(loader)) == full[2]


def test_a_loader_that_runs_ahead_is_counted_where_it_delivers():
    def ahead(loader):
        batches = iter(loader)
        held = next(batches)
        for following in batches:
            yield held
            held = following
        yield held

    sampler, loader = pair(2)
    for step, _ in enumerate(sampler.track(ahead(loader)), 1):
        assert sampler.cursor == min(step * BATCH, N)
    assert (sampler.epoch, sampler.cursor) == (1, 0)


def test_only_what_is_tracked_moves_the_cursor():
    sampler, loader = pair()
    for _ in loader:
        assert (sampler.epoch, sampler.cursor) == (0, 0) or sampler.epoch == 1
    assert (sampler.epoch, sampler.cursor) == (1, 0)
    for _ in loader:
        break
    assert indices(loader) == KeyedPermutation(N, 3, 2)[:].tolist()


def test_a_loader_of_another_sampler_is_refused():
    sampler, _ = pair()
    other = DataLoader(Keyed(N), BATCH, collate_fn=list)
    with pytest.raises(RuntimeError, match="batch for each that it draws from this"):
        next(sampler.track(other))
    with pytest.raises(RuntimeError, match="batch for each that it draws from this"):
        next(sampler.track([]))


def test_loading_ends_a_tracked_pass():
    sampler, loader = pair()
    batches = sampler.track(loader)
    next(batches)
    sampler.load_state_dict({"epoch": 0, "cursor": 8})
    with pytest.raises(RuntimeError, match="began before load_state_dict"):
        next(batches)
    assert (sampler.epoch, sampler.cursor) == (0, 8)


class Foreign(Dataset):
    """A dataset with an epoch of its own, which forked workers must find set."""

    def __init__(self, n):
        self.n = n
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index, self.epoch


class Hidden(Dataset):
    """A wrapper that nobody knows."""

    def __init__(self, inner):
        self.inner = inner

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        return self.inner[index]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "dataset",
    [
        Subset(Keyed(30), range(0, 30, 2)),
        ConcatDataset([Keyed(7), Hidden(Subset(Keyed(9), range(8)))]),
        ConcatDataset([Foreign(5), Foreign(5)]),
    ],
    ids=["subset", "concat", "foreign"],
)
def test_it_hands_the_epoch_to_what_it_was_given(workers, dataset):
    sampler, loader = pair(workers, dataset)
    for epoch in (0, 1, 5):
        sampler.set_epoch(epoch)
        assert {sample[1] for sample in flat(sampler.track(loader))} == {epoch}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_takes_it_as_its_batch_sampler(workers):
    dataset = Keyed(N, seed=3)
    sampler = StatefulBatchSampler(dataset, BATCH, drop_last=True)
    loader = StatefulDataLoader(
        dataset, batch_sampler=sampler, num_workers=workers, collate_fn=list
    )
    assert loader.batch_sampler is sampler
    assert len(loader) == 5
    batches = iter(loader)
    head = [next(batches)]
    assert sampler.state_dict() == loader.state_dict()
    assert indices(head + list(batches)) == KeyedPermutation(N, 3, 0)[:20].tolist()
    with pytest.raises(ValueError, match="belong to the StatefulBatchSampler here"):
        StatefulDataLoader(dataset, batch_sampler=sampler, seed=1)


def test_the_sampler_inside_answers_set_epoch():
    loader = StatefulDataLoader(Keyed(N, seed=3), BATCH, shuffle=True, collate_fn=list)
    batches = iter(loader)
    loader.batch_sampler.sampler.set_epoch(4)
    assert loader.sampler is loader.batch_sampler.sampler
    assert list(loader.sampler) == KeyedPermutation(N, 3, 4)[:].tolist()
    assert len(loader.sampler) == N
    assert {sample[1] for sample in flat(batches)} == {4}
    assert (loader.batch_size, loader.drop_last) == (BATCH, False)
    assert loader.batch_sampler.batch_size == BATCH


class Dropout(Dataset):
    """Draws from the workers' own RNGs, which a plain loader seeds."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, int(torch.randint(2**60, ()))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_tracking_leaves_the_main_process_alone(workers, persistent):
    # Else what the model draws would depend on how often the run was resumed.
    sampler, loader = pair(workers, persistent_workers=persistent and workers > 0)
    before = torch.get_rng_state()
    for _ in range(2):
        assert len(indices(sampler.track(loader))) == N
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_of_a_tracked_loader_draw_anew_in_every_epoch():
    sampler, loader = pair(2, Dropout())
    first = [flat(sampler.track(loader)) for _ in range(2)]
    assert {sample[1] for sample in first[0]} & {sample[1] for sample in first[1]} == set()
    sampler, loader = pair(2, Dropout())
    assert [flat(sampler.track(loader)) for _ in range(2)] == first
