"""The position, event by event."""

import copy
import pickle

import pytest
from samples import Failing, Keyed, KeyedStream, Plain, flat, indices

from seedcursor import StatefulDataLoader

N, BATCH = 20, 4


def load(workers=0, kind="map", n=N, **options):
    dataset = Keyed(n) if kind == "map" else KeyedStream(n)
    shuffle = True if kind == "map" else None
    return StatefulDataLoader(
        dataset, BATCH, shuffle, num_workers=workers, collate_fn=list, **options
    )


def at(loader):
    state = loader.state_dict()
    assert (loader.epoch, loader.cursor) == (state["epoch"], state["cursor"])
    return loader.epoch, loader.cursor


def epoch_of(batch):
    return batch[0][1]


pytestmark = pytest.mark.parametrize("workers", [0, 2])


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_it_counts_what_was_handed_over_and_not_what_was_prefetched(workers, kind):
    loader = load(workers, kind)
    assert at(loader) == (0, 0)
    batches = iter(loader)
    assert at(loader) == (0, 0)
    for step in range(1, 6):
        next(batches)
        assert at(loader) == (0, step * BATCH)
    with pytest.raises(StopIteration):
        next(batches)
    assert at(loader) == (1, 0)
    with pytest.raises(StopIteration):
        next(batches)
    assert at(loader) == (1, 0)


def test_nothing_is_loaded_before_the_first_batch_is_asked_for(workers):
    dataset = Plain(N)
    loader = StatefulDataLoader(dataset, BATCH)
    batches = iter(loader)
    assert dataset.loaded == []
    loader.set_epoch(3)
    next(batches)
    assert dataset.loaded == [0, 1, 2, 3]
    assert at(loader) == (3, 4)


def test_an_epoch_left_early_is_over(workers):
    loader = load(workers)
    for _ in loader:
        break
    assert at(loader) == (0, BATCH)
    batches = iter(loader)
    assert at(loader) == (1, 0)
    assert epoch_of(next(batches)) == 1


def test_a_planned_pass_that_never_began_is_not_an_epoch(workers):
    loader = load(workers)
    for _ in range(3):
        iter(loader)
    assert epoch_of(next(iter(loader))) == 0


def test_set_epoch_moves_a_planned_pass(workers):
    loader = load(workers)
    batches = iter(loader)
    loader.set_epoch(5)
    assert at(loader) == (5, 0)
    assert epoch_of(next(batches)) == 5
    assert at(loader) == (5, BATCH)


def test_set_epoch_keeps_a_loaded_cursor_of_its_epoch(workers):
    loader = load(workers)
    loader.load_state_dict({"epoch": 2, "cursor": 8})
    batches = iter(loader)
    loader.set_epoch(2)
    assert at(loader) == (2, 8)
    assert len(list(batches)) == 3

    loader.load_state_dict({"epoch": 2, "cursor": 8})
    loader.set_epoch(3)
    assert at(loader) == (3, 0)
    assert len(list(loader)) == 5


def test_set_epoch_leaves_a_running_pass_alone(workers):
    reference = load(workers)
    first = list(reference)
    loader = load(workers)
    batches = iter(loader)
    head = [next(batches)]
    loader.set_epoch(5)
    assert at(loader) == (0, BATCH)
    assert head + list(batches) == first
    assert at(loader) == (5, 0)
    assert epoch_of(next(iter(loader))) == 5


def test_set_epoch_of_the_running_epoch_asks_for_the_next(workers):
    loader = load(workers)
    batches = iter(loader)
    next(batches)
    loader.set_epoch(0)
    list(batches)
    assert at(loader) == (1, 0)


def test_set_epoch_of_an_abandoned_epoch_starts_it_again(workers):
    loader = load(workers)
    for _ in loader:
        break
    loader.set_epoch(0)
    assert at(loader) == (0, 0)
    assert len(list(loader)) == 5

    running = iter(loader)
    next(running)
    loader.set_epoch(1)
    assert epoch_of(next(iter(loader))) == 1


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_failed_batch_is_retried_from_the_state(workers, kind, tmp_path):
    marker = tmp_path / "broken"
    marker.touch()
    dataset = Failing(N, 9, str(marker))
    loader = StatefulDataLoader(dataset, BATCH, num_workers=workers, collate_fn=list)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(KeyError, match="record 9 is broken"):
        next(batches)
    assert at(loader) == (0, 8)
    state = loader.state_dict()
    marker.unlink()
    loader.load_state_dict(state)
    assert indices(loader) == list(range(8, N))


