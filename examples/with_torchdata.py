"""seedcursor in torchdata's ``StatefulDataLoader``: killed in mid-epoch, resumed to the bit.

``python examples/with_torchdata.py`` trains on scikit-learn's digits, once to the end and
once killed by SIGKILL, and compares every loss and every sample.
"""

import os
import signal
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from killed import compare
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchdata.stateful_dataloader import StatefulDataLoader

from seedcursor import StatefulBatchSampler, StatefulDataset

EPOCHS, KILL_AT = 2, 20  # of 15 steps each
warnings.filterwarnings("ignore", "'set_vital' is deprecated")


class Digits(StatefulDataset[tuple[Tensor, int, int]]):
    """Digits with noise, a function of the seed, the epoch and the index."""

    pixels, labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        pixels = self.pixels[index] / 16 + self.rng(index).normal(0, 0.1, 64)
        return torch.from_numpy(pixels).float(), int(self.labels[index]), index


def train(folder: Path, kill_at: int = 0) -> None:
    """Train from the checkpoint on, if there is one."""
    torch.manual_seed(0)
    dataset = Digits(seed=7)
    sampler = StatefulBatchSampler(dataset, batch_size=120)
    # With a generator of its own it leaves the model's random numbers alone.
    loader: Any = StatefulDataLoader(
        dataset, batch_sampler=sampler, num_workers=2, generator=torch.Generator()
    )
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # without momentum: no state
    first, step = 0, 0
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint", weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        first, step = saved["epoch"], saved["step"]
    with open(folder / "log", "a") as log:
        for epoch in range(first, EPOCHS):
            sampler.set_epoch(epoch)
            for pixels, labels, indices in loader:
                loss = nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                step += 1
                log.write(f"{step} {float(loss.detach()).hex()} {indices.tolist()}\n")
                log.flush()
                state = {"model": model.state_dict(), "data": loader.state_dict()}
                torch.save(state | {"epoch": epoch, "step": step}, folder / "new")
                os.replace(folder / "new", folder / "checkpoint")
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    compare(train, partial(train, kill_at=KILL_AT), train)
