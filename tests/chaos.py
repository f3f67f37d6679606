"""Kill a training job at random moments, again and again: ``python tests/chaos.py [KILLS [SEED]]``.

A job has ranks that meet in a collective at every step, workers, and rank 0 which logs what was
trained and writes checkpoints. It is killed by SIGKILL: the whole job, one rank, one worker, or
rank 0 while it writes a checkpoint. Each restart draws other numbers of ranks, workers and samples
per batch. In the end the log must be that of a run that nobody killed: nothing lost, nothing
repeated, no bit different. Half of the kills hit a shuffled dataset, half a stream.

What is committed, is what a checkpoint holds. The log is flushed before the checkpoint is renamed
into its place, and the checkpoint says how long the log was; a restart cuts the log there. So what
was trained after the checkpoint leaves the log with the weights that it went into.

Jobs are forked from a process that has imported torch, so a restart takes a tenth of a second.
"""

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from samples import Keyed, KeyedStream

from seedcursor import KeyedPermutation, StatefulDataLoader

RECORDS = 997
SEED = 11
SKIPPED = [*range(0, RECORDS, 7), *range(500, 540)]
DATASETS = {"map": Keyed(RECORDS, SEED), "stream": KeyedStream(RECORDS, SKIPPED, SEED)}
KINDS = ("job", "rank", "worker", "write")
FORK = multiprocessing.get_context("fork")


class Life(NamedTuple):
    """A job from its start to its end."""

    number: int
    ranks: int
    workers: int
    batch_size: int
    checkpoint_every: int  # steps
    last_epoch: int  # when it ends by itself


# ---- the job


def load(kind, batch_size, workers=0, **world):
    shuffle = True if kind == "map" else None
    return StatefulDataLoader(
        DATASETS[kind], batch_size, shuffle, num_workers=workers, collate_fn=list, **world
    )


def train(kind, life, rank, folder):
    """One rank of a job: go on from the checkpoint."""
    os.setpgid(0, 0)  # its workers can be ended with it
    with (folder / "errors").open("a") as errors:
        os.dup2(errors.fileno(), 2)
    meeting = f"file://{folder}/meeting-{life.number}"
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", meeting, limit, life.ranks, rank)
    loader, weight, logged = load(kind, life.batch_size, life.workers), 0, 0
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint", weights_only=True)
        loader.load_state_dict(saved["data"])
        weight, logged = saved["weight"], saved["logged"]
    with (folder / "log").open("a") as log:
        if rank == 0:
            log.truncate(logged)
        step = 0
        while loader.epoch <= life.last_epoch:
            first = loader.cursor
            for batch in loader:
                trained = gather(kind, batch, range(first, loader.cursor), life.ranks)
                weight = (weight + sum(draw for *_, draw in trained)) % 2**63
                first, step = loader.cursor, step + 1
                if rank == 0:
                    log.writelines(f"{' '.join(map(str, sample))}\n" for sample in trained)
                    if step % life.checkpoint_every == 0:
                        save(folder / "checkpoint", loader, weight, log)
        if rank == 0:
            save(folder / "checkpoint", loader, weight, log)
    dist.barrier()


def gather(kind, batch, step, ranks):
    """What all ranks train in a step: epoch, position, index and draw, by position."""
    shares = [None] * ranks
    dist.all_gather_object(shares, batch)
    samples = [sample for share in shares for sample in share]
    epoch = samples[0][1]
    order = KeyedPermutation(RECORDS, SEED, epoch)
    trained = {
        (epoch, order.inverse(index) if kind == "map" else index, index, draw)
        for index, epoch, draw in samples
    }
    assert len(samples) - len(trained) < ranks, "more was repeated than there are ranks to fill"
    assert all(position in step for _, position, *_ in trained)
    return sorted(trained)


