"""The two bases whose samples draw by key."""

from __future__ import annotations

import contextlib
import enum
import multiprocessing
import os
import random
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from seedcursor import _batch, _checks, _keys, _rng, _world

T_co = TypeVar("T_co", covariant=True)

_ROOT = "_seedcursor_root"


class _Root:
    """A dataset's seed and its epoch, the latter seen by worker processes that run already."""

    def __init__(self, seed: int = 0, epoch: int = 0) -> None:
        self.seed = seed
        self.shared_epoch = multiprocessing.RawValue("I", epoch)
        self.parent_world: tuple[int, int] | None = None
        self.worker_rng: tuple[int, np.random.Generator] | None = None

    def __reduce__(self) -> tuple[Callable[..., _Root], tuple[Any, ...]]:
        # Shared memory travels only to a process that is being started.
        if get_spawning_popen() is None:
            return _Root, (self.seed, self.shared_epoch.value)
        return _spawned_root, (self.seed, self.shared_epoch, _world.current_world())


def _spawned_root(seed: int, shared_epoch: Any, parent_world: tuple[int, int]) -> _Root:
    root = _Root.__new__(_Root)
    root.seed = seed
    root.shared_epoch = shared_epoch
    root.parent_world = parent_world
    root.worker_rng = None
    return root


def _rebuild(make: Callable[..., _Keyed], args: tuple[Any, ...], root: _Root) -> _Keyed:
    dataset = make(*args)
    dataset.__dict__[_ROOT] = root
    return dataset


class _Seed:
    """The ``seed`` attribute.

    Not a property: on the class it is absent, so that a dataclass field of this name has no
    default by accident.
    """

    def __get__(self, dataset: _Keyed | None, owner: type) -> int:
        if dataset is None:
            raise AttributeError("seed")
        return dataset._root.seed

    def __set__(self, dataset: _Keyed, seed: int) -> None:
        dataset._root.seed = _checks.seed(seed)


