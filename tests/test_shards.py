"""Corpora of many files: every record is where the index says, and what is broken is named."""

import gzip
import itertools
import json
import os
import pickle
import resource
import sys
import tarfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pyarrow.parquet
import pytest
from corpora import CUTS, WRITERS, Airports, add, airports, indexed, lines, write, write_tar

from seedcursor import (
    SKIP,
    ShardedDataset,
    ShardFormat,
    StatefulDataLoader,
    WindowedSampler,
    index_shards,
)
from seedcursor.__main__ import main


def as_written(kind):
    rows = airports()
    if kind != "tar":
        return rows
    return [
        {
            "__key__": f"usa/{row['iata']}",
            "name": row["name"].encode(),
            "meta.json": json.dumps(row).encode(),
        }
        for row in rows
    ]


@pytest.mark.parametrize("kind", WRITERS)
def test_each_record_is_as_it_was_written(kind, tmp_path):
    dataset = ShardedDataset(indexed(tmp_path, kind))
    expected = as_written(kind)
    assert len(dataset) == len(expected) == sum(dataset.shard_lengths)
    assert dataset.shard_lengths == [b - a for a, b in itertools.pairwise(CUTS)]
    assert list(dataset) == expected
    assert [dataset[k] for k in (399, 0, 61, 189)] == [expected[k] for k in (399, 0, 61, 189)]
    with pytest.raises(IndexError, match=r"index must be in \[0, 400\), got 400"):
        dataset[400]


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "gzip-anywhere", "parquet", "tar"])
def test_shards_are_cut_into_chunks(kind, tmp_path):
    shards = json.loads(indexed(tmp_path, kind).read_text())["shards"]
    assert max(chunk[0] for shard in shards for chunk in shard["chunks"]) <= 14
    assert len(shards[3]["chunks"]) > 8


