"""Large tensors of samples, which go to their rows of the batch as soon as they are made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data._utils import collate

import fastload
from fastload.loader import mapping

from .ways import Calling

pytestmark = pytest.mark.skipif(not mapping.available(), reason="needs memfd_create")


@pytest.fixture(params=["thread", "multiprocessing", "by position"])
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def loader(method: str, dataset: Any, batch_size: int) -> fastload.DataLoader[Any]:
    """Return a loader whose two workers are processes or threads, samples seeded by worker or by position."""
    if method == "by position":
        return fastload.DataLoader(dataset, batch_size, num_workers=2, seed_by="sample")
    return fastload.DataLoader(dataset, batch_size, num_workers=2, worker_method=method)  # type: ignore[arg-type]


def _alike(index: int) -> Any:
    big = torch.full((3, 40, 40), float(index))
    array = np.full((2000,), index, np.int16)
    return {
        "a": big,
        "b": [array, (index, big.permute(2, 1, 0))],
        "c": str(index),
        "d": big.to(torch.bfloat16),
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(_same, one, other))
    return bool(one == other)


def _promoted(sample: Any, index: int) -> Any:
    return torch.full((5000,), 300 if index == 5 else 3, dtype=torch.int16 if index == 5 else torch.uint8)


def _requires_grad(sample: Any, index: int) -> Any:
    return torch.nn.Parameter(sample["a"])


def _outcome(loader: Any) -> Any:
    """Return the batches, or the error with what it says first."""
    try:
        return list(loader)
    except Exception as error:
        said = re.sub(
            r"(?s)^Caught .*\n\w*: (?=[^\n]*\n?$)", "", str(error).partition("\n\nIt is batch")[0].strip()
        )
        return type(error), said.strip("'")


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        (lambda sample, index: sample, False),
        (_promoted, False),
        (_requires_grad, False),
        (lambda sample, index: [sample["a"].conj(), sample["b"][0].astype(np.uint16)], False),
        (lambda sample, index: torch.zeros(3, 1 << 18), False),  # memory of its own
        (lambda sample, index: torch.zeros(9000) if index == 5 else torch.zeros(9000, device="meta"), True),
        (lambda sample, index: sample["a"][:, : 30 if index == 5 else 40], True),
        (lambda sample, index: sample if index != 5 else {"a": 5}, True),
        (lambda sample, index: [sample["a"]] * (1 + (index == 5)), True),
        (lambda sample, index: None if index == 5 else sample["a"], True),
    ],
)
def test_large_tensors_are_collated_as_by_torch(method: str, change: Any, fails: bool) -> None:
    dataset = Calling(lambda index: change(_alike(index), index), 16)
    expected = _outcome(data.DataLoader(dataset, 7))
    if method != "thread" and (fails or change is _requires_grad):  # torch's processes say it in other words
        expected = _outcome(data.DataLoader(dataset, 7, num_workers=1))
    got = _outcome(loader(method, dataset, 7))
    assert type(got) is type(expected), got
    if isinstance(expected, tuple):
        assert got == expected
    else:
        assert all(map(_same, got, expected))
        assert len(got) == len(expected) == 3


@pytest.mark.parametrize("kind", [torch.Tensor, np.ndarray])
def test_a_collating_that_somebody_taught_torch_is_used(
    method: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count(batch: Any, *, collate_fn_map: Any = None) -> int:
        return len(batch)

    monkeypatch.setitem(collate.default_collate_fn_map, kind, count)
    sample: Any = torch.zeros(2000) if kind is torch.Tensor else np.zeros(2000)
    assert list(loader(method, Calling(lambda index: sample), 8)) == [8, 8, 8]


def test_samples_of_the_dataset_are_not_changed(method: str) -> None:
    kept = [{"x": torch.full((2000,), index), "n": index} for index in range(8)]
    (batch,) = loader(method, kept, 8)
    batch["x"].zero_()
    assert all(int(sample["x"][0]) == index for index, sample in enumerate(kept))


def test_a_collating_that_is_taught_for_a_while_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as taught:
        taught.setitem(collate.default_collate_fn_map, torch.Tensor, lambda batch, **_: len(batch))
        assert list(loader("thread", [torch.zeros(3)] * 8, 8)) == [8]
    (batch,) = loader("thread", [torch.zeros(3)] * 8, 8)
    assert not batch.is_shared()
