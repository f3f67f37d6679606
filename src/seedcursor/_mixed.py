"""What mixtures of datasets and of streams have in common: arguments, shares and a part's draws."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seedcursor import _batch, _checks, _keys, _rng
from seedcursor._keyed import Keyed, as_drawn, globals_to_key
from seedcursor._record import Occurrence
from seedcursor._shares import Schedule

# A source of less would have no share in any run.
_LEAST_SHARE = 1e-12
_RULES = {"first_exhausted": any, "all_exhausted": all}


class Mixed(Keyed):
    """Sources by name, and a schedule of which comes where.

    Attributes:
        datasets: The sources.
    """

    datasets: dict[str, Any]

    def _mix(
        self,
        sources: Mapping[str, tuple[Any, float]],
        checked: Callable[[str, Any], Any],
        length: int | None,
        stop: str | None,
        weights_from: Mapping[int, Mapping[str, float]] | None,
    ) -> None:
        """Take the arguments; ``checked`` returns a source, or refuses it."""
        pairs = {name: _pair(name, pair) for name, pair in _named(sources).items()}
        self.datasets = {name: checked(name, dataset) for name, (dataset, _) in pairs.items()}
        weights = {0: {name: weight for name, (_, weight) in pairs.items()}}
        for position, changed in _changes(weights_from).items():
            weights[position] = _complete(position, changed, set(self.datasets))
        self._names = list(self.datasets)
        self._lengths = [len(dataset) for dataset in self.datasets.values()]
        by_position = {
            position: [_weight(name, given[name]) for name in self._names]
            for position, given in weights.items()
        }
        for position, each in by_position.items():
            self._check_shares(position, each)
        self._schedule = Schedule(by_position, self.seed)
        self._length = self._epoch_length(length, stop)
        self._order_digest = _keys.order_digest(self._names, self._lengths, by_position, self.seed)

    def __len__(self) -> int:
        return self._length

    def _number(self, name: str, index: int) -> int:
        """The number that tells the draws of a source apart, at a position of this mixture."""
        drawn = as_drawn(self, [index])[0]
        return _keys.part_number(name, drawn.number if isinstance(drawn, Occurrence) else 0)

    @contextlib.contextmanager
    def _part(self, name: str, epoch: int, record: int, number: int) -> Iterator[None]:
        """Inside, a source is in an epoch of its own, with draws and global RNGs of its own."""
        outer = _batch.own()
        with globals_to_key():
            _rng.key_globals(
                _keys.part_key(self.seed, epoch, record, number, 4 * _rng.GLOBAL_WORDS)
            )
            _batch.enter(_batch.Part(_batch.whole(), epoch, number, self.datasets[name]))
            try:
                yield
            except Exception as error:
                _batch.note(error, f"in source {name!r}, its record {record}, its epoch {epoch}")
                raise
            finally:
                _batch.leave(outer)

    def _check_shares(self, position: int, weights: list[float]) -> None:
        total = sum(weights)  # not math.fsum, which raises where this is infinite
        if not 0 < total < math.inf:
            raise ValueError(
                f"weights must have a sum above 0 and finite, got {total} from position {position}"
            )
        for name, weight, length in zip(self._names, weights, self._lengths, strict=True):
            if weight and not length:
                raise ValueError(
                    f"sources[{name!r}] must have records, got a dataset of length 0 with weight "
                    f"{weight}; leave it out, or give it weight 0"
                )
            if 0 < weight / total < _LEAST_SHARE:
                raise ValueError(
                    f"the weight of {name!r} must be 0 or at least {_LEAST_SHARE:g} of the sum, "
                    f"got {weight} of {total}"
                )

    def _epoch_length(self, length: int | None, stop: str | None) -> int:
        if (length is None) == (stop is None):
            raise ValueError(
                f"one of length and stop must be given, got length={length!r}, stop={stop!r}"
            )
        if stop is None:
            return _checks.integer("length", length, low=1, limit=_checks.LENGTH_LIMIT)
        if not isinstance(stop, str) or stop not in _RULES:
            raise ValueError(f"stop must be one of {list(_RULES)}, got {_checks.shown(stop)}")
        enough = _RULES[stop]
        found = self._schedule.first(
            lambda counts: enough(
                count >= n for count, n in zip(counts, self._lengths, strict=True) if n
            )
        )
        if found is None:
            raise ValueError(
                f"stop={stop!r} must be reached below position 2**63; does a source keep weight 0?"
            )
        return found


def _named(sources: object) -> Mapping[str, Any]:
    if not isinstance(sources, Mapping):
        raise TypeError(
            f"sources must be a mapping of names to (dataset, weight), got {type(sources).__name__}"
        )
    if not sources:
        raise ValueError("sources must name at least one dataset, got none")
    for name in sources:
        if not isinstance(name, str):
            raise TypeError(f"sources must have names of type str, got {_checks.shown(name)}")
    return sources


def _pair(name: str, pair: object) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(
            f"sources[{name!r}] must be a pair (dataset, weight), got {type(pair).__name__}"
        )
    return pair[0], pair[1]


def _weight(name: str, weight: object) -> float:
    try:
        number = float(weight)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"the weight of {name!r} must be a number, got {_checks.shown(weight)} of type "
            f"{type(weight).__name__}"
        ) from None
    if not 0 <= number < math.inf:
        raise ValueError(f"the weight of {name!r} must be finite and not negative, got {number}")
    return number


def _changes(weights_from: object) -> dict[int, object]:
    if weights_from is None:
        return {}
    if not isinstance(weights_from, Mapping):
        raise TypeError(
            "weights_from must be a mapping of positions to weights, got "
            f"{type(weights_from).__name__}"
        )
    return {
        _checks.integer("a position of weights_from", position, low=1): weights
        for position, weights in weights_from.items()
    }


def _complete(position: int, weights: object, names: set[str]) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights_from[{position}] must be a mapping of names to weights, got "
            f"{type(weights).__name__}"
        )
    if set(weights) != names:
        raise ValueError(
            f"weights_from[{position}] must give a weight to each of {sorted(names)}, got "
            f"{list(weights)}; a source that is to be left out has weight 0"
        )
    return dict(weights)
