"""Parquet, by row group."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow
import pyarrow.parquet
from attrs import frozen

from seedcursor._shards._format import ShardFormat
from seedcursor._shards._source import Source


class Parquet(ShardFormat):
    """A record of each row: a dict of its columns. A row group is read, and held, whole."""

    name = "parquet"
    suffixes = (".parquet",)

    def scan(self, source: Source, chunk_bytes: int) -> Iterator[tuple[int, ...]]:
        """A chunk of each row group: records, the row group's number.

        Args:
            source: The shard.
            chunk_bytes: Row groups are as large as whoever wrote them made them.
        """
        metadata = _metadata(source)
        for group in range(metadata.num_row_groups):
            yield metadata.row_group(group).num_rows, group

    def read(self, source: Source, where: tuple[int, ...]) -> Sequence[Any]:
        """The rows, each made to a dict when it is asked for.

        Args:
            source: The shard.
            where: The row group's number.
        """
        metadata = _metadata(source)
        with source.open() as file:
            try:
                opened = pyarrow.parquet.ParquetFile(
                    file, metadata=metadata, pre_buffer=False, page_checksum_verification=True
                )
                # One thread: this runs in forked workers, several on a machine.
                table = opened.read_row_group(where[0], use_threads=False)
            except (pyarrow.ArrowException, OSError) as error:
                raise ValueError(f"{source.path}, row group {where[0]}: {error}") from error
        return _Rows(f"{source.path}, row group {where[0]}", table)


@frozen
class _Rows(Sequence[Any]):
    """Rows of a table, made one by one."""

    name: str
    table: Any

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @overload
    def __getitem__(self, k: int) -> Any: ...
    @overload
    def __getitem__(self, k: slice) -> Sequence[Any]: ...
    def __getitem__(self, k: int | slice) -> Any:
        if isinstance(k, slice):
            return [self[place] for place in range(*k.indices(len(self)))]
        try:
            return self.table.slice(k, 1).to_pylist()[0]
        except ValueError as error:
            raise ValueError(f"{self.name}, row {k}: {error}") from error


@functools.lru_cache(maxsize=128)
def _metadata(source: Source) -> Any:
    """The end of a file, which says where the row groups are, and which would be read each time."""
    with source.open() as file:
        try:
            return pyarrow.parquet.read_metadata(file)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{source.path} is not a whole Parquet file: {error}") from error
