"""Examples that are killed and resumed, and compare every loss and batch by themselves."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


# How many steps the stream has depends on Python's own sources.
@pytest.mark.parametrize(
    ("name", "steps"),
    [
        ("with_dataloader", "20: all 30"),
        ("with_dcp", "20: all 30"),
        ("with_torchdata", "20: all 30"),
        ("with_datasets", "20: all 30"),
        ("stream", r"16: all \d\d"),
    ],
)
def test_the_example_is_exact(name, steps):
    command = [sys.executable, EXAMPLES / f"{name}.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    said = f"killed at step {steps} losses and batches are identical\n"
    assert re.fullmatch(said, done.stdout)
