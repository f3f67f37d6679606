"""A training loop on Accelerate, killed by SIGKILL in the middle of an epoch and resumed.

``python examples/with_accelerate.py`` compares each loss with those of a run that nobody killed.
"""

import os
import signal
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import torch
from accelerate import Accelerator
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
    with (folder / f"from-{saved}.txt").open("w") as log:
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


def run(folder: Path, workers: int, kill: bool = False) -> list[str]:
    """Train in a process of its own, and return the newest log."""
    folder.mkdir(exist_ok=True)
    process = get_context("fork").Process(target=train, args=(folder, workers, kill))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if kill else 0)
    return max(folder.glob("*.txt"), key=lambda log: log.stat().st_mtime_ns).read_text().split()


def compare() -> bool:
    """Whether the losses are the same to the bit."""
    with tempfile.TemporaryDirectory() as folder:
        whole = run(Path(folder, "whole"), workers=0)
        killed = run(Path(folder, "parts"), workers=2, kill=True)
        resumed = run(Path(folder, "parts"), workers=0)
    print(f"killed after step {len(killed)}, resumed after step {len(whole) - len(resumed)}")
    same = killed == whole[: len(killed)] and resumed == whole[-len(resumed) :]
    print(f"{len(resumed)} losses after the resume: {'identical' if same else 'NOT identical'}")
    return same


if __name__ == "__main__":
    sys.exit(not compare())
