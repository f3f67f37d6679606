"""The checks: each asks the lab for experiments, and yields what it finds.

They run in the order of `CHECKS`, causes before their echoes: a later check leaves alone what
follows from an earlier one's finding.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from attrs import evolve
from torch.utils.data import RandomSampler, WeightedRandomSampler

from seedcursor._audit import _globals
from seedcursor._audit._batches import batches, flat, order
from seedcursor._audit._blame import definition
from seedcursor._audit._isolate import Broke
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._audit._sources import Salt, Source, watch
from seedcursor._audit._trial import Outcome
from seedcursor._audit._wording import WORDS
from seedcursor._audit._workers import Record, read_by
from seedcursor._dataset import StatefulIterableDataset
from seedcursor._loader import StatefulDataLoader

# One bit is the same in four states by luck only if no sample of all shows it.
_VARIANTS = (1, 2, 3)


def _finding(check: str, where: str, *evidence: str) -> Finding:
    words = WORDS[check]
    return Finding(check, words.severity, words.message, "\n".join(evidence), where, words.fix)


def _place(lab: Lab, place: int) -> str:
    return f"record {place}" if lab.is_stream else f"{lab.reader.name}[{place}]"


def _reading(lab: Lab) -> str:
    return definition(lab.dataset, "__getitem__", "__getitems__", "__iter__", "sample")


def _told(lab: Lab, before: dict[int, Outcome], after: dict[int, Outcome], place: int) -> str:
    return f"{_place(lab, place)} is {before[place].text}, then {after[place].text}"


# Global RNGs.


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
    if lab.is_stateful:
        return  # it keys the global RNGs for each batch, so to draw from them is right
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
                told = _told(lab, lab.trial(lab.control, reader), lab.trial(control, reader), place)
                blames = lab.blamed(name, place, reader)
                where = (
                    blames[0].where
                    if blames
                    else definition(reader.root, "__getitem__", "__iter__")
                )
                lines = [f"with only {name}'s global state changed, {told}"]
                lines += [" > ".join(blame.chain) for blame in blames[:3]]
                yield _finding(check, where, *lines)
                return
    places = lab.salted(f"entropy-{name}")
    if places:
        source = next(s for s in lab.base[places[0]].sources if s.family == f"entropy-{name}")
        yield _finding(
            check,
            source.where,
            f"{_place(lab, places[0])} seeds a generator from the operating system, so it is "
            "another one each time",
        )


def _varied(lab: Lab, name: str, moved: bool) -> Iterator[Any]:
    """Other states of one RNG; rare ones too, if it is drawn from."""
    one = lab.control._replace(varied=frozenset([name]))
    yield one._replace(variant=1)
    if moved:
        yield from (one._replace(variant=variant) for variant in _VARIANTS[1:])
        yield from (one._replace(variant=1, extreme=extreme) for extreme in _globals.EXTREMES)


# Generators that are held.


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
            yield _finding("private-rng", guilty[0], *lines)
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
    shared = _sharing(first)
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


def _sharing(records: Iterable[Record]) -> list[Record]:
    counts = Counter(record.draw for record in records if record.draw)
    return [record for record in records if record.draw and counts[record.draw] > 1]


def _twin(records: list[Record], one: Record) -> Record:
    return next(r for r in records if r.draw == one.draw and r.place != one.place)


# What else a sample may depend on.


def check_call_order(lab: Lab) -> Iterator[Finding]:
    """The value depends on what was read before."""
    if lab.is_stream:
        return
    for outcome in lab.reread:
        before = lab.base[outcome.place]
        if outcome.digest != before.digest and outcome.place not in lab.unstable:
            yield _finding(
                "call-order",
                _reading(lab),
                f"from the same random state, {_place(lab, outcome.place)} is {before.text}, and "
                f"{outcome.text} after other samples were read",
            )
            return


def check_worker_count(lab: Lab) -> Iterator[Finding]:
    """The value depends on how many workers there are, on which got it, or on nothing known."""
    if lab.base and lab.unstable:
        place = min(lab.unstable)
        yield _finding(
            "worker-count",
            _reading(lab),
            f"{_place(lab, place)} is another value each time, with nothing changed, in workers "
            "and without: it takes the clock, a process's id, an address or entropy of the system",
        )
    elif lab.found & {"call-order", "resume"}:
        return
    elif lab.is_stateful:
        yield from _loader_worker_count(lab)
    elif lab.is_stream:
        yield from _stream_worker_count(lab)
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
            yield _finding(
                "worker-count",
                _reading(lab),
                f"from the same random state, {_place(lab, record.place)} is {before.text} in the "
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
            yield _finding(
                "worker-count",
                _reading(lab),
                f"batch {step} differs between num_workers={counts[0]} and num_workers={count}",
            )
            return


# Streams: which records come, from how many workers.


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
    if lab.is_stateful or lab.unstable:
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
            yield _finding(
                "repeated-records",
                _reading(lab),
                f"{len({r.digest for r in again})} of {len(once)} records looked at come more "
                f"often than from one process: {again[0].text} from workers {workers}",
            )
            return


def check_missing_records(lab: Lab) -> Iterator[Finding]:
    """A stream leaves out records with workers, or in the second epoch."""
    if not lab.is_stream or lab.is_stateful or lab.unstable:
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
            yield _finding(
                "missing-records",
                _reading(lab),
                f"epoch {epoch} has {lengths[epoch]} records where epoch 0 has {lengths[0]}",
            )
            return
    once = _counted(alone)
    for records in shared:
        many = _counted(records)
        lost = [record for record in alone if many[record.digest] < once[record.digest]]
        if lost and not many.keys() - once.keys():
            workers = max(record.worker for record in records) + 1 if records else "all"
            yield _finding(
                "missing-records",
                _reading(lab),
                f"with {workers} workers {len(lost)} of {len(alone)} records never come, the first "
                f"of them {lost[0].text}",
            )
            return


def _stream_worker_count(lab: Lab) -> Iterator[Finding]:
    alone, shared = _shares(lab)
    if len(alone) >= lab.limit:
        return
    known = _counted(alone)
    for records in shared:
        other = [record for record in records if record.digest not in known]
        if other:
            yield _finding(
                "worker-count",
                _reading(lab),
                f"worker {other[0].worker} yields {other[0].text}, which one process alone never "
                "yields, from the same random state",
            )
            return


# Keys.


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
        yield _finding(
            "repeated-randomness",
            definition(init, "__call__"),
            f"worker_init_fn leaves the global state of {', '.join(copied)} equal in several "
            f"workers: {len(_sharing(first))} of {len(first)} samples got another sample's draws",
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
        yield _finding(
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
        yield _finding(
            "frozen-epoch",
            source.where,
            f"epochs 0 and 1 have the same samples {', '.join(modes)}; "
            f"{_place(lab, random[0])} draws from the seed {source.text}",
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
                yield _finding(
                    "same-stream",
                    other.where,
                    f"{_place(lab, place)} draws from two generators with the key {source.text}, "
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
                yield _finding(
                    "shared-key",
                    source.where,
                    f"{_place(lab, other_place)} and {_place(lab, place)}, which lie in different "
                    f"datasets, draw from the same key {source.text}",
                )
                return


# Samplers.


def _orders(lab: Lab, salt: Salt | None = None) -> list[list[Any]]:
    loader = lab.loader
    assert loader is not None
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler

    def draw(_: Any) -> list[list[Any]]:
        watched = watch()
        watched.salt = salt
        torch.manual_seed(lab.settings.seed)
        with watched.reading(0):
            return order(sampler, 2, 5000)

    return lab.run(draw)


def _own_sampler(lab: Lab) -> bool:
    """Whether the loader has an order of the user's own."""
    loader = lab.loader
    if loader is None or lab.is_stream or lab.is_stateful:
        return False
    inner = getattr(loader.batch_sampler, "sampler", None)
    kinds = {type(s).__module__ for s in (loader.sampler, loader.batch_sampler, inner) if s}
    return not kinds <= {"torch.utils.data.sampler"}


