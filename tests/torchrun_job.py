"""What each rank does in the jobs of ``test_torchrun.py``: ``torchrun_job.py PART FOLDER``.

Every rank notes what it saw in ``FOLDER/PART-RANK.json``, for the test to look at.
"""

import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from samples import Keyed, KeyedStream
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import DataLoader, TensorDataset

from seedcursor import StatefulBatchSampler, StatefulDataLoader

SEED = 5
RECORDS = 101
# Two whole steps of two ranks have nothing left, and of others only one rank has.
SKIPPED = (0, 1, 2, 3, 5, 7, 8, 10, 40, 41, 42, 43, 44, 45, 46, 47, 81, 83, 96, 98, 100)
HEAD = 5  # steps before the checkpoint


def in_step():
    """Meet the other ranks, as a gradient's all-reduce does."""
    met = torch.ones(())
    dist.all_reduce(met)
    assert met == dist.get_world_size()


def go(loader, steps=None, deliver=None):
    """The batches of a pass, or of its first steps, and the state after each."""
    batches, states = [], []
    for batch in deliver or loader:
        in_step()
        batches.append(batch)
        states.append(loader.state_dict())
        if len(batches) == steps:
            break
    return {"batches": batches, "states": states}


def loaders(batch_size, methods):
    """Map-style and a stream, their workers started by each method."""
    for name, method in methods.items():
        kind = name.split()[0]
        dataset = Keyed(RECORDS, SEED) if kind == "map" else KeyedStream(RECORDS, SKIPPED, SEED)
        yield (
            name,
            StatefulDataLoader(
                dataset,
                batch_size,
                shuffle=True if kind == "map" else None,
                num_workers=2 if method else 0,
                multiprocessing_context=method,
                collate_fn=list,
            ),
        )


def train():
    """Go some steps with loaders that are older than the process group, and save them."""
    made = dict(
        loaders(4, {"map spawn": "spawn", "stream forkserver": "forkserver", "map fork": "fork"})
    )
    sampler = StatefulBatchSampler(Keyed(RECORDS, SEED), 4)
    stream = KeyedStream(RECORDS, SKIPPED, SEED)
    start()
    noted = {name: go(loader, HEAD) for name, loader in made.items()}
    plain = DataLoader(Keyed(RECORDS, SEED), batch_sampler=sampler, num_workers=1, collate_fn=list)
    noted["sampler"] = go(sampler, HEAD, sampler.track(plain))
    noted["plain stream"] = {"batches": list(plain_stream(stream))}
    assert all(isinstance(loader, Stateful) for loader in made.values())
    dcp.save({**made, "sampler": sampler}, checkpoint_id=str(folder / "checkpoint"))
    noted["whole epoch"] = go(StatefulDataLoader(stream, 2, num_workers=1, collate_fn=list))
    noted["accuracy"] = accuracy()
    return noted


def resume():
    """Go on from there with another number of ranks, workers and another batch size."""
    made = dict(loaders(3, {"map spawn": None, "stream forkserver": None, "map fork": "fork"}))
    sampler = StatefulBatchSampler(Keyed(RECORDS, SEED), 3)
    start()
    dcp.load({**made, "sampler": sampler}, checkpoint_id=str(folder / "checkpoint"))
    noted = {name: go(loader) for name, loader in made.items()}
    plain = DataLoader(Keyed(RECORDS, SEED), batch_sampler=sampler, collate_fn=list)
    noted["sampler"] = go(sampler, None, sampler.track(plain))
    noted["accuracy"] = accuracy()
    return noted


def start():
    """Join the group; what the launcher said is gone, so workers can only know it from us."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        del os.environ[name]


def plain_stream(stream):
    """A stream through PyTorch's loader, whose spawned workers can't ask for the group."""
    return DataLoader(
        stream, 4, num_workers=1, multiprocessing_context="forkserver", collate_fn=list
    )


def data_and_model():
    """Points of three classes, and a model that is right about some."""
    generator = torch.Generator().manual_seed(1)
    points = torch.randn(RECORDS, 6, generator=generator)
    weights = torch.randn(6, 3, generator=generator)
    noise = torch.randn(RECORDS, 3, generator=generator)
    labels = (points @ weights + 2 * noise).argmax(1)
    return TensorDataset(points, labels), weights


def right_and_all(dataset, weights, **world):
    """How many are right, of how many, among those that this rank gets."""
    counts = torch.zeros(2, dtype=torch.int64)
    for points, labels in StatefulDataLoader(dataset, 8, pad=False, **world):
        right = ((points @ weights).argmax(1) == labels).sum()
        counts += torch.tensor([int(right), len(labels)])
    return counts


def accuracy():
    """As the ranks find it together; they may make unlike numbers of steps, so meet once."""
    counts = right_and_all(*data_and_model())
    dist.all_reduce(counts)
    return counts.tolist()


if __name__ == "__main__":
    part, folder = sys.argv[1], Path(sys.argv[2])
    rank = os.environ["RANK"]
    noted = {"train": train, "resume": resume}[part]()
    (folder / f"{part}-{rank}.json").write_text(json.dumps(noted))
    dist.barrier()  # who leaves while another is still talking may hang in torch 2.4
    dist.destroy_process_group()
