"""The snippets of README and of the pages in docs run as they stand, and print what these say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [README, *(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))]


def snippets(page):
    """The page's programs, and what each prints."""
    return re.findall(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", page, re.M | re.S)


def test_readme_has_snippets():
    assert len(snippets(README)) >= 5
    first = snippets(README)[0][0].splitlines()
    assert len([line for line in first if line.strip()]) <= 20


def test_every_snippet_is_found():
    for page in PAGES:
        assert len(snippets(page)) == page.count("```python")


def test_what_a_page_calls_a_test_is_one():
    sources = "".join(path.read_text() for path in (ROOT / "tests").glob("test_*.py"))
    named = {name for page in PAGES for name in re.findall(r"`(test_\w+)`", page)}
    assert len(named) > 20
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []


def unlogged(errors):
    """What is no report of a record that was passed over, which goes to stderr by default."""
    return [line for line in errors.splitlines() if not line.startswith("passed over dataset[")]


@pytest.mark.parametrize(("snippet", "output"), [each for page in PAGES for each in snippets(page)])
def test_snippets_run(snippet, output, tmp_path):
    if "torchvision" in snippet:
        pytest.importorskip("torchvision")
    command = [sys.executable, "-c", snippet]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, output), done.stderr
    # Lightning tells of devices and files there.
    assert "lightning" in snippet or unlogged(done.stderr) == []


@pytest.mark.parametrize(
    "snippet", [snippet for snippet, _ in snippets(README) if "load_state" in snippet]
)
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
