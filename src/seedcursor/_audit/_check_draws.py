"""Checks of what a sample draws from: the global RNGs, and generators that are held."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from seedcursor._audit import _globals
from seedcursor._audit._blame import definition
from seedcursor._audit._isolate import Broke
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._said import changed, finding, named
from seedcursor._audit._workers import Record

_VARIANTS = (1, 2, 3)


def check_unkeyed_numpy(lab: Lab) -> Iterator[Finding]:
    """The sample depends on NumPy's global RNG, or on a seed from the operating system."""
    return _unkeyed(lab, "numpy")


def check_unkeyed_python(lab: Lab) -> Iterator[Finding]:
    """The sample depends on Python's global RNG, or on a seed from the operating system."""
    return _unkeyed(lab, "python")


def check_unkeyed_torch(lab: Lab) -> Iterator[Finding]:
    """The sample depends on torch's global RNG."""
    return _unkeyed(lab, "torch")


def _unkeyed(lab: Lab, name: str) -> Iterator[Finding]:
    check = f"unkeyed-{name}"
    for reader in (lab.reader, lab.collated):
        if reader is None:
            continue
        moved = [
            p for p, outcome in lab.trial(lab.control, reader).items() if name in outcome.moved
        ]
        for control in _varied(lab, name, bool(moved)):
            places = lab.differing(control, reader)
            if places:
                place = next((p for p in places if p in moved), places[0])
                told = changed(
                    lab, lab.trial(lab.control, reader), lab.trial(control, reader), place
                )
                blames = lab.blamed(name, place, reader)
                where = (
                    blames[0].where
                    if blames
                    else definition(reader.root, "__getitem__", "__iter__")
                )
                lines = [f"with only {name}'s global state changed, {told}"]
                lines += [" > ".join(blame.chain) for blame in blames[:3]]
                yield finding(check, where, *lines)
                return
    places = lab.salted(f"entropy-{name}")
    if places:
        source = next(s for s in lab.base[places[0]].sources if s.family == f"entropy-{name}")
        yield finding(
            check,
            source.where,
            f"{named(lab, places[0])} seeds a generator from the operating system, so it is "
            "another one each time",
        )


def _varied(lab: Lab, name: str, moved: bool) -> Iterator[Any]:
    """Other states of one RNG; rare ones too, if it is drawn from."""
    one = lab.control._replace(varied=frozenset([name]))
    yield one._replace(variant=1)
    if moved:
        yield from (one._replace(variant=variant) for variant in _VARIANTS[1:])
        yield from (one._replace(variant=1, extreme=extreme) for extreme in _globals.EXTREMES)


def check_private_rng(lab: Lab) -> Iterator[Finding]:
    """The sample depends on a generator that the dataset, or a transform in it, holds."""
    for reader in (lab.reader, lab.collated):
        if reader is None:
            continue
        base = lab.trial(lab.control, reader)
        moved = {path for outcome in base.values() for path in outcome.moved}
        paths = sorted(moved - set(_globals.NAMES), key=lambda path: (path.count("."), path))
        guilty = [path for path in paths if _depends(lab, path, reader)]
        if guilty:
            place = next(p for p, outcome in base.items() if guilty[0] in outcome.moved)
            lines = [f"held by {path}" for path in guilty]
            blames = lab.blamed(guilty[0], place, reader)[:2]
            lines += ["drawn by " + " > ".join(blame.chain) for blame in blames]
            with contextlib.suppress(Broke):
                lines += _copied(lab)
            yield finding("private-rng", guilty[0], *lines)
            return


def _depends(lab: Lab, path: str, reader: Any) -> bool:
    one = lab.control._replace(held=frozenset([path]))
    return any(lab.differing(one._replace(variant=variant), reader) for variant in _VARIANTS)


def _copied(lab: Lab) -> list[str]:
    """What copies of a generator do, as seen in real workers."""
    if lab.is_stream or lab.is_stateful:
        return []
    first = [record for record in lab.natural[0] if record.epoch == 0]
    again = {record.place: record.draw for record in lab.natural[0] if record.epoch == 1}
    shared = sharing(first)
    told = []
    if shared:
        told.append(
            f"{len(shared)} of {len(first)} samples got the draws of another sample, for example "
            f"{shared[0].place} and {_twin(first, shared[0]).place} in workers "
            f"{shared[0].worker} and {_twin(first, shared[0]).worker}"
        )
    same = [record for record in first if record.draw and again.get(record.place) == record.draw]
    if same:
        told.append(f"{len(same)} of {len(first)} samples got the same draws in the next epoch")
    return told


def sharing(records: Iterable[Record]) -> list[Record]:
    """Those whose draws another one has too."""
    counts = Counter(record.draw for record in records if record.draw)
    return [record for record in records if record.draw and counts[record.draw] > 1]


def _twin(records: list[Record], one: Record) -> Record:
    return next(r for r in records if r.draw == one.draw and r.place != one.place)
