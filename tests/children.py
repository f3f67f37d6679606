"""Training jobs in processes of their own, forked, so that a framework is imported once."""

import multiprocessing
import os
import signal
import socket

import torch

_FORK = multiprocessing.get_context("fork")
_PATIENCE = 120  # seconds


def run(job, *arguments, world_size=1, killed=False):
    """Run a job once per rank, under the variables that torchrun sets.

    Args:
        job: Called with ``arguments`` in each process.
        world_size: How many processes.
        killed: Whether the job ends by `die`, in each process; else it must return.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        _FORK.Process(target=_start, args=(job, arguments, rank, world_size, port))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_PATIENCE)
    codes = [rank.exitcode for rank in ranks]
    for rank in ranks:
        rank.kill()
        rank.join()
    assert codes == [-signal.SIGKILL if killed else 0] * world_size


def die():
    """What no job can catch. Its workers end with it: left alone, they take seconds to notice."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # PyTorch's own would raise
    for worker in multiprocessing.active_children():
        worker.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _start(job, arguments, rank, world_size, port):
    if world_size > 1:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_RUN_ID": "test",
            "OMP_NUM_THREADS": "1",
        }
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job(*arguments)
