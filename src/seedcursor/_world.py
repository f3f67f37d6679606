"""The one place that asks which process this is."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import FrameType

import torch.distributed as dist
from torch.utils.data import _utils, get_worker_info

from seedcursor import _checks


def check_world(rank: object, world_size: object) -> tuple[int, int] | None:
    """The rank and world size that a user gave, or None if neither was given.

    Raises:
        TypeError: One is not an integer.
        ValueError: Only one was given, or the rank is not below the world size.
    """
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ValueError(
            f"rank and world_size go together, got rank={rank!r} and world_size={world_size!r}; "
            "give both, or neither to take torch.distributed's"
        )
    size = _checks.integer("world_size", world_size, low=1, limit=2**31)
    return _checks.integer("rank", rank, limit=size), size


def current_world() -> tuple[int, int]:
    """``(rank, world_size)`` by ``torch.distributed``, else by the launcher, else ``(0, 1)``."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None or size is None:
        return 0, 1
    try:
        world = check_world(int(rank), int(size))
    except ValueError as error:
        raise ValueError(
            f"the environment says RANK={rank!r} and WORLD_SIZE={size!r}: {error}; "
            "unset both, or pass rank= and world_size="
        ) from None
    assert world is not None
    return world


def current_worker() -> tuple[int, int]:
    """``(id, num_workers)`` of this worker process; ``(0, 1)`` in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Inside, ``get_worker_info()`` says that this is no worker; so nobody takes a share."""
    info, _utils.worker._worker_info = _utils.worker._worker_info, None
    try:
        yield
    finally:
        _utils.worker._worker_info = info


def readers() -> Iterator[object]:
    """Whose methods are running: a loader that reads a sampler or a stream doesn't tell it so."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame.f_locals.get("self")
        frame = frame.f_back
