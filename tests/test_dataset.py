"""The two bases: every member, and every way in which a subclass may come about."""

import copy
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import attrs
import numpy as np
import pytest
import torch
from samples import Keyed, KeyedStream, draws, flat, indices
from torch.utils.data import (
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    Subset,
    get_worker_info,
    random_split,
)

from seedcursor import (
    SKIP,
    StatefulDataLoader,
    StatefulDataset,
    StatefulIterableDataset,
    sample_rng,
)


class Forgetful(StatefulDataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return draws(self, index)[:3]


@dataclass
class Data(StatefulDataset):
    n: int

    __len__ = Forgetful.__len__
    __getitem__ = Forgetful.__getitem__


@dataclass
class DataSeed(Data):
    seed: int = 7


@dataclass(frozen=True)
class Frozen(StatefulDataset):
    seed: int  # no default, which a property of the base would have become
    n: int

    __len__ = Forgetful.__len__
    __getitem__ = Forgetful.__getitem__


@attrs.define
class Slotted(StatefulDataset):
    n: int
    seed: int = 7

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return draws(self, index)[:3]


@attrs.frozen(slots=False)
class FrozenAttrs(StatefulDataset):
    n: int

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return draws(self, index)[:3]


class Picky(Forgetful):
    """Writes its own state, and forgets everything that it does not know."""

    def __init__(self, n):
        super().__init__(n)
        self.lock = threading.Lock()

    def __getstate__(self):
        return {"n": self.n}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self.lock = threading.Lock()


class Replacing(Forgetful):
    """Replaces its attributes, as datasets with open files do."""

    def __init__(self, n, seed):
        StatefulDataset.__init__(self, seed=seed)
        self.n = n

    def __setstate__(self, state):
        self.__dict__ = state


class Private(Forgetful):
    """Uses names that a base class may have wanted."""

    def __init__(self, n):
        self.n = n
        self._root, self._key, self._world, self._epoch = "/data", "image", 3, 5


class Given:
    def __new__(cls, n):
        return super().__new__(cls)


class Second(Forgetful, Given):
    pass


class ReadOnly(Forgetful):
    seed = property(lambda self: 11)

    def __init__(self, n):
        super().__init__(n)
        StatefulDataset.__init__(self)


EVERY = [
    (Replacing(6, 12), 12),
    (Private(6), 0),
    (ReadOnly(6), 11),
    (Forgetful(6), 0),
    (Keyed(6, seed=2**100), 2**100),
    (Data(6), 0),
    (DataSeed(6), 7),
    (DataSeed(6, seed=9), 9),
    (Frozen(seed=9, n=6), 9),
    (Slotted(6), 7),
    (FrozenAttrs(6), 0),
    (Picky(6), 0),
]
IDS = [f"{type(dataset).__name__}-{seed % 100}" for dataset, seed in EVERY]


def expected(seed, epoch, index):
    return index, epoch, int(sample_rng(seed, epoch, index).integers(2**63))


@pytest.mark.parametrize(("dataset", "seed"), EVERY, ids=IDS)
def test_samples_are_functions_of_seed_epoch_and_index(dataset, seed):
    dataset = copy.deepcopy(dataset)
    for epoch in (0, 3, 2**32 - 1):
        dataset.set_epoch(epoch)
        assert dataset.epoch == epoch
        assert [dataset[k] for k in range(6)] == [expected(seed, epoch, k) for k in range(6)]


@pytest.mark.parametrize(("dataset", "seed"), EVERY, ids=IDS)
@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_have_the_same_epoch_and_go_their_own_way(dataset, seed, duplicate):
    dataset = copy.deepcopy(dataset)
    dataset.set_epoch(4)
    other = duplicate(dataset)
    assert type(other) is type(dataset)
    assert other[5] == expected(seed, 4, 5)
    other.set_epoch(8)
    assert other[5] == expected(seed, 8, 5)
    assert dataset[5] == expected(seed, 4, 5)


@pytest.mark.parametrize(("dataset", "seed"), EVERY, ids=IDS)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_set_epoch_reaches_workers_that_run_already(dataset, seed, method):
    dataset = copy.deepcopy(dataset)
    loader = DataLoader(
        dataset,
        2,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context=method,
        collate_fn=list,
    )
    for epoch in (0, 1, 2**32 - 1):
        dataset.set_epoch(epoch)
        assert flat(loader) == [expected(seed, epoch, k) for k in range(6)]


def test_set_epoch_reaches_spawned_workers_through_wrappers():
    dataset = Keyed(9, seed=1)
    first, second = random_split(dataset, [5, 4])
    whole = ConcatDataset([Subset(first, [0, 1]), second])
    loader = DataLoader(
        whole,
        3,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="spawn",
        collate_fn=list,
    )
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        assert {sample[1] for sample in flat(loader)} == {epoch}


def test_seed_is_read_and_set():
    dataset = Keyed(3, seed=np.int64(5))
    assert dataset.seed == 5
    assert type(dataset.seed) is int
    dataset.seed = torch.tensor(6)
    assert dataset[1] == expected(6, 0, 1)
    with pytest.raises(ValueError, match=r"seed must be an integer in \[0, 2\*\*128\), got -1"):
        dataset.seed = -1
    with pytest.raises(TypeError, match="seed must be an integer .* got 'a'"):
        DataSeed(3, seed="a").rng(0)
    assert dataset.seed == 6


def test_a_base_with_arguments_of_its_own():
    assert Second(6)[1] == expected(0, 0, 1)


def test_the_epoch_cannot_be_hidden():
    with pytest.raises(TypeError, match="Hiding has an attribute named epoch"):

        class Hiding(StatefulDataset):
            epoch = 0

    with pytest.raises(AttributeError, match=r"epoch is set by set_epoch\(4\)"):
        Keyed(3).epoch = 4


def test_what_is_stored_is_the_users_own():
    dataset = Data(3)
    assert dataset == Data(3)
    assert repr(dataset) == "Data(n=3)"
    assert attrs.asdict(Slotted(3)) == {"n": 3, "seed": 7}


def test_streams_and_kinds_are_independent():
    dataset = Keyed(3)
    draws = {
        float(dataset.rng(1, stream).random()) for stream in (None, "", "crop", "noise", "index")
    }
    draws.add(float(torch.rand((), generator=dataset.torch_rng(1), dtype=torch.float64)))
    draws.add(float(torch.rand((), generator=dataset.torch_rng(1, "a"), dtype=torch.float64)))
    draws |= {dataset.python_rng(1).random(), dataset.python_rng(1, "a").random()}
    with dataset.seeded(1):
        draws |= {random.random(), float(np.random.rand()), float(torch.rand(()).double())}
    assert len(draws) == 12
    assert dataset.torch_rng(1).get_state().equal(dataset.torch_rng(1).get_state())
    assert dataset.python_rng("a").getstate() == dataset.python_rng("a").getstate()


class Jitter(Keyed):
    def __getitem__(self, index):
        info = get_worker_info()
        assert self.worker_rng is self.worker_rng
        return index, None if info is None else info.id, float(self.worker_rng.random())


def test_worker_rng_belongs_to_a_worker():
    def jitters(seed):
        torch.manual_seed(seed)
        dataset = Jitter(8)
        dataset.worker_rng.random()  # a forked worker must not go on with the parent's
        loader = DataLoader(dataset, 1, num_workers=2, collate_fn=list)
        return [tuple(sample) for sample in flat(loader)]

    torch.manual_seed(3)
    main = [sample[2] for sample in map(Jitter(4).__getitem__, range(4))]
    torch.manual_seed(3)
    assert [sample[2] for sample in map(Jitter(4).__getitem__, range(4))] == main
    first = jitters(1)
    assert first == jitters(1)
    assert first != jitters(2)
    assert len({sample[2] for sample in first} | set(main)) == 12


class Pooled(Keyed):
    """Loads its samples in threads, as some datasets do."""

    def __getitems__(self, wanted):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(self.__getitem__, wanted))


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_of_a_batch_see_its_epoch(workers):
    loader = StatefulDataLoader(Pooled(20), 8, num_workers=workers, collate_fn=list)
    for epoch in range(2):
        assert flat(loader) == [expected(0, epoch, k) for k in range(20)]


