"""For transforms of MONAI."""

from __future__ import annotations

from typing import Any

import numpy as np
from monai.transforms.compose import Compose
from monai.transforms.transform import Randomizable

from seedcursor.integrations.generators import SeededGenerators, held


class SeededMonai(SeededGenerators):
    """Any map-style dataset, with the MONAI transforms that it holds keyed too.

    As ``SeededDataset``, and before each sample every ``Randomizable`` that the dataset holds is
    handed a random state of its own by ``set_random_state``, on the bits of ``rng(index, path)``;
    those within a ``Compose`` or within another transform too. MONAI itself seeds some transforms
    and those within them with the same number, so that they draw alike.

    Args:
        base: A map-style dataset, complete with its transforms.
        seed: The root seed, in ``[0, 2**128)``, the same on every rank.

    Raises:
        TypeError: ``base`` is not map-style, or ``seed`` not an integer.
        ValueError: ``seed`` is out of range.

    Example:
        >>> import torch
        >>> from monai.data import Dataset
        >>> from monai.transforms import RandGaussianNoise
        >>> scans = Dataset([torch.zeros(1, 4, 4)] * 3, RandGaussianNoise(prob=1))
        >>> dataset = SeededMonai(scans, seed=1)
        >>> torch.equal(dataset[2], dataset[2]), torch.equal(dataset[2], dataset[1])
        (True, False)
    """

    def find(self) -> list[tuple[str, Any]]:
        """Each ``Randomizable``, with its path."""
        return list(held(self.base, (Randomizable,), through=(Randomizable,)))

    def key(self, thing: Any, index: Any, path: str) -> None:
        """Give a transform its random state for a sample.

        Args:
            thing: A ``Randomizable``.
            index: Of the sample.
            path: Where the base holds it.
        """
        state = np.random.RandomState(self.rng(index, path).bit_generator)
        if type(thing).set_random_state is Compose.set_random_state:
            # It would seed what is in it, which is keyed by itself, and takes longer.
            Randomizable.set_random_state(thing, state=state)
        else:
            thing.set_random_state(state=state)
