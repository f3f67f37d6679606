"""Worker processes: their errors, their deaths, and that none is left behind."""

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback

import numpy as np
import pytest
import torch
from samples import Failing, Keyed, KeyedStream, flat, indices
from torch.utils.data import DataLoader, Dataset, get_worker_info

from seedcursor import StatefulDataLoader, StatefulDataset


def children():
    return [child for child in multiprocessing.active_children() if child.is_alive()]


def wait_until_gone(processes, seconds=20):
    end = time.monotonic() + seconds
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(process.is_alive() for process in processes)


@pytest.fixture(autouse=True)
def _nobody_elses_workers():
    # The traceback of an error that another test met may keep workers until they are collected.
    gc.collect()


@pytest.fixture
def _no_collector():
    gc.disable()
    yield
    gc.enable()


# References alone must let workers go.
@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("dataset", [Keyed(40), KeyedStream(40)], ids=["map", "stream"])
@pytest.mark.parametrize("persistent", [False, True])
def test_an_abandoned_pass_leaves_no_worker(dataset, persistent):
    loader = StatefulDataLoader(
        dataset, 4, num_workers=2, persistent_workers=persistent, collate_fn=list
    )
    for _ in loader:
        workers = children()
        break
    assert len(workers) == 2
    if persistent:
        assert children() == workers
        next(iter(loader))
        assert children() == workers
    del loader
    assert wait_until_gone(workers)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("dataset", [Keyed(40), KeyedStream(40)], ids=["map", "stream"])
def test_a_finished_pass_leaves_no_worker(dataset):
    loader = StatefulDataLoader(dataset, 4, num_workers=2, collate_fn=list)
    batches = iter(loader)
    next(batches)
    workers = children()
    list(batches)
    assert wait_until_gone(workers)


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_failed_pass_leaves_no_worker(persistent):
    loader = StatefulDataLoader(
        Failing(20, 0, __file__), 4, num_workers=2, persistent_workers=persistent
    )
    try:
        next(iter(loader))
    except KeyError:
        workers = children()
    assert len(workers) == 2
    del loader
    assert wait_until_gone(workers)


