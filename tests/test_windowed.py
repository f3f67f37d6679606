"""The order of a corpus: a shuffle that workers and ranks can read without each other's bytes."""

import functools
import itertools
import json

import fsspec
import numpy as np
import pytest
from corpora import (
    CHUNK_BYTES,
    CUTS,
    WRITERS,
    Airports,
    Counted,
    airports,
    indexed,
    lines,
    write_jsonl,
)

from seedcursor import (
    Mixture,
    SeededDataset,
    ShardedDataset,
    StatefulDataLoader,
    TolerantDataset,
    WindowedSampler,
    index_shards,
)

N = CUTS[-1]
ORDER = {"window": 20, "block": 16, "ranks": 2, "workers": 4}
LANES = 8


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    return indexed(tmp_path_factory.mktemp("corpus"))


def loaded(index, batch_size=16, window=20, **options):
    dataset = Airports(index, seed=5)
    sampler = WindowedSampler(dataset, **{**ORDER, "window": window})
    return StatefulDataLoader(dataset, batch_size, sampler=sampler, collate_fn=list, **options)


def samples(loader):
    return [sample for batch in loader for sample in batch]


@functools.cache
def uninterrupted(index):
    loader = loaded(index)
    return [samples(loader) for _ in range(3)]


def test_each_epoch_has_each_record_once(index):
    codes = [row["iata"] for row in airports()]
    epochs = uninterrupted(index)
    for epoch, seen in enumerate(epochs):
        assert sorted(number for number, *_ in seen) == list(range(N))
        assert all(codes[number] == code for number, code, *_ in seen)
        assert {at for *_, at, _ in seen} == {epoch}
    assert len({draw for seen in epochs for *_, draw in seen}) == 3 * N
    orders = [[number for number, *_ in seen] for seen in epochs]
    assert orders[0] != orders[1] != orders[2] != orders[0]


SHAPES = [
    *itertools.product([0, 1, 2, 3], [16, 7], [1], ["fork"]),
    *itertools.product([0, 2], [8, 5], [2, 3], ["fork"]),
    (2, 16, 1, "spawn"),
]


