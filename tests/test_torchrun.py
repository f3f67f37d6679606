"""Ranks under the real launcher: equal steps, one state, and another number of ranks afterwards."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

from samples import Keyed, KeyedStream, flat
from torchrun_job import HEAD, RECORDS, SEED, SKIPPED, data_and_model, right_and_all

from seedcursor import KeyedPermutation

JOB = Path(__file__).with_name("torchrun_job.py")
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
SAVED, LOADED = 2, 3  # ranks
NAMES = ["map spawn", "stream forkserver", "map fork", "sampler"]


def launch(part, ranks, folder):
    command = [*LAUNCH, f"--nproc-per-node={ranks}", str(JOB), part, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{part}-{rank}.json").read_text()) for rank in range(ranks)]


def test_nothing_is_lost_between_two_jobs(tmp_path):
    # One test, since a job takes its time to start.
    train, resume = launch("train", SAVED, tmp_path), launch("resume", LOADED, tmp_path)
    for name in NAMES:
        ranks_share_each_step_and_a_state(train, name)
        other_ranks_go_on_with_what_is_left(train, resume, name)
    a_stream_of_unknown_length_keeps_ranks_in_step(train)
    a_plain_loaders_workers_know_the_rank(train)
    the_accuracy_is_that_of_one_process(train + resume)


def samples(ranks, name):
    return [tuple(sample) for rank in ranks for sample in flat(rank[name]["batches"])]


def epoch(name):
    """An epoch's samples in their order, and those that are skipped as None."""
    if name.startswith("stream"):
        stream = KeyedStream(RECORDS, seed=SEED)
        return [None if k in SKIPPED else stream.sample(k, k) for k in range(RECORDS)]
    return [Keyed(RECORDS, SEED)[int(k)] for k in KeyedPermutation(RECORDS, SEED)]


def ranks_share_each_step_and_a_state(train, name):
    states = [rank[name]["states"] for rank in train]
    assert states[0] == states[1]
    order, dealt = epoch(name), [rank[name]["batches"] for rank in train]
    cursors = [0] + [state["cursor"] for state in states[0]]
    assert len(cursors) == HEAD + 1
    if not name.startswith("stream"):
        assert cursors == [8 * k for k in range(HEAD + 1)]
    for step, (first, stop) in enumerate(itertools.pairwise(cursors)):
        expected = {sample for sample in order[first:stop] if sample}
        got = [{tuple(sample) for sample in rank[step]} for rank in dealt]
        assert got[0] | got[1] == expected
        for rank in range(SAVED):
            own = {sample for sample in order[first + rank : stop : SAVED] if sample}
            assert got[rank] == own or (not own and len(got[rank]) == 1)


def other_ranks_go_on_with_what_is_left(train, resume, name):
    head, rest = samples(train, name), samples(resume, name)
    cursor = train[0][name]["states"][-1]["cursor"]
    kept = {sample for sample in epoch(name) if sample}
    assert set(head) | set(rest) == kept
    assert not set(head) & set(rest)
    assert set(head) == {sample for sample in epoch(name)[:cursor] if sample}
    steps = {len(rank[name]["batches"]) for rank in resume}
    assert len(steps) == 1
    ends = [rank[name]["states"][-1] for rank in resume]
    assert ends[0] == ends[1] == ends[2]
    assert ends[0]["cursor"] == RECORDS
    if not name.startswith("stream"):
        assert len(head) == len(set(head))
        assert 0 <= len(rest) - len(set(rest)) < LOADED


def a_stream_of_unknown_length_keeps_ranks_in_step(train):
    # Each step ended in an all-reduce, so a rank that made one more would still wait.
    batches = [rank["whole epoch"]["batches"] for rank in train]
    assert len(batches[0]) == len(batches[1])
    assert all(batch for rank in batches for batch in rank)
    assert {sample[0] for sample in samples(train, "whole epoch")} == set(range(RECORDS)) - set(
        SKIPPED
    )


def a_plain_loaders_workers_know_the_rank(train):
    seen = samples(train, "plain stream")
    assert sorted(seen) == [sample for sample in epoch("stream") if sample]
    for number, rank in enumerate(train):
        assert {sample[0] % SAVED for sample in flat(rank["plain stream"]["batches"])} == {number}


def the_accuracy_is_that_of_one_process(ranks):
    alone = right_and_all(*data_and_model(), rank=0, world_size=1).tolist()
    assert alone[1] == RECORDS
    assert 0 < alone[0] < RECORDS
    assert [rank["accuracy"] for rank in ranks] == [alone] * (SAVED + LOADED)
