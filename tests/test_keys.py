"""The published encoding: from (seed, epoch, index, stream) to the bits of a generator."""

import copy
import hashlib
import itertools
import os
import pickle
import random
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import flat

from seedcursor import (
    KeyedPermutation,
    StatefulDataLoader,
    StatefulDataset,
    _keys,
    batch_rng,
    sample_rng,
    seeded,
)

SEEDS = [0, 1, 5, 2**32 - 1, 2**32, 2**63, 2**64 + 5, 2**128 - 1]
EPOCHS = [0, 1, 7, 2**32 - 1]
SMALL = [0, 1, 5, 2**31, 2**32 - 1]
LARGE = [2**32, 2**32 + 5, 5 * 2**32 + 1, 2**63, 2**64 - 1]
IDS = ["", "0", "5", "train/000123.jpg", "naïve ☃", "\ud800"]
STREAMS = [None, "", "crop", "5"]


def digest(kind, name):
    """The four words of a name's digest, as the encoding has them."""
    text = name.encode("utf-8", "surrogatepass")
    words = hashlib.blake2b(text, digest_size=16, person=kind.encode()).digest()
    return tuple(np.frombuffer(words, dtype="<u4").tolist())


def published(epoch, index, stream=None, domain=None):
    """The spawn key that the encoding promises."""
    if isinstance(index, str):
        words = digest("index", index)
    else:
        words = (index % 2**32, index // 2**32) if index >= 2**32 else (index,)
    if stream is not None:
        words += digest("stream", stream)
    if domain is not None:
        words += digest("domain", domain)
    return (epoch, *words)


def numpys(seed, *spawn_key):
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def same(one, other):
    """Whether two generators stand at the same place of the same stream."""
    return one.bit_generator.state == other.bit_generator.state and one is not other


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("epoch", EPOCHS)
def test_a_small_index_without_a_stream_is_one_line_of_numpy(seed, epoch):
    for index in SMALL:
        theirs = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(epoch, index)))
        ours = sample_rng(seed, epoch, index)
        assert type(ours) is np.random.Generator
        assert ours.bit_generator.state == theirs.bit_generator.state
        assert ours.normal(size=5).tobytes() == theirs.normal(size=5).tobytes()
        assert ours.integers(2**63, size=5).tobytes() == theirs.integers(2**63, size=5).tobytes()


@pytest.mark.parametrize("index", LARGE)
def test_a_large_index_is_its_low_word_and_its_high_word(index):
    low, high = index % 2**32, index // 2**32
    assert same(sample_rng(3, 4, index), numpys(3, 4, low, high))


@pytest.mark.parametrize("index", IDS)
def test_a_record_id_is_its_digest(index):
    assert same(sample_rng(3, 4, index), numpys(3, 4, *digest("index", index)))


@pytest.mark.parametrize("index", [5, 2**32 + 5, "5"])
@pytest.mark.parametrize("stream", ["", "crop", "5", "\ud800"])
def test_a_stream_adds_its_digest(index, stream):
    assert same(sample_rng(3, 4, index, stream), numpys(3, *published(4, index, stream)))


def test_digests_are_what_anybody_computes():
    # Pinned here, so that a change to this file's own `digest` can't hide one of the library.
    assert digest("index", "5") == (0xD8029A06, 0xB10774F4, 0xA0F458F4, 0x2738C826)
    assert digest("stream", "5") == (0xA17F92F3, 0x4999B76F, 0xD16AE405, 0x5AC3FE70)
    assert digest("domain", "order") == (0x23C67C83, 0x25574332, 0x5AAA1DC3, 0x4121B5A0)


def test_the_dataset_draws_by_its_seed_and_epoch():
    dataset = StatefulDataset(seed=2**64 + 5)
    for epoch, index, stream in itertools.product(EPOCHS, [0, 2**40, "a"], [None, "crop"]):
        dataset.set_epoch(epoch)
        assert same(dataset.rng(index, stream), sample_rng(2**64 + 5, epoch, index, stream))


