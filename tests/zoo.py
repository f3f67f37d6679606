"""Small datasets with known faults, and some that are right. The audit must tell them apart."""

import functools
import hashlib
import itertools
import os
import random
import sys
import time
from typing import NamedTuple

import attrs
import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    get_worker_info,
)

from seedcursor import (
    SeededDataset,
    StatefulDataLoader,
    StatefulDataset,
    StatefulIterableDataset,
    sample_rng,
)

N = 17


class Base(Dataset):
    """Sample i is ``make(self, i)``."""

    def __init__(self, make, n=N, **attributes):
        self.make = make
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.make(self, index)


class Keyed(StatefulDataset):
    def __init__(self, make, n=N, seed=0, **attributes):
        super().__init__(seed=seed)
        self.make = make
        self.n = n
        self.__dict__.update(attributes)

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return self.make(self, index)


# Transforms, nested as libraries nest them.


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


class Sometimes:
    """Flips rarely, on the global RNG."""

    def __init__(self, p):
        self.p = p

    def __call__(self, value):
        return -value if random.random() < self.p else value


class Jitter:
    def __call__(self, value):
        return value + np.random.uniform(-1, 1, 3)


class TorchNoise:
    def __call__(self, value):
        return value + torch.randn(3).numpy()


class Randomizable:
    """MONAI's shape: a RandomState of its own."""

    def __init__(self, seed=None):
        self.R = np.random.RandomState(seed)

    def __call__(self, value):
        return value + self.R.rand()


class PyHolder:
    def __init__(self):
        self.py_random = random.Random(5)

    def __call__(self, value):
        return value + self.py_random.random()


def image(index):
    return np.full(3, float(index))


class VisionLike(Dataset):
    """torchvision's shape."""

    def __init__(self, transform=None, target_transform=None):
        self.data = [image(k) for k in range(N)]
        self.transform = transform
        self.target_transform = target_transform

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        value, target = self.data[index], index % 3
        if self.transform:
            value = self.transform(value)
        if self.target_transform:
            target = self.target_transform(target)
        return value, target


class HubLike:
    """Hugging Face's shape: rows are dicts, and a function transforms batches of them."""

    def __init__(self, function):
        self.function = function

    def __len__(self):
        return N

    def __getitem__(self, index):
        batch = self.function({"text": [f"record {index}"], "label": [index]})
        return {key: values[0] for key, values in batch.items()}

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def drop_words(batch):
    kept = [text if random.random() < 0.5 else "" for text in batch["text"]]
    return batch | {"text": kept}


def add_noise(batch):
    return batch | {"noise": [np.random.standard_normal(2) for _ in batch["text"]]}


SHARED = np.random.default_rng(1)


def augment(value):
    return value + SHARED.normal()


def with_closure():
    rng = np.random.default_rng(3)
    return Base(lambda self, i: i + rng.normal())


