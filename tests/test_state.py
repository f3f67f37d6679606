"""The saved state: what it is, what is taken for one, and what is refused without a trace."""

import collections
import io
import json
import types
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Keyed, KeyedStream, Plain
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from seedcursor import (
    KeyedPermutation,
    StatefulBatchSampler,
    StatefulDataLoader,
    StatefulDataset,
    StatefulIterableDataset,
)

N, BATCH, SEED = 1000, 4, 2**70 + 3
KEYS = ["version", "epoch", "cursor", "seed", "length", "shuffle"]
KINDS = ["loader", "ordered", "stream", "sampled", "batches"]


class Sized(KeyedStream):
    """A stream that knows its length."""

    def __len__(self):
        return self.n


def build(kind, n=N):
    if kind == "batches":
        return StatefulBatchSampler(n, BATCH, seed=SEED)
    if kind == "stream":
        return StatefulDataLoader(Sized(n, seed=SEED), BATCH, collate_fn=list)
    options = {"shuffle": kind == "loader"}
    if kind == "sampled":
        options = {"sampler": SequentialSampler(range(n))}
    return StatefulDataLoader(Keyed(n, seed=SEED), BATCH, collate_fn=list, **options)


every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_a_state_is_six_plain_values(kind):
    state = build(kind).state_dict()
    assert list(state) == KEYS
    # What a sampler of the user's own does is not known.
    shuffled = None if kind == "sampled" else kind in ("loader", "batches")
    assert list(state.values()) == [1, 0, 0, SEED, N, shuffled]
    assert [type(value) for value in state.values()] == [int] * 5 + [type(shuffled)]


def test_an_unknown_length_is_none():
    loader = StatefulDataLoader(KeyedStream(N), BATCH)
    assert loader.state_dict()["length"] is None
    loader.load_state_dict(loader.state_dict() | {"epoch": 3, "cursor": 10**12})
    assert loader.cursor == 10**12


class Endless:
    def __len__(self):
        return 2**63 - 1

    def __getitem__(self, index):
        return index


@pytest.mark.parametrize("build", [StatefulBatchSampler, StatefulDataLoader])
def test_the_longest_state_is_under_200_bytes(build):
    holder = build(Endless(), 4, shuffle=False, seed=2**128 - 1)
    state = {"epoch": 2**32 - 1, "cursor": 2**63 - 1}
    holder.load_state_dict(state)
    saved = holder.state_dict()
    assert saved == state | {
        "version": 1,
        "seed": 2**128 - 1,
        "length": 2**63 - 1,
        "shuffle": False,
    }
    assert len(json.dumps(saved)) < 200


@every_kind
@pytest.mark.parametrize("as_seen", [np.int64, np.array, torch.tensor, np.uint16])
def test_other_integers_are_stored_as_plain_ones(kind, as_seen):
    holder = build(kind)
    holder.load_state_dict({"epoch": as_seen(3), "cursor": as_seen(8), "length": as_seen(N)})
    state = holder.state_dict()
    assert (state["epoch"], state["cursor"]) == (3, 8)
    assert {type(value) for value in state.values()} <= {int, bool, type(None)}


def test_a_seed_given_as_another_integer_is_stored_as_a_plain_one():
    for seed in (np.int64(7), torch.tensor(7)):
        for holder in (
            StatefulDataLoader(range(5), seed=seed),
            StatefulBatchSampler(5, 2, seed=seed),
        ):
            assert holder.state_dict()["seed"] == 7
            assert type(holder.state_dict()["seed"]) is int


@every_kind
def test_saving_changes_nothing(kind):
    holder, twin = build(kind), build(kind)
    seen = []
    for batch in holder:
        assert holder.state_dict() == holder.state_dict()
        seen.append(batch)
        holder.state_dict()["cursor"] = 77
    assert seen == list(twin)
    assert holder.state_dict() == twin.state_dict()


@every_kind
def test_saving_changes_nothing_that_comes_later(kind):
    holder = build(kind)
    holder.load_state_dict({"epoch": 2, "cursor": 8})
    holder.state_dict()
    holder.set_epoch(2)  # keeps a loaded cursor
    assert (holder.epoch, holder.cursor) == (2, 8)
    next(iter(holder))
    holder.state_dict()
    iter(holder)  # the pass before was left early
    assert (holder.epoch, holder.cursor) == (3, 0)