seeds = st.sampled_from(SEEDS) | st.integers(0, 2**128 - 1)
epochs = st.sampled_from(EPOCHS) | st.integers(0, 2**32 - 1)
numbers = st.sampled_from(SMALL + LARGE) | st.integers(0, 2**32 - 1) | st.integers(0, 2**64 - 1)
names = st.sampled_from(STREAMS) | st.text(max_size=8)


@settings(deadline=None, max_examples=200)
@given(
    seeds, epochs, st.lists(numbers, max_size=12), names, st.none() | st.text(), st.integers(1, 40)
)
def test_keys_derived_together_are_numpys(seed, epoch, indices, stream, domain, size):
    rows = _keys.keys(seed, epoch, indices, stream, domain, size=size)
    assert rows.shape == (len(indices), size)
    assert rows.dtype == np.uint32
    for row, index in zip(rows, indices, strict=True):
        words = published(epoch, index, stream, domain)
        theirs = np.random.SeedSequence(seed, spawn_key=words).generate_state(size)
        assert row.tolist() == theirs.tolist()


def test_keys_of_the_greatest_size():
    theirs = np.random.SeedSequence(7, spawn_key=published(1, 2**40, "s", "d")).generate_state(127)
    assert _keys.keys(7, 1, [2**40], "s", "d", size=127)[0].tolist() == theirs.tolist()


@settings(deadline=None, max_examples=200)
@given(seeds, epochs, numbers | st.text(max_size=8), names)
def test_any_key_is_numpys(seed, epoch, index, stream):
    assert same(
        sample_rng(seed, epoch, index, stream), numpys(seed, *published(epoch, index, stream))
    )


class Generators(StatefulDataset):
    """Each sample is its generators themselves."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, self.epoch, self.rng(index), self.rng(index), self.rng(index, "crop")


MIXED = [0, 5, 2**32 + 5, 3, 2**64 - 1, 5 * 2**32 + 1, 2**32 - 1, 2**32, 9, 2**63, 1, 2, 5]


def batches(workers=0, batch_size=8, sampler=MIXED, seed=2**100 + 3):
    loader = StatefulDataLoader(
        Generators(seed),
        batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn=list,
    )
    loader.set_epoch(4)
    return flat(loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_generators_that_a_batch_makes_are_those_made_alone(workers, batch_size):
    samples = batches(workers, batch_size)
    assert len(samples) == len(MIXED)
    for index, epoch, first, second, crop in samples:
        alone = sample_rng(2**100 + 3, epoch, index)
        assert epoch == 4
        assert same(first, alone)
        assert same(second, alone)
        assert same(crop, sample_rng(2**100 + 3, epoch, index, "crop"))
        assert first.normal(size=3).tobytes() == alone.normal(size=3).tobytes()


def in_a_batch():
    """Generators from one batch, beside equal ones from `sample_rng`."""
    for index, epoch, first, _, crop in batches(batch_size=len(MIXED)):
        yield first, sample_rng(2**100 + 3, epoch, index)
        yield crop, sample_rng(2**100 + 3, epoch, index, "crop")


def test_their_spawned_children_are_numpys():
    for ours, theirs in in_a_batch():
        for _ in range(2):  # the second time it goes on with the next children
            for child, expected in zip(ours.spawn(2), theirs.spawn(2), strict=True):
                assert same(child, expected)
        assert same(ours, theirs)


def test_their_seed_sequence_is_numpys():
    for ours, theirs in in_a_batch():
        mine, numpys_own = ours.bit_generator.seed_seq, theirs.bit_generator.seed_seq
        for name in ("entropy", "spawn_key", "pool_size", "n_children_spawned", "state"):
            assert getattr(mine, name) == getattr(numpys_own, name)
        assert mine.pool.tolist() == numpys_own.pool.tolist()
        for words, dtype in itertools.product([1, 4, 7], [np.uint32, np.uint64, "u8"]):
            got, expected = (
                mine.generate_state(words, dtype),
                numpys_own.generate_state(words, dtype),
            )
            assert got.dtype == expected.dtype
            assert got.tolist() == expected.tolist()
        assert mine.spawn(1)[0].spawn_key == numpys_own.spawn(1)[0].spawn_key
        assert same(np.random.default_rng(mine), np.random.default_rng(numpys_own))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda rng: pickle.loads(pickle.dumps(rng))])
@pytest.mark.parametrize("drawn", [0, 3])
def test_their_copies_go_on_alike_and_apart(clone, drawn):
    for ours, theirs in in_a_batch():
        ours.random(drawn), theirs.random(drawn)
        twin = clone(ours)
        expected = theirs.random(4).tobytes()
        assert twin.random(4).tobytes() == expected
        assert ours.random(4).tobytes() == expected


def test_a_seed_sequence_gives_its_words_away():
    # NumPy returns a new array at each call; the next generator must not feel what is done to it.
    for ours, theirs in in_a_batch():
        ours.bit_generator.seed_seq.generate_state(4, np.uint64)[:] = 0
        words = ours.bit_generator.seed_seq.generate_state(4, np.uint64).tolist()
        assert words == theirs.bit_generator.seed_seq.generate_state(4, np.uint64).tolist()


class Twice(StatefulDataset):
    """Draws from one of two generators of one key; the other must not have moved."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        first, second = self.rng(index), self.rng(index)
        first.random(10)
        assert not same(first, second)
        return same(second, self.rng(index)) and first.bit_generator is not second.bit_generator


