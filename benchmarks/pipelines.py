"""Photos, read and augmented to 224 x 224: by hand, with albumentations and with MONAI."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import albumentations
import cv2
import numpy as np
import sklearn.datasets
import torch
from monai import transforms
from numpy.typing import NDArray
from torch.utils.data import Dataset

Photo = NDArray[np.uint8]


class Photos(Dataset[Any]):
    """Two photographs of 640 x 427, scikit-learn's, decoded and augmented anew each time.

    Args:
        length: How many there are.
        transform: From the photo to a sample of 224 x 224.
    """

    def __init__(self, length: int, transform: Callable[[Photo], Any]) -> None:
        self._length = length
        folder = Path(sklearn.datasets.__file__).parent / "images"
        self._files = [
            np.frombuffer((folder / name).read_bytes(), np.uint8)
            for name in ("china.jpg", "flower.jpg")
        ]
        self.transform = transform

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        photo: Any = cv2.imdecode(self._files[index % 2], cv2.IMREAD_COLOR)
        return self.transform(photo)


class ByHand:
    """What people write themselves: a chain on generators of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.coin = random.Random(0)
        self.noise = torch.Generator()

    def __call__(self, photo: Photo) -> torch.Tensor:
        """Crop, flip, turn, jitter and add noise."""
        top, left = self.rng.integers((427 - 224, 640 - 224))
        image: NDArray[Any] = photo[top : top + 224, left : left + 224]
        if self.coin.random() < 0.5:
            image = image[:, ::-1]
        turn = cv2.getRotationMatrix2D((112, 112), self.rng.uniform(-15, 15), 1)
        image = cv2.warpAffine(np.ascontiguousarray(image), turn, (224, 224))
        pixels = torch.from_numpy(image).permute(2, 0, 1).float() / 255
        pixels = (pixels - 0.5) * self.coin.uniform(0.8, 1.2) + 0.5
        return pixels + 0.02 * torch.randn(pixels.shape, generator=self.noise)


def albumentations_chain() -> Callable[[Photo], Any]:
    """A training pipeline as albumentations' documentation has it."""
    compose = albumentations.Compose(
        [
            albumentations.RandomResizedCrop((224, 224)),
            albumentations.HorizontalFlip(),
            albumentations.OneOf([albumentations.Blur(), albumentations.GaussianBlur()], p=1),
            albumentations.ColorJitter(p=1),
            albumentations.GaussNoise(p=1),
            albumentations.CoarseDropout(p=1),
            albumentations.Normalize(),
        ]
    )
    return lambda photo: compose(image=photo)["image"]


def monai_chain() -> Callable[[Photo], Any]:
    """Likewise of MONAI, on one channel."""
    compose = transforms.Compose(
        [
            transforms.RandSpatialCrop((224, 224), random_size=False),
            transforms.RandFlip(prob=0.5, spatial_axis=1),
            transforms.RandAffine(prob=1, rotate_range=0.2, padding_mode="border"),
            transforms.RandGaussianNoise(prob=1, std=5.0),
            transforms.RandAdjustContrast(prob=1),
            transforms.RandGaussianSmooth(prob=1),
            transforms.ScaleIntensity(),
        ]
    )
    return lambda photo: compose(photo[None, ..., 0].astype(np.float32))