def test_a_loop_that_goes_on_after_a_failed_batch_has_passed_it(workers, tmp_path):
    marker = tmp_path / "broken"
    marker.touch()
    dataset = Failing(N, 9, str(marker))
    loader = StatefulDataLoader(dataset, BATCH, num_workers=workers, collate_fn=list)
    batches = iter(loader)
    next(batches), next(batches)
    with pytest.raises(KeyError):
        next(batches)
    assert [sample[0] for sample in next(batches)] == [12, 13, 14, 15]
    assert at(loader) == (0, 16)


def test_loading_ends_a_running_pass(workers):
    loader = load(workers)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict({"epoch": 3, "cursor": 12})
    assert at(loader) == (3, 12)
    with pytest.raises(RuntimeError, match="began before load_state_dict"):
        next(batches)
    assert at(loader) == (3, 12)
    assert [epoch_of(batch) for batch in loader] == [3, 3]
    assert at(loader) == (4, 0)


def test_loading_moves_a_planned_pass(workers):
    loader = load(workers)
    batches = iter(loader)
    loader.load_state_dict({"epoch": 3, "cursor": 12})
    assert [epoch_of(batch) for batch in batches] == [3, 3]


def test_a_loaded_position_is_used_once(workers):
    loader = load(workers, persistent_workers=workers > 0)
    loader.load_state_dict({"epoch": 0, "cursor": 12})
    assert [len(list(loader)) for _ in range(3)] == [2, 5, 5]

    loader.load_state_dict({"epoch": 0, "cursor": 12})
    for _ in loader:
        break
    assert [(epoch_of(batches[0]), len(batches)) for batches in [list(loader)]] == [(1, 5)]


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_loaded_end_of_an_epoch_is_an_empty_pass_with_a_warning(workers, kind):
    loader = load(workers, kind)
    loader.load_state_dict({"epoch": 4, "cursor": N})
    with pytest.warns(
        UserWarning, match=r"epoch 4 at the loaded cursor 20, .*empty.*epoch 5"
    ) as warned:
        assert list(loader) == []
    assert len(warned) == 1
    assert at(loader) == (5, 0)
    assert {sample[1] for sample in flat(loader)} == {5}

    loader.load_state_dict({"epoch": 4, "cursor": N})
    loader.set_epoch(5)
    assert indices(loader) != []


def test_an_empty_dataset_has_empty_epochs(workers):
    for kind in ("map", "stream"):
        loader = load(workers, kind, n=0)
        assert list(loader) == []
        assert at(loader) == (1, 0)


def test_an_older_pass_moves_nothing(workers):
    loader = load(workers)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    assert at(loader) == (1, BATCH)
    assert {epoch_of(batch) for batch in older} == {0}
    assert at(loader) == (1, BATCH)
    assert {epoch_of(batch) for batch in newer} == {1}
    assert at(loader) == (2, 0)


def test_a_planned_older_pass_keeps_the_epoch_that_it_was_planned_for(workers):
    loader = load(workers)
    older = iter(loader)
    newer = iter(loader)
    loader.set_epoch(6)
    assert epoch_of(next(newer)) == 6
    assert epoch_of(next(older)) == 0
    assert at(loader) == (6, BATCH)


def test_a_dataset_epoch_does_not_disturb_a_pass(workers):
    loader = load(workers)
    for batch in loader:
        loader.dataset.set_epoch(9)
        assert epoch_of(batch) == 0


def test_a_copy_of_a_loader_resumes_where_it_stands(workers):
    loader = load(workers, persistent_workers=workers > 0)
    full = list(loader)
    loader.set_epoch(0)
    batches = iter(loader)
    head = [next(batches)]
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert at(other) == (0, BATCH)
        assert head + list(other) == full
    assert head + list(batches) == full


def test_epochs_end_at_their_limit(workers):
    loader = load(workers)
    loader.set_epoch(2**32 - 1)
    assert len(list(loader)) == 5
    with pytest.raises(ValueError, match=r"epoch must be an integer in \[0, 2\*\*32\)"):
        next(iter(loader))


def test_a_pass_that_was_dropped_before_it_began_never_was(workers):
    loader = load(workers)
    batches = iter(loader)
    iter(loader)
    next(batches)
    assert at(loader) == (0, BATCH)
    iter(loader)
    loader.set_epoch(7)
    next(batches)
    assert at(loader) == (0, 2 * BATCH)
    assert len(list(batches)) == 3
    assert at(loader) == (7, 0)


def test_looking_at_the_batch_sampler_moves_nothing(workers):
    loader = load(workers)
    batches = iter(loader)
    head = [next(batches)]
    ahead = list(loader.batch_sampler)
    assert list(loader.batch_sampler) == ahead
    assert at(loader) == (0, BATCH)
    assert ahead == [[sample[0] for sample in batch] for batch in batches]
    assert at(loader) == (1, 0)
    assert len(head + ahead) == len(loader) == len(iter(loader))
