"""4,096 ranks of 8 workers and a trillion samples, on paper: no process, the arithmetic alone."""

import random

import numpy as np
import pytest

from seedcursor import KeyedPermutation, StatefulBatchSampler

N, BATCH = 10**12, 256
MANY, FEWER = 4096, 1000
WORKERS = 8


def batches(rank, ranks, cursor, **options):
    """A rank's batches from a cursor on, and the state that follows the first."""
    sampler = StatefulBatchSampler(N, BATCH, rank=rank, world_size=ranks, **options)
    sampler.load_state_dict({"epoch": 3, "cursor": cursor})
    return sampler, iter(sampler)


def step(ranks, cursor, **options):
    """The indices of all ranks for the step at a cursor, a row for each rank."""
    return [next(batches(rank, ranks, cursor, **options)[1], []) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [MANY, FEWER])
def test_a_random_step_partitions_its_positions(ranks):
    span = ranks * BATCH
    cursor = random.Random(ranks).randrange(N - span)
    shares = step(ranks, cursor, shuffle=False)
    dealt = np.array(shares)
    assert dealt.shape == (ranks, BATCH)
    assert np.array_equal(np.sort(dealt, axis=None), np.arange(cursor, cursor + span))


def test_a_shuffled_step_is_the_orders_slice():
    cursor = 123_456_789_012
    order = KeyedPermutation(N, 0, 3)
    shares = np.array(step(FEWER, cursor))
    expected = order[cursor : cursor + FEWER * BATCH].reshape(BATCH, FEWER)
    assert np.array_equal(shares, expected.T)
    assert len(np.unique(shares)) == FEWER * BATCH


def tracked(rank, ranks, cursor):
    """A rank's batch, and where the rank then stands, by its own count."""
    sampler, _ = batches(rank, ranks, cursor, shuffle=False)
    batch = next(sampler.track(sampler))
    return batch, sampler.state_dict()


def test_from_many_ranks_to_fewer_and_back_loses_nothing():
    start = cursor = random.Random(0).randrange(N - 10**8)
    dealt = []
    for ranks in (MANY, FEWER, MANY):
        shares, states = zip(*(tracked(rank, ranks, cursor) for rank in range(ranks)), strict=True)
        assert all(state == states[0] for state in states)
        cursor = states[0]["cursor"]
        dealt.append(np.array(shares).ravel())
    trained = np.sort(np.concatenate(dealt))
    assert np.array_equal(trained, np.arange(start, start + (2 * MANY + FEWER) * BATCH))


def test_the_end_of_the_epoch_is_shared_out():
    left = 3 * MANY + 17
    shares = step(MANY, N - left, shuffle=False)
    assert {len(share) for share in shares} == {4}
    dealt = np.sort(np.array(shares), axis=None)
    assert np.array_equal(np.unique(dealt), np.arange(N - left, N))
    unpadded = [share for share in step(MANY, N - left, shuffle=False, pad=False) if share]
    assert sorted(index for share in unpadded for index in share) == list(range(N - left, N))


def test_eight_workers_of_a_rank_take_its_batches_in_turn():
    _, drawn = batches(4095, MANY, 0, shuffle=False)
    ahead = [next(drawn) for _ in range(2 * WORKERS)]
    by_worker = [ahead[worker::WORKERS] for worker in range(WORKERS)]
    together = sorted(index for own in by_worker for batch in own for index in batch)
    assert together == list(range(4095, 2 * WORKERS * MANY * BATCH, MANY))
