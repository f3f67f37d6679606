"""The Trainer of Hugging Face transformers, killed by SIGKILL in mid-epoch and resumed.

``python examples/with_transformers.py`` compares each loss with those of a run that nobody killed.
"""

import os
import signal
from pathlib import Path
from typing import Any, TextIO

import torch
from killed import compare_parts
from sklearn.datasets import load_digits
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from seedcursor import StatefulDataset
from seedcursor.integrations.transformers import StatefulTrainerMixin

KILL_AT = 73  # a step of the second epoch, which has 57


class Digits(StatefulDataset[dict[str, Any]]):
    """Digits with noise of their own in each epoch."""

    def __init__(self) -> None:
        super().__init__(seed=7)
        pixels, labels = load_digits(return_X_y=True)
        self.pixels, self.labels = torch.tensor(pixels / 16).float(), labels.tolist()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        noise = torch.from_numpy(self.rng(index).normal(0, 0.1, 64)).float()
        return {"pixels": self.pixels[index] + noise, "labels": self.labels[index]}


class Model(nn.Module):
    """A small network, which logs its losses and kills its process at one of them."""

    def __init__(self, log: TextIO, kill_after: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 10)
        )
        self.log, self.left = log, kill_after

    def forward(self, pixels: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss, as the Trainer wants it."""
        loss = nn.functional.cross_entropy(self.layers(pixels), labels)
        print(float(loss.detach()).hex(), file=self.log, flush=True)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"loss": loss}


class ExactTrainer(StatefulTrainerMixin, Trainer):
    """The Trainer, with an exact resume."""


def train(folder: Path, workers: int, kill: bool) -> None:
    """Train from the newest checkpoint on, if there is one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=32,
        num_train_epochs=3,
        learning_rate=1e-2,
        save_steps=10,
        dataloader_num_workers=workers,
        dataloader_pin_memory=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    saved = get_last_checkpoint(str(folder))  # type: ignore[no-untyped-call]
    with (folder / f"{len(list(folder.glob('*.txt')))}.txt").open("w") as log:
        model = Model(log, KILL_AT if kill else 0)
        trainer = ExactTrainer(model, arguments, train_dataset=Digits())
        trainer.pop_callback(PrinterCallback)
        trainer.train(resume_from_checkpoint=saved)


if __name__ == "__main__":
    compare_parts(train, killed="in")