def test_two_generators_of_one_key_are_unshared():
    dataset = Twice(seed=3)
    assert all(dataset[k] for k in range(6))
    for batch_size in (2, 6):
        assert all(flat(StatefulDataLoader(dataset, batch_size, collate_fn=list)))


@pytest.mark.parametrize("index", [0, 2**40, "a"])
@pytest.mark.parametrize("stream", [None, "crop"])
def test_torch_and_python_generators_have_keys_of_their_own(index, stream):
    dataset = StatefulDataset(seed=9)
    dataset.set_epoch(2)
    words = {
        domain: np.random.SeedSequence(9, spawn_key=published(2, index, stream, domain))
        for domain in ("torch", "python")
    }
    ours = dataset.torch_rng(index, stream)
    assert ours.device.type == "cpu"
    assert ours.initial_seed() == int(words["torch"].generate_state(1, np.uint64)[0])
    key = words["python"].generate_state(4).astype("<u4").tobytes()
    expected = random.Random(int.from_bytes(key, "little"))
    ours = dataset.python_rng(index, stream)
    assert type(ours) is random.Random
    assert ours.getstate() == expected.getstate()


def test_torch_and_python_generators_are_new_at_each_call():
    dataset = StatefulDataset(seed=9)
    first, second = dataset.torch_rng(3), dataset.torch_rng(3)
    drawn = torch.rand(5, generator=first)
    assert torch.equal(drawn, torch.rand(5, generator=second))
    one, other = dataset.python_rng(3), dataset.python_rng(3)
    assert [one.random() for _ in range(5)] == [other.random() for _ in range(5)]
    numpy = dataset.rng(3)
    assert same(numpy, sample_rng(9, 0, 3))


GRID_SEEDS = [0, 1, 2, 5, 7, 2**32, 5 + 7 * 2**32, 2**64]
GRID_EPOCHS = [0, 1, 2, 5, 7]
GRID_INDICES = [0, 1, 2, 5, 7, 2**32, 2**32 + 5, 5 * 2**32 + 1, 7 * 2**32, "", "0", "5", "crop"]
GRID_STREAMS = [None, "", "0", "crop", "torch"]


def firsts(dataset, index, stream):
    """64 bits of each kind of generator."""
    yield int(dataset.rng(index, stream).bit_generator.random_raw())
    yield dataset.torch_rng(index, stream).initial_seed()
    yield dataset.python_rng(index, stream).getrandbits(64)
    with dataset.seeded(index, stream):
        yield random.getrandbits(64)
        yield int.from_bytes(np.random.bytes(8), "little")
        yield torch.initial_seed()


