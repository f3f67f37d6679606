"""Transforms of MONAI, each of which holds a random state."""

import zlib

import numpy as np
import pytest
import torch
from monai.data import CacheDataset, Dataset
from monai.transforms import (
    Compose,
    OneOf,
    RandAffined,
    RandFlipd,
    RandGaussianNoised,
    Randomizable,
    RandomOrder,
    RandScaleIntensityd,
    RandSmoothFieldAdjustContrast,
    RandSpatialCropd,
    RandZoomd,
    Transform,
)
from pipelines import FEWER_SHAPES, N, alone, check

from seedcursor.integrations.monai import SeededMonai


class Note(Randomizable, Transform):
    """Appends what it draws, and what one within it draws that it seeds alike."""

    def __init__(self, inner=None):
        self.inner = inner

    def set_random_state(self, seed=None, state=None):
        super().set_random_state(seed, state)
        if self.inner is not None:
            self.inner.set_random_state(seed, state)
        return self

    def __call__(self, sample):
        sample = (*sample, int(self.R.randint(2**62, dtype=np.int64)))
        return sample if self.inner is None else self.inner(sample)


def notes():
    return Compose(
        [
            Note(),
            Note(Note(Note())),
            Compose([Note(), Note()], map_items=False),
            OneOf([Note(), Note()], map_items=False),
            RandomOrder([Note(), Note()], map_items=False),
        ],
        map_items=False,
    )


@pytest.mark.parametrize("shape", FEWER_SHAPES)
def test_nested_transforms_are_a_function_of_epoch_and_index(shape):
    check(SeededMonai(Dataset([(k,) for k in range(N)], notes()), seed=5), shape)


def checksums(sample):
    image = sample["image"].numpy().tobytes()
    return sample["index"], zlib.crc32(image), zlib.adler32(image)


def scans(cls):
    pipeline = [
        RandSpatialCropd("image", (24, 24), random_size=False),
        RandFlipd("image", prob=0.5, spatial_axis=0),
        RandAffined("image", prob=1, rotate_range=0.5, translate_range=3),
        RandZoomd("image", prob=0.5),
        RandGaussianNoised("image", prob=1),
        RandScaleIntensityd("image", factors=0.5, prob=1),
    ]
    image = torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    data = [{"index": k, "image": image} for k in range(N)]
    return cls(data, Compose([*pipeline, checksums]))


@pytest.mark.parametrize("cls", [Dataset, CacheDataset])
@pytest.mark.parametrize("shape", [(0, "fork", 4, 1), (2, "fork", 7, 2)])
def test_a_usual_pipeline_is_a_function_of_epoch_and_index(cls, shape):
    options = {"progress": False} if cls is CacheDataset else {}
    base = scans(lambda data, transform: cls(data, transform, **options))
    check(SeededMonai(base, seed=5), shape)


def test_each_has_the_stream_of_its_path():
    data = [(k,) for k in range(N)]
    dataset = SeededMonai(Dataset(data, Compose([Note(), Note(Note())], map_items=False)))
    places = ".transforms[0]", ".transforms[1]", ".transforms[1].inner"

    def first(place):
        bits = dataset.rng(2, ".transform" + place).bit_generator
        return int(np.random.RandomState(bits).randint(2**62, dtype=np.int64))

    assert dataset[2] == (2, *map(first, places))


def test_a_bare_transform_leaves_the_state_that_all_share():
    class Bare(list):
        transform = Note()

        def __getitem__(self, index):
            return self.transform((index,))

    before = Randomizable.R.get_state()[1].tolist()
    dataset = SeededMonai(Bare(range(N)))
    assert alone(dataset) == alone(dataset)
    assert Randomizable.R.get_state()[1].tolist() == before


def test_a_transform_and_the_one_within_it_do_not_draw_alike():
    transform = RandSmoothFieldAdjustContrast(
        spatial_size=(8, 8), rand_size=(4, 4), prob=1, gamma=(0.5, 2)
    )
    dataset = SeededMonai(Dataset([torch.ones(1, 8, 8)], transform))
    dataset[0]
    assert transform.R is not transform.sfield.R
    assert transform.R.random_sample() != transform.sfield.R.random_sample()
