"""Samplers with random access: the order of every position, and nothing more is asked for."""

import numpy as np
import pytest
from samples import Keyed
from torch.utils.data import DataLoader

from seedcursor import KeyedPermutation, KeyedSampler, StatefulDataLoader

N = 23


class Halves(KeyedSampler):
    """Every index of ``range(N)`` twice, shuffled; remembers what it was asked."""

    def __init__(self, seed=None):
        super().__init__(seed)
        self.asked = []

    def __len__(self):
        return 2 * N

    def at(self, seed, epoch, positions):
        assert positions.dtype == np.int64
        self.asked += positions.tolist()
        order = KeyedPermutation(2 * N, seed, epoch)
        return np.array([order[k] // 2 for k in positions.tolist()])


def loaded(sampler, batch_size=4, **options):
    return StatefulDataLoader(Keyed(N), batch_size, sampler=sampler, collate_fn=list, **options)


def samples(loader):
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_step_with_another_batch_size(num_workers):
    whole = loaded(Halves(), seed=5)
    epochs = [samples(whole) for _ in range(2)]
    assert [index for index, *_ in epochs[1]] == [
        k // 2 for k in KeyedPermutation(2 * N, seed=5, epoch=1)
    ]
    for cursor in range(0, 2 * N, 7):
        loader = loaded(Halves(), 5, seed=5, num_workers=num_workers)
        loader.load_state_dict({"epoch": 1, "cursor": cursor})
        assert samples(loader) == epochs[1][cursor:]
        assert loader.state_dict()["length"] == 2 * N


def test_ranks_share_every_position_and_ask_only_for_theirs():
    dealt = []
    for rank in range(3):
        sampler = Halves()
        loader = loaded(sampler, 3, rank=rank, world_size=3, pad=False)
        loader.load_state_dict({"epoch": 0, "cursor": 9})
        dealt += [index for index, *_ in samples(loader)]
        assert min(sampler.asked) >= 9
        assert len(sampler.asked) <= -(-(2 * N - 9) // 3) + 1
    expected = [index for index, *_ in samples(loaded(Halves()))][9:]
    assert sorted(dealt) == sorted(expected)


def test_a_seed_of_its_own_comes_before_the_loaders():
    order = [index for index, *_ in samples(loaded(Halves(seed=3), seed=8))]
    assert order == [k // 2 for k in KeyedPermutation(2 * N, seed=3)]


def test_a_plain_loader_has_the_same_order():
    sampler = Halves(seed=3)
    plain = DataLoader(range(N), batch_size=4, sampler=sampler)
    for epoch in (0, 2):
        sampler.set_epoch(epoch)
        ours = loaded(Halves(), seed=3)
        ours.set_epoch(epoch)
        assert [k for batch in plain for k in batch.tolist()] == [i for i, *_ in samples(ours)]


def test_what_is_missing_is_said():
    with pytest.raises(NotImplementedError, match="KeyedSampler must define __len__"):
        len(KeyedSampler())
    with pytest.raises(NotImplementedError, match=r"must define at\(seed, epoch, positions\)"):
        KeyedSampler().at(0, 0, np.arange(3))
    with pytest.raises(ValueError, match="seed"):
        KeyedSampler(seed=-1)
    with pytest.raises(ValueError, match="epoch"):
        Halves().set_epoch(2**32)


def test_an_index_is_asked_for_each_position():
    class Short(Halves):
        def at(self, seed, epoch, positions):
            return super().at(seed, epoch, positions)[:-1]

    with pytest.raises(ValueError, match="an index for each of 44 positions, got 43"):
        samples(loaded(Short()))
