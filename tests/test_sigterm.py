"""The job in ``docs/when-a-job-dies.md`` saves when it is told to end, and goes on to the bit."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

PAGE = Path(__file__).parent.parent / "docs" / "when-a-job-dies.md"
JOB = re.search(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)[1]


# The same on more records, and in no hurry, so that signals come in the middle of steps.
LONGER = JOB.replace("linspace(0, 1, 64)", "linspace(0, 1, 1600)").replace(
    "optimizer.step()\n", "optimizer.step(); __import__('time').sleep(0.005)\n"
)
COMMAND = [sys.executable, "-c", LONGER]


def workers(job):
    found = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text()
    return [int(pid) for pid in found.split()]


def tell_all(job):
    os.killpg(job.pid, signal.SIGTERM)


def kill_workers_first(job):
    while not (victims := workers(job)):
        time.sleep(0.001)
    for worker in victims:
        os.kill(worker, signal.SIGKILL)
    job.send_signal(signal.SIGTERM)


def test_a_job_that_is_told_to_end_saves_first(tmp_path):
    assert "1600" in LONGER
    assert "sleep" in LONGER
    weights = {}
    for tell in (None, tell_all, kill_workers_first):
        folder = tmp_path / getattr(tell, "__name__", "alone")
        folder.mkdir()
        if tell:
            job = subprocess.Popen(
                COMMAND, cwd=folder, start_new_session=True, stderr=subprocess.PIPE, text=True
            )
            while not (folder / "checkpoint.pt").exists():
                assert job.poll() is None
                time.sleep(0.001)
            saved_before = (folder / "checkpoint.pt").stat().st_mtime_ns
            tell(job)
            _, errors = job.communicate(timeout=60)
            assert job.returncode == 1, errors
            assert "ended by SIGTERM" in errors or "in until_ended" in errors
            assert (folder / "checkpoint.pt").stat().st_mtime_ns > saved_before
            data = torch.load(folder / "checkpoint.pt", weights_only=True)["data"]
            assert (data["epoch"], data["cursor"]) < (2, 0)
            assert data["cursor"] > 0
        done = subprocess.run(COMMAND, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        assert (saved["data"]["epoch"], saved["data"]["cursor"]) == (2, 0)
        weights[tell] = torch.cat([tensor.flatten() for tensor in saved["model"].values()])
    assert torch.equal(weights[tell_all], weights[None])
    assert torch.equal(weights[kill_workers_first], weights[None])