def test_no_two_keys_of_a_grid_draw_alike():
    seen = set()
    count = 0
    for seed, epoch in itertools.product(GRID_SEEDS, GRID_EPOCHS):
        dataset = StatefulDataset(seed=seed)
        dataset.set_epoch(epoch)
        for index, stream in itertools.product(GRID_INDICES, GRID_STREAMS):
            seen.update(firsts(dataset, index, stream))
            count += 6
    assert len(seen) == count == 8 * 5 * 13 * 5 * 6


def test_no_two_samples_of_many_epochs_draw_alike():
    draws = {sample_rng(0, e, k).integers(2**63) for e in range(40) for k in range(40)}
    assert len(draws) == 1600


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((0, 1, 0), (1, 0, 0)),  # a sum of seed and epoch
        ((0, 15, 20), (0, 20, 15)),  # a sum of epoch and index
        ((1, 0, 5), (5, 0, 1)),
        ((0, 1, 2**32 + 5), (0, 1, 5)),  # a mask
        ((0, 1, 2**32 + 5), (0, 5, 1)),  # NumPy splits wide integers into words
        ((5, 7, 0), (5 + 7 * 2**32, 0, 0)),  # a seed's second word for an epoch
        ((5, 0, 0), (5, 0, 2**32)),  # and pads with zeros
        ((0, 0, 1), (2**32, 0, 0)),
        ((0, 0, 5), (0, 0, "5")),
    ],
)
def test_keys_that_are_easily_taken_for_each_other(one, other):
    assert not same(sample_rng(*one), sample_rng(*other))
    assert not same(sample_rng(*one, "crop"), sample_rng(*other, "crop"))


DOMAINS = ["order", "batch", "batch_rng", "global", "sampler", "sampler.generator", "python"]
DOMAINS += ["torch", "worker", "seed_worker"]


def test_every_domain_has_keys_of_its_own():
    seen = set()
    count = 0
    for epoch, domain in itertools.product(GRID_EPOCHS, DOMAINS):
        for index in (None, 0, 1, 5, 2**32 + 5):
            state = _keys.sequence(5, epoch, index, domain=domain).generate_state(4)
            seen.add(tuple(state.tolist()))
            count += 1
    for epoch, index in itertools.product(GRID_EPOCHS, [*GRID_INDICES, "order", "batch"]):
        for stream in (None, "order", "batch", "global"):
            state = sample_rng(5, epoch, index, stream).bit_generator.seed_seq.generate_state(4)
            seen.add(tuple(state.tolist()))
            count += 1
    assert len(seen) == count


@pytest.mark.parametrize("epoch", [0, 3])
def test_an_order_is_keyed_in_its_domain(epoch):
    words = np.random.SeedSequence(7, spawn_key=(epoch, *digest("domain", "order")))
    expected = np.argsort(np.random.PCG64(words).random_raw(50), kind="stable")
    assert list(KeyedPermutation(50, 7, epoch)) == expected.tolist()


class GlobalWords(StatefulDataset):
    """Each sample is what is drawn for its batch, and what is drawn for the sample itself."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        words = [random.getrandbits(64), np.random.bytes(8), torch.initial_seed()]
        for stream in (None, "crop"):
            words += [int(batch_rng(stream).bit_generator.random_raw())]
            words += firsts(self, index, stream)
        return words


def test_batches_are_keyed_apart_from_samples():
    words = list(
        itertools.chain.from_iterable(
            flat(StatefulDataLoader(GlobalWords(seed=3), 1, collate_fn=list))
        )
    )
    assert len(set(words)) == len(words) == 8 * (3 + 2 * 7)


def test_a_workers_generator_is_keyed_apart_from_samples():
    torch.manual_seed(11)
    dataset = StatefulDataset(seed=11)
    words = np.random.SeedSequence(11, spawn_key=digest("domain", "worker"))
    assert same(dataset.worker_rng, np.random.default_rng(words))
    assert dataset.worker_rng is dataset.worker_rng


SCRIPT = """
import json, random
from seedcursor import KeyedPermutation, StatefulDataLoader, StatefulDataset, sample_rng
dataset = StatefulDataset(seed=5)
words = [str(sample_rng(5, 1, name, stream).bit_generator.state)
         for name in ("a", "train/7.jpg", 3) for stream in (None, "crop")]
