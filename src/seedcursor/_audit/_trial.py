"""Samples read while everything is known that they may depend on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from attrs import frozen

from seedcursor._audit import _globals, _held
from seedcursor._audit._digest import digest, shown
from seedcursor._audit._sources import Salt, Source, watch
from seedcursor._keyed import hand_epoch, parts


class Reader(Protocol):
    """What samples are read from."""

    root: Any
    name: str

    def open(self) -> Callable[[int], Any]:
        """A function that reads the sample at a place; StopIteration where there is none."""


class Control(NamedTuple):
    """What the RNGs are put into before each sample.

    Attributes:
        seed: The audit's.
        varied: The global RNGs that are put into other states than usual.
        held: The paths of the held generators that are; None for all of them.
        variant: Which other states.
        extreme: Rare draws made frequent, in what is varied.
        salt: Which seeds inside the sample are changed.
        epoch: Handed to the dataset, if it takes one.
    """

    seed: int
    varied: frozenset[str] = frozenset()
    held: frozenset[str] | None = frozenset()
    variant: int = 0
    extreme: _globals.Extreme | None = None
    salt: Salt | None = None
    epoch: int = 0


@frozen
class Outcome:
    """What became of one sample.

    Attributes:
        place: Its index, or its position in a stream.
        digest: Of the value, or of the exception's type.
        text: The value for a reader.
        failed: Whether it raised.
        moved: The global RNGs, and paths of the held generators, that it moved.
        sources: The generators that it made or seeded.
        seconds: How long it took.
    """

    place: int
    digest: bytes
    text: str
    failed: bool
    moved: frozenset[str]
    sources: tuple[Source, ...]
    seconds: float


def set_epoch(root: Any, epoch: int) -> None:
    """Tell a dataset its epoch as a training loop would: by ``set_epoch``, else by an attribute."""
    hand_epoch(root, epoch)
    for part in parts(root):
        has_method = callable(getattr(part, "set_epoch", None))
        if not has_method and type(getattr(part, "__dict__", {}).get("epoch")) is int:
            with contextlib.suppress(AttributeError):  # it may be frozen
                part.epoch = epoch  # type: ignore[attr-defined]


def put(control: Control, place: int, generators: dict[str, Any]) -> None:
    """Put every RNG into the state that belongs to a place."""
    for k, name in enumerate(_globals.NAMES):
        varied = name in control.varied
        words = [control.seed, place, k, control.variant if varied else 0]
        number = int(np.random.SeedSequence(words).generate_state(1)[0])
        _globals.put(name, number, control.extreme if varied else None)
    for k, (path, generator) in enumerate(generators.items()):
        varied = control.held is None or path in control.held
        _held.put(generator, [control.seed, place, 100 + k, control.variant if varied else 0])


def trial(
    reader: Reader,
    places: Sequence[int],
    control: Control,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Read samples, each from known states. Only for an experiment's process.

    One sample is read beforehand, so that what is made lazily is there.
    """
    watched = watch()
    watched.fixed, watched.salt = True, control.salt
    set_epoch(reader.root, control.epoch)
    if not places:
        return []
    if not getattr(reader, "is_stream", False):
        progress(places[0])
        put(control, 0, {})
        _attempt(reader.open(), min(places))
    # The same order of paths in every trial, however lazily they came.
    generators = dict(sorted(_held.held(reader.root, reader.name).items()))
    put(control, 0, generators)
    read = reader.open()
    outcomes = []
    for place in places:
        progress(place)
        put(control, place, generators)
        outcome = _observe(read, place, generators)
        if outcome is None:
            break
        outcomes.append(outcome)
    return outcomes


def _attempt(read: Callable[[int], Any], place: int) -> tuple[bool, Any]:
    """Whether a sample raised, and the value or what was raised."""
    try:
        return False, read(place)
    except StopIteration:
        raise
    except Exception as error:
        return True, error


def _observe(read: Callable[[int], Any], place: int, generators: dict[str, Any]) -> Outcome | None:
    watched = watch()
    before = states(generators)
    start = time.perf_counter()
    try:
        with watched.reading(place):
            failed, value = _attempt(read, place)
    except StopIteration:
        return None
    seconds = time.perf_counter() - start
    after = states(generators)
    moved = frozenset(name for name in after if after[name] != before[name])
    sources = tuple(watched.sources)
    if failed:
        kind = type(value).__name__
        return Outcome(place, digest(kind), f"{kind}: {value}", True, moved, sources, seconds)
    return Outcome(place, digest(value), shown(value), False, moved, sources, seconds)


def states(generators: dict[str, Any]) -> dict[str, bytes]:
    """The states of the global RNGs and of the held generators, by name and path."""
    found = {name: _globals.read(name) for name in _globals.NAMES}
    return found | {path: _held.state(each) for path, each in generators.items()}


class Samples:
    """A map-style dataset's samples."""

    def __init__(self, dataset: Any, name: str = "dataset") -> None:
        self.root = dataset
        self.name = name

    def open(self) -> Callable[[int], Any]:
        return lambda place: self.root[place]


class Records:
    """A stream's samples."""

    is_stream = True

    def __init__(self, dataset: Any, name: str = "dataset") -> None:
        self.root = dataset
        self.name = name

    def open(self) -> Callable[[int], Any]:
        records: Iterator[Any] | None = None

        def read(_: int) -> Any:
            # Opened when the first is read: what it draws then belongs to that one.
            nonlocal records
            if records is None:
                records = iter(self.root)
            return next(records)

        return read


class Collated:
    """What a ``collate_fn`` makes of the same samples, again and again."""

    name = "collate_fn"

    def __init__(self, dataset: Any, indices: Sequence[int], collate_fn: Any) -> None:
        self.root = collate_fn
        self._dataset = dataset
        self._indices = indices

    def open(self) -> Callable[[int], Any]:
        samples = [self._dataset[index] for index in self._indices]
        return lambda _: self.root(list(samples))
