"""Other people's iterables: whatever they do while they are read, everybody reads the same."""

import functools
import itertools
import random
import sys
import traceback

import numpy as np
import pytest
import torch
from pipelines import main_process
from samples import flat
from torch.utils.data import DataLoader, get_worker_info

from seedcursor import IterableMixture, IteratedDataset, StatefulDataLoader, audit

N = 150  # records are read 64 at a time


def make(epoch):
    """Shuffles and draws by the global RNGs, and deals its records to workers."""
    order = list(range(N))
    random.shuffle(order)
    worker = get_worker_info()
    mine = order if worker is None else order[worker.id :: worker.num_workers]
    for k in mine:
        yield epoch, k, random.getrandbits(60), np.random.randint(2**60), int(torch.randint(9, ()))


class Drawing(IteratedDataset):
    """Sample i is its record, and a keyed draw."""

    def sample(self, record, index):
        random.random()  # between two records
        return *record, int(self.rng(index).integers(2**62))


def loaded(batch_size=16, **options):
    dataset = Drawing(make, seed=3)
    return StatefulDataLoader(dataset, batch_size, collate_fn=list, **options)


@functools.cache
def alone(epochs=3):
    dataset, samples = Drawing(make, seed=3), []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        samples.append(list(dataset))
    return samples


def test_each_epoch_has_each_record_once():
    epochs = alone()
    for epoch, samples in enumerate(epochs):
        assert {at for at, *_ in samples} == {epoch}
        assert sorted(k for _, k, *_ in samples) == list(range(N))
    assert len({tuple(k for _, k, *_ in samples) for samples in epochs}) == 3
    assert len({draw for _, _, *both, _, _ in flat(epochs) for draw in both}) == 6 * N


def test_reading_moves_nothing_of_the_process():
    expected = [sample[:2] for sample in alone()[0]]  # which draws
    random.gauss(0, 1), np.random.randn()  # each keeps another one back
    before = main_process()
    assert [record[:2] for record in Drawing(make, seed=3).records(0)] == expected
    assert main_process() == before


SHAPES = [(0, "fork", 7, 1), (0, "fork", 16, 3), (2, "fork", 16, 2), (3, "fork", 9, 1)]


