"""What PyTorch documents of its ``DataLoader`` holds for ours, by comparison with it."""

import collections
import multiprocessing
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, get_worker_info

from seedcursor import StatefulDataLoader

Pair = collections.namedtuple("Pair", ["left", "right"])


class Rows(Dataset):
    """Rows of many kinds; a list of indices is a whole batch."""

    def __init__(self, n=10):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if isinstance(index, list):
            return [self[k] for k in index]
        return {
            "tensor": torch.arange(3) + index,
            "array": np.full(2, index),
            "pair": Pair(index, float(index)),
            "text": ("row", str(index)),
            "flag": index % 2 == 0,
        }


def same(ours, theirs):
    """Whether two batches are of the same kinds and values."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, torch.Tensor):
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    if isinstance(ours, np.ndarray):
        return ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == theirs


def both(dataset, *arguments, **options):
    return (cls(dataset, *arguments, **options) for cls in (StatefulDataLoader, DataLoader))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 5, "collate_fn": list},
        {"batch_size": 20},
        {"batch_size": 20, "drop_last": True},
        {"batch_size": None},
        {"batch_size": None, "collate_fn": str},
        {"batch_size": 3, "sampler": [7, 1, 1, 4]},
        {"batch_sampler": [[1, 2, 3], [9]]},
        pytest.param(
            {"batch_size": None, "sampler": BatchSampler(SequentialSampler(range(10)), 4, False)},
            id="batches as indices",
        ),
    ],
    ids=str,
)
def test_batches_and_length_are_the_same(workers, options):
    ours, theirs = both(Rows(), num_workers=workers, **options)
    assert same(list(ours), list(theirs))
    assert len(ours) == len(theirs)


def test_arguments_by_place():
    arguments = (4, False, None, None, 1, list, False, True, 60, None, "fork", torch.Generator())
    ours, theirs = both(Rows(), *arguments)
    assert same(list(ours), list(theirs))
    assert len(ours) == len(theirs) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"prefetch_factor": -1, "num_workers": 1},
        {"persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_sampler": [[1]], "shuffle": True},
        {"batch_sampler": [[1]], "sampler": [1]},
        {"batch_sampler": [[1]], "drop_last": True},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
        {"multiprocessing_context": "fork"},
        {"multiprocessing_context": "no", "num_workers": 1},
        {"multiprocessing_context": 5, "num_workers": 1},
        {"no_such_parameter": 1},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_alike(options):
    with pytest.raises((ValueError, TypeError)) as theirs:
        DataLoader(Rows(), **options)
    with pytest.raises(type(theirs.value)) as ours:
        StatefulDataLoader(Rows(), **options)
    # Of integers we say which, what was given and what is allowed.
    name, value = next(iter(options.items()))
    if name in ("num_workers", "batch_size") and value is not None:
        assert str(ours.value).startswith(f"{name} must be an integer")
    else:
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "name", ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
)
def test_what_can_not_be_set_later(name):
    for loader in both(Rows(), 2):
        with pytest.raises(ValueError, match=f"{name} attribute should not be set after"):
            setattr(loader, name, None)


def test_attributes_are_the_same():
    options = {
        "num_workers": 2,
        "timeout": 60,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "drop_last": True,
        "worker_init_fn": print,
        "collate_fn": list,
    }
    dataset, names = Rows(), [*options, "dataset", "batch_size", "pin_memory", "generator"]
    ours, theirs = both(dataset, 4, **options)
    for name in names:
        assert getattr(ours, name) == getattr(theirs, name)


class Broken(Rows):
    def __getitem__(self, index):
        raise KeyError(f"no row {index}")


class UnusualError(ValueError):
    """Can't be made of a message alone, as PyTorch makes it again."""

    def __init__(self, one, two):
        super().__init__(one, two)


class Awkward(Rows):
    def __getitem__(self, index):
        raise UnusualError(1, 2)


def raised(batches):
    """The type of what a pass raises, and the first and the last of its words."""
    # Not by pytest.raises: as long as the traceback lives, so does the pass with its workers.
    try:
        next(batches)
    except Exception as error:
        error.__traceback__ = None
        # Ours adds lines that name the record.
        lines = str(error).partition("seedcursor:")[0].strip().splitlines()
        return type(error), lines[0], lines[-1]
    raise AssertionError("nothing was raised")


