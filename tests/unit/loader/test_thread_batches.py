"""Batches that worker threads make together: torch's, without shared memory."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data
from torch.utils.data import get_worker_info  # bound before worker threads are used

import fastload
from fastload.loader.prefetch import AutoWorkers

from .ways import Calling, Numbers, threaded

pytestmark = pytest.mark.usefixtures("no_threads_left")


@pytest.fixture(scope="module", autouse=True)
def torchs_own_threads() -> None:
    """Let those of OpenMP be there before threads are counted."""
    list(data.DataLoader([torch.zeros(1 << 20)] * 4, 4))  # type: ignore[arg-type]


# --- collate -------------------------------------------------------------------------------------------


def _collate(samples: Any) -> Any:
    return data.default_collate(samples)


def test_no_shared_memory_is_taken() -> None:
    dataset = Calling(lambda index: {"a": torch.full((3,), index), "b": (np.zeros(2), 1.5)})
    for collate_fn in (None, _collate):
        batch = next(iter(threaded(dataset, collate_fn=collate_fn)))
        expected = next(iter(data.DataLoader(dataset, 4)))
        assert str(batch) == str(expected)
        assert not any(tensor.is_shared() for tensor in (batch["a"], *batch["b"]))


def test_a_users_collate_fn_sees_the_worker_info() -> None:
    def ids(samples: Any) -> Any:
        stacked = data.default_collate(samples)
        return stacked, get_worker_info().id  # type: ignore[union-attr]

    assert {number for _, number in threaded(Numbers(), 8, collate_fn=ids)} <= {0, 1}


def test_processes_still_collate_into_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    list(threaded(Numbers()))

    def wide(sample: Any) -> Any:
        return torch.zeros(9000)

    loader = fastload.DataLoader(Numbers(wide), 4, num_workers=1)
    next(iter(loader))
    if loader.stats()["transport"] is not None:
        assert loader.stats()["transport"]["torch_batches"] == 0
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "torch")
    batch = next(iter(fastload.DataLoader(Numbers(), 4, num_workers=1)))
    assert batch["x"].is_shared()


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 30),
    batch_size=st.integers(1, 7),
    workers=st.integers(1, 3),
    prefetch=st.integers(1, 3),
    in_order=st.booleans(),
    drop_last=st.booleans(),
)
def test_batches_are_torchs(
    count: int, batch_size: int, workers: int, prefetch: int, in_order: bool, drop_last: bool
) -> None:
    dataset = Calling(lambda index: {"x": index, "y": [np.float32(index)]}, count)
    expected: list[Any] = list(data.DataLoader(dataset, batch_size, drop_last=drop_last))
    loader = threaded(
        dataset,
        batch_size,
        num_workers=workers,
        prefetch_factor=prefetch,
        in_order=in_order,
        drop_last=drop_last,
    )
    got = list(loader)
    if not in_order:
        got.sort(key=lambda batch: int(batch["x"][0]))
    assert str(got) == str(expected)
    assert loader.stats()["samples"] == sum(len(batch["x"]) for batch in expected)


def test_batches_ahead_grow_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoWorkers, "choose", lambda: AutoWorkers(1))
    loader = threaded(
        Calling(lambda index: time.sleep(0.15 * (index % 30 == 29)), 90),
        1,
        num_workers="auto",
        collate_fn=len,
    )
    for _ in loader:
        time.sleep(0.004)
    stats = loader.stats()
    assert stats["waits"] >= 2
    assert 2 < stats["prefetch_batches"] <= 2 + stats["waits"]


# --- batches made together -----------------------------------------------------------------------------


def _shared(index: int) -> Any:
    time.sleep(0.002)
    return torch.full((2000,), index), get_worker_info().id  # type: ignore[union-attr]


def test_threads_share_a_batch() -> None:
    batch, workers = next(iter(threaded(Calling(_shared, 64), 64)))
    assert batch[:, 0].tolist() == list(range(64))
    assert set(workers.tolist()) == {0, 1}


def test_batches_are_valid_as_long_as_they_are_held() -> None:
    dataset = Calling(lambda index: torch.full((1 << 15,), index, dtype=torch.int64), 96)
    for held in (list(threaded(dataset, 8)), [batch[3] for batch in threaded(dataset, 8)]):
        for number, batch in enumerate(held):
            expected = (
                8 * number + 3 if batch.dim() == 1 else torch.arange(8 * number, 8 * number + 8)[:, None]
            )
            assert (batch == expected).all()
