"""Kill a training run in the middle of an epoch, resume it, and compare every loss to the bit.

A small network learns scikit-learn's handwritten digits, each turned, shifted and made noisy at
random, on the CPU:

- A runs through, and loads its data in the main process.
- B loads with 2 workers, is killed by SIGKILL, and goes on from its checkpoint with 1 worker.
- C does what B does by the plain recipe: PyTorch's DataLoader and ``seed_worker``, and a checkpoint
  of the epoch, the batch number and the generator. Its random numbers are not A's from the start,
  so it is compared with C0, which is C with 2 workers and no kill. (Resumed with the same number
  of workers, C would be exact too: a worker's stream depends on which batches the worker gets.)

Run it with ``python examples/digits.py [PICTURE]``. For one run by hand, to kill and to start again
with another number of workers: ``python examples/digits.py seedcursor 2 FOLDER``.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import affine_transform
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from seedcursor import StatefulDataLoader, StatefulDataset, load_rng_state_dict, rng_state_dict

SEED = 7
EPOCHS = 6
BATCH_SIZE = 40
RECORDS = 1797
STEPS_PER_EPOCH = -(-RECORDS // BATCH_SIZE)
CHECKPOINT_EVERY = 10
KILL_AFTER = 2 * STEPS_PER_EPOCH + 25  # the middle of the third epoch, between two checkpoints

Image = NDArray[np.float32]
Sample = tuple[Image, int, int]

# ---- with seedcursor


class Digits(StatefulDataset[Sample]):
    """Digits, each augmented by a function of the seed, the epoch and its index."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.images, self.labels = read_digits()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        return augment(self.images[index], self.rng(index)), self.labels[index], index


def train(checkpoint: Path, workers: int, log: TextIO) -> None:
    """Train from the checkpoint on, if there is one."""
    loader = StatefulDataLoader(Digits(SEED), BATCH_SIZE, shuffle=True, num_workers=workers)
    model, optimizer = make_model()
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        load_rng_state_dict(saved["rng"])  # for dropout
        step = saved["step"]
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            loss = learn(model, optimizer, batch)
            step += 1
            write(log, step, epoch, loss, batch)
            if step % CHECKPOINT_EVERY == 0:
                save(checkpoint, model, optimizer, step, loader.state_dict())


# ---- the same by the plain recipe


class PlainDigits(Dataset[Sample]):
    """The same digits, augmented from NumPy's global generator."""

    def __init__(self) -> None:
        self.images, self.labels = read_digits()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Sample:
        return augment(self.images[index], np.random), self.labels[index], index


def seed_worker(worker_id: int) -> None:
    """As PyTorch's notes on reproducibility have it."""
    worker_seed = torch.initial_seed() % 2**32
    np.random.seed(worker_seed)
    random.seed(worker_seed)


def train_plain(checkpoint: Path, workers: int, log: TextIO) -> None:
    """Train from the checkpoint on: begin its epoch again, and throw away the batches done."""
    generator = torch.Generator().manual_seed(SEED)
    loader = DataLoader(
        PlainDigits(),
        BATCH_SIZE,
        shuffle=True,
        num_workers=workers,
        worker_init_fn=seed_worker,
        generator=generator,
    )
    model, optimizer = make_model()
    step, first_epoch, done = 0, 0, 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["data"]["generator"])
        step, first_epoch, done = saved["step"], saved["data"]["epoch"], saved["data"]["batch"]
    for epoch in range(first_epoch, EPOCHS):
        epoch_start = generator.get_state()
        batches = iter(loader)
        for _ in range(done):
            next(batches)
        if done:
            load_rng_state_dict(saved["rng"])
        for batch in batches:
            loss = learn(model, optimizer, batch)
            step, done = step + 1, done + 1
            write(log, step, epoch, loss, batch)
            if step % CHECKPOINT_EVERY == 0:
                state = {"epoch": epoch, "batch": done, "generator": epoch_start}
                save(checkpoint, model, optimizer, step, state)
        done = 0


# ---- what both share


