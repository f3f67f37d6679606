import gc
import json
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
from children import die, run
from lightning.pytorch.callbacks import OnExceptionCheckpoint
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, WeightedRandomSampler

from seedcursor import (
    StatefulBatchSampler,
    StatefulDataLoader,
    StatefulDataset,
    StatefulIterableDataset,
)
from seedcursor.integrations.lightning import ExactResume

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{told}")
    for told in (
        ".isinstance.treespec, LeafSpec.. is deprecated",
        ".*does not have many workers",
        "Your `IterableDataset` has `__len__` defined",
        "You defined a `validation_step` but have no",
        "You requested to overfit but enabled",
        "Checkpoint directory .* exists and is not empty",
        ".*'Sampler' argument",
        "Your `predict_dataloader`'s sampler has shuffling enabled",
        r".*fit\(ckpt_path=",
    )
]

N = 14  # batches of four: the last one is short


class Points(StatefulDataset):
    """Sample i depends on its index and epoch, and, if torn, on its batch."""

    def __init__(self, n=N, torn=True):
        super().__init__(seed=3)
        self.n = n
        self.torn = torn
        self.reads = 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.reads += 1
        return point(self, index, self.torn)


class Stream(StatefulIterableDataset):
    def __init__(self, n=N, torn=True):
        super().__init__(seed=3)
        self.n = n
        self.torn = torn
        self.reads = 0

    def records(self, start):
        return iter(range(start, self.n))

    def sample(self, record, index):
        self.reads += 1
        return point(self, index, self.torn)


class Sized(Stream):
    def __len__(self):
        return self.n


def point(dataset, index, torn):
    drawn = dataset.torch_rng(index)
    at = torch.randn(3, generator=drawn)
    return index, dataset.epoch, at + torch.rand(()) if torn else at


def loader(dataset=None, batch_size=4, **options):
    dataset = Points() if dataset is None else dataset
    if isinstance(dataset, Points) and not {"sampler", "batch_sampler"} & set(options):
        options = {"shuffle": True} | options
    return StatefulDataLoader(dataset, batch_size, **{"seed": 5} | options)


def model(package=lightning, *, fails_at=None, log=None):
    """A model that writes down what it sees."""

    class Model(package.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.seen = []  # of each step its epoch, batch_idx, the samples and the loss
            self.validated = []

        def training_step(self, batch, batch_idx):
            indices, epochs, points = batch
            if len(self.seen) == fails_at:
                raise KeyError("fails")
            loss = self.layer(points).square().mean()
            samples = [*zip(indices.tolist(), epochs.tolist(), strict=True)]
            step = (self.current_epoch, batch_idx, samples, loss.item().hex())
            self.seen.append(step)
            if log is not None:
                with open(f"{log}.{self.global_rank}", "a") as file:
                    print(json.dumps(step), file=file)
            return loss

        def validation_step(self, batch, batch_idx):
            loss = self.layer(batch[2]).square().mean().item().hex()
            if not self.trainer.sanity_checking:
                self.validated.append((self.current_epoch, batch_idx, batch[0].tolist(), loss))

        def predict_step(self, batch, batch_idx):
            return batch[0].tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9)

    return Model()


class Pairs(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)
        self.seen = []

    def training_step(self, batch, batch_idx):
        self.seen.append(batch_idx)
        return sum(self.layer(points).mean() for _, _, points in batch.values())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.05)


def saving(hook, folder, package=lightning):
    """A callback that saves a checkpoint, named by the number of steps, whenever a hook runs."""

    def save(self, trainer, module, *_):
        if not trainer.sanity_checking:
            trainer.save_checkpoint(f"{folder}/{len(module.seen)}.ckpt")

    return type("Saving", (package.Callback,), {hook: save})()


def trainer(package=lightning, callbacks=(), **options):
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False)
    return package.Trainer(
        accelerator="cpu",
        callbacks=[ExactResume(), *callbacks],
        enable_model_summary=False,
        **{"max_epochs": 2, "devices": 1} | quiet | options,
    )


def fit(make, saved=None, *, validate=False, callbacks=(), fails_at=None, **options):
    """Train, from a checkpoint if one is given."""
    fitted = model(fails_at=fails_at)
    held = loader(shuffle=False, pad=False) if validate else None
    trainer(callbacks=callbacks, **options).fit(fitted, make(), held, ckpt_path=saved)
    return fitted


