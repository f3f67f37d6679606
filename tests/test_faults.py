"""Records that raise or are skipped: passed over, reported, and nobody else moves."""

import logging

import pytest
import torch
from samples import Keyed, KeyedStream, flat, indices
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, Subset

from seedcursor import (
    SKIP,
    SeededDataset,
    StatefulBatchSampler,
    StatefulDataLoader,
    TolerantDataset,
    TolerantIterableDataset,
)

N, BROKEN = 40, (3, 8, 9, 10, 11, 30)


class Broken(Keyed):
    """Some records raise, after a draw."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        if index in BROKEN:
            raise OSError(5, "truncated", f"{index}.png")
        return sample


class Sieve(Keyed):
    """Some records are not wanted."""

    def __getitem__(self, index):
        return SKIP if index in BROKEN else super().__getitem__(index)


class Jittered:
    """Draws from a global RNG, and then may raise."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        drawn = float(torch.rand(()))
        if index in BROKEN:
            raise OSError(5, "truncated", f"{index}.png")
        return index, drawn


def load(dataset, batch_size=4, **options):
    return StatefulDataLoader(dataset, batch_size, collate_fn=list, **options)


def logged(caplog):
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dataset", [TolerantDataset(Broken(N), at_most=6), Sieve(N)])
def test_the_others_stay_where_they_were(workers, dataset):
    healthy = [list(batch) for batch in load(Keyed(N), shuffle=True)]
    kept = [[sample for sample in batch if sample[0] not in BROKEN] for batch in healthy]
    assert list(load(dataset, shuffle=True, num_workers=workers)) == kept
    assert list(load(dataset, num_workers=workers))[2] == [Keyed(N)[k] for k in range(12, 16)]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_import_anew_report_to_the_main_process(method, caplog):
    dataset = ConcatDataset(
        [TolerantDataset(Subset(Broken(N), [7, 8]), 7), TolerantDataset(Broken(N), 7)]
    )
    loader = load(dataset, num_workers=2, multiprocessing_context=method)
    assert indices(loader) == [7, *(k for k in range(N) if k not in BROKEN)]
    expected = [1, *BROKEN]
    assert len(caplog.records) == len(expected) == 7
    for record, index in zip(caplog.records, expected, strict=True):
        assert (record.name, record.levelno) == ("seedcursor", logging.WARNING)
        words = record.getMessage()
        assert words.startswith(f"passed over dataset[{index}] in epoch 0: OSError: [Errno 5]")
        assert f"'{index or 8}.png'" in words or index == 1


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 4, None])
def test_a_resume_at_every_step(workers, batch_size, caplog):
    caplog.set_level(logging.CRITICAL)
    dataset = TolerantDataset(Broken(N), at_most=6)

    def tolerant():
        options = {"num_workers": workers, "shuffle": True}
        return StatefulDataLoader(dataset, batch_size, collate_fn=_same, **options)

    whole = list(tolerant())
    seen, loader = [], tolerant()
    states = []
    for batch in loader:
        seen.append(batch)
        states.append(loader.state_dict())
    assert seen == whole
    for k in range(0, len(states) - 1, 1 if workers == 0 else 7):
        loader = tolerant()
        loader.load_state_dict(states[k])
        assert list(loader) == whole[k + 1 :]
        assert (loader.epoch, loader.cursor) == (1, 0)


def _same(samples):
    return samples


@pytest.mark.parametrize("workers", [0, 2])
def test_one_too_many_stops_before_its_batch(workers, caplog):
    loader = load(TolerantDataset(Broken(N), at_most=3), num_workers=workers)
    batches, seen = iter(loader), []
    with pytest.raises(RuntimeError, match=r"dataset\[10\] raised in epoch 0") as caught:
        for batch in batches:
            seen.append(batch)
    words = str(caught.value)
    assert "at most 3" in words
    assert "Traceback" in words
    assert "OSError: [Errno 5] truncated: '10.png'" in words
    assert [int(line.split("[")[1].split("]")[0]) for line in logged(caplog)] == [3, 8, 9]
    assert (loader.epoch, loader.cursor) == (0, 8)
    assert indices(seen) == [0, 1, 2, 4, 5, 6, 7]
    # The count is a pass's own, so a resume meets the same record again.
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(RuntimeError, match=r"dataset\[11\] raised"):
        list(loader)


def test_each_epoch_counts_anew(caplog):
    loader = load(TolerantDataset(Broken(N), at_most=6), num_workers=1, persistent_workers=True)
    for _ in range(3):
        assert len(flat(loader)) == N - 6
    assert len(caplog.records) == 18
    assert sum("in epoch 2" in line for line in logged(caplog)) == 6


def test_a_batch_that_nobody_takes_is_not_reported(caplog):
    loader = load(TolerantDataset(Broken(N), at_most=6), num_workers=2)
    for _ in loader:
        break  # the workers are ahead by now, and have met 8 to 11
    assert len(caplog.records) == 1


def test_draws_from_a_global_rng_are_kept_apart_by_the_wrapper_around():
    jittered = Jittered()
    tolerant = SeededDataset(TolerantDataset(jittered, at_most=6), seed=3)
    seeded = SeededDataset(jittered, seed=3)
    samples = flat(load(tolerant, num_workers=2))
    assert samples == [seeded[k] for k in range(N) if k not in BROKEN]
    inside = TolerantDataset(seeded, at_most=6)
    assert flat(load(inside, seed=3)) == samples


def test_elsewhere_it_raises():
    dataset = TolerantDataset(Broken(N), at_most=6)
    with pytest.raises(OSError, match="truncated"):
        dataset[3]
    with pytest.raises(OSError, match="truncated"):
        list(DataLoader(dataset, collate_fn=list))
    assert (len(dataset), dataset.n, dataset[4]) == (N, N, Keyed(N)[4])