words += [dataset.torch_rng("a", "crop").initial_seed(), dataset.python_rng("a", "crop").random()]
with dataset.seeded("a", "crop"):
    words += [random.random()]
loader = StatefulDataLoader(range(9), 2, shuffle=True, seed=5,
                            collate_fn=lambda batch: [*batch, random.random()])
words += [list(loader), list(KeyedPermutation(9, 5)), KeyedPermutation(10**12, 5)[7]]
print(json.dumps(words), hash("a"))
"""


def test_two_interpreters_draw_alike():
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in ("1", "2")
    ]
    outputs = [process.communicate()[0].rsplit(maxsplit=1) for process in running]
    assert [process.returncode for process in running] == [0, 0]
    (one, one_hash), (other, other_hash) = outputs
    assert one_hash != other_hash
    assert one == other
    assert str(sample_rng(5, 1, "a").bit_generator.state) in one


class Five:
    def __index__(self):
        return 5


@pytest.mark.parametrize(
    "five",
    [
        np.int64(5),
        np.uint8(5),
        np.array(5),
        torch.tensor(5),
        torch.tensor(5, dtype=torch.int32),
        Five(),
    ],
    ids=lambda five: type(five).__name__,
)
def test_whatever_is_an_integer_is_taken_as_one(five):
    expected = sample_rng(5, 5, 5)
    assert same(sample_rng(five, 5, 5), expected)
    assert same(sample_rng(5, five, 5), expected)
    assert same(sample_rng(5, 5, five), expected)
    dataset = StatefulDataset(seed=five)
    dataset.set_epoch(five)
    assert (type(dataset.seed), type(dataset.epoch)) == (int, int)
    assert same(dataset.rng(five), expected)
    dataset.seed = 3
    dataset.seed = five
    assert (dataset.seed, type(dataset.seed)) == (5, int)
    assert dataset.torch_rng(five).initial_seed() == dataset.torch_rng(5).initial_seed()
    assert dataset.python_rng(five).random() == dataset.python_rng(5).random()
    with dataset.seeded(five):
        drawn = random.random()
    with dataset.seeded(5):
        assert random.random() == drawn


def test_integers_of_full_width_are_taken_whole():
    assert same(sample_rng(0, 0, np.uint64(2**64 - 1)), sample_rng(0, 0, 2**64 - 1))
    assert same(sample_rng(np.uint64(2**63), 0, 0), sample_rng(2**63, 0, 0))


BITS = {"seed": 128, "epoch": 32, "index": 64}
REFUSED = [
    (name, value, error)
    for name, bits in BITS.items()
    for value, error in [
        (-1, ValueError),
        (-(2**70), ValueError),
        (2**bits, ValueError),
        (np.int64(-3), ValueError),
        (torch.tensor(-3), ValueError),
        (1.5, TypeError),
        (5.0, TypeError),
        (np.float64(5), TypeError),
        (torch.tensor(5.0), TypeError),
        (torch.tensor([1, 2]), TypeError),
        (float("nan"), TypeError),
        (b"5", TypeError),
        ((5,), TypeError),
        (None, TypeError),
        *([] if name == "index" else [("5", TypeError)]),
    ]
]


def calls(name, value):
    """Every call that takes the argument."""
    dataset = StatefulDataset(seed=1)
    arguments = {"seed": 0, "epoch": 0, "index": 0} | {name: value}
    yield lambda: sample_rng(**arguments)
    yield lambda: sample_rng(**arguments, stream="crop")
    yield lambda: seeded(**arguments)
    if name == "seed":
        yield lambda: StatefulDataset(seed=value)
        yield lambda: setattr(dataset, "seed", value)
    if name == "epoch":
        yield lambda: dataset.set_epoch(value)
    if name == "index":
        for method in (dataset.rng, dataset.torch_rng, dataset.python_rng, dataset.seeded):
            yield lambda method=method: method(value)


@pytest.mark.parametrize(("name", "value", "error"), REFUSED)
def test_a_refusal_names_the_argument_the_value_and_the_limit(name, value, error):
    shown = str(int(value)) if error is ValueError else repr(value)
    for call in calls(name, value):
        with pytest.raises(error) as caught:
            call()
        message = str(caught.value)
        assert message.startswith(f"{name} must be ")
        assert shown in message
        assert f"[0, 2**{BITS[name]})" in message


def test_a_refused_setting_changes_nothing():
    dataset = StatefulDataset(seed=1)
    dataset.set_epoch(2)
    with pytest.raises(ValueError, match="seed"):
        dataset.seed = -1
    with pytest.raises(ValueError, match="epoch"):
        dataset.set_epoch(2**32)
    assert (dataset.seed, dataset.epoch) == (1, 2)


@pytest.mark.parametrize("name", BITS)
def test_a_number_too_long_to_print_is_refused_by_name(name):
    # Python refuses to print an int of more than 4,300 digits, with words that help nobody.
    for call in calls(name, 10**5000):
        with pytest.raises(ValueError, match=rf"^{name} must be .*2\*\*{BITS[name]}"):
            call()


@pytest.mark.parametrize("stream", [5, 0, b"crop", ("crop",), 1.5, torch.tensor(1)])
def test_a_stream_is_a_name(stream):
    dataset = StatefulDataset()
    methods = [dataset.rng, dataset.torch_rng, dataset.python_rng, dataset.seeded]
    for call in [*methods, lambda index, stream: sample_rng(0, 0, index, stream)]:
        with pytest.raises(TypeError, match=r"^stream must be a str or None, got ") as caught:
            call(0, stream)
        assert repr(stream) in str(caught.value)


class Asking(StatefulDataset):
    """Asks for its own key first, then for one that compares equal to it."""

    def __init__(self, ask):
        super().__init__(seed=1)
        self.ask = ask

    def __len__(self):
        return 6

    def __getitem__(self, index):
        self.rng(index)
        return same(self.ask(self, index), self.rng(index))


@pytest.mark.parametrize("convert", [float, complex, np.float64, lambda k: torch.tensor(float(k))])
@pytest.mark.parametrize("batch_size", [2, 6])
def test_no_float_passes_for_an_index_whose_key_is_ready(convert, batch_size):
    dataset = Asking(lambda dataset, index: dataset.rng(convert(index)))
    with pytest.raises(TypeError, match=r"index must be an integer in \[0, 2\*\*64\), got"):
        list(StatefulDataLoader(dataset, batch_size))
    dataset = Asking(lambda dataset, index: dataset.rng(index, convert(index)))
    with pytest.raises(TypeError, match="stream must be a str or None, got"):
        list(StatefulDataLoader(dataset, batch_size))


@pytest.mark.parametrize("convert", [np.int64, torch.tensor, np.array])
@pytest.mark.parametrize("batch_size", [2, 6])
def test_whatever_is_an_integer_finds_the_key_that_is_ready(convert, batch_size):
    dataset = Asking(lambda dataset, index: dataset.rng(convert(index)))
    assert all(flat(StatefulDataLoader(dataset, batch_size, collate_fn=list)))


@pytest.mark.parametrize("batch_size", [2, 6])
def test_an_index_beside_the_batch_has_its_own_key(batch_size):
    dataset = Asking(lambda dataset, index: dataset.rng(str(index)))
    assert not any(flat(StatefulDataLoader(dataset, batch_size, collate_fn=list)))
    dataset = Asking(lambda dataset, index: dataset.rng(index + 100))
    assert not any(flat(StatefulDataLoader(dataset, batch_size, collate_fn=list)))


@dataclass
class Field(StatefulDataset):
    seed: int = 0


@pytest.mark.parametrize(
    ("seed", "error"), [(-1, ValueError), (2**128, ValueError), ("x", TypeError)]
)
def test_a_seed_that_is_a_field_is_checked(seed, error):
    with pytest.raises(error, match=r"^seed must be an integer in \[0, 2\*\*128\)"):
        Field(seed).rng(0)
