"""What makes a dataset keyed: its seed, its epoch, and generators by index."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from seedcursor import _batch, _checks, _keys, _record, _rng, _world
from seedcursor._record import Index, Occurrence


class _Root:
    """A dataset's seed and its epoch, the latter seen by worker processes that run already."""

    dataset: weakref.ref[Keyed]  # lets it go when the dataset goes

    def __init__(self, seed: int = 0, epoch: int = 0) -> None:
        self.seed = seed
        self.shared_epoch = multiprocessing.RawValue("I", epoch)
        self.handed = False  # the epoch was set by a sampler or wrapper, and not by the user
        self.parent_world: tuple[int, int] | None = None
        self.worker_rng: tuple[int, np.random.Generator] | None = None

    def __reduce__(self) -> tuple[Callable[..., _Root], tuple[Any, ...]]:
        # Shared memory travels only to a process that is being started.
        if get_spawning_popen() is None:
            return _Root, (self.seed, self.shared_epoch.value)
        world = _world.current_world()
        return _spawned_root, (self.seed, self.shared_epoch, self.handed, world)


def _spawned_root(
    seed: int, shared_epoch: Any, handed: bool, parent_world: tuple[int, int]
) -> _Root:
    root = _Root.__new__(_Root)
    root.seed = seed
    root.shared_epoch = shared_epoch
    root.handed = handed
    root.parent_world = parent_world
    root.worker_rng = None
    return root


# By the id of its dataset, and not in its __dict__, which users copy, replace and clear.
_roots: dict[int, _Root] = {}


def _plant(dataset: Keyed, root: _Root) -> None:
    number = id(dataset)
    root.dataset = weakref.ref(dataset, lambda _: _roots.pop(number, None))
    _roots[number] = root


def _root(dataset: Keyed) -> _Root:
    return _roots[id(dataset)]


def _rebuild(make: Callable[..., Keyed], args: tuple[Any, ...], root: _Root) -> Keyed:
    dataset = make(*args)
    _plant(dataset, root)
    return dataset


def _batch_of(dataset: Keyed) -> _batch.Batch | None:
    """The batch that is being built of a dataset, by this thread or with its help."""
    batch = _batch.own()
    if batch is not None or not _batch.any_building():
        return batch
    return _batch.helped(lambda batch: any(part is dataset for part in parts(batch.dataset)))


def _epoch(dataset: Keyed) -> int:
    batch = _batch_of(dataset)
    return int(_root(dataset).shared_epoch.value) if batch is None else batch.epoch


def as_drawn(dataset: Keyed, indices: Sequence[object]) -> list[Index]:
    """The indices, checked; occurrences of them where the batch draws them once more."""
    checked = [_record.index(index) for index in indices]
    batch = _batch_of(dataset)
    if batch is None or batch.number == 0:
        return checked
    number = batch.number
    return [k if isinstance(k, Occurrence) else Occurrence(k, number) for k in checked]


def globals_to_key() -> contextlib.AbstractContextManager[None]:
    """A context in which whoever makes a sample may key the global RNGs.

    Raises:
        RuntimeError: On entering, another thread has them.
    """
    # Whoever builds the batch has set the process's own RNGs aside, and a worker has none.
    if _batch.own() is not None or _is_workers_main_thread():
        return contextlib.nullcontext()
    # A thread that helps with a batch must not wait, for the batch waits for it.
    return _rng.globals_aside(patience=0 if _batch.any_building() else _rng.PATIENCE)


def _is_workers_main_thread() -> bool:
    return get_worker_info() is not None and threading.current_thread() is threading.main_thread()


def _key(dataset: Keyed, index: object, stream: object) -> tuple[int, int, Index, str | None]:
    # A subclass may have a field named seed of its own, unchecked until now.
    seed = _checks.seed(dataset.seed)
    return seed, _epoch(dataset), as_drawn(dataset, [index])[0], _checks.stream(stream)


class _Seed:
    """The ``seed`` attribute.

    Not a property: on the class it is absent, so that a dataclass field of this name has no
    default by accident.
    """

    def __get__(self, dataset: Keyed | None, owner: type) -> int:
        if dataset is None:
            raise AttributeError("seed")
        return _roots[id(dataset)].seed

    def __set__(self, dataset: Keyed, seed: int) -> None:
        _root(dataset).seed = _checks.seed(seed)