def test_a_replay_is_the_batch_that_was(caplog):
    loader = load(TolerantDataset(Broken(N), at_most=6))
    assert [sample[0] for sample in loader.replay(epoch=0, cursor=0)] == [0, 1, 2]
    with pytest.raises(ValueError, match="no batch starts at"):
        loader.replay(epoch=0, cursor=8)
    assert caplog.records == []


def dealt(world_size, batch_size, make, **options):
    """What each rank gets, batch by batch."""
    return [
        [
            [sample[0] for sample in batch]
            for batch in load(make(), batch_size, rank=rank, world_size=world_size, **options)
        ]
        for rank in range(world_size)
    ]


ORDERS = {
    "in order": lambda dataset: {},
    "shuffled": lambda dataset: {"shuffle": True},
    "sampler": lambda dataset: {"sampler": RandomSampler(dataset)},
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("world_size", "batch_size", "workers"),
    [*((size, batch, 0) for size in (2, 3, 5) for batch in (1, 2, 4)), (2, 1, 2)],
)
def test_ranks_stay_in_step(order, world_size, batch_size, workers):
    dataset = Sieve(N)
    options = ORDERS[order](dataset)
    ranks = dealt(world_size, batch_size, lambda: dataset, num_workers=workers, **options)
    assert len({len(batches) for batches in ranks}) == 1
    assert all(batch for batches in ranks for batch in batches)
    alone = indices(load(dataset, batch_size, **options))
    assert {k for batches in ranks for batch in batches for k in batch} == set(alone)
    # Without padding nobody gets anything twice.
    ranks = dealt(world_size, batch_size, lambda: dataset, pad=False, **options)
    assert sorted(k for batches in ranks for batch in batches for k in batch) == sorted(alone)


def test_what_a_rank_gets_that_has_nothing_left():
    # Steps are of two. Of 8 and 9 nothing is left, nor of 10 and 11, so nobody makes those; for
    # rank 1 nothing of 2 and 3 is, so it gets what is left of the step, and so does rank 0 of 30.
    ranks = dealt(2, 1, lambda: Sieve(N))
    assert ranks[0] == [[k] for k in (0, 2, 4, 6, *range(12, 30, 2), 31, *range(32, N, 2))]
    assert ranks[1] == [[k] for k in (1, 2, 5, 7, *range(13, 30, 2), 31, *range(33, N, 2))]
    loader = load(Sieve(N), 1, rank=1, world_size=2)
    assert loader.replay(epoch=0, cursor=2)[0][0] == 2


def test_batches_of_a_batch_sampler():
    def make(rank):
        sampler = StatefulBatchSampler(N, 2, shuffle=False, rank=rank, world_size=2)
        return [[s[0] for s in b] for b in load(Sieve(N), 1, batch_sampler=sampler)]

    first, second = make(0), make(1)
    assert len(first) == len(second) == 9
    foreign = [[3, 8], [4, 5], [6, 7], [9, 10], [11, 30], [30, 3]]
    ranks = [
        [
            [sample[0] for sample in batch]
            for batch in load(Sieve(N), 1, batch_sampler=foreign, rank=rank, world_size=2)
        ]
        for rank in range(2)
    ]
    assert ranks == [[[4], [6, 7]], [[4, 5], [6]]]


def test_arguments_are_checked():
    with pytest.raises(TypeError, match="base must be a map-style dataset"):
        TolerantDataset(3, at_most=1)
    with pytest.raises(ValueError, match="at_most must be an integer >= 0, got -1"):
        TolerantDataset([1], at_most=-1)


class BrokenStream(KeyedStream):
    """Some records raise, after a draw."""

    def sample(self, record, index):
        sample = super().sample(record, index)
        if index in BROKEN:
            raise OSError(5, "truncated", f"{index}.txt")
        return sample


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_stream_goes_on_as_if_they_were_skipped(workers, world_size, caplog):
    for rank in range(world_size):
        options = {"num_workers": workers, "rank": rank, "world_size": world_size}
        tolerant = load(TolerantIterableDataset(BrokenStream(N, seed=4), at_most=9), **options)
        skipping = load(KeyedStream(N, BROKEN, seed=4), **options)
        assert [list(tolerant), list(tolerant)] == [list(skipping), list(skipping)]
        assert tolerant.state_dict() == skipping.state_dict()
    named = {line.split(": OSError")[0] for line in logged(caplog)}
    assert named == {
        f"passed over sample(record, {k}) in epoch {e}" for k in BROKEN for e in (0, 1)
    }


def test_one_too_many_of_a_stream(caplog):
    loader = load(TolerantIterableDataset(BrokenStream(N), at_most=3), num_workers=2)
    with pytest.raises(RuntimeError, match=r"sample\(record, 10\) raised in epoch 0"):
        list(loader)
    assert (loader.epoch, loader.cursor, len(caplog.records)) == (0, 8, 3)


def test_a_tolerant_stream_is_its_base_elsewhere():
    base = KeyedStream(N, seed=4)
    tolerant = TolerantIterableDataset(base, at_most=0)
    tolerant.set_epoch(2)
    assert list(tolerant) == list(base)
    assert {sample[1] for sample in tolerant} == {2}
    with pytest.raises(OSError, match="truncated"):
        list(TolerantIterableDataset(BrokenStream(N), at_most=6))
    with pytest.raises(TypeError, match="base must be a StatefulIterableDataset, got list"):
        TolerantIterableDataset([1], at_most=1)
    with pytest.raises(TypeError, match="has no len"):
        len(tolerant)
