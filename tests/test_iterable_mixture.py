"""Several streams as one: as a mixture of datasets, record by record."""

import random

import numpy as np
import pytest
from pipelines import main_process
from samples import KeyedStream, flat
from torch.utils.data import DataLoader

from seedcursor import (
    SKIP,
    IterableMixture,
    KeyedPermutation,
    Mixture,
    StatefulDataLoader,
    StatefulIterableDataset,
    TolerantIterableDataset,
)


class Shuffled(StatefulIterableDataset):
    """Records ``0 .. n-1`` in an order of their epoch; drops one, and draws for the others."""

    def __init__(self, n, dropped=None):
        super().__init__()
        self.n = n
        self.dropped = dropped

    def __len__(self):
        return self.n

    def records(self, start):
        order = KeyedPermutation(self.n, int(self.rng("files").integers(2**62)))
        for k in range(start, self.n):
            yield self.epoch, order[k]

    def sample(self, record, index):
        epoch, record = record
        assert epoch == self.epoch
        if record == self.dropped:
            return SKIP
        return epoch, record, int(self.rng(index).integers(2**62)), random.getrandbits(62)


WEIGHTS = {"a": 5, "b": 3, "c": 2}


def mixed(length=40, **options):
    sources = {"a": Shuffled(5), "b": Shuffled(5), "c": Shuffled(8, dropped=7)}
    pairs = {name: (source, WEIGHTS[name]) for name, source in sources.items()}
    return IterableMixture(pairs, length=length, seed=3, **options)


def loaded(batch_size=6, **options):
    return StatefulDataLoader(mixed(), batch_size, collate_fn=list, **options)


def alone(epochs=2):
    mixture, samples = mixed(), []
    for epoch in range(epochs):
        mixture.set_epoch(epoch)
        samples.append(list(mixture))
    return samples


def test_sources_come_as_in_a_mixture_of_datasets():
    lengths = {"a": 50, "b": 60, "c": 9}

    class Named(KeyedStream):
        def __len__(self):
            return self.n

        def records(self, start):
            return ((self.n, k) for k in range(start, self.n))

        def sample(self, record, index):
            assert record[1] == index
            return record

    weights_from = {1_500: {"a": 1, "b": 0, "c": 1}}
    streams, datasets = (
        cls(
            {name: (make(n), WEIGHTS[name]) for name, n in lengths.items()},
            length=2_000,
            seed=3,
            weights_from=weights_from,
        )
        for cls, make in ((IterableMixture, Named), (Mixture, range))
    )
    assert len(streams) == 2_000
    samples = list(streams)
    sizes = list(lengths.values())
    assert [sizes.index(n) for n, _ in samples] == datasets.draws(0, 2_000).sources.tolist()
    for n in sizes:
        records = [k for size, k in samples if size == n]
        assert records == [k % n for k in range(len(records))]


def test_each_source_has_epochs_and_draws_of_its_own():
    before = main_process()
    samples = flat(alone(epochs=3))
    assert main_process() == before
    draws = [draw for *_, first, second in samples for draw in (first, second)]
    assert len(set(draws)) == len(draws)
    assert {epoch for epoch, *_ in samples} == set(range(12))  # a: 60 draws of 5 records
    assert len(samples) == 117  # c: 24 draws, of which every eighth is dropped


def test_a_source_has_another_order_in_each_epoch_and_from_its_twin():
    twins = {"x": (Shuffled(9), 1), "y": (Shuffled(9), 1)}
    records = [record for _, record, *_ in IterableMixture(twins, length=36)]
    sources = Mixture({name: (range(9), 1) for name in twins}, length=36).draws(0, 36).sources
    orders = [np.array(records)[sources == k].reshape(2, 9).tolist() for k in range(2)]
    assert len({tuple(order) for order in flat(orders)}) == 4
    assert all(sorted(order) == list(range(9)) for order in flat(orders))


