"""The index of a corpus: its shards, and what each has where."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from seedcursor import _checks
from seedcursor._shards._format import ShardFormat
from seedcursor._shards._jsonl import GzipJsonLines, JsonLines
from seedcursor._shards._source import Source, is_url, naming
from seedcursor._shards._tar import Tar

_log = logging.getLogger("seedcursor")

_VERSION = 1
_MARK = b'{"seedcursor_index"'
CHUNK_BYTES = 2**16

Path = str | os.PathLike[str]


@frozen(eq=False)
class Shard:
    """What the index knows of a shard.

    Attributes:
        source: Its bytes, as they were when it was indexed.
        reader: Its format.
        chunks: A row for each: how many records, and where `ShardFormat.read` finds them.
    """

    source: Source
    reader: ShardFormat
    chunks: NDArray[np.int64]

    @property
    def records(self) -> int:
        """How many it has."""
        return int(self.chunks[:, 0].sum())


def index_shards(
    files: Iterable[Path],
    path: Path,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    formats: Sequence[ShardFormat] = (),
) -> int:
    r"""Write the index of a corpus, as ``python -m seedcursor index`` does.

    It is JSON, a line for each shard: its path as seen from the index, its format, size and
    modification time, and its chunks. A chunk is what is read at once.

    Args:
        files: The shards, in the order in which their records are numbered. JSON Lines
            (``.jsonl``), also compressed (``.jsonl.gz``), Parquet (``.parquet``), tar by the
            WebDataset convention (``.tar``), or what ``formats`` knows. Local paths, or URLs that
            ``fsspec`` opens.
        path: Where to write it: a new file, or an index that is to be replaced.
        chunk_bytes: How large a chunk should be. Gzip can be cut only between its members, and
            Parquet only between row groups.
        formats: Formats of your own, which are asked first.

    Returns:
        How many records there are.

    Raises:
        OSError: A shard can't be read, or the index not written.
        ValueError: A shard is malformed, empty, given twice, or of an unknown format; or ``path``
            is a file that is no index.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
        >>> index_shards([folder / "a.jsonl"], folder / "index.json")
        2
    """
    chunk_bytes = _checks.integer("chunk_bytes", chunk_bytes, low=1, limit=2**31)
    if isinstance(files, (str, os.PathLike)):
        raise TypeError(f"files must be a list of paths, got one: {os.fspath(files)!r}")
    names = [os.fspath(file) for file in files]
    names = [name if is_url(name) else os.path.abspath(name) for name in names]
    if not names:
        raise ValueError("files must name at least one shard, got none")
    same = Counter(name if is_url(name) else os.path.realpath(name) for name in names)
    twice = [name for name, count in same.items() if count > 1]
    if twice:
        raise ValueError(f"files must name each shard once, got {twice[0]} twice")
    readers = [_reader_for(name, formats) for name in names]
    path = _target(path)
    with _replacing(path) as file:
        shards = [_scanned(*pair, chunk_bytes) for pair in zip(names, readers, strict=True)]
        file.write(_text(shards, path, chunk_bytes))
    return sum(shard.records for shard in shards)


def open_index(path: Path, formats: Sequence[ShardFormat]) -> list[Shard]:
    """The shards of an index; those that have changed are indexed anew, and the index rewritten.

    Args:
        path: Of the index.
        formats: Formats of the user's own.

    Raises:
        OSError: The index or a shard can't be read, or an index that is stale can't be written.
        ValueError: It is no index, or a shard is malformed.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(
            f"index must be the path of an index, got {type(path).__name__}; index the files by "
            "python -m seedcursor index FILES..., and give its path"
        )
    path = os.path.realpath(path)
    chunk_bytes, shards = _read(path, formats)
    stale = [shard for shard in shards if _stamp(shard, path) != _known(shard)]
    if not stale:
        return shards
    try:
        with _replacing(path) as file:
            fresh = [
                _scanned(shard.source.path, shard.reader, chunk_bytes) if shard in stale else shard
                for shard in shards
            ]
            file.write(_text(fresh, path, chunk_bytes))
    except OSError as error:
        raise OSError(
            f"{path} is stale, for {stale[0].source.path} has changed since, and can't be made "
            f"anew: {error}. Index the files again where it can, by python -m seedcursor index"
        ) from error
    names = ", ".join(shard.source.path for shard in stale)
    _log.warning("%s was stale: indexed anew %s", path, names)
    return fresh


def _known(shard: Shard) -> tuple[int | None, int | str | None]:
    return shard.source.size, shard.source.modified


def _stamp(shard: Shard, index: str) -> tuple[int, int | str]:
    try:
        with naming(shard.source.path):
            return shard.source.stamp()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{shard.source.path} is missing, which {index} names; bring it back, or index the "
            "files that there are by python -m seedcursor index"
        ) from error