def refuse(_):
    raise OSError("not today")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (Broken(), {}),
        (Awkward(), {}),
        (Rows(), {"collate_fn": refuse}),
        (Rows(), {"sampler": [{}]}),
        ([None], {}),
        ([torch.zeros(2), torch.zeros(3)], {"batch_size": 2}),
        (Rows(), {"worker_init_fn": refuse}),
    ],
    ids=["dataset", "awkward", "collate_fn", "index", "none", "shapes", "worker_init_fn"],
)
def test_what_is_raised_is_the_same(workers, dataset, options):
    if workers == 0 and "worker_init_fn" in options:
        options = options | {"collate_fn": refuse}
    ours, theirs = both(dataset, num_workers=workers, **options)
    assert raised(iter(ours)) == raised(iter(theirs))


class Waiting(Rows):
    """Waits for something to come through a pipe."""

    def __init__(self, end):
        super().__init__(1)
        self.end = end

    def __getitem__(self, index):
        return os.read(self.end, 1)


def test_a_worker_that_is_too_slow_times_out():
    for cls in (StatefulDataLoader, DataLoader):
        reading, writing = os.pipe()
        loader = cls(Waiting(reading), num_workers=1, timeout=0.1, multiprocessing_context="fork")
        batches = iter(loader)
        kind, words, _ = raised(batches)
        os.write(writing, b"x")
        assert (kind, words) == (RuntimeError, "DataLoader timed out after 0.1 seconds")
        del batches
        os.close(reading)
        os.close(writing)


class Noted(Rows):
    """Notes each row that is asked for in a pipe."""

    def __init__(self, n, end):
        super().__init__(n)
        self.end = end

    def __getitem__(self, index):
        os.write(self.end, bytes([index]))
        return index


@pytest.mark.parametrize(("workers", "factor"), [(1, 1), (1, 3), (2, 2), (2, None)])
def test_workers_build_so_many_batches_ahead(workers, factor):
    ahead = workers * (2 if factor is None else factor)
    for cls in (StatefulDataLoader, DataLoader):
        reading, writing = os.pipe()
        loader = cls(
            Noted(20, writing),
            num_workers=workers,
            prefetch_factor=factor,
            multiprocessing_context="fork",
        )
        batches = iter(loader)
        next(batches)
        noted = b""
        while len(noted) < ahead + 1:  # one was taken, and so another was asked for
            noted += os.read(reading, 1)
        del batches, loader
        os.close(writing)
        assert os.read(reading, 1) == b""
        os.close(reading)
        assert sorted(noted) == list(range(ahead + 1))


def seen_by_worker(_):
    info = get_worker_info()
    return info.id, info.num_workers, info.seed, torch.initial_seed()


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_know_who_they_are(persistent):
    for loader in both(
        range(4),
        2,
        num_workers=2,
        collate_fn=seen_by_worker,
        persistent_workers=persistent,
        worker_init_fn=seen_by_worker,
    ):
        infos = list(loader)
        assert [info[:2] for info in infos] == [(0, 2), (1, 2)]
        assert infos[1][2] == infos[0][2] + 1  # base_seed + worker id
    assert get_worker_info() is None


def test_a_generator_seeds_the_workers():
    seeds = []
    for cls in (StatefulDataLoader, DataLoader):
        generator = torch.Generator().manual_seed(5)
        loader = cls(range(2), num_workers=2, collate_fn=seen_by_worker, generator=generator)
        seeds.append([[info[2] for info in loader] for _ in range(2)])
    assert seeds[0] == seeds[1]


def note_process(path, worker):
    with open(f"{path}/{worker}", "a") as file:
        file.write(f"{os.getpid()}\n")


@pytest.mark.parametrize(("persistent", "starts"), [(False, 3), (True, 1)])
def test_worker_init_fn_is_called_once_for_each_worker(persistent, starts, tmp_path):
    for name, cls in (("ours", StatefulDataLoader), ("theirs", DataLoader)):
        (tmp_path / name).mkdir()
        loader = cls(
            range(4),
            num_workers=2,
            persistent_workers=persistent,
            worker_init_fn=lambda worker, name=name: note_process(tmp_path / name, worker),
            multiprocessing_context="fork",
        )
        for _ in range(3):
            assert [int(batch) for batch in loader] == [0, 1, 2, 3]
        for worker in range(2):
            processes = (tmp_path / name / str(worker)).read_text().splitlines()
            assert len(processes) == len(set(processes)) == starts


