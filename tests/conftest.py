import os

import pytest
import torch

# albumentations would ask the network for a newer version, and warn where there is none.
os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    # A launcher's environment would be taken for ours.
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    torch.manual_seed(0)
