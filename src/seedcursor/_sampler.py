"""The position for people who stay with the plain ``DataLoader``."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

from torch.utils.data import DistributedSampler, Sampler, SequentialSampler

from seedcursor import _checks, _keyed, _rng, _world
from seedcursor._order import KeyedOrder, Order, StreamOrder
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

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's batches from the position on; without `track`, only their end moves it."""
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
        tracked = self._tracked or (self._plan.progress.plan(), None)
        # Some datasets must know before workers are forked, which is before the first batch.
        _keyed.hand_epoch(self._dataset, tracked[0].planned_epoch)
        return self._batches(*tracked)

    def _batches(self, run: Run, stops: deque[int] | None) -> Iterator[list[int]]:
        self._tracked = None
        start = run.begin()
        _keyed.hand_epoch(self._dataset, start.epoch)
        empty = True
        for step in self._plan.steps(start):
            run.check()
            if stops is not None:
                stops.append(step.stop)
            yield list(step.indices)
            empty = False
        if stops is None:
            run.finish(empty=empty)

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
        run = self._plan.progress.plan()
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

    def _iterator(self, loader: Iterable[T]) -> Iterator[T]:
        # Here a DataLoader draws its workers' seeds from the main process's global RNG, which must
        # neither move, for what the model draws to resume, nor seed two epochs alike.
        plan = self._plan
        start, rank = plan.progress.position, f"rank {plan.shape().rank}"
        key = _rng.global_key(plan.seed, start.epoch, start.cursor, rank, "worker")
        with _rng.globals_aside():
            _rng.key_globals(key)
            return iter(loader)


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
        for step in self._plan.steps(self._plan.progress.position):
            yield list(step.indices)


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
        "DataLoader(dataset, batch_sampler=sampler)"
    )