@every_kind
def test_the_state_is_the_position(kind):
    holder = build(kind, 20)
    for epoch in range(2):
        batches = iter(holder)
        for step in range(6):
            # Nobody tells a batch sampler what was delivered; its position moves at the end alone.
            cursor = 0 if kind == "batches" else min(step * BATCH, 20)
            state = holder.state_dict()
            assert (state["epoch"], state["cursor"]) == (epoch, cursor)
            assert (holder.epoch, holder.cursor) == (epoch, cursor)
            next(batches, None)


epochs = st.sampled_from([0, 1, 2**32 - 1]) | st.integers(0, 2**32 - 1)


@every_kind
def test_what_is_loaded_is_what_is_saved(kind):
    holder = build(kind)
    used = build(kind)
    next(iter(used))

    @settings(deadline=None, max_examples=100)
    @given(epochs, st.sampled_from([0, N]) | st.integers(0, N))
    def check(epoch, cursor):
        state = holder.state_dict() | {"epoch": epoch, "cursor": cursor}
        for target in (holder, used):
            target.load_state_dict(state)
            assert target.state_dict() == state
            assert (target.epoch, target.cursor) == (epoch, cursor)
            iter(target)
            assert target.state_dict() == state

    check()


def rest(kind, state):
    holder = build(kind)
    holder.load_state_dict(state)
    return list(holder)


@every_kind
def test_epoch_and_cursor_are_enough(kind):
    whole = build(kind)
    whole.set_epoch(2)
    expected = list(whole)[3:]
    assert rest(kind, {"epoch": 2, "cursor": 3 * BATCH}) == expected
    full = build(kind).state_dict() | {"epoch": 2, "cursor": 3 * BATCH}
    assert rest(kind, full) == expected


def through_json(state):
    return json.loads(json.dumps(state))


def through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def as_mapping(state):
    return types.MappingProxyType(state)


def as_user_dict(state):
    return collections.UserDict(state)


def as_numpy(state):
    small = {name: np.int64(state[name]) for name in ("version", "epoch", "cursor", "length")}
    return state | small


def as_tensors(state):
    return {name: torch.tensor(value) for name, value in state.items() if name in KEYS[:3]}


def sorted_by_key(state):
    return dict(sorted(state.items()))


@every_kind
@pytest.mark.parametrize(
    "carry",
    [
        through_json,
        through_torch,
        as_mapping,
        as_user_dict,
        as_numpy,
        as_tensors,
        sorted_by_key,
    ],
)
def test_a_state_survives_the_way(kind, carry):
    full = build(kind)
    full.set_epoch(3)
    expected = list(full)[7:]
    first = build(kind)
    first.load_state_dict({"epoch": 3, "cursor": 7 * BATCH})
    state = first.state_dict()
    holder = build(kind)
    holder.load_state_dict(carry(state))
    assert holder.state_dict() == state
    assert list(holder) == expected


def test_the_longest_state_survives_the_way():
    sampler = StatefulBatchSampler(2**63 - 1, 4, seed=2**128 - 1)
    sampler.load_state_dict({"epoch": 2**32 - 1, "cursor": 2**63 - 1})
    state = sampler.state_dict()
    assert through_json(state) == through_torch(state) == state


OTHERS = [
    ("seed", SEED + 1, SEED),
    ("seed", None, SEED),
    ("seed", float(SEED), SEED),
    ("seed", str(SEED), SEED),
    ("length", N + 1, N),
    ("length", None, N),
    ("length", float(N), N),
    ("shuffle", "yes", None),
    ("shuffle", 3, None),
    ("version", 2, 1),
    ("version", 0, 1),
    ("version", "1", 1),
    ("version", True, 1),
    ("version", float("nan"), 1),
    ("colour", "red", "no such setting"),
]


@every_kind
@pytest.mark.parametrize(("key", "saved", "here"), OTHERS)
def test_another_setting_is_refused_with_both_sides(kind, key, saved, here):
    holder = build(kind)
    before = holder.state_dict()
    here = before[key] if here is None else here
    state = before | {"epoch": 2, "cursor": 8, key: saved}
    with pytest.raises(ValueError, match="strict=False") as caught:
        holder.load_state_dict(state)
    message = str(caught.value)
    assert f"{key}: saved {saved!r}" in message
    assert f"here {here!r}" in message
    assert holder.state_dict() == before

    with pytest.warns(UserWarning, match=key) as warned:
        holder.load_state_dict(state, strict=False)
    assert len(warned) == 1
    assert f"{key}: saved {saved!r}" in str(warned[0].message)
    assert f"here {here!r}" in str(warned[0].message)
    assert warned[0].filename == __file__
    assert holder.state_dict() == before | {"epoch": 2, "cursor": 8}


