"""Ranks, simulated with ``rank=`` and ``world_size=``: the arithmetic of who gets what."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Keyed, KeyedStream, flat, indices
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

from seedcursor import KeyedPermutation, StatefulBatchSampler, StatefulDataLoader

N, BATCH, SEED = 46, 3, 5


def load(kind, rank, world_size, batch_size=BATCH, **options):
    dataset = KeyedStream(N, seed=SEED) if kind == "stream" else Keyed(N, seed=SEED)
    return StatefulDataLoader(
        dataset,
        batch_size,
        True if kind == "map" else None,
        sampler=RandomSampler(dataset) if kind == "sampler" else None,
        rank=rank,
        world_size=world_size,
        collate_fn=list,
        **options,
    )


def epoch_order(kind):
    return indices(load(kind, 0, 1))


@pytest.mark.parametrize("kind", ["map", "stream", "sampler"])
@pytest.mark.parametrize("saved", [1, 2, 3, 4])
@pytest.mark.parametrize("loaded", [1, 2, 3, 4])
def test_every_rank_resumes_with_what_is_left(kind, saved, loaded):
    order = epoch_order(kind)
    for step in range(1, N // (BATCH * saved) + 1):
        seen, states = [], []
        for rank in range(saved):
            loader = load(kind, rank, saved)
            seen += flat(batch for _, batch in zip(range(step), loader, strict=False))
            states.append(loader.state_dict())
        assert all(state == states[0] for state in states)
        cursor = states[0]["cursor"]
        assert cursor == step * BATCH * saved
        assert sorted(sample[0] for sample in seen) == sorted(order[:cursor])

        rest, steps = [], set()
        for rank in range(loaded):
            loader = load(kind, rank, loaded)
            loader.load_state_dict(states[rank % saved])
            batches = list(loader)
            steps.add(len(batches))
            rest += indices(batches)
            assert (loader.epoch, loader.cursor) == (1, 0)
        assert len(steps) == 1
        assert set(rest) == set(order[cursor:])
        assert 0 <= len(rest) - len(order[cursor:]) < loaded


@pytest.mark.parametrize("kind", ["map", "stream", "sampler"])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 11, 12, 13, 23])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_end_of_an_epoch(kind, n, world_size):
    def load(rank, **options):
        dataset = KeyedStream(n) if kind == "stream" else Keyed(n)
        # RandomSampler refuses an empty dataset.
        sampler = RandomSampler(dataset) if kind == "sampler" and n else None
        return StatefulDataLoader(
            dataset,
            BATCH,
            sampler=sampler,
            rank=rank,
            world_size=world_size,
            collate_fn=list,
            **options,
        )

    ranks = range(world_size)
    span = BATCH * world_size
    padded = [indices(load(rank)) for rank in ranks]
    steps = [len(list(load(rank))) for rank in ranks]
    assert steps == [-(-n // span)] * world_size
    assert set(sum(padded, [])) == set(range(n))
    assert len(sum(padded, [])) - n < world_size
    assert max(map(len, padded)) == min(map(len, padded))

    unpadded = [load(rank, pad=False) for rank in ranks]
    batches = [list(loader) for loader in unpadded]
    assert sorted(indices(sum(batches, []))) == list(range(n))
    assert max(map(len, batches)) - min(map(len, batches)) <= 1

    dropped = [list(load(rank, drop_last=True)) for rank in ranks]
    assert [len(batches) for batches in dropped] == [n // span] * world_size
    assert all(len(batch) == BATCH for batch in sum(dropped, []))

    if kind != "stream":
        assert [len(load(rank)) for rank in ranks] == steps
        assert [len(loader) for loader in unpadded] == [len(b) for b in batches]
        assert len(load(0, drop_last=True)) == n // span


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pad", [True, False])
def test_streams_with_skipped_records_keep_ranks_in_step(workers, pad):
    skipped = {0, 1, 2, 3, 6, 8, 10, 13, 16, 17, 18, 19, 20}
    ranks = []
    for rank in range(2):
        loader = StatefulDataLoader(
            KeyedStream(23, skipped),
            2,
            num_workers=workers,
            rank=rank,
            world_size=2,
            pad=pad,
            collate_fn=list,
        )
        ranks.append([[sample[0] for sample in batch] for batch in loader])
    if pad:
        # Steps are of four. Rank 0 has nothing left in the third, and in the last nothing but 22.
        assert ranks == [[[4], [9], [12, 14], [22]], [[5, 7], [9, 11], [15], [21]]]
    else:
        assert ranks == [[[4], [12, 14], [22]], [[5, 7], [9, 11], [15], [21]]]


@given(
    length=st.integers(1, 10**12),
    left=st.integers(1, 10**12) | st.integers(1, 100),
    batch_size=st.integers(1, 50),
    world_size=st.integers(1, 9),
    drop_last=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_random_steps_partition_the_positions(length, left, batch_size, world_size, drop_last):
    cursor = max(0, length - left)
    span = batch_size * world_size
    shares = []
    for rank in range(world_size):
        sampler = StatefulBatchSampler(
            length,
            batch_size,
            shuffle=False,
            drop_last=drop_last,
            rank=rank,
            world_size=world_size,
        )
        sampler.load_state_dict({"epoch": 0, "cursor": cursor})
        first = next(iter(sampler), None) if length - cursor >= span or not drop_last else None
        shares.append([] if first is None else first)
    step = range(cursor, min(cursor + span, length))
    if drop_last and len(step) < span:
        assert shares == [[]] * world_size
    elif step:
        dealt = sum(shares, [])
        assert set(dealt) == set(step)
        assert len(dealt) - len(step) < world_size
        assert len({len(share) for share in shares}) == 1


def test_one_step_of_all_ranks_is_the_step_of_one():
    order = KeyedPermutation(N, SEED, 2)[:]
    for rank in range(2):
        loader = load("map", rank, 2, 4)
        loader.set_epoch(2)
        assert [sample[0] for sample in next(iter(loader))] == order[:8][rank::2].tolist()


def test_the_launcher_is_asked_when_a_pass_begins(monkeypatch):
    loader = StatefulDataLoader(Keyed(8), 2, collate_fn=list)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(loader) == 2
    assert indices(loader) == [1, 3, 5, 7]
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ValueError, match="WORLD_SIZE='many'"):
        list(loader)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_plain_loaders_share_a_stream_between_ranks_and_workers(monkeypatch, method):
    monkeypatch.setenv("WORLD_SIZE", "3")
    seen = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        loader = DataLoader(
            KeyedStream(40, {7}),
            4,
            num_workers=2,
            multiprocessing_context=method,
            collate_fn=list,
        )
        mine = indices(loader)
        assert {index % 3 for index in mine} == {rank}
        seen += mine
    assert sorted(seen) == [k for k in range(40) if k != 7]


def test_a_sampler_that_deals_to_ranks_itself_is_refused():
    dataset = Keyed(8)
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    loader = StatefulDataLoader(dataset, 2, sampler=sampler, rank=0, world_size=2)
    with pytest.raises(ValueError, match="DistributedSampler with num_replicas=2"):
        next(iter(loader))
    alone = StatefulDataLoader(dataset, 2, sampler=sampler, collate_fn=list)
    assert len(indices(alone)) == 4
