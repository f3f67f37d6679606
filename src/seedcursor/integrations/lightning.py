"""For Lightning: what its own counters lack for an exact resume."""

from __future__ import annotations

import math
import warnings
from typing import Any

from seedcursor import StatefulDataLoader

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback  # type: ignore[assignment]

Trainer = Any  # either package's; their progress trackers are typed too widely for what they hold
_KEY = "seedcursor"


class ExactResume(Callback):
    """Puts Lightning's counters right where a resume with a `StatefulDataLoader` needs it.

    Where seedcursor is installed, each ``Trainer`` has it: Lightning finds it by an entry point. To
    add it by hand too does no harm. It does nothing unless a training loader is one of ours.

    - A checkpoint taken within a batch, by ``OnExceptionCheckpoint`` say, resumes with that batch.
    - A resume with another ``batch_size`` or number of ranks counts the epoch's steps anew, as many
      as are left.
    - With ``max_steps``, an epoch that a checkpoint has ended is not counted twice.
    - A checkpoint between two optimizer steps lacks the gradients accumulated so far: it warns.

    Raises:
        ValueError: The steps left can't be counted for this ``batch_size`` or number of ranks.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(accelerator="cpu", logger=False, callbacks=[ExactResume()])
    """

    def __init__(self) -> None:
        self._saved_spans: list[int] | None = None
        self._before: list[dict[str, Any]] = []

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Remember how many positions a step had when the checkpoint was saved."""
        self._saved_spans = checkpoint.get(_KEY)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Put the counters of a resumed epoch right."""
        loaders = _loaders(trainer)
        if loaders and trainer.fit_loop.restarting and self._is_first(trainer):
            _count_epoch_once(trainer)
            _count_from_zero(trainer, loaders[0])
            if self._saved_spans not in (None, _spans(trainer, loaders)):
                _count_steps_anew(trainer, loaders)
        self._saved_spans = None
        self._note(trainer)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Note where the epoch's first batch begins."""
        self._note(trainer)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Note where the next batch begins."""
        self._note(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: Any, checkpoint: dict[str, Any]
    ) -> None:
        """Save the position before a batch that is not trained on yet, and what a step covers."""
        loaders = _loaders(trainer)
        if not loaders or not self._is_first(trainer):
            return
        checkpoint[_KEY] = _spans(trainer, loaders)
        loop = trainer.fit_loop
        done = loop.epoch_loop.batch_progress.current
        if done.ready > done.processed:
            checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"] = self._before
        if done.processed and loop.epoch_loop._should_accumulate():
            warnings.warn(
                "this checkpoint is saved between two optimizer steps, and Lightning leaves out "
                "the gradients accumulated so far: after a resume the batches are the same, the "
                "losses are not. Save at a multiple of accumulate_grad_batches, as "
                "ModelCheckpoint(every_n_train_steps=...) does",
                UserWarning,
                stacklevel=2,
            )

    def _is_first(self, trainer: Trainer) -> bool:
        # One that was added by hand comes before the one that Lightning finds.
        return next(each for each in trainer.callbacks if isinstance(each, ExactResume)) is self

    def _note(self, trainer: Trainer) -> None:
        # Not for others' loaders, whose states may cost much at each batch.
        if _loaders(trainer):
            self._before = trainer.fit_loop._combined_loader._state_dicts()


def callbacks() -> list[Callback]:
    """What Lightning adds to each ``Trainer``."""
    return [ExactResume()]


def _loaders(trainer: Trainer) -> list[StatefulDataLoader[Any]]:
    combined = trainer.fit_loop._combined_loader
    flat = [] if combined is None else combined.flattened
    return [loader for loader in flat if isinstance(loader, StatefulDataLoader)]


def _spans(trainer: Trainer, loaders: list[StatefulDataLoader[Any]]) -> list[int]:
    """Positions per step of each loader, all ranks together."""
    return [(loader.batch_size or 1) * trainer.world_size for loader in loaders]


def _count_epoch_once(trainer: Trainer) -> None:
    """Lightning counts an epoch as processed again when it resumes at its end by ``max_steps``."""
    loop = trainer.fit_loop
    current, total = loop.epoch_progress.current, loop.epoch_progress.total
    if loop.restarted_on_epoch_end and current.processed > current.completed:
        current.processed -= 1
        total.processed -= 1


def _count_from_zero(trainer: Trainer, loader: StatefulDataLoader[Any]) -> None:
    """A checkpoint of an epoch's very start has the last epoch's steps still counted."""
    progress, epoch = trainer.fit_loop.epoch_loop.batch_progress, trainer.fit_loop.epoch_progress
    at_start = loader.cursor == 0 or loader.epoch < epoch.current.processed
    if at_start and progress.current.ready == progress.current.completed:
        progress.reset_on_run()
        progress.is_last_batch = False


def _count_steps_anew(trainer: Trainer, loaders: list[StatefulDataLoader[Any]]) -> None:
    """Set the steps done so that Lightning waits for as many as are left."""
    loader, length = loaders[0], loaders[0].state_dict()["length"]
    if len(trainer.fit_loop._combined_loader.flattened) > 1 or length is None:
        raise ValueError(
            "the checkpoint was saved with another batch_size or number of ranks, and the steps "
            "left can't be counted with several loaders, or with a batch_sampler of your own; "
            "resume with those of the checkpoint, or from an epoch's end"
        )
    left = (length - loader.cursor) / _spans(trainer, loaders)[0]
    steps = trainer.num_training_batches
    progress = trainer.fit_loop.epoch_loop.batch_progress
    done = len(loader) - (math.floor(left) if loader.drop_last else math.ceil(left))
    done = steps if progress.is_last_batch else min(done, steps - 1)
    current = progress.current
    completed = done - (current.ready - current.completed)
    current.ready = current.started = current.processed = done
    current.completed = completed