@attrs.define(eq=False)
class Fields(Dataset):
    data: list = attrs.field(factory=lambda: list(range(N)))
    rng: np.random.Generator = attrs.field(factory=lambda: np.random.default_rng(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {"x": self.data[index], "noise": [self.rng.random(2)]}


def lazily(self, index):
    if self.rng is None:
        self.rng = np.random.default_rng(0)
    return index + self.rng.random()


# Faults of order.


def in_place(self, index):
    value = self.cache.setdefault(index, np.zeros(2))
    value += index + 1
    return value.copy()


def counted(self, index):
    self.calls += 1
    return index + np.random.default_rng((0, self.calls)).random()


def last_seen(self, index):
    before, self.last = self.last, index
    return torch.tensor([before, index])


def cached_forever(self, index):
    if index not in self.cache:
        self.cache[index] = self.rng(index).normal()
    return self.cache[index]


# Faults of workers.


def worker_keyed(self, index):
    info = get_worker_info()
    worker = 0 if info is None else info.id
    return np.random.default_rng((0, self.epoch, worker, index)).random()


def worker_seeded(self, index):
    info = get_worker_info()
    return index * 0.5 if info is None else index + (info.seed % 1000)


def first_worker_flips(self, index):
    info = get_worker_info()
    return -index if info is not None and info.id == 1 else index


def by_process(self, index):
    return index, os.getpid()


def by_clock(self, index):
    return index, time.perf_counter_ns()


# Faults of epochs.


class Epochs(Dataset):
    """The epoch is a plain attribute, which running workers don't see."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return N

    def __getitem__(self, index):
        return np.random.default_rng((7, self.epoch, index)).normal(size=2)


class SharedEpochs(Epochs):
    """As it should be."""

    def __init__(self):
        self.shared = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch):
        self.shared.fill_(epoch)

    def __getitem__(self, index):
        return np.random.default_rng((7, int(self.shared), index)).normal(size=2)


def fixed_seed(self, index):
    torch.manual_seed(0)
    return index + torch.rand(2)


# Faults of start methods.


class Unpicklable(Dataset):
    def __init__(self):
        self.function = lambda index: index * 2

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.function(index)


class Hashed(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return hash(f"record {index}")


class SomeValues(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return {"x": torch.tensor([float(index), float("nan")]), "y": [index, str(index)]}


# Faults of keys.


def twice(self, index):
    return self.rng(index).normal(), self.rng(index).uniform()


def twice_by_hand(self, index):
    crop = np.random.default_rng((self.epoch, index)).integers(100)
    return crop, np.random.default_rng((self.epoch, index)).normal(size=2)


def named(self, index):
    return self.rng(index, "crop").normal(), self.rng(index, "noise").uniform()


def noisy(self, index):
    return index + self.rng(index).normal()


def one_bit(self, index):
    return int(self.rng(index).integers(2))


class Second(Keyed):
    pass


class Chain(Dataset):
    """A concatenation of the user's own."""

    def __init__(self, *members):
        self.datasets = members

    def __len__(self):
        return sum(map(len, self.datasets))

    def __getitem__(self, index):
        for member in self.datasets:
            if index < len(member):
                return member[index]
            index -= len(member)
        raise IndexError(index)


# Faults of threads.


def matrix(self, index):
    torch.set_num_threads(4)
    return index


def more_threads(self, index):
    torch.set_num_threads(16)
    return torch.ones(2) * index


# Streams.


class Stream(IterableDataset):
    def __init__(self, make, n=20):
        self.make = make
        self.n = n

    def __iter__(self):
        return self.make(self)


def unsharded(self):
    yield from range(self.n)


def unsharded_augmented(self):
    for record in range(self.n):
        yield record, np.random.random()


def share():
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def dealt(self):
    worker, workers = share()
    yield from itertools.islice(range(self.n), worker, None, workers)


def dealt_dicts(self):
    for record in dealt(self):
        yield {"text": f"record {record}", "ids": torch.arange(3) + record}


def floored(self):
    worker, workers = share()
    size = self.n // workers
    yield from range(worker * size, (worker + 1) * size)


def only_first(self):
    worker, workers = share()
    if worker == 0:
        yield from range(0, self.n, workers)


def overlapping(self):
    worker, workers = share()
    size = -(-self.n // workers)
    yield from range(worker * size, min(self.n, (worker + 1) * size + 2))


class Exhausted(IterableDataset):
    """Its records are gone after one epoch."""

    def __init__(self):
        self.records = list(range(20))
        self.left = list(self.records)

    def __iter__(self):
        worker, workers = share()
        if workers == 1:
            while self.left:
                yield self.left.pop(0)
        else:
            yield from self.records[worker::workers]


def tagged(self):
    worker, workers = share()
    for record in itertools.islice(range(self.n), worker, None, workers):
        yield record, worker


def endless(self):
    worker, workers = share()
    yield from itertools.count(worker, workers)


class Bumped(IterableDataset):
    """Counts its own epochs, in a copy that each worker throws away."""

    def __init__(self):
        self.epoch_count = 0

    def __iter__(self):
        order = np.random.default_rng((3, self.epoch_count)).permutation(20)
        self.epoch_count += 1
        worker, workers = share()
        yield from order[worker::workers].tolist()


class Ours(StatefulIterableDataset):
    def records(self, start):
        return iter(range(start, 20))

    def sample(self, record, index):
        return record, self.rng(index).normal()


class FromTheBeginning(Ours):
    """Its records don't begin where they should."""

    def records(self, start):
        return iter(range(20))


class Moving(Ours):
    """Reads on where it stopped the last time."""

    def records(self, start):
        return iter(range(start + (start > 0), 20))


class OursByGlobal(Ours):
    def sample(self, record, index):
        return record + random.random()


# Loaders.


class Repeating(Sampler):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __iter__(self):
        return iter([k // 2 for k in range(self.n)])


class SameOrder(Repeating):
    def __iter__(self):
        return iter(np.random.default_rng(0).permutation(self.n).tolist())


class HoldsOrder(Repeating):
    """Shuffles by a generator of its own, which nobody puts back."""

    def __init__(self, n):
        super().__init__(n)
        self.rng = np.random.default_rng(0)

    def __iter__(self):
        return iter(self.rng.permutation(self.n).tolist())


class LongestFirst(Repeating):
    def __iter__(self):
        return iter(range(self.n - 1, -1, -1))


def all_alike(worker):
    np.random.seed(0)


def half_alike(worker):
    random.seed(worker // 2)


def mix_up(samples):
    share = np.random.beta(0.4, 0.4)
    return torch.tensor(samples, dtype=torch.float64) * share


def plain_stack(samples):
    return torch.tensor(samples)


MIXER = np.random.default_rng(2)


def mix_by_holder(samples):
    return torch.tensor(samples, dtype=torch.float64) * MIXER.random()


def by_index(self, index):
    return float(index)


# Right ones.


class Failing(SomeValues):
    def __getitem__(self, index):
        if index == 5:
            raise ValueError(f"record {index} is broken")
        return super().__getitem__(index)


class Printing(SomeValues):
    def __getitem__(self, index):
        print("reading", index, flush=True)
        print("warning", index, file=sys.stderr)
        return super().__getitem__(index)


def picture(self, index):
    return self.rng(index).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def remembered(self, index):
    if index not in self.cache:
        self.cache[index] = hashlib.sha256(str(index).encode()).hexdigest()
    return self.cache[index]


def slow(self, index):
    time.sleep(0.003)
    return index + self.rng(index).normal()


def idle_draw(self, index):
    random.random()  # for a retry, say: nothing of it is in the sample
    return index


def set_aside(self, index):
    with self.seeded(index):
        return random.random(), np.random.random(), torch.rand(2)


class Sorted(StatefulDataset):
    """An order of its own in each epoch."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return int(self.rng("order").permutation(N)[index])


class Dying(SomeValues):
    def __getitem__(self, index):
        if index == 3:
            os._exit(7)
        return index


class Hanging(SomeValues):
    def __getitem__(self, index):
        if index == 3:
            time.sleep(1000)
        return index


class Broken(SomeValues):
    def __getitem__(self, index):
        raise OSError("the disk is gone")


class Animal(NamedTuple):
    name: str
    make: object
    faults: tuple = ()
    spawn: bool = False


def animal(name, faults, make, spawn=False):
    return Animal(name, make, tuple(faults.split()), spawn)


def fast_loader(dataset, **options):
    return DataLoader(dataset, batch_size=2, num_workers=2, **options)


FAULTY = [
    animal("normal", "unkeyed-numpy", lambda: Base(lambda s, i: i + np.random.normal())),
    animal("jitter", "unkeyed-numpy", lambda: VisionLike(Compose(Compose(Compose(Jitter()))))),
    animal("np bit", "unkeyed-numpy", lambda: Base(lambda s, i: bool(np.random.randint(2)))),
    animal("hub noise", "unkeyed-numpy", lambda: HubLike(add_noise)),
    animal("entropy", "unkeyed-numpy", lambda: Base(lambda s, i: np.random.default_rng().random())),
    animal("randn pair", "unkeyed-numpy", lambda: Base(lambda s, i: np.random.randn())),
    animal("python", "unkeyed-python", lambda: Base(lambda s, i: i + random.random())),
    animal("hub words", "unkeyed-python", lambda: HubLike(drop_words)),
    animal("rare", "unkeyed-python", lambda: VisionLike(Compose(Sometimes(0.001)))),
    animal("py bit", "unkeyed-python", lambda: Base(lambda s, i: random.getrandbits(1))),
    animal("fresh", "unkeyed-python", lambda: Base(lambda s, i: random.Random().random())),
    animal(
        "choice",
        "unkeyed-python",
        lambda: Subset(Base(lambda s, i: random.choice("abc")), [3, 1, 2, 0]),
    ),
    animal("torch", "unkeyed-torch", lambda: Base(lambda s, i: torch.rand(2))),
    animal("torch noise", "unkeyed-torch", lambda: VisionLike(Compose(Compose(TorchNoise())))),
    animal("initial seed", "unkeyed-torch", lambda: Base(lambda s, i: (i, torch.initial_seed()))),
    animal("torch bit", "unkeyed-torch", lambda: Base(lambda s, i: torch.randint(2, ()))),
    animal(
        "held",
        "private-rng",
        lambda: Base(lambda s, i: i + s.rng.normal(), rng=np.random.default_rng(0)),
    ),
    animal("monai", "private-rng", lambda: VisionLike(Compose(Compose(Compose(Randomizable(1)))))),
    animal("holder", "private-rng", lambda: VisionLike(functools.partial(PyHolder()))),
    animal(
        "held torch",
        "private-rng",
        lambda: Base(lambda s, i: torch.rand(2, generator=s.g), g=torch.Generator()),
    ),
    animal("closure", "private-rng", with_closure),
    animal("module", "private-rng", lambda: VisionLike(augment)),
    animal("fields", "private-rng", Fields),
    animal("lazy", "private-rng", lambda: Base(lazily, rng=None)),
    animal(
        "held bit",
        "private-rng",
        lambda: Base(lambda s, i: s.rng.integers(2), rng=np.random.default_rng(0)),
    ),
    animal("held, keyed too", "private-rng", lambda: ConcatDataset([Fields(), Keyed(noisy)])),
    animal("in place", "call-order", lambda: Base(in_place, cache={})),
    animal("counter", "call-order", lambda: Base(counted, calls=0)),
    animal("last seen", "call-order", lambda: Base(last_seen, last=-1)),
    animal("worker key", "worker-count frozen-epoch", lambda: Base(worker_keyed, epoch=0)),
    animal("worker seed", "worker-count", lambda: Base(worker_seeded)),
    animal("worker flip", "worker-count", lambda: Base(first_worker_flips)),
    animal("process", "worker-count", lambda: Base(by_process)),
    animal("clock", "worker-count", lambda: Base(by_clock)),
    animal("stale epoch", "frozen-epoch", Epochs),
    animal(
        "no epoch", "frozen-epoch", lambda: Base(lambda s, i: np.random.default_rng(i).random())
    ),
    animal(
        "frozen bit", "frozen-epoch", lambda: Base(lambda s, i: random.Random(i).getrandbits(1))
    ),
    animal("cached", "frozen-epoch", lambda: Keyed(cached_forever, cache={})),
    animal(
        "reseeded",
        "frozen-epoch",
        lambda: Base(lambda s, i: (torch.manual_seed(i), torch.rand(1))[1]),
    ),
    animal("bumped", "frozen-epoch", Bumped),
    animal("same order", "frozen-epoch", lambda: fast_loader(SomeValues(), sampler=SameOrder(N))),
    animal("fixed seed", "repeated-randomness", lambda: Base(fixed_seed)),
    animal(
        "one seed", "repeated-randomness", lambda: Base(lambda s, i: i + random.Random(9).random())
    ),
    animal(
        "init",
        "repeated-randomness unkeyed-numpy",
        lambda: fast_loader(Base(lambda s, i: i + np.random.rand()), worker_init_fn=all_alike),
    ),
    animal(
        "half",
        "repeated-randomness unkeyed-python",
        lambda: fast_loader(Base(lambda s, i: random.random()), worker_init_fn=half_alike),
    ),
    animal("unsharded", "repeated-records", lambda: Stream(unsharded)),
    animal("overlap", "repeated-records", lambda: Stream(overlapping)),
    animal(
        "unsharded noise", "repeated-records unkeyed-numpy", lambda: Stream(unsharded_augmented)
    ),
    animal("sampler", "repeated-records", lambda: fast_loader(SomeValues(), sampler=Repeating(N))),
    animal("floored", "missing-records", lambda: Stream(floored)),
    animal("first only", "missing-records", lambda: Stream(only_first)),
    animal("exhausted", "missing-records", Exhausted),
    animal("tagged", "worker-count", lambda: Stream(tagged)),
    animal("twice", "same-stream", lambda: Keyed(twice)),
    animal("by hand", "same-stream frozen-epoch", lambda: Base(twice_by_hand, epoch=0)),
    animal("concat", "shared-key", lambda: ConcatDataset([Keyed(noisy), Keyed(noisy)])),
    animal("chain", "shared-key", lambda: Chain(Keyed(noisy), Second(noisy), Base(by_index))),
    animal(
        "wrapped",
        "shared-key",
        lambda: ConcatDataset(
            [SeededDataset(VisionLike(Jitter())), SeededDataset(VisionLike(Jitter()))]
        ),
    ),
    animal("matrix", "threads", lambda: Base(matrix)),
    animal("more threads", "threads", lambda: Base(more_threads)),
    animal("lambda", "start-method", Unpicklable, spawn=True),
    animal("hash", "start-method", Hashed, spawn=True),
    animal("ignores start", "resume", FromTheBeginning),
    animal(
        "held order",
        "resume",
        lambda: StatefulDataLoader(SomeValues(), batch_size=2, sampler=HoldsOrder(N)),
    ),
    animal("skips", "resume", lambda: StatefulDataLoader(Moving(), batch_size=2)),
    animal("loader, held", "private-rng", lambda: StatefulDataLoader(Fields(), batch_size=2)),
    animal("ours, global", "unkeyed-python", OursByGlobal),
    animal("mix-up", "unkeyed-numpy", lambda: fast_loader(Base(by_index), collate_fn=mix_up)),
    animal("mixer", "private-rng", lambda: fast_loader(Base(by_index), collate_fn=mix_by_holder)),
    animal(
        "two",
        "unkeyed-numpy unkeyed-python",
        lambda: Base(lambda s, i: (np.random.rand(), random.random())),
    ),
    animal(
        "three",
        "private-rng unkeyed-numpy unkeyed-torch",
        lambda: VisionLike(Compose(Jitter(), TorchNoise(), PyHolder())),
    ),
    animal(
        "held, counted",
        "call-order private-rng",
        lambda: Base(
            lambda s, i: (in_place(s, i), s.rng.random()), cache={}, rng=np.random.default_rng(0)
        ),
    ),
    animal("dies", "unreadable", Dying),
    animal("broken", "unreadable", Broken),
]

RIGHT = [
    animal("keyed", "", lambda: Keyed(noisy), spawn=True),
    animal("one bit", "", lambda: Keyed(one_bit)),
    animal("streams", "", lambda: Keyed(named)),
    animal("picture", "", lambda: Keyed(picture)),
    animal("values", "", SomeValues, spawn=True),
    animal("tensors", "", lambda: TensorDataset(torch.arange(9.0), torch.arange(9))),
    animal("list", "", lambda: [1, 2, 3]),
    animal("wrapped", "", lambda: SeededDataset(VisionLike(Compose(Jitter(), TorchNoise())))),
    animal("wrapped, draws nothing", "", lambda: SeededDataset(SomeValues())),
    animal("subset", "", lambda: Subset(Keyed(noisy), [4, 2, 9])),
    animal("own seeds", "", lambda: ConcatDataset([Keyed(noisy, seed=1), Keyed(noisy, seed=2)])),
    animal(
        "wrapped whole",
        "",
        lambda: SeededDataset(ConcatDataset([VisionLike(Jitter()), VisionLike(Jitter())])),
    ),
    animal("set aside", "", lambda: Keyed(set_aside)),
    animal("shared epochs", "", SharedEpochs),
    animal("pure function", "", lambda: Keyed(lambda s, i: sample_rng(3, s.epoch, i).random())),
    animal("remembered", "", lambda: Base(remembered, cache={})),
    animal("huge", "", lambda: Keyed(noisy, n=10**15)),
    animal("slow", "", lambda: Keyed(slow)),
    animal("failing", "", Failing),
    animal("printing", "", Printing),
    animal("empty", "", lambda: Base(by_index, n=0)),
    animal("one sample", "", lambda: Keyed(noisy, n=1)),
    animal("idle draw", "", lambda: Base(idle_draw)),
    animal("sorted", "", Sorted),
    animal("dealt", "", lambda: Stream(dealt)),
    animal("dealt dicts", "", lambda: Stream(dealt_dicts, n=31)),
    animal("endless", "", lambda: Stream(endless)),
    animal("empty stream", "", lambda: Stream(dealt, n=0)),
    animal("ours", "", Ours),
    animal("loader", "", lambda: fast_loader(Keyed(noisy))),
    animal("loader, shuffled", "", lambda: fast_loader(SomeValues(), shuffle=True)),
    animal("longest first", "", lambda: fast_loader(SomeValues(), sampler=LongestFirst(N))),
    animal("plain collate", "", lambda: fast_loader(Base(by_index), collate_fn=plain_stack)),
    animal(
        "stateful loader", "", lambda: StatefulDataLoader(Keyed(noisy), batch_size=3, shuffle=True)
    ),
    animal(
        "stateful, global",
        "",
        lambda: StatefulDataLoader(VisionLike(Jitter()), batch_size=3, num_workers=2),
    ),
    animal("stateful stream", "", lambda: StatefulDataLoader(Ours(), batch_size=3)),
]
