"""state_dict and load_state_dict: resuming is exact, whatever changes besides."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import StateError, UsageError
from fastload.sampling import permute

COUNT = 53


def order(epoch: int, seed: int = 3) -> list[int]:
    return permute(range(COUNT), COUNT, seed, epoch).tolist()


def make(ds: Dataset, batch_size: int = 5, **options: Any) -> DataLoader[Any]:
    return DataLoader(
        ds, **{"batch_size": batch_size, "shuffle": True, "seed": 3, "num_workers": 2, **options}
    )


def flat(batches: Any) -> list[int]:
    return [x for batch in batches for x in batch["x"].tolist()]


def take(iterator: Any, count: int) -> list[int]:
    return flat(next(iterator) for _ in range(count))


@pytest.mark.parametrize("delivered", [0, 1, 4, 10, 11])
@pytest.mark.parametrize("workers", [0, 3])
def test_in_the_middle_of_an_epoch(ds: Dataset, delivered: int, workers: int) -> None:
    loader = make(ds, num_workers=workers, prefetch_factor=4 if workers else None)
    flat(loader)  # the second epoch
    iterator = iter(loader)
    seen = take(iterator, delivered)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, min(5 * delivered, COUNT))
    again = make(ds, num_workers=3 - workers)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert again.state_dict() == state
    rest = flat(again)
    if delivered == 11:
        assert seen == order(1)
        assert rest == order(2)
    else:
        assert seen + rest == order(1)
        assert flat(again) == order(2)
    assert flat(iterator) == order(1)[5 * delivered :]


def test_another_batch_size(ds: Dataset) -> None:
    loader = make(ds)
    iterator = iter(loader)
    take(iterator, 3)
    other = make(ds, batch_size=7)
    other.load_state_dict(loader.state_dict())
    assert len(other) == 8  # of a whole epoch
    batches = [batch["x"].tolist() for batch in other]
    assert batches == [order(0)[low : low + 7] for low in range(15, COUNT, 7)]


def test_transforms_draw_as_if_nothing_had_happened(ds: Dataset) -> None:
    view = ds.map(lambda sample: {**sample, "wide": torch.rand(3)})
    whole = [batch["wide"] for batch in make(view)]
    loader = make(view)
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    again = make(view, num_workers=1)
    again.load_state_dict(loader.state_dict())
    for expected, batch in zip(whole[4:], again, strict=True):
        assert torch.equal(expected, batch["wide"])


def test_before_any_iteration(ds: Dataset) -> None:
    state = make(ds).state_dict()
    assert (state["epoch"], state["position"]) == (0, 0)
    again = make(ds)
    again.load_state_dict(state)
    assert flat(again) == order(0)
    named = make(ds)
    named.set_epoch(4)
    assert named.state_dict()["epoch"] == 4


def test_prefetched_batches_are_not_counted(ds: Dataset) -> None:
    loader = make(ds, prefetch_factor=8)
    iter(loader)
    assert loader.state_dict()["position"] == 0
    iterator = iter(loader)
    take(iterator, 1)
    time.sleep(0.05)
    assert loader.state_dict()["position"] == 5
    assert loader.state_dict()["epoch"] == 1


def test_an_early_break(ds: Dataset) -> None:
    loader = make(ds)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (0, 15)
    assert flat(loader) == order(1)  # without loading, the next epoch
    loader.load_state_dict(state)
    assert flat(loader) == order(0)[15:]


def test_the_end_of_an_epoch(ds: Dataset) -> None:
    loader = make(ds)
    iterator = iter(loader)
    take(iterator, 11)
    last = loader.state_dict()
    assert list(iterator) == []
    assert loader.state_dict() == last
    again = make(ds)
    again.load_state_dict(last)
    again.set_epoch(0)
    assert flat(again) == []
    assert flat(again) == order(1)
    dropping = make(ds, drop_last=True)
    assert flat(dropping) == order(0)[:50]
    assert dropping.state_dict()["position"] == COUNT
    again = make(ds, drop_last=True)
    again.load_state_dict({**last, "position": 50})  # taken after the last whole batch
    assert flat(again) == order(1)[:50]


def test_set_epoch_after_loading(ds: Dataset) -> None:
    loader = make(ds)
    loader.set_epoch(5)
    take(iter(loader), 2)
    state = loader.state_dict()
    again = make(ds)
    again.load_state_dict(state)
    again.set_epoch(5)
    assert again.state_dict() == state
    assert flat(again) == order(5)[10:]
    again.load_state_dict(state)
    again.set_epoch(6)
    assert flat(again) == order(6)


def test_set_epoch_of_a_torch_sampler_after_loading(ds: Dataset) -> None:
    def distributed() -> DataLoader[Any]:
        return make(ds, shuffle=None, seed=None, sampler=data.DistributedSampler(ds, 1, 0, seed=3))

    loader = distributed()
    loader.sampler.set_epoch(5)
    take(iter(loader), 2)
    state = loader.state_dict()
    assert (state["epoch"], state["position"], state["seed"]) == (5, 10, 3)
    for told in (None, 5, 6):
        again = distributed()
        again.load_state_dict(state)
        if told is not None:
            again.sampler.set_epoch(told)
        assert flat(again) == (order(6) if told == 6 else order(5)[10:])


def test_the_end_of_the_first_epoch_with_a_torch_sampler(ds: Dataset) -> None:
    def distributed() -> DataLoader[Any]:
        return make(ds, shuffle=None, seed=None, sampler=data.DistributedSampler(ds, 1, 0, seed=3))

    loader = distributed()
    flat(loader)
    again = distributed()
    again.load_state_dict(loader.state_dict())
    again.sampler.set_epoch(0)  # the epoch that a new sampler is in, named all the same
    assert flat(again) == []
    again.sampler.set_epoch(1)
    assert flat(again) == order(1)
    again.load_state_dict(loader.state_dict())
    assert flat(again) == order(1)  # nothing named


def test_loading_twice_and_beside_live_iterators(ds: Dataset) -> None:
    loader = make(ds)
    live = iter(loader)
    seen = take(live, 2)
    early = loader.state_dict()
    seen += take(live, 3)
    late = loader.state_dict()
    loader.load_state_dict(early)
    loader.load_state_dict(late)
    seen += take(live, 1)
    assert loader.state_dict() == late
    resumed = iter(loader)
    assert take(resumed, 2) == order(0)[25:35]
    assert loader.state_dict()["position"] == 35
    assert seen + flat(live) == order(0)
    assert loader.state_dict()["position"] == 35


def test_a_seed_of_no_ones_own_comes_with_the_state(ds: Dataset) -> None:
    torch.manual_seed(11)
    loader = make(ds, seed=None)
    take(iter(loader), 2)
    torch.manual_seed(12)
    again = make(ds, seed=None)
    assert again.state_dict()["seed"] == 12
    again.load_state_dict(loader.state_dict())
    assert flat(again) == order(0, 11)[10:]
    own = make(ds, seed=None, generator=torch.Generator().manual_seed(12))
    with pytest.raises(StateError, match="seed is 11 in the state, 12 here"):
        own.load_state_dict(loader.state_dict())


def test_what_is_refused(ds: Dataset) -> None:
    loader = make(ds)
    state = loader.state_dict()
    for other in (make(ds[:-1]), make(ds[::-1]), make(ds, seed=4), make(ds, shuffle=False)):
        with pytest.raises(StateError, match="the state is of another order"):
            other.load_state_dict(state)
        assert other.state_dict()["position"] == 0
    for malformed in ({}, None, "state", [1]):
        with pytest.raises(StateError):
            loader.load_state_dict(malformed)  # type: ignore[arg-type]
    with pytest.raises(StateError):
        loader.load_state_dict({**state, "version": 99})
    with pytest.raises(StateError, match="the state is of another order"):
        DataLoader(range(5)).load_state_dict(state)  # type: ignore[arg-type]


def test_what_is_accepted(ds: Dataset, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make(ds, pin_memory=False)
    take(iter(loader), 4)
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    transformed = ds.map(lambda sample: sample).with_format("numpy")
    again = make(transformed, batch_size=2, num_workers=0, persistent_workers=False)
    again.load_state_dict(loader.state_dict())
    assert flat(again) == order(0)[20:]


def test_skipped_records_are_counted(ds: Dataset) -> None:
    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["x"] % 3 == 0:
            raise fastload.errors.RecordError("no")
        return sample

    view = ds.map(refuse)
    expected = [x for x in order(0) if x % 3]
    loader = make(view, on_error="skip")
    iterator = iter(loader)
    with pytest.warns(UserWarning, match="left out"):
        seen = take(iterator, 4)
    assert loader.state_dict()["position"] == 20
    again = make(view, on_error="skip")
    again.load_state_dict(loader.state_dict())
    with pytest.warns(UserWarning, match="left out"):
        assert seen + flat(again) == expected


def test_persistent_workers_and_mapped_batches(ds: Dataset) -> None:
    view = ds.map_batches(lambda batch: {**batch, "x": batch["x"] + 100})
    loader = make(view, persistent_workers=True)
    assert flat(loader) == [x + 100 for x in order(0)]
    take(iter(loader), 2)
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 10)
    loader.load_state_dict(state)
    assert flat(loader) == [x + 100 for x in order(1)[10:]]


def test_single_samples(ds: Dataset) -> None:
    loader = make(ds, batch_size=None)
    iterator = iter(loader)
    seen = [int(next(iterator)["x"]) for _ in range(7)]
    again = make(ds, batch_size=None)
    again.load_state_dict(loader.state_dict())
    assert seen + [int(sample["x"]) for sample in again] == order(0)


def test_a_failing_batch_is_not_counted(ds: Dataset) -> None:
    def collate(samples: list[Any]) -> Any:
        if any(int(sample["x"]) == order(0)[12] for sample in samples):
            raise ValueError("no")
        return samples

    loader = make(ds, collate_fn=collate)
    with pytest.raises(ValueError, match="no"):
        list(loader)
    assert loader.state_dict()["position"] == 10


def test_an_empty_dataset(ds: Dataset) -> None:
    loader = make(ds[:0], shuffle=False)
    assert list(loader) == []
    again = make(ds[:0], shuffle=False)
    again.load_state_dict(loader.state_dict())
    assert list(again) == []
    assert again.state_dict()["epoch"] == 0


def test_it_is_small_and_cheap(ds: Dataset) -> None:
    loader = make(ds)
    iterator = iter(loader)
    take(iterator, 1)
    text = json.dumps(loader.state_dict())
    assert len(text) < 1024
    times = []
    for _ in range(200):
        before = time.perf_counter()
        loader.state_dict()
        times.append(time.perf_counter() - before)
    assert np.median(times) < 100e-6


def test_torch_save(ds: Dataset) -> None:
    loader = make(ds)
    take(iter(loader), 3)
    buffer = io.BytesIO()
    torch.save({"loader": loader.state_dict()}, buffer)
    buffer.seek(0)
    again = make(ds)
    again.load_state_dict(torch.load(buffer, weights_only=True)["loader"])
    assert flat(again) == order(0)[15:]


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(os.name != "posix", reason="gloo with a file")
@pytest.mark.usefixtures("process_group")
def test_distributed_checkpoint(ds: Dataset, tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    loader = make(ds)
    take(iter(loader), 3)
    checkpoint.save({"loader": loader}, checkpoint_id=tmp_path / "saved")
    again = make(ds)
    checkpoint.load({"loader": again}, checkpoint_id=tmp_path / "saved")
    assert again.state_dict() == loader.state_dict()
    assert flat(again) == order(0)[15:]


class Backwards(data.Sampler[int]):
    """A sampler that nobody knows, and that gives the same again."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))

    def __len__(self) -> int:
        return COUNT