@pytest.mark.parametrize(
    "shape", [(0, "fork", 7, 1), (0, "fork", 4, 3), (2, "fork", 4, 2), (1, "spawn", 7, 1)]
)
def test_it_does_not_depend_on_workers_batches_or_ranks(shape):
    workers, method, batch_size, world_size = shape
    expected, seen = alone(), [[], []]
    for rank in range(world_size):
        loader = loaded(
            batch_size,
            num_workers=workers,
            multiprocessing_context=method if workers else None,
            rank=rank,
            world_size=world_size,
            pad=False,
        )
        for epoch in range(2):
            seen[epoch] += flat(loader)
    for ours, theirs in zip(seen, expected, strict=True):
        assert sorted(ours) == sorted(theirs)
        assert ours == theirs or world_size > 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_step_with_another_batch_size(num_workers):
    whole = loaded()
    expected = [flat(whole) for _ in range(3)]
    assert expected == alone(epochs=3)
    whole.set_epoch(1)
    delivered, states = 0, [(whole.state_dict(), 0)]
    for batch in whole:
        delivered += len(batch)
        states.append((whole.state_dict(), delivered))
    for state, count in states[: -1 : 1 + 2 * (num_workers > 0)]:
        loader = loaded(5, num_workers=num_workers)
        loader.load_state_dict(state)
        assert flat(loader) == expected[1][count:]
        assert flat(loader) == expected[2]


def test_a_resume_starts_the_sources_where_they_were():
    class Counted(Shuffled):
        read = 0

        def records(self, start):
            for k in range(start, self.n):
                self.read += 1
                yield self.epoch, k

    sources = {name: Counted(10_000) for name in "ab"}
    mixture = IterableMixture({name: (s, 1) for name, s in sources.items()}, length=9_000)
    loader = StatefulDataLoader(mixture, 10, collate_fn=list)
    loader.load_state_dict({"epoch": 1, "cursor": 5_000})
    next(iter(loader))
    assert sum(source.read for source in sources.values()) == 10


def test_a_plain_loader_has_each_sample_once():
    mixture = mixed()
    plain = DataLoader(mixture, batch_size=4, collate_fn=list, num_workers=2)
    for epoch, expected in enumerate(alone()):
        mixture.set_epoch(epoch)
        assert sorted(flat(plain)) == sorted(expected)


def test_within_and_around_each_other_and_tolerant_streams():
    class Broken(Shuffled):
        def sample(self, record, index):
            if record[1] == 2:
                raise OSError("truncated file")
            return super().sample(record, index)

    inner = IterableMixture({"x": (Broken(3), 1), "y": (Shuffled(3), 1)}, length=6)
    tolerant = TolerantIterableDataset(inner, at_most=9)
    outer = IterableMixture({"in": (tolerant, 1), "z": (Shuffled(6), 1)}, length=24)
    loader = StatefulDataLoader(outer, 5, collate_fn=list, num_workers=2)
    samples = flat(loader)
    assert len(samples) == 22
    assert len({draw for *_, draw in samples}) == 22
    twins = [IterableMixture({"x": (Shuffled(3), 1)}, length=3) for _ in range(2)]
    samples = list(IterableMixture({"p": (twins[0], 1), "q": (twins[1], 1)}, length=12))
    assert len({draw for *_, keyed, draw in samples for draw in (keyed, draw)}) == 24
    with pytest.raises(OSError, match="truncated"):
        list(IterableMixture({"x": (Broken(3), 1)}, length=3))


@pytest.mark.parametrize(("claimed", "words"), [(4, "4, got more"), (6, "6, got only 5")])
def test_a_wrong_length_is_seen(claimed, words):
    class Wrong(KeyedStream):
        def __len__(self):
            return claimed

    mixture = IterableMixture({"a": (Wrong(5), 1), "b": (Shuffled(3), 1)}, length=40)
    with pytest.raises(ValueError, match=rf"sources\['a'\] must have as many records .* {words}"):
        list(mixture)
    loader = StatefulDataLoader(mixture, 4, collate_fn=list, num_workers=1)
    with pytest.raises(ValueError, match=words):
        list(loader)


@pytest.mark.parametrize("source", [KeyedStream(3), range(3), iter("abc")])
def test_other_sources_are_refused(source):
    with pytest.raises(TypeError, match=r"sources\['a'\] must be a StatefulIterableDataset with"):
        IterableMixture({"a": (source, 1)}, length=3)
    if not isinstance(source, range):
        with pytest.raises(TypeError, match="for streams there is IterableMixture"):
            Mixture({"a": (source, 1)}, length=3)


def test_a_state_of_another_mixture_is_refused():
    state = loaded().state_dict()
    other = IterableMixture({"a": (Shuffled(5), 1)}, length=40, seed=3)
    with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
        StatefulDataLoader(other).load_state_dict(state)
    with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
        StatefulDataLoader(TolerantIterableDataset(other, 1)).load_state_dict(state)