def test_the_command_writes_what_a_human_can_read(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    files = [os.path.relpath(file, tmp_path) for file in write(tmp_path / "data")]
    monkeypatch.chdir(tmp_path)
    assert main(["index", *files, "-o", "my.json", "--chunk-bytes", "2000"]) == 0
    assert capsys.readouterr().out == "my.json: 400 records in 7 shards\n"
    text = (tmp_path / "my.json").read_text()
    assert len(text.splitlines()) == len(files) + 2
    first = json.loads(text)["shards"][0]
    size = os.path.getsize(files[0])
    assert first == {
        "path": "data/9.jsonl",
        "format": "jsonl",
        "size": size,
        "modified": os.stat(files[0]).st_mtime_ns,
        "records": 5,
        "chunks": [[5, 0, size]],
    }
    monkeypatch.chdir("/")
    assert list(ShardedDataset(tmp_path / "my.json")) == airports()
    assert main(["index", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "other.json")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


def test_blank_lines_and_a_missing_last_newline(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\n\n\xef\xbb\xbf{"x": 1}\n\n  \r\n{"x": 2}\r\n\n[3]')
    (tmp_path / "b.jsonl.gz").write_bytes(
        gzip.compress(b"\n4\n\n5") + gzip.compress(b"0\n\n6\n") + bytes(20) + gzip.compress(b"7")
    )
    for chunk_bytes in (1, 2**20):
        files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"]
        index_shards(files, tmp_path / "index.json", chunk_bytes=chunk_bytes)
        records = list(ShardedDataset(tmp_path / "index.json"))
        assert records == [{"x": 1}, {"x": 2}, [3], 4, 50, 6, 7]


@pytest.mark.parametrize("members", [1, 2])
def test_a_large_gzip_file_in_one_piece_is_told_of(members, tmp_path, caplog):
    line = b'"' + b"x" * 2**20 + b'"\n'
    pieces = [line * (66 // members)] * members
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(b"".join(gzip.compress(piece, 1) for piece in pieces))
    assert index_shards([file], tmp_path / "index.json") == 66
    told = f"{file} has few places to enter: up to 69 MB are decompressed"
    assert (told in caplog.text) == (members == 1)


def test_tar_samples_follow_the_convention(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        add(archive, "readme", b"no sample")
        add(archive, "x.y/ä" + "long" * 60 + ".JPG", b"1")
        add(archive, "x.y/ä" + "long" * 60 + ".seg.png", b"")
        archive.addfile(tarfile.TarInfo("empty.folder/"))
        add(archive, "b.cls", b"2" * 600)
    index_shards([tmp_path / "a.tar"], tmp_path / "index.json", chunk_bytes=1)
    assert list(ShardedDataset(tmp_path / "index.json")) == [
        {"__key__": "x.y/ä" + "long" * 60, "jpg": b"1", "seg.png": b""},
        {"__key__": "b", "cls": b"2" * 600},
    ]


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "parquet", "tar"])
def test_a_changed_shard_is_indexed_anew(kind, tmp_path, caplog):
    index = indexed(tmp_path, kind)
    before = json.loads(index.read_text())
    writer, suffix = WRITERS[kind]
    shard = tmp_path / f"6{suffix}"
    writer(shard, airports()[190:200])
    rows = as_written(kind)
    rows = [*rows[:62], *rows[190:200], *rows[190:]]
    assert list(ShardedDataset(index)) == rows
    assert f"{index} was stale: indexed anew {shard}" in caplog.text
    after = json.loads(index.read_text())
    assert [a != b for a, b in zip(before["shards"], after["shards"], strict=True)] == [
        k == 3 for k in range(7)
    ]
    caplog.clear()
    assert list(ShardedDataset(index)) == rows
    assert "stale" not in caplog.text
    os.utime(shard, ns=(1, 1))
    ShardedDataset(index)
    assert "stale" in caplog.text


def test_a_stale_index_that_cannot_be_written(tmp_path):
    index = indexed(tmp_path)
    before = index.read_text()
    (tmp_path / "6.jsonl").write_text("1\n")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError, match=rf"{index} is stale, for .*6.jsonl has changed since"):
            ShardedDataset(index)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert index.read_text() == before
    assert len(list(tmp_path.iterdir())) == 8


@pytest.mark.parametrize("slip", ["a.jsonl", "b.txt"])
def test_an_index_replaces_nothing_but_an_index(slip, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / name).write_text('{"x": 1}\n')
    assert main(["index", "a.jsonl", "--output", slip]) == 2
    assert f"got {tmp_path / slip}, which is no index; remove it first" in capsys.readouterr().err
    assert (tmp_path / slip).read_text() == '{"x": 1}\n'
    for content in ("", '{\n  "seedcursor_index": 0}'):
        (tmp_path / "index.json").write_text(content)
        assert index_shards(["a.jsonl"], "index.json") == 1
    assert len(ShardedDataset("index.json")) == 1


def test_where_an_index_cannot_be_is_said_before_anything_is_read(tmp_path):
    class Unread(ShardFormat):
        name, suffixes = "unread", (".jsonl",)

    files = [tmp_path / "a.jsonl"]
    words = f"path must be in a folder that exists, got {tmp_path}/none/index.json; make"
    with pytest.raises(FileNotFoundError, match=words):
        index_shards(files, tmp_path / "none" / "index.json", formats=[Unread()])
    with pytest.raises(ValueError, match="path must be a local one, got memory://index"):
        index_shards(files, "memory://index", formats=[Unread()])


def test_an_index_that_is_linked_to(tmp_path):
    (tmp_path / "corpus").mkdir()
    index = indexed(tmp_path / "corpus")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "index.json"
    link.symlink_to(index)
    assert list(ShardedDataset(link)) == airports()
    (tmp_path / "corpus" / "6.jsonl").write_text("1\n")
    assert 1 in list(ShardedDataset(link))
    assert link.is_symlink()
    assert 1 in list(ShardedDataset(index))
    (tmp_path / "again.jsonl").symlink_to(tmp_path / "corpus" / "6.jsonl")
    with pytest.raises(ValueError, match=r"must name each shard once, got .*6\.jsonl twice"):
        index_shards([tmp_path / "again.jsonl", tmp_path / "corpus" / "6.jsonl"], link)
    index_shards([tmp_path / "again.jsonl"], link)
    assert link.is_symlink()
    assert list(ShardedDataset(index)) == [1]


def test_threads_share_what_is_kept(tmp_path, monkeypatch):
    reads = []
    read = ShardedDataset._read
    monkeypatch.setattr(
        ShardedDataset, "_read", lambda self, chunk: [reads.append(chunk), read(self, chunk)][1]
    )
    dataset = ShardedDataset(indexed(tmp_path))
    shards = json.loads((tmp_path / "index.json").read_text())["shards"]
    chunks = sum(len(shard["chunks"]) for shard in shards)
    with ThreadPoolExecutor(8) as pool:
        for epoch in range(20):
            dataset.set_epoch(epoch)
            assert list(pool.map(dataset.__getitem__, range(400))) == airports()
    assert len(reads) == 20 * chunks


class Gated(ShardFormat):
    """A byte is a record. Whoever scans waits for others, and threads read when they are let."""

    name, suffixes = "gated", (".gated",)
    together = threading.Barrier(1)
    begun = threading.Event()
    let = threading.Event()

    def scan(self, source, chunk_bytes):
        self.together.wait(30)
        yield source.stamp()[0], 0, source.stamp()[0]
        self.together.wait(30)

    def read(self, source, where):
        if threading.current_thread() is not threading.main_thread():
            self.begun.set()
            self.let.wait(30)
        return source.read(*where)


def test_threads_may_open_a_stale_index(tmp_path, monkeypatch):
    (tmp_path / "a.gated").write_bytes(b"1")
    index_shards([tmp_path / "a.gated"], tmp_path / "index.json", formats=[Gated()])
    (tmp_path / "a.gated").write_bytes(b"12")
    monkeypatch.setattr(Gated, "together", threading.Barrier(3))

    def opened(_):
        return len(ShardedDataset(tmp_path / "index.json", formats=[Gated()]))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(opened, range(3))) == [2, 2, 2]


# Python 3.12 warns of just that.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_worker_may_be_forked_while_a_thread_reads(tmp_path):
    (tmp_path / "a.gated").write_bytes(b"123")
    index_shards([tmp_path / "a.gated"], tmp_path / "index.json", formats=[Gated()])
    dataset = ShardedDataset(tmp_path / "index.json", formats=[Gated()])
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(dataset.__getitem__, 0)
        assert Gated.begun.wait(30)
        loader = StatefulDataLoader(
            dataset, 3, num_workers=1, multiprocessing_context="fork", timeout=30
        )
        assert [batch.tolist() for batch in loader] == [[49, 50, 51]]
        Gated.let.set()
        assert reading.result() == 49


def test_a_copy_of_a_dataset_reads_for_itself(tmp_path):
    dataset = Airports(indexed(tmp_path), seed=3)
    assert dataset[7] == pickle.loads(pickle.dumps(dataset))[7]


def test_samples_can_be_skipped(tmp_path):
    class Odd(ShardedDataset):
        def sample(self, record, index):
            return index if index % 2 else SKIP

    dataset = Odd(indexed(tmp_path))
    sampler = WindowedSampler(dataset, window=20, block=16)
    loader = StatefulDataLoader(dataset, 16, sampler=sampler, num_workers=2)
    assert sorted(k for batch in loader for k in batch.tolist()) == list(range(1, 400, 2))


class Held(list):
    """A chunk that can be watched."""

    __hash__ = object.__hash__


class Numbers(ShardFormat):
    """A shard of size n has the records ``0 .. n-1``, in chunks of ten."""

    name, suffixes = "numbers", (".numbers",)

    def __init__(self):
        self.alive = weakref.WeakSet()
        self.reads = 0

    def scan(self, source, chunk_bytes):
        size, _ = source.stamp()
        for start in range(0, size, 10):
            yield min(10, size - start), start

    def read(self, source, where):
        self.reads += 1
        size, _ = source.stamp()
        chunk = Held(range(where[0], min(where[0] + 10, size)))
        self.alive.add(chunk)
        return chunk


@pytest.mark.parametrize("size", [1000, 995])
def test_a_format_of_ones_own_and_what_is_kept(size, tmp_path):
    numbers = Numbers()
    files = [tmp_path / f"{k}.numbers" for k in range(3)]
    for file in files:
        file.write_bytes(bytes(size))
    index_shards(files, tmp_path / "index.json", formats=[numbers])
    dataset = ShardedDataset(tmp_path / "index.json", formats=[numbers], keep=0)
    sampler = WindowedSampler(dataset, window=40, block=8, ranks=2, workers=2)
    most, seen = 0, []
    for batch in StatefulDataLoader(dataset, 8, sampler=sampler):
        seen += batch.tolist()
        most = max(most, len(numbers.alive))
    assert sorted(seen) == sorted([*range(size)] * 3)
    # Of four lanes, each has a window of four chunks, and one more at each end.
    assert most <= 4 * 6
    chunks = 3 * -(-size // 10)
    assert chunks <= numbers.reads <= chunks + 4
    with pytest.raises(ValueError, match="names a format 'numbers' that is not known here"):
        ShardedDataset(tmp_path / "index.json")


def test_what_others_read_is_not_kept_for_the_next_epoch(tmp_path):
    numbers = Numbers()
    files = [tmp_path / f"{k}.numbers" for k in range(7)]
    for file in files:
        file.write_bytes(bytes(333))
    index_shards(files, tmp_path / "index.json", formats=[numbers])
    dataset = ShardedDataset(tmp_path / "index.json", formats=[numbers], keep=0)
    sampler = WindowedSampler(dataset, window=40, block=8, ranks=2, workers=8)
    loader = StatefulDataLoader(dataset, 4, sampler=sampler, rank=0, world_size=2)
    most = 0
    for _ in range(8):
        for batch in loader:
            most = max(most, len(numbers.alive))
            assert len(batch) <= 4
    # Half of sixteen lanes, each with a window, a chunk at each end, and its first one.
    assert most <= 8 * 7


def test_few_records_are_kept_for_other_orders(tmp_path):
    numbers = Numbers()
    (tmp_path / "a.numbers").write_bytes(bytes(1000))
    index_shards([tmp_path / "a.numbers"], tmp_path / "index.json", formats=[numbers])
    dataset = ShardedDataset(tmp_path / "index.json", formats=[numbers], keep=50)
    for batch in StatefulDataLoader(dataset, 10, shuffle=True):
        assert len(batch) == 10
        assert len(numbers.alive) <= 5


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-300])


def bad_line(path):
    content = path.read_bytes().split(b"\n")
    content[100] = b'{"iata": '
    path.write_bytes(b"\n".join(content))


def bad_line_in_gzip(path):
    content = gzip.decompress(path.read_bytes()).split(b"\n")
    content[100] = b'{"iata": '
    pieces = [content[k : k + 9] for k in range(0, len(content), 9)]
    path.write_bytes(b"".join(gzip.compress(b"\n".join(piece) + b"\n") for piece in pieces))


def flipped(path, bits=255):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= bits
    path.write_bytes(content)


def flipped_with_checksums(path):
    table = pyarrow.parquet.read_table(path)
    # Names make up most of it, and stay names when a bit is flipped.
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    names = table.select(["name"])
    pyarrow.parquet.write_table(names, path, write_page_checksum=True, **options)
    flipped(path, 1)


def key_comes_again(path):
    rows = airports()
    write_tar(path, [*rows[:3], rows[0]])


def too_deep(path):
    content = path.read_bytes().split(b"\n")
    content[100] = b"[" * 100_000 + b"]" * 100_000
    path.write_bytes(b"\n".join(content))


def two_files(path):
    with tarfile.open(path, "w") as archive:
        add(archive, "a.txt", b"1")
        add(archive, "a.txt", b"2")


def linked(path):
    with tarfile.open(path, "w") as archive:
        add(archive, "a.txt", b"1")
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.LNKTYPE, "a.txt"
        archive.addfile(link)


def two_archives(path):
    with tarfile.open(path, "w") as archive:
        add(archive, "a.txt", b"1")
        add(archive, "b.txt", b"1")
    path.write_bytes(path.read_bytes() * 2)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def folder(path):
    path.unlink()
    path.mkdir()


BROKEN_WHEN_INDEXED = [
    ("jsonl", lambda path: path.write_bytes(b""), ValueError, "{path} has no records"),
    ("jsonl", lambda path: path.write_bytes(b"\n \n"), ValueError, "{path} has no records"),
    ("jsonl", lambda path: path.unlink(), FileNotFoundError, "{path}"),
    ("jsonl", pipe, OSError, "{path} is not a regular file"),
    ("jsonl", folder, OSError, "{path} is not a regular file"),
    ("gzip", lambda path: path.write_bytes(b""), ValueError, "{path} has no records"),
    ("gzip", cut_short, ValueError, r"{path}, byte \d+: ends within the gzip member that starts"),
    ("gzip-whole", cut_short, ValueError, r"{path}, byte \d+: ends within the gzip .* at byte 0"),
    ("gzip", flipped, ValueError, r"{path}, byte \d+: the gzip member that starts here is broken"),
    ("tar", lambda path: path.write_bytes(b""), ValueError, r"{path}, byte 0: is not a whole tar"),
    ("tar", lambda path: path.write_bytes(bytes(10240)), ValueError, "{path} has no records"),
    ("tar", lambda path: path.write_bytes(b"x" * 999), ValueError, r"{path}, byte \d+: is not a "),
    ("tar", lambda path: os.truncate(path, 2600), ValueError, r"{path}, byte 3071: is not a whole"),
    ("tar", lambda path: os.truncate(path, 2048), ValueError, r"{path}, byte 2048: there is no en"),
    ("tar", key_comes_again, ValueError, r"{path}, byte 6144: the key 'usa/00M' has come before"),
    ("tar", two_files, ValueError, r"{path}, byte 1024: the key 'a' has two files 'txt'"),
    ("tar", linked, ValueError, r"{path}, byte 1024: 'b.txt' is a link; archive with --deref"),
    ("tar", two_archives, ValueError, r"{path}, byte 2048: there is more after the end mark"),
    ("parquet", cut_short, ValueError, "{path} is not a whole Parquet file"),
    ("parquet", lambda path: path.write_bytes(b""), ValueError, "{path} is not a whole Parquet"),
]


@pytest.mark.parametrize(("kind", "damage", "error", "words"), BROKEN_WHEN_INDEXED)
def test_a_broken_shard_is_named_when_it_is_indexed(kind, damage, error, words, tmp_path):
    path = write(tmp_path, kind)[3]
    damage(path)
    files = sorted(tmp_path.iterdir()) if path.exists() else [path]
    with pytest.raises(error, match=words.format(path=path)):
        index_shards(files, tmp_path / "index.json")
    assert not (tmp_path / "index.json").exists()


BROKEN_WHEN_READ = [
    ("jsonl", bad_line, 61 + 1 + 100, r"{path}, byte \d+: line 101 is not JSON: Expecting value"),
    ("jsonl", too_deep, 162, r"{path}, byte \d+: line 101 is not JSON: maximum recursion"),
    ("jsonl", cut_short, 189, r"{path}, byte \d+: line 126 is not JSON: "),
    ("gzip", bad_line_in_gzip, 162, r"{path}, byte \d+: line 101 is not JSON: Expecting value"),
    ("gzip-whole", bad_line_in_gzip, 162, r"{path}, byte \d+: line 101 is not JSON: Expecting"),
    ("parquet", flipped, 62, r"{path}, row group \d+, row \d: .*can't decode"),
    ("parquet", flipped_with_checksums, 62, r"{path}, row group 0: .*CRC checksum"),
]


@pytest.mark.parametrize(
    ("kind", "damage", "index", "words", "num_workers"),
    [*((*case, 0) for case in BROKEN_WHEN_READ), (*BROKEN_WHEN_READ[0], 1)],
)
def test_a_broken_record_is_named_when_it_is_read(
    kind, damage, index, words, num_workers, tmp_path
):
    path = tmp_path / f"6{WRITERS[kind][1]}"
    write(tmp_path, kind)
    damage(path)
    files = sorted(tmp_path.iterdir(), reverse=True)
    index_shards(files, tmp_path / "index.json", chunk_bytes=2**12)
    dataset = ShardedDataset(tmp_path / "index.json")
    loader = StatefulDataLoader(dataset, 8, num_workers=num_workers, collate_fn=list)
    with pytest.raises(ValueError, match=words.format(path=path)) as caught:
        list(loader)
    if sys.version_info >= (3, 11):  # exceptions have notes
        said = [str(caught.value), *getattr(caught.value, "__notes__", [])]
        assert "the batch at epoch 0, position " in "".join(said)
    position = loader.cursor
    assert position <= max(index, 189) < position + 200


def test_the_byte_of_a_bad_line_is_right(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(lines(airports()[:50])) + b"\n\noops\n1\n")
    byte = path.read_bytes().index(b"oops")
    for file in (path, path.with_suffix(".jsonl.gz")):
        if file != path:
            text = path.read_bytes()
            file.write_bytes(
                b"".join(gzip.compress(text[k : k + 99]) for k in range(0, byte + 7, 99))
            )
        index_shards([file], tmp_path / "index.json", chunk_bytes=500)
        dataset = ShardedDataset(tmp_path / "index.json")
        assert len(dataset) == 52
        with pytest.raises(ValueError, match=rf"{file}, byte {byte}: line 53 is not JSON"):
            dataset[50]


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "parquet", "tar"])
def test_a_shard_that_changes_while_it_is_used(kind, tmp_path):
    dataset = ShardedDataset(indexed(tmp_path, kind))
    path = tmp_path / f"6{WRITERS[kind][1]}"
    before = os.stat(path)
    WRITERS[kind][0](path, airports()[200:300])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert dataset[0] == as_written(kind)[0]
    with pytest.raises(ValueError, match=f"{path} has changed since it was indexed: it had"):
        dataset[100]
    path.write_bytes(bytes(before.st_size))
    with pytest.raises(
        ValueError, match=f"{path} has changed since it was indexed: it was written"
    ):
        dataset[100]
    pipe(path)
    with pytest.raises(OSError, match=f"{path} is not a regular file"):
        dataset[100]
    path.unlink()
    with pytest.raises(FileNotFoundError, match=str(path)):
        dataset[100]
    with pytest.raises(FileNotFoundError, match=f"{path} is missing, which .*index.json names"):
        ShardedDataset(tmp_path / "index.json")


