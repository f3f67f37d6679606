"""The main promise: the same samples to the bit, however they are loaded and wherever it stops."""

import functools
import itertools
import json
import multiprocessing

import pytest
from samples import Keyed, KeyedStream, Mapped, Stream, flat
from torch.utils.data import ConcatDataset, Subset, random_split

from seedcursor import StatefulDataLoader

N, BATCH = 46, 8
SKIPPED = {1, 3, 19, 45, *range(24, 32)}  # 24..31 is a whole batch
KINDS = ["shuffled", "ordered", "stream"]

multiprocessing.set_forkserver_preload(["torch", "samples"])


def load(kind, **options):
    dataset = Stream(N, SKIPPED, seed=5) if kind == "stream" else Mapped(N, seed=5)
    shuffle = None if kind == "stream" else kind == "shuffled"
    return StatefulDataLoader(dataset, BATCH, shuffle, collate_fn=list, **options)


@functools.cache
def uninterrupted(kind, epochs=3):
    loader = load(kind)
    return [list(loader) for _ in range(epochs)]


def test_the_reference_is_what_it_should_be():
    for kind in KINDS:
        for epoch, batches in enumerate(uninterrupted(kind)):
            indices = [sample[0] for sample in flat(batches)]
            expected = set(range(N)) - (SKIPPED if kind == "stream" else set())
            assert len(indices) == len(expected)
            assert set(indices) == expected
            assert (indices == sorted(indices)) == (kind != "shuffled")
            assert all(sample[1] == epoch for sample in flat(batches))
        draws = [sample[2:] for batches in uninterrupted(kind) for sample in flat(batches)]
        for column in zip(*draws, strict=True):
            assert len(set(column)) == len(draws)
    assert [len(batch) for batch in uninterrupted("stream")[0]] == [6, 8, 7, 8, 5]


# Each worker that spawn starts takes seconds.
CREWS = [
    crew
    for crew in itertools.product(["fork", "spawn", "forkserver"], [False, True], [1, 2, 3])
    if crew[0] != "spawn" or crew[2] == 2
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("method", "persistent", "workers"), CREWS)
def test_workers_change_nothing(kind, workers, persistent, method):
    loader = load(
        kind,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=method,
    )
    assert [list(loader) for _ in range(3)] == uninterrupted(kind)


def stop_after(loader, steps):
    """The batches of some steps, and the state as a checkpoint would have it."""
    batches = []
    for _, batch in zip(range(steps), loader, strict=False):
        batches.append(batch)
    return batches, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epoch", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 3), (3, 1)])
