"""Repeats within an epoch told apart, for samplers that draw with replacement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch.utils.data import Sampler

from seedcursor._record import Occurrence, plain


class Occurrences(Sampler[Occurrence]):
    """A sampler's indices, each with how often it was drawn before in the epoch.

    Sampling with replacement draws a record several times in an epoch. By its key it would be
    augmented alike each time. Under this sampler each time has draws of its own; the first has
    those that the record has without it. It works for any dataset of a ``StatefulDataLoader``,
    which hands the dataset the plain index, and for any number of workers, ranks and batch size.
    In a plain ``DataLoader`` the dataset would be handed an `Occurrence`, and refuse it.

    Args:
        sampler: Yields indices: ints in ``[0, 2**64)`` or record ids. For a batch sampler, wrap the
            sampler in it. The counts take memory for each record that was drawn.

    Example:
        >>> from torch.utils.data import WeightedRandomSampler
        >>> from seedcursor import SeededDataset, StatefulDataLoader
        >>> class Noise:
        ...     def __getitem__(self, index):
        ...         return torch.rand(())
        ...     def __len__(self):
        ...         return 2
        >>> import torch
        >>> sampler = WeightedRandomSampler([1.0, 3.0], num_samples=8)
        >>> repeats = StatefulDataLoader(SeededDataset(Noise()), 8, sampler=sampler)
        >>> distinct = StatefulDataLoader(SeededDataset(Noise()), 8, sampler=Occurrences(sampler))
        >>> [len(set(next(iter(loader)).tolist())) for loader in (repeats, distinct)]
        [2, 8]
    """

    def __init__(self, sampler: Iterable[int | str]) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Occurrence]:
        drawn: dict[int | str, int] = {}
        for index in self.sampler:
            record = plain(index)
            number = drawn.get(record, 0)
            drawn[record] = number + 1
            yield Occurrence(record, number)
