"""Checks of the keys that samples draw by: across samples, epochs and datasets."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from seedcursor._audit import _globals
from seedcursor._audit._batches import flat
from seedcursor._audit._blame import definition
from seedcursor._audit._check_draws import sharing
from seedcursor._audit._check_records import has_own_sampler, orders
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._said import finding, named
from seedcursor._audit._sources import Salt, Source
from seedcursor._audit._trial import Outcome
from seedcursor._audit._workers import Record
from seedcursor._dataset import StatefulIterableDataset


def _repeats_by_init(lab: Lab) -> Iterator[Finding]:
    init = lab.crew.init
    if init is None or lab.is_stream or not lab.crew.num_workers:
        return
    first = [record for record in lab.natural[0] if record.epoch == 0]
    drawn: dict[tuple[str, bytes], set[int]] = {}
    for record in first:
        for name, key in record.draws:
            if name in _globals.NAMES:
                drawn.setdefault((name, key), set()).add(record.worker)
    copied = sorted({name for (name, _), workers in drawn.items() if len(workers) > 1})
    if copied:
        yield finding(
            "repeated-randomness",
            definition(init, "__call__"),
            f"worker_init_fn leaves the global state of {', '.join(copied)} equal in several "
            f"workers: {len(sharing(first))} of {len(first)} samples got another sample's draws",
        )


def check_repeated_randomness(lab: Lab) -> Iterator[Finding]:
    """Different samples get the same draws."""
    found = list(_repeats_by_init(lab))
    yield from found
    if found or len(lab.sound) < 2:
        return
    keys = [{(s.family, s.key): s for s in lab.base[place].sources} for place in lab.sound]
    later = lab.trial(lab.control._replace(epoch=1))
    again = {(s.family, s.key) for place in lab.sound for s in later[place].sources}
    # A key that all samples share is meant if it follows the epoch, as for an order of files.
    shared = set.intersection(*map(set, keys)) & again if keys else set()
    shared = {key for key in shared if not key[0].startswith("entropy")}
    if shared and len(lab.salted()) > 1:
        source = keys[0][sorted(shared)[0]]
        yield finding(
            "repeated-randomness",
            source.where,
            f"all {len(lab.sound)} samples looked at draw from a generator with the seed "
            f"{source.text}, in every epoch",
        )


def check_frozen_epoch(lab: Lab) -> Iterator[Finding]:
    """Randomness that is the same in every epoch, with or without persistent workers."""
    if lab.settings.epochs < 2 or lab.found & {"repeated-randomness", "call-order"}:
        return
    yield from _frozen_sampler(lab)
    random = lab.salted()
    if not random:
        return
    modes = []
    if _frozen_alone(lab):
        modes.append("in the main process")
    if not lab.is_stateful:
        fresh, lasting = lab.natural
        if lab.crew.num_workers and _frozen_in_workers(fresh):
            modes.append("with persistent_workers=False")
        if lab.crew.num_workers and _frozen_in_workers(lasting):
            modes.append("with persistent_workers=True")
    if modes and "private-rng" not in lab.found:
        source = next(s for s in lab.base[random[0]].sources if "entropy" not in s.family)
        yield finding(
            "frozen-epoch",
            source.where,
            f"epochs 0 and 1 have the same samples {', '.join(modes)}; "
            f"{named(lab, random[0])} draws from the seed {source.text}",
        )


def _frozen_alone(lab: Lab) -> bool:
    if lab.is_stream and not isinstance(lab.dataset, StatefulIterableDataset):
        # A stream may count its own epochs.
        records = lab.read_by(evolve(lab.crew, num_workers=0))[0]
        return _frozen_in_workers(records)
    now, later = lab.base, lab.trial(lab.control._replace(epoch=1))
    return all(
        now[place].digest == later[place].digest
        and (not later[place].sources or _keys(now[place]) == _keys(later[place]))
        for place in lab.sound
        if place in later
    ) and not (lab.found & {"unkeyed-numpy", "unkeyed-python", "unkeyed-torch"})


def _keys(outcome: Outcome | Record) -> tuple[tuple[str, bytes], ...]:
    return tuple((source.family, source.key) for source in outcome.sources)


def _frozen_in_workers(records: list[Record]) -> bool:
    """Whether two epochs are the same, sample for sample, and keyed alike where they are keyed."""
    now = {(r.worker, r.place): r for r in records if r.epoch == 0}
    later = {(r.worker, r.place): r for r in records if r.epoch == 1}
    if not now or now.keys() != later.keys():
        return False
    return all(
        now[k].digest == later[k].digest and (not later[k].draws or now[k].draws == later[k].draws)
        for k in now
    )


def check_same_stream(lab: Lab) -> Iterator[Finding]:
    """One sample drew two generators with the same key."""
    for place in lab.sound:
        for first, second in _doubled(lab.base[place].sources):
            if all(_alone_matters(lab, place, k) for k in (first, second)):
                source, other = (lab.base[place].sources[k] for k in (first, second))
                yield finding(
                    "same-stream",
                    other.where,
                    f"{named(lab, place)} draws from two generators with the key {source.text}, "
                    f"at {source.where} and at {other.where}",
                )
                return


def _doubled(sources: tuple[Source, ...]) -> Iterator[tuple[int, int]]:
    for second, source in enumerate(sources):
        for first, other in enumerate(sources[:second]):
            equal = (source.family, source.key) == (other.family, other.key)
            if equal and source.owner == other.owner and "entropy" not in source.family:
                yield first, second
                break


def _alone_matters(lab: Lab, place: int, source: int) -> bool:
    """Whether the value moves if only this one of the sample's seeds is changed."""
    return any(
        place in lab.differing(lab.control._replace(salt=Salt(number, place=source)))
        for number in range(6)
    )


def check_shared_key(lab: Lab) -> Iterator[Finding]:
    """Two datasets inside one draw from the same keys."""
    seen: dict[tuple[str, bytes], tuple[int, Source]] = {}
    random = None
    for place in lab.sound:
        for source in lab.base[place].sources:
            if not source.owner or source.family.startswith("entropy"):
                continue
            other_place, other = seen.setdefault((source.family, source.key), (place, source))
            if other.owner == source.owner:
                continue
            random = lab.salted() if random is None else random
            if random:
                yield finding(
                    "shared-key",
                    source.where,
                    f"{named(lab, other_place)} and {named(lab, place)}, which lie in different "
                    f"datasets, draw from the same key {source.text}",
                )
                return


def _frozen_sampler(lab: Lab) -> Iterator[Finding]:
    loader = lab.loader
    if not has_own_sampler(lab) or loader is None:
        return
    first, second = orders(lab)
    if first == second and orders(lab, Salt(0)) != [first, second]:
        inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
        yield finding(
            "frozen-epoch",
            definition(inner, "__iter__"),
            f"the sampler shuffles in the same order in epochs 0 and 1: {flat(first)[:6]}...",
        )
