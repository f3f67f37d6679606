"""Kill a training run in the middle of an epoch, resume it, and compare every loss to the bit.

A small network learns scikit-learn's handwritten digits, each shifted, turned and blurred with
noise at random, on the CPU:

- **A** runs through, and loads its data in the main process.
- **B** loads with 2 workers, is killed by SIGKILL, and goes on from its checkpoint with 1 worker.
- **C** does what B does, by the plain recipe: PyTorch's ``DataLoader``, ``seed_worker``, and a
  checkpoint of the epoch, the batch number and the generator. It draws other numbers than A from
  the start, so it is compared with an uninterrupted run of its own, **C0**.

Run it with ``python examples/digits.py [PICTURE]``. For one run by hand, to kill and to start again
with another number of workers: ``python examples/digits.py seedcursor 2 FOLDER``.
"""

import json
import os
import random
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
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.ndimage import affine_transform  # type: ignore[import-untyped]
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm  # type: ignore[import-untyped]

from seedcursor import StatefulDataLoader, StatefulDataset, load_rng_state_dict, rng_state_dict

SEED = 7
EPOCHS = 6
BATCH_SIZE = 40
RECORDS = 1797
STEPS_PER_EPOCH = -(-RECORDS // BATCH_SIZE)
STEPS = EPOCHS * STEPS_PER_EPOCH
CHECKPOINT_EVERY = 10
KILL_AFTER = 2 * STEPS_PER_EPOCH + 25  # the middle of the third epoch, between two checkpoints

Image = NDArray[np.float32]
Sample = tuple[Image, int, int]


# ------------------------------------------------------------------ the run with seedcursor


class Digits(StatefulDataset[Sample]):
    """Digits whose augmentation is a function of the seed, the epoch and the index."""

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
        loader.load_state_dict(saved["data"])  # where the data stands
        load_rng_state_dict(saved["rng"])  # what dropout draws next
        step = saved["step"]
    for epoch in range(loader.epoch, EPOCHS):
        for batch in loader:
            loss = learn(model, optimizer, batch)
            step += 1
            write(log, step, epoch, loss, batch)
            if step % CHECKPOINT_EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": loader.state_dict(),
                    "rng": rng_state_dict(),
                    "step": step,
                }
                save(state, checkpoint)


# ------------------------------------------------------------------ the same by the plain recipe


class PlainDigits(Dataset[Sample]):
    """The same digits, drawing from the worker's global generator."""

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
    """Train from the checkpoint on: start its epoch again, and throw away the batches done."""
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
    first_epoch, done, step, rng = 0, 0, 0, rng_state_dict()
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        generator.set_state(saved["data"]["generator"])
        first_epoch, done = saved["data"]["epoch"], saved["data"]["batch"]
        step, rng = saved["step"], saved["rng"]
    for epoch in range(first_epoch, EPOCHS):
        epoch_start = generator.get_state()
        batches = iter(loader)
        if epoch == first_epoch:
            for _ in range(done):
                next(batches)
            load_rng_state_dict(rng)
        for number, batch in enumerate(batches, 1 + (done if epoch == first_epoch else 0)):
            loss = learn(model, optimizer, batch)
            step += 1
            write(log, step, epoch, loss, batch)
            if step % CHECKPOINT_EVERY == 0:
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "data": {"epoch": epoch, "batch": number, "generator": epoch_start},
                    "rng": rng_state_dict(),
                    "step": step,
                }
                save(state, checkpoint)


# ------------------------------------------------------------------ what both share


def read_digits() -> tuple[Image, list[int]]:
    """Images of 8 by 8 with values in ``[0, 1]``, and what they show."""
    pixels, labels = load_digits(return_X_y=True)
    return (pixels / 16).reshape(-1, 8, 8).astype(np.float32), labels.tolist()


def augment(image: Image, rng: np.random.Generator | ModuleType) -> Image:
    """Turn, shift and add noise. ``np.random``, the module, has the same methods."""
    angle = rng.uniform(-0.3, 0.3)  # radians
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.array([[cos, -sin], [sin, cos]])
    centre = np.array([3.5, 3.5])
    offset = centre - matrix @ centre + rng.uniform(-1, 1, size=2)
    turned = affine_transform(image, matrix, offset, order=1)
    noisy: Image = (turned + rng.normal(0, 0.1, image.shape)).astype(np.float32)
    return noisy[None]


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network with randomness of its own, and an optimizer with a state."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.3), nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, batch: list[Tensor]) -> float:
    """Make one step, and return its loss."""
    images, labels, _ = batch
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


