"""What a reader of shards is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from seedcursor._shards._source import Source


class ShardFormat:
    """A file format that shards can have: cut into chunks once, and read a chunk at a time.

    For a format of your own, write `scan` and `read`, and hand an instance to `index_shards` and to
    `ShardedDataset`. It must be picklable if workers are spawned.

    Attributes:
        name: What the index calls it.
        suffixes: How the names of its files end.

    Example:
        >>> from seedcursor import ShardedDataset, index_shards
        >>> import pathlib, tempfile
        >>> class Bytes(ShardFormat):
        ...     name, suffixes = "bytes", (".bytes",)
        ...     def scan(self, source, chunk_bytes):
        ...         size, _ = source.stamp()
        ...         for start in range(0, size, chunk_bytes):
        ...             stop = min(start + chunk_bytes, size)
        ...             yield stop - start, start, stop
        ...     def read(self, source, where):
        ...         return source.read(*where)
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "a.bytes").write_bytes(bytes(range(100)))
        >>> index_shards([folder / "a.bytes"], folder / "index.json", formats=[Bytes()])
        100
        >>> ShardedDataset(folder / "index.json", formats=[Bytes()])[42]
        42
    """

    name: str = ""
    suffixes: tuple[str, ...] = ()

    def scan(self, source: Source, chunk_bytes: int) -> Iterable[tuple[int, ...]]:
        """Cut a shard into chunks, in the order of its records.

        Args:
            source: The shard: ``source.open()`` is its file, ``source.path`` its name.
            chunk_bytes: How large a chunk should be, where the format leaves a choice.

        Returns:
            A tuple for each chunk: how many records it has, and then some ints from which `read`
            finds it, always as many.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define scan(source, chunk_bytes), which yields a tuple "
            "(records, *where) for each chunk of the shard"
        )

    def read(self, source: Source, where: tuple[int, ...]) -> Sequence[Any]:
        """The records of a chunk.

        Args:
            source: The shard: ``source.read(start, stop)`` are some of its bytes.
            where: The ints that `scan` gave.

        Returns:
            As many records as `scan` said. They are kept until each was asked for once, so a
            sequence that decodes a record when it is asked for it takes less memory.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define read(source, where), which returns the records of "
            "a chunk"
        )
