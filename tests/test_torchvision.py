"""Transforms of torchvision, which draw from torch's global generator."""

import zlib

import numpy as np
import pytest
import torch
from pipelines import FEWER_SHAPES, N, check

from seedcursor import SeededDataset

v2 = pytest.importorskip("torchvision.transforms.v2")


class Photos:
    """Sample i is i, and two checksums of an augmented photo."""

    def __init__(self):
        photo = np.random.default_rng(0).integers(0, 256, (3, 64, 64), np.uint8)
        self.photo = torch.from_numpy(photo)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(32),
                v2.RandomHorizontalFlip(),
                v2.RandomChoice([v2.ColorJitter(0.4, 0.4, 0.4), v2.RandomAdjustSharpness(2)]),
                v2.RandomApply([v2.GaussianBlur(3)]),
                v2.TrivialAugmentWide(),
                v2.ToDtype(torch.float32, scale=True),
                v2.GaussianNoise(),
            ]
        )

    def __len__(self):
        return N

    def __getitem__(self, index):
        made = self.transform(self.photo).numpy().tobytes()
        return index, zlib.crc32(made), zlib.adler32(made)


@pytest.mark.parametrize("shape", FEWER_SHAPES)
def test_a_usual_pipeline_is_a_function_of_epoch_and_index(shape):
    check(SeededDataset(Photos(), seed=5), shape)