class _Keyed:
    """What both bases share."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Here and not in __init__, which attrs classes and dataclasses never call.
        dataset = super().__new__(cls)
        dataset.__dict__[_ROOT] = _Root()
        return dataset

    def __init__(self, seed: int = 0) -> None:
        object.__setattr__(self, "seed", seed)  # a frozen subclass refuses self.seed = seed

    seed = _Seed()

    @property
    def _root(self) -> _Root:
        root: _Root | None = self.__dict__.get(_ROOT)
        if root is None:  # a user's __setstate__ may have replaced __dict__
            root = self.__dict__[_ROOT] = _Root()
        return root

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Not __getstate__, which users and attrs write for themselves.
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, args, *rest = reduced
        if rest and isinstance(rest[0], dict):
            rest[0] = {name: value for name, value in rest[0].items() if name != _ROOT}
        root = self._root
        if get_spawning_popen() is None:
            root = _Root(root.seed, root.shared_epoch.value)
        return _rebuild, (make, args, root), *rest

    @property
    def epoch(self) -> int:
        """The epoch that is drawn for: that of the batch being built, else the one set."""
        batch = _batch.current()
        if batch is not None:
            return batch.epoch
        return int(self._root.shared_epoch.value)

    def set_epoch(self, epoch: int) -> None:
        """Draw for this epoch from now on, in worker processes that run already too.

        For a plain ``DataLoader``, before each epoch's loop. A ``StatefulDataLoader`` does not
        need it: there the loader's own epoch rules.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        self._root.shared_epoch.value = _checks.epoch(epoch)

    def rng(self, index: int | str, stream: str | None = None) -> np.random.Generator:
        """A new generator at the start of the stream keyed ``(seed, epoch, index, stream)``.

        The same key always gives the same numbers, whoever asks; so two draws for one sample that
        must differ need two streams, or one generator used twice.

        Args:
            index: Which record: an int in ``[0, 2**64)`` or a record id.
            stream: A name that separates draws for the same record, such as ``"crop"``.

        Returns:
            An independent ``numpy.random.Generator``. For an int below 2**32 and no stream it is
            ``default_rng(SeedSequence(seed, spawn_key=(epoch, index)))``.

        Raises:
            TypeError: ``index`` is neither an int nor a str, or ``stream`` not a str.
            ValueError: ``index`` is out of range.

        Example:
            >>> class Noise(StatefulDataset):
            ...     def __len__(self):
            ...         return 4
            ...     def __getitem__(self, index):
            ...         return float(self.rng(index).normal())
            >>> noise = Noise(seed=3)
            >>> noise[2] == noise[2], noise[1] == noise[2]
            (True, False)

        References:
            NumPy's NEP 19 and ``SeedSequence``: spawn keys give independent streams.
        """
        index, stream, seed = self._key(index, stream)
        batch = _batch.current()
        if batch is None:
            return _rng.generator(seed, int(self._root.shared_epoch.value), index, stream)
        return batch.generator(seed, index, stream)

    def torch_rng(self, index: int | str, stream: str | None = None) -> torch.Generator:
        """Like `rng`, as a CPU ``torch.Generator`` that is independent of it.

        Args:
            index: Which record: an int in ``[0, 2**64)`` or a record id.
            stream: A name that separates draws for the same record.

        Returns:
            A new generator. torch's Mersenne Twister takes 32 bits of a seed, so there are 2**32
            distinct ones.

        Raises:
            TypeError: ``index`` is neither an int nor a str, or ``stream`` not a str.
            ValueError: ``index`` is out of range.
        """
        index, stream, seed = self._key(index, stream)
        return _rng.torch_generator(seed, self.epoch, index, stream)

    def python_rng(self, index: int | str, stream: str | None = None) -> random.Random:
        """Like `rng`, as a ``random.Random`` that is independent of it.

        Args:
            index: Which record: an int in ``[0, 2**64)`` or a record id.
            stream: A name that separates draws for the same record.

        Raises:
            TypeError: ``index`` is neither an int nor a str, or ``stream`` not a str.
            ValueError: ``index`` is out of range.
        """
        index, stream, seed = self._key(index, stream)
        return _rng.python_generator(seed, self.epoch, index, stream)

    def seeded(
        self, index: int | str, stream: str | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """For transforms that only know the global RNGs: keyed inside, untouched outside.

        Args:
            index: Which record: an int in ``[0, 2**64)`` or a record id.
            stream: A name that separates draws for the same record.

        Returns:
            A context manager. Inside, ``random``, ``np.random`` and torch's global CPU generator
            are keyed by ``(seed, epoch, index, stream)``, each apart. It nests, and restores after
            an exception.

        Raises:
            TypeError: ``index`` is neither an int nor a str, or ``stream`` not a str.
            ValueError: ``index`` is out of range.
            RuntimeError: On entering, while another thread has the global RNGs keyed.

        Example:
            >>> dataset = StatefulDataset(seed=3)
            >>> with dataset.seeded(5):
            ...     first = random.random()
            >>> with dataset.seeded(5):
            ...     first == random.random()
            True
        """
        index, stream, seed = self._key(index, stream)
        return _rng.keyed_globals(_rng.global_key(seed, self.epoch, index, stream, "global"))

    @property
    def worker_rng(self) -> np.random.Generator:
        """A generator of this worker process, for what belongs to a worker and not to a sample.

        Retry back-off, say, or cache eviction. It is made from ``get_worker_info().seed``, in the
        main process from ``torch.initial_seed()``, and moves as it is drawn from. A resume does
        **not** replay it: never let a sample depend on it.
        """
        root, process = self._root, os.getpid()
        if root.worker_rng is None or root.worker_rng[0] != process:
            info = get_worker_info()
            seed = torch.initial_seed() if info is None else info.seed
            words = np.random.SeedSequence(seed, spawn_key=_keys.suffix_words(domain="worker"))
            root.worker_rng = process, np.random.Generator(np.random.PCG64(words))
        return root.worker_rng[1]

    def _key(self, index: int | str, stream: str | None) -> tuple[int | str, str | None, int]:
        # A subclass may have a field named seed of its own, unchecked until now.
        return _checks.index(index), _checks.stream(stream), _checks.seed(self.seed)


def sample_rng(
    seed: int, epoch: int, index: int | str, stream: str | None = None
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
        _checks.seed(seed), _checks.epoch(epoch), _checks.index(index), _checks.stream(stream)
    )


class StatefulDataset(_Keyed, Dataset[T_co]):
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
"""What ``StatefulIterableDataset.sample`` returns to drop a record."""


class StatefulIterableDataset(_Keyed, IterableDataset[T_co]):
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
        to skip: read here, decode in `sample`.

        Args:
            start: The first record's position, in ``[0, length]``.

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
        rank, world_size = self._world()
        # While a batch is built, whoever builds it has shared out the records.
        worker, num_workers = (0, 1) if _batch.current() else _world.current_worker()
        mine, everyone = rank + world_size * worker, world_size * num_workers
        for position, record in enumerate(self.records(0)):
            if position % everyone == mine:
                sample = self.sample(record, position)
                if sample is not SKIP:
                    yield sample

    def _world(self) -> tuple[int, int]:
        captured = self._root.parent_world
        if captured is not None and get_worker_info() is not None:
            return captured
        return _world.current_world()


def parts(dataset: object) -> Iterator[object]:
    """The dataset, and the ones that it wraps (``Subset``, ``ConcatDataset`` and their like)."""
    seen: set[int] = set()
    waiting = [dataset]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        held = list(getattr(part, "__dict__", {}).values())
        members = getattr(part, "datasets", ())
        held += members.values() if isinstance(members, dict) else members
        waiting += [item for item in reversed(held) if isinstance(item, Dataset)]


def found_seed(dataset: object) -> int:
    """The seed of the first of its parts that is one of ours, else 0."""
    for part in parts(dataset):
        if isinstance(part, _Keyed):
            return _checks.seed(part.seed)
    return 0
