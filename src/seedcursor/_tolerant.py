"""Datasets and streams with records that may be broken."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data import Dataset

from seedcursor import _batch, _checks
from seedcursor._around import Around, map_style
from seedcursor._dataset import SKIP, StatefulIterableDataset


class TolerantDataset(Around, Dataset[Any]):
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
        self.base = map_style(base, " there is TolerantIterableDataset")
        self.at_most = _checks.integer("at_most", at_most)

    def __getitem__(self, index: Any) -> Any:
        return _tried(lambda: self.base[index], f"dataset[{index!r}]", self.at_most)


class TolerantIterableDataset(StatefulIterableDataset[Any]):
    """A stream whose ``sample`` may raise: a few records are passed over, and reported.

    As `TolerantDataset`, for what ``sample(record, index)`` raises. Where ``records`` raises, the
    stream can't go on: read there, and decode in ``sample``.

    Args:
        base: The stream. This one has its seed.
        at_most: How many records a pass may pass over, on each rank.

    Raises:
        TypeError: ``base`` is not a ``StatefulIterableDataset``, or ``at_most`` not an integer.
        ValueError: ``at_most`` is negative.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> class Lines(StatefulIterableDataset):
        ...     def records(self, start):
        ...         return ["1", "2", "three", "4"][start:]
        ...     def sample(self, record, index):
        ...         return int(record)
        >>> loader = StatefulDataLoader(TolerantIterableDataset(Lines(), at_most=1), batch_size=2)
        >>> [batch.tolist() for batch in loader]
        [[1, 2], [4]]
    """

    def __init__(self, base: StatefulIterableDataset[Any], at_most: int) -> None:
        if not isinstance(base, StatefulIterableDataset):
            raise TypeError(
                f"base must be a StatefulIterableDataset, got {type(base).__name__}; for a "
                "map-style dataset there is TolerantDataset"
            )
        super().__init__(seed=base.seed)
        self.base = base
        self._order_digest = getattr(base, "_order_digest", None)
        self.at_most = _checks.integer("at_most", at_most)

    def __len__(self) -> int:
        return len(self.base)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, of the base too.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        super().set_epoch(epoch)
        self.base.set_epoch(epoch)

    def records(self, start: int) -> Iterable[Any]:
        """The base's records.

        Args:
            start: The first record's position.
        """
        return self.base.records(start)

    def sample(self, record: Any, index: int) -> Any:
        """The base's sample, or ``SKIP`` if it raised.

        Args:
            record: As `records` yielded it.
            index: Its position in the epoch.
        """
        name = f"sample(record, {index})"
        return _tried(lambda: self.base.sample(record, index), name, self.at_most)


def _tried(make: Callable[[], Any], name: str, at_most: int) -> Any:
    """What a record makes, or SKIP; where no batch is being built, what it raises."""
    batch = _batch.whole()
    if batch is None:
        return make()
    try:
        return make()
    except Exception as error:
        cause = "".join(traceback.format_exception_only(error)).strip()
        details = "".join(traceback.format_exception(error))
        batch.faults.append(_batch.Fault(name, cause, details, at_most))
        return SKIP
