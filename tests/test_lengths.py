"""Batches of similar length: what is in them, and that they are found again."""

import numpy as np
import pytest
from samples import Keyed, flat
from torch.utils.data import DataLoader

from seedcursor import LengthBatchSampler, StatefulDataLoader

N = 50
LENGTHS = np.random.default_rng(0).integers(0, 30, N)
BOUNDS = {
    "samples": {"batch_size": 4, "window": 18},
    "tokens": {"max_tokens": 64, "window": 17},
    "both": {"batch_size": 4, "max_tokens": 64},
}
bounded = pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)


def loaded(bounds, sampler_seed=None, seed=3, **options):
    sampler = LengthBatchSampler(LENGTHS, **bounds, seed=sampler_seed)
    return StatefulDataLoader(
        Keyed(N), batch_sampler=sampler, collate_fn=list, seed=seed, **options
    )


def batches(loader):
    return [[index for index, *_ in batch] for batch in loader]


@bounded
def test_each_record_comes_once_in_batches_within_bounds(bounds):
    loader = loaded(bounds)
    epochs = [batches(loader) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    for epoch in epochs:
        assert sorted(flat(epoch)) == list(range(N))
        for batch in epoch:
            assert len(batch) <= bounds.get("batch_size", N)
            padded = len(batch) * LENGTHS[batch].max()
            assert padded <= bounds.get("max_tokens", 10**9)
        longest = [LENGTHS[batch].max() for batch in epoch]
        assert longest != sorted(longest, reverse=True)


@bounded
def test_little_is_padded(bounds):
    lengths = np.random.default_rng(1).integers(1, 1_000, 5_000)
    bounds = {name: bound * 16 for name, bound in bounds.items()} | {"window": 2_000}
    sampler = LengthBatchSampler(lengths, **bounds)
    padded = sum(len(batch) * lengths[batch].max() for batch in sampler)
    assert padded < 1.1 * lengths.sum()


def test_the_number_of_batches():
    sampler = LengthBatchSampler(LENGTHS, batch_size=4)
    assert len(sampler) == len(list(sampler)) == 13
    assert len(loaded(BOUNDS["samples"], rank=0, world_size=3)) == 5
    with pytest.raises(TypeError, match="the number of batches differs from epoch to epoch"):
        len(LengthBatchSampler(LENGTHS, max_tokens=64))
    with pytest.raises(TypeError, match="the number of batches differs"):
        len(loaded(BOUNDS["both"]))


@bounded
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_batch(bounds, num_workers):
    whole = loaded(bounds)
    epochs = [flat(whole) for _ in range(3)]
    whole.set_epoch(1)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole)][:-1]
    for state in states[:: 1 + 4 * (num_workers > 0)]:
        loader = loaded(bounds, num_workers=num_workers)
        loader.load_state_dict(state)
        assert flat(loader) == epochs[1][state["cursor"] :]
        assert flat(loader) == epochs[2]
        assert loader.state_dict()["length"] == N


def test_workers_may_be_spawned():
    bounds = {"max_tokens": 60}
    spawned = loaded(bounds, num_workers=2, multiprocessing_context="spawn")
    assert list(spawned) == list(loaded(bounds))


@bounded
def test_goes_on_with_other_ranks_and_within_a_batch(bounds):
    whole = flat(loaded(bounds))
    for cursor in (0, 7, 29):
        dealt = []
        for rank in range(3):
            loader = loaded(bounds, rank=rank, world_size=3, pad=False)
            loader.load_state_dict({"epoch": 0, "cursor": cursor})
            dealt.append(batches(loader))
        assert sorted(flat(flat(dealt))) == sorted(index for index, *_ in whole[cursor:])
        state = loader.state_dict()
        assert state == loader.state_dict() | {"epoch": 1, "cursor": 0}
    full = loaded(bounds)
    full.load_state_dict({"epoch": 0, "cursor": 7})
    turns = [batch for step in zip(*dealt, strict=False) for batch in step]
    full.load_state_dict({"epoch": 0, "cursor": 29})
    assert batches(full)[: len(turns)] == turns
    padded = loaded(bounds, rank=2, world_size=3)
    padded.load_state_dict({"epoch": 0, "cursor": 29})
    assert len(batches(padded)) == max(map(len, dealt))


