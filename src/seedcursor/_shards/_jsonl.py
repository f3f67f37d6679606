"""JSON Lines, plain and compressed by gzip."""

from __future__ import annotations

import io
import json
import logging
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, overload

from attrs import frozen

from seedcursor._shards._format import ShardFormat
from seedcursor._shards._source import Source

_log = logging.getLogger("seedcursor")

_PIECE = 2**16
_LARGE = 2**26


class JsonLines(ShardFormat):
    """A JSON value on each line; blank lines are passed over."""

    name = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".jsonlines")

    def scan(self, source: Source, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
        """Cut between lines: records, first byte, last byte + 1.

        Args:
            source: The shard.
            chunk_bytes: A chunk is larger by less than a line.
        """
        with source.open() as file:
            start = 0
            while lines := file.readlines(chunk_bytes):
                stop = start + sum(map(len, lines))
                yield len(lines) - sum(map(bytes.isspace, lines)), start, stop
                start = stop

    def read(self, source: Source, where: tuple[int, ...]) -> Sequence[Any]:
        """The lines, each decoded when it is asked for.

        Args:
            source: The shard.
            where: First byte, last byte + 1.
        """
        return _Lines(self, source, where, _lines(self.data(source, where)))

    def data(self, source: Source, where: tuple[int, ...]) -> bytes:
        """A chunk's text.

        Args:
            source: The shard.
            where: As `scan` gave it.
        """
        return source.read(*where)

    def before(self, source: Source, where: tuple[int, ...]) -> Iterator[bytes]:
        """The text before a chunk, in pieces.

        Args:
            source: The shard.
            where: As `scan` gave it.
        """
        with source.open() as file:
            for start in range(0, where[0], _PIECE):
                yield file.read(min(_PIECE, where[0] - start))


class GzipJsonLines(JsonLines):
    """JSON Lines compressed by gzip, in one member or in many, one after another.

    Decompression can start only where a member starts, so chunks are cut there. A file in one piece
    is one chunk, which is read, and held, whole.
    """

    name = "jsonl.gz"
    suffixes = (".jsonl.gz", ".ndjson.gz", ".jsonlines.gz", ".json.gz")

    def scan(self, source: Source, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
        """Cut at the first line of a member: records, first byte, last byte + 1, skipped, length.

        The last two count what is decompressed.

        Args:
            source: The shard.
            chunk_bytes: Smaller members are put together until they are as large.
        """
        largest = 0
        for chunk in self._cut(source, chunk_bytes):
            largest = max(largest, chunk[-1])
            yield chunk
        if largest > _LARGE:
            _log.warning(
                "%s has few places to enter: up to %d MB are decompressed, and held, at once. "
                "Compress some hundred lines at a time, as 'A corpus of many files' in docs shows",
                source.path,
                largest // 10**6,
            )

    def _cut(self, source: Source, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
        with source.open() as file:
            records = place = stop = skip = start = at = 0
            line: list[bytes] = []  # what there is of the line that isn't at its end yet
            fresh: tuple[int, int] | None = None  # a member to cut at, and where its text starts
            for piece in _inflated(source, file):
                if piece.first and fresh is None and at - start >= chunk_bytes:
                    fresh = piece.member, at
                text = piece.text
                if fresh is not None:
                    end = text.find(b"\n") + 1 if line else 0
                    if end or not line:
                        records += _count(b"".join([*line, text[:end]]))
                        at += end
                        yield records, place, piece.stop if end else stop, skip, at - start
                        records, place, skip, start = 0, fresh[0], at - fresh[1], at
                        line, fresh, text = [], None, text[end:]
                stop = piece.stop
                at += len(text)
                end = text.rfind(b"\n") + 1
                if end:
                    records += _count(b"".join([*line, text[:end]]))
                    line = []
                if text[end:]:
                    line.append(text[end:])
            yield records + _count(b"".join(line)), place, stop, skip, at - start

    def data(self, source: Source, where: tuple[int, ...]) -> bytes:
        """A chunk's text.

        Args:
            source: The shard.
            where: As `scan` gave it.
        """
        place, stop, skip, length = where
        pieces, have = [], 0
        for piece in _inflated(source, io.BytesIO(source.read(place, stop)), place):
            pieces.append(piece.text)
            have += len(piece.text)
            if have >= skip + length:
                break
        return b"".join(pieces)[skip : skip + length]

    def before(self, source: Source, where: tuple[int, ...]) -> Iterator[bytes]:
        """The text before a chunk, in pieces.

        Args:
            source: The shard.
            where: As `scan` gave it.
        """
        place, _, skip, _ = where
        left = skip
        with source.open() as file:
            for piece in _inflated(source, file):
                if piece.member < place:
                    yield piece.text
                else:
                    yield piece.text[:left]
                    left -= len(piece.text)
                    if left <= 0:
                        return


@frozen
class _Lines(Sequence[Any]):
    """Lines of JSON, decoded one by one."""

    reader: JsonLines
    source: Source
    where: tuple[int, ...]
    lines: list[bytes]

    def __len__(self) -> int:
        return len(self.lines)

    @overload
    def __getitem__(self, k: int) -> Any: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Any]: ...
    def __getitem__(self, k: int | slice) -> Any:
        if isinstance(k, slice):
            return [self[place] for place in range(*k.indices(len(self)))]
        try:
            # A file may begin with a byte order mark.
            return json.loads(self.lines[k].decode().removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            raise self._bad(k, error) from error

    def _bad(self, k: int, error: Exception) -> ValueError:
        """Find the line in the file, which costs reading it up to there."""
        line = byte = 0
        for piece in self.reader.before(self.source, self.where):
            line += piece.count(b"\n")
            byte += len(piece)
        lines = self.reader.data(self.source, self.where).split(b"\n")
        found = [number for number, text in enumerate(lines) if text and not text.isspace()][k]
        byte += sum(len(text) + 1 for text in lines[:found])
        what = f"line {line + found + 1} is not JSON: {error}"
        return self.source.bad(byte, what)


def _lines(text: bytes) -> list[bytes]:
    return [line for line in text.split(b"\n") if line and not line.isspace()]


def _count(text: bytes) -> int:
    return len(_lines(text))


class _Piece(NamedTuple):
    """Some decompressed text.

    Attributes:
        text: At most what a few bytes decompress to.
        member: The byte where its member starts.
        first: Whether it is the member's first.
        stop: The byte up to which the file was needed.
    """

    text: bytes
    member: int
    first: bool
    stop: int


def _inflated(source: Source, file: IO[bytes], base: int = 0) -> Iterator[_Piece]:
    """What a file decompresses to, which starts at the byte ``base`` of the shard."""
    data = file.read(_PIECE)
    while data:
        decoder = zlib.decompressobj(wbits=31)
        member, first = base + file.tell() - len(data), True
        while not decoder.eof:
            if not data:
                what = f"ends within the gzip member that starts at byte {member}"
                raise source.bad(base + file.tell(), what)
            try:
                text = decoder.decompress(data)
            except zlib.error as error:
                what = f"the gzip member that starts here is broken: {error}"
                raise source.bad(member, what) from error
            yield _Piece(text, member, first, base + file.tell() - len(decoder.unused_data))
            first, data = False, decoder.unused_data or file.read(_PIECE)
        # Zeros may follow, which gzip passes over too.
        while data and not (data := data.lstrip(b"\0")):
            data = file.read(_PIECE)
