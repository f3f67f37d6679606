"""Pipelines of albumentations, which hold generators of their own."""

import random
import zlib

import albumentations as A  # noqa: N812 - as its documentation has it
import cv2
import numpy as np
import pytest
from pipelines import FEWER_SHAPES, N, alone, check
from torch.utils.data import DataLoader

from seedcursor import StatefulDataLoader, seed_worker
from seedcursor.integrations.albumentations import SeededAlbumentations


class Note(A.ImageOnlyTransform):
    """Adds what it draws to an image of numbers: a number of NumPy's generator, one of Python's."""

    def __init__(self, p=1.0):
        super().__init__(p=p)

    def get_params(self):
        return {
            "drawn": [int(self.random_generator.integers(2**53)), self.py_random.getrandbits(53)]
        }

    def apply(self, img, drawn, **params):
        return np.concatenate([img, np.array(drawn, np.float64).reshape(1, 2, 1)])


class Notes:
    """Sample i is i, and what the notes of its pipeline drew."""

    def __init__(self, *pipelines):
        self.pipelines = pipelines

    def __len__(self):
        return N

    def __getitem__(self, index):
        drawn = []
        for pipeline in self.pipelines:
            image = pipeline(image=np.zeros((1, 2, 1)))["image"]
            drawn += image[1:].astype(np.int64).ravel().tolist()
        return index, *drawn


def nested():
    return A.Compose(
        [
            Note(),
            A.OneOf([Note(), Note()], p=1),
            A.Compose([A.Sequential([Note(), Note()], p=1)]),
            A.SomeOf([Note(), Note()], n=1, p=1),
            A.RandomOrder([Note(), Note()], n=2, p=1),
            A.OneOrOther(Note(), Note(), p=0.5),
        ],
        seed=137,  # albumentations would let each of them draw alike
    )


@pytest.mark.parametrize("shape", FEWER_SHAPES)
def test_nested_pipelines_are_a_function_of_epoch_and_index(shape):
    base = Notes(nested(), A.ReplayCompose([Note(), A.OneOf([Note(), Note()])]), Note())
    check(SeededAlbumentations(base, seed=5), shape)


class Photos:
    """Sample i is i, and two checksums of an augmented photo."""

    def __init__(self, pipeline):
        self.pipeline = pipeline
        self.photo = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)

    def __len__(self):
        return N

    def __getitem__(self, index):
        made = self.pipeline(image=self.photo)["image"]
        return index, zlib.crc32(made.tobytes()), zlib.adler32(made.tobytes())


def realistic():
    return A.Compose(
        [
            A.RandomResizedCrop((32, 32)),
            A.HorizontalFlip(),
            A.OneOf([A.MotionBlur(), A.GaussianBlur(), A.MedianBlur(blur_limit=3)]),
            A.ColorJitter(),
            A.GaussNoise(p=1),
            A.CoarseDropout(),
            A.ElasticTransform(),
            A.RandomBrightnessContrast(),
        ]
    )


@pytest.mark.parametrize("shape", [(0, "fork", 4, 1), (2, "fork", 7, 2)])
def test_a_usual_pipeline_is_a_function_of_epoch_and_index(shape):
    check(SeededAlbumentations(Photos(realistic()), seed=5), shape)


def test_the_outermost_has_the_generators_of_its_path():
    base = Notes(nested())
    dataset = SeededAlbumentations(base, seed=5)
    sample = dataset[2]
    numpy = dataset.rng(2, ".pipelines[0].random_generator")
    bits = dataset.rng(2, ".pipelines[0].py_random").bit_generator
    python = random.Random(bits.random_raw() << 64 | bits.random_raw())
    base.pipelines[0].set_random_state(numpy, python)
    assert base[2] == sample


def test_a_replay_repeats_what_was_applied():
    pipeline = A.ReplayCompose([A.RandomCrop(8, 8), A.GaussNoise(p=1), A.HorizontalFlip()])

    class Replays(Photos):
        def __getitem__(self, index):
            made = self.pipeline(image=self.photo)
            return made["image"], A.ReplayCompose.replay(made["replay"], image=self.photo)["image"]

    dataset = SeededAlbumentations(Replays(pipeline), seed=5)
    first, replayed = dataset[3]
    assert np.array_equal(first, replayed)
    assert np.array_equal(first, dataset[3][0])
    assert not np.array_equal(first, dataset[4][0])


def test_two_pipelines_with_one_seed_are_apart():
    dataset = SeededAlbumentations(Notes(A.Compose([Note()], seed=1), A.Compose([Note()], seed=1)))
    _, a, b, c, d = dataset[0]
    assert len({a, b, c, d}) == 4


def test_a_function_that_closes_over_a_pipeline():
    pipeline = A.Compose([A.GaussNoise(p=1)])

    class Closing(Photos):
        def __init__(self):
            super().__init__(lambda image: pipeline(image=image))

    dataset = SeededAlbumentations(Closing())
    assert alone(dataset) == alone(dataset)


class Threads(Photos):
    """Each sample is how many threads OpenCV has, after it was used."""

    def __getitem__(self, index):
        cv2.warpAffine(np.zeros((2000, 2000, 3), np.uint8), np.eye(2, 3), (2000, 2000))
        return cv2.getNumThreads()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_use_one_thread_of_opencv(method):
    threads, dataset = cv2.getNumThreads(), Threads(realistic())
    cv2.setNumThreads(4)
    dataset[0]  # starts threads, which a forked worker has not
    plain = DataLoader(
        dataset, N, num_workers=1, worker_init_fn=seed_worker, multiprocessing_context=method
    )
    ours = StatefulDataLoader(
        SeededAlbumentations(dataset), N, num_workers=1, multiprocessing_context=method
    )
    assert [batch.tolist() for loader in (plain, ours) for batch in loader] == [[1] * N] * 2
    assert cv2.getNumThreads() == 4
    cv2.setNumThreads(threads)