@bounded
def test_a_resume_skips_no_batches(bounds):
    class Counted(LengthBatchSampler):
        yielded = 0

        def batches(self, seed, epoch, start):
            for batch in super().batches(seed, epoch, start):
                self.yielded += 1
                yield batch

    sampler = Counted(LENGTHS, **bounds)
    loader = StatefulDataLoader(Keyed(N), batch_sampler=sampler, collate_fn=list)
    loader.load_state_dict({"epoch": 2, "cursor": 40})
    assert len(batches(loader)) == sampler.yielded


def test_a_seed_of_its_own_comes_before_the_loaders():
    bounds = BOUNDS["samples"]
    assert batches(loaded(bounds, 3, seed=8)) == batches(loaded(bounds))
    assert batches(loaded(bounds, seed=8)) != batches(loaded(bounds))


@bounded
def test_a_plain_loader_has_the_same_batches(bounds):
    sampler = LengthBatchSampler(LENGTHS, **bounds, seed=3)
    plain = DataLoader(range(N), batch_sampler=sampler)
    ours = loaded(bounds)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert [batch.tolist() for batch in plain] == batches(ours)


@pytest.mark.parametrize(
    ("lengths", "options", "error", "words"),
    [
        (LENGTHS, {}, ValueError, "batch_size, max_tokens or both must be given, got neither"),
        ([1.5], {"batch_size": 2}, TypeError, "lengths must be integers, one for each record, got"),
        ([], {"batch_size": 2}, ValueError, "lengths must be in one dimension and not empty"),
        ([[1]], {"batch_size": 2}, ValueError, r"lengths must be .* got the shape \(1, 1\)"),
        ([3, -1], {"batch_size": 2}, ValueError, "lengths must not be negative, got -1 at index 1"),
        ([2**63], {"batch_size": 2}, ValueError, "lengths must be below .* at index 0"),
        (["ab", [1]], {"batch_size": 2}, TypeError, "lengths must be integers, one for each"),
        ([3], {"batch_size": 0}, ValueError, "batch_size must be an integer in"),
        ([3], {"max_tokens": "x"}, TypeError, "max_tokens must be an integer in"),
        ([3], {"batch_size": 1, "window": 0}, ValueError, "window must be an integer in"),
        ([3], {"batch_size": 1, "seed": -1}, ValueError, "seed must be an integer in"),
        ([3, 9, 4], {"max_tokens": 8}, ValueError, "got 8; record 1 has 9: leave it out"),
    ],
)
def test_nonsense_is_refused(lengths, options, error, words):
    with pytest.raises(error, match=words):
        LengthBatchSampler(lengths, **options)


@pytest.mark.parametrize("other", [{"batch_size": 5}, {"window": 19}, {"seed": 8}])
def test_a_state_of_other_batches_is_refused(other):
    bounds = {"batch_size": 4, "window": 40}
    state = loaded(bounds).state_dict()
    sampler = LengthBatchSampler(LENGTHS, **(bounds | other))
    loader = StatefulDataLoader(Keyed(N), batch_sampler=sampler, seed=3)
    with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
        loader.load_state_dict(state)
    loader.load_state_dict({"epoch": 0, "cursor": 4})


def test_a_sampler_for_other_lengths_is_refused():
    sampler = LengthBatchSampler(LENGTHS[1:], batch_size=2)
    with pytest.raises(
        ValueError, match="batch_sampler must be made for the 50 records of the dat"
    ):
        StatefulDataLoader(LENGTHS, batch_sampler=sampler)
    with pytest.raises(
        TypeError, match="sampler must yield indices, got a LengthBatchSampler; pass"
    ):
        StatefulDataLoader(LENGTHS[1:], sampler=sampler)


def test_nonsense_positions_are_refused():
    loader = loaded(BOUNDS["samples"])
    with pytest.raises(ValueError, match="cursor must be at most the length 50"):
        loader.load_state_dict({"epoch": 0, "cursor": 51})
    with pytest.raises(ValueError, match="epoch must be"):
        LengthBatchSampler(LENGTHS, batch_size=2).set_epoch(-1)
