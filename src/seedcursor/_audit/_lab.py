"""What the checks ask for: experiments on one target, each made once and only if it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from attrs import define, evolve, field, frozen
from torch.utils.data import DataLoader, IterableDataset

from seedcursor._audit import _globals, _held
from seedcursor._audit._batches import flat, order, sampler_of
from seedcursor._audit._blame import Blame, blame
from seedcursor._audit._isolate import Broke, Died, Hung, Place, isolated
from seedcursor._audit._sources import Salt, watch
from seedcursor._audit._trial import (
    Collated,
    Control,
    Outcome,
    Reader,
    Records,
    Samples,
    put,
    trial,
)
from seedcursor._audit._workers import Crew, Record, read_by
from seedcursor._keyed import parts
from seedcursor._loader import StatefulDataLoader

T = TypeVar("T")

# Samples that are read of a dataset that is quick, and of a stream by each worker.
_SAMPLES, _RECORDS = 24, 120
# Seconds that all experiments may take together, roughly, and how often each sample is read.
_SECONDS, _READINGS = 12.0, 20


def _patience(lab: Lab) -> int:
    """Workers that are not forked import everything first, each of them in each epoch."""
    return 1 if lab.settings.start_method == "fork" else 4


@frozen
class Settings:
    """How an audit is made; see `audit`."""

    num_workers: tuple[int, ...]
    epochs: int
    samples: int | None
    batch_size: int | None
    start_method: str
    seed: int
    timeout: float


class Unreadable(Exception):  # noqa: N818 - what is known of the dataset
    """Samples hang, or kill their process: nothing more can be found out."""


@define
class Lab:
    """A target, and what experiments told of it so far.

    Attributes:
        target: What was given.
        settings: How.
        notes: What the reader should know.
        compared: Samples read so far.
        found: The ids of the checks that found something so far.
    """

    target: Any
    settings: Settings
    notes: list[str] = field(factory=list)
    compared: int = 0
    found: set[str] = field(factory=set)
    tick: Callable[[], None] = lambda: None
    _known: dict[Any, Any] = field(factory=dict)

    @property
    def loader(self) -> DataLoader[Any] | None:
        """The loader, if the target is one."""
        return self.target if isinstance(self.target, DataLoader) else None

    @property
    def is_stateful(self) -> bool:
        """Whether the target is a loader that keys and positions what it delivers."""
        return isinstance(self.target, StatefulDataLoader)

    @property
    def dataset(self) -> Any:
        """The dataset."""
        return self.target.dataset if self.loader is not None else self.target

    @property
    def is_stream(self) -> bool:
        """Whether the dataset is iterated, not indexed."""
        return isinstance(self.dataset, IterableDataset)

    @property
    def reader(self) -> Reader:
        """What single samples are read from."""
        name = "dataset" if self.loader is None else "loader.dataset"
        return Records(self.dataset, name) if self.is_stream else Samples(self.dataset, name)

    def run(self, experiment: Callable[[Place], T]) -> T:
        """Make an experiment in a process of its own.

        Raises:
            Unreadable: It hung, or its process died.
        """
        self.tick()
        place = Place.make()
        try:
            return isolated(lambda: experiment(place), self.settings.timeout * _patience(self))
        except Hung as hung:
            raise Unreadable(f"{self._named(place)} did not return within {hung}") from None
        except Died as died:
            raise Unreadable(f"{self._named(place)} ended its process: {died}") from None

    def _named(self, place: Place) -> str:
        index = place.get()
        return f"{self.reader.name}[{'?' if index is None else index}]"

    def _once(self, key: Any, make: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[no-any-return]

    # What is read.

    @property
    def length(self) -> int | None:
        """The dataset's, None if it has none."""
        if self.is_stream:
            return None
        return self._once("length", lambda: self.run(lambda _: len(self.dataset)))

    @property
    def places(self) -> list[int]:
        """The indices that are looked at; of a stream, the positions."""
        return self._once("places", self._choose)

    def _choose(self) -> list[int]:
        if self.sampled is not None:
            return self._choose_sampled(self.sampled)
        count = self._affordable([0, 1, 2][: self.length])
        if self.length is None:
            return list(range(count))
        if self.length <= count:
            return list(range(self.length))
        chosen = {*range(count // 4), self.length - 1}
        for part in parts(self.dataset):
            # Equal indices of what is concatenated, so that equal keys are seen.
            starts = [0, *list(getattr(part, "cumulative_sizes", []))[:3]]
            chosen |= {start + k for start in starts for k in (0, 1)}
        chosen = {index for index in chosen if 0 <= index < self.length}
        rng = np.random.default_rng(self.settings.seed)
        while len(chosen) < count:
            chosen.add(int(rng.integers(self.length)))
        self.notes.append(f"looked at {len(chosen)} of {self.length} samples")
        return sorted(chosen)

    @property
    def sampled(self) -> list[Any] | None:
        """What a plain loader's own sampler gives in an epoch, as far as it is looked at."""
        loader = self.loader
        if loader is None or self.is_stream or self.is_stateful:
            return None
        sampler = sampler_of(loader)

        def draw(_: Place) -> list[Any]:
            torch.manual_seed(self.settings.seed)
            return flat(order(sampler, 1, 5000)[0])

        return self._once("sampled", lambda: self.run(draw))

    def _choose_sampled(self, sampled: list[Any]) -> list[int]:
        if not all(hasattr(index, "__index__") for index in sampled):
            raise TypeError(
                f"dataset_or_loader must have integer indices, got a sampler that gives "
                f"{sampled[0]!r}; audit the dataset that has the records instead"
            )
        known = sorted({int(index) for index in sampled})
        count = self._affordable(known[:3])
        if len(known) <= count:
            return known
        rng = np.random.default_rng(self.settings.seed)
        chosen = rng.permutation(len(known))[:count]
        self.notes.append(f"looked at {count} of the samples that the sampler gives")
        return sorted(known[k] for k in chosen)

    def _affordable(self, first: list[int]) -> int:
        if self.settings.samples is not None:
            return self.settings.samples
        outcomes = self.run(lambda at: trial(self.reader, first, self.control, at.put))
        slowest = max((outcome.seconds for outcome in outcomes), default=0.0)
        return max(4, min(_SAMPLES, int(_SECONDS / _READINGS / max(slowest, 1e-6))))

    @property
    def limit(self) -> int:
        """The most records that a worker reads of a stream."""
        if self.settings.samples is not None:
            return self.settings.samples
        return _RECORDS if len(self.places) == _SAMPLES else 3 * len(self.places)

    # Samples from known states.

    @property
    def control(self) -> Control:
        """The states that samples begin with, unless a trial varies them."""
        return Control(self.settings.seed)

    def trial(self, control: Control, reader: Reader | None = None) -> dict[int, Outcome]:
        """The outcome of each place, read in order from these states."""
        chosen = self.reader if reader is None else reader

        def make() -> list[Outcome]:
            outcomes = self.run(lambda at: trial(chosen, self.places, control, at.put))
            self.compared += len(outcomes)
            return outcomes

        outcomes = self._once((control, type(chosen)), make)
        return {outcome.place: outcome for outcome in outcomes}

    @property
    def base(self) -> dict[int, Outcome]:
        """The outcomes that others are compared with."""
        return self.trial(self.control)

    @property
    def unstable(self) -> frozenset[int]:
        """The places whose value is another one though nothing was changed."""

        def make() -> frozenset[int]:
            again = self.run(lambda at: trial(self.reader, self.places, self.control, at.put))
            return frozenset(o.place for o in again if o.digest != self.base[o.place].digest)

        return self._once("unstable", make)

    @property
    def reread(self) -> list[Outcome]:
        """The places in the opposite order, each read twice in a row."""
        places = [place for place in reversed(self.places) for _ in range(2)]
        return self._once(
            "reread", lambda: self.run(lambda at: trial(self.reader, places, self.control, at.put))
        )

    def differing(self, control: Control, reader: Reader | None = None) -> list[int]:
        """The places whose values differ from those of usual states."""
        base, other = self.trial(self.control, reader), self.trial(control, reader)
        found = [p for p in base if p in other and base[p].digest != other[p].digest]
        # What differs by itself proves nothing.
        return [p for p in found if p not in self.unstable] if found else []

    def salted(self, families: str = "") -> list[int]:
        """The places whose values depend on generators that they make for themselves."""
        if not any(outcome.sources for outcome in self.base.values()):
            return []
        return self.differing(self.control._replace(salt=Salt(0, families)))

    @property
    def collated(self) -> Reader | None:
        """What the loader's ``collate_fn`` makes of a few samples; None if it is PyTorch's."""
        loader = self.loader
        if loader is None or not self.sound or self.is_stream:
            return None
        if (getattr(loader.collate_fn, "__module__", "") or "").startswith("torch."):
            return None
        return Collated(self.dataset, self.sound[:4], loader.collate_fn)

    @property
    def sound(self) -> list[int]:
        """The places that did not raise."""
        return [place for place, outcome in self.base.items() if not outcome.failed]

    # Who drew.

    def blamed(self, name: str, place: int, reader: Reader | None = None) -> list[Blame]:
        """The lines that moved an RNG while a sample was read.

        Args:
            name: A global RNG's name, or the path of a held one.
            place: Which sample.
            reader: Where from; by default the dataset.
        """
        chosen = self.reader if reader is None else reader

        def find(_: Place) -> list[Blame]:
            watch().fixed = True
            read = chosen.open()
            if not self.is_stream:
                read(place)
            generators = _held.held(chosen.root, chosen.name)
            put(self.control, place, generators)
            if name in generators:
                return blame(lambda: read(place), lambda: _held.state(generators[name]))
            return blame(lambda: read(place), lambda: _globals.read(name))

        try:
            return self.run(find)
        except (Unreadable, Broke):
            return []  # too long under a tracer; the finding stands without its line

    # Samples from real workers.

    @property
    def crew(self) -> Crew:
        """The workers that the user has, or would have."""
        settings, loader = self.settings, self.loader
        batch_size = settings.batch_size or getattr(loader, "batch_size", None) or 2
        return Crew(
            num_workers=max(settings.num_workers),
            epochs=settings.epochs,
            method=settings.start_method,
            batch_size=min(batch_size, max(1, len(self.places) // 4)),
            init=None if loader is None or self.is_stateful else loader.worker_init_fn,
        )

    def read_by(self, *crews: Crew, indices: Sequence[int] | None = None) -> list[list[Record]]:
        """What each crew reads, one after the other, in one process."""
        chosen = self.sound if indices is None else list(indices)
        if not chosen:
            return [[] for _ in crews]

        def read(at: Place) -> list[list[Record]]:
            torch.manual_seed(self.settings.seed)
            places = None if self.is_stream else chosen
            return [read_by(crew, self.dataset, places, self.limit, at.put) for crew in crews]

        def make() -> list[list[Record]]:
            records = self.run(read)
            self.compared += sum(map(len, records))
            return records

        return self._once((crews, tuple(chosen)), make)

    @property
    def natural(self) -> tuple[list[Record], list[Record]]:
        """What workers read as the loader seeds them: fresh in each epoch, and persistent ones."""
        crew, target = self.crew, self.target
        if isinstance(target, StatefulDataLoader):
            crew = evolve(crew, seed=target._plan.seed, init=target.worker_init_fn)
        # The two are compared for plain loaders only.
        if not crew.num_workers or self.is_stateful:
            records = self.read_by(crew)[0]
            return records, records
        first, second = self.read_by(crew, evolve(crew, persistent=True))
        return first, second

    @property
    def interactive(self) -> bool:
        """Whether the program has no file that a new process could import."""
        return getattr(sys.modules["__main__"], "__file__", None) is None
