"""Arguments, taken or refused with the words that a user needs."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED_LIMIT = 2**128
EPOCH_LIMIT = 2**32
LENGTH_LIMIT = 2**63


def integer(name: str, value: object, *, low: int | None = 0, limit: int | None = None) -> int:
    """Return ``value`` as a plain ``int`` in ``[low, limit)``, or raise naming the argument."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name} must be {_allowed(low, limit)}, got {shown(value)} "
            f"of type {type(value).__name__}"
        ) from None
    if (low is not None and number < low) or (limit is not None and number >= limit):
        raise ValueError(f"{name} must be {_allowed(low, limit)}, got {shown(number)}")
    return number


def _allowed(low: int | None, limit: int | None) -> str:
    if low is None:
        return "an integer"
    if limit is None:
        return f"an integer >= {low}"
    # 2**32 reads better than 4294967296.
    power = limit.bit_length() - 1
    end = f"2**{power}" if power > 30 and limit == 1 << power else str(limit)
    return f"an integer in [{low}, {end})"


def shown(value: object) -> str:
    """A value as a message can show it, whatever its size."""
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def seed(value: object) -> int:
    """A root seed."""
    return integer("seed", value, limit=SEED_LIMIT)


def epoch(value: object) -> int:
    """An epoch number."""
    return integer("epoch", value, limit=EPOCH_LIMIT)


def stream(value: object) -> str | None:
    """The name that separates two draws for one record."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(
        f"stream must be a str or None, got {shown(value)} of type {type(value).__name__}; "
        "name it after what it draws, such as 'crop'"
    )


def one_each(name: str, what: str, kinds: str, values: Any) -> NDArray[Any]:
    """An argument with a value for each record."""
    given = None
    with contextlib.suppress(ValueError):  # sequences of unlike lengths
        given = np.asarray(values)
    if given is None or (given.size and given.dtype.kind not in kinds):
        raise TypeError(f"{name} must be {what}, one for each record, got {shown(values)}")
    if given.ndim != 1 or not given.size:
        raise ValueError(
            f"{name} must be in one dimension and not empty, got the shape {given.shape}"
        )
    return given


def lengths(values: Any) -> NDArray[np.int64]:
    """The length of each record."""
    given = one_each("lengths", "integers", "iu", values)
    if given.max() >= LENGTH_LIMIT:
        raise ValueError(
            f"lengths must be below 2**63, got {given.max()} at index {given.argmax()}"
        )
    if given.min() < 0:
        raise ValueError(
            f"lengths must not be negative, got {given.min()} at index {given.argmin()}"
        )
    return given.astype(np.int64)
