"""``torch.distributed.checkpoint``: the loader and the batch sampler in an app state."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from children import die, run
from samples import Keyed, KeyedStream, indices
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader

from seedcursor import (
    StatefulBatchSampler,
    StatefulDataLoader,
    load_rng_state_dict,
    rng_state_dict,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),  # by PyTorch 2.4 itself
]

N, BATCH = 22, 4


def mapped(workers=0):
    return StatefulDataLoader(
        Keyed(N, seed=3), BATCH, shuffle=True, num_workers=workers, collate_fn=list
    )


def streamed(workers=0):
    stream = KeyedStream(N, skipped=(5,), seed=2**100)
    return StatefulDataLoader(stream, BATCH, num_workers=workers, collate_fn=list)


class Sampled:
    """A plain loader, tracked."""

    def __init__(self, workers=0):
        dataset = Keyed(N, seed=3)
        self.sampler = StatefulBatchSampler(dataset, BATCH, shuffle=False)
        self.loader = DataLoader(
            dataset, batch_sampler=self.sampler, num_workers=workers, collate_fn=list
        )
        self.state_dict = self.sampler.state_dict
        self.load_state_dict = self.sampler.load_state_dict

    def __iter__(self):
        return self.sampler.track(self.loader)


KINDS = [mapped, streamed, Sampled]


class App:
    """An app state, as PyTorch's tutorial has it."""

    def __init__(self, data):
        self.model = nn.Linear(2, 1)
        self.data = data

    def state_dict(self):
        return {"model": self.model.state_dict(), "data": self.data.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.data.load_state_dict(state["data"])


def plain(state):
    return [(key, type(value), value) for key, value in state.items()]


@pytest.mark.parametrize("make", KINDS)
def test_it_is_stateful_by_itself_and_within_an_app(make, tmp_path):
    full = list(make())
    data, inside = make(2), App(make())
    assert isinstance(data, Stateful)
    # Both must stand at one place, with a loop that goes on.
    ahead, also = iter(data), iter(inside.data)
    for step in range(1, 4):
        assert next(ahead) == next(also)
        saved = plain(data.state_dict())
        dcp.save({"data": data, "app": inside}, checkpoint_id=tmp_path / str(step))
        alone, app = make(), App(make(2))
        dcp.load({"data": alone, "app": app}, checkpoint_id=tmp_path / str(step))
        assert plain(alone.state_dict()) == plain(app.data.state_dict()) == saved
        assert list(alone) == list(app.data) == full[step:]


@pytest.mark.parametrize("make", KINDS)
def test_its_keys_are_the_same_before_and_after(make, tmp_path):
    data = make()
    keys = []
    for epoch in range(2):
        for number, _ in enumerate(data):
            keys.append(list(data.state_dict()))
            if epoch == 0 and number == 1:
                dcp.save({"data": data}, checkpoint_id=tmp_path)
        keys.append(list(data.state_dict()))
    dcp.load({"data": data}, checkpoint_id=tmp_path)
    keys.append(list(data.state_dict()))
    assert all(each == keys[0] for each in keys)
    assert data.state_dict()["cursor"] == 2 * BATCH


@pytest.mark.parametrize("make", KINDS)
def test_what_is_saved_meanwhile_is_the_place_of_the_call(make, tmp_path):
    full = list(make())
    data = make()
    batches = iter(data)
    next(batches)
    saving = dcp.async_save({"data": data}, checkpoint_id=tmp_path)
    assert list(batches) == full[1:]
    saving.result()
    again = make()
    dcp.load({"data": again}, checkpoint_id=tmp_path)
    assert list(again) == full[1:]


def test_a_state_of_another_loader_is_refused(tmp_path):
    dcp.save({"data": mapped()}, checkpoint_id=tmp_path)
    with pytest.raises(ValueError, match="shuffle: saved True, here False"):
        dcp.load({"data": Sampled().sampler}, checkpoint_id=tmp_path)


def train(folder, name, resume, stop_at, killed):
    """Train on all ranks to a step, each rank with random numbers of its own."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    loader = StatefulDataLoader(Keyed(20, seed=3), 2, shuffle=True, collate_fn=list)
    model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    state = {"model": model.state_dict(), "data": loader}
    if resume is not None:
        dcp.load(state, checkpoint_id=f"{folder}/checkpoint")
        model.load_state_dict(state["model"])
        if resume == "same ranks":
            load_rng_state_dict(torch.load(f"{folder}/rng{rank}", weights_only=True))
    with open(f"{folder}/{name}.{rank}", "w") as log:
        while loader.epoch < 2:
            for batch in loader:
                values = torch.tensor([[draw / 2**63] for _, _, draw in batch])
                loss = model(values).square().mean()
                parameters = list(model.parameters())
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    dist.all_reduce(gradient)
                    parameter.data -= 0.1 * gradient
                line = {"loss": loss.item().hex(), "indices": indices([batch])}
                log.write(json.dumps(line) + "\n")
                log.flush()
                if (loader.epoch, loader.cursor) == stop_at:
                    # Each rank's own; the checkpoint has each name once, and the same on all.
                    torch.save(rng_state_dict(), f"{folder}/rng{rank}")
                    dcp.save(state, checkpoint_id=f"{folder}/checkpoint")
                    if killed:
                        try:
                            dist.barrier()
                        finally:
                            die()
    dist.destroy_process_group()


def logged(folder, name, world_size):
    """Each rank's steps."""
    paths = [Path(folder) / f"{name}.{rank}" for rank in range(world_size)]
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]


def test_killed_ranks_go_on_to_the_bit_and_others_with_what_is_left(tmp_path):
    run(train, tmp_path, "full", None, None, False, world_size=2)
    run(train, tmp_path, "killed", None, (1, 8), True, world_size=2, killed=True)
    run(train, tmp_path, "resumed", "same ranks", None, False, world_size=2)
    full = logged(tmp_path, "full", 2)
    killed, resumed = logged(tmp_path, "killed", 2), logged(tmp_path, "resumed", 2)
    assert [head + tail for head, tail in zip(killed, resumed, strict=True)] == full
    assert [len(steps) for steps in full] == [10, 10]

    run(train, tmp_path, "three", "other ranks", None, False, world_size=3)
    rest = [head[5:] for head in killed] + logged(tmp_path, "three", 3)
    assert sorted(index for rank in rest for step in rank for index in step["indices"]) == list(
        range(20)
    )
