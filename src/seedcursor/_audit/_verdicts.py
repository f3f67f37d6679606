"""The checks, in order: causes before their echoes.

A later check leaves alone what follows from an earlier one's finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from seedcursor._audit import _check_draws, _check_keys, _check_places, _check_records
from seedcursor._audit._lab import Lab
from seedcursor._audit._report import Finding
from seedcursor._dataset import StatefulIterableDataset

CHECKS: dict[str, Callable[[Lab], Iterator[Finding]]] = {
    "unkeyed-numpy": _check_draws.check_unkeyed_numpy,
    "unkeyed-python": _check_draws.check_unkeyed_python,
    "unkeyed-torch": _check_draws.check_unkeyed_torch,
    "private-rng": _check_draws.check_private_rng,
    "call-order": _check_places.check_call_order,
    "resume": _check_places.check_resume,
    "worker-count": _check_places.check_worker_count,
    "repeated-records": _check_records.check_repeated_records,
    "missing-records": _check_records.check_missing_records,
    "repeated-randomness": _check_keys.check_repeated_randomness,
    "frozen-epoch": _check_keys.check_frozen_epoch,
    "same-stream": _check_keys.check_same_stream,
    "shared-key": _check_keys.check_shared_key,
    "start-method": _check_places.check_start_method,
    "threads": _check_places.check_threads,
}


def applies(check: str, lab: Lab) -> bool:
    """Whether a check has something to look at in this target; the checks don't ask again."""
    if check == "worker-count" and not lab.crew.num_workers:
        return False
    if check == "resume":
        return lab.is_stateful or isinstance(lab.dataset, StatefulIterableDataset)
    if check.startswith("unkeyed") or check == "threads":
        return not lab.is_stateful  # it keys the global RNGs for each batch, and caps the threads
    if check == "missing-records":
        return lab.is_stream and not lab.is_stateful
    if check == "repeated-records":
        return (lab.is_stream and not lab.is_stateful) or _check_records.has_own_sampler(lab)
    return not (check == "call-order" and lab.is_stream)


def verdicts(lab: Lab, ignored: frozenset[str]) -> Iterator[tuple[str, list[Finding]]]:
    """Each check that applies, and what it found; the one way that checks are run."""
    for check, function in CHECKS.items():
        if check not in ignored and applies(check, lab):
            findings = list(function(lab))
            lab.found |= {finding.check for finding in findings}
            yield check, findings