@every_kind
def test_the_other_shuffle_is_refused(kind):
    holder = build(kind)
    state = holder.state_dict()
    state["shuffle"] = not state["shuffle"]
    with pytest.raises(ValueError, match=f"shuffle: saved {state['shuffle']}, here"):
        holder.load_state_dict(state)


def test_a_length_saved_by_another_is_refused_where_none_is_known():
    loader = StatefulDataLoader(KeyedStream(N), BATCH)
    with pytest.raises(ValueError, match="length: saved 1000, here None"):
        loader.load_state_dict(loader.state_dict() | {"length": N})


def test_many_differences_are_one_warning():
    holder = build("loader")
    state = holder.state_dict() | {"epoch": 2, "seed": 5, "length": 7, "shuffle": None, "x": 1}
    with pytest.warns(UserWarning, match="other settings") as warned:
        holder.load_state_dict(state, strict=False)
    assert len(warned) == 1
    for key in ("seed", "length", "shuffle", "x"):
        assert f"{key}: saved" in str(warned[0].message)


def test_without_a_difference_nothing_is_said():
    holder = build("loader")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holder.load_state_dict(holder.state_dict(), strict=False)


@every_kind
def test_a_position_beyond_the_end_is_refused_whatever_strict_says(kind):
    holder = build(kind)
    before = holder.state_dict()
    if kind == "stream":  # whose length may be that of the samples that are left
        holder.load_state_dict({"epoch": 0, "cursor": N + 1})
        assert holder.cursor == N + 1
        return
    for strict in (True, False):
        with pytest.raises(ValueError, match=r"cursor must be at most the length 1000 .*1001"):
            holder.load_state_dict({"epoch": 0, "cursor": N + 1}, strict=strict)
    assert holder.state_dict() == before


@every_kind
def test_a_warning_that_is_an_error_changes_nothing(kind):
    holder = build(kind)
    before = holder.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="seed"):
            holder.load_state_dict({"epoch": 3, "cursor": 4, "seed": 1}, strict=False)
    assert holder.state_dict() == before


# Values that no key may have; integers and booleans are dealt with apart.
junk = st.one_of(
    st.none(),
    st.floats(),
    st.sampled_from([float("nan"), float("inf"), 0.0, 1.0, 4.0]),
    st.text(max_size=5),
    st.sampled_from(["", "0", "4", "epoch"]),
    st.binary(max_size=5),
    st.complex_numbers(),
    st.lists(st.integers(0, 5), max_size=3),
    st.tuples(st.integers(0, 5)),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sets(st.integers(), max_size=2),
    st.sampled_from([torch.tensor(1.0), torch.tensor([1, 2]), np.float64(4), np.array([1, 2])]),
    st.just(object()),
)
negative = st.integers(max_value=-1)
bad_values = {
    "epoch": junk | negative | st.integers(2**32),
    "cursor": junk | negative | st.integers(2**63),
    "version": junk | negative | st.integers(2),
    "seed": junk | negative | st.integers(0, 100) | st.integers(2**128),
    "length": junk | negative | st.integers(N + 1) | st.integers(0, N - 1),
    "shuffle": junk.filter(lambda value: value is not None) | st.integers(2),
    "unknown": junk | st.integers() | st.booleans(),
    31337: st.integers(),
}


@st.composite
def malformed(draw, good, kind):
    """A state with some faults, and the keys that are at fault."""
    state = dict(good) | {
        "epoch": draw(epochs),
        "cursor": draw(st.integers(0, N)),
    }
    for optional in ("version", "seed", "length", "shuffle"):
        if draw(st.booleans()):
            del state[optional]
    # A stream's length may be that of the samples that are left.
    beyond = st.nothing() if kind == "stream" else st.integers(N + 1)
    faults = draw(st.lists(st.sampled_from(list(bad_values)), min_size=1, max_size=3, unique=True))
    for key in faults:
        if key in ("epoch", "cursor") and draw(st.integers(0, 3)) == 0:
            del state[key]
        else:
            state[key] = draw(bad_values[key] | beyond if key == "cursor" else bad_values[key])
    return state, faults


