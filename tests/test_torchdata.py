"""Our datasets and our batch sampler in torchdata's ``StatefulDataLoader``, by its own state."""

import copy
import warnings

import pytest
import torch
from children import run
from samples import Keyed, KeyedStream, Plain, flat
from torch.utils.data import Subset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler
from training import Foreign, Noisy, check_nothing_skipped, loaded, steps, train

import seedcursor
from seedcursor import SeededDataset, StatefulBatchSampler, StatefulIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

N, BATCH, EPOCHS = 14, 4, 2
WORKERS = [
    {"num_workers": 0},
    {"num_workers": 2},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 2, "snapshot_every_n_steps": 3},
]


class BySampler:
    """Our batch sampler: it has the epoch, and hands it to the dataset."""

    def __init__(self, n=N, batch_size=BATCH, **options):
        dataset = Keyed(n, seed=3)
        self.sampler = StatefulBatchSampler(dataset, batch_size)
        self.loader = StatefulDataLoader(
            dataset, batch_sampler=self.sampler, collate_fn=list, **options
        )

    def batches(self, epoch):
        self.sampler.set_epoch(epoch)
        return self.loader


class ByItself(BySampler):
    """The same, where nobody calls set_epoch: epochs follow each other."""

    def batches(self, epoch):
        return self.loader


class Shuffled:
    """torchdata's own order, our dataset."""

    def __init__(self, n=N, batch_size=BATCH, **options):
        self.dataset = Keyed(n, seed=3)
        # With shuffle=True and a generator for both, torchdata's later epochs are in another order.
        sampler = RandomSampler(self.dataset, generator=torch.Generator().manual_seed(5))
        self.loader = StatefulDataLoader(
            self.dataset, batch_size, sampler=sampler, collate_fn=list, **options
        )

    def batches(self, epoch):
        self.dataset.set_epoch(epoch)
        return self.loader


class Streamed(Shuffled):
    """Our stream."""

    def __init__(self, n=N, batch_size=BATCH, **options):
        self.dataset = KeyedStream(n, skipped=(1, 5, 6), seed=3)
        self.loader = StatefulDataLoader(
            self.dataset, batch_size, collate_fn=list, generator=torch.Generator(), **options
        )


KINDS = [BySampler, ByItself, Shuffled, Streamed]


def states(setup):
    """All batches, and for each place ``(epoch, batches behind, state)``."""
    full, places = [], []
    for epoch in range(EPOCHS):
        batches = setup.batches(epoch)
        places.append((epoch, len(full), copy.deepcopy(setup.loader.state_dict())))
        for batch in batches:
            full.append(batch)
            places.append((epoch, len(full), copy.deepcopy(setup.loader.state_dict())))
        # Its pass has ended, and what is resumed is the next.
        places.append((epoch + 1, len(full), copy.deepcopy(setup.loader.state_dict())))
    return full, places[:-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", WORKERS)
def test_resumed_at_every_place(kind, options):
    if kind in (Shuffled, Streamed):
        # Said of a state from an epoch's end, with the next epoch set. A sampler knows better.
        warnings.filterwarnings("ignore", "the state was saved in epoch")
    full, places = states(kind(**options))
    for first, behind, state in places:
        setup = kind(**options)
        setup.loader.load_state_dict(state)
        rest = [batch for epoch in range(first, EPOCHS) for batch in setup.batches(epoch)]
        assert rest == full[behind:]


def test_an_epoch_that_was_forgotten_comes_with_the_state():
    for kind in (Shuffled, Streamed):
        for options in WORKERS[:2]:
            full, places = states(kind(**options))
            for first, behind, state in places:
                if first == 1 and behind > len(full) / 2:
                    setup = kind(**options)
                    setup.loader.load_state_dict(state)
                    assert list(setup.loader) == full[behind:]
                    assert setup.dataset.epoch == 1


@pytest.mark.parametrize("setup", [Shuffled, Streamed])
def test_an_epoch_that_may_be_wrong_is_warned_of(setup):
    before = setup()
    before.dataset.set_epoch(4)
    next(iter(before.loader))
    state = before.loader.state_dict()
    after = setup()
    after.loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"right if epoch 4 had ended; else call set_epoch\(4\)"):
        iter(after.batches(5))
    assert after.dataset.epoch == 5


