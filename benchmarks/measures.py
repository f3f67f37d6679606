"""What is measured, one function each: what is compared with what, and why that is fair."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from pipelines import Photos
from samples import (
    Ints,
    KeyedDraws,
    KeyedGenerators,
    NumpyDraws,
    NumpyGenerators,
    PlainStream,
    Stream,
)
from timing import BYTES, Comparison, exhaust, seconds
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader as TorchdataLoader

from seedcursor import (
    KeyedPermutation,
    Mixture,
    SeededDataset,
    StatefulBatchSampler,
    StatefulDataLoader,
)

BATCH = 64
PASS = 40_000
LARGE = 1_000_000
HUGE = 10**9

Loader = DataLoader[Any]


def generators() -> Comparison:
    """The 64 generators of a batch, made in ``__getitems__`` while a loader builds the batch.

    Both sides make the same generators, to the bit, and the clock runs around them alone; ours
    includes deriving the batch's keys and checking the arguments.
    """
    batches = 100
    ours = KeyedGenerators(batches * BATCH)
    theirs = NumpyGenerators(batches * BATCH)
    our_loader: Loader = StatefulDataLoader(ours, BATCH)
    their_loader: Loader = DataLoader(theirs, BATCH)

    def spent(dataset: KeyedGenerators | NumpyGenerators, loader: Loader) -> float:
        dataset.spent = 0.0
        exhaust(loader)
        return dataset.spent / batches

    return Comparison(
        against="default_rng(SeedSequence(seed, spawn_key=...)) x 64",
        at_most=0.2,
        ours=lambda: spent(ours, our_loader),
        theirs=lambda: spent(theirs, their_loader),
        pairs=15,
    )


def keyed_globals() -> Comparison:
    """A batch of 64 whose samples each run with the global RNGs keyed, and draw nothing.

    Ours as it is without workers, so it saves the process's own RNGs and puts them back, which the
    three calls that people write don't. In a worker it has nothing to put back.
    """
    base = Ints(BATCH)
    dataset = SeededDataset(base)
    indices = list(range(BATCH))

    def by_hand() -> None:
        for index in indices:
            np.random.seed(index)
            random.seed(index)
            torch.manual_seed(index)
            base[index]

    return Comparison(
        against="np.random.seed(i); random.seed(i); torch.manual_seed(i)",
        at_most=0.25,
        ours=lambda: seconds(lambda: dataset.__getitems__(indices), calls=20),
        theirs=lambda: seconds(by_hand, calls=20),
        pairs=15,
    )


def adapter(wrap: Callable[[Any], Dataset[Any]], chain: Callable[[], Any]) -> Comparison:
    """A pass over augmented photos of 224 x 224, by one thread, as a worker has.

    Theirs is the same pipeline in a plain ``DataLoader``, drawing as it comes.
    """
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    photos = Photos(2 * BATCH, chain())
    wrapped = wrap(Photos(2 * BATCH, chain()))
    ours: Loader = StatefulDataLoader(wrapped, BATCH, collate_fn=len)
    theirs: Loader = DataLoader(photos, BATCH, collate_fn=len)
    return Comparison(
        against="the bare pipeline in a DataLoader",
        at_most=1.05,
        ours=lambda: seconds(lambda: exhaust(ours)),
        theirs=lambda: seconds(lambda: exhaust(theirs)),
        pairs=5,
    )


def permutation() -> Comparison:
    """A shuffled order of two million, made anew.

    Ours in slices, which is how it is meant to be used, theirs whole, which is the only way that
    it can be; both end with every index as an int64.
    """
    length, block = 2_000_000, 2**16

    def ours() -> None:
        order = KeyedPermutation(length)
        for start in range(0, length, block):
            order[start : start + block]

    return Comparison(
        against="torch.randperm(2_000_000)",
        at_most=1.0,
        ours=lambda: seconds(ours),
        theirs=lambda: seconds(lambda: torch.randperm(length)),
        pairs=15,
    )


def pass_without_draws(dataset: Dataset[Any], workers: int, at_most: float) -> Comparison:
    """A shuffled pass over samples that draw nothing: what the loader itself costs.

    The same dataset object under both loaders, with the same settings. Workers persist, so none
    is started while the clock runs.
    """
    settings = _settings(workers)
    ours: Loader = StatefulDataLoader(dataset, **settings)
    theirs: Loader = DataLoader(dataset, **settings)
    return Comparison(
        against="DataLoader(shuffle=True)",
        at_most=at_most,
        ours=lambda: seconds(lambda: exhaust(ours)),
        theirs=lambda: seconds(lambda: exhaust(theirs)),
        pairs=9,
    )


def pass_with_draws(workers: int) -> Comparison:
    """A shuffled pass with one draw per sample, from a generator of the sample's own.

    Theirs is what people write by hand to have a sample's randomness follow from its index and
    epoch. It draws from a fixed epoch: in workers that persist it would not learn of another.
    """
    settings = _settings(workers)
    ours: Loader = StatefulDataLoader(KeyedDraws(PASS), **settings)
    theirs: Loader = DataLoader(NumpyDraws(PASS), **settings)
    return Comparison(
        against="DataLoader, default_rng((seed, epoch, index))",
        at_most=0.75,
        ours=lambda: seconds(lambda: exhaust(ours)),
        theirs=lambda: seconds(lambda: exhaust(theirs)),
        pairs=7,
    )


def _settings(workers: int) -> dict[str, Any]:
    return {
        "batch_size": BATCH,
        "shuffle": True,
        "num_workers": workers,
        "persistent_workers": workers > 0,
    }


def resume_map(workers: int) -> Comparison:
    """From nothing to the first batch after 90 % of a shuffled million, map-style.

    Each side builds a loader, loads its own state and asks for a batch. With workers both start
    two processes within the time, which costs the same and is most of ours; without, what is left
    is finding the place.
    """
    dataset = Ints(LARGE)
    settings: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": workers}
    return _resume(
        "torchdata StatefulDataLoader",
        lambda: StatefulDataLoader(dataset, **settings),
        lambda: TorchdataLoader(dataset, **settings),
        pairs=9,
    )


def resume_stream(workers: int) -> Comparison:
    """From nothing to the first batch after 90 % of a million records in a stream.

    Ours is told where to start by the library's own protocol, ``records(start)``. Theirs is a
    plain iterable dataset, which torchdata reads up to the place; one with a ``state_dict`` of its
    own, written by the user, would not be read.
    """
    settings: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    return _resume(
        "torchdata StatefulDataLoader, no dataset state",
        lambda: StatefulDataLoader(Stream(LARGE), **settings),
        lambda: TorchdataLoader(PlainStream(LARGE), **settings),
        pairs=1,
    )


def _resume(
    against: str,
    ours: Callable[[], StatefulDataLoader[Any]],
    theirs: Callable[[], TorchdataLoader[Any]],
    pairs: int,
) -> Comparison:
    steps = LARGE * 9 // 10 // BATCH
    our_state = {"epoch": 0, "cursor": steps * BATCH}
    their_state = _torchdata_state(theirs(), steps)
    return Comparison(
        against=against,
        at_most=0.01,
        ours=lambda: seconds(lambda: _resumed(ours(), our_state)),
        theirs=lambda: seconds(lambda: _resumed(theirs(), their_state)),
        pairs=pairs,
    )


def _torchdata_state(loader: TorchdataLoader[Any], steps: int) -> dict[str, Any]:
    """As a run would have saved it: after so many batches have been taken."""
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    state: dict[str, Any] = loader.state_dict()
    return state


def _resumed(loader: Any, state: dict[str, Any]) -> Iterator[Any]:
    """The loader's pass, its first batch taken."""
    loader.load_state_dict(state)
    batches: Iterator[Any] = iter(loader)
    next(batches)
    return batches


