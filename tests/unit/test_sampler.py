"""fastload.DistributedSampler, in torch's DataLoader and in fastload's."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload import DataLoader, DistributedSampler
from fastload.errors import StateError, UsageError
from fastload.sampling import permute


def samplers(count: int, world: int, **options: Any) -> list[DistributedSampler]:
    return [DistributedSampler(range(count), world, rank, **options) for rank in range(world)]


@pytest.mark.parametrize("count", [0, 1, 3, 20, 5000])
@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shares_are_torchs(count: int, world: int, drop_last: bool) -> None:
    order = permute(range(count), count, 3, 2).tolist()
    total = count // world * world if drop_last else -(-count // world) * world
    padded = (order * (total // max(count, 1) + 1))[:total]
    for rank, sampler in enumerate(samplers(count, world, seed=3, drop_last=drop_last)):
        sampler.set_epoch(2)
        got = list(sampler)
        assert got == padded[rank::world]
        assert all(type(index) is int for index in got)
        assert len(sampler) == len(got)
        torchs = data.DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last)  # type: ignore[arg-type]
        plain = DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last)
        if count:  # torch's fails with no indices
            assert list(plain) == list(torchs)
        assert len(plain) == len(torchs)


def test_it_is_torchs_sampler() -> None:
    sampler = DistributedSampler(range(10), 2, 1, seed=4)
    assert isinstance(sampler, data.DistributedSampler)
    assert (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed) == (2, 1, 0, 4)
    with pytest.raises(ValueError, match="rank"):
        DistributedSampler(range(10), 2, 2)


def test_epochs() -> None:
    sampler = DistributedSampler(range(10), 1, 0)
    orders = [permute(range(10), 10, 0, epoch).tolist() for epoch in range(4)]
    assert list(sampler) == orders[0]
    assert list(sampler) == orders[1]
    sampler.set_epoch(3)
    assert list(sampler) == orders[3]
    assert sampler.epoch == 3
    next(iter(sampler))
    sampler.set_epoch(0)
    assert list(sampler) == orders[0]


def test_in_torchs_loader() -> None:
    got = []
    for sampler in samplers(10, 2, seed=1):
        loader = data.DataLoader(range(10), batch_size=2, sampler=sampler)  # type: ignore[arg-type]
        got.append([batch.tolist() for batch in loader])
        assert len(loader) == len(got[-1]) == 3
    assert sorted(x for rank in got for batch in rank for x in batch) == list(range(10))


def test_memory_does_not_grow_with_the_dataset() -> None:
    peaks = []
    for count in (10**3, 10**6, 10**10):
        sampler = DistributedSampler(range(count), 8, 3)
        next(iter(sampler))
        tracemalloc.start()
        indices = iter(sampler)
        for _ in range(125):
            next(indices)
        sampler.state_dict()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 1 << 20


@pytest.mark.parametrize("worlds", [(1, 3), (4, 2), (3, 1)])
def test_resuming_at_another_world_size(worlds: tuple[int, int]) -> None:
    before, after = worlds
    whole = list(DistributedSampler(range(100), 1, 0, seed=5))
    seen = []
    states = set()
    for sampler in samplers(100, before, seed=5):
        indices = iter(sampler)
        seen.append([next(indices) for _ in range(6)])
        states.add(json.dumps(sampler.state_dict()))
    (state,) = states  # the same on all ranks
    mixed = [seen[position % before][position // before] for position in range(6 * before)]
    assert mixed == whole[: 6 * before]
    rest = []
    for sampler in samplers(100, after, seed=5):
        sampler.load_state_dict(json.loads(state))
        sampler.set_epoch(0)
        rest.append(list(sampler))
    mixed = [rest[position % after][position // after] for position in range(sum(map(len, rest)))]
    assert mixed[: 100 - 6 * before] == whole[6 * before :]


def test_what_was_consumed_may_be_less_than_was_given() -> None:
    sampler = DistributedSampler(range(100), 2, 1)
    indices = iter(sampler)
    given = [next(indices) for _ in range(10)]
    again = DistributedSampler(range(100), 2, 1)
    again.load_state_dict(sampler.state_dict(consumed=4))
    assert [next(iter_) for iter_ in [iter(again)]] == given[4:5]
    assert again.state_dict(consumed=1)["position"] == 10


def test_torchs_loader_with_workers_asks_ahead() -> None:
    def loader(sampler: DistributedSampler) -> data.DataLoader[Any]:
        return data.DataLoader(range(100), batch_size=5, sampler=sampler, num_workers=1)  # type: ignore[arg-type]

    whole = [batch.tolist() for batch in loader(DistributedSampler(range(100), 2, 1))]
    sampler = DistributedSampler(range(100), 2, 1)
    batches = iter(loader(sampler))
    got = [next(batches).tolist() for _ in range(3)]
    del batches
    again = DistributedSampler(range(100), 2, 1)
    again.load_state_dict(sampler.state_dict(consumed=15))
    assert got + [batch.tolist() for batch in loader(again)] == whole


def test_the_end_of_an_epoch() -> None:
    sampler = DistributedSampler(range(11), 2, 0)
    list(sampler)
    state = sampler.state_dict()
    assert (state["epoch"], state["position"]) == (0, 11)
    again = DistributedSampler(range(11), 2, 0)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert list(again) == list(sampler)  # epoch 1
    again.load_state_dict(state)
    again.set_epoch(0)
    assert list(again) == []


def test_states_of_another_order_are_refused() -> None:
    state = DistributedSampler(range(10), 2, 0, seed=1).state_dict()
    for other in (
        DistributedSampler(range(11), 2, 0, seed=1),
        DistributedSampler(range(10), 2, 0, seed=2),
        DistributedSampler(range(10), 2, 0, seed=1, shuffle=False),
    ):
        with pytest.raises(StateError):
            other.load_state_dict(state)


def test_natively_it_is_shard(record_dataset: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastload.loader import sharding

    ds = fastload.open(record_dataset)
    for rank in range(3):
        sampler = DistributedSampler(ds, 3, rank, seed=6)
        with_sampler = DataLoader(ds, batch_size=8, sampler=sampler)
        monkeypatch.setattr(sharding, "process_topology", lambda rank=rank: sharding.Topology(rank, 3))
        sharded = DataLoader(ds, batch_size=8, shuffle=True, seed=6, shard=True)
        by_hand = list(DistributedSampler(ds, 3, rank, seed=6))
        got = [int(x) for batch in with_sampler for x in batch["x"][:, 0, 0]]
        assert got == by_hand == [int(x) for batch in sharded for x in batch["x"][:, 0, 0]]
        assert with_sampler.stats()["order"] == "fastload"
        assert with_sampler.state_dict() == sharded.state_dict() == sampler.state_dict()
        sampler.set_epoch(4)
        next(iter(with_sampler))
        assert sampler.state_dict() == with_sampler.state_dict()
        assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (4, 24)


def test_a_state_loaded_into_the_sampler_is_the_loaders(record_dataset: str, backend: str) -> None:
    ds = fastload.open(record_dataset)
    first = DataLoader(ds, batch_size=8, sampler=DistributedSampler(ds, 2, 0))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    sampler = DistributedSampler(ds, 2, 0)
    second = DataLoader(ds, batch_size=8, sampler=sampler)
    sampler.load_state_dict(first.state_dict())
    assert torch.equal(next(iter(second))["x"], next(iterator)["x"])


def test_a_mixtures_shuffle_is_no_order_of_indices(record_dataset: str, backend: str) -> None:
    ds = fastload.open(record_dataset)
    mixed = fastload.mix({"a": (ds[:60], 2), "b": (ds[60:], 1)})
    with pytest.raises(UsageError, match="shuffles its parts by itself"):
        iter(DistributedSampler(mixed, 2, 0))
    assert list(DistributedSampler(mixed, 2, 1, shuffle=False))[:3] == [1, 3, 5]
    loader = DataLoader(mixed, batch_size=5, sampler=DistributedSampler(mixed, 2, 0))
    assert len(list(loader)) == len(loader)


def test_pickle_keeps_the_place(tmp_path: Path) -> None:
    sampler = DistributedSampler(range(50), 1, 0)
    indices = iter(sampler)
    first = [next(indices) for _ in range(5)]
    path = tmp_path / "state.pt"
    torch.save(sampler.state_dict(), path)
    again = DistributedSampler(range(50), 1, 0)
    again.load_state_dict(torch.load(path))
    assert first + list(again) == first + list(indices)