def test_loaders_in_threads_do_not_disturb_each_other():
    def run(epoch):
        loader = StatefulDataLoader(Pooled(60, seed=epoch), 4, collate_fn=list)
        loader.set_epoch(epoch)
        return flat(loader)

    class Alone(Pooled):
        __getitems__ = None

    def alone(epoch):
        loader = StatefulDataLoader(Alone(60, seed=epoch), 4, collate_fn=list)
        loader.set_epoch(epoch)
        return flat(loader)

    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(alone, range(3)))
    for epoch, samples in enumerate(results):
        assert samples == [expected(epoch, epoch, k) for k in range(60)]


def test_a_thread_sees_no_batch_of_another_dataset():
    bystander = Keyed(4, seed=3)
    bystander.set_epoch(2)
    seen = []

    class Watching(Keyed):
        def __getitem__(self, index):
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(bystander.__getitem__, 1).result())
                return pool.submit(super().__getitem__, index).result()

    loader = StatefulDataLoader(Watching(4), 2, collate_fn=list)
    loader.set_epoch(9)
    assert {sample[1] for sample in flat(loader)} == {9}
    assert set(seen) == {expected(3, 2, 1)}


class Forking(Keyed):
    """Loads in processes of its own while a batch is built."""

    def __getitem__(self, index):
        inner = DataLoader(Keyed(2), num_workers=1, multiprocessing_context="fork")
        return [int(epoch) for _, epoch, _ in inner]