@every_kind
def test_malformed_states_change_nothing(kind):
    # One example after the other falls on a pass that runs on, beside one that nobody disturbs.
    n = 10**6
    holder, twin = build(kind, n), build(kind, n)
    holder.set_epoch(5), twin.set_epoch(5)
    running, undisturbed = iter(holder), iter(twin)
    next(running), next(undisturbed)
    good = holder.state_dict() | {"length": N}
    small = build(kind)

    @settings(deadline=None, max_examples=1000)
    @given(malformed(good, kind))
    def refuse(case):
        state, faults = case
        before = small.state_dict()
        with pytest.raises((TypeError, ValueError)) as caught:
            small.load_state_dict(state)
        assert any(str(key) in str(caught.value) for key in faults)
        assert small.state_dict() == before

        before = holder.state_dict()
        with pytest.raises((TypeError, ValueError)):
            holder.load_state_dict(state | {"version": 99})
        assert holder.state_dict() == before
        assert next(running) == next(undisturbed)
        assert holder.state_dict() == twin.state_dict()

    refuse()
    assert next(running) == next(undisturbed)


@every_kind
def test_malformed_states_do_not_touch_a_planned_or_loaded_pass(kind):
    state = {"epoch": 2, "cursor": 8}
    expected = rest(kind, state)
    for bad in ({"epoch": 3}, {"epoch": 3, "cursor": -1}, {"epoch": 3, "cursor": 4, "seed": 0}, 7):
        holder = build(kind)
        holder.load_state_dict(state)
        planned = iter(holder)
        with pytest.raises((TypeError, ValueError)):
            holder.load_state_dict(bad)
        holder.set_epoch(2)  # keeps the cursor that was loaded before the refusal
        assert (holder.epoch, holder.cursor) == (2, 8)
        assert list(planned) == expected


@every_kind
@pytest.mark.parametrize(
    "state", [None, 5, 1.5, "epoch", b"epoch", [], [("epoch", 0), ("cursor", 0)], {"epoch"}, object]
)
def test_what_is_no_mapping_is_no_state(kind, state):
    holder = build(kind)
    before = holder.state_dict()
    with pytest.raises(TypeError, match="state must be a mapping") as caught:
        holder.load_state_dict(state)
    assert type(state).__name__ in str(caught.value)
    assert holder.state_dict() == before


@every_kind
@pytest.mark.parametrize("missing", ["epoch", "cursor"])
def test_a_missing_key_is_named(kind, missing):
    state = build(kind).state_dict()
    del state[missing]
    for bad in (state, {}, {missing.upper(): 0}):
        with pytest.raises(ValueError, match=rf"state must have .*missing: .*'{missing}'"):
            build(kind).load_state_dict(bad)


@every_kind
@pytest.mark.parametrize(
    ("key", "value", "error", "words"),
    [
        ("epoch", -1, ValueError, r"epoch must be an integer in \[0, 2\*\*32\), got -1"),
        ("epoch", 2**32, ValueError, r"epoch must be .*2\*\*32\), got 4294967296"),
        ("epoch", 1.0, TypeError, "epoch must be .*got 1.0 of type float"),
        ("epoch", "1", TypeError, "epoch must be .*got '1' of type str"),
        ("epoch", None, TypeError, "epoch must be .*got None"),
        ("cursor", -4, ValueError, r"cursor must be an integer in \[0, 2\*\*63\), got -4"),
        ("cursor", 2**63, ValueError, r"cursor must be .*got 9223372036854775808"),
        ("cursor", 4.0, TypeError, "cursor must be .*got 4.0 of type float"),
        ("cursor", [4], TypeError, r"cursor must be .*got \[4\] of type list"),
        ("cursor", float("nan"), TypeError, "cursor must be .*got nan"),
    ],
)
def test_a_bad_value_is_named_and_shown(kind, key, value, error, words):
    with pytest.raises(error, match=words):
        build(kind).load_state_dict({"epoch": 0, "cursor": 0} | {key: value})


@pytest.mark.parametrize("key", ["epoch", "cursor", "seed", "length", "version", "unknown"])
def test_a_number_too_long_to_print_is_refused_by_name(key):
    holder = build("loader")
    before = holder.state_dict()
    with pytest.raises(ValueError, match=key):
        holder.load_state_dict(before | {key: 10**5000})
    assert holder.state_dict() == before


