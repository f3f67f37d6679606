"""The position for people who stay with the plain ``DataLoader``."""

from __future__ import annotations

import multiprocessing
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

from torch.utils.data import DataLoader, DistributedSampler, Sampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from seedcursor import _checks, _keyed, _rng, _world
from seedcursor._order import KeyedOrder, Order, Step, StreamOrder
from seedcursor._plan import Plan, Positioned
from seedcursor._position import Position, Progress, Run
from seedcursor._sharding import Shape

T = TypeVar("T")

_ALONE = Shape(batch_size=1, drop_last=False, pad=True, rank=0, world_size=1)


class OrderSampler(DistributedSampler[Any]):
    """The indices of the epoch, all ranks', where trainers look for a sampler with ``set_epoch``.

    It is a ``DistributedSampler`` to say that nobody else need deal the samples to ranks: trainers
    would put a sampler of theirs in its place.
    """

    num_replicas = 1
    rank = 0

    # DistributedSampler's own would ask for a process group.
    def __init__(self, order: Order, progress: Progress) -> None:
        self.order = order
        self._progress = progress

    def __len__(self) -> int:
        if self.order.length is None:
            raise TypeError("what this sampler stands for has no length")
        return self.order.length

    def __iter__(self) -> Iterator[Any]:
        for step in self.order.steps(Position(self._progress.position.epoch), _ALONE):
            yield from step.indices

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loader or batch sampler that this one belongs to.

        Raises:
            RuntimeError: Batches of a stream without a length were asked for before.
        """
        endless = isinstance(self.order, StreamOrder) and self.order.length is None
        self._progress.tell(epoch, looks_ahead=endless)


class StatefulBatchSampler(Positioned, Sampler[list[int]]):
    """Batches of indices with a position, for a plain ``DataLoader(batch_sampler=...)``.

    A ``DataLoader`` draws from its sampler ahead of the loop, by the batches that it prefetches.
    So what was delivered is counted where it is delivered: loop over ``sampler.track(loader)``.

    Args:
        dataset_or_length: What is sampled. Given a dataset, its epoch is set, through ``Subset``
            and ``ConcatDataset``, before a pass starts.
        batch_size: Samples per batch and rank, at least 1.
        shuffle: Whether each epoch has a keyed order of its own.
        drop_last: Whether a short last step is left out.
        seed: The root seed; by default the dataset's, else 0.
        rank: This process; by default ``torch.distributed``'s, else the launcher's, else 0.
        world_size: How many processes; given with ``rank``.
        pad: Whether every rank makes the same number of steps, by repeating fewer than
            ``world_size`` samples in a short last one. False for evaluation: nothing is repeated,
            and ranks may differ by one batch.

    Raises:
        TypeError: An argument is of another type.
        ValueError: An argument is out of range, or only one of ``rank`` and ``world_size`` given.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> sampler = StatefulBatchSampler(6, 2, seed=1)
        >>> loader = DataLoader(range(6), batch_sampler=sampler)
        >>> for batch in sampler.track(loader):
        ...     break
        >>> sampler.state_dict()["cursor"]
        2
    """

    def __init__(
        self,
        dataset_or_length: Sized | int,
        batch_size: int,
        *,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool = True,
    ) -> None:
        if isinstance(dataset_or_length, Sampler):  # a trainer rebuilds this one around another
            dataset_or_length, shuffle, seed = _stood_for(dataset_or_length, seed)
        sized: Sized | int
        if isinstance(dataset_or_length, Sized) and hasattr(dataset_or_length, "__getitem__"):
            sized = dataset_or_length
        else:
            sized = _checks.integer(
                "dataset_or_length", dataset_or_length, limit=_checks.LENGTH_LIMIT
            )
        seed = _keyed.found_seed(dataset_or_length) if seed is None else _checks.seed(seed)
        order = KeyedOrder(sized, seed, bool(shuffle))
        self._plan = Plan(
            order=order,
            seed=seed,
            shuffle=bool(shuffle),
            batch_size=_checks.integer("batch_size", batch_size, low=1, limit=2**31),
            drop_last=bool(drop_last),
            pad=bool(pad),
            world=_world.check_world(rank, world_size),
        )
        self._dataset = dataset_or_length
        # The pass that `track` has planned, until the loader draws from it.
        self._tracked: tuple[Run, deque[int]] | None = None
        # The epoch that the dataset had when a loader may have forked its workers.
        self._forked_epoch: int | None = None
        self.batch_size = self._plan.batch_size
        self.drop_last = self._plan.drop_last
        self.sampler = OrderSampler(order, self._plan.progress)

    def __len__(self) -> int:
        """Steps in a full epoch."""
        return self._plan.order.count(self._plan.shape())

    @property
    def num_replicas(self) -> int:
        """The world size: these batches are one rank's, as a ``DistributedSampler``'s are."""
        return self._plan.shape().world_size

    def set_epoch(self, epoch: int) -> None:
        """The pass that begins next is of this epoch.

        Not needed where epochs follow each other. A loaded position is kept if it is of this
        epoch; a pass that runs is not disturbed.

        Args:
            epoch: In ``[0, 2**32)``.

        Raises:
            TypeError: Not an integer.
            ValueError: Out of range.
        """
        # A loader that a trainer has made, as Accelerate's, may count epochs from 0 after a resume.
        if any(isinstance(reader, DataLoader) for reader in _world.readers()):
            self._plan.progress.tell(epoch, looks_ahead=False)
        else:
            super().set_epoch(epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from the position on; without `track`, only their end moves it."""
        self._check_readers()
        if self._tracked is None and self._plan.progress.told:
            self._plan.progress.told = False
            warnings.warn(
                "the batches of this pass are not counted, so a training run that a trainer saves "
                "can't resume within an epoch. Pass it StatefulDataLoader(dataset, "
                "batch_sampler=sampler) in place of DataLoader(dataset, batch_sampler=sampler); "
                "for validation there is no need",
                UserWarning,
                stacklevel=2,
            )
        # A DataLoader with workers asks twice before it draws.
        if not self._plan.progress.has_planned():
            self._forked_epoch = None
        run, stops = self._tracked or (self._plan.progress.plan(), None)
        # Some datasets must know before workers are forked, which is before the first batch.
        epoch = run.planned.epoch
        _keyed.hand_epoch(self._dataset, epoch)
        if self._forked_epoch is None:
            self._forked_epoch = epoch
        return Drawn(self, run, stops)

    def _begin(self, run: Run) -> Iterator[Step]:
        self._tracked = None
        start = run.begin()
        _keyed.hand_epoch(self._dataset, start.epoch)
        if start.epoch != self._forked_epoch and multiprocessing.active_children():
            self._warn_of_deaf_workers(f"call set_epoch({start.epoch}) before the pass begins")
        return self._plan.steps(start)

    def _warn_of_deaf_workers(self, remedy: str) -> None:
        deaf = _keyed.deaf_part(self._dataset)
        if deaf is not None:
            warnings.warn(
                f"workers that run already don't see the epoch that {deaf}.set_epoch sets: "
                f"{remedy}, or let {deaf} be a StatefulDataset, whose epoch they see",
                UserWarning,
                stacklevel=4,
            )

    def track(self, loader: Iterable[T]) -> Iterator[T]:
        """Go through a loader that draws from this sampler, and count what it delivers.

        Args:
            loader: A ``DataLoader`` with this sampler as its ``batch_sampler``, or a wrapper of
                one that delivers a batch for each batch of indices, in order.

        Returns:
            The loader's batches; the position moves as each is handed over.

        Raises:
            RuntimeError: The loader delivers what it did not draw from this sampler; or a state was
                loaded since the pass began.
        """
        if getattr(loader, "batch_sampler", self) is not self:
            raise _not_drawn()
        if getattr(loader, "persistent_workers", False):
            self._warn_of_deaf_workers("build the loader with persistent_workers=False")
        run = self._plan.progress.plan()
        self._forked_epoch = None
        stops: deque[int] = deque()
        self._tracked = run, stops
        empty = True
        try:
            for batch in self._iterator(loader):
                if not stops:
                    raise _not_drawn()
                run.check()
                run.deliver(stops.popleft())
                yield batch
                empty = False
        finally:
            self._tracked = None
        if not run.begun:
            raise _not_drawn()
        run.finish(empty=empty)

    def _check_readers(self) -> None:
        world_size = self._plan.shape().world_size
        for reader in _world.readers():
            # As Accelerate's, which takes these for the batches of all ranks.
            replicas = getattr(reader, "num_processes", 1)
            if getattr(reader, "batch_sampler", None) is self and min(replicas, world_size) > 1:
                raise ValueError(
                    f"a {type(reader).__name__} with num_processes={replicas} would deal these "
                    f"batches again, which are one rank's of world_size={world_size}. Don't give "
                    "the loader to accelerator.prepare(): use a StatefulDataLoader in "
                    "seedcursor.integrations.accelerate.PreparedDataLoader"
                )

    def _iterator(self, loader: Iterable[T]) -> Iterator[T]:
        # Here a DataLoader draws its workers' seeds from the main process's global RNG, which must
        # neither move, for what the model draws to resume, nor seed two epochs alike.
        plan = self._plan
        start, rank = plan.progress.position, f"rank {plan.shape().rank}"
        key = _rng.global_key(plan.seed, start.epoch, start.cursor, rank, "worker")
        with _rng.globals_aside():
            _rng.key_globals(key)
            return iter(loader)


