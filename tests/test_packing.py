"""Packing: nothing is lost, rows are full, and each batch is found again."""

import json
import pickle
import sys

import numpy as np
import pytest
import torch
from children import die, run
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import Keyed, flat
from torch.utils.data import DataLoader

from seedcursor import (
    PackedBatchSampler,
    Packer,
    StatefulDataLoader,
    StatefulDataset,
    StatefulIterableDataset,
)

N, LENGTH = 60, 16
SHORT = np.random.default_rng(0).integers(0, LENGTH + 1, N)
LONG = np.random.default_rng(1).integers(0, 3 * LENGTH + 1, N)
KINDS = {"short": SHORT, "long": LONG}
BOUNDS = {"batch_size": 3, "window": 25}
kinds = pytest.mark.parametrize("lengths", KINDS.values(), ids=KINDS)


def tokens_of(index, length, rng):
    """Tokens that no other record has, and that its draws decide."""
    return (index << 40) + rng.integers(2**40, size=length)


class Documents(StatefulDataset):
    """Record i is of ``lengths[i]`` tokens, others in every epoch."""

    def __init__(self, lengths):
        super().__init__(seed=5)
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return tokens_of(index, self.lengths[index], self.rng(index))


class DocumentStream(StatefulIterableDataset):
    """The same, without a length."""

    def __init__(self, lengths):
        super().__init__(seed=5)
        self.lengths = lengths

    def records(self, start):
        return iter(self.lengths[start:].tolist())

    def sample(self, record, index):
        return tokens_of(index, record, self.rng(index))


def listed(batch):
    return {name: rows.tolist() for name, rows in batch.items()}


def packed(lengths, **options):
    sampler = PackedBatchSampler(lengths, LENGTH, **BOUNDS)
    collate_fn = sampler.packer(pad=-1)
    return StatefulDataLoader(
        Documents(lengths), batch_sampler=sampler, collate_fn=collate_fn, **options
    )


def indexed(lengths, sampler_seed=None, seed=3, bounds=BOUNDS, **options):
    sampler = PackedBatchSampler(lengths, LENGTH, **bounds, seed=sampler_seed)
    return StatefulDataLoader(
        Keyed(N), batch_sampler=sampler, collate_fn=list, seed=seed, **options
    )


def batches(loader):
    return [[index for index, *_ in batch] for batch in loader]


def rows_of(batch):
    """What is in each row: its pieces, in order. Whatever else a batch must be is checked."""
    tokens, documents, positions = batch["tokens"], batch["documents"], batch["positions"]
    assert tokens.shape == documents.shape == positions.shape
    assert {rows.dtype for rows in batch.values()} == {torch.int64}
    rows = []
    for row, numbers, places in zip(
        tokens.tolist(), documents.tolist(), positions.tolist(), strict=True
    ):
        counts = np.bincount(numbers, minlength=1).tolist()
        used = sum(counts[1:])
        order = [number for number, count in enumerate(counts[1:], 1) for _ in range(count)]
        assert numbers == order + [0] * counts[0]
        assert places == [k for n in counts[1:] for k in range(n)] + [0] * counts[0]
        assert set(row[used:]) <= {-1}
        ends = np.cumsum(counts[1:]).tolist()
        rows.append([tuple(row[end - n : end]) for n, end in zip(counts[1:], ends, strict=True)])
    return rows


def records_of(lengths):
    """Record k in tokens ``k * 1000 + 0, 1, 2, ...``."""
    return [list(range(1000 * k, 1000 * k + length)) for k, length in enumerate(lengths)]


def packing_of(lengths, length, **options):
    return rows_of(Packer(length, pad=-1, **options)(records_of(lengths)))


some_lengths = st.lists(st.integers(0, 25), min_size=1, max_size=50)