class Keeping(Backwards):
    """One with a state of its own."""

    def __init__(self) -> None:
        self.given = 0

    def __iter__(self) -> Iterator[int]:
        for index in range(COUNT - 1 - self.given, -1, -1):
            self.given += 1
            yield index
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


@pytest.mark.parametrize("kind", [Backwards, Keeping])
def test_other_samplers(ds: Dataset, kind: Any) -> None:
    expected = list(range(COUNT - 1, -1, -1))
    loader = make(ds, shuffle=None, sampler=kind())
    state = loader.state_dict()
    assert state["position"] == 0
    iterator = iter(loader)
    assert loader.state_dict()["position"] == 0  # prefetched, not delivered
    seen = take(iterator, 4)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 20
    again = make(ds, batch_size=7, shuffle=None, sampler=kind())
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert seen + flat(again) == expected
    end = again.state_dict()
    again.load_state_dict(end)
    assert flat(again) == expected  # the next epoch
    again.load_state_dict(end)
    again.set_epoch(end["epoch"])
    assert flat(again) == []
    with pytest.raises(StateError, match="'sampler' of the state is 3"):
        again.load_state_dict({**state, "sampler": 3})
    with pytest.raises(StateError, match="sampler"):
        make(ds).load_state_dict(state)
    with pytest.raises(StateError, match="sampler"):
        again.load_state_dict(make(ds).state_dict())


