"""What each check says to the reader: what happens to a training, and the lines to change."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """A check's words.

    Attributes:
        severity: ``"error"`` for what spoils a training, ``"warning"`` for what may be meant.
        message: In one sentence, what happens to the training.
        fix: What to change, here and in plain PyTorch.
    """

    severity: str
    message: str
    fix: str


def _unkeyed(library: str, call: str) -> Words:
    return Words(
        "error",
        f"A sample's value depends on {library}'s global random state, so it changes with the "
        "number of workers and with whatever drew before, and a resumed run sees other samples "
        "than an uninterrupted one.",
        "With seedcursor: draw from a generator that belongs to the sample,\n"
        f"    rng = self.rng(index)  # in a StatefulDataset\n    {call}\n"
        "or leave the dataset as it is and wrap it: SeededDataset(dataset).\n"
        "In plain PyTorch: make one in __getitem__, and tell the dataset each epoch,\n"
        "    rng = np.random.default_rng((self.seed, self.epoch, index))",
    )


_KEYED = (
    "With seedcursor: wrap it, and each generator that it holds is keyed per sample,\n"
    "    from seedcursor.integrations.generators import SeededGenerators\n"
    "    dataset = SeededGenerators(dataset)  # or SeededAlbumentations, SeededMonai\n"
    "or hold no generator, and make one for each sample,\n"
    "    rng = self.rng(index)  # in a StatefulDataset\n"
    "In plain PyTorch:\n"
    "    rng = np.random.default_rng((self.seed, self.epoch, index))"
)

WORDS = {
    "unreadable": Words(
        "error",
        "Samples can't be read, so a training on this dataset stops or waits for ever.",
        "Read the sample that is named alone, in a debugger, and mend or leave out that record.",
    ),
    "unkeyed-numpy": _unkeyed("NumPy", "rng.normal()  # in place of np.random.normal()"),
    "unkeyed-python": _unkeyed("Python", "rng.random()  # in place of random.random()"),
    "unkeyed-torch": _unkeyed(
        "torch", "torch.rand(3, generator=self.torch_rng(index))  # in place of torch.rand(3)"
    ),
    "private-rng": Words(
        "error",
        "Each worker gets its own copy of a generator that the dataset holds, so workers make the "
        "same draws for different samples, and again the same in the next epoch.",
        _KEYED,
    ),
    "repeated-randomness": Words(
        "error",
        "Different samples get the same random draws, so the training sees fewer different "
        "augmentations than it should.",
        "With seedcursor: let the key have the index in it,\n"
        "    rng = self.rng(index)  # in a StatefulDataset\n"
        "or, where worker_init_fn seeds, DataLoader(..., worker_init_fn=seed_worker).\n"
        "In plain PyTorch: default_rng((self.seed, self.epoch, index)) in __getitem__; in "
        "worker_init_fn, seed from torch.initial_seed(), which differs from worker to worker.",
    ),
    "repeated-records": Words(
        "error",
        "Records are delivered more than once in an epoch, so the training weighs them more and "
        "an epoch takes longer.",
        "With seedcursor: subclass StatefulIterableDataset, which deals each record to one "
        "worker,\n    def records(self, start): ...  # instead of __iter__\n"
        "In plain PyTorch: let a worker keep only its own,\n"
        "    info = get_worker_info()\n"
        "    yield from itertools.islice(records, info.id, None, info.num_workers)",
    ),
    "missing-records": Words(
        "error",
        "Records are never delivered, so the training does not see a part of the data.",
        "With seedcursor: subclass StatefulIterableDataset, which deals each record to one "
        "worker,\n    def records(self, start): ...  # instead of __iter__\n"
        "In plain PyTorch: deal records round-robin, which leaves no remainder, and open them "
        "anew in each __iter__,\n"
        "    yield from itertools.islice(records(), info.id, None, info.num_workers)",
    ),
    "worker-count": Words(
        "error",
        "A sample's value depends on which worker reads it or on how many there are, so two runs "
        "on different machines train on different data.",
        "With seedcursor: draw from self.rng(index), and take nothing from get_worker_info().\n"
        "In plain PyTorch: default_rng((self.seed, self.epoch, index)) in __getitem__.",
    ),
    "frozen-epoch": Words(
        "warning",
        "The randomness is the same in every epoch, so the training sees each sample augmented "
        "in one way only.",
        "With seedcursor: self.rng(index) has the epoch in its key, and set_epoch(epoch) reaches "
        "workers that run already.\n"
        "In plain PyTorch: keep the epoch in shared memory, and put it into the key,\n"
        "    self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()\n"
        "    rng = np.random.default_rng((self.seed, int(self.epoch), index))\n"
        "If it is meant so, as for made-up data: ignore=['frozen-epoch'].",
    ),
    "call-order": Words(
        "error",
        "A sample's value depends on what was read before it, so it changes with shuffling, with "
        "workers and with a resume.",
        "Keep what a sample changes out of self: copy what is cached before changing it "
        "(value.copy(), tensor.clone()), and draw by index and not by a counter,\n"
        "    rng = self.rng(index)  # in a StatefulDataset\n"
        "    rng = np.random.default_rng((self.seed, self.epoch, index))  # in plain PyTorch",
    ),
    "start-method": Words(
        "warning",
        "The dataset works only with forked workers, so it fails or changes on macOS, on Windows "
        "and on Linux from Python 3.14 on.",
        "Put functions at the top of a module in place of lambdas, open files and locks when a "
        "worker first needs them, and derive nothing from hash(), which differs from process to "
        "process, nor from variables that are set while the program runs.",
    ),
    "resume": Words(
        "error",
        "A run that is stopped and resumed does not get the batches that an uninterrupted one "
        "would have got.",
        "With seedcursor: let records(start) begin at start, hold no state that moves as samples "
        "are read, and let a sampler draw from its generator=, which the loader keys.\n"
        "In plain PyTorch there is no position to resume from: replay the epoch up to the place.",
    ),
    "same-stream": Words(
        "warning",
        "Two generators of one sample have the same key, so what they draw is correlated, as in "
        "a crop that always goes with the same noise.",
        "With seedcursor: name the streams, self.rng(index, 'crop') and self.rng(index, 'noise'), "
        "or use one generator for both.\n"
        "In plain PyTorch: default_rng((self.seed, self.epoch, index, 1)) for the second.\n"
        "If both must draw alike, as for an image and its mask: draw once and use it twice.",
    ),
    "shared-key": Words(
        "warning",
        "Two datasets that are used together draw from the same keys, so their samples with equal "
        "indices are augmented alike.",
        "With seedcursor: give each a seed of its own, First(seed=1) and Second(seed=2), or wrap "
        "the whole: SeededDataset(ConcatDataset([...])).\n"
        "In plain PyTorch: put the dataset's number into the key, "
        "default_rng((self.seed, self.number, self.epoch, index)).",
    ),
    "threads": Words(
        "warning",
        "Every worker starts threads of its own, more than there are cores in all, so they wait "
        "for each other and loading slows down.",
        "With seedcursor: StatefulDataLoader caps them, and so does "
        "DataLoader(..., worker_init_fn=seed_worker).\n"
        "In plain PyTorch: in worker_init_fn,\n"
        "    cv2.setNumThreads(0); torch.set_num_threads(1)\n"
        "and OMP_NUM_THREADS=1 in the environment for NumPy's and others.",
    ),
}
