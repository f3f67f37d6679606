"""The global RNGs: whose they are while a batch is built, and that nobody else feels it."""

import contextlib
import io
import itertools
import random
import threading
import traceback
import types

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Keyed, Mapped, Stream, flat
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from seedcursor import (
    StatefulDataLoader,
    StatefulDataset,
    _rng,
    load_rng_state_dict,
    rng_state_dict,
)

N, BATCH = 18, 4


def plain(value):
    """Nested states as tuples that compare."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | torch.Tensor) else value


def here():
    """Where the three global RNGs stand, to the bit."""
    return (
        random.getstate(),
        plain(np.random.get_state(legacy=False)),
        torch.get_rng_state().tolist(),
    )


def draw():
    """Of each global RNG a word, and of what it keeps back for its next normal draw."""
    return (
        random.getrandbits(64),
        random.gauss(0, 1),
        int(np.random.randint(2**60)),
        float(np.random.standard_normal()),
        int(torch.randint(2**60, ())),
        float(torch.randn(())),
    )


@contextlib.contextmanager
def unmoved():
    before = here()
    yield
    assert here() == before


@contextlib.contextmanager
def put_back():
    python, torchs = random.getstate(), torch.get_rng_state()
    numpy = np.random.get_state(legacy=False)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torchs)


@pytest.fixture(autouse=True)
def _somewhere(request):
    # After an odd number of normal draws each of them keeps one back.
    random.seed(5), np.random.seed(6), torch.manual_seed(7)
    for _ in range(getattr(request, "param", 1)):
        draw()


whatever_is_kept = pytest.mark.parametrize("_somewhere", [0, 1], indirect=True)


def test_the_snapshot_sees_what_is_kept_back():
    states = [here()]
    for step in (lambda: random.gauss(0, 1), np.random.randn, lambda: torch.randn(())):
        for _ in range(2):
            step()
            states.append(here())
    assert all(one != other for one, other in itertools.pairwise(states))


def passes(kind, workers, dataset=None, **options):
    if dataset is None:
        dataset = Stream(N, seed=3) if kind == "stream" else Mapped(N, seed=3)
    if kind == "shuffled":
        options["shuffle"] = True
    return StatefulDataLoader(dataset, BATCH, num_workers=workers, collate_fn=list, **options)


def everywhere(test):
    for name, values in {"kind": ["ordered", "shuffled", "stream"], "workers": [0, 2]}.items():
        test = pytest.mark.parametrize(name, values)(test)
    return test


@everywhere
@whatever_is_kept
def test_a_pass_moves_no_global_rng(kind, workers):
    with unmoved():
        loader = passes(kind, workers)
        for _ in loader:
            pass
        list(loader)


@everywhere
@whatever_is_kept
def test_nor_does_any_part_of_one(kind, workers):
    loader = passes(kind, workers)
    with unmoved():
        batches = iter(loader)
    with unmoved():
        next(batches)
    with unmoved():
        del batches
    with unmoved():
        loader.load_state_dict(loader.state_dict())
    with unmoved():
        loader.replay(epoch=1, cursor=4)
    with unmoved():
        loader.set_epoch(3)
        len(loader) if kind != "stream" else None
    with unmoved():
        next(iter(loader))


class Broken(Mapped):
    def __getitem__(self, index):
        draw()
        if index == 6:
            raise KeyError("no such record")
        return super().__getitem__(index)


def broken_collate(samples):
    draw()
    if any(sample[0] == 6 for sample in samples):
        raise ValueError("no such batch")
    return samples


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["dataset", "collate_fn"])
@whatever_is_kept
def test_nor_does_a_pass_that_raises(shuffle, workers, where):
    loader = StatefulDataLoader(
        Broken(N) if where == "dataset" else Mapped(N),
        BATCH,
        shuffle,
        num_workers=workers,
        collate_fn=list if where == "dataset" else broken_collate,
    )
    with unmoved():
        with pytest.raises((KeyError, ValueError), match="no such") as caught:
            list(loader)
        # PyTorch's raise holds its own traceback, and so the workers, until garbage is collected.
        traceback.clear_frames(caught.tb)


def samplers(n, generator):
    weights = [1.0 + k for k in range(n)]
    return {
        "random": RandomSampler(range(n), generator=generator),
        "replaced": RandomSampler(range(n), replacement=True, num_samples=n, generator=generator),
        "weighted": WeightedRandomSampler(weights, n, generator=generator),
        "subset": SubsetRandomSampler(range(n), generator=generator),
    }


SAMPLERS = list(samplers(1, None))


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
def test_nor_does_a_users_sampler(name, workers, own):
    generator = torch.Generator().manual_seed(9) if own else None
    loader = passes("sampled", workers, sampler=samplers(N, generator)[name])
    with unmoved():
        for _ in loader:
            pass
        next(iter(loader))
    if own:
        assert torch.equal(generator.get_state(), torch.Generator().manual_seed(9).get_state())


class DrawingSampler:
    """Draws from every global RNG, a Gaussian at a time."""

    def __len__(self):
        return N

    def __iter__(self):
        for _ in range(N):
            random.gauss(0, 1), torch.randn(())
            yield int(np.random.standard_normal() * 100) % N


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_that_draws_as_it_goes_feels_nobody_and_is_not_felt(workers):
    alone = flat(passes("sampled", workers, sampler=DrawingSampler()))
    loader = passes("sampled", workers, sampler=DrawingSampler())
    seen = []
    for batch in loader:
        seen += batch
        draw()
    assert seen == alone
    with unmoved():
        assert flat(passes("sampled", 0, sampler=DrawingSampler())) == alone


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_a_sampler_goes_on_from_one_batch_to_the_next(batch_size):
    def order(batch_size):
        loader = StatefulDataLoader(
            Keyed(100), batch_size, sampler=DrawingSampler(), collate_fn=list
        )
        return [sample[0] for sample in flat(loader)]

    assert order(batch_size) == order(N)


@whatever_is_kept
def test_a_failing_sampler_leaves_the_global_rngs_alone():
    def items():
        for k in range(6):
            draw()
            yield k
        raise KeyError("no more")

    with unmoved(), pytest.raises(KeyError, match="no more"):
        list(passes("sampled", 0, sampler=items()))


@everywhere
@whatever_is_kept
def test_a_loop_that_draws_draws_as_without_a_loader(kind, workers):
    with put_back():
        alone = [draw() for _ in range(2 * 5)]
    loader = passes(kind, workers)
    drawn = []
    for _ in range(2):
        drawn += [draw() for _ in loader]
    assert drawn == alone


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_with_a_sampler_draws_as_without_one(workers):
    with put_back():
        alone = [draw() for _ in range(5)]
    loader = passes("sampled", workers, sampler=RandomSampler(range(N)))
    assert [draw() for _ in loader] == alone


@everywhere
def test_what_the_loop_draws_changes_no_sample(kind, workers):
    expected = list(passes(kind, 0))
    seen = []
    for batch in passes(kind, workers):
        draw()
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        seen.append(batch)
    assert seen == expected


BIT_GENERATORS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]


@contextlib.contextmanager
def numpys(bits):
    """NumPy's global RNG replaced by the user's own."""
    theirs, state = np.random.get_bit_generator(), np.random.get_state(legacy=False)
    np.random.set_bit_generator(bits)
    try:
        yield bits
    finally:
        np.random.set_bit_generator(theirs)
        np.random.set_state(state)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", BIT_GENERATORS)
@pytest.mark.parametrize("kind", ["ordered", "shuffled", "stream"])
def test_a_bit_generator_of_the_users_own_is_put_back(kind, name, kept):
    expected = list(passes(kind, 0))
    with numpys(getattr(np.random, name)(3)) as bits:
        np.random.standard_normal(2 + kept)
        with unmoved():
            assert list(passes(kind, 0)) == expected
            assert np.random.get_bit_generator() is bits
            with StatefulDataset(seed=1).seeded(4):
                draw()
            assert np.random.get_bit_generator() is bits
            loader = passes("sampled", 0, sampler=RandomSampler(range(N)))
            next(iter(loader))
            assert np.random.get_bit_generator() is bits


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", BIT_GENERATORS)
def test_a_bit_generator_of_the_users_own_changes_no_worker(workers, name):
    expected = list(untouched(0))
    with numpys(getattr(np.random, name)(3)):
        np.random.standard_normal(5)
        assert list(untouched(workers)) == expected


class Swapping(Keyed):
    """Leaves another bit generator in the place of NumPy's global one."""

    def __getitem__(self, index):
        np.random.set_bit_generator(np.random.PCG64(index))
        return super().__getitem__(index)


