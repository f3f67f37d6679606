"""Other people's iterables as streams."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
import torch

from seedcursor import _batch, _checks, _world
from seedcursor._dataset import StatefulIterableDataset

# Records that are read at once, so that keying the global RNGs costs each of them about 1 us.
_BLOCK = 64


class IteratedDataset(StatefulIterableDataset[Any]):
    """A stream of whatever an iterable yields, made anew for each epoch.

    Every worker of every rank reads through all records, and works only on its own: so put what is
    cheap into ``make``, and what is not, and all that is random, into `sample`, for which you
    subclass. A resume reads what was delivered already, and drops it, unless there is ``skip``.

    What ``make`` and its iterable draw from the global RNGs, they draw by seed, epoch and position;
    their own generators must start from a fixed seed, or from the epoch. In a worker they find no
    ``get_worker_info()``: a source that would deal its records to workers yields them all.
    They must not deal them to ranks. Where there is ``skip``, they must not draw from the global
    RNGs either, for what they drew would depend on where a run was resumed; draw in `sample`.
    Records are read 64 at a time. Of the source the position knows nothing: it must be the same
    after a restart. For ``datasets.IterableDataset`` there is a ``HuggingFaceStream``.

    Args:
        make: Called with the epoch; returns an iterable that yields the same records each time. It
            is tried when the dataset is made, and must be picklable if workers are spawned.
        skip: Called with such an iterable and a number of records, at least 1; returns an iterable
            of what is left without them. For sources that can do that without reading.
        length: Records in an epoch, where that is known and always the same. Then the dataset has a
            length, which an `IterableMixture` needs, and trainers like.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: An argument is of another type, or ``make`` returns no iterable.
        ValueError: An argument is out of range, or ``make`` returns the same iterator twice;
            later, an epoch has more or fewer records than ``length``, or none, or a source with
            ``skip`` draws from a global RNG.

    Example:
        >>> def make(epoch):
        ...     return (f"{epoch}.{k}" for k in range(5))
        >>> stream = IteratedDataset(make)
        >>> stream.set_epoch(2)
        >>> list(stream)
        ['2.0', '2.1', '2.2', '2.3', '2.4']
    """

    def __init__(
        self,
        make: Callable[[int], Iterable[Any]],
        *,
        skip: Callable[[Any, int], Iterable[Any]] | None = None,
        length: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        self._make = _callable("make", make)
        self._skip = None if skip is None else _callable("skip", skip)
        self._length = None
        if length is not None:
            self._length = _checks.integer("length", length, limit=_checks.LENGTH_LIMIT)
        with self._reading(0):
            self._try()

    def __len__(self) -> int:
        """Records in an epoch.

        Raises:
            TypeError: That is not known.
        """
        if self._length is None:
            raise TypeError(
                f"the stream has no length; give {type(self).__name__} length= if it is known"
            )
        return self._length

    def records(self, start: int) -> Iterator[Any]:
        """The iterable's records.

        Args:
            start: The first record's position.
        """
        if self._length is not None and start > self._length:
            return
        with contextlib.ExitStack() as opened:
            yield from self._read(start, opened)

    def _read(self, start: int, opened: contextlib.ExitStack) -> Iterator[Any]:
        length = self._length
        source: Iterator[Any] | None = None
        read = start if self._skip else 0
        error: Exception | None = None
        while error is None:
            first, block = read, []
            with self._reading(first):
                try:
                    if source is None:
                        source = self._opened(start, opened)
                    for record in itertools.islice(source, _BLOCK):
                        block.append(record)  # noqa: PERF402  # what came before an error counts
                except Exception as raised:
                    error = raised
            read += len(block)
            yield from block[max(0, start - first) : None if length is None else length - first]
            if length is not None and read > length:
                raise self._wrong("more")
            if error is None and len(block) < _BLOCK:
                if read != length if length is not None else read == 0:
                    raise self._wrong(f"only {read}")
                return
        _batch.note(error, f"in record {read} of what make({self.epoch}) returned")
        raise error

    @contextlib.contextmanager
    def _reading(self, position: int) -> Iterator[None]:
        """Inside, a source draws by key, and finds no worker."""
        untouched = None
        if self._skip is not None:
            with self.seeded(position, "seedcursor.records"):
                untouched = _draws()
        with self.seeded(position, "seedcursor.records"), _world.alone():
            yield
            if untouched not in (None, _draws()):
                raise ValueError(
                    f"make({self.epoch}) must return an iterable that draws nothing from the "
                    "global RNGs where there is skip, got one that does, so its draws would depend "
                    "on where a run was resumed; draw in sample(), or leave out skip"
                )

    def _opened(self, start: int, opened: contextlib.ExitStack) -> Iterator[Any]:
        made = _iterable("make", self._make(self.epoch))
        if isinstance(made, Iterator):  # others may be the same in each epoch
            opened.callback(_close, made)
        left = made
        if self._skip is not None and start:
            left = _iterable("skip", self._skip(made, start))
        source = iter(left)
        if source is not made:
            opened.callback(_close, source)
        return source

    def _wrong(self, found: str) -> ValueError:
        allowed = "at least 1 record" if self._length is None else f"length={self._length} records"
        return ValueError(
            f"make({self.epoch}) must return an iterable of {allowed}, got {found}. Does it hand "
            "out an iterator that was read before? Make another in each call"
        )

    def _try(self) -> None:
        made = _iterable("make", self._make(0))
        if not isinstance(made, Iterator):
            return
        again = self._make(0)
        if again is made:
            raise ValueError(
                f"make must return another iterable in each call, got the same "
                f"{type(made).__name__} twice, which can be read only once"
            )
        _close(made)
        _close(again)


def _close(source: Any) -> None:
    """Close a file, or a generator with files open."""
    if hasattr(source, "close"):
        source.close()


def _draws() -> tuple[float, float, float]:
    """A draw of each global RNG."""
    drawn = torch.rand((), generator=torch.default_generator, device="cpu")
    return random.random(), np.random.random(), float(drawn)


def _callable(name: str, given: Any) -> Any:
    if not callable(given):
        raise TypeError(
            f"{name} must be callable, got {type(given).__name__}; give the function itself, not "
            "what it returns"
        )
    return given


def _iterable(name: str, made: Any) -> Iterable[Any]:
    # Not by iter(made), which may start something.
    if not isinstance(made, Iterable) and not hasattr(made, "__getitem__"):
        forgot = "; does it lack a yield or a return?" if made is None else ""
        raise TypeError(f"{name} must return an iterable, got {type(made).__name__}{forgot}")
    return cast("Iterable[Any]", made)