def saved_at(folder):
    """The checkpoints in a folder by the number of steps before them."""
    paths = {int(path.stem): str(path) for path in Path(folder).glob("*.ckpt")}
    return dict(sorted(paths.items()))


# Stopped in one process, at every step.


def own_sampler():
    return loader(sampler=WeightedRandomSampler(torch.arange(1.0, N + 1), N))


def own_batches():
    return loader(batch_size=1, batch_sampler=BatchSampler(RandomSampler(range(N)), 4, False))


CASES = {
    "map": (loader, {}),
    "validation in between": (loader, {"validate": True, "val_check_interval": 2}),
    "a limit": (loader, {"limit_train_batches": 2, "validate": True, "limit_val_batches": 1}),
    "drop_last": (lambda: loader(drop_last=True), {}),
    "own sampler": (own_sampler, {}),
    "own sampler, a limit": (own_sampler, {"limit_train_batches": 2}),
    "own sampler, single samples": (
        lambda: loader(Points(3), None, sampler=RandomSampler(range(3)), collate_fn=one),
        {},
    ),
    "own batches": (own_batches, {}),
    "batch sampler of ours": (
        lambda: StatefulDataLoader(
            Points(), batch_sampler=StatefulBatchSampler(N, 4, seed=5, drop_last=True)
        ),
        {},
    ),
    "stream": (lambda: loader(Sized()), {}),
    "stream, a limit": (lambda: loader(Sized()), {"limit_train_batches": 2}),
    "stream without a length, a limit": (lambda: loader(Stream()), {"limit_train_batches": 3}),
    "steps": (loader, {"max_epochs": -1, "max_steps": 7}),
}


def one(sample):
    index, epoch, at = sample
    return torch.tensor([index]), torch.tensor([epoch]), at[None]


@pytest.mark.parametrize("case", CASES)
def test_what_follows_a_resume_is_the_same_at_every_step(case, tmp_path):
    make, options = CASES[case]
    whole = fit(make, callbacks=[saving("on_train_batch_end", tmp_path)], **options)
    saved = saved_at(tmp_path)
    assert list(saved) == list(range(1, len(whole.seen) + 1))
    assert {step[0] for step in whole.seen} >= {0, 1}
    for steps, path in saved.items():
        assert fit(make, path, **options).seen == whole.seen[steps:]


# With max_steps Lightning goes back to an epoch that has ended, to find that it has.
@pytest.mark.filterwarnings("ignore:nothing is left of epoch")
@pytest.mark.parametrize("limit", [{"max_epochs": 2}, {"max_epochs": -1, "max_steps": 7}])
@pytest.mark.parametrize(
    "hook",
    ["on_train_epoch_start", "on_train_batch_start", "on_train_epoch_end", "on_validation_end"],
)
@pytest.mark.parametrize("validation", [{}, {"validate": True}, {"val_check_interval": 3}])
def test_a_checkpoint_of_another_moment_resumes_too(hook, limit, validation, tmp_path):
    if hook == "on_validation_end" and not validation:
        validation = {"val_check_interval": 2}
    options = {"validate": bool(validation)} | validation | limit
    whole = fit(loader, callbacks=[saving(hook, tmp_path)], **options)
    saved = saved_at(tmp_path)
    assert saved
    for steps, path in saved.items():
        assert fit(loader, path, **options).seen == whole.seen[steps:]


@pytest.mark.parametrize("steps", [1, 4, 6])
def test_the_batch_that_raised_is_retried(steps, tmp_path):
    whole = fit(loader)
    saving_it = OnExceptionCheckpoint(str(tmp_path), "failed")
    with pytest.raises(KeyError, match="fails"):
        fit(loader, callbacks=[saving_it], fails_at=steps, enable_checkpointing=True)
    assert fit(loader, str(tmp_path / "failed.ckpt")).seen == whole.seen[steps:]


def test_accumulated_gradients_are_lost_between_two_steps_only_with_a_warning(tmp_path):
    options = {"accumulate_grad_batches": 3}
    with pytest.warns(UserWarning, match="between two optimizer steps") as told:
        whole = fit(loader, callbacks=[saving("on_train_batch_end", tmp_path)], **options)
    told = [each for each in told if "optimizer steps" in str(each.message)]
    assert len(told) == 4  # of four batches a step covers three, and the last is one of its own
    for steps, path in saved_at(tmp_path).items():
        resumed = fit(loader, path, **options).seen
        assert [step[:3] for step in resumed] == [step[:3] for step in whole.seen[steps:]]
        assert steps % 4 in (1, 2) or resumed == whole.seen[steps:]


