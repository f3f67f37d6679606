"""A loader with a position: its batches, and where it stands. Only for experiments' processes."""

from __future__ import annotations

import itertools
from typing import Any

from torch.utils.data import DataLoader

from seedcursor._audit._digest import digest
from seedcursor._loader import StatefulDataLoader


def batches(
    loader: StatefulDataLoader[Any],
    num_workers: int,
    limit: int,
    state: dict[str, Any] | None = None,
    left: int = 0,
) -> tuple[list[bytes], dict[str, Any]]:
    """Digests of the next batches, and the state after them.

    Args:
        loader: Is changed.
        num_workers: In place of the loader's own.
        limit: The most batches.
        state: Where to resume.
        left: Batches of an epoch before, which is then left; 0 for no such epoch.
    """
    _set_workers(loader, num_workers)
    if left:
        for _ in itertools.islice(loader, left):
            pass
    if state is not None:
        loader.load_state_dict(state)
    found = [digest(batch) for batch in itertools.islice(loader, limit)]
    return found, loader.state_dict()


def _set_workers(loader: StatefulDataLoader[Any], num_workers: int) -> None:
    if loader.num_workers and num_workers:
        return
    # DataLoader has no way to change these, and checks them against each other when it is made.
    values: dict[str, Any] = {"num_workers": num_workers}
    if not num_workers:
        values |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        values["_DataLoader__multiprocessing_context"] = None
    loader.__dict__.update(values)


def sampler_of(loader: DataLoader[Any]) -> Any:
    """What a plain loader takes its batches of indices from, or its indices."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def order(sampler: Any, epochs: int, limit: int) -> list[list[Any]]:
    """The indices, or batches of them, that a sampler gives in each epoch."""
    found = []
    for epoch in range(epochs):
        for part in (sampler, getattr(sampler, "sampler", None)):
            if callable(set_epoch := getattr(part, "set_epoch", None)):
                set_epoch(epoch)
        found.append(list(itertools.islice(sampler, limit)))
    return found


def flat(indices: list[Any]) -> list[Any]:
    """Indices, out of the batches that they may lie in."""
    return [k for item in indices for k in (item if isinstance(item, (list, tuple)) else [item])]
