"""What must not grow with the dataset."""

import subprocess
import sys

import pytest
from samples import Keyed, KeyedStream, indices

from seedcursor import KeyedPermutation, StatefulBatchSampler, StatefulDataLoader

HUGE = 10**12


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_trillion_samples(workers, shuffle):
    def load():
        return StatefulDataLoader(Keyed(HUGE), 64, shuffle, num_workers=workers, collate_fn=list)

    order = KeyedPermutation(HUGE, 0, 0) if shuffle else range(HUGE)
    loader = load()
    assert len(loader) == HUGE // 64
    assert indices([next(iter(loader))]) == [order[k] for k in range(64)]
    loader = load()
    loader.load_state_dict({"epoch": 0, "cursor": HUGE - 3})
    assert indices(loader) == [order[HUGE - 3 + k] for k in range(3)]
    assert (loader.epoch, loader.cursor) == (1, 0)
    assert loader.replay(epoch=0, cursor=HUGE - 1)[0][0] == order[HUGE - 1]


def test_a_trillion_records():
    loader = StatefulDataLoader(KeyedStream(HUGE), 4, num_workers=2, collate_fn=list)
    loader.load_state_dict({"epoch": 0, "cursor": HUGE - 6})
    assert indices(loader) == list(range(HUGE - 6, HUGE))


def test_the_sampler_takes_a_length():
    sampler = StatefulBatchSampler(2**63 - 1, 8)
    assert len(next(iter(sampler))) == 8
    assert len(sampler) == -(-(2**63 - 1) // 8)


MEMORY = """
import resource, sys
from seedcursor import StatefulDataLoader

class Huge:
    def __len__(self):
        return int(sys.argv[1])
    def __getitem__(self, index):
        return index

def first(n):
    loader = StatefulDataLoader(Huge(), 64, shuffle=True)
    batches = iter(loader)
    for _ in range(1000):
        next(batches)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

list(StatefulDataLoader(range(70_000), 64, shuffle=True))  # what does not depend on n
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(first(sys.argv[1]) - before)
"""


def test_memory_does_not_grow_with_the_dataset():
    command = [sys.executable, "-c", MEMORY, str(10**15)]
    kilobytes = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert kilobytes < 5000