def test_the_sanity_check_moves_nothing():
    with_it = fit(loader, validate=True, num_sanity_val_steps=2)
    without = fit(loader, validate=True, num_sanity_val_steps=0)
    assert with_it.seen == without.seen
    assert with_it.validated == without.validated


# Resumed with other numbers.


def samples(steps, epoch):
    return [sample for step in steps for sample in step[2] if sample[1] == epoch]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [Points, Sized])
def test_any_number_of_workers_resumes_the_same(kind, persistent, tmp_path):
    whole = fit(lambda: loader(kind()), callbacks=[saving("on_train_batch_end", tmp_path)])
    for steps in (2, 4):
        made = loader(kind(), num_workers=2, persistent_workers=persistent)
        resumed = fit(lambda made=made: made, saved_at(tmp_path)[steps])
        assert resumed.seen == whole.seen[steps:]


@pytest.mark.parametrize("batch_size", [1, 3, 6, 40])
@pytest.mark.parametrize("kind", [Points, Sized])
def test_another_batch_size_delivers_what_is_left(kind, batch_size, tmp_path):
    def make(size):
        return lambda: loader(kind(torn=False), size)

    whole = fit(make(4), callbacks=[saving("on_train_batch_end", tmp_path)])
    full = -(-N // batch_size)
    for steps, path in saved_at(tmp_path).items():
        resumed = fit(make(batch_size), path, validate=True)
        for epoch in (0, 1):
            assert samples(resumed.seen, epoch) == samples(whole.seen[steps:], epoch)
        ends = [step[1] for step in resumed.seen]
        assert not ends or ends[-1] == full - 1  # Lightning saw the last batch as the last
        ended = {step[0] for step in resumed.seen}
        assert {each[0] for each in resumed.validated} == ended


def test_another_batch_size_is_refused_where_steps_cannot_be_counted(tmp_path):
    def two(batch_size):
        return lambda: {"a": loader(batch_size=batch_size), "b": loader(batch_size=batch_size)}

    trainer(callbacks=[saving("on_train_batch_end", tmp_path)]).fit(Pairs(), two(4)())
    with pytest.raises(ValueError, match="can't be counted with several loaders"):
        trainer(max_epochs=3).fit(Pairs(), two(2)(), ckpt_path=saved_at(tmp_path)[1])


def test_another_number_of_ranks_is_refused_for_own_batches(tmp_path):
    fit(own_batches, callbacks=[saving("on_train_batch_end", tmp_path)])
    checkpoint = torch.load(saved_at(tmp_path)[2], weights_only=True)
    checkpoint["seedcursor"] = [2]  # as two ranks save it
    torch.save(checkpoint, tmp_path / "two.pt")
    with pytest.raises(ValueError, match="a batch_sampler of your own"):
        fit(own_batches, str(tmp_path / "two.pt"))


@pytest.mark.parametrize("limit", [1.0, 2])
def test_persistent_workers_end_with_the_fit(limit):
    gc.collect()  # other tests' workers
    others = set(multiprocessing.active_children())
    made = loader(num_workers=2, persistent_workers=True)
    fit(lambda: made, limit_train_batches=limit)
    assert set(multiprocessing.active_children()) <= others


# Refused, or warned of.


def test_a_stream_without_a_length_is_refused_for_the_look_ahead():
    with pytest.raises(RuntimeError, match=r"one batch ahead.*__len__.*limit_train_batches"):
        fit(lambda: loader(Stream()))


def test_a_plain_loader_with_our_batches_is_warned_of():
    def plain():
        return DataLoader(Points(), batch_sampler=StatefulBatchSampler(N, 4, seed=5))

    with pytest.warns(UserWarning, match="not counted.*StatefulDataLoader.dataset, batch_sampler"):
        fitted = fit(plain)
    assert [i for step in fitted.seen[:4] for i, _ in step[2]] == [
        i for i, _ in samples(fit(loader).seen, 0)
    ]


def test_a_shorter_loader_begun_anew_within_an_epoch_is_warned_of(tmp_path):
    def two():
        return {"long": loader(), "short": loader(Points(8))}

    trainer(callbacks=[saving("on_train_batch_end", tmp_path)]).fit(Pairs(), two())
    trainer().fit(Pairs(), two(), ckpt_path=saved_at(tmp_path)[1])
    with pytest.warns(UserWarning, match="a shorter loader anew"):
        trainer().fit(Pairs(), two(), ckpt_path=saved_at(tmp_path)[3])


# Loaders that Lightning builds anew.


@pytest.mark.parametrize("make", [loader, own_sampler, own_batches])
def test_prediction_sees_each_batch_once_and_its_indices(make):
    known = []

    class Written(lightning.callbacks.BasePredictionWriter):
        def write_on_epoch_end(self, trainer, module, predictions, indices):
            known.extend(indices[0])

    made = make()
    predicted = trainer(callbacks=[Written("epoch")]).predict(model(), made)
    assert predicted == known
    if make is not own_sampler:
        assert sorted(sum(predicted, [])) == list(range(N))
    made.set_epoch(0)
    if make is not own_batches:  # Lightning hands these the dataset's order
        assert predicted == [batch[0].tolist() for batch in made]


def test_overfitting_repeats_the_first_batches_in_order():
    fitted = fit(lambda: loader(drop_last=True), overfit_batches=2)
    indices = [[i for i, _ in step[2]] for step in fitted.seen]
    assert indices == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2


def test_loaders_made_in_hooks_do_the_same(tmp_path):
    whole = fit(loader, callbacks=[saving("on_train_batch_end", tmp_path)])
    hooked = model()
    hooked.train_dataloader = loader
    type(hooked).train_dataloader = lambda self: loader()
    trainer().fit(hooked, ckpt_path=saved_at(tmp_path)[3])
    assert hooked.seen == whole.seen[3:]


@pytest.mark.parametrize("package", [lightning, pytorch_lightning])
def test_a_trainer_finds_the_callback_by_itself(package, tmp_path, monkeypatch):
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    points = re.findall(r'\[project.entry-points."(.+)"\]\n(.+) = "(.+)"', project)
    about = tmp_path / "found-1.dist-info"
    about.mkdir()
    lines = [f"[{group}]\n{name} = {target}\n" for group, name, target in points]
    (about / "entry_points.txt").write_text("".join(lines))
    (about / "METADATA").write_text("Name: found\nVersion: 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    made = package.Trainer(accelerator="cpu", max_epochs=1, **quiet)
    assert any(isinstance(callback, ExactResume) for callback in made.callbacks)


# Killed.


def train(package, make, log, last, steps=None, saved=None, options=()):
    """Train for two epochs, save after each batch, and die after some steps."""

    class Last(package.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            trainer.save_checkpoint(last)
            if len(module.seen) == steps:
                die()

    made = make()
    fitted = model(package, log=log)
    trainer(package, [Last()], **dict(options)).fit(fitted, made, ckpt_path=saved)
    reads = getattr(made.dataset, "reads", None)
    with open(f"{log}.reads", "a") as file:
        print(reads, sum(len(step[2]) for step in fitted.seen), file=file)


def lines(log, rank=0):
    return [json.loads(line) for line in Path(f"{log}.{rank}").read_text().splitlines()]


@pytest.mark.parametrize(
    ("package", "make", "steps"),
    [
        (lightning, loader, 2),
        (pytorch_lightning, loader, 4),
        (lightning, lambda: loader(num_workers=2, persistent_workers=True), 5),
        (lightning, lambda: loader(Sized(), num_workers=2), 3),
        (pytorch_lightning, lambda: loader(Sized()), 6),
    ],
)
def test_a_killed_run_goes_on_as_if_it_had_not_been(package, make, steps, tmp_path):
    whole, cut, last = (str(tmp_path / name) for name in ("whole", "cut", "last.ckpt"))
    run(train, package, make, whole, last)
    run(train, package, make, cut, last, steps, killed=True)
    assert lines(cut) == lines(whole)[:steps]
    run(train, package, make, cut, last, None, last)
    assert lines(cut) == lines(whole)
    reads, delivered = Path(f"{cut}.reads").read_text().split()
    assert reads == delivered or make().num_workers > 0


DDP = {"strategy": "ddp", "devices": 2}.items()


def both(log):
    return [
        [first[:3], second[:3]] for first, second in zip(lines(log, 0), lines(log, 1), strict=True)
    ]


def indices_in(step):
    return [sample[0] for ranks in step for sample in ranks[2]]


@pytest.mark.parametrize("kind", [Points, Sized])
def test_two_killed_ranks_go_on_and_one_goes_on_for_two(kind, tmp_path):
    whole, cut, last = (str(tmp_path / name) for name in ("whole", "cut", "last.ckpt"))
    alone, again = str(tmp_path / "alone"), str(tmp_path / "again.ckpt")

    def make():
        return loader(kind(24, torn=False), 3)

    run(train, lightning, make, whole, last, None, None, DDP, world_size=2)
    run(train, lightning, make, cut, last, 3, None, DDP, world_size=2, killed=True)
    Path(again).write_bytes(Path(last).read_bytes())
    run(train, lightning, make, cut, last, None, last, DDP, world_size=2)
    for rank in (0, 1):
        assert lines(cut, rank) == lines(whole, rank)
    epochs = [sorted(sum(map(indices_in, both(whole)[k : k + 4]), [])) for k in (0, 4)]
    assert epochs == [list(range(24))] * 2

    # The fourth step of two ranks is two of one.
    run(train, lightning, make, alone, last, None, again)
    assert [step[:2] for step in lines(alone)] == [[0, 6], [0, 7], *([1, k] for k in range(8))]
    left = [i for step in lines(alone)[:2] for i, _ in step[2]]
    assert sorted(left) == sorted(indices_in(both(whole)[3]))

    # And the other way round: the last six steps of one are three of two.
    one_alone, two = str(tmp_path / "one"), str(tmp_path / "two")
    run(train, lightning, make, one_alone, last, 2, killed=True)
    run(train, lightning, make, two, last, None, last, DDP, world_size=2)
    assert [step[0][:2] for step in both(two)] == [[0, k] for k in (1, 2, 3)] + [
        [1, k] for k in range(4)
    ]
    first = [i for step in lines(one_alone) for i, _ in step[2]]
    rest = sum(map(indices_in, both(two)[:3]), [])
    assert sorted(first + rest) == list(range(24))


def deal(log):
    """What a trainer of two ranks does with other loaders."""
    two = {"strategy": "ddp", "devices": 2, "max_epochs": 1}
    with pytest.raises(ValueError, match=r"use_distributed_sampler=False"):
        trainer(**two).fit(model(), own_sampler())
    with pytest.raises(TypeError, match=r"use_distributed_sampler=False.*StatefulDataLoader"):
        plain = DataLoader(Points(), batch_sampler=StatefulBatchSampler(N, 4))
        trainer(**two).fit(model(), plain)
    own, single, batches, stream = model(), model(), model(), model()
    trainer(use_distributed_sampler=False, **two).fit(own, own_sampler())
    made = loader(Points(4), None, sampler=RandomSampler(range(4)), collate_fn=one)
    trainer(**two).fit(single, made)
    trainer(**two).fit(batches, own_batches())
    trainer(limit_train_batches=10, **two).fit(stream, loader(Stream()))
    fits = [[step[2] for step in each.seen] for each in (own, single, batches, stream)]

    known = []

    class Written(lightning.callbacks.BasePredictionWriter):
        def write_on_epoch_end(self, trainer, module, predictions, indices):
            known.extend(indices[0])

    seen = model()
    predicted = trainer(callbacks=[Written("epoch")], **two).predict(seen, loader())
    assert predicted == known
    trainer(**two).validate(seen, loader(shuffle=False, pad=False))
    validated = [each[2] for each in seen.validated]
    with open(f"{log}.{seen.global_rank}", "w") as file:
        print(json.dumps([*fits, predicted, validated]), file=file)


def test_two_ranks_share_every_kind_of_loader(tmp_path):
    log = str(tmp_path / "log")
    run(deal, log, world_size=2)
    ranks = zip(lines(log, 0)[0], lines(log, 1)[0], strict=True)
    own, single, batches, stream, predicted, validated = (sum(sum(both, []), []) for both in ranks)
    drawn = [i for i, _ in samples(fit(own_sampler, max_epochs=1).seen, 0)]
    assert sorted(i for i, _ in own) == sorted(drawn)
    for delivered in (single, batches, stream):
        assert len({i for i, _ in delivered}) == len(delivered) - len(delivered) % 2
    assert sorted(predicted) == sorted(validated) == list(range(N))


def test_the_example_is_killed_and_goes_on():
    example = Path(__file__).parent.parent / "examples/with_lightning.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "ended at 58",
        "killed at 40",
        "ended at 58",
        "every loss is the same, to the bit",
    ]