def read_digits() -> tuple[Image, list[int]]:
    """Images of 8 by 8 with values in ``[0, 1]``, and what they show."""
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).reshape(-1, 8, 8).astype(np.float32), labels.tolist()


def augment(image: Image, rng: np.random.Generator | ModuleType) -> Image:
    """Turn, shift and add noise; ``np.random`` has the methods of a generator."""
    angle = rng.uniform(-0.3, 0.3)  # radians
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([3.5, 3.5])
    shift = centre - turn @ centre + rng.uniform(-1, 1, size=2)
    moved = affine_transform(image, turn, shift, order=1)
    noisy: Image = (moved + rng.normal(0, 0.1, image.shape)).astype(np.float32)
    return noisy[None]


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network that draws random numbers of its own, and an optimizer with a state."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return model, torch.optim.Adam(model.parameters(), lr=2e-3)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> float:
    """Make one step, and return its loss."""
    images, labels, _ = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()


def save(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, data: dict[str, Any]
) -> None:
    """Write aside and rename, so that a kill leaves the old checkpoint or the new one, whole."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "data": data}
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        torch.save(state | {"rng": rng_state_dict(), "step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


class Step(NamedTuple):
    """A line of the log."""

    step: int
    epoch: int
    loss: str  # in hexadecimal, so that equal texts are equal bits
    pixels: int  # a checksum of the batch's images
    indices: list[int]


def write(log: TextIO, step: int, epoch: int, loss: float, batch: list[Tensor]) -> None:
    """Log a step; what is flushed outlives a kill of this process."""
    images, _, indices = batch
    line = Step(step, epoch, loss.hex(), zlib.crc32(images.numpy().tobytes()), indices.tolist())
    print(json.dumps(line), file=log, flush=True)


def train_here(recipe: str, workers: int, folder: Path) -> None:
    """Start a run in this process, or go on with it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    with next_log(folder).open("w") as log:
        {"seedcursor": train, "plain": train_plain}[recipe](folder / "checkpoint.pt", workers, log)


def next_log(folder: Path) -> Path:
    """Each process that works on a run has a log of its own."""
    return folder / f"{len(list(folder.glob('*.jsonl')))}.jsonl"


# ---- the demo: run, kill, compare, draw


class Killed(NamedTuple):
    """A run that was killed and resumed."""

    before: list[Step]  # up to the kill
    after: list[Step]  # from the checkpoint on, so the last steps before the kill come again
    state_bytes: int  # the data's part of the checkpoint

    def final(self) -> list[Step]:
        """The steps that the final weights come from."""
        return self.before[: self.after[0].step - 1] + self.after


def run(recipe: str, workers: int, folder: Path, bar: tqdm, kill: bool = False) -> list[Step]:
    """Train in a process of its own, and return what it logged."""
    bar.set_description(folder.name)
    log, seen = next_log(folder), 0  # lines seen so far
    command = [sys.executable, __file__, recipe, str(workers), str(folder)]
    # Workers complain when the process that they work for is killed.
    errors = subprocess.DEVNULL if kill else None
    with subprocess.Popen(command, stderr=errors) as process:
        while process.poll() is None and not (kill and seen >= KILL_AFTER):
            time.sleep(0.01)
            lines = log.read_bytes().count(b"\n") if log.exists() else 0
            bar.update(lines - seen)
            seen = lines
        if kill:
            process.kill()
    if process.returncode != (-signal.SIGKILL if kill else 0):
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}")
    steps = [Step(*json.loads(line)) for line in log.read_text().splitlines(True) if "\n" in line]
    bar.update(len(steps) - seen)
    return steps


def run_killed(recipe: str, folder: Path, bar: tqdm) -> Killed:
    """Train with 2 workers, kill, and go on with 1."""
    before = run(recipe, 2, folder, bar, kill=True)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    bar.total += len(before) - saved["step"]
    after = run(recipe, 1, folder, bar)
    data = saved["data"]
    tensors = [data.pop(key) for key in list(data) if isinstance(data[key], Tensor)]
    return Killed(before, after, len(json.dumps(data)) + sum(tensor.nbytes for tensor in tensors))


