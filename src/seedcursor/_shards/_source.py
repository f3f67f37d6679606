"""Where a shard's bytes are: in a local file, or at a URL that fsspec opens."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import IO, Any

from attrs import frozen

from seedcursor import _batch


@frozen
class Source:
    """A shard's bytes.

    Attributes:
        path: Of a local file, or a URL such as ``"s3://bucket/file"``.
        size: In bytes, as it was when the shard was indexed; None if that is not known yet.
        modified: Its modification time then, in nanoseconds; of a URL what fsspec tells.
    """

    path: str
    size: int | None = None
    modified: int | str | None = None

    def stamp(self) -> tuple[int, int | str]:
        """Size and modification time, as they are now.

        Raises:
            OSError: There is no such file, or it is no regular one.
        """
        if is_url(self.path):
            files, path = _opened(self.path)
            return int(files.info(path)["size"]), str(files.ukey(path))
        return self._checked(os.stat(self.path))

    def open(self) -> IO[bytes]:
        """The shard, opened for reading bytes.

        Raises:
            OSError: It can't be opened.
            ValueError: It has changed since it was indexed.
        """
        if is_url(self.path):
            files, path = _opened(self.path)
            opened: IO[bytes] = files.open(path, "rb")
            return opened
        self.stamp()  # a pipe would let open() wait for ever
        file = open(self.path, "rb")  # noqa: SIM115  # whoever asked closes it
        try:
            now = self._checked(os.fstat(file.fileno()))
            if self.size is not None and now != (self.size, self.modified):
                sizes = f"it had {self.size} bytes then and has {now[0]} now"
                raise self.changed("it was written to" if now[0] == self.size else sizes)
        except BaseException:
            file.close()
            raise
        return file

    def read(self, start: int, stop: int) -> bytes:
        """Some of the shard's bytes, and no others.

        Args:
            start: The first byte.
            stop: The one after the last.

        Raises:
            OSError: It can't be read.
            ValueError: It has changed since it was indexed, or ends early.
        """
        if is_url(self.path):
            files, path = _opened(self.path)
            data: bytes = files.cat_file(path, start, stop)
        else:
            with self.open() as file:
                file.seek(start)
                data = file.read(stop - start)
        if len(data) != stop - start:
            raise self.changed(f"it ends at byte {start + len(data)}, before byte {stop}")
        return data

    def changed(self, how: str) -> ValueError:
        """An error that says that the shard isn't what was indexed.

        Args:
            how: What is different.
        """
        return ValueError(
            f"{self.path} has changed since it was indexed: {how}. Open the dataset again, which "
            "indexes it anew"
        )

    def bad(self, byte: int, what: str) -> ValueError:
        """An error about a place in the shard.

        Args:
            byte: Where it is.
            what: What is wrong there.
        """
        return ValueError(f"{self.path}, byte {byte}: {what}")

    def _checked(self, found: os.stat_result) -> tuple[int, int]:
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{self.path} is not a regular file, which a shard must be")
        return found.st_size, found.st_mtime_ns


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Whatever goes wrong inside says what was read.

    Args:
        path: Of the shard.
    """
    try:
        yield
    except Exception as error:
        if path in str(error):
            raise
        if isinstance(error, OSError):
            kind = FileNotFoundError if isinstance(error, FileNotFoundError) else OSError
            raise kind(f"{path} can't be read: {error}") from error
        _batch.note(error, f"while {path} was read")
        raise


def is_url(path: str) -> bool:
    """Whether fsspec is to open it."""
    return "://" in path


def _opened(url: str) -> tuple[Any, str]:
    # Anew each time: a connection doesn't survive a fork, and fsspec remembers what does.
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415
    except ImportError as error:
        raise ImportError(f"{url} needs fsspec: pip install fsspec") from error
    try:
        files, path = url_to_fs(url)
    except ValueError as error:
        raise ValueError(f"{url} can't be opened: {error}") from error
    return files, path
