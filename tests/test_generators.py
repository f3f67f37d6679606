"""Datasets and transforms that hold generators of their own."""

import copy
import functools
import pickle
import random
from collections import deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from pipelines import FEWER_SHAPES, N, alone, check
from torch.utils.data import ConcatDataset, Dataset, Subset

from seedcursor import SeededDataset, StatefulDataLoader, StatefulDataset
from seedcursor.integrations.generators import SeededGenerators


class Drawer:
    """A transform with a generator of its own."""

    def __init__(self, generator):
        self.generator = generator

    def __call__(self):
        return draw(self.generator)


def draw(generator):
    if isinstance(generator, torch.Generator):
        return int(torch.randint(2**62, (), generator=generator))
    if isinstance(generator, random.Random):
        return generator.getrandbits(62)
    if isinstance(generator, np.random.BitGenerator):
        return int(generator.random_raw())
    if isinstance(generator, np.random.RandomState):
        return int(generator.randint(2**62, dtype=np.int64))
    return int(generator.integers(2**62))


class Held(Dataset):
    """Sample i is i, and a draw of each transform, twice."""

    def __init__(self, transforms):
        self.transforms = transforms

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, *(each() for each in (*self.transforms, *self.transforms))


def every_kind():
    return [
        Drawer(np.random.default_rng(0)),
        Drawer(np.random.default_rng(0)),
        Drawer(np.random.Generator(np.random.MT19937(0))),
        Drawer(np.random.Generator(np.random.PCG64DXSM(0))),
        Drawer(np.random.Generator(np.random.Philox(0))),
        Drawer(np.random.SFC64(0)),
        Drawer(np.random.RandomState(0)),
        Drawer(random.Random(0)),
    ]


@pytest.mark.parametrize("shape", FEWER_SHAPES)
def test_each_kind_is_a_function_of_epoch_and_index(shape):
    transforms = every_kind()
    if "spawn" not in shape:  # PyTorch 2.13 can't hand a torch.Generator to a spawned worker
        transforms.append(Drawer(torch.Generator()))
    check(SeededGenerators(Held(transforms), seed=5), shape)


def test_each_has_the_stream_of_its_path():
    dataset = SeededGenerators(Held([Drawer(np.random.default_rng(0)) for _ in range(2)]), seed=5)
    dataset.set_epoch(3)
    expected = [dataset.rng(4, f".transforms[{k}].generator").integers(2**62) for k in range(2)]
    assert dataset[4][1:3] == tuple(expected)
    assert expected[0] != expected[1]


def test_what_is_kept_back_is_dropped():
    gaussian, python = np.random.RandomState(0), random.Random(0)
    dataset = SeededGenerators(Held([gaussian.randn, functools.partial(python.gauss, 0, 1)]))
    first = dataset[1]
    gaussian.randn(), python.gauss(0, 1)
    assert dataset[1] == first


class Slotted:
    __slots__ = ("_rng",)

    def __init__(self):
        self._rng = np.random.default_rng(0)

    def __call__(self):
        return draw(self._rng)


class OfClass:
    rng = np.random.default_rng(0)

    def __call__(self):
        return draw(self.rng)


class Linked(Drawer):
    """Refers to itself."""

    def __init__(self, generator):
        super().__init__(generator)
        self.itself = [self]


def closed(generator):
    def call():
        return draw(generator)

    return call


def defaulted(generator):
    return lambda rng=generator: draw(rng)


def keyword(generator):
    def call(*, rng=generator):
        return draw(rng)

    return call


def fresh():
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("transform", "path"),
    [
        (Slotted(), "._rng"),
        (OfClass(), ".rng"),
        (Linked(fresh()), ".generator"),
        (Drawer(fresh()).__call__, ".__self__.generator"),
        (functools.partial(draw, fresh()), ".args[0]"),
        (functools.partial(draw, generator=fresh()), ".keywords['generator']"),
        (functools.partial(Drawer(fresh())), ".func.generator"),
        (closed(fresh()), ".generator"),
        (defaulted(fresh()), ".__defaults__[0]"),
        (keyword(fresh()), ".__kwdefaults__['rng']"),
        (functools.wraps(draw)(closed(fresh())), ".generator"),
    ],
)
def test_generators_are_found_wherever_they_are_held(transform, path):
    dataset = SeededGenerators(Held([transform]))
    assert dataset[3] == dataset[3]
    assert dataset[3][1] == draw(dataset.rng(3, ".transforms[0]" + path))


@pytest.mark.parametrize(
    ("hold", "path"),
    [
        (lambda transform: {"crop": transform}, "['crop']"),
        (lambda transform: {7: transform}, "[7]"),
        (lambda transform: {(1, 2): None, Held: transform}, "[#1]"),
        (lambda transform: deque([transform]), "[0]"),
        (lambda transform: (None, transform), "[1]"),
        (lambda transform: {transform}, "{}"),
        (lambda transform: [[], [{"a": [transform]}]], "[1][0]['a'][0]"),
    ],
)
def test_generators_are_found_in_containers(hold, path):
    transform = Drawer(fresh())

    class Base(Held):
        def __getitem__(self, index):
            return transform()

    base = Base(hold(transform))
    dataset = SeededGenerators(base)
    assert dataset[3] == draw(dataset.rng(3, f".transforms{path}.generator"))


def test_a_variable_that_is_not_assigned_is_passed_over():
    def call():
        return rng

    dataset = SeededGenerators(Held([call, Drawer(fresh())]))
    rng = 4
    assert dataset[3] == dataset[3]


