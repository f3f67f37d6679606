"""For the streams of Hugging Face ``datasets``."""

from __future__ import annotations

from functools import partial
from typing import Any

import datasets
import numpy as np

from seedcursor import IteratedDataset
from seedcursor.integrations.generators import held

# A generator that nobody seeded has 128 bits of entropy.
_SEEDED = 2**64


class HuggingFaceStream(IteratedDataset):
    """A ``datasets.IterableDataset``, shuffled and mapped as it is, with an exact position.

    Its epoch is this one's, so a shuffled stream has another order in each. Functions given to
    ``map`` may draw from the global RNGs: they draw by seed, epoch and position. A
    ``datasets.Dataset`` needs none of this: give it to a ``StatefulDataLoader``, in a
    ``SeededDataset`` if it draws.

    As of any `IteratedDataset`, each worker of each rank reads all of the stream, and works on its
    own records only: so what is slow belongs into `sample`, for which you subclass, and not into
    ``map``. A resume reads what was delivered already, for ``IterableDataset.skip`` reads it too,
    and leaves the shards unshuffled. Of files of your own read a ``ShardedDataset``, which does
    neither.

    Args:
        dataset: The stream of all ranks.
        length: Records in an epoch, where that is known.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``dataset`` is no ``datasets.IterableDataset``.
        ValueError: ``dataset`` was split by ranks, or shuffled without a seed.

    Example:
        >>> from seedcursor import StatefulDataLoader
        >>> table = datasets.Dataset.from_dict({"x": [0, 1, 2, 3, 4, 5]})
        >>> stream = table.to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=4)
        >>> loader = StatefulDataLoader(HuggingFaceStream(stream), batch_size=3, num_workers=2)
        >>> sorted(x for batch in loader for x in batch["x"].tolist())
        [0, 1, 2, 3, 4, 5]
    """

    def __init__(self, dataset: Any, *, length: int | None = None, seed: int = 0) -> None:
        if not isinstance(dataset, datasets.IterableDataset):
            raise TypeError(
                f"dataset must be a datasets.IterableDataset, got {type(dataset).__name__}; a "
                "datasets.Dataset is for StatefulDataLoader as it is"
            )
        if dataset._distributed is not None:
            raise ValueError(
                "dataset must be the stream of all ranks, got one that split_dataset_by_node has "
                "split; leave that out, for the loader shares records out to ranks"
            )
        for path, generator in held(dataset, (np.random.Generator,)):
            entropy = getattr(generator.bit_generator.seed_seq, "entropy", 0)
            if isinstance(entropy, int) and entropy >= _SEEDED:
                raise ValueError(
                    f"dataset{path} was made without a seed, so the order would be another one "
                    "after a restart; give shuffle() or interleave_datasets() a seed"
                )
        super().__init__(partial(_in_epoch, dataset), length=length, seed=seed)


def _in_epoch(dataset: Any, epoch: int) -> Any:
    # A stream's own epoch lies in memory that processes share; the one shard of one is all of it.
    copied = dataset.shard(num_shards=1, index=0)
    copied.set_epoch(epoch)
    return copied