class Drawn(Iterator[list[int]]):
    """A pass over a sampler, which counts what was drawn.

    A loader that asks it for its state with each batch that it draws, and saves the one that it
    got with the batch it delivered last, resumes exactly, as torchdata's does. It need not track.

    Args:
        sampler: Whose pass it is.
        run: Its hold on the position.
        stops: Where `StatefulBatchSampler.track` reads what a batch counts; None without.
    """

    def __init__(self, sampler: StatefulBatchSampler, run: Run, stops: deque[int] | None) -> None:
        self._sampler = sampler
        self._run = run
        self._stops = stops
        self._steps: Iterator[Step] | None = None
        self._cursor: int | None = None  # what was drawn, once something was
        self._restored = False

    def __next__(self) -> list[int]:
        if self._steps is None:
            self._steps = self._sampler._begin(self._run)
        step = next(self._steps, None)
        if step is None:
            if self._stops is None:
                self._run.finish(empty=self._cursor is None and not self._restored)
            raise StopIteration
        self._run.check()
        if self._stops is not None:
            self._stops.append(step.stop)
        self._cursor = step.stop
        return list(step.indices)

    def state_dict(self) -> dict[str, int | bool | None]:
        """The position behind what was drawn; once the pass has ended, that of the next.

        Returns:
            As the sampler's ``state_dict()``, which `StatefulBatchSampler.load_state_dict` takes.
        """
        if self._run.finished:
            return self._sampler.state_dict()
        planned = self._run.planned
        cursor = planned.cursor if self._cursor is None else self._cursor
        return self._sampler._plan.state(Position(planned.epoch, cursor))

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go to a saved position, and the sampler with it, before the first batch is drawn.

        Args:
            state: What ``state_dict()`` returned, of a pass or of a sampler.

        Raises:
            TypeError: A value is of the wrong type.
            ValueError: A key is missing, a value out of range, or a setting differs.
        """
        self._sampler.load_state_dict(state)
        self._restored = True


class LoaderBatches(StatefulBatchSampler):
    """A loader's ``batch_sampler``: who looks at it moves nothing.

    Trainers rebuild it, for prediction say, as ``LoaderBatches(sampler, batch_size=, drop_last=)``.
    Then nothing is repeated.
    """

    def __init__(
        self, source: Sized | int, batch_size: int, *, pad: bool = False, **options: Any
    ) -> None:
        super().__init__(source, batch_size, pad=pad, **options)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from the loader's position on."""
        if any(_draws_from(reader, self) for reader in _world.readers()):
            raise RuntimeError(
                "another loader draws from the batch_sampler of a StatefulDataLoader, which counts "
                "and keys what it delivers by itself, so a resume would not be exact. With "
                "Accelerate write PreparedDataLoader(accelerator, loader) of "
                "seedcursor.integrations.accelerate; with the Trainer derive from "
                "StatefulTrainerMixin of seedcursor.integrations.transformers; for a plain "
                "DataLoader make a StatefulBatchSampler"
            )
        for step in self._plan.steps(self._plan.progress.position):
            yield list(step.indices)


