"""A training loop on Accelerate, killed by SIGKILL in the middle of an epoch and resumed.

``python examples/with_accelerate.py`` compares each loss with those of a run that nobody killed.
"""

import os
import signal
from pathlib import Path

import torch
from accelerate import Accelerator
from killed import compare_parts
from sklearn.datasets import load_digits
from torch import nn

from seedcursor import StatefulDataLoader, StatefulDataset
from seedcursor.integrations.accelerate import PreparedDataLoader

EPOCHS, SAVE_EVERY, KILL_AT = 3, 10, 73  # a step of the second epoch, which has 57
Sample = tuple[torch.Tensor, int]


class Digits(StatefulDataset[Sample]):
    """Digits with noise of their own in each epoch."""

    def __init__(self) -> None:
        super().__init__(seed=7)
        pixels, labels = load_digits(return_X_y=True)
        self.pixels, self.labels = torch.tensor(pixels / 16).float(), labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        noise = torch.from_numpy(self.rng(index).normal(0, 0.1, 64)).float()
        return self.pixels[index] + noise, self.labels[index]


def train(folder: Path, workers: int, kill: bool) -> None:
    """Train from the newest checkpoint on, if there is one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10))
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    loader = StatefulDataLoader(Digits(), batch_size=32, shuffle=True, num_workers=workers)
    loader = PreparedDataLoader(accelerator, loader)  # in place of accelerator.prepare(loader)
    saved = max((int(path.name) for path in folder.glob("[0-9]*")), default=0)
    if saved:
        accelerator.load_state(str(folder / str(saved)))
    step = saved
    with (folder / f"log{len(list(folder.glob('*.txt')))}.txt").open("w") as log:
        for _ in range(loader.epoch, EPOCHS):
            for pixels, labels in loader:
                loss = nn.functional.cross_entropy(model(pixels), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                print(float(loss.detach()).hex(), file=log, flush=True)
                if kill and step == KILL_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                if step % SAVE_EVERY == 0:  # aside, so that a kill leaves no half of it
                    accelerator.save_state(str(folder / "new"))
                    os.replace(folder / "new", folder / str(step))


if __name__ == "__main__":
    compare_parts(train, killed="after")