@every_kind
@pytest.mark.parametrize(
    ("epoch", "error"), [(-1, ValueError), (2**32, ValueError), (1.0, TypeError), ("1", TypeError)]
)
def test_a_refused_set_epoch_changes_nothing(kind, epoch, error):
    holder = build(kind)
    holder.load_state_dict({"epoch": 2, "cursor": 8})
    before = holder.state_dict()
    for target in [holder] if kind in ("stream", "sampled") else [holder, holder.sampler]:
        with pytest.raises(error, match=r"^epoch must be an integer in \[0, 2\*\*32\), got"):
            target.set_epoch(epoch)
    assert holder.state_dict() == before
    assert list(holder) == rest(kind, {"epoch": 2, "cursor": 8})


# Arguments that are refused.


class Unsized:
    def __getitem__(self, index):
        return index


class Foreign(IterableDataset):
    def __iter__(self):
        return iter(range(5))


def loader(**options):
    return StatefulDataLoader(Keyed(10), **options)


def stream(**options):
    return StatefulDataLoader(KeyedStream(10), **options)


def sampled(**options):
    return StatefulDataLoader(Keyed(10), sampler=RandomSampler(range(10)), **options)


def batched(**options):
    batches = BatchSampler(SequentialSampler(range(10)), 2, False)
    return StatefulDataLoader(Keyed(10), batch_sampler=batches, **options)


def sampler(**options):
    return StatefulBatchSampler(10, **{"batch_size": 2} | options)


def dataset(**options):
    return StatefulDataset(**options)


def iterable(**options):
    return StatefulIterableDataset(**options)


def permutation(**options):
    return KeyedPermutation(**{"n": 10} | options)


INTEGERS = {
    "batch_size": (loader, stream, sampled, sampler),
    "num_workers": (loader, stream, sampled, batched),
    "seed": (loader, stream, sampled, batched, sampler, dataset, iterable, permutation),
    "epoch": (permutation,),
    "n": (permutation,),
}
OUT_OF_RANGE = {
    "batch_size": (0, -1, 2**31),
    "num_workers": (-1,),
    "seed": (-1, 2**128),
    "epoch": (-1, 2**32),
    "n": (-1, 2**63),
}
OF_ANOTHER_TYPE = (1.5, 4.0, "4", b"4", [4], float("nan"))


@pytest.mark.parametrize(
    ("build", "name", "value"),
    [
        (build, name, value)
        for name in INTEGERS
        for build in INTEGERS[name]
        for value in OUT_OF_RANGE[name]
    ],
)
def test_an_argument_out_of_range_is_named(build, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be an integer .*got {value}$"):
        build(**{name: value})


@pytest.mark.parametrize(
    ("build", "name", "value"),
    [
        (build, name, value)
        for name in INTEGERS
        for build in INTEGERS[name]
        for value in OF_ANOTHER_TYPE
    ],
)
def test_an_argument_of_another_type_is_named(build, name, value):
    with pytest.raises(TypeError, match=rf"^{name} must be an integer .*got ") as caught:
        build(**{name: value})
    assert repr(value) in str(caught.value)


every_loader = pytest.mark.parametrize("build", [loader, stream, sampled, batched, sampler])


@every_loader
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"rank": 0},
            ValueError,
            "rank and world_size go together, got rank=0 and world_size=None",
        ),
        ({"world_size": 2}, ValueError, "rank and world_size go together, got rank=None"),
        ({"rank": 2, "world_size": 2}, ValueError, r"^rank must be .*\[0, 2\), got 2"),
        ({"rank": -1, "world_size": 2}, ValueError, r"^rank must be .*\[0, 2\), got -1"),
        ({"rank": 0, "world_size": 0}, ValueError, "^world_size must be .*got 0"),
        ({"rank": 0, "world_size": -2}, ValueError, "^world_size must be .*got -2"),
        ({"rank": 0.0, "world_size": 2}, TypeError, "^rank must be .*got 0.0"),
        ({"rank": "0", "world_size": 2}, TypeError, "^rank must be .*got '0'"),
        ({"rank": 0, "world_size": 2.0}, TypeError, "^world_size must be .*got 2.0"),
        ({"rank": 0, "world_size": "2"}, TypeError, "^world_size must be .*got '2'"),
    ],
)
def test_a_bad_place_in_the_world_is_named(build, options, error, words):
    with pytest.raises(error, match=words):
        build(**options)


@pytest.mark.parametrize("build", [loader, stream, sampled, batched])
def test_batches_out_of_order_are_refused_with_the_reason(build):
    with pytest.raises(ValueError, match=r"in_order must be True.*no position to resume"):
        build(in_order=False)


