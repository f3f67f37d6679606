"""One pass: requests go out in order, batches come back in order, and the position follows."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve
from torch.utils.data import DataLoader, Sampler

from seedcursor import _rng
from seedcursor._batch import Fault
from seedcursor._fetch import Built, Fetcher, StreamFetcher
from seedcursor._plan import Plan
from seedcursor._position import Position

_log = logging.getLogger("seedcursor")

# Global keys are derived this many at once.
_KEYS = 128


class Requests(Iterator[tuple[Any, ...]]):
    """The steps from a position on, each a `Request` as it is sent.

    Attributes:
        error: What cut them short. It waits until the batches planned before are delivered.
    """

    def __init__(self, plan: Plan, start: Position) -> None:
        self.error: BaseException | None = None
        self._plan = plan
        self._epoch = start.epoch
        shape = plan.shape()
        self._span = shape.span
        self._steps = plan.order.steps(start, shape)
        self._keys: dict[int, bytes] = {}

    def __next__(self) -> tuple[Any, ...]:
        try:
            step = next(self._steps, None)
        except Exception as error:
            self.error = error
            raise StopIteration from error
        except BaseException as error:
            self.error = error
            raise
        if step is None:
            raise StopIteration
        position, stop, indices = step
        if position not in self._keys:
            self._derive(position)
        return self._epoch, position, stop, self._keys[position], indices

    def _derive(self, position: int) -> None:
        ahead = range(position, min(position + _KEYS * self._span, 2**64), self._span)
        keys = _rng.global_keys(self._plan.seed, self._epoch, ahead, "batch")
        self._keys = dict(zip(ahead, keys, strict=True))


def build_alone(plan: Plan, fetcher: Fetcher, start: Position) -> list[Any]:
    """Build this rank's batch of the step that starts at a position, in this process.

    Returns:
        The batch in a list, which is empty if there is none.
    """
    request = next(Requests(plan, start), None)
    if request is None:
        return []
    _, _, batch, _ = fetcher[request]
    return batch or fill(plan, fetcher, start)


def fill(plan: Plan, fetcher: Fetcher, start: Position) -> list[Any]:
    """A batch for a rank that has nothing left in a step: the step's first sample that is left.

    Others may have some, and all must make this step. It's seldom, so it may cost.

    Returns:
        The batch in a list, which is empty if there is none, or no other rank to keep up with.
    """
    shape = plan.shape()
    if shape.world_size == 1 or not shape.pad or isinstance(fetcher, StreamFetcher):
        return []
    request = next(Requests(plan, start))
    for rank in range(shape.world_size):
        step = next(plan.order.steps(start, evolve(shape, rank=rank)), None)
        for index in step.indices if step else ():
            _, _, batch, _ = fetcher[(*request[:-1], [index])]
            if batch:
                return batch
    return []


def _same(built: Any) -> Any:
    return built


class _Planned(Sampler[tuple[Any, ...]]):
    """Hands an engine the requests of the pass that uses it."""

    requests: Requests

    def __iter__(self) -> Requests:
        return self.requests


class Engine(DataLoader[Built]):
    """The plain ``DataLoader`` that carries requests to workers, and what they build back.

    Args:
        fetcher: Builds the batches.
        options: ``DataLoader``'s, on how it works.
    """

    dataset: Fetcher
    sampler: _Planned

    def __init__(self, fetcher: Fetcher, **options: Any) -> None:
        super().__init__(fetcher, batch_size=None, sampler=_Planned(), collate_fn=_same, **options)

    def run(self, requests: Requests) -> Iterator[Built]:
        """Start a pass over these requests."""
        if self.num_workers == 0 and not self.pin_memory:
            return map(self.dataset.__getitem__, requests)
        self.sampler.requests = requests
        return iter(self)

    def check_worker_number_rationality(self) -> None:
        """The user's loader has warned already."""


def _untie(error: BaseException) -> None:
    """Let the workers go with the error, though PyTorch's frame that raised it holds it too.

    All frames below are PyTorch's: the user's were in a worker.
    """
    assert error.__traceback__ is not None
    traceback.clear_frames(error.__traceback__.tb_next)


class Pass(Iterator[Any]):
    """One pass over a loader.

    Args:
        plan: The loader's.
        idle: Where persistent workers wait between two passes: an engine, or none.
        make_engine: Makes another one, for a pass that begins at a position.
    """

    _engine: Engine | None = None  # on the class too, for __del__ after an interrupted __init__

    def __init__(
        self, plan: Plan, idle: list[Engine], make_engine: Callable[[Position], Engine]
    ) -> None:
        self._requests: Requests | None = None
        self._results: Iterator[Built] | None = None
        self._sound = True  # nothing has been raised: the workers may serve another pass
        self._ended = False
        self._empty = True
        self._at = 0  # where the step starts whose batch comes next
        self._faults = 0  # records that were passed over
        self._plan = plan
        self._idle = idle
        self._make_engine = make_engine
        self._run = plan.progress.plan()

    def __len__(self) -> int:
        return self._plan.order.count(self._plan.shape())

    def __next__(self) -> Any:
        if self._run.finished:
            raise StopIteration
        requests, results = self._begin()
        try:
            self._run.check()
            while not self._ended:
                built = next(results, None)
                if built is None:
                    break
                stop, self._ended, batch, faults = built
                if faults:
                    self._pass_over(faults)
                if not batch:
                    batch = self._filled(self._at)
                self._at = stop
                if batch:
                    self._empty = False
                    self._run.deliver(stop)
                    return batch[0]
            if requests.error is not None:
                raise requests.error
        except BaseException as error:
            self._sound = False
            if self._engine is not None and self._engine.num_workers:
                _untie(error)
            raise
        self._release()
        self._run.finish(empty=self._empty)
        raise StopIteration

    def _begin(self) -> tuple[Requests, Iterator[Built]]:
        if self._requests is None or self._results is None:
            start = self._run.position if self._run.begun else self._run.begin()
            self._engine = self._idle.pop() if self._idle else self._make_engine(start)
            self._at = start.cursor
            self._requests = Requests(self._plan, start)
            self._results = self._engine.run(self._requests)
        return self._requests, self._results

    def _filled(self, cursor: int) -> list[Any]:
        assert self._engine is not None
        start = Position(self._run.position.epoch, cursor)
        return fill(self._plan, self._engine.dataset, start)

    def _pass_over(self, faults: list[Fault]) -> None:
        """Say which records raised, here, where they are known to be of a batch that counts."""
        epoch = self._run.position.epoch
        for fault in faults:
            self._faults += 1
            if self._faults > fault.at_most:
                raise RuntimeError(
                    f"{fault.record} raised in epoch {epoch}, and this pass may pass "
                    f"over at most {fault.at_most} such records, which the log names. Mend the "
                    f"records, or allow for more by at_most=. It raised:\n\n{fault.details}"
                )
            _log.warning("passed over %s in epoch %d: %s", fault.record, epoch, fault.cause)

    def _release(self) -> None:
        engine, self._engine, self._results = self._engine, None, None
        if engine is None or not engine.persistent_workers:
            return
        if self._sound and not self._idle:
            self._idle.append(engine)

    def __del__(self) -> None:
        self._release()