def test_going_back_in_one_process():
    for kind in (BySampler, Shuffled, Streamed):
        setup = kind(num_workers=2)
        full, places = states(setup)
        for first, behind, state in places[1:3]:
            setup.loader.load_state_dict(state)
            rest = [batch for epoch in range(first, EPOCHS) for batch in setup.batches(epoch)]
            assert rest == full[behind:]


@pytest.mark.parametrize("kind", [Shuffled, Streamed])
def test_another_seed_is_refused(kind):
    before, after = kind(), kind()
    next(iter(before.loader))
    after.dataset.seed = 4
    after.loader.load_state_dict(before.loader.state_dict())
    with pytest.raises(ValueError, match="saved with the dataset's seed 3, here it is 4"):
        iter(after.loader)


def test_another_order_is_refused():
    before = BySampler(num_workers=2)
    next(iter(before.loader))
    after = BySampler(n=N + 1, num_workers=2)
    after.loader.load_state_dict(before.loader.state_dict())
    with pytest.raises(ValueError, match="length: saved 14, here 15"):
        iter(after.loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_another_batch_size(workers):
    before = BySampler(num_workers=workers)
    batches = iter(before.loader)
    head = [next(batches), next(batches)]
    after = BySampler(batch_size=3, num_workers=workers)
    after.loader.load_state_dict(before.loader.state_dict())
    full = flat(BySampler().loader)
    assert flat(head) + flat(after.loader) == full


def ranks(world_size):
    for rank in range(world_size):
        dataset = Keyed(N, seed=3)
        sampler = StatefulBatchSampler(dataset, 2, rank=rank, world_size=world_size)
        yield StatefulDataLoader(
            dataset, batch_sampler=sampler, collate_fn=list, num_workers=2, prefetch_factor=1
        )


def test_another_world_size():
    heads, saved = [], []
    for loader in ranks(2):
        batches = iter(loader)
        heads += [next(batches), next(batches)]
        saved.append(loader.state_dict())
    # One rank's state serves all.
    tails = []
    for loader in ranks(3):
        loader.load_state_dict(saved[0])
        tails += list(loader)
    assert sorted(flat(heads) + flat(tails)) == sorted(flat(BySampler().loader))


def test_a_stream_shared_out_among_others_is_refused(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = Streamed()
    next(iter(before.loader))
    state = before.loader.state_dict()
    monkeypatch.setenv("WORLD_SIZE", "3")
    after = Streamed()
    after.loader.load_state_dict(state)
    with pytest.raises(ValueError, match=r"saved by worker 1 of 2.* this is worker 1 of 3"):
        iter(after.loader)


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_tracked_it_resumes_with_another_number_of_workers(before, after):
    full = list(BySampler().loader)
    setup = BySampler(num_workers=before)
    for step, _ in enumerate(setup.sampler.track(setup.loader), 1):
        state = setup.sampler.state_dict()
        assert state["cursor"] == min(step * BATCH, N)
        resumed = BySampler(num_workers=after)
        resumed.sampler.load_state_dict(state)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "nothing is left of epoch 0")
            assert list(resumed.sampler.track(resumed.loader)) == full[step:]


@pytest.mark.filterwarnings("ignore:nothing is left of epoch 0")
def test_both_states_agree():
    full = list(BySampler().loader)
    setup = BySampler(num_workers=2)
    for step, _ in enumerate(setup.sampler.track(setup.loader), 1):
        resumed = BySampler(num_workers=2)
        resumed.loader.load_state_dict(setup.loader.state_dict())
        cursors = []
        for k, batch in enumerate(resumed.sampler.track(resumed.loader), step):
            assert batch == full[k]
            cursors.append(resumed.sampler.cursor)
        assert cursors == [min(k * BATCH, N) for k in range(step + 1, len(full) + 1)]
        assert resumed.sampler.epoch == 1


def test_nothing_is_loaded_that_is_skipped():
    dataset = Plain(N)
    sampler = StatefulBatchSampler(dataset, BATCH)
    loader = StatefulDataLoader(dataset, batch_sampler=sampler)
    batches = iter(loader)
    head = [next(batches).tolist() for _ in range(2)]
    state = loader.state_dict()
    dataset.loaded.clear()
    resumed = StatefulDataLoader(dataset, batch_sampler=StatefulBatchSampler(dataset, BATCH))
    resumed.load_state_dict(state)
    rest = [batch.tolist() for batch in resumed]
    assert dataset.loaded == sum(rest, [])
    assert sorted(sum(head + rest, [])) == list(range(N))


class Lines(StatefulIterableDataset):
    def __init__(self):
        super().__init__()
        self.opened = []

    def records(self, start):
        self.opened.append(start)
        return iter(range(start, N))


def test_a_stream_is_opened_where_it_resumes():
    before, after = Lines(), Lines()
    loader = StatefulDataLoader(before, BATCH)
    batches = iter(loader)
    next(batches)
    next(batches)
    resumed = StatefulDataLoader(after, BATCH)
    resumed.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in resumed] == [[8, 9, 10, 11], [12, 13]]
    assert after.opened == [8]