def first_batch() -> Comparison:
    """The first shuffled batch of a billion samples, from a new loader.

    Theirs is what a plain ``DataLoader`` does before its first batch, for a thousandth of the
    samples: the order of a billion would take 16 GB.
    """
    return Comparison(
        against="torch.randperm(10**6)",
        at_most=0.2,
        ours=lambda: seconds(_first_batch_of_many),
        theirs=lambda: seconds(lambda: torch.randperm(10**6)),
        pairs=15,
    )


def _first_batch_of_many() -> None:
    next(iter(StatefulDataLoader(Ints(HUGE), BATCH, shuffle=True)))


def mixture() -> Comparison:
    """Which source, and which of its records, comes at each of 400,000 positions of a mixture.

    Of 16 sources of a million records, in one call. Theirs is what people write by hand: a weighted
    choice per position, and the next index of a shuffled order of that source, made beforehand.
    """
    weights = _weights()
    orders = [torch.randperm(LARGE).tolist() for _ in weights]

    def by_hand() -> list[tuple[int, int]]:
        records = [iter(order) for order in orders]
        chosen = random.choices(range(len(weights)), weights, k=_MIXED)
        return [(source, next(records[source])) for source in chosen]

    return _mixture("random.choices, next() of a source's order", lambda: seconds(by_hand) / _MIXED)


