"""seedcursor in PyTorch's own ``DataLoader``: killed in mid-epoch, resumed to the bit.

``python examples/with_dataloader.py`` trains on scikit-learn's digits, once to the end and once
killed by SIGKILL and resumed with fewer workers, and compares every loss and every sample.
"""

import os
import signal
from functools import partial
from pathlib import Path

import torch
from killed import compare
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader

from seedcursor import StatefulBatchSampler, StatefulDataset

EPOCHS, KILL_AT = 2, 20  # of 15 steps each


class Digits(StatefulDataset[tuple[Tensor, int, int]]):
    """Digits with noise, a function of the seed, the epoch and the index."""

    pixels, labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        pixels = self.pixels[index] / 16 + self.rng(index).normal(0, 0.1, 64)
        return torch.from_numpy(pixels).float(), int(self.labels[index]), index


def train(folder: Path, workers: int, kill_at: int = 0) -> None:
    """Train from the checkpoint on, if there is one."""
    torch.manual_seed(0)
    dataset = Digits(seed=7)
    sampler = StatefulBatchSampler(dataset, batch_size=120)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=workers)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # without momentum: no state
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint", weights_only=True)
        model.load_state_dict(saved["model"])
        sampler.load_state_dict(saved["data"])
    with open(folder / "log", "a") as log:
        for epoch in range(sampler.epoch, EPOCHS):
            # track() counts what is delivered, for the loader draws ahead of the loop.
            for pixels, labels, indices in sampler.track(loader):
                loss = nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                log.write(f"{epoch} {float(loss.detach()).hex()} {indices.tolist()}\n")
                log.flush()
                state = {"model": model.state_dict(), "data": sampler.state_dict()}
                torch.save(state, folder / "new")
                os.replace(folder / "new", folder / "checkpoint")
                if epoch * 15 + sampler.cursor // 120 == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    compare(
        partial(train, workers=0),
        partial(train, workers=2, kill_at=KILL_AT),
        partial(train, workers=1),
    )