def foreign():
    dataset = Foreign(N)
    sampler = StatefulBatchSampler(dataset, BATCH)
    loader = StatefulDataLoader(
        dataset, batch_sampler=sampler, num_workers=2, collate_fn=list, generator=torch.Generator()
    )
    return sampler, loader


def test_a_dataset_whose_workers_cannot_see_the_epoch_is_warned_of():
    sampler, loader = foreign()
    sampler.set_epoch(2)
    next(iter(loader))
    state = loader.state_dict()
    sampler, loader = foreign()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"Foreign.set_epoch sets: call set_epoch\(2\) before"):
        iter(loader)
    sampler, loader = foreign()
    loader.load_state_dict(state)
    sampler.set_epoch(2)
    assert {epoch for _, epoch in flat(loader)} == {2}


def alone(dataset):
    return dataset


def whole(dataset):
    return Subset(dataset, range(N))


class Scaled:
    """Draws from the global RNGs."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return index, float(torch.rand(()))


@pytest.mark.parametrize(
    "wrap", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(N))]
)
def test_a_seeded_dataset_under_wrappers(wrap):
    def build():
        dataset = wrap(SeededDataset(Scaled(), seed=3))
        sampler = StatefulBatchSampler(dataset, BATCH)
        return sampler, StatefulDataLoader(
            dataset, batch_sampler=sampler, num_workers=2, collate_fn=list
        )

    sampler, loader = build()
    sampler.set_epoch(1)
    batches = iter(loader)
    head = [next(batches)]
    sampler, resumed = build()
    resumed.load_state_dict(loader.state_dict())
    ours = seedcursor.StatefulDataLoader(
        SeededDataset(Scaled(), seed=3), BATCH, shuffle=True, collate_fn=list
    )
    ours.set_epoch(1)
    assert head + list(resumed) == list(ours)


class NoisyStream(StatefulIterableDataset):
    """Like ``Noisy``."""

    def __init__(self, path):
        super().__init__(seed=3)
        self.path = path

    def records(self, start):
        return iter(range(start, 22))

    def sample(self, record, index):
        loaded(self.path, index)
        return index, torch.from_numpy(self.rng(index).normal(index, 1, 3))


class Job:
    """What ``train`` loops over."""

    def __init__(self, path, dataset, options):
        self.by, self.options = None, {}
        self.dataset = dataset(path)
        if dataset is Noisy:
            self.by = StatefulBatchSampler(self.dataset, 4)
            self.options = {"batch_sampler": self.by}
        else:
            self.options = {"batch_size": 4}
        # Without a generator of its own it draws from the global one, which dropout draws from.
        self.loader = StatefulDataLoader(
            self.dataset, generator=torch.Generator(), **self.options, **options
        )

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)

    def batches(self, epoch):
        (self.by or self.dataset).set_epoch(epoch)
        return self.loader


@pytest.mark.parametrize("dataset", [Noisy, NoisyStream])
@pytest.mark.parametrize("options", WORKERS[:2])
def test_a_killed_run_goes_on_to_the_bit(dataset, options, tmp_path):
    def setup(path):
        return Job(path, dataset, options)

    (tmp_path / "whole").mkdir()
    run(train, tmp_path / "whole", "full", setup)
    full = steps(tmp_path / "whole", "full")
    assert len(full) == 18
    run(train, tmp_path, "killed", setup, 9, killed=True)
    run(train, tmp_path, "resumed", setup)
    assert steps(tmp_path, "killed") + steps(tmp_path, "resumed") == full
    check_nothing_skipped(tmp_path, "resumed")
