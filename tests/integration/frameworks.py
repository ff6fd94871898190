"""What the tests of training frameworks share: data, a tiny model, a trace of what was trained on.

A program for a framework trains in one process or two, once through and once with a stop in the middle of
the second epoch, and compares what each step got.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.utils import data

import fastload
from fastload import transforms as T

COUNT, BATCH, SIZE = 46, 4, 8
"""Records, samples in a batch of one rank, pixels: neither one nor two ranks' batches divide the records."""

Trace = list[tuple[int, list[int], str]]
"""Of each step: epoch, numbers of the records, hash of the pixels."""


def make_data(folder: Path) -> Path:
    path = folder / "data.fl"
    random = np.random.default_rng(0)
    schema = {
        "number": fastload.Scalar("int64"),
        "image": fastload.Image(),
        "label": fastload.Label(["even", "odd"]),
    }
    with fastload.Writer(path, schema=schema, shard_size="8KB") as writer:
        for number in range(COUNT):
            image = random.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            writer.append({"number": number, "image": image, "label": number % 2})
    return path


class Plain(data.Dataset[dict[str, Any]]):
    """A dataset of Python's, with augmentation of its own."""

    def __init__(self, count: int = COUNT) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        noise = torch.rand(3, SIZE, SIZE)
        return {"number": index, "image": noise + index / COUNT, "label": index % 2}


def make_loader(kind: str, path: Path, *, count: int = COUNT, **changes: Any) -> fastload.DataLoader[Any]:
    """Return a loader over the first records of a fastload dataset (``native``) or of a plain one."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "num_workers": 1, "seed": 5, **changes}
    if kind == "native":
        return fastload.DataLoader(augmented(path).take(count), **arguments)
    return fastload.DataLoader(Plain(count), seed_by="sample", **arguments)


def augmented(path: Path) -> fastload.Dataset:
    random = [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
    return fastload.open(path).transform(image=random)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 2))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch["image"]), batch["label"])


def note(trace: Trace, epoch: int, batch: dict[str, torch.Tensor]) -> None:
    pixels = hashlib.sha256(batch["image"].detach().cpu().numpy().tobytes()).hexdigest()[:16]
    trace.append((epoch, batch["number"].tolist(), pixels))


class Train(Protocol):
    """Trains for two epochs on a loader of ``kind``, or for what is left after the place kept in ``folder``.

    After the step ``stop_at`` (epoch, and step in it) it stops, and keeps its place there.
    """

    def __call__(
        self, kind: str, path: Path, *, stop_at: tuple[int, int] | None, resume: bool, folder: Path
    ) -> Trace: ...


def check_resuming(train: Train, kind: str, path: Path) -> None:
    """Train once through, once with a stop in the middle of the second epoch, and compare."""
    folder = path.parent / kind
    whole = train(kind, path, stop_at=None, resume=False, folder=folder)
    before = train(kind, path, stop_at=(1, 2), resume=False, folder=folder)
    after = train(kind, path, stop_at=None, resume=True, folder=folder)
    check(whole, before, after)


def check(whole: Trace, before: Trace, after: Trace, *, epochs: int = 2) -> None:
    """Check that a run that was stopped and resumed got what the run that was not got."""
    assert before + after == whole, (before + after, whole)
    assert before[-1][0] == after[0][0] == epochs - 1, "stopped in the middle of the last epoch"
    for epoch in range(epochs):
        mine = [number for at, numbers, _ in whole if at == epoch for number in numbers]
        seen = set(of_all_ranks(mine))
        assert seen == set(range(COUNT)), sorted(set(range(COUNT)) - seen)
    assert len({pixels for _, _, pixels in whole}) == len(whole), "augmentation differs between epochs"


def of_all_ranks(values: list[int]) -> list[int]:
    """Return the lists of all ranks, one behind the other."""
    if not torch.distributed.is_initialized():
        return values
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, values)
    return [value for part in parts for value in part]


def world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))
