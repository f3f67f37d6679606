"""The loader: PyTorch's own, with a position."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler

from seedcursor import _checks, _keyed, _keys, _world
from seedcursor._dataset import StatefulIterableDataset
from seedcursor._fetch import Fetcher, StreamFetcher, start_worker
from seedcursor._keyed_sampler import KeyedBatchSampler, KeyedSampler, check_made_for
from seedcursor._order import (
    BatchSamplerOrder,
    KeyedBatchSamplerOrder,
    KeyedOrder,
    KeyedSamplerOrder,
    Order,
    SamplerOrder,
    StreamOrder,
)
from seedcursor._pass import Engine, Pass, build_alone
from seedcursor._plan import Plan, Positioned
from seedcursor._position import Position, checked_position
from seedcursor._sampler import LoaderBatches, OrderSampler, StatefulBatchSampler

T_co = TypeVar("T_co", covariant=True)


class Indexed(Protocol[T_co]):
    """A map-style dataset, ``torch``'s or not; to a type checker a stream looks like one too."""

    def __getitem__(self, index: Any, /) -> T_co: ...


class StatefulDataLoader(Positioned, DataLoader[T_co]):
    """``torch.utils.data.DataLoader`` with a position ``<epoch, cursor>``.

    The order is a function of ``(seed, epoch, position)``, a sample's randomness one of
    ``(seed, epoch, index)``, so a resume is exact to the bit for any number of workers and ranks,
    any start method and batch size. For every dataset, python's, NumPy's and torch's global RNGs
    are keyed once per batch by the seed, the epoch and the position of the batch's first sample;
    the main process's own are not moved.

    Args:
        dataset: Any map-style dataset, or a `StatefulIterableDataset`.
        batch_size: Samples per batch and rank; None for single samples.
        shuffle: Whether each epoch has a keyed order of its own.
        sampler: An order of the user's, keyed per epoch; a resume skips its indices, or goes
            straight to its place in a `KeyedSampler`.
        batch_sampler: Batches of the user's, likewise; ranks take them in turn.
        num_workers: Worker processes; 0 loads in the main process.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: As PyTorch's.
        drop_last: Whether a short last step is left out.
        timeout: Seconds to wait for a worker's batch; 0 for ever.
        worker_init_fn: Called in each worker with its id.
        multiprocessing_context: A start method's name, or a context.
        generator: Seeds the workers' own seeds; the order needs none.
        prefetch_factor: Batches that each worker builds ahead.
        persistent_workers: Whether workers live on from one pass to the next.
        pin_memory_device: As PyTorch's.
        in_order: Must be True.
        seed: The root seed; by default the dataset's, else 0.
        rank: This process; by default ``torch.distributed``'s, else the launcher's, else 0. Asked
            when a pass begins.
        world_size: How many processes; given with ``rank``.
        pad: Whether every rank makes the same number of steps, by repeating fewer than
            ``world_size`` samples in a short last one. False for evaluation: nothing is repeated,
            and ranks may differ by one batch.
        **options: What a newer PyTorch adds, passed on.

    Raises:
        TypeError: An argument is of another type, or the dataset is a foreign iterable.
        ValueError: An argument is out of range, or arguments exclude each other.

    Example:
        >>> loader = StatefulDataLoader(range(10), batch_size=4, shuffle=True, seed=7)
        >>> batches = [batch.tolist() for batch in loader]
        >>> loader.set_epoch(0)
        >>> for batch in loader:
        ...     break
        >>> state = loader.state_dict()
        >>> resumed = StatefulDataLoader(range(10), batch_size=3, shuffle=True, seed=7)
        >>> resumed.load_state_dict(state)
        >>> sum([batch.tolist() for batch in resumed], []) == batches[1] + batches[2]
        True
    """

    def __init__(
        self,
        dataset: Indexed[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        pad: bool = True,
        **options: Any,
    ) -> None:
        _check_dataset(dataset, sampler is None and batch_sampler is None)
        _check_samplers(dataset, sampler, batch_sampler)
        if not in_order:
            raise ValueError(
                "in_order must be True, got False: batches that come as they are ready have no "
                "position to resume from"
            )
        if batch_size is not None:
            batch_size = _checks.integer("batch_size", batch_size, low=1, limit=2**31)
        if isinstance(batch_sampler, LoaderBatches):  # another loader's, or rebuilt by a trainer
            batch_size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
            sampler, batch_sampler = batch_sampler.sampler, None
        # Another loader's sampler: take over what it stands for.
        if isinstance(sampler, OrderSampler):
            taken = sampler.order
            if isinstance(taken, (KeyedSamplerOrder, SamplerOrder)):
                sampler = taken.sampler
            elif isinstance(taken, KeyedOrder):
                sampler, shuffle, seed = None, taken.shuffle, taken.seed if seed is None else seed
        batches: LoaderBatches | None = None
        if isinstance(batch_sampler, StatefulBatchSampler):
            if not (seed is rank is world_size is None and pad):
                raise ValueError(
                    "seed, rank, world_size and pad belong to the StatefulBatchSampler here, got "
                    f"seed={seed!r}, rank={rank!r}, world_size={world_size!r}, pad={pad!r}; "
                    "give them to it"
                )
            self._plan = batch_sampler._plan
        elif sampler is batch_sampler is None and not isinstance(dataset, IterableDataset):
            batches = LoaderBatches(
                dataset,  # type: ignore[arg-type]  # _check_dataset saw its length
                1 if batch_size is None else batch_size,
                shuffle=bool(shuffle),
                drop_last=drop_last,
                seed=seed,
                rank=rank,
                world_size=world_size,
                pad=pad,
            )
            self._plan = batches._plan
            sampler, shuffle = batches.sampler, None
        else:
            root = _keyed.found_seed(dataset) if seed is None else _checks.seed(seed)
            self._plan = Plan(
                order=_foreign_order(dataset, root, sampler, batch_sampler),
                seed=root,
                shuffle=False if isinstance(dataset, IterableDataset) else None,
                batch_size=1 if batch_size is None else batch_size,
                drop_last=bool(drop_last),
                pad=bool(pad),
                world=_dealt(batch_sampler) or _world.check_world(rank, world_size),
            )
        self._idle: list[Engine] = []  # persistent workers between two passes
        super().__init__(
            dataset,  # type: ignore[arg-type]  # PyTorch's fetches from anything indexed too
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=_checks.integer("num_workers", num_workers),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **options,
        )
        # Where trainers that build a loader anew look for its arguments.
        self.seed, self.rank, self.world_size, self.pad = seed, rank, world_size, pad
        self._show_trainers(batches)
        self._options = options

    def _show_trainers(self, batches: LoaderBatches | None) -> None:
        """Put an `OrderSampler` where trainers look for a sampler, beside any of the user's own.

        ``DataLoader`` locks the names, and what it has put there knows nothing of ranks.
        """
        order, shown = self._plan.order, self.__dict__
        follower = OrderSampler(order, self._plan.progress)
        if batches is not None:
            if self.batch_size is not None:
                shown["batch_sampler"] = batches
        elif isinstance(self.batch_sampler, StatefulBatchSampler):
            shown["sampler"] = self.batch_sampler.sampler
        elif isinstance(order, BatchSamplerOrder):
            in_order = KeyedOrder(self.dataset, self._plan.seed, shuffle=False)  # type: ignore[arg-type]
            shown["sampler"] = OrderSampler(in_order, self._plan.progress)
        elif isinstance(order, StreamOrder) or self.batch_size is None:
            shown["sampler"] = follower
        else:
            shown["batch_sampler"] = BatchSampler(follower, self.batch_size, self.drop_last)

    def __len__(self) -> int:
        """Steps in a full epoch.

        Raises:
            TypeError: The stream, or the user's sampler, has no length.
        """
        return self._plan.order.count(self._plan.shape())

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Plan a pass; nothing starts before its first batch is asked for."""
        return Pass(self._plan, self._idle, self._engine)

    def replay(self, *, epoch: int, cursor: int) -> Any:
        """Build the batch that starts at a position again: the one that gave a NaN, say.

        It is built in this process, for this rank, and moves nothing.

        Args:
            epoch: In ``[0, 2**32)``.
            cursor: Where the batch starts, as ``state_dict()`` had it before the batch.

        Returns:
            The batch, to the bit.

        Raises:
            TypeError: An argument is not an integer.
            ValueError: An argument is out of range, or no batch starts there.
        """
        start = checked_position(epoch, cursor, self._plan.order.limit)
        batch = build_alone(self._plan, self._fetcher(), start)
        if not batch:
            raise ValueError(
                f"no batch starts at epoch={start.epoch}, cursor={start.cursor}: the epoch ends "
                f"there, or all records of that step are skipped; its length is "
                f"{self._plan.order.length}"
            )
        return batch[0]

    @property
    def _is_accelerate_prepared(self) -> bool:
        # Accelerate asks for this before it builds another loader from this one's parts.
        raise TypeError(
            "accelerator.prepare() would build another loader from the parts of this "
            "StatefulDataLoader, without its position. Leave the loader out of prepare(), and "
            "write loader = PreparedDataLoader(accelerator, loader) of "
            "seedcursor.integrations.accelerate"
        )

    def _fetcher(self) -> Fetcher:
        plan, batched = self._plan, self._auto_collation
        if isinstance(self.dataset, StatefulIterableDataset):
            return StreamFetcher(
                self.dataset, self.collate_fn, batched, plan.seed, plan.drop_last, plan.pad
            )
        return Fetcher(self.dataset, self.collate_fn, batched, plan.seed)

    def _engine(self, start: Position) -> Engine:
        return Engine(
            self._fetcher(),
            num_workers=self.num_workers,
            pin_memory=self.pin_memory,
            timeout=self.timeout,
            worker_init_fn=functools.partial(start_worker, self.worker_init_fn),
            multiprocessing_context=self.multiprocessing_context,
            generator=self.generator or _worker_seeds(self._plan, start),
            prefetch_factor=self.prefetch_factor,
            persistent_workers=self.persistent_workers,
            pin_memory_device=self.pin_memory_device,
            **self._options,
        )

    @property
    def _iterator(self) -> None:
        """Where trainers put None to end persistent workers when they are done."""

    @_iterator.setter
    def _iterator(self, iterator: Any) -> None:
        self._idle.clear()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_idle": []}


def _check_dataset(dataset: object, needs_length: bool) -> None:
    name = type(dataset).__name__
    # Hugging Face's streams are torch's only once they are formatted for it.
    if isinstance(dataset, IterableDataset) or (
        hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")
    ):
        if not isinstance(dataset, StatefulIterableDataset):
            raise TypeError(
                f"dataset must be map-style or a StatefulIterableDataset, got {name}, whose "
                "__iter__ can't be told where to resume. Subclass StatefulIterableDataset: write "
                "records(start), which yields the raw records from position start, and "
                "sample(record, index); or let IteratedDataset(make) make it in each epoch; for a "
                "datasets.IterableDataset there is seedcursor.integrations.datasets"
            )
    elif not hasattr(dataset, "__getitem__"):
        raise TypeError(f"dataset must be map-style, with __getitem__, got {name}")
    elif needs_length and not hasattr(dataset, "__len__"):
        raise TypeError(
            f"dataset must have __len__, got {name} without; give it one, or pass sampler="
        )


def _check_samplers(dataset: object, sampler: object, batch_sampler: object) -> None:
    if isinstance(sampler, KeyedBatchSampler):
        name = type(sampler).__name__
        raise TypeError(f"sampler must yield indices, got a {name}; pass it as batch_sampler=")
    if isinstance(batch_sampler, KeyedSampler):
        name = type(batch_sampler).__name__
        raise TypeError(f"batch_sampler must yield batches, got a {name}; pass it as sampler=")
    check_made_for(sampler, "sampler", dataset)
    check_made_for(batch_sampler, "batch_sampler", dataset)


def _dealt(batch_sampler: Any) -> tuple[int, int] | None:
    """The world in which batches that are one rank's already are all there are.

    Lightning wraps ours in an object of its own, with our attributes, to predict.
    """
    return (0, 1) if isinstance(getattr(batch_sampler, "_plan", None), Plan) else None


def _foreign_order(dataset: Any, seed: int, sampler: Any, batch_sampler: Any) -> Order:
    if isinstance(dataset, IterableDataset):
        return StreamOrder(dataset)
    if isinstance(batch_sampler, KeyedBatchSampler):
        return KeyedBatchSamplerOrder(batch_sampler, seed)
    if batch_sampler is not None:
        return BatchSamplerOrder(batch_sampler, seed)
    if isinstance(sampler, KeyedSampler):
        return KeyedSamplerOrder(sampler, seed)
    return SamplerOrder(sampler, seed)


def _worker_seeds(plan: Plan, start: Position) -> torch.Generator:
    """What the workers' own seeds are drawn from, in place of the global RNG."""
    rank, _ = plan.world or _world.current_world()
    words = _keys.sequence(plan.seed, start.epoch, start.cursor, f"rank {rank}", "worker")
    # PyTorch draws with it on the default device.
    generator = torch.Generator(torch.get_default_device())
    return generator.manual_seed(int(words.generate_state(1, np.uint64)[0]))
