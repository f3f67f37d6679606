"""What a worker process needs before its first sample."""

from __future__ import annotations

import sys

import numpy as np
import torch

from seedcursor import _keys, _rng


def seed_worker(worker_id: int) -> None:
    """Seed a plain ``DataLoader``'s worker: ``DataLoader(..., worker_init_fn=seed_worker)``.

    Python's, NumPy's and torch's global RNGs are keyed apart, from the seed that PyTorch gave this
    worker, so no two workers or libraries draw alike. And libraries' threads are capped, since
    every worker would start as many as there are cores. What is drawn still depends on the number
    of workers, and does not resume; a ``StatefulDataLoader`` needs no such function.

    Args:
        worker_id: The worker's; PyTorch's seed has it in already.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> loader = DataLoader(range(4), num_workers=2, worker_init_fn=seed_worker)
    """
    domain = _keys.suffix_words(domain="seed_worker")
    words = np.random.SeedSequence(torch.initial_seed(), spawn_key=domain)
    _rng.key_globals(words.generate_state(_rng.GLOBAL_WORDS).astype("<u4").tobytes())
    cap_threads()


def cap_threads() -> None:
    """One thread for torch and for OpenCV, if that is loaded: the workers are the parallelism."""
    torch.set_num_threads(1)
    if cv2 := sys.modules.get("cv2"):
        # Not 1: that waits until the other threads have ended, for ever in a forked worker, which
        # has none of those that the main process had. 0 uses none, and waits for none.
        cv2.setNumThreads(0)
