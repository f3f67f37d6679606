"""What wrappers of somebody's map-style dataset have in common."""

from __future__ import annotations

from typing import Any

from torch.utils.data import IterableDataset


class Around:
    """Has the length of its base, and the base's attributes besides its own."""

    base: Any

    def __len__(self) -> int:
        return len(self.base)

    def __getattr__(self, name: str) -> Any:
        # Not while an unpickled object is still empty.
        if name.startswith("__") or "base" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(self.base, name)


def map_style(base: Any, instead: str) -> Any:
    """The argument ``base``, checked; ``instead`` says what there is for a stream."""
    if isinstance(base, IterableDataset) or not hasattr(base, "__getitem__"):
        raise TypeError(
            f"base must be a map-style dataset, with __getitem__ and __len__, got "
            f"{type(base).__name__}; for a stream{instead}"
        )
    return base
