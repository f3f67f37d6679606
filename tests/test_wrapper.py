"""What people use with datasets that they did not write."""

import copy
import pickle
import random
import sys
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from samples import Keyed, KeyedStream, flat
from torch.utils.data import ConcatDataset, DataLoader, Dataset, get_worker_info

from seedcursor import (
    SeededDataset,
    StatefulDataLoader,
    StatefulDataset,
    batch_rng,
    seed_worker,
    seeded,
)

N = 17


def whims(index):
    return (
        index,
        random.getrandbits(60),
        float(np.random.randn()),
        random.gauss(0, 1),
        int(torch.randint(2**60, ())),
    )


class Untouched(Dataset):
    """Somebody's dataset, whose transforms draw from the global RNGs."""

    classes = ("cat", "dog")

    def __len__(self):
        return N

    def __getitem__(self, index):
        return whims(index)


class Rows(Untouched):
    """Fetches whole batches, and draws nothing then."""

    fetched = 0

    def __getitems__(self, indices):
        self.fetched += 1
        return [{"row": index} for index in indices]

    def __getitem__(self, index):
        return {"row": index}


class NoisyRows(Rows):
    """Fetches whole batches, and draws."""

    def __getitems__(self, indices):
        self.fetched += 1
        return [whims(index) for index in indices]

    def __getitem__(self, index):
        return whims(index)


def by_hand(seed, epoch, index):
    with seeded(seed, epoch, index):
        return whims(index)


@pytest.mark.parametrize("base", [Untouched, NoisyRows])
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("batch_size", [4, 7, None])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sample_depends_on_seed_epoch_and_index_alone(base, workers, batch_size, world_size):
    seen = set()
    for rank in range(world_size):
        loader = StatefulDataLoader(
            SeededDataset(base(), seed=6),
            batch_size,
            shuffle=True,
            num_workers=workers,
            rank=rank,
            world_size=world_size,
            collate_fn=None if batch_size is None else list,
        )
        for epoch in range(2):
            samples = list(loader) if batch_size is None else flat(loader)
            seen |= {(epoch, *sample) for sample in samples}
    assert seen == {(epoch, *by_hand(6, epoch, k)) for epoch in range(2) for k in range(N)}
    assert len({sample[2:] for sample in seen}) == 2 * N


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_plain_loaders_get_the_same(method):
    dataset = SeededDataset(Untouched(), seed=6)
    loader = DataLoader(
        dataset,
        4,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        collate_fn=list,
    )
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert flat(loader) == [by_hand(6, epoch, k) for k in range(N)]


def test_the_main_process_is_left_alone():
    dataset = SeededDataset(Untouched())

    def states(read):
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        random.gauss(0, 1), np.random.randn()  # each keeps another one back
        if read:
            dataset[3], dataset.__getitems__([1, 2])
        return whims(0), whims(1)

    assert states(read=True) == states(read=False)


def test_whole_batches_are_fetched_where_nothing_is_drawn():
    base = Rows()
    dataset = SeededDataset(base)
    loader = StatefulDataLoader(dataset, 4, collate_fn=list)
    assert [row["row"] for row in flat(loader)] == list(range(N))
    assert base.fetched == 4  # the last batch has one row
    noisy = NoisyRows()
    loader = StatefulDataLoader(SeededDataset(noisy), 4, collate_fn=list)
    assert flat(loader) == [by_hand(0, 0, k) for k in range(N)]
    assert noisy.fetched == 1  # drawing was noticed, once


class Lazy(Untouched):
    def __getitems__(self, indices):
        return (whims(index) for index in indices)


class Short(Untouched):
    def __getitems__(self, indices):
        return [0]


def test_what_getitems_returns_is_looked_at():
    assert SeededDataset(Lazy()).__getitems__([1, 2]) == [by_hand(0, 0, k) for k in (1, 2)]
    with pytest.raises(ValueError, match="must return a sample for each of 2 indices, got 1"):
        SeededDataset(Short()).__getitems__([1, 2])


class Pooled(Dataset):
    def __init__(self):
        self.inner = SeededDataset(Untouched())

    def __len__(self):
        return N

    def __getitem__(self, index):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.inner.__getitem__, index).result()


def test_threads_that_would_share_the_global_rngs_are_refused():
    loader = StatefulDataLoader(Pooled(), 4, collate_fn=list)
    with pytest.raises(RuntimeError, match="another thread has the global RNGs keyed"):
        list(loader)
    assert Pooled()[3] == by_hand(0, 0, 3)


def test_the_base_stays_reachable():
    dataset = SeededDataset(Untouched())
    assert dataset.classes == ("cat", "dog")
    assert len(dataset) == N
    with pytest.raises(AttributeError, match="absent"):
        dataset.absent  # noqa: B018 - reading it is the test
    for other in (pickle.loads(pickle.dumps(dataset)), copy.deepcopy(dataset)):
        assert other.classes == ("cat", "dog")
        assert other[5] == by_hand(0, 0, 5)
    assert SeededDataset([4, 5, 6])[1] == 5