def test_urls_that_fsspec_opens(tmp_path, monkeypatch):
    for kind in ("jsonl", "gzip", "parquet", "tar"):
        urls = []
        for file in write(tmp_path, kind):
            urls.append(f"memory://{kind}/{file.name}")
            fsspec.filesystem("memory").pipe(urls[-1], file.read_bytes())
        index_shards(urls, tmp_path / "index.json", chunk_bytes=2000)
        dataset = ShardedDataset(tmp_path / "index.json")
        assert list(dataset) == as_written(kind)
    files = fsspec.filesystem("memory")
    files.pipe("memory://jsonl/9.jsonl", b"1\n2\n")
    index_shards(["memory://jsonl/9.jsonl"], tmp_path / "index.json")
    dataset = ShardedDataset(tmp_path / "index.json")
    files.pipe("memory://jsonl/9.jsonl", b"1\n")
    with pytest.raises(ValueError, match="memory://jsonl/9.jsonl has changed since .* at byte 2"):
        dataset[0]
    assert list(ShardedDataset(tmp_path / "index.json")) == [1]
    files.pipe("memory://jsonl/9.jsonl", b"\n\n2")
    index_shards(["memory://jsonl/9.jsonl"], tmp_path / "index.json")
    dataset = ShardedDataset(tmp_path / "index.json")
    files.pipe("memory://jsonl/9.jsonl", b"2\n3")
    with pytest.raises(ValueError, match="a chunk had 1 records, and has 2"):
        dataset[0]
    files.rm("memory://jsonl/9.jsonl")
    with pytest.raises(FileNotFoundError, match="memory://jsonl/9.jsonl is missing, which"):
        ShardedDataset(tmp_path / "index.json")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ImportError, match="memory://jsonl/9.jsonl needs fsspec"):
        dataset[0]