def test_processes_of_a_batch_see_its_epoch():
    loader = StatefulDataLoader(Forking(2), 1, collate_fn=list)
    assert [flat(loader) for _ in range(2)] == [[[0, 0]] * 2, [[1, 1]] * 2]


def test_lists_named_datasets_are_not_ours_to_read():
    for datasets in (None, len, iter([1])):
        dataset = Keyed(4)
        dataset.datasets = datasets
        assert indices(StatefulDataLoader(dataset, 2, collate_fn=list)) == [0, 1, 2, 3]


def test_a_stream_in_one_process():
    stream = KeyedStream(10, {3, 4}, seed=2)
    stream.set_epoch(6)
    assert list(stream) == [expected(2, 6, k) for k in range(10) if k not in (3, 4)]


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("n", [0, 1, 10])
def test_plain_loaders_get_each_record_of_a_stream_once(workers, n):
    stream = KeyedStream(n, {3}, seed=2)
    loader = DataLoader(stream, 2, num_workers=workers, persistent_workers=True, collate_fn=list)
    for epoch in range(2):
        stream.set_epoch(epoch)
        assert sorted(flat(loader)) == [expected(2, epoch, k) for k in range(n) if k != 3]


class Inside(Dataset):
    """Reads a whole stream for each sample."""

    def __init__(self):
        self.stream = KeyedStream(5)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return list(self.stream)


def test_a_stream_inside_a_batch_is_whole():
    loader = StatefulDataLoader(Inside(), 2, num_workers=2, collate_fn=list)
    for epoch in range(2):
        assert flat(loader) == [[expected(0, epoch, k) for k in range(5)]] * 4


def test_overriding_iter_is_refused_at_class_creation():
    with pytest.raises(TypeError, match=r"Loose overrides __iter__.*Write records\(start\)"):

        class Loose(StatefulIterableDataset):
            def __iter__(self):
                return iter([])

    class Mixin:
        def __iter__(self):
            return iter([])

    with pytest.raises(TypeError, match="Mixed overrides __iter__"):

        class Mixed(Mixin, StatefulIterableDataset):
            pass


def test_records_must_be_written():
    class Bare(StatefulIterableDataset):
        pass

    with pytest.raises(NotImplementedError, match=r"Bare must define records\(start\)"):
        list(Bare())
    with pytest.raises(NotImplementedError, match="Bare must define"):
        list(StatefulDataLoader(Bare(), num_workers=1))


def test_foreign_iterables_are_refused():
    with pytest.raises(TypeError, match="got ChainDataset.*Subclass StatefulIterableDataset"):
        StatefulDataLoader(ChainDataset([KeyedStream(3)]))


def test_skip_is_one_object_everywhere():
    assert pickle.loads(pickle.dumps(SKIP)) is SKIP
    assert copy.deepcopy(SKIP) is SKIP
    assert repr(SKIP) == "SKIP"


class Sized(KeyedStream):
    def __len__(self):
        return self.n


def test_a_stream_with_a_length_has_one_in_the_loader():
    loader = StatefulDataLoader(Sized(10), 4, collate_fn=list)
    assert len(loader) == 3
    assert loader.state_dict()["length"] == 10
    assert indices(loader) == list(range(10))
    assert len(StatefulDataLoader(Sized(10), 4, drop_last=True)) == 2
    with pytest.raises(TypeError, match="len"):
        len(StatefulDataLoader(KeyedStream(10), 4))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_records_are_opened_where_a_worker_begins(workers, tmp_path):
    class Opened(KeyedStream):
        def records(self, start):
            (tmp_path / str(start)).touch()
            return super().records(start)

    loader = StatefulDataLoader(Opened(1000), 4, num_workers=workers, collate_fn=list)
    loader.load_state_dict({"epoch": 0, "cursor": 900})
    assert indices(loader) == list(range(900, 1000))
    starts = sorted(int(path.name) for path in tmp_path.iterdir())
    assert starts == [900 + 4 * worker for worker in range(max(1, workers))]
