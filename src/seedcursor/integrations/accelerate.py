"""For training loops on Hugging Face Accelerate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin
from accelerate.utils import send_to_device

from seedcursor import StatefulDataLoader

_END = object()


class PreparedDataLoader(DataLoaderStateMixin):  # type: ignore[misc]  # accelerate has no types
    """A ``StatefulDataLoader`` in the place of what ``accelerator.prepare(loader)`` returns.

    ``accelerator.prepare`` would build another loader from this one's parts, without its position.
    Here the loader stays whole: its batches are moved to the accelerator's device,
    ``accelerator.accumulate`` knows its last batch, and ``save_state`` and ``load_state`` take its
    position with them. It deals to all processes by itself. For this Accelerate has to look one
    batch ahead; the position is that of the batch which the loop has.

    Args:
        accelerator: The run's. The loader is registered with it for checkpointing, so make loaders
            in the same order before ``load_state``.
        loader: Its ``batch_size`` is per process.

    Raises:
        TypeError: ``loader`` is not a ``StatefulDataLoader``.
        ValueError: The accelerator splits batches, or has processes that need the same batches.

    Example:
        >>> accelerator = Accelerator(cpu=True)
        >>> loader = StatefulDataLoader(range(6), batch_size=2)
        >>> loader = PreparedDataLoader(accelerator, loader)
        >>> [(batch.tolist(), loader.cursor) for batch in loader]
        [([0, 1], 2), ([2, 3], 4), ([4, 5], 6)]
    """

    # By this Accelerate drops what it repeated at the end. What is repeated here lies elsewhere.
    _drop_last = True

    def __init__(self, accelerator: Accelerator, loader: StatefulDataLoader[Any]) -> None:
        if not isinstance(loader, StatefulDataLoader):
            raise TypeError(f"loader must be a StatefulDataLoader, got {type(loader).__name__}")
        _check(accelerator, loader)
        self.gradient_state = accelerator.gradient_state
        self.loader = loader
        self._device = accelerator.device if accelerator.device_placement else None
        self._non_blocking = accelerator.non_blocking
        # Where the loader stands after looking ahead, and where the loop stands then.
        self._ahead: tuple[dict[str, Any], dict[str, Any]] | None = None
        accelerator.register_for_checkpointing(self)

    def __len__(self) -> int:
        """Steps in a full epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """A pass, from the position on."""
        self.begin()
        try:
            batches = iter(self.loader)
            batch = next(batches, _END)
            while batch is not _END:
                own = self.loader.state_dict()
                following = next(batches, _END)
                self._ahead = self.loader.state_dict(), own
                self.end_of_dataloader = following is _END
                if self._device is not None:
                    batch = send_to_device(batch, self._device, non_blocking=self._non_blocking)
                yield batch
                batch = following
            self._ahead = None
        finally:
            self.end()

    @property
    def epoch(self) -> int:
        """The epoch of the position."""
        return int(self.state_dict()["epoch"])

    @property
    def cursor(self) -> int:
        """How many positions of the epoch were delivered to the loop, all ranks together."""
        return int(self.state_dict()["cursor"])

    def set_epoch(self, epoch: int) -> None:
        """The pass that begins next is of this epoch; not needed where epochs follow each other.

        Args:
            epoch: In ``[0, 2**32)``.
        """
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position, as the loader's own ``state_dict`` has it.

        Returns:
            Plain values, the same on every process.
        """
        state = self.loader.state_dict()
        return self._ahead[1] if self._ahead is not None and self._ahead[0] == state else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, as the loader's own ``load_state_dict`` does.

        Args:
            state: What ``state_dict()`` returned.

        Raises:
            TypeError: A value is of the wrong type.
            ValueError: A setting differs, a key is missing, or a value out of range.
        """
        self.loader.load_state_dict(state)
        self._ahead = None


def _check(accelerator: Accelerator, loader: StatefulDataLoader[Any]) -> None:
    if accelerator.split_batches:
        raise ValueError(
            "split_batches must be False, got True: a StatefulDataLoader's batch_size is that of "
            f"one process. Leave out split_batches and give batch_size={loader.batch_size!r} // "
            f"{accelerator.num_processes}"
        )
    parallel = accelerator.parallelism_config
    if parallel is not None and parallel.non_data_parallel_size > 1:
        raise ValueError(
            "each process must get batches of its own, but the accelerator's parallelism_config "
            f"has groups of {parallel.non_data_parallel_size} processes that need the same. Give "
            "the loader the rank= and world_size= of the data-parallel group, and call "
            "accelerator.register_for_checkpointing(loader) instead"
        )
