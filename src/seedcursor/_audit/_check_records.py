"""Checks of which records come: from a stream by several workers, and from a sampler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from attrs import evolve
from torch.utils.data import RandomSampler, WeightedRandomSampler

from seedcursor._audit._batches import flat, order, sampler_of
from seedcursor._audit._blame import definition
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._said import finding, reading
from seedcursor._audit._sources import Salt, watch
from seedcursor._audit._workers import Record


def _shares(lab: Lab) -> tuple[list[Record], list[list[Record]]]:
    """Records of one process, and of two and three workers, all read from one random state."""
    most = max(lab.settings.num_workers)
    counts = sorted({0, 2, 3, most} if most else {0})
    crews = [
        evolve(lab.crew, num_workers=count, control=lab.control, epochs=1, init=None)
        for count in counts
    ]
    alone, *shared = lab.read_by(*crews)
    return alone, shared


def _counted(records: Iterable[Record]) -> Counter[bytes]:
    return Counter(record.digest for record in records)


def check_repeated_records(lab: Lab) -> Iterator[Finding]:
    """A stream delivers a record from several workers, or a sampler repeats an index."""
    if not lab.is_stream:
        yield from _repeated_by_sampler(lab)
        return
    if lab.unstable:
        return
    alone, shared = _shares(lab)
    complete = len(alone) < lab.limit
    once = _counted(alone)
    if not complete and max(once.values(), default=0) > 1:
        return  # records look alike, so who repeats can't be told from the beginning
    for records in shared:
        many = _counted(records)
        again = [r for r in records if many[r.digest] > max(1, once[r.digest])]
        if again:
            workers = sorted({r.worker for r in records if r.digest == again[0].digest})
            yield finding(
                "repeated-records",
                reading(lab),
                f"{len({r.digest for r in again})} of {len(once)} records looked at come more "
                f"often than from one process: {again[0].text} from workers {workers}",
            )
            return


def check_missing_records(lab: Lab) -> Iterator[Finding]:
    """A stream leaves out records with workers, or in the second epoch."""
    if lab.unstable:
        return
    alone, shared = _shares(lab)
    if len(alone) >= lab.limit:
        lab.notes.append(
            f"the stream has more than {lab.limit} records, so missing ones were not looked for"
        )
        return
    passes = lab.read_by(evolve(lab.crew, num_workers=0))[0]
    lengths = Counter(record.epoch for record in passes)
    for epoch in range(1, lab.crew.epochs):
        if lengths[epoch] < lengths[0]:
            yield finding(
                "missing-records",
                reading(lab),
                f"epoch {epoch} has {lengths[epoch]} records where epoch 0 has {lengths[0]}",
            )
            return
    once = _counted(alone)
    for records in shared:
        many = _counted(records)
        lost = [record for record in alone if many[record.digest] < once[record.digest]]
        if lost and not many.keys() - once.keys():
            workers = max(record.worker for record in records) + 1 if records else "all"
            yield finding(
                "missing-records",
                reading(lab),
                f"with {workers} workers {len(lost)} of {len(alone)} records never come, the first "
                f"of them {lost[0].text}",
            )
            return


def stream_worker_count(lab: Lab) -> Iterator[Finding]:
    """Records that workers yield and one process alone never does."""
    alone, shared = _shares(lab)
    if len(alone) >= lab.limit:
        return
    known = _counted(alone)
    for records in shared:
        other = [record for record in records if record.digest not in known]
        if other:
            yield finding(
                "worker-count",
                reading(lab),
                f"worker {other[0].worker} yields {other[0].text}, which one process alone never "
                "yields, from the same random state",
            )
            return


def orders(lab: Lab, salt: Salt | None = None) -> list[list[Any]]:
    """What the loader's sampler gives in two epochs."""
    loader = lab.loader
    assert loader is not None
    sampler = sampler_of(loader)

    def draw(_: Any) -> list[list[Any]]:
        watched = watch()
        watched.salt = salt
        torch.manual_seed(lab.settings.seed)
        with watched.reading(0):
            return order(sampler, 2, 5000)

    return lab.run(draw)


def has_own_sampler(lab: Lab) -> bool:
    """Whether the loader has an order of the user's own."""
    loader = lab.loader
    if loader is None or lab.is_stream or lab.is_stateful:
        return False
    inner = getattr(loader.batch_sampler, "sampler", None)
    kinds = {type(s).__module__ for s in (loader.sampler, loader.batch_sampler, inner) if s}
    return not kinds <= {"torch.utils.data.sampler"}


def _repeated_by_sampler(lab: Lab) -> Iterator[Finding]:
    loader = lab.loader
    if not has_own_sampler(lab) or loader is None:
        return
    inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
    by_design = isinstance(inner, WeightedRandomSampler) or getattr(inner, "replacement", False)
    if by_design or isinstance(inner, (RandomSampler, torch.utils.data.DistributedSampler)):
        return
    indices = flat(orders(lab)[0])
    again = [index for index, count in Counter(indices).items() if count > 1]
    if again:
        yield finding(
            "repeated-records",
            definition(inner, "__iter__"),
            f"the sampler gives {len(again)} of {len(set(indices))} indices more than once in an "
            f"epoch, for example {again[0]}",
        )