def test_an_epoch_reaches_a_base_with_one():
    base = Keyed(5)
    dataset = SeededDataset(ConcatDataset([base]))
    dataset.set_epoch(3)
    assert base.epoch == 3
    loader = StatefulDataLoader(dataset, 2, collate_fn=list)
    loader.set_epoch(7)
    assert {sample[1] for sample in flat(loader)} == {7}


def test_what_is_not_map_style_is_refused():
    for base in (KeyedStream(3), iter([1]), 5):
        with pytest.raises(TypeError, match="base must be a map-style dataset.*StatefulIterable"):
            SeededDataset(base)
    with pytest.raises(ValueError, match="index must be an integer .* got -1"):
        SeededDataset([1])[-1]


def test_seeded_nests_and_restores():
    with seeded(1, 2, 3):
        whole = [whims(0), whims(1)]
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    with seeded(1, 2, 3):
        first = whims(0)
        with pytest.raises(KeyError), seeded(9, 9, 9, "inner"):
            whims(0)
            raise KeyError
        assert [first, whims(1)] == whole
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after
    assert StatefulDataset(seed=1).seeded is not None


def test_seeded_is_the_datasets():
    dataset = Keyed(3, seed=4)
    dataset.set_epoch(2)
    for stream in (None, "crop"):
        with dataset.seeded(1, stream):
            ours = whims(0)
        with seeded(4, 2, 1, stream):
            assert whims(0) == ours


def test_seeded_refuses_a_second_thread():
    def enter():
        with seeded(0, 0, 0):
            return whims(0)

    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(enter).result()
        held = pytest.raises(RuntimeError, match="another thread has the global RNGs keyed")
        with seeded(0, 0, 1), held:
            pool.submit(enter).result()
        assert pool.submit(enter).result() == alone


class Mixed(Keyed):
    def __getitem__(self, index):
        return index, float(batch_rng().random()), float(batch_rng("fetch").random())


def mix(samples):
    return samples, float(batch_rng().random()), float(batch_rng("mix").random())


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_rng_is_keyed_by_the_batch(workers):
    def run(rank, world_size, **options):
        loader = StatefulDataLoader(
            Mixed(22),
            4,
            num_workers=workers,
            rank=rank,
            world_size=world_size,
            collate_fn=mix,
            **options,
        )
        return [batch for _ in range(2) for batch in loader]

    batches = run(0, 1)
    assert batches == run(0, 1)
    for samples, drawn, mixed in batches:
        assert {sample[1] for sample in samples} == {drawn}
        assert len({drawn, mixed, samples[0][2]}) == 3
    assert len({batch[1] for batch in batches}) == 12
    assert len({batch[1] for batch in batches + run(0, 1, seed=1)}) == 24
    # Six samples are left for the last step of two ranks, and one for that of five.
    for world_size in (2, 3, 7):
        ranks = [run(rank, world_size) for rank in range(world_size)]
        drawn = [batch[1] for rank in ranks for batch in rank]
        assert len(set(drawn)) == len(drawn)


def test_batch_rng_needs_a_batch():
    with pytest.raises(RuntimeError, match="batch_rng.. has no batch here"):
        batch_rng()
    with pytest.raises(RuntimeError, match="has no batch here"):
        list(DataLoader(Mixed(2), 1, collate_fn=list))


class Seeds(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        info = get_worker_info()
        assert torch.get_num_threads() == 1
        return info.id, index, whims(0)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_seed_worker_keys_workers_and_libraries_apart(method):
    def run(seed):
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(
            Seeds(),
            1,
            num_workers=2,
            worker_init_fn=seed_worker,
            generator=generator,
            multiprocessing_context=method,
            collate_fn=list,
        )
        return flat(loader)

    first = run(1)
    assert first == run(1)
    draws = {draw for sample in first for draw in sample[2][1:]}
    draws |= {draw for sample in run(2) for draw in sample[2][1:]}
    assert len(draws) == 2 * 6 * 4


def test_seed_worker_uses_no_word_twice(monkeypatch):
    given = []
    monkeypatch.setattr("seedcursor._rng.key_globals", given.append)
    seed_worker(0)
    words = np.frombuffer(given[0], dtype=np.uint32)
    assert len(words) == len(set(words.tolist())) == 10


class Threads(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return sys.modules["cv2"].threads


def three_threads(worker):
    sys.modules["cv2"].setNumThreads(3)


def test_workers_cap_the_threads_of_opencv(monkeypatch):
    cv2 = types.ModuleType("cv2")
    cv2.threads = 16
    cv2.setNumThreads = lambda threads: setattr(cv2, "threads", threads)
    monkeypatch.setitem(sys.modules, "cv2", cv2)
    options = {"num_workers": 1, "multiprocessing_context": "fork", "batch_size": None}
    assert list(DataLoader(Threads(), worker_init_fn=seed_worker, **options)) == [0, 0]
    assert list(StatefulDataLoader(Threads(), **options)) == [0, 0]
    assert list(StatefulDataLoader(Threads(), worker_init_fn=three_threads, **options)) == [3, 3]
    assert cv2.threads == 16