def test_interrupted_at_every_step(kind, epoch, before, after):
    full = uninterrupted(kind, 4)
    for step in range(1, len(full[epoch]) + 1):
        first = load(kind, num_workers=before)
        first.set_epoch(epoch)
        head, state = stop_after(first, step)
        resumed = load(kind, num_workers=after)
        resumed.load_state_dict(state)
        tail = []
        if step < len(full[epoch]):
            tail = list(resumed)
        else:
            with pytest.warns(UserWarning, match="pass is empty"):
                tail = list(resumed)
        assert head + tail == full[epoch]
        assert list(resumed) == full[epoch + 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_twice_in_one_epoch(kind, workers):
    parts = []
    state = {"epoch": 1, "cursor": 0}
    for steps in (2, 1, 99):
        loader = load(kind, num_workers=workers)
        loader.load_state_dict(state)
        batches, state = stop_after(loader, steps)
        parts += batches
    assert parts == uninterrupted(kind)[1]
    assert (state["epoch"], state["cursor"]) == (2, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_saved_after_the_last_batch_and_after_the_end(kind):
    loader = load(kind, num_workers=2)
    batches = iter(loader)
    for _ in uninterrupted(kind)[0]:
        next(batches)
    assert loader.cursor == N
    assert next(batches, None) is None
    resumed = load(kind)
    resumed.load_state_dict(loader.state_dict())
    assert (resumed.epoch, resumed.cursor) == (1, 0)
    assert list(resumed) == uninterrupted(kind)[1]


@pytest.mark.parametrize("dataset", [Keyed(N), KeyedStream(N, SKIPPED)], ids=["map", "stream"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_another_batch_size_after_the_resume(dataset, epoch):
    def load(batch_size, workers):
        shuffle = None if isinstance(dataset, KeyedStream) else True
        return StatefulDataLoader(
            dataset, batch_size, shuffle, num_workers=workers, collate_fn=list
        )

    whole = load(1, 0)
    whole.set_epoch(epoch)
    samples = flat(whole)
    for step in range(1, 5):
        first = load(BATCH, 2)
        first.set_epoch(epoch)
        head, state = stop_after(first, step)
        for batch_size in (1, 5, 64):
            resumed = load(batch_size, 1)
            resumed.load_state_dict(state)
            assert flat(head) + flat(resumed) == samples


def test_single_samples_without_batches():
    def load(kind, **options):
        dataset = Stream(12, {4}) if kind == "stream" else Mapped(12)
        return StatefulDataLoader(dataset, None, **options)

    for kind in ("map", "stream"):
        full = list(load(kind))
        assert [sample[0] for sample in full] == [k for k in range(12) if k != 4 or kind == "map"]
        assert list(load(kind, num_workers=2)) == full
        loader = load(kind, num_workers=2)
        head = [sample for _, sample in zip(range(5), loader, strict=False)]
        resumed = load(kind)
        resumed.load_state_dict(loader.state_dict())
        assert head + list(resumed) == full


def wrapped():
    first, second = random_split(Keyed(12, seed=3), [8, 4])
    return {
        "subset": Subset(Keyed(20, seed=3), range(3, 19, 2)),
        "concat": ConcatDataset([Keyed(5, seed=3), Keyed(6, seed=4)]),
        "split": first,
        "nested": ConcatDataset([Subset(second, [2, 0]), Keyed(3, seed=8)]),
    }


@pytest.mark.parametrize("name", ["subset", "concat", "split", "nested"])
@pytest.mark.parametrize("workers", [0, 2])
def test_wrappers_do_not_hide_the_epoch(name, workers):
    dataset = wrapped()[name]
    loader = StatefulDataLoader(
        dataset,
        3,
        shuffle=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=list,
    )
    for epoch in range(3):
        samples = flat(loader)
        assert len(samples) == len(dataset)
        assert {sample[1] for sample in samples} == {epoch}
        part = dataset if name != "concat" else None
        if part is not None and isinstance(dataset, Subset):
            inner = dataset.dataset
            inner.set_epoch(epoch)
            assert sorted(samples) == sorted(inner[k] for k in dataset.indices)
            inner.set_epoch(0)


def test_two_loaders_over_one_dataset():
    dataset = Keyed(20)
    train = StatefulDataLoader(dataset, 4, shuffle=True, num_workers=2, collate_fn=list)
    alone = [flat(train) for _ in range(2)]
    train.load_state_dict({"epoch": 0, "cursor": 0})
    other = StatefulDataLoader(dataset, 5, collate_fn=list)
    other.set_epoch(7)
    seen = []
    for batch in train:
        seen += batch
        assert {sample[1] for sample in flat(other)} == {7}
        other.set_epoch(7)
    assert seen == alone[0]
    assert flat(train) == alone[1]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_two_passes_of_one_loader_zipped(workers, persistent):
    def load():
        return StatefulDataLoader(
            Keyed(20),
            4,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent and workers > 0,
            collate_fn=list,
        )

    reference = load()
    epochs = [list(reference) for _ in range(3)]
    loader = load()
    pairs = list(zip(loader, loader, strict=True))
    assert [first for first, _ in pairs] == epochs[0]
    assert [second for _, second in pairs] == epochs[0]
    assert list(loader) == epochs[1]

    older = iter(loader)
    head = [next(older)]
    newer = iter(loader)
    assert next(newer) == load_epoch(load(), 3)[0]
    assert head + list(older) == epochs[2]
    assert (loader.epoch, loader.cursor) == (3, 4)


def load_epoch(loader, epoch):
    loader.set_epoch(epoch)
    return list(loader)


class Nested(Keyed):
    """Each sample goes through a loader of its own, as some few-shot datasets do."""

    def __getitem__(self, index):
        inside = StatefulDataLoader(Keyed(6, seed=index), 4, shuffle=True, collate_fn=list)
        samples = flat(inside)
        stream = flat(StatefulDataLoader(KeyedStream(5), 2, collate_fn=list))
        return super().__getitem__(index), samples, stream


def test_a_loader_inside_a_worker():
    def load(workers):
        return StatefulDataLoader(Nested(8), 3, num_workers=workers, collate_fn=list)

    alone = list(load(0))
    outer, samples, stream = alone[0][1]
    assert outer == Keyed(8)[1]
    assert sorted(sample[0] for sample in samples) == list(range(6))
    assert [sample[0] for sample in stream] == list(range(5))
    assert list(load(2)) == alone


def test_replay_builds_the_batch_again():
    for kind in KINDS:
        loader = load(kind, num_workers=2)
        full = uninterrupted(kind)
        starts = [0, 8, 16, 32, 40] if kind == "stream" else range(0, N, BATCH)
        for _ in range(2):
            next(iter(loader))
        state = loader.state_dict()
        for epoch in (0, 2):
            for cursor, batch in zip(starts, full[epoch], strict=True):
                assert loader.replay(epoch=epoch, cursor=cursor) == batch
        assert loader.state_dict() == state
        with pytest.raises(ValueError, match="no batch starts at epoch=0, cursor=46"):
            loader.replay(epoch=0, cursor=N)
        if kind == "stream":
            with pytest.raises(ValueError, match="no batch starts"):
                loader.replay(epoch=0, cursor=24)
        else:
            with pytest.raises(ValueError, match="cursor must be at most the length 46"):
                loader.replay(epoch=0, cursor=N + 1)
