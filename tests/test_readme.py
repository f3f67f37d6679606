"""README's snippets run as they stand, and print what README says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", README, re.M | re.S)


def test_readme_has_snippets():
    assert len(SNIPPETS) == README.count("```python") >= 5
    first = SNIPPETS[0][0].splitlines()
    assert len([line for line in first if line.strip()]) <= 20


@pytest.mark.parametrize(("snippet", "output"), SNIPPETS)
def test_snippets_run(snippet, output, tmp_path):
    command = [sys.executable, "-c", snippet]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == output


@pytest.mark.parametrize("snippet", [snippet for snippet, _ in SNIPPETS if "load_state" in snippet])
def test_finished_runs_can_be_started_again(snippet, tmp_path):
    command = [sys.executable, "-c", snippet]
    subprocess.run(command, cwd=tmp_path, check=True)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    # The last state is that of the last epoch's last batch, which deserves its warning.
    assert "this pass is empty" in again.stderr


def test_ci_runs_the_commands():
    commands = set(re.findall(r"^    (make \w+)", README, re.M))
    assert {"make demo", "make test"} <= commands
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert commands <= set(ci)