@pytest.mark.parametrize(("workers", "batch_size", "world_size", "method"), SHAPES)
def test_it_does_not_depend_on_workers_batches_or_ranks(
    index, workers, batch_size, world_size, method
):
    for epoch in [1] if method == "spawn" else [0, 1]:
        dealt = []
        for rank in range(world_size):
            loader = loaded(
                index,
                batch_size,
                num_workers=workers,
                rank=rank,
                world_size=world_size,
                pad=False,
                multiprocessing_context=method if workers else None,
            )
            loader.set_epoch(epoch)
            dealt.append(list(loader))
        steps = itertools.zip_longest(*dealt, fillvalue=[])
        whole = []
        for step in steps:
            places = itertools.zip_longest(*step)
            whole += [sample for place in places for sample in place if sample is not None]
        assert whole == uninterrupted(index)[epoch]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumes_at_every_step_with_another_batch_size(index, num_workers):
    for steps in range(1, -(-N // 16), 1 if num_workers == 0 else 8):
        first = loaded(index)
        first.set_epoch(1)
        for _ in zip(range(steps), first, strict=False):
            pass
        resumed = loaded(index, 9, num_workers=num_workers)
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert samples(resumed) == uninterrupted(index)[1][16 * steps :]


@pytest.mark.parametrize("window", [1, 7, 20, 5000])
@pytest.mark.parametrize("block", [1, 5, 16, 401])
@pytest.mark.parametrize(("ranks", "workers"), [(1, 1), (2, 3), (8, 8)])
def test_any_numbers_give_a_permutation(index, window, block, ranks, workers):
    sampler = WindowedSampler(
        ShardedDataset(index), window=window, block=block, ranks=ranks, workers=workers
    )
    assert len(sampler) == N
    order = sampler.at(7, 1, np.arange(N))
    assert sorted(order) == list(range(N))
    some = np.array([399, 3, 3, 250, 0])
    assert sampler.at(7, 1, some) == [order[k] for k in some]
    assert len(sampler.at(7, 1, np.arange(0))) == 0


def line(dataset, epoch):
    """The records in the order of a single lane and unshuffled windows: how the shards lie."""
    whole = WindowedSampler(dataset, window=1, block=1, ranks=1, workers=1)
    return whole.at(5, epoch, np.arange(N))


def test_shards_are_permuted_and_laid_end_to_end(index):
    orders = set()
    for epoch in range(20):
        along = np.array(line(ShardedDataset(index), epoch))
        shards = np.searchsorted(CUTS, along, side="right") - 1
        runs = [shard for shard, _ in itertools.groupby(shards)]
        assert sorted(runs) == list(range(7))
        assert (np.diff(along)[np.diff(shards) == 0] == 1).all()
        orders.add(tuple(runs))
    assert len(orders) == 20


def test_windows_are_shuffled_anew_by_seed_and_epoch(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", airports())
    index_shards([tmp_path / "a.jsonl"], tmp_path / "index.json")
    sampler = WindowedSampler(ShardedDataset(tmp_path / "index.json"), **ORDER)
    orders = {
        tuple(sampler.at(seed, epoch, np.arange(N))) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9


def test_a_lane_is_shuffled_within_its_windows(index):
    dataset = ShardedDataset(index)
    sampler = WindowedSampler(dataset, **ORDER)
    place = np.argsort(line(dataset, 1))[sampler.at(5, 1, np.arange(N))]
    lanes, shuffled = {}, 0
    for position in range(N):
        block, inside = divmod(position, 16)
        lanes.setdefault((block % 4, inside % 2), []).append(place[position])
    start = 0
    for lane in sorted(lanes):
        for begin in range(0, len(lanes[lane]), 20):
            window = lanes[lane][begin : begin + 20]
            assert sorted(window) == list(range(start, start + len(window)))
            shuffled += window != sorted(window)
            start += len(window)
    assert start == N
    assert shuffled >= 8 * 2


def test_records_may_come_at_every_place_of_their_window(index):
    sampler = WindowedSampler(ShardedDataset(index), window=4, block=4, ranks=1, workers=1)
    counts = np.zeros((4, 4), int)
    for seed in range(40):
        order = np.array(sampler.at(seed, 0, np.arange(N))).reshape(-1, 4)
        for k in range(4):
            counts[k] += np.bincount(np.argsort(order, axis=1)[:, k], minlength=4)
    # 4000 windows: a place is taken 1000 times, within five standard deviations.
    assert abs(counts - 1000).max() < 5 * np.sqrt(4000 * 1 / 4 * 3 / 4)


@pytest.fixture
def counted(tmp_path):
    """The index of a corpus that tells what is read of it; and a function that returns it."""
    return counting(tmp_path, "jsonl")


def counting(tmp_path, kind):
    fsspec.register_implementation("counted", Counted, clobber=True)
    Counted.log = str(tmp_path / "log")
    index = indexed(tmp_path, kind, scheme="counted://")

    def read():
        with open(Counted.log, "a+") as log:
            log.seek(0)
            found = [tuple(map(int, line.split())) for line in log]
            log.truncate(0)
        return found

    return index, read


SIZE = sum(map(len, lines(airports())))
LONGEST = CHUNK_BYTES + max(map(len, lines(airports())))
BORDERS = LANES * LONGEST


def amplification(counted, workers, batch_size, world_size):
    """How many bytes are read in an epoch for each that there is."""
    index, read = counted
    for rank in range(world_size):
        list(loaded(index, batch_size, num_workers=workers, rank=rank, world_size=world_size))
    found = read()
    assert len({process for process, _ in found}) == max(1, workers * world_size)
    return sum(count for _, count in found) / SIZE


@pytest.mark.parametrize(
    ("workers", "world_size"), [(0, 1), (1, 1), (2, 1), (4, 1), (1, 2), (2, 2), (4, 2)]
)
def test_each_byte_is_read_once_where_the_numbers_divide(counted, workers, world_size):
    found = amplification(counted, workers, 16 // world_size, world_size)
    assert 1 <= found <= 1 + BORDERS / SIZE


@pytest.mark.parametrize(("kind", "most"), [("gzip", 1.2), ("gzip-anywhere", 2.2), ("tar", 1.1)])
def test_so_it_is_in_other_formats(tmp_path, kind, most):
    index, read = counting(tmp_path, kind)
    list(loaded(index, num_workers=2))
    size = sum(file.stat().st_size for file in tmp_path.glob("*" + WRITERS[kind][1]))
    found = sum(count for _, count in read())
    # Tar files end with zeros, which nobody reads. Members that end within lines are read twice.
    assert 0.8 < found / size < most


def test_elsewhere_more_is_read(counted):
    assert 2 < amplification(counted, 3, 16, 1) <= 3 * (1 + BORDERS / SIZE)
    assert 1.5 < amplification(counted, 2, 20, 1) <= 2 * (1 + BORDERS / SIZE)


def test_a_resume_reads_little_again(counted):
    index, read = counted
    sizes = [len(line) for line in lines(airports())]
    cursor = int(0.9 * N) // 16 * 16
    whole = loaded(index, window=5)
    whole.load_state_dict({"epoch": 1, "cursor": 0})
    expected = samples(whole)[cursor:]
    read()
    loader = loaded(index, window=5)
    loader.load_state_dict({"epoch": 1, "cursor": cursor})
    rest = iter(loader)
    left = next(rest)
    first = sum(count for _, count in read())
    assert 0 < first < LANES / 4 * (5 * max(sizes) + LONGEST)
    left += samples(rest)
    assert left == expected
    needed = sum(sizes[number] for number, *_ in left)
    again = first + sum(count for _, count in read()) - needed
    assert 0 < again < LANES * (5 * max(sizes) + LONGEST) < SIZE / 4


def test_the_dataset_may_be_wrapped(index):
    dataset = ShardedDataset(index)
    sampler = WindowedSampler(dataset, **ORDER, seed=9)
    loader = StatefulDataLoader(SeededDataset(dataset), 16, sampler=sampler, collate_fn=list)
    assert [row["iata"] for row in samples(loader)] == [
        airports()[k]["iata"] for k in sampler.at(9, 0, np.arange(N))
    ]


def mixture_loader(index, batch_size, **options):
    datasets = {name: Airports(index, seed=5) for name in "ab"}
    orders = {
        name: WindowedSampler(dataset, window=20, block=16, ranks=1, workers=1)
        for name, dataset in datasets.items()
    }
    mixture = Mixture(
        {"a": (datasets["a"], 3), "b": (datasets["b"], 1)}, length=N, orders=orders, seed=5
    )
    return StatefulDataLoader(mixture, batch_size, collate_fn=list, **options)


def test_a_mixture_reads_corpora_in_their_windows(counted):
    index, read = counted
    loader = mixture_loader(index, 16)
    whole = [samples(loader) for _ in range(3)]
    # In three epochs of the mixture one corpus is read through two and a quarter times.
    assert 3 <= sum(count for _, count in read()) / SIZE <= 3.2
    resumed = mixture_loader(index, 9, num_workers=2)
    resumed.load_state_dict({"epoch": 1, "cursor": 2 * N // 3})
    assert [samples(resumed), samples(resumed)] == [whole[1][2 * N // 3 :], whole[2]]
    other = mixture_loader(index, 16).state_dict() | {"cursor": 16}
    datasets = {"a": (Airports(index), 3), "b": (Airports(index), 1)}
    with pytest.raises(ValueError, match=r"other settings \(order: saved"):
        StatefulDataLoader(Mixture(datasets, length=N, seed=5), 16).load_state_dict(other)


def test_bad_records_can_be_passed_over(tmp_path, caplog):
    index = indexed(tmp_path)
    text = bytearray((tmp_path / "6.jsonl").read_bytes())
    text[0] = ord("?")
    (tmp_path / "6.jsonl").write_bytes(text)
    dataset = Airports(index)
    sampler = WindowedSampler(dataset, **ORDER)
    tolerant = TolerantDataset(dataset, at_most=1)
    loader = StatefulDataLoader(tolerant, 16, sampler=sampler, collate_fn=list, num_workers=2)
    assert sorted(number for number, *_ in samples(loader)) == [k for k in range(N) if k != 62]
    assert (
        f"passed over dataset[62] in epoch 0: ValueError: {tmp_path}/6.jsonl, byte 0: line 1"
        in (caplog.text)
    )


@pytest.mark.parametrize(
    "other", [{"window": 21}, {"block": 8}, {"ranks": 1}, {"workers": 2}, {"seed": 8}]
)
def test_a_state_of_another_order_is_refused(index, other):
    state = loaded(index).state_dict()
    dataset = Airports(index, seed=5)
    sampler = WindowedSampler(dataset, **{**ORDER, **other})
    loader = StatefulDataLoader(dataset, 16, sampler=sampler)
    with pytest.raises(ValueError, match=r"other settings \(order: saved \d+, here \d+\)"):
        loader.load_state_dict(state)


def test_a_state_of_another_corpus_is_refused(tmp_path):
    index = indexed(tmp_path)
    state = loaded(index).state_dict()
    rows = airports()
    write_jsonl(tmp_path / "9.jsonl", rows[:6])
    write_jsonl(tmp_path / "8.jsonl", rows[6:61])
    loader = loaded(index)
    assert len(loader.dataset) == N
    with pytest.raises(ValueError, match=r"other settings \(order: saved"):
        loader.load_state_dict(state)


def test_a_state_knows_shards_by_their_names(tmp_path):
    files = [tmp_path / folder / f"{k}.jsonl" for folder in "ab" for k in range(2)]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        write_jsonl(file, airports()[:100])
    index_shards(files, tmp_path / "index.json")
    state = loaded(tmp_path / "index.json").state_dict()
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for folder in "ab":
        (tmp_path / folder).rename(moved / folder)
    files = [moved / file.relative_to(tmp_path) for file in files]
    index_shards(files, tmp_path / "index.json")
    loaded(tmp_path / "index.json").load_state_dict(state)
    index_shards(files[::-1], tmp_path / "index.json")
    with pytest.raises(ValueError, match=r"other settings \(order: saved .*the names of shards"):
        loaded(tmp_path / "index.json").load_state_dict(state)


def test_a_sampler_of_another_corpus_is_refused(index, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", airports()[:5])
    index_shards([tmp_path / "a.jsonl"], tmp_path / "index.json")
    sampler = WindowedSampler(ShardedDataset(tmp_path / "index.json"), **ORDER)
    with pytest.raises(ValueError, match="sampler must be made for the 400 .* WindowedSampler for"):
        StatefulDataLoader(SeededDataset(ShardedDataset(index)), sampler=sampler)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"window": 0}, ValueError, "window must be an integer in"),
        ({"block": 0}, ValueError, "block must be an integer in"),
        ({"ranks": 0}, ValueError, "ranks must be an integer in"),
        ({"workers": "2"}, TypeError, "workers must be an integer in"),
        ({"seed": -1}, ValueError, "seed must be"),
        ({"dataset": range(3)}, TypeError, "dataset must be a ShardedDataset, got range"),
    ],
)
def test_nonsense_is_refused(index, options, error, words):
    with pytest.raises(error, match=words):
        WindowedSampler(**{"dataset": ShardedDataset(index), **ORDER, **options})