class Step(NamedTuple):
    """A line of the log."""

    step: int
    epoch: int
    loss: str  # in hexadecimal, so that equal texts are equal bits
    pixels: int  # a checksum of the batch's images
    indices: list[int]


def write(log: TextIO, step: int, epoch: int, loss: float, batch: list[Tensor]) -> None:
    """Log a step; once it is flushed, a kill of this process can't take it back."""
    images, _, indices = batch
    line = Step(step, epoch, loss.hex(), zlib.crc32(images.numpy().tobytes()), indices.tolist())
    print(json.dumps(line), file=log, flush=True)


def save(state: dict[str, Any], path: Path) -> None:
    """Write aside and rename, so that a kill leaves the old checkpoint or the new one, whole."""
    aside = path.with_suffix(".new")
    with aside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)


RECIPES = {"seedcursor": train, "plain": train_plain}


def train_here(recipe: str, workers: int, folder: Path) -> None:
    """What the processes of the demo do: one run, or what is left of it."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    random.seed(SEED)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    folder.mkdir(parents=True, exist_ok=True)
    with next_log(folder).open("w") as log:
        RECIPES[recipe](folder / "checkpoint.pt", workers, log)


def next_log(folder: Path) -> Path:
    """Each process that works on a run has a log of its own."""
    return folder / f"{len(list(folder.glob('*.jsonl')))}.jsonl"


# ------------------------------------------------------------------ the demo: run, kill, compare


class Killed(NamedTuple):
    """A run that was killed and resumed."""

    before: list[Step]  # up to the kill
    after: list[Step]  # from the checkpoint on: the last steps before the kill are made again
    state_bytes: int  # of the data's part of the checkpoint

    def final(self) -> list[Step]:
        """The steps that the final weights come from."""
        return self.before[: self.after[0].step - 1] + self.after


def run(
    recipe: str, workers: int, folder: Path, bar: "tqdm[None]", kill_after: int | None = None
) -> list[Step]:
    """Train in a process of its own; kill it once it has logged ``kill_after`` steps."""
    log, killed, done = next_log(folder), False, 0
    command = [sys.executable, __file__, recipe, str(workers), str(folder)]
    # What the system has to say about a killed process is of no interest; all else is shown.
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stderr=errors) as process,
    ):
        while process.poll() is None:
            time.sleep(0.01)
            lines = log.read_bytes().count(b"\n") if log.exists() else 0
            bar.update(lines - done)
            done = lines
            if kill_after is not None and done >= kill_after:
                process.kill()
                killed = True
                break
        process.wait()
        if not killed:
            errors.seek(0)
            sys.stderr.write(errors.read())
            if process.returncode != 0:
                sys.exit(f"{' '.join(command)}: exit status {process.returncode}")
    with log.open() as file:
        steps = [Step(*json.loads(line)) for line in file if line.endswith("\n")]
    bar.update(len(steps) - done)
    return steps


def run_killed(recipe: str, folder: Path, bar: "tqdm[None]") -> Killed:
    """Train with 2 workers, kill, and go on with 1."""
    before = run(recipe, 2, folder, bar, kill_after=KILL_AFTER)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    bar.total += before[-1].step - saved["step"]  # what has to be done again
    after = run(recipe, 1, folder, bar)
    data = saved["data"]
    tensors = [data.pop(key) for key in list(data) if isinstance(data[key], Tensor)]
    state_bytes = len(json.dumps(data)) + sum(tensor.nbytes for tensor in tensors)
    return Killed(before, after, state_bytes)


def differing(steps: list[Step], reference: list[Step]) -> list[int]:
    """The steps whose losses are not the reference's to the bit."""
    return [s.step for s in steps if s.loss != reference[s.step - 1].loss]


