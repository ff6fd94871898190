"""The whole way: sample photographs, converted, loaded and learnt from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import fastload
from fastload import transforms as T
from fastload.bench.photographs import make_photographs
from fastload.convert import convert

EPOCHS = 5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def small_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: so small a network loses by more on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.timeout(300)
def test_a_small_network_learns_the_sample_photographs(tmp_path: Path, backend: str) -> None:
    make_photographs(tmp_path / "photographs", 200, workers=1)
    convert(tmp_path / "photographs", tmp_path / "p.fl", workers=1, shard_size="5MB")
    floats = [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    train = fastload.open(tmp_path / "p.fl", split="train").transform(
        image=[T.RandomResizedCrop(64, scale=(0.3, 1.0)), T.RandomHorizontalFlip(), *floats]
    )
    val = fastload.open(tmp_path / "p.fl", split="val").transform(
        image=[T.Resize(72), T.CenterCrop(64), *floats]
    )
    torch.manual_seed(0)
    network = small_network(len(train.classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    loader = fastload.DataLoader(
        train.as_tuple("image", "label"), batch_size=20, shuffle=True, num_workers=2, drop_last=True, seed=0
    )
    losses: list[float] = []
    seen: list[torch.Tensor] = []
    for _ in range(EPOCHS):
        total = 0.0
        for image, label in loader:
            assert image.shape == (20, 3, 64, 64)
            loss = nn.functional.cross_entropy(network(image), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            seen.append(label)
        losses.append(total / len(loader))
    assert losses[-1] < 0.6 * losses[0], losses
    counts = torch.bincount(torch.cat(seen), minlength=10)
    assert counts.tolist() == [18 * EPOCHS] * 10
    network.eval()
    right = total_seen = 0
    with torch.no_grad():
        for image, label in fastload.DataLoader(val.as_tuple("image", "label"), batch_size=16):
            right += int((network(image).argmax(1) == label).sum())
            total_seen += len(label)
    assert total_seen == 20
    assert right / total_seen > 0.5
