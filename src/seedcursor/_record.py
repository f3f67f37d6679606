"""Which record a sample is made of: its index, or one of that index's occurrences in an epoch."""

from __future__ import annotations

from typing import TypeAlias

from attrs import field, frozen

from seedcursor import _checks

INDEX_LIMIT = 2**64


def plain(value: object) -> int | str:
    """An index that is no occurrence, checked."""
    if isinstance(value, str):
        return value
    return _checks.integer("index", value, limit=INDEX_LIMIT)


def _number(value: object) -> int:
    return _checks.integer("number", value, limit=INDEX_LIMIT)


@frozen
class Occurrence:
    """One of the times that a record is drawn in an epoch.

    Wherever a key takes an index it takes an occurrence too, and each has draws of its own; number
    0 has those of the index itself. `Occurrences` makes them from a sampler that draws with
    replacement.

    Args:
        index: Which record: an int in ``[0, 2**64)`` or a record id.
        number: How often it was drawn before in this epoch, or another number that tells its draws
            apart, such as the position; in ``[0, 2**64)``.

    Raises:
        TypeError: ``index`` is neither an int nor a str, or ``number`` not an int.
        ValueError: An argument is out of range.

    Example:
        >>> from seedcursor import sample_rng
        >>> first = sample_rng(seed=7, epoch=2, index=Occurrence(5, 0)).random()
        >>> second = sample_rng(seed=7, epoch=2, index=Occurrence(5, 1)).random()
        >>> first == sample_rng(seed=7, epoch=2, index=5).random(), first == second
        (True, False)
    """

    index: int | str = field(converter=plain)
    number: int = field(converter=_number)


Index: TypeAlias = int | str | Occurrence


def index(value: object) -> Index:
    """The argument ``index``, checked."""
    return value if isinstance(value, Occurrence) else plain(value)