def test_a_bound_method_of_a_generator_is_keyed():
    dataset = SeededGenerators(Held([np.random.default_rng(0).random, random.Random(0).random]))
    assert dataset[1] == dataset[1]
    assert dataset[1][1] == dataset.rng(1, ".transforms[0].__self__").random()


def test_a_generator_that_is_shared_is_keyed_once():
    shared = np.random.default_rng(0)
    dataset = SeededGenerators(Held([Drawer(shared), Drawer(shared)]))
    stream = dataset.rng(2, ".transforms[0].generator")
    assert dataset[2] == (2, *(draw(stream) for _ in range(4)))


def test_global_generators_are_keyed_as_ever():
    class Module:
        numpy = np.random
        rand = np.random.mtrand.RandomState

        def __call__(self):
            return np.random.random(), random.random(), float(torch.rand(()))

    held_globals = [Drawer(torch.default_generator), np.random.random, random.random, Module()]
    base = Held(held_globals)
    assert SeededGenerators(base, seed=4)[2] == SeededDataset(base, seed=4)[2]


@pytest.mark.parametrize(
    ("generator", "words"),
    [
        (random.SystemRandom(), "draws from the operating system"),
        (np.random.RandomState(np.random.PCG64(0)), "hold one of NumPy's own"),
    ],
)
def test_what_cannot_be_keyed_is_refused(generator, words):
    with pytest.raises(TypeError, match=rf"dataset\.transforms\[1\]\.generator.*{words}"):
        SeededGenerators(Held([Drawer(fresh()), Drawer(generator)]))


def test_a_foreign_bit_generator_is_refused():
    class Foreign(np.random.PCG64):
        pass

    with pytest.raises(TypeError, match="bit generator that can't be keyed"):
        SeededGenerators(Held([Drawer(np.random.Generator(Foreign(0)))]))


def test_a_set_of_generators_is_refused():
    with pytest.raises(TypeError, match="2 generators in a set"):
        SeededGenerators(Held({Drawer(fresh()), Drawer(fresh())}))


@pytest.mark.parametrize("wrong", [3, None, iter([1])])
def test_only_map_style_datasets_are_taken(wrong):
    with pytest.raises(TypeError, match="map-style"):
        SeededGenerators(wrong)


class Rows(Held):
    """Fetches whole batches, which would draw one stream for all."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]


def test_samples_are_read_one_by_one():
    base = Rows([Drawer(fresh())])
    dataset = SeededGenerators(base)
    assert dataset.__getitems__([0, 1, 2]) == [dataset[k] for k in range(3)]


def test_copies_key_their_own_generators():
    dataset = SeededGenerators(Held([Drawer(fresh())]), seed=2)
    expected = alone(dataset)
    for copied in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert copied.base.transforms[0] is not dataset.base.transforms[0]
        assert alone(copied) == expected


def test_a_copy_keys_what_it_holds_in_common():
    dataset = SeededGenerators(Held([OfClass()]), seed=2)
    copied = copy.deepcopy(dataset)
    for _ in range(2):  # reading one moves the generator of both
        assert copied[3] == dataset[3] != copied[4]


def test_under_subset_and_concat():
    dataset = SeededGenerators(Held([Drawer(fresh())]), seed=2)
    expected = {index: draws for (epoch, index), draws in alone(dataset).items() if epoch == 0}
    for wrapped in (Subset(dataset, range(N)), ConcatDataset([dataset])):
        loader = StatefulDataLoader(wrapped, 4, num_workers=2, collate_fn=list)
        assert {s[0]: list(s[1:]) for batch in loader for s in batch} == expected


def test_over_a_dataset_of_ours():
    class Ours(StatefulDataset):
        def __init__(self):
            super().__init__(seed=8)
            self.transform = Drawer(fresh())

        def __len__(self):
            return N

        def __getitem__(self, index):
            return index, draw(self.rng(index)), self.transform()

    ours = Ours()
    dataset = SeededGenerators(ours, seed=2)
    dataset.set_epoch(1)
    assert dataset[5] == (5, draw(ours.rng(5)), draw(dataset.rng(5, ".transform.generator")))


def test_threads_take_turns():
    dataset = SeededGenerators(Held(every_kind()), seed=2)
    expected = [dataset[k % N] for k in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda k: dataset[k % N], range(200))) == expected


@pytest.mark.parametrize("kind", [list, tuple, deque, dict, set])
def test_a_container_with_methods_of_its_own_is_not_asked(kind):
    class Loading(kind):
        def __iter__(self):
            raise AssertionError

        items = keys = __getitem__ = __iter__

    transform = Drawer(fresh())
    base = Held([Loading({transform: transform})])
    dataset = SeededGenerators(base)
    dataset.base.transforms = [transform]
    assert dataset[1] == dataset[1]


def test_the_walk_leaves_data_alone():
    class Lazy:
        looked = 0

        @property
        def costly(self):
            self.looked += 1
            raise RuntimeError

        def __getattr__(self, name):
            raise RuntimeError(name)

    base = Held([Drawer(fresh())])
    base.lazy = Lazy()
    base.data = [list(range(1000)), {"image": np.zeros(3), "name": "x"}, torch.zeros(3)]
    dataset = SeededGenerators(base)
    assert dataset[0] == dataset[0]
    assert base.lazy.looked == 0
