import pytest
import torch


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    # A launcher's environment would be taken for ours.
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    torch.manual_seed(0)
