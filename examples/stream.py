"""A model of text on a corpus of many files: killed in mid-epoch, resumed to the bit.

``python examples/stream.py`` writes sources of Python's standard library to JSON Lines in eight
shards, a record for each paragraph, and trains a small model of bytes on them: once to the end, and
once killed by SIGKILL and resumed with another number of workers. It compares every loss and token.
"""

import json
import os
import signal
import sysconfig
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import torch
from killed import compare
from torch import nn

from seedcursor import Packer, ShardedDataset, StatefulDataLoader, WindowedSampler, index_shards

EPOCHS, KILL_AT = 2, 15
SHARDS, BATCH, LENGTH, CONTEXT = 8, 128, 256, 8
MASK = 0  # a byte that no source has


def write_corpus(folder: Path) -> Path:
    """Index the sources, cut at blank lines; the path of the index."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("[a-e]*.py"))
    pieces = [piece for path in sources for piece in path.read_text("utf-8").split("\n\n")]
    files = [folder / f"{shard}.jsonl" for shard in range(SHARDS)]
    for shard, file in enumerate(files):
        lines = (json.dumps({"text": piece}) + "\n" for piece in pieces[shard::SHARDS])
        file.write_text("".join(lines))
    index_shards(files, folder / "index.json")
    return folder / "index.json"


class Masked(ShardedDataset):
    """The bytes of a piece, some of them masked: others in each epoch."""

    def sample(self, record: dict[str, str], index: int) -> torch.Tensor:
        """Draw the masks of a record."""
        tokens = torch.tensor(list(record["text"].encode()) or [MASK])
        masked = torch.from_numpy(self.rng(index).random(len(tokens)) < 0.05)
        return tokens.masked_fill(masked, MASK)


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Predict each byte from those before it in its document."""
    contexts = batch["tokens"].unfold(1, CONTEXT + 1, 1)
    whole = batch["documents"].unfold(1, CONTEXT + 1, 1)
    whole = (whole[..., 0] == whole[..., -1]) & (whole[..., -1] > 0)
    contexts = contexts[whole][::16]  # enough to learn from, and quick
    return nn.functional.cross_entropy(model(contexts[:, :-1]), contexts[:, -1])


def train(folder: Path, workers: int, kill_at: int | None = None) -> None:
    """Train from the checkpoint on, if there is one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(256, 16), nn.Flatten(), nn.Linear(16 * CONTEXT, 256))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    index = folder / "index.json"
    dataset = Masked(index if index.exists() else write_corpus(folder), seed=7)
    sampler = WindowedSampler(dataset, window=200, block=BATCH, ranks=1, workers=4)
    loader: Any = StatefulDataLoader(
        dataset, BATCH, sampler=sampler, num_workers=workers, collate_fn=Packer(LENGTH)
    )
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
    with open(folder / "log", "a") as log:
        while loader.epoch < EPOCHS:
            for step, batch in enumerate(loader, start=loader.cursor // BATCH):
                loss = loss_of(model, batch)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                value, tokens = float(loss.detach()), zlib.crc32(batch["tokens"].numpy())
                log.write(f"{loader.epoch} {step} {value:.3f} {value.hex()} {tokens}\n")
                log.flush()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state | {"data": loader.state_dict()}, folder / "new")
                os.replace(folder / "new", folder / "checkpoint")
                if step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    whole = partial(train, workers=2)
    compare(whole, partial(train, workers=2, kill_at=KILL_AT), partial(train, workers=1))
