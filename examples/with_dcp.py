"""seedcursor under ``torch.distributed.checkpoint``: killed in mid-epoch, resumed to the bit.

``python examples/with_dcp.py`` trains on scikit-learn's digits, once to the end and once
killed by SIGKILL and resumed with fewer workers, and compares every loss and every sample.
"""

import os
import signal
import warnings
from functools import partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from killed import compare
from sklearn.datasets import load_digits
from torch import Tensor, nn

from seedcursor import StatefulDataLoader, StatefulDataset

EPOCHS, KILL_AT = 2, 20  # of 15 steps each
warnings.filterwarnings("ignore", "torch.distributed is")  # one process


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
    loader = StatefulDataLoader(Digits(seed=7), 120, shuffle=True, num_workers=workers)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # without momentum: no state
    app = {"model": model, "data": loader}  # both have state_dict and load_state_dict
    saved = sorted(folder.glob("step*"))
    if saved:
        dcp.load(app, checkpoint_id=saved[-1])
    step = len(saved)
    with open(folder / "log", "a") as log:
        while loader.epoch < EPOCHS:
            for pixels, labels, indices in loader:
                loss = nn.functional.cross_entropy(model(pixels), labels)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                step += 1
                log.write(f"{step} {float(loss.detach()).hex()} {indices.tolist()}\n")
                log.flush()
                dcp.save(app, checkpoint_id=folder / "new")
                os.replace(folder / "new", folder / f"step{step:02}")
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    compare(
        partial(train, workers=0),
        partial(train, workers=2, kill_at=KILL_AT),
        partial(train, workers=1),
    )
