"""Under Accelerate: what its loop gets, what checkpoints hold, what it may not take apart."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DataLoaderConfiguration, ParallelismConfig
from children import die, run
from samples import KeyedStream
from torch import nn
from torch.utils.data import DataLoader

from seedcursor import StatefulBatchSampler, StatefulDataLoader, StatefulDataset
from seedcursor.integrations.accelerate import PreparedDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:.*barrier\\(\\).*device:UserWarning")

N, BATCH, EPOCHS = 22, 4, 2


class Noisy(StatefulDataset):
    """Draws keyed, and from all global generators; it counts what is loaded in this process."""

    def __init__(self):
        super().__init__(seed=3)
        self.loaded = 0

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.loaded += 1
        drawn = self.rng(index).normal() + random.random() + np.random.rand()
        return torch.rand(3) + drawn, index


def forget():
    """Accelerate keeps one state for the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True, scope="module")
def _imported():
    # What it imports late, before the first fork.
    make()


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    forget()


def make(workers=0, batch_size=BATCH, **options):
    """All that a run has, anew."""
    forget()
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, **options)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = accelerator.prepare(model, optimizer)
    dataset = Noisy()
    loader = StatefulDataLoader(dataset, batch_size, shuffle=True, num_workers=workers)
    return accelerator, model, optimizer, PreparedDataLoader(accelerator, loader), dataset


def train(run_, after_step):
    """The plain loop, and after each step a call with its line of the log."""
    accelerator, model, optimizer, loader, _ = run_
    for _ in range(loader.epoch, EPOCHS):
        for x, indices in loader:
            with accelerator.accumulate(model):
                loss = model(x).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            after_step([loss.item().hex(), indices.tolist(), accelerator.sync_gradients])


def trained(run_):
    lines = []
    train(run_, lines.append)
    return lines


