"""Kill a rank in mid-epoch, then the whole job, go on with more ranks, and count what was trained.

``python examples/elastic.py [FOLDER]`` plays it through, with PyTorch's launcher on the CPU:

1. Two ranks learn scikit-learn's handwritten digits. In the first epoch one of them is killed, and
   the launcher starts both again (``--max-restarts=3``), which go on from the checkpoint.
2. In the second epoch the whole job is killed, the launcher too.
3. Three ranks go on from the checkpoint, to the end of the third epoch.

The job is the part under "the job", and runs by itself too:
``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
torchrun --nnodes=1:1 --nproc-per-node=2 --max-restarts=3 examples/elastic.py FOLDER``.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from seedcursor import KeyedPermutation, StatefulDataLoader, StatefulDataset

SEED = 7
EPOCHS = 3
RECORDS = 1797
BATCH_SIZE = 16  # per rank
CHECKPOINT_EVERY = 10  # steps

# The launcher would let ranks that it restarts meet where the dead ones left their addresses, and
# gloo then waits for those (pytorch/pytorch#135712).
SEPARATE_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

# ---- the job


class Digits(StatefulDataset[tuple[NDArray[np.float32], int, int]]):
    """Digits with noise, each a function of the seed, the epoch and its index."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.pixels, self.labels = load_digits(return_X_y=True)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[NDArray[np.float32], int, int]:
        noise = self.rng(index).normal(0, 0.1, 64)
        return (self.pixels[index] / 16 + noise).astype(np.float32), int(self.labels[index]), index


class Step(NamedTuple):
    """What was drawn for a step, by all ranks."""

    step: int
    epoch: int
    first: int  # the cursor before the step
    stop: int  # the cursor after it
    shares: list[list[int]]  # the indices that each rank got


def train(folder: Path) -> None:
    """One rank: train from the checkpoint on, if there is one."""
    torch.manual_seed(SEED)
    loader = StatefulDataLoader(Digits(SEED), BATCH_SIZE, shuffle=True, num_workers=1)
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    trained: list[Step] = []
    if (folder / "checkpoint.pt").exists():  # rank 0 wrote it, and every rank reads it
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["data"])
        trained = [Step(*step) for step in saved["trained"]]
    dist.barrier()  # all have read it before one writes the next
    while loader.epoch < EPOCHS:
        first = loader.cursor
        for pixels, labels, indices in loader:
            shares: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(shares, indices.tolist())
            step = Step(len(trained) + 1, loader.epoch, first, loader.cursor, shares)
            if dist.get_rank() == 0:
                log(folder, step)  # before the step is made, so that it shows what a kill costs
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pixels), labels)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            trained.append(step)
            first = loader.cursor
            if step.step % CHECKPOINT_EVERY == 0 and dist.get_rank() == 0:
                save(folder, model, loader, trained)
    if dist.get_rank() == 0:
        save(folder, model, loader, trained)
    dist.barrier()
    dist.destroy_process_group()


def save(
    folder: Path, model: nn.Module, loader: StatefulDataLoader[Any], trained: list[Step]
) -> None:
    """Write aside and rename, so that a kill leaves the old checkpoint or the new one, whole.

    The steps that went into the weights are in the same file: so they are committed together.
    """
    state = {"model": model.state_dict(), "data": loader.state_dict()}
    with (folder / "checkpoint.new").open("wb") as file:
        torch.save(state | {"trained": [tuple(step) for step in trained]}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "checkpoint.new", folder / "checkpoint.pt")


def log(folder: Path, step: Step) -> None:
    """Note what was drawn, whatever becomes of it."""
    with (folder / "drawn.jsonl").open("a") as file:
        file.write(json.dumps(step) + "\n")


# ---- the launcher, and what befalls it


def launch(ranks: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a job of so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:1"]
    command += [f"--nproc-per-node={ranks}", "--max-restarts=3", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=localhost:0", __file__, str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", **SEPARATE_STORES}
    with (folder / "stderr").open("a") as errors:  # the launcher has much to say about a kill
        return subprocess.Popen(command, env=environment, stderr=errors)


def ranks_of(job: subprocess.Popen[bytes]) -> list[int]:
    """A job's processes, as Linux tells them."""
    return [
        int(pid) for pid in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    ]


def wait_for(job: subprocess.Popen[bytes], folder: Path, reached: Callable[[Step], bool]) -> None:
    """Wait until the job has drawn such a step."""
    while not any(reached(step) for step in read_log(folder)[-1:]):
        if job.poll() is not None:
            sys.exit(f"the job has ended with status {job.returncode}, see {folder / 'stderr'}")
        time.sleep(0.005)


def read_log(folder: Path) -> list[Step]:
    """What was drawn until now."""
    path = folder / "drawn.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [Step(*json.loads(line)) for line in lines if line.endswith("\n")]


def play(folder: Path) -> None:
    """Run the job, kill one rank, later all, and go on with another number of ranks."""
    job = launch(2, folder)
    wait_for(job, folder, lambda step: step.epoch == 0 and step.first > RECORDS / 2)
    os.kill(ranks_of(job)[1], signal.SIGKILL)
    wait_for(job, folder, lambda step: step.epoch == 1 and step.first > RECORDS / 2)
    for process in [job.pid, *ranks_of(job)]:
        os.kill(process, signal.SIGKILL)
    job.wait()
    if launch(3, folder).wait() != 0:
        sys.exit(f"the job has failed, see {folder / 'stderr'}")


# ---- what was trained


def positions(steps: list[Step], epoch: int) -> list[int]:
    """The indices that were trained in an epoch, by position; what only fills a step left out."""
    indices: list[int] = []
    for step in steps:
        if step.epoch == epoch:
            dealt = itertools.chain(*itertools.zip_longest(*step.shares))
            indices += list(dealt)[: step.stop - step.first]
    return indices


def report(folder: Path) -> bool:
    """Print what the final weights were trained on; returns whether that's each position once."""
    drawn = read_log(folder)
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    trained = [Step(*step) for step in saved["trained"]]
    ranks = [len(step.shares) for step in trained]
    print(f"{len(drawn)} steps drawn, {len(trained)} committed:", end=" ")
    print(f"{ranks.count(2)} by 2 ranks, {ranks.count(3)} by 3; a rank and a job killed")
    print(f"{len(drawn) - len(trained)} were drawn and not committed, so they were drawn again")
    exact = True
    for epoch in range(EPOCHS):
        indices = positions(trained, epoch)
        lost, repeated = RECORDS - len(set(indices)), len(indices) - len(set(indices))
        exact &= indices == KeyedPermutation(RECORDS, SEED, epoch)[:].tolist()
        print(f"epoch {epoch}: {len(indices)} positions, {lost} lost, {repeated} repeated")
    print("each epoch is its order, position by position" if exact else "the order is another")
    return exact


def demo(folder: Path) -> bool:
    """Play it through, and report."""
    play(folder)
    return report(folder)


if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # the launcher has started this
        train(Path(sys.argv[1]))
    elif len(sys.argv) == 2:
        sys.exit(not demo(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as name:
            sys.exit(not demo(Path(name)))
