"""For the ``Trainer`` of Hugging Face transformers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
)
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from seedcursor import StatefulDataLoader, load_rng_state_dict, rng_state_dict

if TYPE_CHECKING:
    _Base = Trainer
else:
    _Base = object

_DONE = object()  # a batch that was trained on before the run was resumed


class StatefulTrainerMixin(_Base):
    """Gives a ``Trainer`` an exact resume in the middle of an epoch, without replaying.

    The training loader becomes a ``StatefulDataLoader`` with the Trainer's own dataset, collator
    and arguments; its position is saved in ``trainer_state.json``. The order is keyed by
    ``data_seed``, or else ``seed``. Resumed from a checkpoint, no sample is loaded for skipping.
    Evaluation moves none of the training's randomness.

    Mix it in before the ``Trainer``, or before a subclass of your own. If that one's
    ``get_train_dataloader`` returns a ``StatefulDataLoader``, it is taken as it is.

    Example:
        >>> class ExactTrainer(StatefulTrainerMixin, Trainer):
        ...     pass
    """

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of the training, which `train` calls for."""
        theirs: Any = super().get_train_dataloader()
        if not isinstance(theirs, StatefulDataLoader):
            theirs = _rebuilt(theirs, self)
        batches = _Batches(theirs, _total(theirs, self))
        if not any(isinstance(each, DataPosition) for each in self.callback_handler.callbacks):
            self.add_callback(DataPosition)
        # A batch of this one is a list of one batch of ours. The Trainer builds it again from its
        # parts, with as many left out as it has trained on. Its generator is never used.
        return DataLoader(
            _Handed(theirs),
            batch_sampler=batches,
            collate_fn=operator.itemgetter(0),
            generator=torch.Generator(),
        )

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Evaluate, and leave the training's random state as it was."""
        state = rng_state_dict()
        try:
            found: dict[str, float] = super().evaluate(*args, **options)
            return found
        finally:
            load_rng_state_dict(state)


class DataPosition(TrainerCallback, ExportableState):
    """Puts the position into checkpoints, and the loader where a checkpoint has it."""

    _batches: _Batches | None = None

    def state(self) -> dict[str, Any]:
        """What the Trainer saves."""
        if self._batches is None:
            return {"args": {}, "attributes": {}}
        saved = {"data": self._batches.loader.state_dict(), "total": self._batches.total}
        return {"args": {}, "attributes": {"saved": saved}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **options: Any
    ) -> None:
        """Go to the position that the checkpoint has.

        Raises:
            ValueError: It has none, or the Trainer would go on somewhere else.
        """
        self._batches = options["train_dataloader"].batch_sampler
        if state.global_step == 0:
            return
        if args.ignore_data_skip:
            raise ValueError(
                "ignore_data_skip must be False, got True: the Trainer would count the epoch's "
                "steps anew. Leave it out; no sample is loaded for skipping"
            )
        callbacks: Any = state.stateful_callbacks
        saved = callbacks.get(type(self).__name__)
        if not saved or not saved["attributes"]:
            raise ValueError(
                f"the checkpoint of step {state.global_step} has no data position, so the Trainer "
                "that saved it had no StatefulTrainerMixin; resume it without, or begin anew"
            )
        self._go_to(saved["attributes"]["saved"], args, state)

    def _go_to(self, saved: dict[str, Any], args: TrainingArguments, state: TrainerState) -> None:
        assert self._batches is not None
        loader, total = self._batches.loader, self._batches.total
        if saved["total"] != total:
            raise ValueError(
                "per_device_train_batch_size * gradient_accumulation_steps * processes must be "
                f"{saved['total']}, as in the checkpoint, got {total}: the Trainer counts steps of "
                "that size, and would go on at another place. Choose the three so that the "
                "product is the same"
            )
        loader.load_state_dict(saved["data"])
        epoch, done = _trainers_place(self._batches, args, state)
        if loader.epoch != (epoch if done else epoch - 1):
            raise ValueError(
                f"the Trainer would go on in epoch {epoch} after {done} batches, but the data "
                f"stands in epoch {loader.epoch} at cursor {loader.cursor}. The Trainer takes all "
                "epochs for equally long: end none early, and give a stream a __len__"
            )
        self._batches.done = done