def _scanned(path: str, reader: ShardFormat, chunk_bytes: int) -> Shard:
    with naming(path):
        source = Source(path, *Source(path).stamp())
        rows = [row for row in reader.scan(source, chunk_bytes) if row[0]]
        if source.stamp() != (source.size, source.modified):
            raise source.changed("it was written to meanwhile")
    if not rows:
        raise ValueError(f"{path} has no records; leave it out")
    return Shard(source, reader, np.array(rows, dtype=np.int64))


def _parquet() -> ShardFormat:
    try:
        from seedcursor._shards._parquet import Parquet  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("Parquet needs pyarrow: pip install seedcursor[parquet]") from error
    return Parquet()


def _reader_for(name: str, formats: Sequence[ShardFormat]) -> ShardFormat:
    known = [*formats, JsonLines(), GzipJsonLines(), Tar()]
    for reader in known:
        if name.endswith(tuple(reader.suffixes)):
            return reader
    if name.endswith(".parquet"):
        return _parquet()
    if not is_url(name) and os.path.isdir(name):
        raise IsADirectoryError(f"files must be files, got the folder {name}; name what is in it")
    suffixes = [suffix for reader in known for suffix in reader.suffixes]
    raise ValueError(
        f"{name} is of no known format, for it ends in none of "
        f"{', '.join([*suffixes, '.parquet'])}; for others subclass ShardFormat, and pass formats="
    )


def _reader_named(name: str, formats: Sequence[ShardFormat], index: str) -> ShardFormat:
    for reader in [*formats, JsonLines(), GzipJsonLines(), Tar()]:
        if reader.name == name:
            return reader
    if name == "parquet":
        return _parquet()
    raise ValueError(
        f"{index} names a format {name!r} that is not known here; pass formats= as when it was made"
    )


def _target(path: Path) -> str:
    """Where an index may be written, for a slip must not cost anybody a shard."""
    if is_url(os.fspath(path)):
        raise ValueError(f"path must be a local one, got {os.fspath(path)}")
    # Paths in the index are as seen from where it really is.
    path = os.path.realpath(path)
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"path must be in a folder that exists, got {path}; make {folder}")
    if os.path.exists(path):
        with open(path, "rb") as file:
            head = b"".join(file.read(64).split())
            if head and not head.startswith(_MARK):
                raise ValueError(
                    f"path must be a new file, or an index to replace, got {path}, which is no "
                    "index; remove it first, or choose another name"
                )
    return path


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[IO[str]]:
    """A file that takes the place of another in one move, so that nobody reads half of it."""
    # Ranks may write at the same time, on several machines, and threads.
    aside = f"{path}.{platform.node()}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(aside, "w", encoding="utf-8", errors="surrogateescape") as file:
            yield file
        os.replace(aside, path)
    finally:
        if os.path.exists(aside):
            os.unlink(aside)


def _text(shards: Sequence[Shard], path: str, chunk_bytes: int) -> str:
    lines = ",\n".join(json.dumps(_entry(shard, path), ensure_ascii=False) for shard in shards)
    head = f'"seedcursor_index": {_VERSION}, "chunk_bytes": {chunk_bytes}'
    return f'{{{head}, "shards": [\n{lines}\n]}}\n'


def _entry(shard: Shard, index: str) -> dict[str, Any]:
    path = shard.source.path
    if not is_url(path):
        path = os.path.relpath(path, os.path.dirname(index))
    return {
        "path": path,
        "format": shard.reader.name,
        "size": shard.source.size,
        "modified": shard.source.modified,
        "records": shard.records,
        "chunks": shard.chunks.tolist(),
    }


def _read(path: str, formats: Sequence[ShardFormat]) -> tuple[int, list[Shard]]:
    if not os.path.isfile(path):
        found = "is a folder" if os.path.isdir(path) else "does not exist"
        raise FileNotFoundError(
            f"index must be the path of an index, got {path}, which {found}; make one by python "
            "-m seedcursor index FILES..."
        )
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ValueError(
                f"{path} is no index, for it is not JSON: {error}; make one by python -m "
                "seedcursor index FILES..."
            ) from error
    try:
        version = content["seedcursor_index"]
        if version != _VERSION:
            raise ValueError(f"it is of version {version}, and this seedcursor reads {_VERSION}")
        shards = [_shard(entry, path, formats) for entry in content["shards"]]
        return int(content["chunk_bytes"]), shards
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            f"{path} is no index as python -m seedcursor index writes it: {error!r}"
        ) from error


def _shard(entry: dict[str, Any], index: str, formats: Sequence[ShardFormat]) -> Shard:
    path = entry["path"]
    if not is_url(path):
        path = os.path.normpath(os.path.join(os.path.dirname(index), path))
    try:
        chunks = np.array(entry["chunks"], dtype=np.int64).reshape(len(entry["chunks"]), -1)
    except ValueError as error:
        raise TypeError(f"the chunks of {path}: {error}") from error
    reader = _reader_named(entry["format"], formats, index)
    return Shard(Source(path, entry["size"], entry["modified"]), reader, chunks)