def differing(steps: list[Step], reference: list[Step]) -> list[int]:
    """Which steps' losses are not the reference's to the bit."""
    return [s.step for s in steps if s.loss != reference[s.step - 1].loss]


def report(name: str, killed: Killed, reference: list[Step]) -> bool:
    """Print how a killed run differs from its reference; returns whether it does not."""
    before, after, state_bytes = killed
    wrong_before, wrong_after = differing(before, reference), differing(after, reference)
    wrong = wrong_before + wrong_after
    other = sum(s.pixels != reference[s.step - 1].pixels for s in after)
    seen = Counter((s.epoch, index) for s in killed.final() for index in s.indices)
    lost, repeated = EPOCHS * RECORDS - len(seen), seen.total() - len(seen)
    identical = not (wrong or lost or repeated)
    print(f"{name}: {'identical' if identical else 'not identical'}")
    print(f"   killed after step {len(before)} with 2 workers", end=", ")
    print(f"resumed after step {after[0].step - 1} with 1 worker")
    print(f"   losses that differ: {len(wrong_before)} of {len(before)} before the kill", end=", ")
    print(f"{len(wrong_after)} of {len(after)} after the resume", end="")
    print(f", the first at step {wrong[0]}" if wrong else "")
    print(f"   batches with other pixels after the resume: {other} of {len(after)}")
    print(f"   records lost: {lost}, repeated: {repeated}; data state: {state_bytes:,} bytes")
    return identical


def demo(picture: Path) -> bool:
    """Make the runs, and show what came out; returns whether B is identical to A."""
    total = 4 * EPOCHS * STEPS_PER_EPOCH
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=total, unit="step", disable=None, leave=False) as bar,
    ):
        a = run("seedcursor", 0, Path(folder, "A"), bar)
        b = run_killed("seedcursor", Path(folder, "B"), bar)
        c0 = run("plain", 2, Path(folder, "C0"), bar)
        c = run_killed("plain", Path(folder, "C"), bar)
    print(f"A, seedcursor, uninterrupted with 0 workers: {len(a)} losses")
    identical = report("B, seedcursor, killed and resumed, against A", b, a)
    report("C, the plain recipe, killed and resumed, against C0, its own uninterrupted run", c, c0)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(picture, (a, b), (c0, c))
    print(f"The losses are drawn in {picture}")
    return identical


def draw(picture: Path, *pairs: tuple[list[Step], Killed]) -> None:
    """A column for each recipe: the killed run thin and dark on its thick and light reference."""
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3, 1))
    looks = [
        ("seedcursor", "A: uninterrupted", "B: killed and resumed", "#7CC4F0", "#0B2545"),
        ("plain recipe", "C0: uninterrupted", "C: killed and resumed", "#F5BE7E", "#8C2D04"),
    ]
    for (reference, killed), look, column in zip(pairs, looks, axes.T, strict=True):
        name, name_reference, name_killed, light, dark = look
        top, bottom = column
        steps = [s.step for s in reference]
        expected, losses = (
            np.array([float.fromhex(s.loss) for s in run]) for run in (reference, killed.final())
        )
        kill, resume = len(killed.before), killed.after[0].step - 1
        top.plot(steps, expected, color=light, linewidth=5, label=name_reference)
        top.plot(steps, losses, color=dark, linewidth=1, label=name_killed)
        note = f"SIGKILL after step {kill},\nresumed after step {resume}"
        top.text(kill - 4, 0.1, note, ha="right")
        top.set_title(f"{name}: {np.sum(losses != expected)} of {len(steps)} losses differ")
        top.legend(frameon=False, loc="upper right")
        bottom.fill_between(steps, abs(losses - expected), color=dark, linewidth=1)
        bottom.set_xlabel("step")
        for panel in column:
            panel.axvline(kill, color="#555555", linestyle="--", linewidth=1)
            panel.spines[["top", "right"]].set_visible(False)
            panel.grid(alpha=0.25)
    axes[0, 0].set(ylabel="training loss", ylim=(0, None))
    axes[1, 0].set_ylabel("|difference|")
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        train_here(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(not demo(Path((*sys.argv[1:], "build/digits.png")[0])))