class Own:
    """A batch of a type of its own, with the method that PyTorch looks for."""

    def __init__(self, samples):
        self.rows = torch.stack([row["tensor"] for row in samples])
        self.pinned = False

    def pin_memory(self, device=None):
        self.rows, self.pinned = self.rows.pin_memory(), True
        return self


def unpacked(batch):
    if isinstance(batch, Own):
        return [batch.rows, batch.pinned, batch.rows.is_pinned()]
    return [batch, batch["tensor"].is_pinned(), batch["pair"].left.is_pinned()]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("collate", [None, Own])
def test_memory_is_pinned_alike(workers, collate):
    found = []
    for cls in (StatefulDataLoader, DataLoader):
        # Without an accelerator nothing is pinned, and PyTorch says so.
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            loader = cls(Rows(), 4, num_workers=workers, pin_memory=True, collate_fn=collate)
            batches = [unpacked(batch) for batch in loader]
        found.append((batches, {str(each.message) for each in said}))
    assert same(found[0], found[1])


def nest(samples):
    return torch.nested.nested_tensor([torch.arange(1.0 + int(k)) for k in samples])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")
def test_nested_tensors(workers, pin_memory):
    ours, theirs = (
        [[row.tolist() for row in batch.unbind()] for batch in loader]
        for loader in both(range(5), 2, num_workers=workers, collate_fn=nest, pin_memory=pin_memory)
    )
    assert ours == theirs
    samples = [nest([2, 0]), nest([1, 3])]
    for loader in both(samples, None, num_workers=workers, pin_memory=pin_memory):
        rows = [row.tolist() for sample in loader for row in sample.unbind()]
        assert rows == [[0, 1, 2], [0], [0, 1], [0, 1, 2, 3]]


class Counted(multiprocessing.context.ForkContext):
    """A context of the user's own."""

    def __init__(self):
        super().__init__()
        self.started = 0

    def Process(self, *arguments, **options):  # noqa: N802 - its name there
        self.started += 1
        return super().Process(*arguments, **options)


@pytest.mark.parametrize("as_name", [False, True])
def test_a_context_is_an_object_or_a_name(as_name):
    for cls in (StatefulDataLoader, DataLoader):
        given = "fork" if as_name else Counted()
        loader = cls(Rows(), num_workers=1, multiprocessing_context=given)
        context = loader.multiprocessing_context
        assert context.get_start_method() == "fork"
        list(loader)
        assert as_name or context.started == 1
        # It may be set later.
        other = Counted()
        loader.multiprocessing_context = other
        list(loader)
        assert other.started == 1


UNDECIDED = """
import multiprocessing
import torch
from seedcursor import SeededDataset, StatefulBatchSampler, StatefulDataLoader, StatefulDataset
class Mine(StatefulDataset):
    def __len__(self): return 8
    def __getitem__(self, index): return self.rng(index).normal()
loader = StatefulDataLoader(Mine(), 4, shuffle=True)
for batch in loader: pass
for batch in StatefulDataLoader(SeededDataset(range(8)), 4): pass
list(StatefulBatchSampler(Mine(), 4))
loader.load_state_dict(loader.state_dict())
assert multiprocessing.get_start_method(allow_none=True) is None
multiprocessing.set_start_method("forkserver")
"""


def test_no_start_method_is_chosen_by_iteration_without_workers():
    subprocess.run([sys.executable, "-c", UNDECIDED], check=True)


def test_a_parameter_of_a_newer_pytorch_is_passed_through(monkeypatch):
    given = []
    init = DataLoader.__init__

    def newer(self, *arguments, novel="no", **options):
        given.append(novel)
        init(self, *arguments, **options)

    monkeypatch.setattr(DataLoader, "__init__", newer)
    loader = StatefulDataLoader(Rows(), 4, novel="yes")
    assert len(list(loader)) == 3
    # To the loader itself, and to what works for it.
    assert given == ["yes", "yes"]
