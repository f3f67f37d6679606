"""A short run of ``make chaos``."""

import os
import subprocess
import sys
from pathlib import Path


def test_nothing_is_lost_repeated_or_different():
    command = [sys.executable, str(Path(__file__).with_name("chaos.py")), "20"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all: 20 kills, " in done.stdout
    assert "0 lost, 0 repeated, 0 different" in done.stdout.splitlines()[-1]
