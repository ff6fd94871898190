"""State of loaders of Python datasets: by position, by a sampler's or an iterable dataset's own."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import fastload
from fastload.errors import StateError

from .ways import Numbers, Plain, Stream, flat, numbers

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Noisy(data.Dataset[Any]):
    """Samples with random numbers of all three kinds."""

    def __init__(self, count: int = 23) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(1), random.random(), np.random.rand()


def noisy_collate(samples: list[Any]) -> Any:
    return str([[value if isinstance(value, int) else float(value) for value in each] for each in samples]), (
        random.random()
    )


def _resumed(make: Any, taken: int, *, epoch: int = 0) -> tuple[list[Any], list[Any]]:
    """Return two epochs, from ``epoch`` on, of a run left alone and of one that stopped after ``taken``."""
    alone = make()
    for _ in range(epoch):
        list(alone)
    whole = [*alone, *alone]
    before = make()
    for _ in range(epoch):
        list(before)
    iterator = iter(before)
    got = [next(iterator) for _ in range(taken)]
    state = json.loads(json.dumps(before.state_dict()))
    after = make()
    after.load_state_dict(state)
    assert after.state_dict() == state
    got += list(after)
    return whole, [*got, *after]


@WORKERS
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_shuffled_and_seeded_by_sample(workers: int, taken: int) -> None:
    def make(num_workers: int = workers) -> fastload.DataLoader[Any]:
        return fastload.DataLoader(
            Noisy(), 4, True, num_workers=num_workers, collate_fn=noisy_collate, seed=3, seed_by="sample"
        )

    whole, got = _resumed(make, taken)
    assert got == whole
    if taken == 3:
        there = make(2 - workers)
        assert [*there, *there] == whole, "the same at another number of workers"


def test_the_callers_generators_are_left_alone() -> None:
    loader = fastload.DataLoader(Noisy(), 4, seed=3, seed_by="sample")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    iterator = iter(loader)
    expected = random.random(), np.random.rand(), float(torch.rand(1))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(1)
    iterator = iter(loader)
    next(iterator)
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected


def test_epochs_and_samples_draw_differently() -> None:
    loader = fastload.DataLoader(Noisy(), 23, seed=3, seed_by="sample")
    (first,), (second,) = loader, loader
    draws = [float(value) for batch in (first, second) for value in batch[1]]
    assert len(set(draws)) == 46


@WORKERS
def test_another_batch_size_goes_on_in_the_sequence(workers: int) -> None:
    loader = fastload.DataLoader(Numbers(), 4, True, num_workers=workers, seed=3)
    whole = flat(numbers(loader))
    loader.set_epoch(0)
    iterator = iter(loader)
    got = flat(numbers([next(iterator), next(iterator)]))
    other = fastload.DataLoader(Numbers(), 9, True, num_workers=workers, seed=3)
    other.load_state_dict(loader.state_dict())
    assert got + flat(numbers(other)) == whole


def _random_sampler(**arguments: Any) -> Any:
    return lambda workers: fastload.DataLoader(
        Numbers(),
        4,
        sampler=data.RandomSampler(Numbers(), **arguments),  # type: ignore[arg-type]
        num_workers=workers,
    )


def _with_generator(workers: int) -> fastload.DataLoader[Any]:
    return fastload.DataLoader(Numbers(), 4, True, num_workers=workers, generator=torch.Generator())


def _weighted(workers: int) -> fastload.DataLoader[Any]:
    sampler = data.WeightedRandomSampler([1.0] * 53, 30, generator=torch.Generator())
    return fastload.DataLoader(Numbers(), 4, sampler=sampler, num_workers=workers)


def _batched(workers: int) -> fastload.DataLoader[Any]:
    sampler = data.RandomSampler(Numbers(), generator=torch.Generator())  # type: ignore[arg-type]
    batches = list(data.BatchSampler(sampler, 5, False))
    return fastload.DataLoader(Numbers(), batch_sampler=batches, num_workers=workers)


@WORKERS
@pytest.mark.parametrize("make", [_with_generator, _weighted, _batched])
@pytest.mark.parametrize("taken", [1, 4])
def test_the_users_samplers_and_generators(make: Any, workers: int, taken: int) -> None:
    whole, got = _resumed(lambda: make(workers), taken, epoch=1)
    assert numbers(got) == numbers(whole)


def test_a_generator_is_advanced_as_torch_does() -> None:
    for workers in (0, 2):
        ours, theirs = torch.Generator().manual_seed(4), torch.Generator().manual_seed(4)
        torchs: Any = data.DataLoader(Numbers(), 4, True, num_workers=workers, generator=theirs)
        loader = fastload.DataLoader(Numbers(), 4, True, num_workers=workers, generator=ours)
        assert [numbers(loader), numbers(loader)] == [numbers(torchs), numbers(torchs)]
        assert torch.equal(ours.get_state(), theirs.get_state())


@WORKERS
def test_a_sampler_that_draws_from_torchs_global_generator(workers: int) -> None:
    make = _random_sampler(replacement=True)
    torch.manual_seed(8)
    loader = make(workers)
    iterator = iter(loader)
    got = numbers([next(iterator), next(iterator)])
    state = loader.state_dict()
    rest = numbers(iterator)
    torch.manual_seed(99)
    after = make(workers)
    after.load_state_dict(state)
    assert numbers(after) == rest
    assert len(got) == 2


class _Counting(data.Sampler[int]):
    """A sampler that keeps its own state, and whose order depends on how often it was asked."""

    def __init__(self) -> None:
        self.at, self.rounds = 0, 0

    def __iter__(self) -> Iterator[int]:
        if self.at == 0:
            self.rounds += 1
        while self.at < 20:
            self.at += 1
            yield (self.at * 7 * self.rounds) % 20
        self.at = 0

    def __len__(self) -> int:
        return 20

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at, "rounds": self.rounds}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at, self.rounds = state["at"], state["rounds"]


@WORKERS
@pytest.mark.parametrize("batch_size", [3, None])
def test_a_sampler_with_a_state_is_asked(workers: int, batch_size: int | None) -> None:
    def make() -> fastload.DataLoader[Any]:
        return fastload.DataLoader(
            Numbers(), batch_size, sampler=_Counting(), num_workers=workers, collate_fn=str
        )

    whole, got = _resumed(make, 4)
    assert got == whole


@WORKERS
def test_torchs_distributed_sampler_keeps_its_epoch(workers: int) -> None:
    def make() -> fastload.DataLoader[Any]:
        sampler: Any = data.DistributedSampler(Numbers(), num_replicas=2, rank=1, seed=1)
        return fastload.DataLoader(Numbers(), 4, sampler=sampler, num_workers=workers)

    loader = make()
    loader.set_epoch(3)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = numbers(iterator)
    assert state["epoch"] == 3
    after = make()
    after.load_state_dict(state)
    assert numbers(after) == rest
    after.load_state_dict(state)
    after.set_epoch(3)
    assert numbers(after) == rest


def test_shards_of_a_python_dataset_and_another_topology(monkeypatch: pytest.MonkeyPatch) -> None:
    def ranks(world: int, state: Any = None) -> list[fastload.DataLoader[Any]]:
        made = []
        for rank in range(world):
            sampler = fastload.DistributedSampler(Numbers(), world, rank, seed=3)
            made.append(fastload.DataLoader(Numbers(), 8 // world, sampler=sampler))
            if state is not None:
                made[-1].load_state_dict(state)
        return made

    alone = ranks(1)[0]
    whole = [sorted(batch) for batch in numbers(alone)]
    assert alone.stats()["order"] == "fastload"
    two = ranks(2)
    iterators = [iter(loader) for loader in two]
    got = [sorted(flat(numbers(map(next, iterators)))) for _ in range(3)]
    states = [loader.state_dict() for loader in two]
    assert states[0] == states[1]
    assert got == whole[:3]
    four = [numbers(loader) for loader in ranks(4, states[0])]
    assert [sorted(flat(list(parts))) for parts in zip(*four, strict=True)][:-1] == whole[3:-1]


# --- iterable datasets ---------------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("taken", [0, 1, 5, 6])
@pytest.mark.parametrize("dataset", [Stream, Plain])
def test_iterable_datasets_go_on(dataset: Any, workers: int, taken: int) -> None:
    whole, got = _resumed(
        lambda: fastload.DataLoader(dataset(), 3, num_workers=workers, collate_fn=list), taken
    )
    assert got == whole


def test_an_iterators_own_state_is_used() -> None:
    class Iterating:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterating:
            return self

        def __next__(self) -> int:
            self.at += 1
            if self.at > 9:
                raise StopIteration
            return self.at

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    class Dataset(data.IterableDataset[int]):
        def __iter__(self) -> Iterating:
            return Iterating()

    loader = fastload.DataLoader(Dataset(), 2)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    assert state["stream"]["states"] == {"0": {"at": 2}}
    after = fastload.DataLoader(Dataset(), 2)
    after.load_state_dict(state)
    assert [batch.tolist() for batch in after] == [[3, 4], [5, 6], [7, 8], [9]]


def test_persistent_workers_take_a_loaded_state() -> None:
    with fastload.DataLoader(Stream(), 3, num_workers=2, persistent_workers=True) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in iterator]
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == rest


def test_another_number_of_workers_is_refused_for_iterable_datasets() -> None:
    loader = fastload.DataLoader(Stream(), 3)
    next(iter(loader))
    other = fastload.DataLoader(Stream(), 3, num_workers=2)
    with pytest.raises(StateError, match="of 0 workers' copies of an iterable dataset, here are 2"):
        other.load_state_dict(loader.state_dict())


def test_states_of_another_kind_are_refused() -> None:
    ordered, followed = fastload.DataLoader(Numbers(), 4, True, seed=3), fastload.DataLoader(Stream(), 4)
    with pytest.raises(StateError, match="fastload's own order, not of an iterable dataset"):
        followed.load_state_dict(ordered.state_dict())
    sampled = fastload.DataLoader(Numbers(), 4, sampler=[1, 2])
    with pytest.raises(StateError, match="a sampler's, not of fastload's own order"):
        ordered.load_state_dict(sampled.state_dict())
    longer = fastload.DataLoader(Numbers(count=54), 4, True, seed=3)
    with pytest.raises(StateError, match="its records are 53 in the state, 54 here"):
        longer.load_state_dict(ordered.state_dict())