def lost_and_repeated(steps: list[Step]) -> tuple[int, int]:
    """How many records the epochs of a run lack, and how many they have once too often."""
    seen = Counter((s.epoch, index) for s in steps for index in s.indices)
    return EPOCHS * RECORDS - len(seen), seen.total() - len(seen)


def report(name: str, killed: Killed, reference: list[Step]) -> bool:
    """Print how a killed run differs from its reference; returns whether it does not."""
    before, after = killed.before, killed.after
    wrong_before, wrong_after = differing(before, reference), differing(after, reference)
    pixels = sum(s.pixels != reference[s.step - 1].pixels for s in after)
    lost, repeated = lost_and_repeated(killed.final())
    verdict = f"first at step {wrong_after[0]}" if wrong_after else "identical"
    print(
        f"{name}\n"
        f"   killed after step {len(before)} with 2 workers, "
        f"resumed after step {after[0].step - 1} with 1\n"
        f"   losses that differ: {len(wrong_before)} of {len(before)} before the kill, "
        f"{len(wrong_after)} of {len(after)} after the resume ({verdict})\n"
        f"   batches after the resume with other pixels: {pixels}; "
        f"records lost: {lost}, repeated: {repeated}\n"
        f"   data state: {killed.state_bytes:,} bytes"
    )
    return not (wrong_before or wrong_after or lost or repeated)


def demo(picture: Path) -> bool:
    """Make the runs, print what came out, and draw it; returns whether B is identical to A."""
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as name,
        tqdm(total=4 * STEPS, unit="step", disable=None, leave=False) as bar,
    ):
        folder = Path(name)
        bar.set_description("A")
        a = run("seedcursor", 0, folder / "a", bar)
        bar.set_description("B")
        b = run_killed("seedcursor", folder / "b", bar)
        bar.set_description("C0")
        c0 = run("plain", 2, folder / "c0", bar)
        bar.set_description("C")
        c = run_killed("plain", folder / "c", bar)
    print(f"A: seedcursor, uninterrupted with 0 workers: {len(a)} losses")
    identical = report("B: seedcursor, compared with A", b, a)
    report("C: the plain recipe, compared with its own uninterrupted run with 2 workers", c, c0)
    picture.parent.mkdir(parents=True, exist_ok=True)
    draw(picture, (a, b), (c0, c))
    print(f"{picture}, {time.monotonic() - started:.0f} s")
    return identical and len(a) == len(b.final()) == STEPS


def draw(picture: Path, ours: tuple[list[Step], Killed], plain: tuple[list[Step], Killed]) -> None:
    """One column for each recipe: its two loss curves, and how far they are apart."""
    figure = Figure(figsize=(10, 5.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3, 1))
    draw_column(axes[:, 0], ours, ("A: uninterrupted", "B: killed, resumed"), "#56B4E9", "#0B2545")
    draw_column(
        axes[:, 1], plain, ("C0: uninterrupted", "C: killed, resumed"), "#F0B27A", "#7A2600"
    )
    axes[0, 0].set(title="seedcursor", ylabel="training loss")
    axes[0, 1].set(title="plain DataLoader recipe")
    axes[1, 0].set(ylabel="difference")
    figure.savefig(picture, dpi=150)


def draw_column(
    axes: NDArray[Any],
    runs: tuple[list[Step], Killed],
    names: tuple[str, str],
    light: str,
    dark: str,
) -> None:
    """The killed run thin and dark on its reference, thick and light."""
    top: Axes
    bottom: Axes
    top, bottom = axes
    reference, killed = runs
    final = killed.final()
    steps = [s.step for s in final]
    losses = [float.fromhex(s.loss) for s in final]
    expected = [float.fromhex(s.loss) for s in reference]
    apart = [abs(x - y) for x, y in zip(losses, expected, strict=True)]
    top.plot(steps, expected, color=light, linewidth=4, label=names[0])
    top.plot(steps, losses, color=dark, linewidth=1, label=names[1])
    bottom.fill_between(steps, apart, color=dark)
    for panel in axes:
        panel.axvline(len(killed.before), color="#555555", linestyle="--", linewidth=1)
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    top.legend(frameon=False)
    bottom.set(xlabel="step")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        train_here(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
    else:
        sys.exit(not demo(Path((sys.argv[1:] or ["build/digits.png"])[0])))