@settings(max_examples=150, deadline=None)
@given(some_lengths, st.integers(1, 12), st.integers(1, 30), st.data())
def test_a_batch_is_within_its_rows_and_each_token_comes_once(lengths, length, window, data):
    needed = max(1, -(-max(lengths) // length))
    batch_size = data.draw(st.integers(needed, needed + 4))
    sampler = PackedBatchSampler(lengths, length, batch_size=batch_size, window=window)
    sampler.set_epoch(data.draw(st.integers(0, 2**32 - 1)))
    epoch = list(sampler)
    assert sorted(flat(epoch)) == list(range(len(lengths)))
    packer, records, tokens, counts, begin = sampler.packer(-1), records_of(lengths), [], [], 0
    for batch in epoch:
        rows = rows_of(packer([records[k] for k in batch]))
        tokens += [token for row in rows for piece in row for token in piece]
        counts.append(len(rows))
        begin += len(batch)
        if begin % window == 0 or begin == len(lengths):
            assert max(counts) <= batch_size
            # A window's batches have its rows, as if it were packed at once.
            members = flat(epoch)[(begin - 1) // window * window : begin]
            whole = Packer(length, batch_size=batch_size)([records[k] for k in members])
            assert sum(counts) == len(whole["tokens"])
            if max(lengths) <= length:
                assert counts.count(batch_size) >= len(counts) - 1
            counts = []
    assert sorted(tokens) == sorted(flat(records))


@settings(max_examples=300, deadline=None)
@given(some_lengths, st.integers(1, 12), st.one_of(st.none(), st.integers(1, 30)), st.data())
def test_some_of_the_rows_are_found_again(lengths, length, batch_size, data):
    rows = packing_of(lengths, length, batch_size=batch_size)
    taken, grown = set(data.draw(st.sets(st.integers(0, len(rows) - 1)))), True
    while grown:  # a record comes with all its pieces, and they with all that is in their rows
        records = {piece[0] // 1000 for k in taken for piece in rows[k]}
        more = {k for k, row in enumerate(rows) if any(p[0] // 1000 in records for p in row)}
        grown, taken = more > taken, taken | more
    few = [record for k, record in enumerate(records_of(lengths)) if k in records]
    if few:
        again = rows_of(Packer(length, pad=-1, batch_size=batch_size)(few))
        assert again == [rows[k] for k in sorted(taken) if rows[k]]


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([5, 4, 3, 3, 1], [[5, 3], [4, 3, 1]]),
        ([6, 5, 2, 3], [[6, 2], [5, 3]]),  # 2 would fit the second as well
        ([4, 4, 4, 4], [[4, 4], [4, 4]]),
        ([8, 19], [[8], [3], [8], [8]]),
        ([16, 2], [[8], [2], [8]]),
        ([8, 0, 0], [[8]]),
        ([0, 0], [[]]),
    ],
)
def test_each_piece_goes_where_the_least_is_left(lengths, rows):
    assert [[len(piece) for piece in row] for row in packing_of(lengths, 8)] == rows


def test_a_split_sequence_is_whole_in_its_pieces():
    record = list(range(1, 20))
    batch = Packer(8)([record, [90, 91]])
    assert batch["tokens"].tolist()[1:] == [record[:8], record[8:16]]
    assert batch["tokens"][0].tolist() == [*record[16:], 90, 91, 0, 0, 0]
    assert batch["documents"][0].tolist() == [1, 1, 1, 2, 2, 0, 0, 0]
    assert batch["positions"][0].tolist() == [0, 1, 2, 0, 1, 0, 0, 0]


def next_fit(lengths, length):
    rows, left = 0, 0
    for size in lengths:
        if size > left:
            rows, left = rows + 1, length
        left -= size
    return rows


@pytest.mark.parametrize(("median", "batch_size"), [(300, 8), (3000, 8), (3000, 64)])
def test_little_is_padded(median, batch_size):
    length = 2048
    rng = np.random.default_rng(2)
    lengths = rng.lognormal(np.log(median), 0.8, 4_000).astype(int).clip(1, 8 * length)
    sampler = PackedBatchSampler(lengths, length, batch_size=batch_size, window=2_000)
    packer = sampler.packer(-1)
    rows = sum(
        len(packer([np.zeros(lengths[k]).astype(int) for k in b])["tokens"]) for b in sampler
    )
    assert rows < 1.01 * lengths.sum() / length
    pieces = [length if k else n % length for n in lengths for k in range(-(-n // length))]
    assert next_fit(pieces, length) > 1.1 * rows


def test_records_rows_and_batches_are_shuffled():
    epochs = [batches(loader) for loader in [indexed(SHORT)] for _ in range(3)]
    partners = [{frozenset(batch) for batch in epoch} for epoch in epochs]
    assert len(frozenset.union(*map(frozenset, partners))) > 0.9 * sum(map(len, partners))
    lengths = np.random.default_rng(4).integers(1, 3 * LENGTH, 3_000)
    for some in (lengths, lengths % LENGTH + 1):
        epoch = list(PackedBatchSampler(some, LENGTH, batch_size=8, window=2_000))[:-50]
        longest = np.array([some[batch].max() for batch in epoch])
        # In order of packing, batches would grow shorter, and each have rows that are alike.
        assert abs(np.corrcoef(longest, np.arange(len(epoch)))[0, 1]) < 0.2
        assert longest.mean() > 0.8 * some.max()


@kinds
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_batch(lengths, num_workers):
    whole = packed(lengths)
    epochs = [[listed(batch) for batch in whole] for _ in range(3)]
    whole.set_epoch(1)
    states = [whole.state_dict(), *(whole.state_dict() for _ in whole)][:-1]
    assert len(states) == len(epochs[1]) > 8
    for k in range(0, len(states), 1 + 4 * (num_workers > 0)):
        loader = packed(lengths, num_workers=num_workers)
        loader.load_state_dict(states[k])
        assert [listed(batch) for batch in loader] == epochs[1][k:]
        assert [listed(batch) for batch in loader] == epochs[2]
        assert loader.state_dict()["length"] == N


def test_workers_may_be_spawned():
    spawned = packed(LONG, num_workers=2, multiprocessing_context="spawn")
    assert [listed(batch) for batch in spawned] == [listed(batch) for batch in packed(LONG)]


@kinds
def test_goes_on_with_other_ranks_and_within_a_batch(lengths):
    whole = flat(batches(indexed(lengths)))
    for cursor in (0, 7, 29):
        dealt = []
        for rank in range(3):
            loader = indexed(lengths, rank=rank, world_size=3, pad=False)
            loader.load_state_dict({"epoch": 0, "cursor": cursor})
            dealt.append(batches(loader))
        turns = [
            batch for step in range(len(dealt[0])) for own in dealt for batch in own[step:][:1]
        ]
        assert flat(turns) == whole[cursor:]
        state = loader.state_dict()
        assert state == state | {"epoch": 1, "cursor": 0}
    alone = indexed(lengths)
    alone.load_state_dict({"epoch": 0, "cursor": 29})
    assert batches(alone) == turns


def calls(sampler, start):
    """How many calls the first batch from a position on takes: its work, without a clock."""
    count = 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        next(sampler.batches(0, 1, start))
    finally:
        sys.setprofile(before)
    return count


def test_a_resume_packs_one_window():
    lengths = np.random.default_rng(3).integers(1, 50, 100_000)
    sampler = PackedBatchSampler(lengths, 100, batch_size=4, window=1_000)
    assert calls(sampler, 90_017) < 1.5 * calls(sampler, 0)


def stream(num_workers=0):
    return StatefulDataLoader(
        DocumentStream(LONG), 11, collate_fn=Packer(LENGTH, pad=-1), num_workers=num_workers
    )


def train(log, num_workers, dies_at=None, state=None):
    loader = stream(num_workers)
    if state is not None:
        loader.load_state_dict(state)
    with log.open("a") as file:
        for step, batch in enumerate(loader):
            print(json.dumps([listed(batch), loader.state_dict()]), file=file, flush=True)
            if step == dies_at:
                die()


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_stream_is_packed_window_by_window_killed_and_resumed(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    run(train, whole, 0)
    expected = logged(whole)
    assert len({len(batch["tokens"]) for batch, _ in expected}) > 1
    run(train, cut, 2, 2, killed=True)
    run(train, cut, 1, None, logged(cut)[-1][1])
    assert logged(cut) == expected
    after = stream()
    after.load_state_dict(expected[-1][1])
    with pytest.warns(UserWarning, match="nothing|end"):
        assert not list(after)
    for step, (_, state) in enumerate(expected[:-1], 1):
        loader = stream()
        loader.load_state_dict(state)
        assert [listed(batch) for batch in loader] == [batch for batch, _ in expected[step:]]


def test_there_is_no_length():
    for sized in (PackedBatchSampler(SHORT, LENGTH, **BOUNDS), indexed(SHORT)):
        with pytest.raises(TypeError, match="the number of batches differs from epoch to epoch"):
            len(sized)


def test_a_seed_of_its_own_comes_before_the_loaders():
    assert batches(indexed(SHORT, 3, seed=8)) == batches(indexed(SHORT))
    assert batches(indexed(SHORT, seed=8)) != batches(indexed(SHORT))


def test_a_plain_loader_has_the_same_batches():
    sampler = PackedBatchSampler(LONG, LENGTH, **BOUNDS, seed=3)
    plain = DataLoader(range(N), batch_sampler=sampler)
    ours = indexed(LONG)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        assert [batch.tolist() for batch in plain] == batches(ours)


@pytest.mark.parametrize(
    "other",
    [{"batch_size": 4}, {"window": 26}, {"length": 17}, {"lengths": LONG[::-1]}, {"seed": 8}],
)
def test_a_state_of_other_batches_is_refused(other):
    arguments = {"lengths": LONG, "length": LENGTH, **BOUNDS}
    state, loader = (
        StatefulDataLoader(Keyed(N), batch_sampler=PackedBatchSampler(**(arguments | changed)))
        for changed in ({}, other)
    )
    with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
        loader.load_state_dict(state.state_dict())
    loader.load_state_dict({"epoch": 0, "cursor": 4})


def test_what_it_costs_does_not_depend_on_the_length_of_a_row():
    sampler = PackedBatchSampler([2**39, 2**38, 2**38, 5], 2**40, batch_size=2)
    assert sorted(len(batch) for batch in sampler) == [4]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        (([1.5], 8), {}, TypeError, "lengths must be integers, one for each record, got"),
        (([], 8), {}, ValueError, "lengths must be in one dimension and not empty"),
        (([3, -1], 8), {}, ValueError, "lengths must not be negative, got -1 at index 1"),
        (([3], 0), {}, ValueError, r"length must be an integer in \[1, 2\*\*63\), got 0"),
        (([3], 2.5), {}, TypeError, "length must be an integer in"),
        (([3], 8), {"batch_size": 0}, ValueError, "batch_size must be an integer in"),
        (([3], 8), {"window": 0}, ValueError, "window must be an integer in"),
        (([3], 8), {"seed": -1}, ValueError, "seed must be an integer in"),
        (
            ([3, 17, 16], 8),
            {},
            ValueError,
            r"a record takes, got 2; record 1 has 17 tokens, 3 rows of 8: cut it, leave it out, or",
        ),
    ],
)
def test_nonsense_is_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        PackedBatchSampler(*arguments, **({"batch_size": 2} | options))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"length": 0}, ValueError, "length must be an integer in"),
        ({"length": 8, "pad": 0.5}, TypeError, "pad must be an integer in"),
        ({"length": 8, "pad": 2**63}, ValueError, "pad must be an integer in"),
        ({"length": 8, "batch_size": 0}, ValueError, "batch_size must be an integer in"),
    ],
)
def test_a_packer_of_nonsense_is_refused(options, error, words):
    with pytest.raises(error, match=words):
        Packer(**options)


SEQUENCES = [
    [1, 2, 3],
    (1, 2, 3),
    np.array([1, 2, 3], np.uint16),
    torch.tensor([1, 2, 3], dtype=torch.int32),
]


def test_it_takes_lists_arrays_and_tensors():
    packer = pickle.loads(pickle.dumps(Packer(4)))
    for sequence in SEQUENCES:
        assert packer([sequence, []])["tokens"].tolist() == [[1, 2, 3, 0]]
    empty = [[], np.array([]), torch.tensor([])]
    assert packer(empty)["tokens"].tolist() == [[0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("sample", "error", "got"),
    [
        ([1.5], TypeError, "list of float64"),
        ([True], TypeError, "list of bool"),
        ([2**63], TypeError, "list of uint64"),
        (["a"], TypeError, "list of <U1"),
        ("text", TypeError, "str for"),
        (7, TypeError, "int for"),
        ({"input_ids": [1]}, TypeError, "dict for"),
        ([[1, 2]], ValueError, "list in 2"),
        ([[1], [2, 3]], TypeError, "list"),
        (torch.zeros(2, 2, dtype=torch.int64), ValueError, "Tensor in 2"),
        (torch.zeros(2, dtype=torch.bfloat16), TypeError, "Tensor"),
    ],
)
def test_samples_that_are_no_tokens_are_refused(sample, error, got):
    with pytest.raises(error, match=rf"got {got}.*sample 1 of the batch; let the dataset"):
        Packer(8)([[1], sample])


def test_an_empty_batch_is_refused():
    with pytest.raises(ValueError, match="samples must not be empty"):
        Packer(8)([])
