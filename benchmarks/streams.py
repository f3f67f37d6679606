"""What is measured of corpora of many files: JSON Lines, and tar files, in 64 shards."""

from __future__ import annotations

import functools
import io
import itertools
import json
import random
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import webdataset
from timing import Comparison, exhaust, seconds
from torch.utils.data import DataLoader, IterableDataset

from seedcursor import ShardedDataset, StatefulDataLoader, WindowedSampler, index_shards

BATCH = 64
WINDOW = 1000
SHARDS = 64
RECORDS = 192_000  # of about 520 bytes: 100 MB
TAR_RECORDS = 48_000


def corpus_resume(records: int = RECORDS) -> Comparison:
    """The first batch at 90 % of an epoch, by Hugging Face's own state of a shuffled stream.

    Both sides start with nothing but file names and a state, and shuffle among a thousand records.
    Theirs restores its place, and fills its shuffle buffer anew.
    """
    stream = _hugging_face(records)
    exhaust(itertools.islice(stream, _cursor(records)))
    state = stream.state_dict()

    def theirs() -> Any:
        resumed = _hugging_face(records)
        resumed.load_state_dict(state)
        return next(iter(_batches(resumed)))

    return Comparison(
        against="datasets streaming, its own state",
        at_most=0.2,
        ours=lambda: seconds(lambda: _resumed(records)),
        theirs=lambda: seconds(theirs),
        pairs=5,
    )


def corpus_resume_skipping(records: int = RECORDS) -> Comparison:
    """The same, by reading through the files in order, and decoding nothing before the place."""

    def theirs() -> Any:
        return next(iter(_batches(_Lines(records))))

    return Comparison(
        against="reading lines up to the place",
        at_most=0.2,
        ours=lambda: seconds(lambda: _resumed(records)),
        theirs=lambda: seconds(theirs),
        pairs=5,
    )


def corpus_pass() -> Comparison:
    """A whole shuffled pass, every record decoded, with two workers."""
    loader = _ours(RECORDS, num_workers=2)
    return Comparison(
        against="datasets streaming",
        at_most=1.0,
        ours=lambda: seconds(lambda: exhaust(loader)),
        theirs=lambda: seconds(lambda: exhaust(_batches(_hugging_face(RECORDS), num_workers=2))),
        pairs=2,
    )


def corpus_pass_tar() -> Comparison:
    """The same of tar files, a sample of two files each."""
    loader = _loader(_TarRecords(Path(_tar_folder().name, "index.json")), num_workers=2)

    def theirs() -> Any:
        names = [str(file) for file in _files(_tar_folder(), "tar")]
        stream = webdataset.WebDataset(names, shardshuffle=SHARDS).shuffle(WINDOW).map(_decoded)
        exhaust(_batches(stream, num_workers=2))

    return Comparison(
        against="webdataset",
        at_most=1.0,
        ours=lambda: seconds(lambda: exhaust(loader)),
        theirs=lambda: seconds(theirs),
        pairs=2,
    )


@functools.cache
def _folder(records: int) -> tempfile.TemporaryDirectory[str]:
    """Where the corpus is; it goes with the process."""
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory()
    files = _files(folder, "jsonl")
    for shard, file in enumerate(files):
        with file.open("wb") as lines:
            lines.writelines(line + b"\n" for _, line in _records(shard, records))
    index_shards(files, Path(folder.name, "index.json"))
    return folder


@functools.cache
def _tar_folder() -> tempfile.TemporaryDirectory[str]:
    folder: tempfile.TemporaryDirectory[str] = tempfile.TemporaryDirectory()
    files = _files(folder, "tar")
    for shard, file in enumerate(files):
        with tarfile.open(file, "w") as archive:
            for number, line in _records(shard, TAR_RECORDS):
                for extension, content in (("json", line), ("cls", b"%d" % (number % 10))):
                    member = tarfile.TarInfo(f"{number:06}.{extension}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    index_shards(files, Path(folder.name, "index.json"))
    return folder


def _records(shard: int, records: int) -> Iterator[tuple[int, bytes]]:
    draws = random.Random(shard)
    texts = [" ".join(draws.choices(["lorem", "ipsum", "dolor"], k=80)) for _ in range(100)]
    for number in range(shard, records, SHARDS):
        yield number, json.dumps({"id": number, "text": draws.choice(texts)}).encode()


def _files(folder: tempfile.TemporaryDirectory[str], suffix: str) -> list[Path]:
    return [Path(folder.name, f"{shard:02}.{suffix}") for shard in range(SHARDS)]


class _TarRecords(ShardedDataset):
    """The samples of tar files, decoded."""

    def sample(self, record: dict[str, Any], index: int) -> dict[str, Any]:
        return _decoded(record)


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return {**json.loads(sample["json"]), "class": int(sample["cls"])}


def _loader(dataset: ShardedDataset, **options: Any) -> StatefulDataLoader[Any]:
    sampler = WindowedSampler(dataset, window=WINDOW, block=BATCH)
    return StatefulDataLoader(dataset, BATCH, sampler=sampler, **options)


def _ours(records: int, **options: Any) -> StatefulDataLoader[Any]:
    return _loader(ShardedDataset(Path(_folder(records).name, "index.json")), **options)


def _cursor(records: int) -> int:
    return int(0.9 * records) // BATCH * BATCH


def _resumed(records: int) -> Any:
    loader = _ours(records)
    loader.load_state_dict({"epoch": 0, "cursor": _cursor(records)})
    return next(iter(loader))


def _hugging_face(records: int) -> Any:
    names = [str(file) for file in _files(_folder(records), "jsonl")]
    stream = datasets.load_dataset("json", data_files=names, split="train", streaming=True)
    return stream.shuffle(seed=0, buffer_size=WINDOW)


def _batches(stream: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(stream, BATCH, **options)


class _Lines(IterableDataset[Any]):
    """The last tenth of the records, found by reading the others."""

    def __init__(self, records: int) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        opened = (file.open("rb") for file in _files(_folder(self._records), "jsonl"))
        lines = itertools.chain.from_iterable(opened)
        return map(json.loads, itertools.islice(lines, _cursor(self._records), None))