def test_other_batch_samplers(ds: Dataset) -> None:
    groups = [[1, 2], [50], [3, 3, 3], [7]]
    loader = DataLoader(ds, batch_sampler=groups, seed=0, num_workers=1)
    iterator = iter(loader)
    assert take(iterator, 2) == [1, 2, 50]
    again = DataLoader(ds, batch_sampler=groups, seed=0)
    again.load_state_dict(loader.state_dict())
    assert [batch["x"].tolist() for batch in again] == [[3, 3, 3], [7]]


def test_a_mixture_that_never_ends(ds: Dataset) -> None:
    def endless(batch_size: int = 5) -> DataLoader[Any]:
        return make(fastload.mix({"a": (ds[:9], 3), "b": (ds[9:], 1)}, stop="endless"), batch_size)

    loader = endless()
    with pytest.raises(TypeError):
        len(loader)
    iterator = iter(loader)
    take(iterator, 40)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 200
    again = endless()
    again.load_state_dict(state)
    assert [batch.records.tolist() for batch in again.plan(1)] == [take(iter(again), 1)]
    again.load_state_dict({**state, "position": 10**15})
    far = iter(again)
    take(far, 1)
    assert again.state_dict()["position"] == 10**15 + 5
    other = make(fastload.mix({"a": (ds[:9], 2), "b": (ds[9:], 1)}, stop="endless"))
    with pytest.raises(StateError, match="fingerprint"):
        other.load_state_dict(state)
    shards = endless(7)
    shards.load_state_dict(state)
    assert take(iter(shards), 5) == take(iterator, 7)


def test_plan(ds: Dataset) -> None:
    loader = make(ds)
    state = loader.state_dict()
    first, second = loader.plan(2)
    assert (first.epoch, first.positions.tolist()) == (0, [0, 1, 2, 3, 4])
    assert (first.records.tolist(), second.records.tolist()) == (order(0)[:5], order(0)[5:10])
    assert first.sources.tolist() == [0] * 5
    assert loader.state_dict() == state
    iterator = iter(loader)
    take(iterator, 9)
    assert [batch.records.tolist() for batch in loader.plan(9)] == [order(0)[45:50], order(0)[50:]]
    assert take(iterator, 1) == order(0)[45:50]
    del iterator
    assert loader.plan(1)[0].records.tolist() == order(1)[:5]
    live = iter(loader)
    loader.load_state_dict({**state, "position": 30})
    assert loader.plan(1)[0].records.tolist() == order(0)[30:35]
    del live
    assert flat(loader) == order(0)[30:]
    with pytest.raises(UsageError, match="sampler"):
        make(ds, shuffle=None, sampler=Backwards()).plan(1)
