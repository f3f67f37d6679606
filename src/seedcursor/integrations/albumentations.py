"""For pipelines of albumentations 2."""

from __future__ import annotations

from typing import Any

from albumentations import BaseCompose, BasicTransform

from seedcursor.integrations.generators import SeededGenerators, held


class SeededAlbumentations(SeededGenerators):
    """Any map-style dataset, with the albumentations pipelines that it holds keyed too.

    As ``SeededDataset``, and before each sample every ``Compose`` (or bare transform) that the
    dataset holds gets generators of its own: those of ``rng(index, path)`` and
    ``python_rng(index, path)``. It hands them on to all that is nested in it. A ``seed=`` that it
    was built with has no effect then.

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
        """The outermost pipelines and transforms, with their paths."""
        return list(held(self.base, (BaseCompose, BasicTransform)))

    def key(self, thing: Any, index: Any, path: str) -> None:
        """Give a pipeline its generators for a sample.

        Args:
            thing: A pipeline or transform.
            index: Of the sample.
            path: Where the base holds it.
        """
        thing.set_random_state(self.rng(index, path), self.python_rng(index, path))
