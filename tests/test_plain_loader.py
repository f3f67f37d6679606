"""The plain ``DataLoader`` with our batch sampler: killed and resumed, and what can't be exact."""

import pytest
from children import run
from samples import Keyed, flat
from torch.utils.data import DataLoader, Subset
from training import EPOCHS, Foreign, N, Noisy, check_nothing_skipped, steps, train

from seedcursor import StatefulBatchSampler


class Tracked:
    """What ``train`` loops over."""

    def __init__(self, path, **options):
        dataset = Noisy(path)
        self.sampler = StatefulBatchSampler(dataset, 4)
        self.loader = DataLoader(dataset, batch_sampler=self.sampler, **options)
        self.state_dict = self.sampler.state_dict
        self.load_state_dict = self.sampler.load_state_dict

    def batches(self, epoch):
        self.sampler.set_epoch(epoch)
        return self.sampler.track(self.loader)


# The last is killed at an epoch's last batch.
@pytest.mark.parametrize(
    ("before", "after", "kill_at"),
    [
        ({"num_workers": 0}, {"num_workers": 2, "persistent_workers": True}, 9),
        ({"num_workers": 2, "persistent_workers": True}, {"num_workers": 1}, 8),
        ({"num_workers": 1}, {"num_workers": 0}, 12),
    ],
)
@pytest.mark.filterwarnings("ignore:nothing is left of epoch 1")
def test_a_killed_run_goes_on_to_the_bit(before, after, kill_at, tmp_path):
    (tmp_path / "whole").mkdir()
    run(train, tmp_path / "whole", "full", Tracked)
    full = steps(tmp_path / "whole", "full")
    for epoch in range(EPOCHS):
        indices = sum([step["indices"] for step in full if step["epoch"] == epoch], [])
        assert sorted(indices) == list(range(N))
    run(train, tmp_path, "killed", lambda path: Tracked(path, **before), kill_at, killed=True)
    run(train, tmp_path, "resumed", lambda path: Tracked(path, **after))
    assert steps(tmp_path, "killed") + steps(tmp_path, "resumed") == full
    check_nothing_skipped(tmp_path, "resumed")


@pytest.mark.parametrize("world_size", [1, 3])
def test_another_world_size_and_batch_size(world_size):
    heads = []
    for rank in range(2):
        sampler = StatefulBatchSampler(Keyed(N), 3, rank=rank, world_size=2)
        batches = sampler.track(DataLoader(Keyed(N), batch_sampler=sampler, collate_fn=list))
        heads += [next(batches), next(batches)]
        state = sampler.state_dict()
    tails = []
    for rank in range(world_size):
        sampler = StatefulBatchSampler(Keyed(N), 2, rank=rank, world_size=world_size, pad=False)
        sampler.load_state_dict(state)
        tails += sampler.track(DataLoader(Keyed(N), batch_sampler=sampler, collate_fn=list))
    assert sorted(flat(heads + tails)) == [Keyed(N)[k] for k in range(N)]


def test_an_epoch_that_persistent_workers_would_not_see_is_warned_of():
    dataset = Subset(Foreign(N), range(N))
    sampler = StatefulBatchSampler(dataset, 4)
    options = {"batch_sampler": sampler, "num_workers": 1, "collate_fn": list}
    loader = DataLoader(dataset, persistent_workers=True, **options)
    with pytest.warns(UserWarning, match=r"Foreign.set_epoch sets: .*persistent_workers=False"):
        next(sampler.track(loader))
    loader = DataLoader(dataset, **options)
    sampler.set_epoch(3)
    assert {epoch for _, epoch in flat(sampler.track(loader))} == {3}
