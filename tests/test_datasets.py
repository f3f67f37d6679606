"""Hugging Face ``datasets``: Arrow tables, their transforms and formats."""

import random

import datasets
import numpy as np
import pytest
import torch
from children import run
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, default_collate
from training import N, loaded, steps, train

from seedcursor import (
    SeededDataset,
    StatefulBatchSampler,
    StatefulDataLoader,
    seeded,
)
from seedcursor.integrations.datasets import HuggingFaceStream

EPOCH = 2


def table():
    return datasets.Dataset.from_dict({"index": list(range(N)), "value": [k / 2 for k in range(N)]})


def noise():
    return random.random() + np.random.random() + float(torch.rand(()))


def noisy(rows):
    """A transform of whole batches that draws from each global RNG."""
    return {"index": rows["index"], "value": [value + noise() for value in rows["value"]]}


def transformed():
    return table().with_transform(noisy)


def set_in_place():
    dataset = table()
    dataset.set_transform(noisy)
    return dataset


def mapped():
    rows = table().map(lambda row: {"value": row["value"] * 2})
    return rows.shuffle(seed=4).select(range(3, 17)).with_transform(noisy)


def samples(batches):
    """Each batch's rows."""
    return [
        (int(index), float(value))
        for batch in batches
        for index, value in zip(batch["index"], batch["value"], strict=True)
    ]


def by_hand(dataset):
    """Each row, transformed alone, with the global RNGs keyed for it."""
    rows = []
    for k in range(len(dataset)):
        with seeded(3, EPOCH, k):
            row = dataset[k]
        rows.append((row["index"], row["value"]))
    return rows


@pytest.mark.parametrize("make", [transformed, set_in_place, mapped])
@pytest.mark.parametrize(
    ("workers", "batch_size", "world_size"), [(0, 4, 1), (0, 1, 1), (2, 5, 1), (1, 2, 3)]
)
def test_a_row_depends_on_seed_epoch_and_index_alone(make, workers, batch_size, world_size):
    expected = sorted(by_hand(make()))
    rows = []
    for rank in range(world_size):
        loader = StatefulDataLoader(
            SeededDataset(make(), seed=3),
            batch_size,
            shuffle=True,
            num_workers=workers,
            rank=rank,
            world_size=world_size,
            pad=False,
        )
        loader.set_epoch(EPOCH)
        rows += samples(loader)
    assert sorted(rows) == expected


def test_a_plain_loader_gets_the_same():
    dataset = SeededDataset(transformed(), seed=3)
    sampler = StatefulBatchSampler(dataset, 4)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2)
    sampler.set_epoch(EPOCH)
    assert sorted(samples(sampler.track(loader))) == sorted(by_hand(transformed()))


def test_rows_are_fetched_by_batches_where_nothing_is_drawn():
    fetched = []

    def halved(rows):
        fetched.append(len(rows["index"]))
        return {"index": rows["index"], "value": [value / 2 for value in rows["value"]]}

    loader = StatefulDataLoader(SeededDataset(table().with_transform(halved)), 4)
    assert samples(loader) == [(k, k / 4) for k in range(N)]
    assert fetched == [4, 4, 4, 4, 4, 2]