def mixture_position() -> Comparison:
    """What `mixture` costs for a position, against what it may cost."""
    return _mixture("0.5 us for a position", lambda: 5e-7)


_MIXED = 400_000  # positions


def _weights() -> list[float]:
    weights: list[float] = (np.random.default_rng(0).random(16) + 0.1).tolist()
    return weights


def _mixture(against: str, theirs: Callable[[], float]) -> Comparison:
    mixed = Mixture(
        {str(k): (range(LARGE), weight) for k, weight in enumerate(_weights())}, length=HUGE
    )
    return Comparison(
        against=against,
        at_most=1.0,
        ours=lambda: seconds(lambda: mixed.draws(HUGE // 2, HUGE // 2 + _MIXED)) / _MIXED,
        theirs=theirs,
        pairs=15,
    )


def plan_step() -> Comparison:
    """Planning a rank's steps on 4,096 ranks, of a trillion samples against a million.

    264 steps of 256 samples from a loaded cursor on, shuffled: as many as are derived together, so
    that what a step costs in the long run is compared. A million samples are less than one step of
    so many ranks, so theirs are dealt to one rank, which gets as many indices.
    """
    many = StatefulBatchSampler(10**12, 256, rank=17, world_size=4096)
    few = StatefulBatchSampler(10**6, 256, rank=0, world_size=1)
    return Comparison(
        against="the same of 10**6 samples",
        at_most=1.2,
        ours=lambda: seconds(lambda: _planned(many, 10**11), calls=3),
        theirs=lambda: seconds(lambda: _planned(few, 10**5), calls=3),
        pairs=15,
    )


def _planned(sampler: StatefulBatchSampler, cursor: int) -> list[list[int]]:
    sampler.load_state_dict({"epoch": 0, "cursor": cursor})
    return list(itertools.islice(sampler, 264))


def state_dict() -> Comparison:
    """Asking a loader where it stands, as a checkpoint after every step would."""
    loader: StatefulDataLoader[Any] = StatefulDataLoader(Ints(PASS), BATCH, shuffle=True)
    numbers = {"epoch": 3, "cursor": 12_800}
    return Comparison(
        against="json.dumps of a dict of two ints",
        at_most=5.0,
        ours=lambda: seconds(loader.state_dict, calls=10_000),
        theirs=lambda: seconds(lambda: json.dumps(numbers), calls=10_000),
        pairs=15,
    )


def memory() -> Comparison:
    """How much the first shuffled batch of a billion samples adds to a fresh process.

    The peak of the resident memory afterwards, less what is resident before, once everything is
    imported; so what NumPy and torch allocate on their first call is counted too. Linux only.
    """
    return Comparison(
        against="5 MB",
        at_most=1.0,
        ours=_in_fresh_process,
        theirs=lambda: 5e6,
        pairs=1,
        unit=BYTES,
    )


def _in_fresh_process() -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_added_memory)


def _added_memory() -> float:
    before = _memory("VmRSS")
    _first_batch_of_many()
    return _memory("VmHWM") - before


def _memory(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(field))
    return float(kilobytes) * 1024
