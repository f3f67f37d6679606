"""Tar files by the WebDataset convention."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

from seedcursor._shards._format import ShardFormat
from seedcursor._shards._source import Source

_BLOCK = 512
_PIECE = 2**16
# The key is all up to the first dot of the file's own name.
_NAME = re.compile(r"((?:.*/)?[^./][^.]*)\.([^/]+)")


class Tar(ShardFormat):
    """A sample of each run of files that differ only in what follows the first dot of their names.

    A record is a dict: ``"__key__"``, and the bytes of each file by its extension. Files without
    an extension belong to no sample, as in WebDataset.
    """

    name = "tar"
    suffixes = (".tar",)

    def scan(self, source: Source, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
        """Cut between samples: records, first byte, last byte + 1.

        Args:
            source: The shard.
            chunk_bytes: A chunk is larger by less than a sample.
        """
        start = records = end = 0
        with source.open() as file:
            for offset, stop, begins in _places(source, file):
                if begins and offset - start >= chunk_bytes:
                    yield records, start, offset
                    start, records = offset, 0
                records, end = records + begins, stop
            file.seek(end)
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise source.bad(end, "there is no end mark, so the file may be cut short")
            while piece := file.read(_PIECE):
                if piece.strip(b"\0"):
                    what = "there is more after the end mark; join archives by tar --concatenate"
                    raise source.bad(end, what)
        yield records, start, end

    def read(self, source: Source, where: tuple[int, ...]) -> Sequence[Any]:
        """The samples, with all their files' bytes.

        Args:
            source: The shard.
            where: First byte, last byte + 1.
        """
        file = io.BytesIO(source.read(*where))
        samples: list[dict[str, Any]] = []
        for member in _members(source, file):
            key, extension = _named(member)
            if extension is None:
                continue
            if not samples or samples[-1]["__key__"] != key:
                samples.append({"__key__": key})
            content = file.getbuffer()[member.offset_data : member.offset_data + member.size]
            samples[-1][extension] = bytes(content)
        return samples


def _members(source: Source, file: Any) -> Iterator[tarfile.TarInfo]:
    if file.read(_BLOCK) == bytes(_BLOCK):
        return  # of an archive without files tarfile asks twice, which fails before Python 3.11
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                yield member
                archive.members = []  # type: ignore[attr-defined]  # else it keeps them all
    except tarfile.TarError as error:
        raise source.bad(file.tell(), f"is not a whole tar file: {error}") from error


def _places(source: Source, file: Any) -> Iterator[tuple[int, int, bool]]:
    """Where each member starts and ends, and whether a sample begins with it."""
    last: str | None = None
    seen: set[str] = set()
    extensions: set[str] = set()
    for member in _members(source, file):
        key, extension = _named(member)
        begins = extension is not None and key != last
        if begins:
            if key in seen:
                what = f"the key {key!r} has come before, with other samples in between"
                raise source.bad(member.offset, what)
            seen.add(key)
            last, extensions = key, set()
        if extension in extensions:
            raise source.bad(member.offset, f"the key {key!r} has two files {extension!r}")
        if extension is not None:
            if not member.isreg():
                what = f"{member.name!r} is a link; archive with --dereference --hard-dereference"
                raise source.bad(member.offset, what)
            extensions.add(extension)
        yield member.offset, member.offset_data + -(-member.size // _BLOCK) * _BLOCK, begins


def _named(member: tarfile.TarInfo) -> tuple[str, str | None]:
    """A file's key and its extension, None if it belongs to no sample."""
    is_file = member.isreg() or member.islnk() or member.issym()
    found = _NAME.fullmatch(member.name) if is_file else None
    return (found[1], found[2].lower()) if found else (member.name, None)
