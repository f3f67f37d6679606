"""For pipelines of albumentations 2."""

from __future__ import annotations

import random
from typing import Any

from albumentations import BaseCompose, BasicTransform

from seedcursor.integrations.generators import SeededGenerators, held, put


class SeededAlbumentations(SeededGenerators):
    """Any map-style dataset, with the albumentations pipelines that it holds keyed too.

    As ``SeededDataset``, and before each sample every ``Compose`` (or bare transform) that the
    dataset holds gets generators of its own, with the streams ``path + ".random_generator"`` and
    ``path + ".py_random"``. It hands them on to all that is nested in it. A ``seed=`` that it was
    built with has no effect then.

    Args:
        base: A map-style dataset, complete with its pipelines.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``base`` is not map-style, or ``seed`` not an integer.
        ValueError: ``seed`` is out of range.

    Example:
        >>> import albumentations as A, numpy as np
        >>> class Photos:
        ...     def __init__(self):
        ...         self.transform = A.Compose([A.RandomCrop(8, 8), A.GaussNoise(p=1)])
        ...     def __len__(self):
        ...         return 3
        ...     def __getitem__(self, index):
        ...         return self.transform(image=np.full((16, 16, 3), 99, np.uint8))["image"]
        >>> dataset = SeededAlbumentations(Photos(), seed=1)
        >>> np.array_equal(dataset[2], dataset[2]), np.array_equal(dataset[2], dataset[1])
        (True, False)
    """

    def find(self) -> list[tuple[str, Any]]:
        """Each outermost pipeline or transform, a ``random.Random`` for it, and its path."""
        found = held(self.base, (BaseCompose, BasicTransform))
        return [(path, (pipeline, random.Random(0))) for path, pipeline in found]

    def key(self, thing: Any, index: Any, path: str) -> None:
        """Give a pipeline its generators for a sample.

        Args:
            thing: A pipeline or transform, and a ``random.Random``.
            index: Of the sample.
            path: Where the base holds it.
        """
        pipeline, python = thing
        put(python, self.rng(index, path + ".py_random"))
        pipeline.set_random_state(self.rng(index, path + ".random_generator"), python)
