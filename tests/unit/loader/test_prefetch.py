"""num_workers="auto", and batches that are made ahead as it turns out to take."""

from __future__ import annotations

import inspect
import pickle
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import data

import fastload
from fastload._machine import usable_cpus
from fastload.loader import DataLoader
from fastload.loader.prefetch import MOST_BATCHES, WAIT_SECONDS, AutoWorkers, Prefetch, batch_bytes

COUNT = 90


class Uneven(data.Dataset[torch.Tensor]):
    """Samples of 1,000 bytes that are made at once, but for a few."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 30 == 29:
            time.sleep(0.15)
        return torch.zeros(1000, dtype=torch.uint8)


def uneven(image: Any) -> Any:
    if int(image[0]) % 30 == 29:
        time.sleep(0.15)
    return image


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> fastload.Dataset:
    path = tmp_path_factory.mktemp("prefetch") / "numbers.fl"
    with fastload.Writer(path, schema={"x": fastload.Tensor("uint8", (1000,))}) as writer:
        for number in range(COUNT):
            writer.append({"x": np.full(1000, number, np.uint8)})
    return fastload.open(path)


@pytest.fixture(params=["processes", "engine"])
def source(request: pytest.FixtureRequest, ds: fastload.Dataset) -> Any:
    return Uneven() if request.param == "processes" else ds.map(lambda sample: {"x": uneven(sample["x"])})


def consume(loader: DataLoader[Any]) -> dict[str, Any]:
    for _ in loader:
        time.sleep(0.004)
    return loader.stats()


def test_auto_takes_the_cpus_that_this_rank_has(
    ds: fastload.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert DataLoader(ds, num_workers="auto").num_workers == usable_cpus()
    assert DataLoader(Uneven(), num_workers="auto").num_workers == usable_cpus()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert DataLoader(ds, num_workers="auto").num_workers == 1


def test_a_rebuilt_loader_is_automatic_too(ds: fastload.Dataset) -> None:
    loader = DataLoader(ds, num_workers="auto")
    names = inspect.signature(DataLoader.__init__).parameters
    values = {name: value for name, value in vars(loader).items() if name in names}
    again = DataLoader(**{**values, "sampler": loader.sampler, "batch_sampler": None, "batch_size": 1})
    for each in (again, pickle.loads(pickle.dumps(loader))):
        assert isinstance(each.num_workers, AutoWorkers)
        assert each.num_workers == loader.num_workers


def test_batches_ahead_grow_after_a_wait(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoWorkers, "choose", lambda: AutoWorkers(1))
    loader = DataLoader(source, num_workers="auto")
    stats = consume(loader)
    assert stats["waits"] >= 2
    assert 2 < stats["prefetch_batches"] <= 2 + stats["waits"]
    grown = stats["prefetch_batches"]
    assert consume(loader)["prefetch_batches"] >= grown, "what one epoch has learnt stays"


def test_they_stay_below_the_byte_budget(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AutoWorkers, "choose", lambda: AutoWorkers(1))
    stats = consume(DataLoader(source, num_workers="auto", buffer_bytes=2_500))
    assert stats["waits"] >= 2
    assert stats["prefetch_batches"] == 2


def test_what_was_asked_for_stays(source: Any) -> None:
    stats = consume(DataLoader(source, num_workers=1))
    assert stats["waits"] >= 2
    assert stats["prefetch_batches"] == 2


def test_workers_that_are_too_slow_gain_nothing() -> None:
    prefetch = Prefetch(2, grows=True)
    assert not any(prefetch.note(0.1, None) for _ in range(100))
    assert (prefetch.batches, prefetch.waits) == (2, 99)


@given(st.lists(st.booleans()), st.integers(1, 4), st.integers(1, 3), st.integers(0, 2000))
def test_growth(waits: list[bool], batches: int, step: int, limit: int) -> None:
    prefetch = Prefetch(batches, grows=True, step=step, limit_bytes=limit)
    prefetch.begin()
    batch = [np.zeros(100, np.uint8)]
    prefetch.note(1, batch)
    ready = 0
    for waited in waits:
        before = prefetch.batches
        grown = prefetch.note(WAIT_SECONDS if waited else 0, batch)
        assert prefetch.batches == before + step * grown
        if grown:
            assert waited
            assert ready >= before
            assert prefetch.batches * 100 <= limit
            assert prefetch.batches <= MOST_BATCHES
        elif waited and ready >= before:
            assert (before + step) * 100 > limit or before + step > MOST_BATCHES
        ready = 0 if waited else ready + 1
    assert prefetch.waits == sum(waits)


def test_bytes_of_anything() -> None:
    class Own:
        def __init__(self) -> None:
            self.x, self.itself = torch.zeros(3), self

    assert batch_bytes(Own()) >= 12
    assert batch_bytes({"a": [b"12", "345", None], "b": (np.zeros(2), 5)}) == 21