def test_a_bit_generator_that_a_dataset_leaves_behind_goes_with_its_batch():
    expected = list(passes("ordered", 0))
    before = np.random.get_bit_generator()
    with unmoved():
        list(passes("ordered", 0, Swapping(N)))
        assert np.random.get_bit_generator() is before
        assert list(passes("ordered", 0)) == expected


# What a batch is keyed with.


class Untouched:
    """A dataset that nobody changed: it draws from the global RNGs, and knows no key."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, *draw()


def mixing(samples):
    return samples, draw()


def untouched(workers, batch_size=BATCH, shuffle=True, **options):
    return StatefulDataLoader(
        Untouched(),
        batch_size,
        shuffle,
        num_workers=workers,
        collate_fn=mixing,
        **{"seed": 3} | options,
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_untouched_dataset_is_the_same_for_any_number_of_workers(workers, shuffle):
    alone, shared = untouched(0, shuffle=shuffle), untouched(workers, shuffle=shuffle)
    for _ in range(2):
        assert list(shared) == list(alone)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (2, 0), (1, 2)])
def test_an_untouched_dataset_resumes_exactly(before, after):
    whole = untouched(0)
    whole.set_epoch(2)
    expected = list(whole)
    for step in range(1, len(expected)):
        first = untouched(before)
        first.set_epoch(2)
        head = [batch for _, batch in zip(range(step), first, strict=False)]
        resumed = untouched(after)
        resumed.load_state_dict(first.state_dict())
        assert head + list(resumed) == expected


def test_no_two_batches_share_a_draw():
    values = []
    for seed in (0, 1):
        loader = untouched(0, seed=seed)
        for _ in range(4):
            for samples, mixed in loader:
                for _, *drawn in samples:
                    values += drawn
                values += mixed
    assert len(values) == 2 * 4 * (N + 5) * 6
    assert len(set(values)) == len(values)


def test_a_batch_is_keyed_by_the_position_of_its_first_sample():
    four, two = untouched(0, 4), untouched(0, 2)
    for cursor in range(0, N, 3):
        samples, _ = four.replay(epoch=1, cursor=cursor)
        others, _ = two.replay(epoch=1, cursor=cursor)
        assert samples[:2] == others
        alone, _ = untouched(0, 1).replay(epoch=1, cursor=cursor + 1)
        assert alone[0][0] == samples[1][0]
        assert alone[0] != samples[1]


def test_ranks_share_no_draw():
    values = []
    for rank in range(3):
        for samples, mixed in untouched(0, 3, rank=rank, world_size=3):
            values += [value for sample in samples for value in sample[1:]] + list(mixed)
    assert len(set(values)) == len(values)


def test_no_word_keys_two_of_the_global_rngs():
    keys = _rng.global_keys(3, 1, range(0, 20_000, 4), "batch")
    for key in keys:
        words = np.frombuffer(key, dtype="<u4")
        assert len(words) == 10  # four for python, four for NumPy, two for torch
        assert len(set(words.tolist())) == 10


@pytest.mark.parametrize("kept", [0, 1])
def test_another_layout_of_numpys_generator_changes_nothing(monkeypatch, kept):
    # A NumPy that lays its words out otherwise is met by its public functions, which are slow.
    expected = list(untouched(0))
    monkeypatch.setattr(_rng, "_TWISTER_IS_KNOWN", False)
    np.random.standard_normal(2 + kept)
    with unmoved():
        assert list(untouched(0)) == expected


def test_none_of_the_three_is_seeded_with_anothers_words():
    # All three are Mersenne Twisters, so equal seeds would give equal draws.
    for index in range(100):
        with StatefulDataset(seed=3).seeded(index):
            python, numpys_own = random.getstate()[1][:624], np.random.get_state()[1].tolist()
            seed = torch.initial_seed()
        assert list(python) != numpys_own
        for guess in (seed, seed % 2**32, seed >> 32):
            words = [guess % 2**32] if guess < 2**32 else [guess % 2**32, guess >> 32]
            assert random.Random(guess).getstate()[1][:624] != python
            assert np.random.RandomState(words).get_state()[1].tolist() != numpys_own
            assert np.random.RandomState(words[0]).get_state()[1].tolist() != numpys_own


def test_global_keys_of_a_batch_are_those_made_alone():
    positions = [0, 1, 5, 2**32 - 1]
    for position in positions:
        together = _rng.global_keys(2**70, 7, range(position, position + 1), "batch")
        assert together == [_rng.global_key(2**70, 7, position, None, "batch")]


# `seeded`.


def keyed(index=5, stream=None, seed=1, epoch=2):
    dataset = StatefulDataset(seed=seed)
    dataset.set_epoch(epoch)
    return dataset.seeded(index, stream)


def drawn_in(context):
    with context:
        return [draw() for _ in range(2)]


@whatever_is_kept
def test_inside_they_are_keyed_and_outside_untouched():
    with unmoved():
        first = drawn_in(keyed())
    draw()
    with unmoved():
        assert drawn_in(keyed()) == first
    for other in (
        keyed(6),
        keyed("5"),
        keyed(5, "crop"),
        keyed(5, ""),
        keyed(seed=2),
        keyed(epoch=3),
        keyed(5, seed=2, epoch=1),
    ):
        different = drawn_in(other)
        assert all(
            a != b
            for one, two in zip(first, different, strict=True)
            for a, b in zip(one, two, strict=True)
        )


def test_each_of_the_three_is_keyed_whatever_it_kept_back():
    fresh = drawn_in(keyed())
    for step in (lambda: random.gauss(0, 1), np.random.randn, lambda: torch.randn(())):
        step()
        assert drawn_in(keyed()) == fresh


def test_nothing_is_keyed_before_entering():
    with unmoved():
        context = keyed()
    draw()
    with unmoved():
        drawn_in(context)


@whatever_is_kept
def test_it_nests():
    inner = drawn_in(keyed(6))
    with keyed():
        head = draw()
        before = here()
        with keyed(6):
            assert [draw() for _ in range(2)] == inner
        assert here() == before
        with keyed():
            assert draw() == head
        tail = draw()
    assert [head, tail] == drawn_in(keyed())


@whatever_is_kept
def test_it_puts_back_after_an_exception():
    for error in (KeyError, KeyboardInterrupt, GeneratorExit):
        with unmoved(), pytest.raises(error), keyed():
            draw()
            raise error
    with unmoved(), pytest.raises(KeyError), keyed(), keyed(6):
        draw()
        raise KeyError
    with unmoved():
        drawn_in(keyed())


class Inside(Mapped):
    """Draws of the batch, of the sample, and of the batch again."""

    def __init__(self, inside):
        super().__init__(N, seed=3)
        self.inside = inside

    def __getitem__(self, index):
        head = draw()
        middle = drawn_in(self.seeded(index)) if self.inside else None
        return index, head, middle, draw()


@pytest.mark.parametrize("workers", [0, 2])
def test_inside_a_batch_the_batchs_own_draws_go_on(workers):
    dataset = Inside(True)
    without = flat(passes("ordered", 0, Inside(False)))
    with unmoved():
        samples = flat(passes("ordered", workers, dataset))
    for (index, head, middle, tail), other in zip(samples, without, strict=True):
        assert (index, head, None, tail) == other
        assert middle == drawn_in(dataset.seeded(index))


def test_a_bit_generator_left_behind_inside_is_gone_outside():
    expected = drawn_in(keyed())
    before = np.random.get_bit_generator()
    with unmoved(), keyed():
        np.random.set_bit_generator(np.random.PCG64(0))
    assert np.random.get_bit_generator() is before
    with unmoved():
        assert drawn_in(keyed()) == expected


@contextlib.contextmanager
def another_thread(context):
    """Another thread that stays inside a context meanwhile."""
    entered, leave = threading.Event(), threading.Event()

    def stay():
        with context:
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert entered.wait(60)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_a_second_thread_is_refused_while_one_is_inside():
    alone = drawn_in(keyed())
    with unmoved():
        with another_thread(keyed(6)):
            with pytest.raises(RuntimeError, match=r"another thread.*rng\(index\)"), keyed():
                pytest.fail("two threads were inside at once")
            assert StatefulDataset(seed=1).rng(3).random() > 0
        assert drawn_in(keyed()) == alone


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_worker_forked_meanwhile_is_not_held_up():
    expected = list(passes("ordered", 0, Inside(True)))
    with another_thread(keyed(6)):
        loader = passes("ordered", 2, Inside(True), multiprocessing_context="fork", timeout=60)
        assert list(loader) == expected


# The process's own state.


def through_torch(state, **options):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True, **options)


def untouched_state(state):
    return state


def to_cpu(state):
    return through_torch(state, map_location="cpu")


carried = pytest.mark.parametrize("carry", [untouched_state, through_torch, to_cpu])


@carried
@whatever_is_kept
def test_the_process_goes_on_where_it_was_saved(carry):
    with unmoved():
        saved = rng_state_dict()
    before = here()
    expected = [draw() for _ in range(3)]
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()
    state = carry(saved)
    for _ in range(2):  # a state is not used up
        load_rng_state_dict(state)
        assert here() == before
        assert [draw() for _ in range(3)] == expected


def test_a_saved_state_does_not_move_with_the_process():
    saved = rng_state_dict()
    copy = through_torch(saved)
    draw()
    assert plain(saved) == plain(copy)


@carried
@pytest.mark.parametrize("name", BIT_GENERATORS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_bit_generator_of_the_users_own_is_saved(name, kept, carry):
    with numpys(getattr(np.random, name)(3)):
        np.random.randint(2**8, dtype=np.uint8)
        np.random.standard_normal(2 + kept)
        saved = carry(rng_state_dict())
        before = here()
        expected = [draw() for _ in range(3)]
    with numpys(np.random.MT19937(4)):
        load_rng_state_dict(saved)
        assert here() == before
        assert [draw() for _ in range(3)] == expected


def test_the_three_are_saved_beside_the_accelerators():
    assert list(rng_state_dict()) == ["python", "numpy", "torch", "accelerators"]


@pytest.mark.parametrize("key", ["python", "numpy", "torch", "accelerators"])
def test_a_missing_part_is_named(key):
    state = rng_state_dict()
    del state[key]
    with unmoved(), pytest.raises(ValueError, match=f"missing: .*'{key}'"):
        load_rng_state_dict(state)


@pytest.mark.parametrize("state", [None, 5, "python", [], [("python", 0)], {"python"}])
def test_what_is_no_mapping_is_no_state(state):
    with unmoved(), pytest.raises(TypeError, match="state must be a mapping"):
        load_rng_state_dict(state)


def replaced(state, path, value):
    """A copy of nested dicts and tuples with another value in one place."""
    head, *rest = path
    value = replaced(state[head], rest, value) if rest else value
    if isinstance(state, tuple):
        return (*state[:head], value, *state[head + 1 :])
    return state | {head: value}


def without(state, path):
    head, *rest = path
    if rest:
        return state | {head: without(state[head], rest)}
    return {name: value for name, value in state.items() if name != head}


MALFORMED = [
    *[((key,), value) for key in ("python", "numpy", "torch") for value in (None, 5, "x", [], {})],
    (("accelerators",), None),
    (("accelerators",), 5),
    (("accelerators",), "cuda"),
    (("accelerators",), []),
    (("accelerators",), {"cuda": 3}),
    (("accelerators",), {"cuda": None}),
    (("accelerators",), {"cuda": ["x"]}),
    (("python",), ()),
    (("python", 0), 99),
    (("python", 1), ()),
    (("python", 1), "x"),
    (("python", 1), (1,) * 624),
    (("python", 1), (-1,) * 624 + (1,)),
    (("python", 1), (2**40,) * 624 + (1,)),
    (("python", 1), (1.5,) * 624 + (1,)),
    (("python", 1, 624), 700),
    (("python", 1, 624), -1),
    (("python", 2), "x"),
    (("python", 2), [1.0]),
    (("numpy", "bit_generator"), None),
    (("numpy", "bit_generator"), "Twister"),
    (("numpy", "bit_generator"), "PCG64"),
    # Names of what is in np.random, and no bit generator: these draw, or seed, when called.
    (("numpy", "bit_generator"), "rand"),
    (("numpy", "bit_generator"), "seed"),
    (("numpy", "bit_generator"), "RandomState"),
    (("numpy", "bit_generator"), "BitGenerator"),
    (("numpy", "state"), None),
    (("numpy", "state"), {}),
    (("numpy", "state", "key"), None),
    (("numpy", "state", "key"), 5),
    (("numpy", "state", "key"), torch.zeros(10, dtype=torch.int64)),
    (("numpy", "state", "key"), torch.zeros(625, dtype=torch.int64)),
    (("numpy", "state", "key"), torch.zeros(624, 2, dtype=torch.int64)),
    (("numpy", "state", "key"), torch.full((624,), -1)),
    (("numpy", "state", "key"), torch.full((624,), 2**40)),
    (("numpy", "state", "key"), torch.full((624,), 0.5)),
    (("numpy", "state", "pos"), None),
    (("numpy", "state", "pos"), "1"),
    (("numpy", "state", "pos"), 1.5),
    # The generator reads its words without asking: this one reads beyond them.
    (("numpy", "state", "pos"), 10**6),
    (("numpy", "state", "pos"), -1),
    (("numpy", "has_gauss"), None),
    (("numpy", "has_gauss"), "x"),
    (("numpy", "gauss"), None),
    (("numpy", "gauss"), "x"),
    (("torch",), torch.zeros(5056, dtype=torch.uint8)),
    (("torch",), torch.zeros(7, dtype=torch.uint8)),
    (("torch",), torch.zeros(5056)),
    (("torch",), torch.tensor(0)),
]


@pytest.mark.parametrize(("path", "value"), MALFORMED)
def test_a_malformed_state_changes_nothing(path, value):
    state = replaced(rng_state_dict(), path, value)
    draw()
    with put_back(), unmoved(), pytest.raises(ValueError, match="state"):
        load_rng_state_dict(state)


@pytest.mark.parametrize(
    "path",
    [
        ("numpy", "bit_generator"),
        ("numpy", "state"),
        ("numpy", "has_gauss"),
        ("numpy", "gauss"),
        ("numpy", "state", "key"),
        ("numpy", "state", "pos"),
    ],
)
def test_a_state_without_a_part_of_numpys_changes_nothing(path):
    state = without(rng_state_dict(), path)
    draw()
    with put_back(), unmoved(), pytest.raises(ValueError, match="state"):
        load_rng_state_dict(state)


@pytest.mark.parametrize("place", [-1, 5, 10**6])
def test_a_philox_that_would_read_beyond_its_buffer_changes_nothing(place):
    with numpys(np.random.Philox(3)):
        state = replaced(rng_state_dict(), ("numpy", "buffer_pos"), place)
        draw()
        with put_back(), unmoved(), pytest.raises(ValueError, match="state"):
            load_rng_state_dict(state)


junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.integers(), max_size=3),
    st.tuples(st.integers(), st.integers(), st.none()),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.integers(0, 630).map(lambda n: torch.zeros(n, dtype=torch.int64)),
    st.integers(0, 6000).map(lambda n: torch.zeros(n, dtype=torch.uint8)),
)
PATHS = sorted({path for path, _ in MALFORMED}, key=str)


def test_any_state_is_restored_to_the_bit_or_refused_without_a_trace():
    good = rng_state_dict()

    @settings(deadline=None, max_examples=1000)
    @given(st.sampled_from(PATHS), junk)
    def load(path, value):
        draw()
        before = here()
        state = replaced(good, path, value)
        try:
            load_rng_state_dict(state)
        except ValueError:
            assert here() == before
        else:
            assert plain(rng_state_dict()) == plain(state)
            load_rng_state_dict(good)

    with put_back():
        load()


# Accelerators, played by a module with as many devices as asked for.


def accelerator(devices):
    """Like ``torch.cuda``: its states are what was set last."""
    states = [torch.full((16,), k, dtype=torch.uint8) for k in range(devices)]

    def set_rng_state(state, device=0):
        if state.dtype != torch.uint8 or state.shape != (16,):
            raise RuntimeError("RNG state is wrong size")
        states[device] = state.clone()

    return types.SimpleNamespace(
        states=states,
        is_available=lambda: devices > 0,
        get_rng_state_all=lambda: [state.clone() for state in states],
        get_rng_state=lambda device=0: states[device].clone(),
        set_rng_state=set_rng_state,
    )


def lone_accelerator():
    """Like ``torch.mps``: one device, and no function for all."""
    module = accelerator(1)
    del module.get_rng_state_all
    module.set_rng_state = lambda state, set_state=module.set_rng_state: set_state(state)
    return module


@pytest.fixture
def machine(monkeypatch):
    """Puts accelerators into torch, in the place of those that are there."""

    def build(**modules):
        for name in ("cuda", "xpu", "mps"):
            monkeypatch.setattr(torch, name, modules.get(name) or accelerator(0))
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in modules)

    return build


def values(module):
    return [int(state[0]) for state in module.states]


@carried
def test_every_accelerator_is_restored(machine, carry):
    cuda, mps = accelerator(3), lone_accelerator()
    machine(cuda=cuda, mps=mps)
    saved = carry(rng_state_dict())
    assert {name: len(states) for name, states in saved["accelerators"].items()} == {
        "cuda": 3,
        "mps": 1,
    }
    for module in (cuda, mps):
        module.states[:] = [state + 50 for state in module.states]
    load_rng_state_dict(saved)
    assert (values(cuda), values(mps)) == ([0, 1, 2], [0])


def test_a_machine_without_accelerators_saves_none(machine):
    machine()
    assert rng_state_dict()["accelerators"] == {}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"cuda": 2}, {"cuda": 3}, {"cuda": [0, 1, 52]}),
        ({"cuda": 3}, {"cuda": 2}, {"cuda": [0, 1]}),
        ({"cuda": 2}, {}, {}),
        ({}, {"cuda": 2}, {"cuda": [50, 51]}),
        ({"cuda": 2}, {"xpu": 2}, {"xpu": [50, 51]}),
        ({"cuda": 1, "xpu": 1}, {"cuda": 1}, {"cuda": [0]}),
    ],
)
def test_other_accelerators_are_refused_or_warned_of(machine, before, after, expected):
    machine(**{name: accelerator(count) for name, count in before.items()})
    saved = rng_state_dict()
    process = here()
    draw()
    modules = {name: accelerator(count) for name, count in after.items()}
    for module in modules.values():
        module.states[:] = [state + 50 for state in module.states]
    untouched = {name: values(module) for name, module in modules.items()}
    machine(**modules)

    with unmoved(), pytest.raises(ValueError, match=r"accelerators.*strict=False") as caught:
        load_rng_state_dict(saved)
    assert str(before) in str(caught.value)
    assert str(after) in str(caught.value)
    assert {name: values(module) for name, module in modules.items()} == untouched

    with pytest.warns(UserWarning, match="accelerators") as warned:
        load_rng_state_dict(saved, strict=False)
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert {name: values(module) for name, module in modules.items()} == expected
    assert here() == process


@pytest.mark.parametrize(
    "state",
    [torch.zeros(7, dtype=torch.uint8), torch.zeros(16), None, "x"],
    ids=["short", "floats", "none", "text"],
)
def test_a_malformed_accelerator_state_changes_nothing(machine, state):
    cuda = accelerator(2)
    machine(cuda=cuda)
    saved = rng_state_dict()
    saved["accelerators"]["cuda"][1] = state
    cuda.states[:] = [state + 50 for state in cuda.states]
    draw()
    with put_back(), unmoved(), pytest.raises(ValueError, match="state"):
        load_rng_state_dict(saved)
    assert values(cuda) == [50, 51]
