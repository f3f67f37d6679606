"""Several datasets as one: their shares, their own epochs and their own draws."""

import pickle
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from pipelines import main_process
from samples import Keyed, flat
from torch.utils.data import DataLoader

from seedcursor import (
    KeyedSampler,
    Mixture,
    Occurrences,
    SeededDataset,
    StatefulBatchSampler,
    StatefulDataLoader,
    StatefulDataset,
    TolerantDataset,
    batch_rng,
)

WINDOW = 1000
WEIGHTS = {
    "one": [3.0],
    "equal": [1, 1, 1],
    "thirds and nothing": [1 / 3, 0, 2 / 3],
    "steep": [0.9, 0.09, 0.009, 0.0009, 0.0001],
    "just below a slot": [0.3339999999, 0.3329999999, 0.3330000002],
    "tiny": [1, 1e-9],
    "sixteen": np.random.default_rng(5).random(16).tolist(),
    "many": np.random.default_rng(6).random(1200).tolist(),
    "dominant": [0.9999, *[0.00001] * 10],
}


class Draws(StatefulDataset):
    """Sample i is the source's epoch, i, and a draw of each kind."""

    def __init__(self, n, seed=0):
        super().__init__(seed=seed)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return (
            self.epoch,
            index,
            int(self.rng(index).integers(2**62)),
            int(self.rng(index, "crop").integers(2**62)),
            int(torch.randint(2**62, (), generator=self.torch_rng(index))),
            random.getrandbits(62),
            int(np.random.randint(2**62)),
            int(torch.randint(2**62, ())),
        )