def kept(accelerator, folder, step):
    """Save aside and rename."""
    accelerator.save_state(str(folder / "new"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        os.replace(folder / "new", folder / f"step-{step}")
    accelerator.wait_for_everyone()


def job(folder, name, workers=0, resume_at=0, kill_at=None):
    """Train, save every second step, and die where told to."""
    made = make(workers)
    accelerator = made[0]
    if resume_at:
        accelerator.load_state(str(folder / f"step-{resume_at}"))
    steps = itertools.count(resume_at + 1)
    with (folder / f"{name}-{accelerator.process_index}").open("w") as log:

        def after_step(line):
            step = next(steps)
            print(json.dumps([*line, made[-1].loaded]), file=log, flush=True)
            if step == kill_at:
                accelerator.wait_for_everyone()
                die()
            if step % 2 == 0:
                kept(accelerator, folder, step)

        train(made, after_step)


def lines(folder, name, rank):
    return [json.loads(line) for line in (folder / f"{name}-{rank}").read_text().splitlines()]


@pytest.mark.parametrize(("world_size", "kill_at", "saved"), [(1, 9, 8), (2, 5, 4)])
def test_a_killed_run_goes_on_to_the_bit(world_size, kill_at, saved, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run(job, whole, "whole", world_size=world_size)
    run(job, parts, "killed", 2, 0, kill_at, world_size=world_size, killed=True)
    run(job, parts, "resumed", 0, saved, world_size=world_size)
    for rank in range(world_size):
        expected = lines(whole, "whole", rank)
        resumed = lines(parts, "resumed", rank)
        assert [line[:3] for line in expected[:kill_at]] == [
            line[:3] for line in lines(parts, "killed", rank)
        ]
        assert [line[:3] for line in expected[saved:]] == [line[:3] for line in resumed]
        # Looking ahead costs one batch and no more.
        assert resumed[0][3] <= 2 * BATCH
        assert resumed[-1][3] == sum(len(line[1]) for line in resumed)


def test_the_example_is_killed_and_resumed():
    example = Path(__file__).parents[1] / "examples" / "with_accelerate.py"
    done = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True)
    assert done.stdout == (
        "killed after step 73, resumed after step 70\n101 losses after the resume: identical\n"
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_each_step_can_be_resumed_from(workers, tmp_path):
    steps = itertools.count(1)
    made = make()
    expected = []

    def after_step(line):
        expected.append(line)
        made[0].save_state(str(tmp_path / str(next(steps))))

    train(made, after_step)
    per_epoch = len(made[3])
    for step in range(1, len(expected), 1 if not workers else 4):
        made = make(workers)
        made[0].load_state(str(tmp_path / str(step)))
        if step % per_epoch == 0:
            with pytest.warns(UserWarning, match="nothing is left of epoch"):
                rest = trained(made)
        else:
            rest = trained(made)
        assert rest == expected[step:]
        if not workers:
            assert made[-1].loaded == sum(len(line[1]) for line in rest)


def ranks_of_two(folder):
    accelerator, _, _, loader, _ = make()
    seen = []
    for step, (x, indices) in enumerate(loader, 1):
        seen += list(zip(indices.tolist(), x.tolist(), strict=True))
        if step == 2:
            kept(accelerator, folder, step)
            break
    (folder / f"seen-{accelerator.process_index}").write_text(json.dumps(seen))


def test_another_number_of_processes_and_another_batch_size(tmp_path):
    run(ranks_of_two, tmp_path, world_size=2)
    head = [s for rank in (0, 1) for s in json.loads((tmp_path / f"seen-{rank}").read_text())]
    accelerator, _, _, loader, dataset = make(batch_size=5)
    accelerator.load_state(str(tmp_path / "step-2"))
    rest = [index for _, indices in loader for index in indices.tolist()]
    assert len(head) == 2 * 2 * BATCH
    assert sorted([index for index, _ in head] + rest) == list(range(N))
    assert dataset.loaded == len(rest)


def test_accumulation_ends_with_the_epoch_as_under_prepare():
    accelerator, model, optimizer, ours, _ = make(gradient_accumulation_steps=4)
    synced = [line[2] for line in trained((accelerator, model, optimizer, ours, None))]
    accelerator, *_ = make(gradient_accumulation_steps=4)
    theirs = accelerator.prepare(DataLoader(Noisy(), BATCH))
    expected = []
    for _ in range(EPOCHS):
        for _ in theirs:
            with accelerator.accumulate():
                expected.append(accelerator.sync_gradients)
    assert synced == expected
    assert accelerator.gradient_state.active_dataloader is None


def test_batches_go_to_the_accelerators_device():
    make()
    PartialState().device = torch.device("meta")
    for placed, device in [(True, "meta"), (False, "cpu")]:
        accelerator = Accelerator(device_placement=placed)
        loader = PreparedDataLoader(accelerator, StatefulDataLoader(Noisy(), BATCH))
        assert {x.device.type for x, _ in loader} == {device}


def test_the_position_is_that_of_the_loop():
    accelerator, _, _, loader, _ = make()
    for k, _ in enumerate(loader, 1):
        assert loader.cursor == min(k * BATCH, N)
        assert loader.state_dict() | {"cursor": 0} == loader.loader.state_dict() | {
            "epoch": 0,
            "cursor": 0,
        }
    assert (loader.epoch, loader.cursor) == (1, 0)
    for _ in loader:
        break
    state = loader.state_dict()
    assert (state["epoch"], state["cursor"]) == (1, BATCH)
    assert accelerator.gradient_state.active_dataloader is None
    first = [indices.tolist() for _, indices in loader]
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    again = [indices.tolist() for _, indices in loader]
    assert len(again) == len(loader) - 1
    loader.set_epoch(2)
    assert [indices.tolist() for _, indices in loader] == first


def test_a_checkpoint_without_the_position_is_refused(tmp_path):
    accelerator, *_ = make()
    accelerator._custom_objects.clear()
    accelerator.save_state(str(tmp_path / "old"))
    accelerator, *_ = make()
    with pytest.raises(RuntimeError, match="does not match the number of registered objects"):
        accelerator.load_state(str(tmp_path / "old"))


LOADERS = {
    "keyed": lambda: StatefulDataLoader(Noisy(), BATCH, shuffle=True),
    "single samples": lambda: StatefulDataLoader(Noisy(), None, shuffle=True),
    "a sampler": lambda: StatefulDataLoader(Noisy(), BATCH, sampler=range(N)),
    "a stream": lambda: StatefulDataLoader(KeyedStream(N), BATCH),
}


@pytest.mark.parametrize("name", LOADERS)
def test_prepare_itself_names_the_line_to_write(name):
    accelerator, *_ = make()
    with pytest.raises(TypeError, match="write loader = PreparedDataLoader"):
        accelerator.prepare(LOADERS[name]())


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_made_of_a_loaders_parts_name_it_too(workers):
    loader = StatefulDataLoader(Noisy(), BATCH, shuffle=True, num_workers=workers)
    for foreign in [
        skip_first_batches(loader, 2),
        DataLoader(Noisy(), batch_sampler=loader.batch_sampler, num_workers=workers),
    ]:
        with pytest.raises(RuntimeError, match="PreparedDataLoader.*StatefulTrainerMixin"):
            next(iter(foreign))


def prepared(sampler):
    accelerator, *_ = make()
    dataset = Noisy()
    return accelerator.prepare(DataLoader(dataset, batch_sampler=sampler))


@pytest.mark.filterwarnings("ignore:.*gives up what is left at the loaded position")
def test_a_tracked_sampler_under_prepare():
    sampler = StatefulBatchSampler(N, BATCH)
    loader = prepared(sampler)
    states, batches = [], []
    for _ in range(2):
        for _, indices in sampler.track(loader):
            batches.append(indices.tolist())
            states.append(sampler.state_dict())
    for k in range(len(loader), 2 * len(loader) - 1):
        again = StatefulBatchSampler(N, BATCH)
        loader = prepared(again)
        again.load_state_dict(states[k])
        loader.set_epoch(1)
        assert [i.tolist() for _, i in again.track(loader)] == batches[k + 1 :]


def test_a_loader_that_counts_epochs_from_0_after_a_resume_is_found_out():
    sampler = StatefulBatchSampler(N, BATCH)
    loader = prepared(sampler)
    sampler.load_state_dict({"epoch": 1, "cursor": 8})
    with pytest.warns(UserWarning, match="goes to epoch 0, and gives up .* epoch=1, cursor=8"):
        next(iter(sampler.track(loader)))


def dealt_twice():
    accelerator, *_ = make()
    sampler = StatefulBatchSampler(N, BATCH)
    loader = accelerator.prepare(DataLoader(Noisy(), batch_sampler=sampler))
    with pytest.raises(ValueError, match="would deal these batches again.*PreparedDataLoader"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="don't have its batches dealt again"):
        next(sampler.track(loader))
    with pytest.raises(TypeError, match="PreparedDataLoader"):
        accelerator.prepare(StatefulDataLoader(Noisy(), BATCH))


def test_a_sampler_is_not_dealt_twice():
    run(dealt_twice, world_size=2)


def streamed(dispatch, workers):
    config = DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator, *_ = make(dataloader_config=config)
    plain = DataLoader(KeyedStream(N), BATCH, num_workers=workers)
    loader = accelerator.prepare(plain)
    # Who dispatches reads in the first process, and the others would wait for it.
    if accelerator.is_main_process or not dispatch:
        with pytest.raises(RuntimeError, match="would deal this stream to ranks again"):
            next(iter(loader))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("dispatch", [True, False])
def test_a_stream_is_not_dealt_twice(dispatch, workers):
    run(streamed, dispatch, workers, world_size=2)


def test_what_cannot_be_prepared_is_refused(monkeypatch):
    accelerator, *_ = make()
    with pytest.raises(TypeError, match="must be a StatefulDataLoader, got DataLoader"):
        PreparedDataLoader(accelerator, DataLoader(Noisy(), BATCH))
    loader = StatefulDataLoader(Noisy(), BATCH)
    monkeypatch.setattr(Accelerator, "split_batches", True)
    with pytest.raises(ValueError, match="split_batches must be False.*batch_size=4"):
        PreparedDataLoader(accelerator, loader)
    monkeypatch.setattr(Accelerator, "split_batches", False)
    monkeypatch.setattr(Accelerator, "parallelism_config", ParallelismConfig(tp_size=2))
    with pytest.raises(ValueError, match="groups of 2 processes that need the same"):
        PreparedDataLoader(accelerator, loader)
