"""What is measured of corpora of many files: 100 MB of JSON Lines in 64 shards."""

from __future__ import annotations

import functools
import itertools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
from timing import Comparison, exhaust, seconds
from torch.utils.data import DataLoader, IterableDataset

from seedcursor import ShardedDataset, StatefulDataLoader, WindowedSampler, index_shards

BATCH = 64
WINDOW = 1000
SHARDS = 64
RECORDS = 192_000  # of about 520 bytes
CURSOR = int(0.9 * RECORDS) // BATCH * BATCH


def corpus_resume() -> Comparison:
    """The first batch at 90 % of an epoch, by Hugging Face's own state of a shuffled stream.

    Both sides start with nothing but file names and a state, and shuffle among a thousand records.
    Theirs restores its place, and fills its shuffle buffer anew.
    """
    stream = _hugging_face()
    exhaust(itertools.islice(stream, CURSOR))
    state = stream.state_dict()

    def theirs() -> Any:
        resumed = _hugging_face()
        resumed.load_state_dict(state)
        return next(iter(_batches(resumed)))

    return Comparison(
        against="datasets streaming, its own state",
        at_most=0.2,
        ours=lambda: seconds(_resumed),
        theirs=lambda: seconds(theirs),
        pairs=5,
    )


def corpus_resume_skipping() -> Comparison:
    """The same, by reading through the files in order, and decoding nothing before the place."""

    def theirs() -> Any:
        return next(iter(_batches(_Lines(CURSOR))))

    return Comparison(
        against="reading lines up to the place",
        at_most=0.2,
        ours=lambda: seconds(_resumed),
        theirs=lambda: seconds(theirs),
        pairs=5,
    )


def corpus_pass() -> Comparison:
    """A whole shuffled pass, every record decoded, with two workers."""
    loader = _ours(num_workers=2)
    return Comparison(
        against="datasets streaming",
        at_most=1.0,
        ours=lambda: seconds(lambda: exhaust(loader)),
        theirs=lambda: seconds(lambda: exhaust(_batches(_hugging_face(), num_workers=2))),
        pairs=3,
    )


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where the corpus is; it goes with the process."""
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory()
    draws = random.Random(0)
    texts = [" ".join(draws.choices(["lorem", "ipsum", "dolor"], k=80)) for _ in range(1000)]
    files = _files(folder)
    for shard, file in enumerate(files):
        with file.open("w") as lines:
            for number in range(shard, RECORDS, SHARDS):
                lines.write(json.dumps({"id": number, "text": draws.choice(texts)}) + "\n")
    index_shards(files, Path(folder.name, "index.json"))
    return folder


def _files(folder: tempfile.TemporaryDirectory[str]) -> list[Path]:
    return [Path(folder.name, f"{shard:02}.jsonl") for shard in range(SHARDS)]


def _ours(**options: Any) -> StatefulDataLoader[Any]:
    dataset = ShardedDataset(Path(_folder().name, "index.json"))
    sampler = WindowedSampler(dataset, window=WINDOW, block=BATCH)
    return StatefulDataLoader(dataset, BATCH, sampler=sampler, **options)


def _resumed() -> Any:
    loader = _ours()
    loader.load_state_dict({"epoch": 0, "cursor": CURSOR})
    return next(iter(loader))


def _hugging_face() -> Any:
    names = [str(file) for file in _files(_folder())]
    stream = datasets.load_dataset("json", data_files=names, split="train", streaming=True)
    return stream.shuffle(seed=0, buffer_size=WINDOW)


def _batches(stream: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, BATCH, **options)


class _Lines(IterableDataset[Any]):
    """The records from one on."""

    def __init__(self, start: int) -> None:
        self._start = start

    def __iter__(self) -> Iterator[Any]:
        opened = (file.open("rb") for file in _files(_folder()))
        lines = itertools.chain.from_iterable(opened)
        return map(json.loads, itertools.islice(lines, self._start, None))