@pytest.mark.parametrize("shape", [*SHAPES, (1, "spawn", 40, 1)])
def test_it_does_not_depend_on_workers_batches_or_ranks(shape):
    workers, method, batch_size, world_size = shape
    dealt = []
    for rank in range(world_size):
        loader = loaded(
            batch_size,
            num_workers=workers,
            multiprocessing_context=method if workers else None,
            rank=rank,
            world_size=world_size,
            pad=False,
        )
        dealt.append([list(loader) for _ in range(2)])
    for epoch in range(2):
        steps = itertools.zip_longest(*(batches[epoch] for batches in dealt), fillvalue=[])
        places = flat(itertools.zip_longest(*step) for step in steps)
        assert [sample for place in places for sample in place if sample] == alone()[epoch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_step_with_another_batch_size(num_workers):
    for steps in range(1, 10, 1 + 3 * (num_workers > 0)):
        first = loaded()
        first.set_epoch(1)
        head = flat(batch for _, batch in zip(range(steps), first, strict=False))
        resumed = loaded(11, num_workers=num_workers)
        resumed.load_state_dict(first.state_dict())
        assert head + flat(resumed) == alone()[1]
        assert flat(resumed) == alone()[2]


def test_a_plain_loader_deals_each_record_once():
    plain = DataLoader(Drawing(make, seed=3), batch_size=None, num_workers=2)
    assert sorted(map(tuple, plain)) == sorted(alone()[0])


class Numbers:
    """The numbers below n, which knows how many were read."""

    def __init__(self, n):
        self.n = n
        self.read = []

    def __iter__(self):
        return self.since(0)

    def since(self, start):
        for k in range(start, self.n):
            self.read.append(k)
            yield k


def test_a_source_that_can_skip_is_not_read_up_to_the_place():
    made = []

    def numbers(epoch):
        made.append(Numbers(100_000))
        return made[-1]

    dataset = IteratedDataset(numbers, skip=Numbers.since)
    loader = StatefulDataLoader(dataset, 10)
    loader.load_state_dict({"epoch": 0, "cursor": 90_000})
    assert next(iter(loader)).tolist() == list(range(90_000, 90_010))
    assert made[-1].read[0] == 90_000
    assert len(made[-1].read) < 100
    reading = StatefulDataLoader(IteratedDataset(numbers), 10)
    reading.load_state_dict({"epoch": 0, "cursor": 90_000})
    assert next(iter(reading)).tolist() == list(range(90_000, 90_010))


DRAWS = {
    "random": random.random,
    "numpy": np.random.rand,
    "gauss": np.random.randn,
    "torch": lambda: torch.rand(3),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_source_that_is_skipped_in_must_not_draw(draw):
    def drawing(epoch):
        for k in range(200):
            if k == 130:
                draw()
            yield k

    assert len(list(IteratedDataset(drawing))) == 200
    dataset = IteratedDataset(drawing, skip=lambda source, n: itertools.islice(source, n, None))
    records = dataset.records(0)
    assert list(itertools.islice(records, 128)) == list(range(128))
    with pytest.raises(ValueError, match="draws nothing from the global RNGs where there is skip"):
        next(records)


@pytest.mark.parametrize("skip", [None, lambda numbers, start: numbers[start:]])
def test_beyond_the_end_there_is_nothing(skip):
    dataset = IteratedDataset(lambda _: range(70), skip=skip, length=70)
    for start in (0, 1, 63, 64, 69, 70, 71, 500):
        assert list(dataset.records(start)) == list(range(start, 70))


def test_a_length_is_a_promise():
    def mixed(length):
        streams = {"a": (IteratedDataset(lambda _: range(70), length=length), 1)}
        return IterableMixture(streams, length=90)

    assert len(IteratedDataset(make, length=N)) == N
    assert len(StatefulDataLoader(IteratedDataset(make, length=N), 16)) == 10
    assert list(mixed(70)) == [*range(70), *range(20)]
    with pytest.raises(TypeError, match="the stream has no length; give IteratedDataset length="):
        len(IteratedDataset(make))
    with pytest.raises(TypeError, match="the stream has no length"):
        mixed(None)
    for length, found in ((69, "more"), (71, "only 70")):
        delivered = []
        words = rf"make\(0\) must return an iterable of length={length} records, got {found}"
        with pytest.raises(ValueError, match=words):
            for k in IteratedDataset(lambda _: range(70), length=length):
                delivered.append(k)
        assert delivered == list(range(min(length, 70)))


def broken(epoch):
    yield from range(70)
    raise OSError("the line is gone")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_comes_where_it_is_and_is_named(num_workers):
    loader = StatefulDataLoader(IteratedDataset(broken), 8, num_workers=num_workers)
    batches, seen = iter(loader), []
    with pytest.raises(OSError, match="the line is gone") as caught:
        for batch in batches:
            seen += batch.tolist()
    assert seen == list(range(64))
    assert (loader.epoch, loader.cursor) == (0, 64)
    if sys.version_info >= (3, 11):  # exceptions have notes
        text = "".join(traceback.format_exception(caught.value))
        assert "in record 70 of what make(0) returned" in text


LINES = iter(range(9))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"make": 3}, TypeError, "make must be callable, got int; give the function itself"),
        ({"make": lambda _: None}, TypeError, "got NoneType; does it lack a yield or a return"),
        ({"skip": 3}, TypeError, "skip must be callable, got int"),
        ({"make": lambda _: 3}, TypeError, "make must return an iterable, got int"),
        ({"make": lambda _: LINES}, ValueError, "another iterable in each call, got the same"),
        ({"length": -1}, ValueError, "length must be an integer in"),
        ({"seed": -1}, ValueError, "seed must be an integer in"),
    ],
)
def test_nonsense_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        IteratedDataset(**{"make": make, **options})


def test_a_skip_that_returns_nothing_is_refused():
    dataset = IteratedDataset(lambda _: range(N), skip=lambda source, start: None)
    assert len(list(dataset.records(0))) == N
    with pytest.raises(TypeError, match="skip must return an iterable, got NoneType"):
        list(dataset.records(1))


def test_an_iterator_that_was_read_before_is_noticed():
    lines = iter(range(9))
    dataset = IteratedDataset(lambda _: map(str, lines))
    assert len(list(dataset)) == 9
    with pytest.raises(
        ValueError, match=r"at least 1 record, got only 0\. Does it hand out an iterator"
    ):
        list(dataset)
    assert list(IteratedDataset(lambda _: (), length=0)) == []


@pytest.mark.parametrize("skip", [None, lambda file, start: itertools.islice(file, start, None)])
def test_files_are_closed(skip, tmp_path):
    path, files = tmp_path / "lines", []
    path.write_text("one\ntwo\nthree\n" * 100)

    def lines(epoch):
        files.append(open(path))  # noqa: SIM115
        return files[-1]

    dataset = IteratedDataset(lines, skip=skip)
    records = dataset.records(2)
    assert next(records) == "three\n"
    del records
    assert len(list(dataset.records(0))) == 300
    assert len(files) == 4
    assert all(file.closed for file in files)


class Moving:
    """Makes records with a generator that is where the last epoch left it."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, epoch):
        return (int(self.rng.integers(2**62)) for _ in range(N))


def test_the_audit_finds_a_generator_that_moves():
    assert audit(Drawing(make), ignore=["start-method"]).ok
    report = audit(IteratedDataset(Moving()), ignore=["start-method"])
    assert [finding.check for finding in report.findings] == ["private-rng"]
