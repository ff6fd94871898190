"""fastload datasets in torch's own DataLoader, which frameworks that keep the dataset build."""

from __future__ import annotations

import hashlib
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload import transforms as T

COUNT = 24

Batches = list[tuple[list[int], list[str]]]


@pytest.fixture
def ds(backend: str, picture_folder: Path, tmp_path: Path) -> fastload.Dataset:
    path = tmp_path / "pictures.fl"
    with fastload.Writer(path, schema={"number": fastload.Scalar("int64"), "image": fastload.Image()}) as out:
        for number, file in enumerate(sorted(picture_folder.rglob("*.jpg"))):
            out.append({"number": number, "image": file.read_bytes()})
    return fastload.open(path).transform(image=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()])


def drawn(loader: Any) -> Batches:
    """Return the numbers and the hashes of the pixels of each batch."""
    out: Batches = []
    for batch in loader:
        hashes = [hashlib.sha256(image.numpy().tobytes()).hexdigest() for image in batch["image"]]
        out.append((batch["number"].tolist(), hashes))
    return out


def pixels(batches: Batches) -> set[str]:
    return {each for _, hashes in batches for each in hashes}


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_augmentation_differs_between_epochs_and_workers(ds: fastload.Dataset, context: str) -> None:
    if context not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {context} here")
    ds[0]  # files and threads of the parent do not go to its workers
    spawned = context == "spawn"  # slow to start: once is enough
    for persistent in (True,) if spawned else (False, True):
        loader = data.DataLoader(
            ds,
            batch_size=5,
            num_workers=1 if spawned else 2,
            multiprocessing_context=context,
            persistent_workers=persistent,
        )
        epochs = [drawn(loader) for _ in range(2)]
        for batches in epochs:
            assert [number for numbers, _ in batches for number in numbers] == list(range(COUNT))
            assert len(pixels(batches)) == COUNT
        assert not pixels(epochs[0]) & pixels(epochs[1])


@pytest.mark.parametrize("workers", [0, 1])
def test_torchs_seed_gives_the_same_again(ds: fastload.Dataset, workers: int) -> None:
    def run(seed: int) -> Batches:
        torch.manual_seed(seed)
        return drawn(data.DataLoader(ds, batch_size=5, shuffle=True, num_workers=workers))

    assert run(1) == run(1)
    assert not pixels(run(1)) & pixels(run(2))


def test_a_batch_is_made_of_the_same_samples(ds: fastload.Dataset) -> None:
    asked = [3, 0, 3, COUNT - 1]
    plain = ds.transform(image=None).transform(image=[T.Resize(20), T.CenterCrop(16)])
    samples = plain.__getitems__(asked)
    for index, sample in zip(asked, samples, strict=True):
        assert int(sample["number"]) == index
        assert torch.equal(sample["image"], plain[index]["image"])
    torch.manual_seed(0)
    first, _, second, _ = ds.__getitems__(asked)
    assert not torch.equal(first["image"], second["image"])  # each draws for itself
    with pytest.raises(IndexError, match="out of range"):
        plain.__getitems__([COUNT])


def test_torchs_distributed_sampler_and_ours(ds: fastload.Dataset) -> None:
    for kind in (data.DistributedSampler, fastload.DistributedSampler):
        seen = []
        for rank in range(2):
            sampler = kind(ds, num_replicas=2, rank=rank, seed=1)
            loader = data.DataLoader(ds, batch_size=5, sampler=sampler, num_workers=1)
            seen += [number for numbers, _ in drawn(loader) for number in numbers]
        assert sorted(seen) == list(range(COUNT))
