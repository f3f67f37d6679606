"""Keys, orders and first draws, as they were when the format was published.

They are raw bits only: NumPy and PyTorch don't promise the bits of their distributions.
"""

import json
import pathlib
import random

import numpy as np
import pytest
import torch

from seedcursor import (
    KeyedPermutation,
    SeededDataset,
    StatefulDataLoader,
    StatefulDataset,
    batch_rng,
    sample_rng,
    seeded,
)

FOLDER = pathlib.Path(__file__).parent / "golden"
FORMAT = (
    "the format has changed: a seed or a saved position means something else now. Unless that is "
    "an accident, it is a new format version: raise _position.VERSION and say so in the changelog"
)


def golden(name, part):
    cases = json.loads((FOLDER / name).read_text(encoding="utf-8"))[part]
    assert cases
    return [pytest.param(case, id=f"{part}-{k}") for k, case in enumerate(cases)]


def hexes(words):
    return " ".join(f"{int(word):x}" for word in words)


def globals_seen():
    """What each global RNG was keyed with, or the first bits that it draws."""
    return hexes(
        [
            random.getrandbits(64),
            int.from_bytes(np.random.bytes(8), "little"),
            torch.initial_seed(),
        ]
    )


class Indices:
    """A dataset of which each sample is its index, and what the global RNGs are keyed with."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index, globals_seen()


def keys(case):
    dataset = StatefulDataset(seed=case["seed"])
    dataset.set_epoch(case["epoch"])
    key = case["index"], case["stream"]
    ours = sample_rng(case["seed"], case["epoch"], *key)
    drawn = {
        "words": hexes(ours.bit_generator.seed_seq.generate_state(8)),
        "raw": hexes(ours.bit_generator.random_raw(3)),
        "torch": hexes([dataset.torch_rng(*key).initial_seed()]),
        "python": hexes([dataset.python_rng(*key).getrandbits(64)]),
    }
    with dataset.seeded(*key):
        drawn["globals"] = globals_seen()
    with seeded(case["seed"], case["epoch"], *key):
        assert globals_seen() == drawn["globals"]
    if case["stream"] is None:
        wrapped = SeededDataset(Indices(1), seed=case["seed"])
        wrapped.set_epoch(case["epoch"])
        assert wrapped[case["index"]] == (case["index"], drawn["globals"])
    return drawn


def workers(case):
    torch.manual_seed(case["torch_seed"])
    return {"raw": hexes(StatefulDataset().worker_rng.bit_generator.random_raw(3))}


def permutations(case):
    order = KeyedPermutation(case["n"], case["seed"], case["epoch"])
    return {"first": order[:20].tolist(), "last": order[-3:].tolist()}


def with_batch_keys(samples):
    words = [rng.bit_generator.random_raw() for rng in (batch_rng(), batch_rng("mix"))]
    return [[index for index, _ in samples], samples[0][1], hexes(words)]


def loaders(case):
    options = {name: value for name, value in case.items() if name not in ("n", "epoch", "batches")}
    loader = StatefulDataLoader(Indices(case["n"]), collate_fn=with_batch_keys, **options)
    loader.set_epoch(case["epoch"])
    return {"batches": list(loader)}


class Drawn:
    """A sampler whose items are what its RNGs are keyed with."""

    def __init__(self):
        self.generator = torch.Generator()

    def __iter__(self):
        yield globals_seen()
        yield hexes([self.generator.initial_seed()])


class Same:
    def __getitem__(self, item):
        return item


def samplers(case):
    loader = StatefulDataLoader(
        Same(), batch_size=2, sampler=Drawn(), seed=case["seed"], collate_fn=list
    )
    loader.set_epoch(case["epoch"])
    return {"drawn": next(iter(loader))}


def check(case, computed):
    expected = {name: case[name] for name in computed}
    assert computed == expected, FORMAT


@pytest.mark.parametrize("case", golden("keys.json", "samples"))
def test_keys(case):
    check(case, keys(case))


@pytest.mark.parametrize("case", golden("keys.json", "workers"))
def test_worker_keys(case):
    check(case, workers(case))


@pytest.mark.parametrize("case", golden("orders.json", "permutations"))
def test_permutations(case):
    check(case, permutations(case))


@pytest.mark.parametrize("case", golden("orders.json", "loaders"))
def test_loader_orders_and_batch_keys(case):
    check(case, loaders(case))


@pytest.mark.parametrize("case", golden("orders.json", "samplers"))
def test_sampler_keys(case):
    check(case, samplers(case))
