"""The elastic example: what a launcher's restart and another number of ranks do to an epoch."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import torch

from seedcursor import KeyedPermutation

EXAMPLE = Path(__file__).parent.parent / "examples" / "elastic.py"
RECORDS = 1797


def test_each_position_is_committed_once(tmp_path):
    command = [sys.executable, str(EXAMPLE), str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "stderr").read_text()
    assert done.stdout.count("1797 positions, 0 lost, 0 repeated") == 3

    trained = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["trained"]
    assert [step for step, *_ in trained] == list(range(1, len(trained) + 1))
    assert {len(shares) for *_, shares in trained} == {2, 3}
    assert all(len({len(share) for share in shares}) == 1 for *_, shares in trained)
    for epoch in range(3):
        order, cursor, counts = KeyedPermutation(RECORDS, 7, epoch), 0, Counter()
        for _, _, first, stop, shares in (step for step in trained if step[1] == epoch):
            assert first == cursor
            dealt = [index for share in shares for index in share]
            assert set(dealt) == set(order[first:stop].tolist())
            counts.update(dealt)
            cursor = stop
        assert cursor == RECORDS
        # Only the last, short step repeats, and fewer samples than there are ranks.
        assert len(counts) == RECORDS
        assert 0 <= counts.total() - RECORDS < 3

    drawn = [json.loads(line) for line in (tmp_path / "drawn.jsonl").read_text().splitlines()]
    assert len(drawn) > len(trained)  # the kills have cost steps, which were drawn again
    committed = {step: rest for step, *rest in trained}
    for step, *rest in drawn:
        # By as many ranks, the same was drawn; more of them go on from the checkpoint in longer
        # steps.
        assert rest == committed[step] or len(rest[-1]) != len(committed[step][-1])