def save(path, loader, weight, log):
    """Flush the log, write aside, and rename: a kill leaves the old checkpoint or the new one."""
    log.flush()
    os.fsync(log.fileno())
    state = {"data": loader.state_dict(), "weight": weight, "logged": log.tell()}
    with path.with_suffix(".new").open("wb") as file:
        torch.save(state | {"model": torch.zeros(500_000)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path.with_suffix(".new"), path)


# ---- the killer


class Killer:
    """Starts jobs and kills them, and counts."""

    def __init__(self, kind, seed, folder):
        self.kind = kind
        self.folder = folder
        self.chance = random.Random(f"{kind} {seed}")
        self.kills = Counter()
        self.torn = 0  # kills that left a checkpoint half written
        self.lives = 0

    def start(self, last_epoch=2**31):
        chance = self.chance
        ranks, workers = chance.choice([1, 2, 2, 3]), chance.choice([0, 1, 1, 2])
        self.lives += 1
        life = Life(
            self.lives, ranks, workers, chance.randint(1, 6), chance.randint(1, 4), last_epoch
        )
        job = []
        for rank in range(ranks):
            args = self.kind, life, rank, self.folder
            job.append(FORK.Process(target=train, args=args))
            job[-1].start()
        return job

    def kill_one_life(self):
        job, how = self.start(), self.chance.choice(KINDS)
        try:
            self.wait(job)
            self.kills[getattr(self, f"kill_{how}")(job)] += 1
        finally:
            end(job)
        self.torn += (self.folder / "checkpoint.new").exists()
        (self.folder / "checkpoint.new").unlink(missing_ok=True)

    def wait(self, job):
        time.sleep(self.chance.uniform(0, 0.6))
        assert all(rank.is_alive() for rank in job), (self.folder / "errors").read_text()

    # Each says what it has killed.

    def kill_job(self, job):
        for rank in job:
            os.kill(rank.pid, signal.SIGKILL)
        return "job"

    def kill_rank(self, job):
        os.kill(self.chance.choice(job).pid, signal.SIGKILL)
        time.sleep(self.chance.uniform(0, 0.1))  # the others go on until they miss it
        return "rank"

    def kill_worker(self, job):
        victims = until(lambda: [pid for rank in job for pid in children(rank.pid)], seconds=1)
        if not victims:
            return self.kill_rank(job)
        try:
            os.kill(self.chance.choice(victims), signal.SIGKILL)
        except ProcessLookupError:  # its pass came to its end in this moment
            return self.kill_rank(job)
        until(lambda: not all(rank.is_alive() for rank in job), seconds=1)
        return "worker"

    def kill_write(self, job):
        until((self.folder / "checkpoint.new").exists, seconds=2)
        time.sleep(self.chance.uniform(0, 0.003))
        os.kill(job[0].pid, signal.SIGKILL)
        return "write"

    def finish(self):
        """Let the job come to the end of its epoch."""
        epoch = 0
        if (self.folder / "checkpoint").exists():
            epoch = torch.load(self.folder / "checkpoint", weights_only=True)["data"]["epoch"]
        job = self.start(last_epoch=epoch)
        for rank in job:
            rank.join(120)
        codes = [rank.exitcode for rank in job]
        end(job)
        errors = (self.folder / "errors").read_text()
        assert codes == [0] * len(job), errors
        assert "AssertionError" not in errors, errors
        return epoch + 1


def until(condition, seconds):
    """Wait for a condition, though not for ever; returns what it was in the end."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.0005)
    return found


def children(pid):
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def end(job):
    """End what is left of a job: a launcher does that too, when one of its ranks has died."""
    for rank in job:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.kill()
        rank.join()


# ---- the judge


def uninterrupted(kind, epochs):
    """What a run logs that nobody killed, and its weight."""
    lines, weight = [], 0
    loader = load(kind, 16, rank=0, world_size=1)
    while loader.epoch < epochs:
        order = KeyedPermutation(RECORDS, SEED, loader.epoch)
        for batch in loader:
            for index, epoch, draw in batch:
                position = order.inverse(index) if kind == "map" else index
                lines.append(f"{epoch} {position} {index} {draw}")
                weight = (weight + draw) % 2**63
    return lines, weight


def judge(kind, epochs, folder):
    """Samples, and how many of them are lost, repeated, and different."""
    expected, weight = uninterrupted(kind, epochs)
    lines = (folder / "log").read_text().splitlines()
    places = Counter(tuple(line.split()[:2]) for line in lines)
    wanted = {tuple(line.split()[:2]) for line in expected}
    lost = len(wanted - places.keys())
    repeated = places.total() - len(places)
    different = len(set(lines) - set(expected))
    final = torch.load(folder / "checkpoint", weights_only=True)
    same = lines == expected and final["weight"] == weight
    assert same == (not (lost or repeated or different)), "the log's order or the weight is another"
    return len(lines), lost, repeated, different


def main():
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(10**6)
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(f"seed {seed}", flush=True)
    figures = Counter()
    for kind in DATASETS:
        with tempfile.TemporaryDirectory() as name:
            killer = Killer(kind, seed, Path(name))
            while killer.kills.total() < -(-kills // len(DATASETS)):
                killer.kill_one_life()
            epochs = killer.finish()
            samples, lost, repeated, different = judge(kind, epochs, Path(name))
        print(
            f"{kind}: {killer.kills.total()} kills ("
            + ", ".join(f"{how} {killer.kills[how]}" for how in KINDS)
            + f"; {killer.torn} left a checkpoint half written), {killer.lives - 1} restarts, "
            f"{epochs} epochs, {samples} samples: {lost} lost, {repeated} repeated, "
            f"{different} different",
            flush=True,
        )
        figures.update(kills=killer.kills.total(), restarts=killer.lives - 1, samples=samples)
        figures.update(lost=lost, repeated=repeated, different=different)
    print("all: " + ", ".join(f"{figures[name]} {name}" for name in figures))
    sys.exit(figures["lost"] + figures["repeated"] + figures["different"] > 0)


if __name__ == "__main__":
    main()