class Untouched:
    """Knows nothing of seedcursor, and draws from a global RNG."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return None, index, random.getrandbits(62)


def mixed(length=40, seed=3, **options):
    """Three sources with equal seeds, two of them equal in all but their names."""
    return Mixture(
        {"a": (Draws(5), 0.5), "b": (Draws(5), 0.3), "plain": (Untouched(3), 0.2)},
        length=length,
        seed=seed,
        **options,
    )


def alone(mixture, epochs=2):
    """Each sample, asked for by itself, backwards."""
    seen = {}
    for epoch in reversed(range(epochs)):
        mixture.set_epoch(epoch)
        seen |= {(epoch, k): mixture[k] for k in reversed(range(len(mixture)))}
    mixture.set_epoch(0)
    return [[seen[epoch, k] for k in range(len(mixture))] for epoch in range(epochs)]


def weighted(weights, length, n=10**6, **options):
    sources = {str(k): (range(n + k), weight) for k, weight in enumerate(weights)}
    return Mixture(sources, length=length, **options)


def off(sources, weights, window=WINDOW):
    """How far the count of any source in any window is from its share, at most."""
    share = np.array(weights) / np.sum(weights) * window
    worst = 0.0
    for source, expected in enumerate(share):
        counted = np.cumsum(np.concatenate([[0], sources == source]))
        worst = max(worst, np.abs(counted[window:] - counted[:-window] - expected).max())
    return worst


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_any_thousand_positions_have_each_share_to_within_one(weights):
    for seed, start in [(0, 0), (7, 123_456_789_012_345)]:
        mixture = weighted(weights, 10**15, seed=seed)
        sources = mixture.draws(start, start + 3 * WINDOW).sources
        assert off(sources, weights) <= 1 + 1e-6


@pytest.mark.parametrize("length", [999, 1000, 2718])
def test_epochs_go_on_where_the_last_one_ended(length):
    weights = WEIGHTS["sixteen"]
    mixture, whole = weighted(weights, length), weighted(weights, 3 * length)
    pieces = []
    for epoch in range(3):
        mixture.set_epoch(epoch)
        pieces.append(mixture.draws(0, length))
    for ours, theirs in zip(
        map(np.concatenate, zip(*pieces, strict=True)), whole.draws(0, 3 * length), strict=True
    ):
        assert ours.tolist() == theirs.tolist()


def test_any_place_is_reached_without_those_before_it():
    mixture = weighted(WEIGHTS["steep"], 200_000)
    whole = mixture.draws(0, 200_000)
    for start, stop in [(0, 1), (4_095, 4_097), (65_530, 65_540), (131_000, 199_999), (9, 9)]:
        for ours, theirs in zip(mixture.draws(start, stop), whole, strict=True):
            assert ours.tolist() == theirs[start:stop].tolist()
    by_one = [mixture[k] for k in range(4_000, 4_200)]
    assert by_one == whole.indices[4_000:4_200].tolist()


def test_each_source_is_read_through_in_epochs_of_its_own():
    lengths = [1, 7, 300, 5_000]
    sources = {f"{n}": (range(n), n**0.5) for n in lengths}
    mixture = Mixture(sources, length=50_000, seed=1)
    drawn = mixture.draws(0, 50_000)
    orders = []
    for source, n in enumerate(lengths):
        ours = drawn.sources == source
        epochs, indices = drawn.epochs[ours], drawn.indices[ours]
        assert epochs.tolist() == (np.arange(len(epochs)) // n).tolist()
        full = indices[: len(indices) // n * n].reshape(-1, n)
        assert len(full) >= 2
        assert (np.sort(full, axis=1) == np.arange(n)).all()
        orders.append(full[0].tolist())
        if n > 7:
            assert len({tuple(row) for row in full.tolist()}) == len(full)
    twins = Mixture({"x": (range(300), 1), "y": (range(300), 1)}, length=600).draws(0, 600)
    first, second = (twins.indices[twins.sources == k].tolist() for k in range(2))
    assert first != second
    assert (
        orders[2]
        != Mixture(sources, length=50_000, seed=2)
        .draws(0, 50_000)
        .indices[drawn.sources == 2][:300]
        .tolist()
    )


def test_no_source_falls_to_one_rank():
    sources = weighted([1, 1], 10_000).draws(0, 10_000).sources
    for world_size in (2, 4, 8):
        for rank in range(world_size):
            share = np.mean(sources[rank::world_size])
            assert 0.35 < share < 0.65


def test_draws_are_the_sources_own_and_never_alike():
    before = main_process()
    samples = alone(mixed())
    assert main_process() == before
    assert samples[0] != samples[1]
    draws = [draw for sample in flat(samples) for draw in sample[2:]]
    assert len(set(draws)) == len(draws)
    epochs = {sample[0] for sample in flat(samples)}
    assert epochs == {None, *range(8)}  # a: 40 draws of 5 records


def test_a_sample_is_a_function_of_its_source_epoch_and_record():
    def by_draw(mixture):
        drawn = mixture.draws(0, len(mixture))
        return {
            key: mixture[k] for k, key in enumerate(zip(*(c.tolist() for c in drawn), strict=True))
        }

    ours = by_draw(mixed())
    other = Mixture(
        {"a": (Draws(5), 0.1), "b": (Draws(5), 0.1), "plain": (Untouched(3), 0.8)},
        length=50,
        seed=3,
    )
    theirs = by_draw(other)
    assert len(ours.keys() & theirs.keys()) > 10
    assert all(ours[key] == theirs[key] for key in ours.keys() & theirs.keys())


@pytest.mark.parametrize(
    "shape", [(0, "fork", 7, 1), (0, "fork", 4, 3), (2, "fork", 4, 2), (2, "spawn", 7, 1)]
)
def test_it_does_not_depend_on_workers_batches_or_ranks(shape):
    workers, method, batch_size, world_size = shape
    expected = alone(mixed())
    random.gauss(0, 1), np.random.randn()
    before = main_process()
    seen = [[], []]
    for rank in range(world_size):
        loader = StatefulDataLoader(
            mixed(),
            batch_size,
            num_workers=workers,
            multiprocessing_context=method if workers else None,
            collate_fn=list,
            rank=rank,
            world_size=world_size,
            pad=False,
        )
        for epoch in range(2):
            seen[epoch] += flat(loader)
    assert main_process() == before
    for ours, theirs in zip(seen, expected, strict=True):
        assert sorted(map(repr, ours)) == sorted(map(repr, theirs))
    if world_size == 1:
        assert seen == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_step_with_another_batch_size(num_workers):
    expected = alone(mixed(), epochs=3)
    whole = StatefulDataLoader(mixed(), 6, collate_fn=list, seed=8)
    whole.set_epoch(1)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole)][:-1]
    for state in states[:: 1 + 2 * (num_workers > 0)]:
        loader = StatefulDataLoader(mixed(), 5, collate_fn=list, seed=8, num_workers=num_workers)
        loader.load_state_dict(state)
        assert flat(loader) == expected[1][state["cursor"] :]
        assert flat(loader) == expected[2]


def test_a_plain_loader_has_the_same_samples():
    mixture = mixed()
    sampler = StatefulBatchSampler(mixture, 6, shuffle=False)
    plain = DataLoader(mixture, batch_sampler=sampler, num_workers=2, collate_fn=list)
    expected = alone(mixed())
    for epoch in range(2):
        assert flat(sampler.track(plain)) == expected[epoch]
    assert alone(pickle.loads(pickle.dumps(mixture))) == expected


def test_stop_rules():
    sources = {"a": (range(10), 1), "b": (range(100), 2), "c": (range(7), 0.1)}
    for stop, done in [("first_exhausted", any), ("all_exhausted", all)]:
        mixture = Mixture(sources, stop=stop)
        drawn = mixture.draws(0, len(mixture))
        counts = np.bincount(drawn.sources, minlength=3)
        before = counts - np.bincount(drawn.sources[-1:], minlength=3)
        assert done(counts >= [10, 100, 7])
        assert not done(before >= [10, 100, 7])


class Turned(KeyedSampler):
    """The n records from one on that depends on seed and epoch, backwards."""

    _order_digest = 1

    def __init__(self, n, seed=None, at=np.asarray):
        super().__init__(seed)
        self.n = n
        self.answer = at

    def __len__(self):
        return self.n

    def at(self, seed, epoch, positions):
        return self.answer((seed % self.n + 3 * epoch - positions) % self.n)


def test_a_source_may_have_an_order_of_its_own():
    shuffled, ordered = mixed(200), mixed(200, orders={"b": Turned(5, seed=8)})
    ours, theirs = ordered.draws(0, 200), shuffled.draws(0, 200)
    assert ours.sources.tolist() == theirs.sources.tolist()
    others = ours.sources != 1
    assert ours.indices[others].tolist() == theirs.indices[others].tolist()
    counts = np.arange(200 - others.sum())
    assert ours.epochs[~others].tolist() == (counts // 5).tolist()
    assert ours.indices[~others].tolist() == ((8 + 3 * (counts // 5) - counts % 5) % 5).tolist()
    seeds = {
        mixed(200, seed=k, orders={"b": Turned(5)}).draws(0, 200).indices[~others][0]
        for k in range(9)
    }
    assert len(seeds) > 1


@pytest.mark.parametrize(
    ("orders", "error", "words"),
    [
        ([Turned(5)], TypeError, "orders must be a mapping of names, got list"),
        ({"x": Turned(5)}, ValueError, "orders must be of sources .'a', .* got one of 'x'"),
        ({"a": range(5)}, TypeError, r"orders\['a'\] must be a KeyedSampler, got range"),
        ({"a": Turned(4)}, ValueError, r"orders\['a'\] must be as long as its source, 5, got .* 4"),
    ],
)
def test_nonsense_orders_are_refused(orders, error, words):
    with pytest.raises(error, match=words):
        mixed(orders=orders)


@pytest.mark.parametrize("answer", [lambda found: found[1:], lambda found: found / 2])
def test_an_order_must_answer_with_an_integer_for_each_position(answer):
    mixture = mixed(orders={"a": Turned(5, at=answer)})
    with pytest.raises(TypeError, match=r"orders\['a'\] must return an integer for each position"):
        list(mixture)


@pytest.mark.parametrize("wrap", [lambda mixture: mixture, SeededDataset])
def test_a_state_of_another_mixture_is_refused(wrap):
    def state(*weights, n=50, **options):
        mixture = weighted(weights, 40, n, **options)
        return StatefulDataLoader(wrap(mixture), seed=1).state_dict()

    loader = StatefulDataLoader(wrap(weighted([1, 2], 40, 50)), seed=1)
    loader.load_state_dict(state(1, 2))
    assert loader.state_dict() == state(1, 2)
    for other in (
        state(1, 3),
        state(1, 2, n=51),
        state(1, 2, weights_from={9: {"0": 1, "1": 1}}),
        state(1, 2, seed=8),
    ):
        with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
            loader.load_state_dict(other)


def test_weights_change_at_a_position():
    first, then, last = [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0, 0.5, 0.5]
    names = ["a", "b", "c"]
    mixture = Mixture(
        {name: (range(40), weight) for name, weight in zip(names, first, strict=True)},
        length=3_000,
        weights_from={
            2_345: dict(zip(names, then, strict=True)),
            7_001: dict(zip(names, last, strict=True)),
        },
    )
    plain = Mixture(
        {name: (range(40), weight) for name, weight in zip(names, first, strict=True)}, length=3_000
    )
    assert mixture.draws(0, 2_345).indices.tolist() == plain.draws(0, 2_345).indices.tolist()
    pieces = []
    for epoch in range(4):
        mixture.set_epoch(epoch)
        pieces.append(mixture.draws(0, 3_000))
        assert mixture.draws(1_000, 1_001).epochs[0] == pieces[-1].epochs[1_000]
    drawn = [np.concatenate(columns) for columns in zip(*pieces, strict=True)]
    for start, stop, weights in [(0, 2_345, first), (2_345, 7_001, then), (7_001, 12_000, last)]:
        assert off(drawn[0][start:stop], weights) <= 1 + 1e-6
    for source in range(3):
        epochs = drawn[1][drawn[0] == source]
        assert epochs.tolist() == (np.arange(len(epochs)) // 40).tolist()


def test_a_source_that_is_left_out_later_may_be_exhausted_before():
    sources = {"a": (range(10), 1), "b": (range(10), 1)}
    later = {30: {"a": 0, "b": 1}}
    assert len(Mixture(sources, stop="all_exhausted", weights_from=later)) <= 30
    with pytest.raises(ValueError, match=r"stop='all_exhausted' must be reached below"):
        Mixture(sources, stop="all_exhausted", weights_from={5: later[30]})


def test_within_and_around_other_wrappers():
    def make(wrap_source, wrap):
        sources = {"a": (wrap_source(Untouched(4)), 1), "b": (wrap_source(Untouched(4)), 1)}
        return wrap(Mixture(sources, length=12, seed=3))

    def same(dataset):
        return dataset

    for wrap_source, wrap in [
        (same, lambda mixture: SeededDataset(mixture, seed=4)),
        (lambda source: SeededDataset(source, seed=4), same),
        (lambda source: Mixture({"x": (source, 1), "y": (source, 2)}, length=5), same),
    ]:
        expected = alone(make(wrap_source, wrap))
        assert len({draw for _, _, draw in flat(expected)}) == 24
        loader = StatefulDataLoader(make(wrap_source, wrap), 5, collate_fn=list, num_workers=2)
        assert [flat(loader), flat(loader)] == expected


def test_nested_mixtures_have_epochs_of_their_own():
    inner = Mixture({"x": (Draws(3), 1), "y": (Draws(3), 1)}, length=6, seed=1)
    outer = Mixture({"in": (inner, 1), "z": (Draws(6), 1)}, length=24, seed=1)
    samples = alone(outer)
    assert {sample[0] for sample in flat(samples)} == set(range(4))
    assert len({sample[2] for sample in flat(samples)}) == 48


def test_positions_drawn_again_draw_apart():
    loader = StatefulDataLoader(
        mixed(), 6, sampler=Occurrences([0, 1, 0, 2, 0, 1]), collate_fn=list
    )
    (batch,) = loader
    assert batch[0] == mixed()[0]
    draws = [draw for sample in batch for draw in sample[2:]]
    assert len(set(draws)) == len(draws)
    assert [sample[:2] for sample in batch[::2]].count(batch[0][:2]) >= 2


class Broken(Keyed):
    """Raises at record 2."""

    def __getitem__(self, index):
        if index == 2:
            raise OSError("truncated file")
        return super().__getitem__(index)


def test_a_broken_record_is_named(caplog):
    mixture = Mixture({"good": (range(9), 1), "bad": (Broken(3), 1)}, length=12)
    drawn = mixture.draws(0, 12)
    hit = int(np.flatnonzero((drawn.sources == 1) & (drawn.indices == 2))[0])
    with pytest.raises(OSError, match="truncated") as caught:
        mixture[hit]
    if sys.version_info >= (3, 11):
        assert "seedcursor: in source 'bad', its record 2, its epoch 0" in caught.value.__notes__
    tolerant = Mixture(
        {"good": (range(9), 1), "bad": (TolerantDataset(Broken(3), at_most=2), 1)}, length=12
    )
    assert len(flat(StatefulDataLoader(tolerant, 4, collate_fn=list))) == 10
    assert caplog.text.count("passed over dataset[2]") == 2
    with pytest.raises(OSError, match="truncated"):
        tolerant[hit]  # where no loader counts them
    around = TolerantDataset(mixture, at_most=2)
    assert len(flat(StatefulDataLoader(around, 4, collate_fn=list))) == 10


def test_threads_that_help_a_source_draw_for_it():
    class Pooled(Draws):
        def __getitem__(self, index):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(
                    lambda: (self.epoch, int(self.rng(index).integers(2**62)))
                ).result()

    class Direct(Draws):
        def __getitem__(self, index):
            return self.epoch, int(self.rng(index).integers(2**62))

    ours, theirs = (
        Mixture({"a": (make(3), 1), "b": (make(3), 1)}, length=18) for make in (Pooled, Direct)
    )
    loader = StatefulDataLoader(ours, 4, collate_fn=list)
    assert [flat(loader), flat(loader)] == alone(ours) == alone(theirs)


def test_a_batchs_generator_is_the_whole_batchs():
    class Asks:
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return int(batch_rng().integers(2**62))

    mixture = Mixture({"a": (Asks(), 1), "b": (Asks(), 1)}, length=8)
    loader = StatefulDataLoader(
        mixture, 4, collate_fn=lambda seen: [*seen, int(batch_rng().integers(2**62))]
    )
    assert [len(set(batch)) for batch in loader] == [1, 1]
    with pytest.raises(RuntimeError, match="no batch here"):
        mixture[0]


def test_little_memory_for_long_runs():
    mixture = Mixture({"a": (range(2**62), 1), "b": (range(10**9), 2)}, length=2**62)
    start = 10**18
    drawn = mixture.draws(start, start + 500)
    expected = start * 2 // 3 // 10**9
    assert set(drawn.epochs[drawn.sources == 1].tolist()) <= {expected, expected + 1}


A = {"a": (range(3), 1)}


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ([[]], TypeError, "sources must be a mapping of names to .dataset, weight., got list"),
        ([{}], ValueError, "sources must name at least one dataset"),
        ([{1: (range(3), 1)}], TypeError, "sources must have names of type str, got 1"),
        ([{"a": range(3)}], TypeError, r"sources\['a'\] must be a pair .* got range"),
        ([{"a": (iter("x"), 1)}], TypeError, r"sources\['a'\] must be a map-style dataset"),
        ([{"a": (range(3), "x")}], TypeError, "the weight of 'a' must be a number, got 'x'"),
        ([{"a": (range(3), -1)}], ValueError, "the weight of 'a' must be .* got -1.0"),
        ([{"a": (range(3), float("nan"))}], ValueError, "the weight of 'a' must be finite"),
        ([{"a": (range(3), 0)}], ValueError, "weights must have a sum above 0"),
        ([{"a": (range(0), 1)}], ValueError, r"sources\['a'\] must have records"),
        ([A | {"b": (range(3), 1e-15)}], ValueError, "weight of 'b' must be 0 or at least 1e-12"),
        ([A | {"b": (range(3), 1e308), "c": ("x", 1e308)}], ValueError, "finite, got inf from"),
        ([A, 0], ValueError, "length must be an integer in"),
        ([A, 1.5], TypeError, "length must be an integer"),
        ([A, 10, "first_exhausted"], ValueError, "one of length and stop must be given"),
        ([A], ValueError, "one of length and stop must be given, got length=None, stop=None"),
        ([A, None, "last"], ValueError, "stop must be one of .'first_exhausted', .* got 'last'"),
        ([A, 10, None, -1], ValueError, "seed must be"),
    ],
)
def test_nonsense_is_refused(arguments, error, words):
    options = {} if len(arguments) > 1 or arguments == [A] else {"length": 10}
    with pytest.raises(error, match=words):
        Mixture(*arguments, **options)


@pytest.mark.parametrize(
    ("weights_from", "error", "words"),
    [
        ([1], TypeError, "weights_from must be a mapping of positions to weights, got list"),
        ({0: {"a": 1}}, ValueError, "a position of weights_from must be an integer >= 1, got 0"),
        ({5: [1]}, TypeError, r"weights_from\[5\] must be a mapping of names to weights"),
        ({5: {"b": 1}}, ValueError, r"weights_from\[5\] must give a weight to each of \['a'\]"),
        ({5: {"a": 0}}, ValueError, "weights must have a sum above 0 .* from position 5"),
    ],
)
def test_nonsense_changes_are_refused(weights_from, error, words):
    with pytest.raises(error, match=words):
        Mixture(A, length=10, weights_from=weights_from)


def test_nonsense_positions_are_refused():
    mixture = Mixture(A, length=10)
    assert len(list(mixture)) == 10
    for index in (-1, 10):
        with pytest.raises(IndexError, match=r"index must be in \[0, 10\), got"):
            mixture[index]
    with pytest.raises(TypeError, match="index must be an integer"):
        mixture["a"]
    with pytest.raises(ValueError, match="stop must be an integer in"):
        mixture.draws(5, 4)
    mixture = Mixture(A, length=2**62)
    with pytest.raises(
        ValueError, match=r"source 'a' must be read through less than 2\*\*32 times"
    ):
        mixture[2**61]