def _draws_from(reader: object, sampler: object) -> bool:
    """Whether a plain loader's iterator has the sampler, or wraps it as trainers do."""
    part = reader._index_sampler if isinstance(reader, _BaseDataLoaderIter) else None
    while part is not None and part is not sampler:
        part = getattr(part, "batch_sampler", None)
    return part is sampler


def _stood_for(sampler: Sampler[Any], seed: int | None) -> tuple[Sized | int, bool, int | None]:
    """The dataset, the shuffling and the seed that another's sampler stands for."""
    if isinstance(sampler, OrderSampler) and isinstance(sampler.order, KeyedOrder):
        order = sampler.order
        return order.sized, order.shuffle, order.seed if seed is None else seed
    if isinstance(sampler, SequentialSampler):
        return sampler.data_source, False, seed
    raise TypeError(
        f"dataset_or_length must be a dataset or its length, got a {type(sampler).__name__}. If a "
        "trainer has put it there, to deal the samples to ranks, there is no need, for these "
        "batches are one rank's already: turn that off, by Trainer(use_distributed_sampler=False) "
        "in Lightning, or use a StatefulDataLoader"
    )


def _not_drawn() -> RuntimeError:
    return RuntimeError(
        "loader must deliver a batch for each that it draws from this sampler: build it with "
        "DataLoader(dataset, batch_sampler=sampler), and don't have its batches dealt again, as "
        "accelerator.prepare(loader) does on several processes"
    )
