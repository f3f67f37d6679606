"""A small training run over somebody's loader, to be killed and started again."""

import json
import os

import torch
from children import die
from torch import nn
from torch.utils.data import Dataset

from seedcursor import StatefulDataset, load_rng_state_dict, rng_state_dict

N, BATCH, EPOCHS = 22, 4, 3
STEPS = -(-N // BATCH)


def loaded(path, index):
    """Note that a sample is loaded, in whichever process."""
    with open(path, "a") as file:
        file.write(f"{index}\n")


class Noisy(StatefulDataset):
    """Sample i is ``(i, vector)``, the vector noisy by key; each is noted in a file when loaded."""

    def __init__(self, path, seed=3):
        super().__init__(seed=seed)
        self.path = path

    def __len__(self):
        return N

    def __getitem__(self, index):
        loaded(self.path, index)
        return index, torch.from_numpy(self.rng(index).normal(index, 1, 3))


class Foreign(Dataset):
    """An epoch of its own, which workers that run already don't see."""

    def __init__(self, n):
        self.n = n
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index, self.epoch


def train(folder, name, setup, kill_at=None):
    """Train from the checkpoint in a folder, if there is one, and log every step.

    Args:
        folder: Of the checkpoint and the logs.
        name: Of this process's logs.
        setup: Called with the path where what is loaded is noted; makes an object with
            ``state_dict``, ``load_state_dict``, and ``batches(epoch)``.
        kill_at: Die after so many steps of all.
    """
    data = setup(f"{folder}/{name}.loaded")
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    epoch = step = 0
    checkpoint = f"{folder}/checkpoint"
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        load_rng_state_dict(saved["rng"])
        data.load_state_dict(saved["data"])
        epoch, step = saved["epoch"], saved["step"]
    with open(f"{folder}/{name}.steps", "w") as log:
        for epoch in range(epoch, EPOCHS):  # noqa: B020
            for indices, values in data.batches(epoch):
                loss = model(values).square().mean()
                # By hand, for torch.optim would import a compiler in every process.
                parameters = list(model.parameters())
                gradients = torch.autograd.grad(loss, parameters)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.data -= 0.01 * gradient
                step += 1
                line = {"epoch": epoch, "loss": loss.item().hex(), "indices": indices.tolist()}
                log.write(json.dumps(line) + "\n")
                log.flush()
                state = {"model": model.state_dict(), "rng": rng_state_dict(), "epoch": epoch}
                torch.save(state | {"step": step, "data": data.state_dict()}, checkpoint + ".new")
                os.replace(checkpoint + ".new", checkpoint)
                if step == kill_at:
                    die()


def steps(folder, name):
    """What a process logged: the epoch, the loss to the bit and the indices of every step."""
    with open(f"{folder}/{name}.steps") as log:
        return [json.loads(line) for line in log]


def check_nothing_skipped(folder, name):
    """Exactly what was delivered was loaded, by a process that ran to the end."""
    delivered = [index for step in steps(folder, name) for index in step["indices"]]
    with open(f"{folder}/{name}.loaded") as file:
        assert sorted(int(line) for line in file) == sorted(delivered)
