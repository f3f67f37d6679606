"""What the examples share: a training is run in a process of its own, killed, and compared."""

import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context
from pathlib import Path

Train = Callable[[Path], None]  # trains in a folder, from the newest checkpoint there on


def run(train: Train, folder: Path, kill: bool = False) -> None:
    """Train in a process of its own, which must be killed, or else must end well."""
    folder.mkdir(exist_ok=True)
    process = get_context("fork").Process(target=train, args=(folder,))
    process.start()
    process.join()
    assert process.exitcode == (-signal.SIGKILL if kill else 0), process.exitcode


def compare(whole: Train, killed: Train, resumed: Train) -> None:
    """Exit with an error unless the run that is killed and resumed logs what the whole one does."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run(whole, folder / "whole")
        run(killed, folder / "killed", kill=True)
        step = len((folder / "killed" / "log").read_text().splitlines())
        run(resumed, folder / "killed")
        logs = [(folder / name / "log").read_text() for name in ("whole", "killed")]
    if logs[0] != logs[1]:
        sys.exit("the losses differ")
    steps = len(logs[0].splitlines())
    print(f"killed at step {step}: all {steps} losses and batches are identical")


def compare_parts(train: Callable[..., None], killed: str) -> None:
    """As `compare`, of processes with a log of losses each, in which steps come again.

    Args:
        train: Called with the folder, the number of workers, and whether to kill.
        killed: Whether it is killed ``"after"`` or ``"in"`` the last step that it logs.
    """
    logs = []
    with tempfile.TemporaryDirectory() as folder:
        for name, workers, kill in (("whole", 0, False), ("parts", 2, True), ("parts", 0, False)):
            run(partial(train, workers=workers, kill=kill), Path(folder, name), kill)
            logs.append(max(Path(folder, name).glob("*.txt")).read_text().split())
    whole, first, last = logs
    print(f"killed {killed} step {len(first)}, resumed after step {len(whole) - len(last)}")
    same = first == whole[: len(first)] and last == whole[-len(last) :]
    print(f"{len(last)} losses after the resume: {'identical' if same else 'NOT identical'}")
    sys.exit(not same)