def _trainers_place(
    batches: _Batches, args: TrainingArguments, state: TrainerState
) -> tuple[int, int]:
    """The epoch and the batches of it that were trained on, as the Trainer reckons them."""
    steps = args.gradient_accumulation_steps
    try:
        updates = max(-(-len(batches) // steps), 1)
    except TypeError:
        updates = state.max_steps
    return state.global_step // updates, state.global_step % updates * steps


class _Batches(Sampler[list[Any]]):
    """Each of a loader's batches, as the one index of a batch, those done included."""

    def __init__(self, loader: StatefulDataLoader[Any], total: int) -> None:
        self.loader = loader
        self.batch_sampler = loader  # where the Trainer looks for set_epoch
        self.total = total  # positions per step of the Trainer
        self.done = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Any]]:
        done, self.done = self.done, 0
        yield from itertools.repeat([_DONE], done)
        for batch in self.loader:
            yield [batch]


class _Handed(Dataset[Any]):
    """The dataset whose index is a batch that is ready."""

    def __init__(self, loader: StatefulDataLoader[Any]) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader.dataset)  # type: ignore[arg-type]

    def __getitem__(self, batch: Any) -> Any:
        if batch is _DONE:
            raise RuntimeError(
                "the Trainer must skip the batches that it has trained on, and did not; is "
                "ignore_data_skip set, or the loop another one's?"
            )
        return batch


def _rebuilt(theirs: Any, trainer: Any) -> StatefulDataLoader[Any]:
    """The Trainer's loader, made again as one of ours."""
    args = trainer.args
    stream = isinstance(theirs.dataset, IterableDataset)
    shared = _shared(trainer)
    _check(args, trainer)
    order = {} if stream else _order(theirs)
    return StatefulDataLoader(
        trainer.train_dataset if stream else theirs.dataset,
        batch_size=theirs.batch_size if stream else theirs.batch_sampler.batch_size,
        **order,
        num_workers=theirs.num_workers,
        collate_fn=theirs.collate_fn,
        pin_memory=theirs.pin_memory,
        drop_last=args.dataloader_drop_last,
        timeout=theirs.timeout,
        worker_init_fn=theirs.worker_init_fn,
        multiprocessing_context=theirs.multiprocessing_context,
        prefetch_factor=theirs.prefetch_factor,
        persistent_workers=theirs.persistent_workers,
        in_order=args.dataloader_in_order,
        seed=args.seed if args.data_seed is None else args.data_seed,
        rank=args.process_index // shared,
        world_size=args.world_size // shared,
    )


def _shared(trainer: Any) -> int:
    """How many processes split a layer or a sample, and so get the same batches."""
    return int(trainer.get_tp_size() * trainer.get_cp_size())


def _total(loader: StatefulDataLoader[Any], trainer: Any) -> int:
    """Positions per step of the Trainer; of a batch sampler without a size, batches."""
    ranks = trainer.args.world_size // _shared(trainer)
    size = int(getattr(loader.batch_sampler, "batch_size", 1))
    return size * int(trainer.args.gradient_accumulation_steps) * int(ranks)


def _order(theirs: Any) -> dict[str, Any]:
    batches = getattr(theirs.batch_sampler, "batch_sampler", theirs.batch_sampler)
    sampler = getattr(batches, "sampler", None)
    if sampler is None:
        raise ValueError(
            f"train_sampling_strategy must be one that orders samples, got {type(batches).__name__}"
            ", which makes batches for each process; use 'random', 'sequential' or "
            "'group_by_length'"
        )
    every = len(sampler) == len(theirs.dataset)
    if isinstance(sampler, RandomSampler) and every and not sampler.replacement:
        return {"shuffle": True}
    return {} if isinstance(sampler, SequentialSampler) else {"sampler": sampler}


def _check(args: Any, trainer: Any) -> None:
    if args.accelerator_config.split_batches:
        raise ValueError(
            "accelerator_config's split_batches must be False, got True: the batch size is that "
            "of one process"
        )
    if trainer.get_sp_size() > 1:
        raise ValueError(
            f"sequence parallelism must be off, got {trainer.get_sp_size()} processes: it would "
            "split the batches of a loader of its own"
        )
