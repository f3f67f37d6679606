"""Experiments in processes of their own: the one place of the audit that starts them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import torch
from attrs import frozen

T = TypeVar("T")


class Hung(Exception):  # noqa: N818 - what happened, not what is wrong with the audit
    """The experiment took longer than it may."""


class Died(Exception):  # noqa: N818
    """The experiment's process ended before it had a result."""


class Broke(Exception):  # noqa: N818
    """The experiment raised; with its traceback."""

    @property
    def line(self) -> str:
        """The traceback's last line."""
        return str(self).strip().splitlines()[-1].strip()


@frozen
class Place:
    """Where an experiment is, seen by the process that waits for it."""

    _shared: Any

    @classmethod
    def make(cls) -> Place:
        return cls(multiprocessing.RawValue("q", -1))

    def put(self, index: int) -> None:
        self._shared.value = index

    def get(self) -> int | None:
        """The index that was read last, or None."""
        return None if self._shared.value < 0 else int(self._shared.value)


def isolated(experiment: Callable[[], T], timeout: float) -> T:
    """Run an experiment in a forked process, and all that it starts in a group that ends with it.

    Args:
        experiment: Returns what can be pickled.
        timeout: Seconds.

    Raises:
        Hung: It took longer.
        Died: Its process ended without a result; with the last that it printed.
        Broke: It raised; with the traceback.
    """
    context = multiprocessing.get_context("fork")
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_serve, args=(experiment, there, log.fileno()))
        with warnings.catch_warnings():
            # Python warns of forking beside threads; nothing here takes a lock that one may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        there.close()
        try:
            sound, result = _receive(here, timeout)
        except EOFError:
            process.join(1)
            raise Died(_ending(process.exitcode, log)) from None
        finally:
            here.close()
            _end(process)
    if not sound:
        raise Broke(result)
    return result  # type: ignore[no-any-return]


def _receive(here: Connection, timeout: float) -> tuple[bool, Any]:
    if not here.poll(timeout):
        raise Hung(f"{timeout:g} s")
    return here.recv()  # type: ignore[no-any-return]


def _end(process: Any) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.join()


def _ending(code: int | None, log: Any) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - 2000))
    said = log.read().decode(errors="replace").strip().splitlines()
    how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    return f"{how}; the last that it printed: {said[-1]}" if said else how


def _serve(experiment: Callable[[], Any], there: Connection, log: int) -> None:
    os.setsid()
    # What a dataset prints must not get among the report.
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = open(log, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    # A pool of threads that was started before the fork is not there after it.
    torch.set_num_threads(1)
    try:
        answer: tuple[bool, Any] = True, experiment()
    except BaseException:
        answer = False, traceback.format_exc()
    try:
        there.send(answer)
    except Exception:
        there.send((False, traceback.format_exc()))
    there.close()
    os._exit(0)