class Keyed:
    """A dataset with a seed and an epoch, which draws by index."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # Here and not in __init__, which attrs classes and dataclasses never call.
        make: Any = super().__new__
        dataset = make(cls) if make is object.__new__ else make(cls, *args, **kwargs)
        _plant(dataset, _Root())
        return dataset

    def __init__(self, seed: int = 0) -> None:
        seed = _checks.seed(seed)
        # A field or a property named seed of the subclass's own is left as it is by the default.
        if seed:
            object.__setattr__(self, "seed", seed)  # frozen classes refuse self.seed = seed

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "epoch" in vars(cls):
            raise TypeError(
                f"{cls.__name__} has an attribute named epoch, which would hide the epoch that its "
                "samples are drawn for; give it another name"
            )

    seed = _Seed()

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Not __getstate__, which users and attrs write for themselves.
        reduced = super().__reduce_ex__(protocol)
        if isinstance(reduced, str):
            return reduced
        make, args, *rest = reduced
        root = _root(self)
        if get_spawning_popen() is None:
            root = _Root(root.seed, root.shared_epoch.value)
        return _rebuild, (make, args, root), *rest

    @property
    def epoch(self) -> int:
        """The epoch that is drawn for: that of the batch being built, else the one set."""
        return _epoch(self)

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        raise AttributeError(f"epoch is set by set_epoch({epoch!r}), which reaches the workers too")

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
        root = _root(self)
        root.shared_epoch.value = _checks.epoch(epoch)
        root.handed = False

    def state_dict(self) -> dict[str, int]:
        """The seed and the epoch, for loaders that keep a dataset's state, such as torchdata's.

        A ``StatefulDataLoader`` has a position of its own, and does not ask.

        Returns:
            ``seed`` and ``epoch``, as plain values.
        """
        return {"seed": _checks.seed(self.seed), "epoch": self.epoch}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a saved epoch; torchdata's loader calls it where a pass resumes.

        Two epochs are kept: one that a ``StatefulBatchSampler`` hands on, which knows better, and
        the one after the saved. For a state that was saved at an epoch's end goes on with the next,
        and looks as if it was saved before; so there is a warning.

        Args:
            state: What ``state_dict()`` returned.

        Raises:
            TypeError: A value is not an integer.
            ValueError: A key is missing, a value is out of range, or the seed is another.
        """
        if "seed" not in state or "epoch" not in state:
            raise ValueError(
                f"state must have 'seed' and 'epoch', got the keys {list(state)}; was it saved "
                "with another dataset?"
            )
        here, saved = _checks.seed(self.seed), _checks.seed(state["seed"])
        if saved != here:
            raise ValueError(
                f"the state was saved with the dataset's seed {saved}, here it is {here}; build "
                "the dataset as it was built then"
            )
        epoch = _checks.epoch(state["epoch"])
        if _root(self).handed:
            return
        if self.epoch != epoch + 1:
            self.set_epoch(epoch)
            return
        warnings.warn(
            f"the state was saved in epoch {epoch}, and the dataset goes on with epoch {epoch + 1} "
            f"by set_epoch(). That is right if epoch {epoch} had ended; else call "
            f"set_epoch({epoch}) before the pass that resumes",
            UserWarning,
            stacklevel=2,
        )

    def rng(self, index: Index, stream: str | None = None) -> np.random.Generator:
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
            >>> from seedcursor import StatefulDataset
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
        # What is in a batch was checked, so this is the fast way.
        if type(index) is int:
            ready = _batch.ready_generator(self.seed, index, stream)
            if ready is not None:
                return ready
        return _rng.generator(*_key(self, index, stream))

    def torch_rng(self, index: Index, stream: str | None = None) -> torch.Generator:
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
        return _rng.torch_generator(*_key(self, index, stream))

    def python_rng(self, index: Index, stream: str | None = None) -> random.Random:
        """Like `rng`, as a ``random.Random`` that is independent of it.

        Args:
            index: Which record: an int in ``[0, 2**64)`` or a record id.
            stream: A name that separates draws for the same record.

        Raises:
            TypeError: ``index`` is neither an int nor a str, or ``stream`` not a str.
            ValueError: ``index`` is out of range.
        """
        return _rng.python_generator(*_key(self, index, stream))

    def seeded(
        self, index: Index, stream: str | None = None
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
            >>> from seedcursor import StatefulDataset
            >>> dataset = StatefulDataset(seed=3)
            >>> with dataset.seeded(5):
            ...     first = random.random()
            >>> with dataset.seeded(5):
            ...     first == random.random()
            True
        """
        return _rng.keyed_globals(_rng.global_key(*_key(self, index, stream), "global"))

    @property
    def worker_rng(self) -> np.random.Generator:
        """A generator of this worker process, for what belongs to a worker and not to a sample.

        Retry back-off, say, or cache eviction. It is made from ``get_worker_info().seed``, in the
        main process from ``torch.initial_seed()``, and moves as it is drawn from. A resume does
        **not** replay it: never let a sample depend on it.
        """
        root, process = _root(self), os.getpid()
        if root.worker_rng is None or root.worker_rng[0] != process:
            info = get_worker_info()
            seed = torch.initial_seed() if info is None else info.seed
            words = np.random.SeedSequence(seed, spawn_key=_keys.suffix_words(domain="worker"))
            root.worker_rng = process, np.random.Generator(np.random.PCG64(words))
        return root.worker_rng[1]


def world_of(dataset: Keyed) -> tuple[int, int]:
    """Rank and world size, in a started worker those of the process that started it."""
    captured = _root(dataset).parent_world
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
        attributes = getattr(part, "__dict__", {})
        held = list(attributes.values())
        # Other lists are not searched: they may be the data.
        members = attributes.get("datasets")
        if isinstance(members, (list, tuple)):
            held += members
        elif isinstance(members, dict):
            held += members.values()
        waiting += [item for item in reversed(held) if isinstance(item, Dataset)]


def hand_epoch(dataset: object, epoch: int) -> None:
    """Set the epoch of each of its parts that has one."""
    for part in parts(dataset):
        if callable(set_epoch := getattr(part, "set_epoch", None)):
            set_epoch(epoch)
        if isinstance(part, Keyed):
            _root(part).handed = True


def deaf_part(dataset: object) -> str | None:
    """The name of a part whose epoch workers that run already would not see, if there is one."""
    for part in parts(dataset):
        if hasattr(type(part), "set_epoch") and not isinstance(part, Keyed):
            return type(part).__name__
    return None


def found_seed(dataset: object) -> int:
    """The seed of the first of its parts that is one of ours, else 0."""
    for part in parts(dataset):
        if isinstance(part, Keyed):
            return _checks.seed(part.seed)
    return 0
