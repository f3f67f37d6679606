"""Lightning trains on digits, is killed within an epoch, and goes on as if it had not been.

What an exact resume needs is marked (1) to (3). Where seedcursor is installed, Lightning finds the
callback of (2) by itself. A run takes its steps since the last checkpoint again.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits

from seedcursor import StatefulDataLoader, StatefulDataset, load_rng_state_dict, rng_state_dict
from seedcursor.integrations.lightning import ExactResume


class Digits(StatefulDataset[Any]):
    """Images of digits, with noise of its own for each and in each epoch."""

    images, labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        noise = self.rng(index).normal(0, 0.1, 64)
        return (self.images[index] / 16 + noise).astype(np.float32), int(self.labels[index])


class Classifier(LightningModule):  # noqa: D101
    def __init__(self, log: Path, killed_at: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        parts = (torch.nn.Linear(64, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 10))
        self.net, self.losses, self.killed_at = torch.nn.Sequential(*parts), log, killed_at
        self.rng: dict[str, Any] | None = None

    def training_step(self, batch: Any, step: int) -> torch.Tensor:  # noqa: D102
        if self.global_step == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        with self.losses.open("a") as file:
            print(self.current_epoch, step, float(loss.detach()).hex(), file=file)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.Adam(self.parameters(), 1e-3)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # noqa: D102
        checkpoint["rng"] = rng_state_dict()  # (3) what dropout draws from

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # noqa: D102
        self.rng = checkpoint["rng"]

    def on_train_start(self) -> None:  # noqa: D102
        if self.rng is not None:
            load_rng_state_dict(self.rng)


def train(folder: Path, killed_at: int) -> None:
    """Train for two epochs of 29 steps, from the newest checkpoint on."""
    loader = StatefulDataLoader(Digits(), batch_size=64, shuffle=True, num_workers=2)  # (1)
    saving = ModelCheckpoint(folder, "{step:03d}", every_n_train_steps=7, save_top_k=-1)
    callbacks = [ExactResume(), saving]  # (2)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = Trainer(accelerator="cpu", max_epochs=2, callbacks=callbacks, **quiet)  # type: ignore[arg-type]
    saved = max(folder.glob("*.ckpt"), default=None)
    trainer.fit(Classifier(folder / "losses", killed_at), loader, ckpt_path=saved)


def main() -> None:
    """Train in one go, and once more with a kill."""
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as cut:
        for folder, killed_at in [(whole, -1), (cut, 40), (cut, -1)]:
            run = fork.Process(target=train, args=(Path(folder), killed_at))
            run.start()
            run.join()
            losses = set(Path(folder, "losses").read_text().splitlines())
            print("killed" if run.exitcode == -signal.SIGKILL else "ended", "at", len(losses))
        same = losses == set(Path(whole, "losses").read_text().splitlines())
    print("every loss is the same, to the bit" if same else "the losses differ")
    sys.exit(not same)


if __name__ == "__main__":
    main()
