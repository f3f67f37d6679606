"""The two bases whose samples draw by key."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeVar

import numpy as np
from torch.utils.data import Dataset, IterableDataset

from seedcursor import _batch, _checks, _record, _rng, _world
from seedcursor._keyed import Keyed, world_of
from seedcursor._record import Index

T_co = TypeVar("T_co", covariant=True)


def sample_rng(
    seed: int, epoch: int, index: Index, stream: str | None = None
) -> np.random.Generator:
    """The pure function behind ``StatefulDataset.rng``, for use anywhere.

    Args:
        seed: The root seed, in ``[0, 2**128)``.
        epoch: In ``[0, 2**32)``.
        index: Which record: an int in ``[0, 2**64)`` or a record id.
        stream: A name that separates draws for the same record.

    Returns:
        A new ``numpy.random.Generator``, equal for equal arguments.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range.

    Example:
        >>> ours = sample_rng(seed=7, epoch=2, index=5)
        >>> words = np.random.SeedSequence(7, spawn_key=(2, 5))
        >>> ours.random() == np.random.default_rng(words).random()
        True
    """
    return _rng.generator(
        _checks.seed(seed), _checks.epoch(epoch), _record.index(index), _checks.stream(stream)
    )


class StatefulDataset(Keyed, Dataset[T_co]):
    """A map-style dataset whose samples draw by key: a sample is a function of its index and epoch.

    Subclass it, write ``__len__`` and ``__getitem__``, and draw from ``self.rng(index)``. A
    subclass may forget ``super().__init__()``, and may be an attrs class or a dataclass; then the
    seed is 0, or the field named ``seed``.

    Args:
        seed: The root seed, in ``[0, 2**128)``, the same on every rank. Give datasets that are
            used together seeds of their own: the same seed and index draw the same.

    Raises:
        TypeError: ``seed`` is not an integer.
        ValueError: ``seed`` is out of range.

    Example:
        >>> class Noisy(StatefulDataset):
        ...     def __init__(self, values, seed=0):
        ...         super().__init__(seed=seed)
        ...         self.values = values
        ...     def __len__(self):
        ...         return len(self.values)
        ...     def __getitem__(self, index):
        ...         return self.values[index] + self.rng(index).normal(0, 0.1)
        >>> noisy = Noisy([1.0, 2.0, 3.0])
        >>> before = noisy[1]
        >>> noisy.set_epoch(1)
        >>> noisy[1] == before
        False
    """


class _Skip(enum.Enum):
    # An enum, so that it is the same object after a trip through a worker.
    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "SKIP"


SKIP: Final[Literal[_Skip.SKIP]] = _Skip.SKIP
"""What ``StatefulIterableDataset.sample``, or ``__getitem__``, returns to drop a record."""


class StatefulIterableDataset(Keyed, IterableDataset[T_co]):
    """A stream of records that every worker and rank shares out, each record to one of them.

    Subclass it and write `records`, and `sample` if records are worked on. Through a
    ``StatefulDataLoader`` the batches are the same for any number of workers. Through a plain
    ``DataLoader`` each record still appears exactly once, in an order that depends on the number
    of workers. A subclass with a length may also write ``__len__``.

    Args:
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``seed`` is not an integer; at class creation, a subclass overrides
            ``__iter__``.
        ValueError: ``seed`` is out of range.

    Example:
        >>> class Evens(StatefulIterableDataset):
        ...     def records(self, start):
        ...         return iter(range(start, 6))
        ...     def sample(self, record, index):
        ...         return SKIP if record % 2 else record
        >>> list(Evens())
        [0, 2, 4]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__iter__ is not StatefulIterableDataset.__iter__:
            raise TypeError(
                f"{cls.__name__} overrides __iter__, which deals records to workers and ranks. "
                "Write records(start) instead, which yields the raw records of the epoch from "
                "position start, and sample(record, index), which makes a sample of one"
            )

    def records(self, start: int) -> Iterable[Any]:
        """The raw records of this epoch, in order, from one position on.

        Every worker reads through it and works only on its own records, so it should be cheap
        to skip: read here, decode in `sample`. An order of its own it may draw from
        ``self.rng("files")``, say, but not from a global RNG.

        Args:
            start: The first record's position. Beyond the end there is nothing to yield.

        Returns:
            An iterable that yields the same records at every call in the same epoch.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define records(start), which yields the raw records from "
            "position start"
        )

    def sample(self, record: Any, index: int) -> Any:
        """What becomes of a record; called only for the records that this worker owns.

        Args:
            record: As `records` yielded it.
            index: Its position in the epoch: draw from ``self.rng(index)``.

        Returns:
            The sample, or ``SKIP`` to drop the record. As it stands, the record itself.
        """
        return record

    def __iter__(self) -> Iterator[Any]:
        return _Samples(self)


class _Samples(Iterator[Any]):
    """The samples of a stream that are this worker's, with a state that torchdata's loader finds.

    Args:
        dataset: The stream.
    """

    def __init__(self, dataset: StatefulIterableDataset[Any]) -> None:
        self._dataset = dataset
        rank, world_size = world_of(dataset)
        if world_size > 1:
            _check_readers()
        # While a batch is built, whoever builds it has shared out the records.
        worker, num_workers = (0, 1) if _batch.own() else _world.current_worker()
        self._mine, self._everyone = rank + world_size * worker, world_size * num_workers
        self._records: Iterator[Any] | None = None  # open at the position _at
        self._at = 0

    def __next__(self) -> Any:
        if self._records is None:
            self._records = iter(self._dataset.records(self._at))
        for record in self._records:
            position, self._at = self._at, self._at + 1
            if position % self._everyone == self._mine:
                sample = self._dataset.sample(record, position)
                if sample is not SKIP:
                    return sample
        raise StopIteration

    def state_dict(self) -> dict[str, int]:
        """How many records were read, and whose samples they became."""
        return {"cursor": self._at, "worker": self._mine, "workers": self._everyone}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a saved place of the stream.

        Raises:
            TypeError: The cursor is not an integer.
            ValueError: It was saved by another worker, or of another number of them.
        """
        saved = state.get("worker"), state.get("workers")
        if saved != (self._mine, self._everyone):
            raise ValueError(
                f"the state was saved by worker {saved[0]} of {saved[1]}, all ranks together, this "
                f"is worker {self._mine} of {self._everyone}, and what was shared out among others "
                "can't be resumed. Use as many workers and ranks as then, or "
                "seedcursor.StatefulDataLoader, which resumes with any number"
            )
        self._at = _checks.integer("cursor", state.get("cursor"), limit=_checks.LENGTH_LIMIT)
        self._records = None


def _check_readers() -> None:
    # Accelerate's, which take a stream for that of all ranks, and deal it by themselves.
    dealers = {"DataLoaderDispatcher", "IterableDatasetShard"}
    found = dealers & {type(reader).__name__ for reader in _world.readers()}
    if found:
        raise RuntimeError(
            f"a {found.pop()} would deal this stream to ranks again, which deals itself. Don't "
            "give its loader to accelerator.prepare(): use a StatefulDataLoader in "
            "seedcursor.integrations.accelerate.PreparedDataLoader"
        )