def test_persistent_workers_are_the_same_in_every_epoch():
    loader = StatefulDataLoader(
        Process(12), 4, num_workers=2, persistent_workers=True, collate_fn=list
    )
    epochs = [set(flat(loader)) for _ in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(epochs[0]) == 2


class Process(StatefulDataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return os.getpid()


class Deadly(Keyed):
    """A worker that reads record 9 is killed, as by the out-of-memory killer."""

    def __getitem__(self, index):
        if index == 9 and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_noticed_and_the_state_goes_on(persistent):
    loader = StatefulDataLoader(
        Deadly(20), 4, num_workers=2, persistent_workers=persistent, collate_fn=list
    )
    batches = iter(loader)
    head = []
    with pytest.raises(RuntimeError, match="worker"):
        for batch in batches:
            head.append(batch)
    state = loader.state_dict()
    assert state["cursor"] == 4 * len(head) <= 8
    del batches
    resumed = StatefulDataLoader(Deadly(20), 4, collate_fn=list)
    resumed.load_state_dict(state)
    assert flat(head) + flat(resumed) == [Keyed(20)[k] for k in range(20)]
    # The loader itself starts new workers.
    loader.load_state_dict({"epoch": 0, "cursor": 12})
    assert indices(loader) == list(range(12, 20))


def test_workers_killed_from_outside_do_not_prevent_a_save():
    loader = StatefulDataLoader(Keyed(400), 4, num_workers=2, collate_fn=list)
    batches = iter(loader)
    next(batches)
    for worker in children():
        os.kill(worker.pid, signal.SIGKILL)
    delivered = 4
    with pytest.raises(RuntimeError, match="worker"):
        for _ in batches:
            delivered += 4
    assert loader.state_dict()["cursor"] == delivered
    del batches


def test_persistent_workers_serve_on_after_a_failed_batch(tmp_path):
    marker = tmp_path / "broken"
    marker.touch()
    loader = StatefulDataLoader(
        Failing(20, 9, str(marker)),
        4,
        num_workers=2,
        persistent_workers=True,
        collate_fn=list,
    )
    for _ in range(2):
        with pytest.raises(KeyError, match="record 9 is broken"):
            list(loader)
    marker.unlink()
    loader.set_epoch(0)
    assert indices(loader) == list(range(20))


class Errors(StatefulDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise [ValueError("odd"), OSError(2, "no file", "x.png"), StopIteration("early")][index]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("index", "kind", "words"),
    [
        (0, ValueError, "odd"),
        (1, OSError, "no file"),
        (2, RuntimeError, "raised StopIteration"),  # which would end the epoch early, unseen
    ],
)
def test_an_error_arrives_with_its_type_and_words(workers, index, kind, words):
    loader = StatefulDataLoader(Errors(), sampler=[index], num_workers=workers)
    batches = iter(loader)
    with pytest.raises(kind, match=words):
        next(batches)
    assert (loader.epoch, loader.cursor) == (0, 0)


class Stained(KeyedStream):
    def sample(self, record, index):
        if index == 9:
            raise ValueError("odd")
        return record


def test_the_traceback_names_the_record():
    if sys.version_info < (3, 11):
        pytest.skip("exceptions have no notes before Python 3.11")
    failing = Failing(20, 9, __file__)
    for dataset, where in ((failing, "in dataset[9]"), (Stained(20), "in sample(record, 9)")):
        for workers in (0, 2):
            loader = StatefulDataLoader(dataset, 4, num_workers=workers, collate_fn=list)
            with pytest.raises((KeyError, ValueError)) as caught:
                list(loader)
            text = "".join(traceback.format_exception(caught.value))
            assert where in text.replace("\\n", "\n")
            assert "while the batch at epoch 0, position 8 was built" in text


def report(samples):
    info = get_worker_info()
    return info.dataset.note, type(info.dataset).__name__, info.id, samples


class Noted(Keyed):
    note = None


def leave_note(worker):
    info = get_worker_info()
    info.dataset.note = f"worker {worker} of {info.num_workers}"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_init_fn_sees_the_users_dataset(method):
    loader = StatefulDataLoader(
        Noted(4),
        2,
        num_workers=2,
        worker_init_fn=leave_note,
        multiprocessing_context=method,
        collate_fn=report,
    )
    notes = list(loader)
    assert [note[:3] for note in notes] == [(f"worker {k} of 2", "Noted", k) for k in range(2)]
    assert isinstance(loader.dataset, Noted)
    assert loader.dataset.note is None
    assert isinstance(loader, DataLoader)


class Batched(Dataset):
    """Fetches whole batches."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        raise AssertionError("fetch batches")

    def __getitems__(self, wanted):
        return [(index, int(np.random.randint(2**40))) for index in wanted]


def test_getitems_is_used():
    batches = list(StatefulDataLoader(Batched(), 4, collate_fn=list))
    assert indices(batches) == list(range(10))
    assert list(StatefulDataLoader(Batched(), 4, num_workers=2, collate_fn=list)) == batches


def test_tensors_are_collated_as_by_pytorch():
    data = torch.arange(24.0).reshape(12, 2)
    dataset = torch.utils.data.TensorDataset(data, torch.arange(12))
    ours = list(StatefulDataLoader(dataset, 5, num_workers=1))
    theirs = list(DataLoader(dataset, 5))
    assert len(ours) == len(theirs) == len(StatefulDataLoader(dataset, 5))
    for our, their in zip(ours, theirs, strict=True):
        assert type(our) is type(their)
        assert all(torch.equal(a, b) for a, b in zip(our, their, strict=True))
    assert [x.shape for x in next(iter(StatefulDataLoader(dataset, None)))] == [(2,), ()]


TRAINER = """
import sys
from samples import Keyed
from seedcursor import StatefulDataLoader
import json, os
loader = StatefulDataLoader(Keyed(400), 4, shuffle=True, num_workers=int(sys.argv[2]),
                            collate_fn=list)
log, state = open(sys.argv[1] + "/log", "a"), sys.argv[1] + "/state"
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
while loader.epoch < 2:
    for batch in loader:
        log.write(json.dumps([loader.epoch, loader.cursor, batch]) + "\\n")
        log.flush()
        with open(state + ".new", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(state + ".new", state)
"""


def test_a_trainer_killed_again_and_again_loses_nothing(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    for attempt, workers in enumerate([2, 0, 1, 2]):
        command = [sys.executable, str(script), str(tmp_path), str(workers)]
        trainer = subprocess.Popen(command, env=environment)
        if attempt == 3:
            assert trainer.wait(timeout=120) == 0
            break
        wanted = 30 * (attempt + 1)
        while not (tmp_path / "log").exists() or lines(tmp_path / "log") < wanted:
            assert trainer.poll() is None
            time.sleep(0.005)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    committed = {}
    for line in (tmp_path / "log").read_text().splitlines():
        epoch, cursor, batch = json.loads(line)
        # A step that was drawn but not committed is drawn again, the same.
        assert committed.setdefault((epoch, cursor), batch) == batch
    loader = StatefulDataLoader(Keyed(400), 4, shuffle=True, collate_fn=list)
    expected = [[list(sample) for sample in batch] for _ in range(2) for batch in loader]
    assert list(committed.values()) == expected


def lines(path):
    return path.read_text().count("\n")