def test_what_goes_wrong_while_reading_names_the_shard(tmp_path):
    class Failing(ShardFormat):
        name, suffixes = "failing", (".bin",)
        error = None

        def scan(self, source, chunk_bytes):
            yield 1, 0

        def read(self, source, where):
            raise self.error

    path = tmp_path / "a.bin"
    path.write_bytes(b"1")
    index_shards([path], tmp_path / "index.json", formats=[Failing()])
    dataset = ShardedDataset(tmp_path / "index.json", formats=[Failing()])
    Failing.error = OSError(5, "Input/output error")
    with pytest.raises(OSError, match=rf"{path} can't be read: \[Errno 5\] Input/output error"):
        dataset[0]
    Failing.error = KeyError("x")
    with pytest.raises(KeyError) as caught:
        dataset[0]
    if sys.version_info >= (3, 11):  # exceptions have notes
        assert caught.value.__notes__ == [f"seedcursor: while {path} was read"]
    with pytest.raises(FileNotFoundError, match=r"memory://none/a\.jsonl can't be read: "):
        index_shards(["memory://none/a.jsonl"], tmp_path / "index.json")
    with pytest.raises(ValueError, match=r"zork://a\.jsonl can't be opened: .*zork"):
        index_shards(["zork://a.jsonl"], tmp_path / "index.json")


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    index = indexed(tmp_path, "parquet")
    monkeypatch.delitem(sys.modules, "seedcursor._shards._parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"Parquet needs pyarrow: pip install seedcursor\[par"):
        ShardedDataset(index)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is no index, for it is not JSON"),
        ("[1]", "is no index as python -m seedcursor index writes it"),
        ("{}", "is no index as python -m seedcursor index writes it"),
        ('{"seedcursor_index": 2}', "it is of version 2, and this seedcursor reads 1"),
        ('{"seedcursor_index": 1, "shards": [{"path": 3}], "chunk_bytes": 1}', "is no index as"),
        (
            '{"seedcursor_index": 1, "chunk_bytes": 1, "shards": [{"path": "a.jsonl", "size": 1,'
            '"modified": 1, "format": "jsonl", "chunks": [[1, 2], [3]]}]}',
            "is no index as .*the chunks of .*a.jsonl",
        ),
    ],
)
def test_what_is_no_index_is_refused(content, words, tmp_path):
    (tmp_path / "index.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        ShardedDataset(tmp_path / "index.json")


def test_nonsense_is_refused(tmp_path):
    index = indexed(tmp_path)
    files = [tmp_path / "9.jsonl", tmp_path / "9.jsonl"]
    with pytest.raises(ValueError, match=r"must name each shard once, got .*9.jsonl twice"):
        index_shards(files, index)
    with pytest.raises(TypeError, match=r"files must be a list of paths, got one: '.*9.jsonl'"):
        index_shards(files[0], index)
    with pytest.raises(IsADirectoryError, match=f"files must be files, got the folder {tmp_path};"):
        index_shards([tmp_path], index)
    for given, error, words in (
        (files, TypeError, "index must be the path of an index, got list; index the files by"),
        (tmp_path, FileNotFoundError, f"got {tmp_path}, which is a folder; make one by python -m"),
        (tmp_path / "no", FileNotFoundError, "no, which does not exist; make one by python -m s"),
    ):
        with pytest.raises(error, match=words):
            ShardedDataset(given)
    with pytest.raises(IndexError, match=r"index must be in \[0, 400\), got -1"):
        ShardedDataset(index)[-1]
    with pytest.raises(ValueError, match="files must name at least one shard"):
        index_shards([], index)
    with pytest.raises(ValueError, match="chunk_bytes must be an integer in"):
        index_shards(files[:1], index, chunk_bytes=0)
    (tmp_path / "a.csv").write_text("1")
    with pytest.raises(ValueError, match=r"a.csv is of no known format.* \.parquet"):
        index_shards([tmp_path / "a.csv"], index)
    with pytest.raises(TypeError, match="keep must be an integer"):
        ShardedDataset(index, keep="all")
    with pytest.raises(NotImplementedError, match="must define scan"):
        list(ShardFormat().scan(None, 1))
    with pytest.raises(NotImplementedError, match="must define read"):
        ShardFormat().read(None, ())
