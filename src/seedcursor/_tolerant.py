"""Anybody's dataset, with records that may be broken."""

from __future__ import annotations

import traceback
from typing import Any

from torch.utils.data import Dataset, IterableDataset

from seedcursor import _batch, _checks
from seedcursor._dataset import SKIP


class TolerantDataset(Dataset[Any]):
    """Any map-style dataset, whose records may raise: a few are passed over, and reported.

    Under a ``StatefulDataLoader``, a record that raises is left out of its batch, which is so much
    shorter, and the position counts it, so that every other sample stays where it was. Its index,
    the epoch and the error are logged as a warning by the logger ``"seedcursor"``, in the main
    process, when the batch is handed over. Elsewhere the error is raised: nobody would count it.

    Records should be broken wherever they are read. If one rank alone can't read them, for its
    disk is full, then the ranks go on with different batches for the same steps.

    Args:
        base: A map-style dataset: ``torchvision``'s, a ``StatefulDataset``. What its
            ``__getitem__`` draws should be keyed by the index, so that a record that raises midway
            leaves nobody else's draws moved: put a ``SeededDataset`` around this one if it draws
            from the global RNGs. Its ``__getitems__`` is not used.
        at_most: How many records a pass may pass over, on each rank, those of other tolerant
            parts of the loader's dataset included. One more raises ``RuntimeError``, with the
            record's own traceback in it, and the position stays before its batch. A pass that
            resumes counts from 0.

    Raises:
        TypeError: ``base`` is not map-style, or ``at_most`` not an integer.
        ValueError: ``at_most`` is negative.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> class Photos:
        ...     def __len__(self):
        ...         return 6
        ...     def __getitem__(self, index):
        ...         if index == 4:
        ...             raise OSError("truncated file")
        ...         return index
        >>> loader = StatefulDataLoader(TolerantDataset(Photos(), at_most=1), batch_size=3)
        >>> [batch.tolist() for batch in loader]
        [[0, 1, 2], [3, 5]]
    """

    def __init__(self, base: Any, at_most: int) -> None:
        if isinstance(base, IterableDataset) or not hasattr(base, "__getitem__"):
            raise TypeError(
                f"base must be a map-style dataset, with __getitem__ and __len__, got "
                f"{type(base).__name__}; a stream's sample() may return SKIP where it would raise"
            )
        self.base = base
        self.at_most = _checks.integer("at_most", at_most)

    def __len__(self) -> int:
        return len(self.base)

    def __getattr__(self, name: str) -> Any:
        # Not while an unpickled object is still empty.
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.base, name)

    def __getitem__(self, index: Any) -> Any:
        batch = _batch.own()
        if batch is None:
            return self.base[index]
        try:
            return self.base[index]
        except Exception as error:
            cause = "".join(traceback.format_exception_only(error)).strip()
            details = "".join(traceback.format_exception(error))
            batch.faults.append(_batch.Fault(index, cause, details, self.at_most))
            return SKIP