@pytest.mark.parametrize("wrap", [SeededDataset, lambda dataset: dataset])
def test_its_formats_are_kept(wrap):
    for name, kind in (("torch", torch.Tensor), ("numpy", np.integer), (None, int)):
        dataset = wrap(table().with_format(name))
        batches = list(StatefulDataLoader(dataset, 4, shuffle=True, collate_fn=list))
        rows = [row for batch in batches for row in batch]
        assert all(isinstance(row["index"], kind) for row in rows)
        collated = list(StatefulDataLoader(dataset, 4, shuffle=True, num_workers=1))
        for ours, theirs in zip(collated, map(default_collate, batches), strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_untouched_it_is_exact_for_any_number_of_workers_and_resumes():
    # Keyed per batch, and so not independent of the batch size.
    full = [samples([batch]) for batch in StatefulDataLoader(transformed(), 4, shuffle=True)]
    loader = StatefulDataLoader(transformed(), 4, shuffle=True, num_workers=2)
    batches = iter(loader)
    for step in range(1, 4):
        assert samples([next(batches)]) == full[step - 1]
        again = StatefulDataLoader(transformed(), 4, shuffle=True, num_workers=1)
        again.load_state_dict(loader.state_dict())
        assert [samples([batch]) for batch in again] == full[step:]


def test_its_columns_stay_reachable():
    dataset = SeededDataset(table())
    assert dataset.column_names == ["index", "value"]
    assert (len(dataset), dataset.num_rows) == (N, N)


def streamed():
    """Shuffled shards and rows, and a transform of batches that draws."""
    stream = table().to_iterable_dataset(num_shards=4).shuffle(seed=1, buffer_size=6)
    return stream.map(noisy, batched=True, batch_size=5)


def interleaved():
    streams = [table().to_iterable_dataset(num_shards=2), table().to_iterable_dataset()]
    mixed = datasets.interleave_datasets(
        streams, probabilities=[0.3, 0.7], seed=4, stopping_strategy="all_exhausted"
    )
    return mixed.with_format("torch")


def stream_loader(make, batch_size, **options):
    return StatefulDataLoader(HuggingFaceStream(make(), seed=3), batch_size, **options)


@pytest.mark.parametrize("make", [streamed, interleaved])
def test_a_stream_does_not_depend_on_workers_batches_or_ranks(make):
    epochs = [samples(loader) for loader in [stream_loader(make, 4)] for _ in range(3)]
    assert len({tuple(rows) for rows in epochs}) == 3
    if make is streamed:
        assert all(sorted(k for k, _ in rows) == list(range(N)) for rows in epochs)
        assert len({value for rows in epochs for _, value in rows}) == 3 * N
    for workers, batch_size, world_size in ((2, 3, 1), (3, 5, 1), (1, 2, 2)):
        options = {"num_workers": workers, "world_size": world_size, "pad": False}
        loaders = [
            stream_loader(make, batch_size, rank=rank, **options) for rank in range(world_size)
        ]
        for expected in epochs[:2]:
            rows = [row for loader in loaders for row in samples(loader)]
            assert sorted(rows) == sorted(expected)
            assert rows == expected or world_size > 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_resumes_at_every_step_with_another_batch_size(workers):
    full = stream_loader(streamed, 4)
    epochs = [samples(full) for _ in range(3)]
    for step in range(1, 6, 1 + 2 * (workers > 0)):
        loader = stream_loader(streamed, 4)
        loader.set_epoch(1)
        head = samples(batch for _, batch in zip(range(step), loader, strict=False))
        again = stream_loader(streamed, 3, num_workers=workers)
        again.load_state_dict(loader.state_dict())
        assert head + samples(again) == epochs[1]
        assert samples(again) == epochs[2]


def test_a_streams_own_epoch_is_left_alone():
    stream = streamed()
    stream.set_epoch(5)
    loader = StatefulDataLoader(HuggingFaceStream(stream, seed=3, length=N), 4, num_workers=1)
    assert samples(loader) == samples(stream_loader(streamed, 4))
    assert stream.epoch == 5
    assert len(loader) == 6


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (table, TypeError, "must be a datasets.IterableDataset, got Dataset; a datasets.Dataset"),
        (
            lambda: split_dataset_by_node(table().to_iterable_dataset(), 0, 2),
            ValueError,
            "got one that split_dataset_by_node has split; leave that out",
        ),
        (
            lambda: table().to_iterable_dataset(num_shards=2).shuffle(buffer_size=3).map(noisy),
            ValueError,
            r"dataset\._ex_iterable.* was made without a seed, .* give shuffle\(\)",
        ),
        (
            lambda: datasets.interleave_datasets(
                [table().to_iterable_dataset()] * 2, probabilities=[0.5, 0.5]
            ),
            ValueError,
            r"give shuffle\(\) or interleave_datasets\(\) a seed",
        ),
    ],
)
def test_streams_that_can_not_be_exact_are_refused(make, error, words):
    with pytest.raises(error, match=words):
        HuggingFaceStream(make())


def test_streams_are_refused_with_what_to_write():
    stream = table().to_iterable_dataset()
    with pytest.raises(TypeError, match=r"told where to resume.*records.*IteratedDataset\(make\)"):
        StatefulDataLoader(stream, 4)
    with pytest.raises(TypeError, match="IterableDataset; for a stream, subclass Stateful"):
        SeededDataset(stream)
    with pytest.raises(TypeError, match="IterableDataset"):
        StatefulBatchSampler(stream, 4)


def job(path):
    def noted(rows):
        for index in rows["index"]:
            loaded(path, index)
        rows = noisy(rows)
        values = [torch.full((3,), value, dtype=torch.float64) for value in rows["value"]]
        return {"index": rows["index"], "value": values}

    dataset = SeededDataset(table().with_transform(noted), seed=3)
    return Loop(StatefulDataLoader(dataset, 4, shuffle=True, num_workers=2))


class Loop:
    """What ``train`` loops over."""

    def __init__(self, loader):
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def batches(self, epoch):
        return ((batch["index"], batch["value"]) for batch in self.loader)


def test_a_killed_run_goes_on_to_the_bit(tmp_path):
    (tmp_path / "whole").mkdir()
    run(train, tmp_path / "whole", "full", job)
    run(train, tmp_path, "killed", job, 14, killed=True)
    run(train, tmp_path, "resumed", job)
    resumed = steps(tmp_path, "resumed")
    assert steps(tmp_path, "killed") + resumed == steps(tmp_path / "whole", "full")
    # Each worker's first batch is read twice, before it is known that the transform draws.
    delivered = {index for step in resumed for index in step["indices"]}
    noted = (tmp_path / "resumed.loaded").read_text().splitlines()
    assert {int(line) for line in noted} == delivered
    assert len(delivered) == N - 2 * 4
