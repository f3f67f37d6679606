"""Under the Hugging Face Trainer: every checkpoint, and what it may not do."""

import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState
from children import die, run
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from seedcursor import StatefulDataLoader, StatefulDataset, StatefulIterableDataset
from seedcursor.integrations.transformers import StatefulTrainerMixin

N, BATCH, EPOCHS = 22, 4, 2


class ExactTrainer(StatefulTrainerMixin, Trainer):
    pass


class Own(Trainer):
    def get_train_dataloader(self):
        return StatefulDataLoader(self.train_dataset, BATCH, shuffle=True, seed=9)


class ExactOwn(StatefulTrainerMixin, Own):
    pass


class Noisy(StatefulDataset):
    """Draws keyed, and from all global generators; it counts what is loaded in this process."""

    def __init__(self, n=N):
        super().__init__(seed=3)
        self.n = n
        self.loaded = 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.loaded += 1
        drawn = self.rng(index).normal() + random.random() + np.random.rand()
        return {"x": torch.rand(3) + drawn, "indices": index}


class Keyed(Noisy):
    """Draws keyed only, so that a sample is the same in any batch."""

    def __getitem__(self, index):
        self.loaded += 1
        drawn = self.rng(index).normal(size=3)
        return {"x": torch.tensor(drawn, dtype=torch.float32), "indices": index}


class Records(StatefulIterableDataset):
    """A stream; it counts what is made of records in this process."""

    loaded = 0

    def records(self, start):
        return iter(range(start, N))

    def sample(self, record, index):
        self.loaded += 1
        return {"x": torch.full((3,), self.rng(index).normal()), "indices": record}


class SizedRecords(Records):
    def __len__(self):
        return N


class Model(nn.Module):
    """Logs each loss of the training, with what it was made of."""

    def __init__(self, write):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.write = write

    def forward(self, x, indices):
        loss = self.layers(x).square().mean()
        if self.training:
            self.write([loss.item().hex(), indices.tolist(), x.tolist()])
        return {"loss": loss}


@pytest.fixture(autouse=True, scope="module")
def _imported(tmp_path_factory):
    # What it imports late, before the first fork.
    trainer_of(tmp_path_factory.mktemp("first"), [].append).get_train_dataloader()
    forget()


@pytest.fixture(autouse=True)
def _forgotten():
    yield
    forget()


def forget():
    """Accelerate keeps one state for the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def trainer_of(folder, write, cls=ExactTrainer, dataset=None, callbacks=(), **options):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    defaults = {
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": EPOCHS,
        "save_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }
    return cls(
        Model(write),
        TrainingArguments(str(folder), **(defaults | options)),
        train_dataset=Noisy() if dataset is None else dataset,
        eval_dataset=Noisy(9),
        callbacks=list(callbacks),
    )


def trained(folder, resume=None, dataset=None, **options):
    """All lines of the log, and how many samples were loaded in this process."""
    lines = []
    dataset = Noisy() if dataset is None else dataset
    trainer = trainer_of(folder, lines.append, dataset=dataset, **options)
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{resume}") if resume else None)
    return lines, dataset.loaded


class Death(TrainerCallback):
    """Dies at the beginning of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **options):
        if state.global_step == self.step:
            if args.world_size > 1:
                torch.distributed.barrier()
            die()


def job(folder, name, workers=0, kill_at=None, resume=False):
    dataset = Noisy()
    lines = folder / f"{name}-{os.environ.get('RANK', '0')}"
    with lines.open("w") as log:
        trainer = trainer_of(
            folder,
            lambda line: print(json.dumps([*line, dataset.loaded]), file=log, flush=True),
            dataset=dataset,
            callbacks=[Death(kill_at)],
            dataloader_num_workers=workers,
            save_steps=2,
            eval_strategy="steps",
            eval_steps=3,
        )
        trainer.train(resume_from_checkpoint=resume)


def logged(folder, name, rank):
    return [json.loads(line) for line in (folder / f"{name}-{rank}").read_text().splitlines()]


