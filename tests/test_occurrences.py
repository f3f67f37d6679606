"""Records that are drawn several times in an epoch."""

import itertools
import pickle
from collections import Counter

import pytest
import torch
from samples import flat
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, WeightedRandomSampler

from seedcursor import (
    Occurrence,
    Occurrences,
    SeededDataset,
    StatefulDataLoader,
    StatefulDataset,
    sample_rng,
    seeded,
)

N = 5
DRAWS = 23


class Keyed(StatefulDataset):
    """Sample i is i and draws of each kind."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        assert type(index) is int
        with self.seeded(index):
            keyed = int(torch.randint(2**62, ()))
        return (
            index,
            self.epoch,
            int(self.rng(index).integers(2**63)),
            int(self.rng(index, "noise").integers(2**63)),
            self.python_rng(index).getrandbits(62),
            int(torch.randint(2**62, (), generator=self.torch_rng(index))),
            keyed,
        )


class Rows(Keyed):
    """Fetches whole batches too."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Untouched(Dataset):
    """Draws from a global RNG."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, int(torch.randint(2**62, ()))


def weighted(draws=DRAWS):
    return WeightedRandomSampler([1.0, 2.0, 3.0, 4.0, 5.0], draws)


def by_hand(seed, epoch, index):
    """What Keyed draws for an occurrence, by the free functions."""
    with seeded(seed, epoch, index):
        keyed = int(torch.randint(2**62, ()))
    return (
        int(sample_rng(seed, epoch, index).integers(2**63)),
        int(sample_rng(seed, epoch, index, "noise").integers(2**63)),
        keyed,
    )


def samples(dataset, shape=(0, "fork", 4, 1), epochs=2):
    """What loaders of a shape deliver, by epoch, each repeat by its number."""
    workers, method, batch_size, world_size = shape
    for epoch in range(epochs):
        steps = []
        for rank in range(world_size):
            loader = StatefulDataLoader(
                dataset,
                batch_size,
                sampler=Occurrences(weighted()),
                num_workers=workers,
                multiprocessing_context=method if workers else None,
                collate_fn=list,
                rank=rank,
                world_size=world_size,
                pad=False,
            )
            loader.set_epoch(epoch)
            steps.append(list(loader))
        # Positions are dealt to ranks like cards.
        for step in itertools.zip_longest(*steps, fillvalue=[]):
            dealt = itertools.zip_longest(*step)
            yield from ((epoch, s) for s in itertools.chain(*dealt) if s is not None)


def test_each_occurrence_is_keyed_by_its_number():
    numbers = Counter()
    for epoch, (index, _, plain, noise, *_, keyed) in samples(Keyed(seed=3)):
        occurrence = Occurrence(index, numbers[epoch, index])
        numbers[epoch, index] += 1
        assert (plain, noise, keyed) == by_hand(3, epoch, occurrence)
    assert sum(numbers.values()) == 2 * DRAWS


def test_no_two_draw_alike():
    seen = [draw for _, (_, _, *draws) in samples(Keyed(seed=3)) for draw in draws]
    assert len(set(seen)) == len(seen) == 2 * DRAWS * 5


def test_without_them_repeats_draw_alike():
    loader = StatefulDataLoader(Keyed(), 4, sampler=weighted(), collate_fn=list)
    assert len(set(flat(loader))) == N


def test_the_first_is_the_record_itself():
    first = {}
    for epoch, sample in samples(Keyed(seed=3), epochs=1):
        first.setdefault((epoch, sample[0]), sample)
    dataset = Keyed(seed=3)
    assert len(first) == N
    assert all(dataset[index] == sample for (_, index), sample in first.items())
    for stream in (None, "crop"):
        ours, plain = sample_rng(3, 1, Occurrence(4, 0), stream), sample_rng(3, 1, 4, stream)
        assert ours.bit_generator.state == plain.bit_generator.state


@pytest.mark.parametrize("shape", [(0, "fork", 7, 2), (2, "fork", 7, 1), (3, "spawn", 4, 2)])
@pytest.mark.parametrize("make", [Keyed, Rows])
def test_they_do_not_depend_on_workers_batches_or_ranks(make, shape):
    assert list(samples(make(seed=3), shape)) == list(samples(Keyed(seed=3)))


@pytest.mark.parametrize("wrap", [lambda d: Subset(d, range(N)), lambda d: d])
def test_they_reach_a_dataset_of_ours_through_a_wrapper(wrap):
    assert list(samples(wrap(Keyed(seed=3)))) == list(samples(Keyed(seed=3)))


def test_they_reach_a_seeded_dataset():
    numbers = Counter()
    for epoch, (index, draw) in samples(SeededDataset(Untouched(), seed=3)):
        with seeded(3, epoch, Occurrence(index, numbers[epoch, index])):
            assert draw == int(torch.randint(2**62, ()))
        numbers[epoch, index] += 1


@pytest.mark.parametrize("cursor", [0, 1, 7, 8, 22])
def test_a_resume_counts_on(cursor):
    whole = [sample for _, sample in samples(Keyed(seed=3), epochs=1)]
    loader = StatefulDataLoader(
        Keyed(seed=3), 3, sampler=Occurrences(weighted()), collate_fn=list, num_workers=2
    )
    loader.load_state_dict({"epoch": 0, "cursor": cursor})
    assert flat(loader) == whole[cursor:]
    assert loader.replay(epoch=0, cursor=cursor) == whole[cursor : cursor + 3]


def test_within_a_batch_sampler_and_without_batches():
    whole = [sample for _, sample in samples(Keyed(seed=3), epochs=1)]
    batches = BatchSampler(Occurrences(weighted()), 4, drop_last=False)
    loader = StatefulDataLoader(Keyed(seed=3), batch_sampler=batches, collate_fn=list)
    assert flat(loader) == whole
    single = StatefulDataLoader(Keyed(seed=3), None, sampler=batches.sampler, collate_fn=tuple)
    assert list(single) == whole


def test_record_ids():
    occurrences = list(Occurrences(["a", "b", "a"]))
    assert occurrences == [Occurrence("a", 0), Occurrence("b", 0), Occurrence("a", 1)]
    assert len(Occurrences(["a", "b"])) == 2


def test_a_plain_loader_refuses_them():
    loader = DataLoader([1, 2, 3], sampler=Occurrences([0, 0]))
    with pytest.raises(TypeError, match="Occurrence"):
        list(loader)


@pytest.mark.parametrize(
    ("index", "number", "error", "words"),
    [
        (-1, 0, ValueError, r"index must be an integer in \[0, 2\*\*64\), got -1"),
        (1.0, 0, TypeError, "index must be an integer"),
        (1, -1, ValueError, r"number must be an integer in \[0, 2\*\*64\), got -1"),
        (1, "x", TypeError, "number must be an integer"),
        (1, 2**64, ValueError, "number"),
    ],
)
def test_nonsense_is_refused(index, number, error, words):
    with pytest.raises(error, match=words):
        Occurrence(index, number)


def test_they_pickle_and_take_numpys_integers():
    assert pickle.loads(pickle.dumps(Occurrence(3, 1))) == Occurrence(torch.tensor(3), 1)


def test_keys_of_all_parts_are_apart():
    indices = [0, 1, 2**32, 2**32 + 1, "0", "1"]
    numbered = [Occurrence(index, number) for index in indices for number in (1, 2, 2**40)]
    streams = [None, "1", "occurrence"]
    words = {
        tuple(sample_rng(0, 0, index, stream).bit_generator.random_raw(2))
        for index in (*indices, *numbered)
        for stream in streams
    }
    assert len(words) == (len(indices) + len(numbered)) * len(streams)
