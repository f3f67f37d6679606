"""Samplers by weight and by class: how often, in which order, and with draws of their own."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from samples import Keyed, flat
from scipy import stats
from torch.utils.data import DataLoader

from seedcursor import (
    BalancedSampler,
    Mixture,
    StatefulDataLoader,
    WeightedSampler,
    WeightedShuffle,
)

N = 12
WEIGHTS = [0, 1, 2, 0.5, 4, 0, 1e-3, 7, 3, 3, 1, 0.25]
LABELS = [2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 1, 1]
MAKE = {
    "weighted": lambda: WeightedSampler(WEIGHTS, num_samples=37),
    "shuffle": lambda: WeightedShuffle(WEIGHTS),
    "balanced": lambda: BalancedSampler(LABELS, num_samples=37),
}
made = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


class Anything:
    """As many records as a sampler likes."""

    def __getitem__(self, index):
        return index


def drawn(sampler, epoch=0, seed=5):
    """The records of an epoch, as a loader draws them."""
    loader = StatefulDataLoader(Anything(), 64, sampler=sampler, collate_fn=list, seed=seed)
    loader.set_epoch(epoch)
    return flat(loader)


def loaded(sampler, batch_size=4, **options):
    return StatefulDataLoader(
        Keyed(N), batch_size, sampler=sampler, collate_fn=list, seed=5, **options
    )


def fits(counts, shares):
    """Whether counts can be of these shares; a wrong order would have a chance of 1e-300."""
    counts, shares = np.array(counts), np.array(shares, dtype=float)
    if len(counts) == 1:
        return True
    return stats.chisquare(counts, shares / shares.sum() * counts.sum()).pvalue > 1e-4


@made
def test_any_position_is_found_by_itself(make):
    sampler = make()
    length = len(sampler)
    whole = list(sampler.at(3, 1, np.arange(length)))
    backwards = np.arange(length)[::-1].copy()
    assert list(make().at(3, 1, backwards)) == whole[::-1]
    for k in range(length):
        assert list(sampler.at(3, 1, np.array([k]))) == [whole[k]]
    assert list(sampler.at(3, 2, np.arange(length))) != whole
    assert list(sampler.at(4, 1, np.arange(length))) != whole
    assert not len(sampler.at(3, 1, np.arange(0)))


@made
@pytest.mark.parametrize("shape", [(0, "fork", 5, 3), (2, "fork", 3, 2)])
def test_it_does_not_depend_on_workers_batches_or_ranks(make, shape):
    workers, method, batch_size, world_size = shape
    whole = loaded(make())
    for expected in [flat(whole), flat(whole)]:
        epoch, samples = expected[0][1], []
        for rank in range(world_size):
            loader = loaded(
                make(),
                batch_size,
                num_workers=workers,
                multiprocessing_context=method if workers else None,
                rank=rank,
                world_size=world_size,
                pad=False,
            )
            loader.set_epoch(epoch)
            samples += flat(loader)
        assert sorted(samples) == sorted(expected)


def test_workers_may_be_spawned():
    spawned = loaded(MAKE["weighted"](), 7, num_workers=1, multiprocessing_context="spawn")
    assert flat(spawned) == flat(loaded(MAKE["weighted"]()))


@made
def test_resumes_at_every_step_with_another_batch_size(make):
    whole = loaded(make())
    first, second = flat(whole), flat(whole)
    whole.set_epoch(1)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole)][:-1]
    for state in states:
        loader = loaded(make(), 3)
        loader.load_state_dict(state)
        assert flat(loader) == second[state["cursor"] :]
    loader.load_state_dict({"epoch": 0, "cursor": len(first) - 5})
    assert flat(loader) == first[-5:]


@pytest.mark.parametrize("make", [MAKE["weighted"], MAKE["balanced"]])
def test_a_record_that_is_drawn_again_draws_apart(make):
    samples = flat(loaded(make()))
    assert max(Counter(index for index, *_ in samples).values()) > 2
    assert len({draw for *_, draw in samples}) == len(samples)


@pytest.mark.parametrize(
    "weights",
    [
        WEIGHTS,
        [1] * 7,
        [1e-9, 1e9, 1e9],
        [1, 0],
        [5.0],
        [1, 2, 3],
        [4, 4, 4, 2, 0, 4, 0, 2],
        [1e307] * 3,
        [0, 5e-324],
    ],
)
def test_weights_are_how_often(weights):
    records = drawn(WeightedSampler(weights, num_samples=50_000))
    counts = np.bincount(records, minlength=len(weights))
    positive = np.array(weights) > 0
    assert counts[~positive].sum() == 0
    often = counts[positive][np.array(weights)[positive] / sum(weights) > 1e-4]
    assert fits(often, [weight for weight in weights if weight / sum(weights) > 1e-4])


def test_many_weights_are_how_often():
    weights = np.random.default_rng(0).random(2_000) ** 3
    counts = np.bincount(drawn(WeightedSampler(weights, 400_000)), minlength=2_000)
    for group in range(4):  # neighbours together, and every fourth, so that each is expected often
        assert fits(counts.reshape(100, 20).sum(1), weights.reshape(100, 20).sum(1))
        chosen = np.flatnonzero((np.arange(2_000) % 4 == group) & (weights > 0.05))
        assert fits(counts[chosen], weights[chosen])


def test_weighted_draws_are_independent_of_each_other():
    first, second = (drawn(WeightedSampler([1, 2, 3], 30_000), epoch) for epoch in (0, 1))
    shares = {(a, b): (a + 1) * (b + 1) for a in range(3) for b in range(3)}
    for ones, others in [(first[::2], first[1::2]), (first, second)]:
        pairs = Counter(zip(ones, others, strict=True))
        assert fits([pairs[pair] for pair in shares], list(shares.values()))


def test_a_weighted_shuffle_has_each_record_once():
    positive = [k for k, weight in enumerate(WEIGHTS) if weight]
    for epoch in range(3):
        assert sorted(drawn(WeightedShuffle(WEIGHTS), epoch)) == positive
    assert drawn(WeightedShuffle(WEIGHTS, num_samples=4)) == drawn(WeightedShuffle(WEIGHTS))[:4]
    extreme = WeightedShuffle([0, 5e-324, 1e-300, 1, 1e300])
    assert drawn(extreme) == [4, 3, 2, 1]


def test_a_weighted_shuffle_draws_from_those_that_are_left():
    weights = [1, 2, 4, 0.5]
    sampler = WeightedShuffle(weights)
    pairs = Counter(tuple(sampler.at(5, epoch, np.arange(2))) for epoch in range(6_000))
    total = sum(weights)
    shares = {
        (a, b): weights[a] / total * weights[b] / (total - weights[a])
        for a, b in itertools.permutations(range(4), 2)
    }
    assert fits([pairs[pair] for pair in shares], list(shares.values()))


def test_a_plain_loader_has_the_same_weighted_shuffle():
    sampler = WeightedShuffle(WEIGHTS, seed=5)
    plain = DataLoader(range(N), batch_size=4, sampler=sampler)
    for epoch in (0, 2):
        sampler.set_epoch(epoch)
        assert [k for batch in plain for k in batch.tolist()] == drawn(
            WeightedShuffle(WEIGHTS), epoch
        )


def test_each_round_has_each_class_once():
    labels = np.array(LABELS)
    sampler = BalancedSampler(labels)
    assert len(sampler) == 12
    assert len(BalancedSampler(LABELS[1:])) == 12
    rounds = np.concatenate([labels[drawn(sampler, epoch)] for epoch in range(500)]).reshape(-1, 3)
    assert (np.sort(rounds, axis=1) == [0, 1, 2]).all()
    orders = Counter(map(tuple, rounds.tolist()))
    assert fits([orders[order] for order in itertools.permutations(range(3))], [1] * 6)
    partial = np.bincount(labels[drawn(BalancedSampler(LABELS, num_samples=37))])
    assert sorted(partial) == [12, 12, 13]


def test_each_class_is_read_through_before_it_repeats():
    labels, sampler = np.array(LABELS), BalancedSampler(LABELS)
    records = np.concatenate([drawn(sampler, epoch) for epoch in range(21)])
    for number, size in enumerate(np.bincount(labels)):
        own = records[labels[records] == number]
        assert len(own) == 84  # 21 epochs of 4 rounds
        turns = own.reshape(-1, size)
        assert (np.sort(turns, axis=1) == np.flatnonzero(labels == number)).all()
        assert len({tuple(turn) for turn in turns.tolist()}) > 1


@pytest.mark.parametrize("num_samples", [1, 2, 5, 16])
def test_rounds_go_on_from_epoch_to_epoch(num_samples):
    labels, sampler = np.array(LABELS), BalancedSampler(LABELS, num_samples=num_samples)
    records = np.concatenate([drawn(sampler, epoch) for epoch in range(240 // num_samples)])
    whole = len(records) // 3 * 3
    assert (np.sort(labels[records[:whole]].reshape(-1, 3), axis=1) == [0, 1, 2]).all()
    for number, size in enumerate(np.bincount(labels)):
        own = records[labels[records] == number]
        turns = own[: len(own) // size * size].reshape(-1, size)
        assert (np.sort(turns, axis=1) == np.flatnonzero(labels == number)).all()
    assert [drawn(sampler, 7)[k] for k in range(num_samples)] == [
        sampler.at(5, 7, np.array([k]))[0].index for k in range(num_samples)
    ]


def test_a_class_that_is_read_through_too_often():
    sampler = BalancedSampler([0, 1, 1], num_samples=2**30)
    assert len(sampler.at(0, 7, np.arange(4))) == 4
    with pytest.raises(ValueError, match=r"class must be read through less than 2\*\*32 times"):
        sampler.at(0, 8, np.arange(4))


def test_many_classes_and_many_ranks():
    labels = np.repeat(np.arange(1_100), 3)
    sampler = BalancedSampler(labels, num_samples=1_100 * 4_000)
    strided = np.arange(1_000) * 4_400
    own = sampler.at(0, 0, strided)
    assert [sampler.at(0, 0, strided[[k]])[0] for k in (0, 500, 999)] == [
        own[k] for k in (0, 500, 999)
    ]


@pytest.mark.parametrize(
    "labels",
    [LABELS, torch.tensor(LABELS), np.array(LABELS, np.uint8), [f"class{k}" for k in LABELS]],
)
def test_labels_of_many_kinds(labels):
    assert drawn(BalancedSampler(labels)) == drawn(BalancedSampler(LABELS))
    assert drawn(WeightedSampler(torch.tensor(WEIGHTS))) == drawn(
        WeightedSampler(np.array(WEIGHTS, np.float32))
    )


@pytest.mark.parametrize("sampler", [WeightedSampler, WeightedShuffle])
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["abc"], TypeError, "weights must be numbers, one for each record, got 'abc'"),
        ([[]], ValueError, r"weights must be in one dimension and not empty, got the shape \(0,\)"),
        ([[[1, 2]]], ValueError, r"weights must be in one dimension .* got the shape \(1, 2\)"),
        ([[1, -2]], ValueError, "weights must be finite and not negative, got -2.0 at index 1"),
        ([[float("nan")]], ValueError, "weights must be finite .* got nan at index 0"),
        ([[0, 0]], ValueError, "weights must have one above 0, got 2 times 0"),
        ([[1, 1], 0], ValueError, "num_samples must be an integer in .1, .* got 0"),
        ([[1, 1], 1.5], TypeError, "num_samples must be an integer"),
        ([[1, 1], 1, -1], ValueError, "seed must be an integer"),
    ],
)
def test_nonsense_weights_are_refused(sampler, arguments, error, words):
    with pytest.raises(error, match=words):
        sampler(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([[0.5, 1.5]], TypeError, "labels must be ints or strings, one for each record, got"),
        ([[None]], TypeError, "labels must be ints or strings"),
        ([[[1], [2]]], ValueError, r"labels must be in one dimension .* got the shape \(2, 1\)"),
        ([np.array([], int)], ValueError, "labels must be in one dimension and not empty"),
        ([[1, 2], 0], ValueError, "num_samples must be an integer in"),
    ],
)
def test_nonsense_labels_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        BalancedSampler(*arguments)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (WeightedSampler(WEIGHTS), WeightedSampler(WEIGHTS[::-1])),
        (WeightedShuffle(WEIGHTS), WeightedShuffle(WEIGHTS[::-1])),
        (BalancedSampler(LABELS), BalancedSampler(LABELS[::-1])),
        (WeightedSampler(WEIGHTS, seed=1), WeightedSampler(WEIGHTS, seed=2)),
        (WeightedSampler(WEIGHTS, seed=1), WeightedSampler(WEIGHTS)),
    ],
)
def test_a_state_of_another_order_is_refused(ours, theirs):
    state = loaded(ours).state_dict()
    loaded(ours).load_state_dict(state)
    words = r"other settings \(order: saved \d+, here \d+\)\. 'order' is a digest of what the sampl"
    with pytest.raises(ValueError, match=words):
        loaded(theirs).load_state_dict(state)


def test_a_sampler_for_another_dataset_is_refused():
    words = "sampler must be made for the 10 records of the dataset, got a {} for 9; make it from"
    for sampler in (WeightedSampler([1] * 9), WeightedShuffle([1] * 9), BalancedSampler([0] * 9)):
        with pytest.raises(ValueError, match=words.format(type(sampler).__name__)):
            StatefulDataLoader(range(10), sampler=sampler)
        with pytest.raises(ValueError, match=r"orders\['a'\] must be .*10"):
            Mixture({"a": (range(10), 1)}, length=5, orders={"a": sampler})
    with pytest.raises(TypeError, match="batch_sampler must yield batches, got a WeightedSampler"):
        StatefulDataLoader(range(9), batch_sampler=WeightedSampler([1] * 9))


def test_more_than_there_are_without_replacement():
    with pytest.raises(ValueError, match="num_samples must be at most the 2 records of a weight"):
        WeightedShuffle([1, 0, 1], num_samples=3)