@pytest.mark.parametrize(("world_size", "kill_at", "saved"), [(1, 9, 8), (2, 5, 4)])
def test_a_killed_run_goes_on_to_the_bit(world_size, kill_at, saved, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    run(job, whole, "whole", world_size=world_size)
    run(job, parts, "killed", 2, kill_at, world_size=world_size, killed=True)
    assert get_last_checkpoint(str(parts)).endswith(f"-{saved}")
    run(job, parts, "resumed", 0, None, True, world_size=world_size)
    for rank in range(world_size):
        expected = logged(whole, "whole", rank)
        killed, resumed = logged(parts, "killed", rank), logged(parts, "resumed", rank)
        assert [line[:3] for line in expected[:kill_at]] == [line[:3] for line in killed]
        assert [line[:3] for line in expected[saved:]] == [line[:3] for line in resumed]
        loaded = [len(line[1]) for line in resumed]
        assert [line[3] for line in resumed] == list(itertools.accumulate(loaded))


WAYS = {
    "plainly": {},
    "accumulating": {"gradient_accumulation_steps": 4},
    "with workers": {
        "dataloader_num_workers": 2,
        "dataloader_persistent_workers": True,
        "gradient_accumulation_steps": 2,
    },
    "sequentially": {"train_sampling_strategy": "sequential", "dataloader_drop_last": True},
    "evaluating": {"eval_strategy": "steps", "eval_steps": 1},
    "restoring callbacks": {"restore_callback_states_from_checkpoint": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_each_checkpoint_can_be_resumed_from(way, tmp_path):
    options = WAYS[way]
    expected, _ = trained(tmp_path, **options)
    steps = options.get("gradient_accumulation_steps", 1)
    per_epoch = len(expected) // EPOCHS
    updates = -(-per_epoch // steps)
    if way == "sequentially":
        assert sum([line[1] for line in expected], []) == 2 * list(range(N - N % BATCH))
    # One way through them all, the others at some, an epoch's last among them.
    for step in range(1, EPOCHS * updates) if way == "plainly" else (1, updates, updates + 1):
        resumed, loaded = trained(tmp_path, step, save_strategy="no", **options)
        done = step // updates * per_epoch + step % updates * steps
        assert resumed == expected[done:]
        if "dataloader_num_workers" not in options:
            assert loaded == sum(len(line[1]) for line in resumed)


def test_the_example_is_killed_and_resumed():
    example = Path(__file__).parents[1] / "examples" / "with_transformers.py"
    done = subprocess.run([sys.executable, example], check=True, capture_output=True, text=True)
    assert done.stdout == (
        "killed in step 73, resumed after step 70\n101 losses after the resume: identical\n"
    )


def test_evaluation_does_not_move_training(tmp_path):
    alone, _ = trained(tmp_path)
    options = {"eval_strategy": "steps", "eval_steps": 1, "eval_on_start": True}
    assert trained(tmp_path, **options)[0] == alone


def samples(lines):
    """Indices and what was made of them, whatever batches they were in."""
    return [s for line in lines for s in zip(line[1], map(tuple, line[2]), strict=True)]


def two_ranks(folder):
    lines = []
    trainer_of(folder, lines.append, dataset=Keyed()).train()
    (folder / f"lines-{os.environ['RANK']}").write_text(json.dumps(lines))


def test_steps_of_the_same_size_can_be_cut_otherwise(tmp_path):
    expected, _ = trained(tmp_path / "alone", dataset=Keyed(), per_device_train_batch_size=8)
    (tmp_path / "pair").mkdir()
    run(two_ranks, tmp_path / "pair", world_size=2)
    pair = [json.loads((tmp_path / "pair" / f"lines-{rank}").read_text()) for rank in (0, 1)]
    for lines, other in zip(expected, zip(*pair, strict=True), strict=True):
        assert sorted(samples([lines])) == sorted(set(samples(other)))
    for folder, size, steps in [("pair", 8, 1), ("pair", 2, 4), ("alone", 4, 2)]:
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        for step in (1, 3, 4):  # the epoch has three
            dataset = Keyed()
            lines, loaded = trained(
                tmp_path / folder, step, dataset=dataset, save_strategy="no", **options
            )
            assert samples(lines) == samples(expected[step:])
            assert loaded == len(samples(lines))


def test_steps_of_another_size_are_refused(tmp_path):
    trained(tmp_path, max_steps=2)
    for options in [{"per_device_train_batch_size": 5}, {"gradient_accumulation_steps": 2}]:
        with pytest.raises(ValueError, match="must be 4, as in the checkpoint, got (5|8)"):
            trained(tmp_path, 2, **options)


def test_what_would_not_be_exact_is_refused(tmp_path, monkeypatch):
    trained(tmp_path / "exact", max_steps=2)
    trained(tmp_path / "plain", max_steps=2, cls=Trainer)
    with pytest.raises(ValueError, match="ignore_data_skip must be False"):
        trained(tmp_path / "exact", 2, ignore_data_skip=True)
    with pytest.raises(ValueError, match="step 2 has no data position"):
        trained(tmp_path / "plain", 2)
    with pytest.raises(ValueError, match="seed: saved 42, here 1"):
        trained(tmp_path / "exact", 2, data_seed=1)
    with pytest.raises(ValueError, match="length: saved 22, here 21"):
        trained(tmp_path / "exact", 2, dataset=Noisy(21))
    with pytest.raises(ValueError, match="split_batches must be False"):
        trained(tmp_path, accelerator_config={"split_batches": True})
    with pytest.raises(ValueError, match="train_sampling_strategy must be one that orders"):
        trained(tmp_path, train_sampling_strategy="batch_rebalance", dataset=Lengthy(N))
    monkeypatch.setattr(Trainer, "get_sp_size", lambda _: 2)
    with pytest.raises(ValueError, match="sequence parallelism must be off"):
        trained(tmp_path)


class EarlyEnd(TrainerCallback):
    """Ends each epoch after its second step."""

    def on_step_end(self, args, state, control, **options):
        control.should_epoch_stop = state.global_step % 2 == 0


def test_epochs_that_the_trainer_reckons_wrongly_are_refused(tmp_path):
    trained(tmp_path, callbacks=[EarlyEnd()])
    with pytest.raises(ValueError, match="in epoch 0 after 3 batches.*in epoch 1 at cursor 4"):
        trained(tmp_path, 3)


def test_a_stream(tmp_path):
    expected, _ = trained(tmp_path, dataset=Records(seed=1), max_steps=5)
    for step in range(1, 5):
        lines, loaded = trained(tmp_path, step, dataset=Records(seed=1), max_steps=5)
        assert lines == expected[step:]
        assert loaded == len(samples(lines))
    trained(tmp_path, dataset=Records(seed=1), max_steps=8)
    with pytest.raises(ValueError, match="give a stream a __len__"):
        trained(tmp_path, 7, dataset=Records(seed=1), max_steps=8)
    expected, _ = trained(tmp_path, dataset=SizedRecords(seed=1))
    for step in (3, 6, 8):
        lines, loaded = trained(tmp_path, step, dataset=SizedRecords(seed=1))
        assert lines == expected[step:]
        assert loaded == len(samples(lines))


class Lengthy(Noisy):
    """With an item by whose length the Trainer may group."""

    def __iter__(self):  # by which it learns the lengths
        return map(self.__getitem__, range(self.n))

    def __getitem__(self, index):
        return super().__getitem__(index) | {"input_ids": [0] * (1 + index * 7 % 5)}


def collate(samples):
    return {key: torch.utils.data.default_collate([s[key] for s in samples]) for key in KEYS}


KEYS = "x", "indices"


class Collating(ExactTrainer):
    def __init__(self, *args, **options):
        super().__init__(*args, data_collator=collate, **options)


def test_grouped_by_length(tmp_path):
    options = {"train_sampling_strategy": "group_by_length", "cls": Collating}
    options |= {"remove_unused_columns": False}
    expected, _ = trained(tmp_path, dataset=Lengthy(), **options)
    assert [line[1] for line in expected[:6]] != [line[1] for line in expected[6:]]
    for _, indices, _ in expected:
        lengths = [index * 7 % 5 for index in indices]
        assert lengths == sorted(lengths, reverse=True)
    for step in (2, 6, 9):
        assert trained(tmp_path, step, dataset=Lengthy(), **options)[0] == expected[step:]


def test_a_dataset_of_hugging_face_without_the_columns_that_no_one_asks_for(tmp_path):
    def table():
        rows = [{"x": [float(k)] * 3, "indices": k, "text": "unused"} for k in range(N)]
        made = datasets.Dataset.from_list(rows)
        made.loaded = 0
        return made

    expected, _ = trained(tmp_path, dataset=table())
    assert sorted(i for line in expected[:6] for i in line[1]) == list(range(N))
    for step in (2, 6, 9):
        assert trained(tmp_path, step, dataset=table())[0] == expected[step:]


def test_a_loader_of_ones_own(tmp_path):
    expected, _ = trained(tmp_path, cls=ExactOwn)
    own = StatefulDataLoader(Noisy(), BATCH, shuffle=True, seed=9, collate_fn=list)
    assert [[s["indices"] for s in batch] for batch in own] == [line[1] for line in expected[:6]]
    for step in (2, 6, 9):
        lines, loaded = trained(tmp_path, step, cls=ExactOwn)
        assert lines == expected[step:]
        assert loaded == len(samples(lines))


def test_a_loader_of_ones_own_without_the_mixin_is_found_out(tmp_path):
    trained(tmp_path, cls=Own, max_steps=2)
    with pytest.raises(RuntimeError, match="derive from StatefulTrainerMixin"):
        trained(tmp_path, 2, cls=Own)


class Peek(TrainerCallback):
    """Looks at a batch before the training."""

    def on_train_begin(self, args, state, control, train_dataloader, **options):
        next(iter(train_dataloader))


def test_a_callback_that_looks_at_the_loader(tmp_path):
    expected, _ = trained(tmp_path)
    assert trained(tmp_path, callbacks=[Peek()])[0] == expected
    assert trained(tmp_path, 2, callbacks=[Peek()])[0] == expected[2:]
    trainer = trainer_of(tmp_path, [].append)
    trainer.get_train_dataloader()
    trainer.add_callback(Peek)  # so that it comes after what goes to the position
    with pytest.raises(RuntimeError, match="the Trainer must skip the batches"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
