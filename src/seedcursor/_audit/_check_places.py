"""Checks of where and when a sample is read: order, workers, processes, a resume."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from attrs import evolve

from seedcursor._audit._batches import batches
from seedcursor._audit._blame import definition
from seedcursor._audit._check_records import stream_worker_count
from seedcursor._audit._isolate import Broke
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._said import finding, named, reading
from seedcursor._audit._workers import Record, read_by
from seedcursor._loader import StatefulDataLoader


def check_call_order(lab: Lab) -> Iterator[Finding]:
    """The value depends on what was read before."""
    for outcome in lab.reread:
        before = lab.base[outcome.place]
        if outcome.digest != before.digest and outcome.place not in lab.unstable:
            yield finding(
                "call-order",
                reading(lab),
                f"from the same random state, {named(lab, outcome.place)} is {before.text}, and "
                f"{outcome.text} after other samples were read",
            )
            return


def check_worker_count(lab: Lab) -> Iterator[Finding]:
    """The value depends on how many workers there are, on which got it, or on nothing known."""
    if lab.base and lab.unstable:
        place = min(lab.unstable)
        yield finding(
            "worker-count",
            reading(lab),
            f"{named(lab, place)} is another value each time, with nothing changed, in workers "
            "and without: it takes the clock, a process's id, an address or entropy of the system",
        )
    elif lab.found & {"call-order", "resume"}:
        return
    elif lab.is_stateful:
        yield from _loader_worker_count(lab)
    elif lab.is_stream:
        yield from stream_worker_count(lab)
    else:
        yield from _map_worker_count(lab)


def _map_worker_count(lab: Lab) -> Iterator[Finding]:
    workers = max(2, *lab.settings.num_workers)
    crew = evolve(
        lab.crew, num_workers=workers, control=lab.control, epochs=1, batch_size=1, init=None
    )
    # Each sample goes to two workers in turn.
    turned = [*lab.sound, lab.sound[0], *lab.sound] if len(lab.sound) % 2 == 0 else 2 * lab.sound
    for record in lab.read_by(crew, indices=turned)[0] if lab.sound else []:
        before = lab.base[record.place]
        if record.digest != before.digest:
            yield finding(
                "worker-count",
                reading(lab),
                f"from the same random state, {named(lab, record.place)} is {before.text} in the "
                f"main process and {record.text} in worker {record.worker} of {workers}",
            )
            return


def _loader_worker_count(lab: Lab) -> Iterator[Finding]:
    if "private-rng" in lab.found:
        return
    counts = sorted(set(lab.settings.num_workers))
    results = [_loaded(lab, count, _STEPS)[0] for count in counts]
    for count, result in zip(counts[1:], results[1:], strict=True):
        step = _first_difference(results[0], result)
        if step is not None:
            yield finding(
                "worker-count",
                reading(lab),
                f"batch {step} differs between num_workers={counts[0]} and num_workers={count}",
            )
            return


def check_start_method(lab: Lab) -> Iterator[Finding]:
    """The dataset does not pickle, or gives other values in a spawned worker."""
    if lab.found & {"call-order"} or not lab.sound:
        return
    crew = evolve(lab.crew, num_workers=1, control=lab.control, epochs=1, batch_size=1, init=None)
    places = [place for place in lab.sound if place not in lab.unstable][:6]
    if not places:
        return
    forked = lab.read_by(crew, indices=places)[0]
    try:
        spawned = lab.run(lambda at: _spawned(lab, crew, places))
    except Broke as broke:
        yield finding("start-method", reading(lab), broke.line)
        return
    if isinstance(spawned, str):
        lab.notes.append(spawned)
        return
    for before, after in zip(forked, spawned, strict=False):
        if before.digest != after.digest:
            yield finding(
                "start-method",
                reading(lab),
                f"from the same random state, {named(lab, before.place)} is {before.text} in a "
                f"forked worker and {after.text} in a spawned one",
            )
            return


def _spawned(lab: Lab, crew: Any, places: list[int]) -> list[Record] | str:
    main = sys.modules["__main__"]
    if not _needs_main(lab.dataset):
        # The program itself need not be importable for this.
        main.__spec__ = None
        main.__dict__.pop("__file__", None)
    elif lab.interactive:
        return "spawned workers were not tried: the dataset is defined in an interactive session"
    limit = min(lab.limit, len(places))
    spawning = evolve(crew, method="spawn")
    return read_by(spawning, lab.dataset, None if lab.is_stream else places, limit)


class _Spawning:
    """Stands for a process that is being started, so that what only travels then is pickled."""

    def duplicate_for_child(self, descriptor: int) -> int:
        return descriptor

    DupFd = duplicate_for_child


def _needs_main(dataset: Any) -> bool:
    spawning: Any = _Spawning()
    set_spawning_popen(spawning)
    try:
        return b"__main__" in bytes(ForkingPickler.dumps(dataset))
    finally:
        set_spawning_popen(None)


def check_threads(lab: Lab) -> Iterator[Finding]:
    """Workers times the libraries' threads in each exceed the cores."""
    if not os.path.isdir("/proc/self/task") or not lab.crew.num_workers:
        return
    records = [record for record in lab.natural[0] if record.worker >= 0]
    threads = max((record.threads for record in records), default=1)
    cores, workers = len(os.sched_getaffinity(0)), lab.crew.num_workers
    if threads > 1 and workers * threads > cores:
        yield finding(
            "threads",
            reading(lab),
            f"{workers} workers of {threads} threads each are {workers * threads} threads on "
            f"{cores} cores",
        )


_STEPS = 8


def _loaded(
    lab: Lab, num_workers: int, limit: int, state: dict[str, Any] | None = None, left: int = 0
) -> tuple[list[bytes], dict[str, Any]]:
    loader = _positioned(lab)
    found, after = lab.run(lambda _: batches(loader, num_workers, limit, state, left))
    lab.compared += len(found) * (loader.batch_size or 1)
    return found, after


def _positioned(lab: Lab) -> StatefulDataLoader[Any]:
    if isinstance(lab.target, StatefulDataLoader):
        return lab.target
    return StatefulDataLoader(lab.dataset, batch_size=lab.crew.batch_size)


def _first_difference(one: list[bytes], other: list[bytes]) -> int | None:
    for step, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return step
    return None if len(one) == len(other) else min(len(one), len(other))


def check_resume(lab: Lab) -> Iterator[Finding]:
    """Stopped and resumed is not the same as uninterrupted."""
    if lab.found & {"private-rng", "call-order"} or lab.unstable:
        return
    if lab.found & {"unkeyed-numpy", "unkeyed-python", "unkeyed-torch"}:
        return
    # In the first epoch, and in one after an epoch that moved what must not move.
    for left, stop in ((0, 1), (0, 3), (1, 2)):
        whole, _ = _loaded(lab, 0, _STEPS, left=left)
        if stop >= len(whole):
            return
        begun, state = _loaded(lab, 0, stop, left=left)
        resumed, _ = _loaded(lab, 0, _STEPS - stop, state)
        step = _first_difference(whole, begun + resumed)
        if step is not None:
            yield finding(
                "resume",
                definition(lab.dataset, "records", "__getitem__", "sample"),
                f"stopped after batch {stop - 1} of epoch {state['epoch']} and resumed at cursor "
                f"{state['cursor']}, batch {step} is another one than in an uninterrupted run",
            )
            return