def _repeated_by_sampler(lab: Lab) -> Iterator[Finding]:
    loader = lab.loader
    if not _own_sampler(lab) or loader is None:
        return
    inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
    by_design = isinstance(inner, WeightedRandomSampler) or getattr(inner, "replacement", False)
    if by_design or isinstance(inner, (RandomSampler, torch.utils.data.DistributedSampler)):
        return
    indices = flat(_orders(lab)[0])
    again = [index for index, count in Counter(indices).items() if count > 1]
    if again:
        yield _finding(
            "repeated-records",
            definition(inner, "__iter__"),
            f"the sampler gives {len(again)} of {len(set(indices))} indices more than once in an "
            f"epoch, for example {again[0]}",
        )


def _frozen_sampler(lab: Lab) -> Iterator[Finding]:
    loader = lab.loader
    if not _own_sampler(lab) or loader is None:
        return
    first, second = _orders(lab)
    if first == second and _orders(lab, Salt(0)) != [first, second]:
        inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
        yield _finding(
            "frozen-epoch",
            definition(inner, "__iter__"),
            f"the sampler shuffles in the same order in epochs 0 and 1: {flat(first)[:6]}...",
        )


# Processes.


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
        yield _finding("start-method", _reading(lab), _last_line(str(broke)))
        return
    if isinstance(spawned, str):
        lab.notes.append(spawned)
        return
    for before, after in zip(forked, spawned, strict=False):
        if before.digest != after.digest:
            yield _finding(
                "start-method",
                _reading(lab),
                f"from the same random state, {_place(lab, before.place)} is {before.text} in a "
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


def _last_line(told: str) -> str:
    lines = [line for line in told.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it failed without a word"


def check_threads(lab: Lab) -> Iterator[Finding]:
    """Workers times the libraries' threads in each exceed the cores."""
    if not os.path.isdir("/proc/self/task") or lab.is_stateful or not lab.crew.num_workers:
        return
    records = [record for record in lab.natural[0] if record.worker >= 0]
    threads = max((record.threads for record in records), default=1)
    cores, workers = len(os.sched_getaffinity(0)), lab.crew.num_workers
    if threads > 1 and workers * threads > cores:
        yield _finding(
            "threads",
            _reading(lab),
            f"{workers} workers of {threads} threads each are {workers * threads} threads on "
            f"{cores} cores",
        )


# Resume.

_STEPS = 8


def _loaded(
    lab: Lab, num_workers: int, limit: int, state: dict[str, Any] | None = None
) -> tuple[list[bytes], dict[str, Any]]:
    loader = _positioned(lab)
    found, after = lab.run(lambda _: batches(loader, num_workers, limit, state))
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
    if not lab.is_stateful and not isinstance(lab.dataset, StatefulIterableDataset):
        return
    if lab.found & {"private-rng", "call-order"} or lab.unstable:
        return
    if lab.found & {"unkeyed-numpy", "unkeyed-python", "unkeyed-torch"}:
        return
    whole, _ = _loaded(lab, 0, _STEPS)
    for stop in (1, 3):
        if stop >= len(whole):
            return
        begun, state = _loaded(lab, 0, stop)
        resumed, _ = _loaded(lab, 0, _STEPS - stop, state)
        step = _first_difference(whole, begun + resumed)
        if step is not None:
            yield _finding(
                "resume",
                definition(lab.dataset, "records", "__getitem__", "sample"),
                f"stopped after batch {stop - 1} and resumed at cursor {state['cursor']}, batch "
                f"{step} is another one than in an uninterrupted run",
            )
            return


CHECKS: dict[str, Callable[[Lab], Iterator[Finding]]] = {
    "unkeyed-numpy": check_unkeyed_numpy,
    "unkeyed-python": check_unkeyed_python,
    "unkeyed-torch": check_unkeyed_torch,
    "private-rng": check_private_rng,
    "call-order": check_call_order,
    "resume": check_resume,
    "worker-count": check_worker_count,
    "repeated-records": check_repeated_records,
    "missing-records": check_missing_records,
    "repeated-randomness": check_repeated_randomness,
    "frozen-epoch": check_frozen_epoch,
    "same-stream": check_same_stream,
    "shared-key": check_shared_key,
    "start-method": check_start_method,
    "threads": check_threads,
}


def applies(check: str, lab: Lab) -> bool:
    """Whether a check has something to look at in this target."""
    if check == "worker-count" and not lab.crew.num_workers:
        return False
    if check == "resume":
        return lab.is_stateful or isinstance(lab.dataset, StatefulIterableDataset)
    if check.startswith("unkeyed") or check == "threads":
        return not lab.is_stateful
    if check == "missing-records":
        return lab.is_stream and not lab.is_stateful
    if check == "repeated-records":
        return (lab.is_stream and not lab.is_stateful) or _own_sampler(lab)
    return not (check == "call-order" and lab.is_stream)


def verdicts(lab: Lab, ignored: frozenset[str]) -> Iterator[tuple[str, list[Finding]]]:
    """Each check that applies, and what it found; the one way that checks are run."""
    for check, function in CHECKS.items():
        if check not in ignored and applies(check, lab):
            findings = list(function(lab))
            lab.found |= {finding.check for finding in findings}
            yield check, findings
