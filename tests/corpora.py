"""Real tables, written out as corpora of many files."""

import csv
import functools
import gzip
import io
import itertools
import json
import os
import tarfile

import pyarrow
import pyarrow.parquet
from fsspec.implementations.local import LocalFileSystem
from vega_datasets import local_data

from seedcursor import ShardedDataset, index_shards

# Uneven, and no multiple of anything.
CUTS = [0, 5, 61, 62, 190, 300, 333, 400]
CHUNK_BYTES = 700  # a few records


@functools.cache
def airports():
    """Four hundred rows, each with a code of its own."""
    text = io.StringIO(local_data.airports.raw().decode())
    return list(csv.DictReader(text))[: CUTS[-1]]


def lines(rows):
    return [json.dumps(row).encode() + b"\n" for row in rows]


def write_jsonl(path, rows):
    path.write_bytes(b"".join(lines(rows)))


def write_gzip(path, rows):
    """A member for every seven rows."""
    pieces = [lines(rows)[k : k + 7] for k in range(0, len(rows), 7)]
    path.write_bytes(b"".join(gzip.compress(b"".join(piece)) for piece in pieces))


def write_gzip_anywhere(path, rows):
    """Members that end within lines, as bgzip makes them."""
    text = b"".join(lines(rows))
    path.write_bytes(b"".join(gzip.compress(text[k : k + 450]) for k in range(0, len(text), 450)))


def write_gzip_whole(path, rows):
    path.write_bytes(gzip.compress(b"".join(lines(rows))))


def write_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=8)


def write_tar(path, rows):
    with tarfile.open(path, "w") as archive:
        for row in rows:
            for extension, content in (("name", row["name"]), ("meta.json", json.dumps(row))):
                add(archive, f"usa/{row['iata']}.{extension}", content.encode())


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


WRITERS = {
    "jsonl": (write_jsonl, ".jsonl"),
    "gzip": (write_gzip, ".jsonl.gz"),
    "gzip-anywhere": (write_gzip_anywhere, ".jsonl.gz"),
    "gzip-whole": (write_gzip_whole, ".jsonl.gz"),
    "parquet": (write_parquet, ".parquet"),
    "tar": (write_tar, ".tar"),
}


def write(folder, kind="jsonl", cuts=CUTS):
    """The shards of the table, in an order of names that is not theirs."""
    writer, suffix = WRITERS[kind]
    rows, files = airports(), []
    for number, (start, stop) in enumerate(itertools.pairwise(cuts)):
        files.append(folder / f"{9 - number}{suffix}")
        writer(files[-1], rows[start:stop])
    return files


def indexed(folder, kind="jsonl", scheme="", chunk_bytes=CHUNK_BYTES):
    """The path of the index of the table."""
    files = [f"{scheme}{file}" for file in write(folder, kind)]
    index_shards(files, folder / "index.json", chunk_bytes=chunk_bytes)
    return folder / "index.json"


class Airports(ShardedDataset):
    """Sample i is ``(i, its code, the epoch, a keyed draw)``."""

    def sample(self, record, index):
        name = record["__key__"].removeprefix("usa/") if "__key__" in record else record["iata"]
        return index, name, self.epoch, int(self.rng(index).integers(2**63))


class Counted(LocalFileSystem):
    """Local files at ``counted://``, which tells who reads what."""

    protocol = "counted"
    log = ""

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("counted://")

    def cat_file(self, path, start=None, end=None, **kwargs):
        with open(self.log, "a") as log:
            log.write(f"{os.getpid()} {end - start}\n")
        return super().cat_file(path, start, end, **kwargs)
