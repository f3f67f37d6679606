"""A Hugging Face dataset and its transform: killed in mid-epoch, resumed to the bit.

``python examples/with_datasets.py`` trains on scikit-learn's digits, once to the end and
once killed by SIGKILL, and compares every loss and every sample.
"""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import torch
from killed import compare
from sklearn.datasets import load_digits
from torch import nn

from seedcursor import SeededDataset, StatefulDataLoader

EPOCHS, KILL_AT = 2, 20  # of 15 steps each


def noisy(rows: dict[str, Any]) -> dict[str, Any]:
    """A transform as people have it: of whole batches, drawing from a global RNG."""
    pixels = torch.tensor(rows["pixels"]) / 16
    return rows | {"pixels": list(pixels + 0.1 * torch.randn(pixels.shape))}


def digits() -> Any:
    """An Arrow table of the digits, each row noisy by a function of seed, epoch and index."""
    pixels, labels = load_digits(return_X_y=True)
    columns = {"pixels": pixels.tolist(), "label": labels, "index": range(len(labels))}
    return SeededDataset(datasets.Dataset.from_dict(columns).with_transform(noisy), seed=7)


def train(folder: Path, kill_at: int = 0) -> None:
    """Train from the checkpoint on, if there is one."""
    torch.manual_seed(0)
    loader: Any = StatefulDataLoader(digits(), batch_size=120, shuffle=True, num_workers=2)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)  # without momentum: no state
    step = 0
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint", weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        step = saved["step"]
    with open(folder / "log", "a") as log:
        while loader.epoch < EPOCHS:
            for batch in loader:
                loss = nn.functional.cross_entropy(model(batch["pixels"]), batch["label"])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                step += 1
                log.write(f"{step} {float(loss.detach()).hex()} {batch['index'].tolist()}\n")
                log.flush()
                state = {"model": model.state_dict(), "data": loader.state_dict()}
                torch.save(state | {"step": step}, folder / "new")
                os.replace(folder / "new", folder / "checkpoint")
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    compare(train, partial(train, kill_at=KILL_AT), train)