def test_a_foreign_iterable_is_refused_with_what_to_write():
    with pytest.raises(
        TypeError, match=r"dataset must be .*Foreign.*StatefulIterableDataset.*records"
    ):
        StatefulDataLoader(Foreign())
    with pytest.raises(TypeError, match=r"dataset must be .*generator.*StatefulIterableDataset"):
        StatefulDataLoader(k for k in range(5))
    with pytest.raises(TypeError, match=r"dataset must be map-style.*object"):
        StatefulDataLoader(object())


def test_a_dataset_needs_a_length():
    with pytest.raises(TypeError, match="dataset must have __len__, got Unsized"):
        StatefulDataLoader(Unsized())
    with pytest.raises(TypeError, match=r"dataset_or_length must be .*Unsized"):
        StatefulBatchSampler(Unsized(), 2)
    # A sampler knows what there is.
    assert list(StatefulDataLoader(Unsized(), sampler=[2, 1], batch_size=None)) == [2, 1]


@pytest.mark.parametrize(
    ("length", "error"),
    [
        (-1, ValueError),
        (2**63, ValueError),
        (1.5, TypeError),
        (None, TypeError),
        (iter([]), TypeError),
    ],
)
def test_a_bad_length_is_named(length, error):
    with pytest.raises(
        error, match=r"^dataset_or_length must be an integer in \[0, 2\*\*63\), got"
    ):
        StatefulBatchSampler(length, 2)


@pytest.mark.parametrize(
    ("build", "options", "words"),
    [
        (stream, {"shuffle": True}, "shuffle"),
        (sampled, {"shuffle": True}, "sampler.*shuffle"),
        (stream, {"sampler": [1]}, "sampler"),
        (stream, {"batch_sampler": [[1]]}, "batch_sampler"),
        (batched, {"batch_size": 2}, "batch_sampler.*batch_size"),
        (batched, {"shuffle": True}, "batch_sampler.*shuffle"),
        (batched, {"drop_last": True}, "batch_sampler.*drop_last"),
        (batched, {"sampler": [1]}, "sampler"),
        (loader, {"batch_size": None, "drop_last": True}, "batch_size=None.*drop_last"),
        (loader, {"timeout": -1}, "timeout"),
        (loader, {"prefetch_factor": 2}, "prefetch_factor"),
        (loader, {"persistent_workers": True}, "persistent_workers"),
        (loader, {"num_workers": 1, "multiprocessing_context": "no"}, "multiprocessing_context"),
    ],
)
def test_arguments_that_exclude_each_other_are_named(build, options, words):
    with pytest.raises(ValueError, match=words):
        build(**options)


@pytest.mark.parametrize("options", [{"seed": 1}, {"rank": 0, "world_size": 1}])
def test_what_belongs_to_the_batch_sampler_is_refused_beside_it(options):
    with pytest.raises(ValueError, match=r"belong to the StatefulBatchSampler here, got .*=1"):
        StatefulDataLoader(range(10), batch_sampler=StatefulBatchSampler(10, 2), **options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"epoch": -1, "cursor": 0}, ValueError, "^epoch must be .*got -1"),
        ({"epoch": 0.0, "cursor": 0}, TypeError, "^epoch must be .*got 0.0"),
        ({"epoch": 0, "cursor": -1}, ValueError, "^cursor must be .*got -1"),
        ({"epoch": 0, "cursor": 2**63}, ValueError, "^cursor must be .*got 9223372036854775808"),
        ({"epoch": 0, "cursor": "4"}, TypeError, "^cursor must be .*got '4'"),
        ({"epoch": 0, "cursor": N}, ValueError, "no batch starts at epoch=0, cursor=1000"),
    ],
)
def test_a_batch_that_cannot_be_replayed(options, error, words):
    holder = build("loader")
    with pytest.raises(error, match=words):
        holder.replay(**options)
    assert (holder.epoch, holder.cursor) == (0, 0)


@pytest.mark.parametrize("base", [StatefulIterableDataset, KeyedStream])
def test_overriding_iteration_is_refused_when_the_class_is_made(base):
    with pytest.raises(TypeError, match=r"Mine overrides __iter__.*Write records\(start\)"):
        type("Mine", (base,), {"__iter__": lambda self: iter([])})


def test_nothing_is_loaded_for_a_refusal():
    plain = Plain(10)
    loader = StatefulDataLoader(plain, 2)
    with pytest.raises(ValueError, match="seed"):
        loader.load_state_dict({"epoch": 0, "cursor": 4, "seed": 9})
    assert plain.loaded == []
