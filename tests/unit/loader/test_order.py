"""Which samples come, in which order: a pure function of seed, epoch and sampler."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import UsageError
from fastload.sampling import permute


def batches(loader: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def flat(loader: Any) -> list[int]:
    return [x for batch in batches(loader) for x in batch]


def test_sequential(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=10)
    assert len(loader) == 6
    assert batches(loader) == [list(range(i, min(i + 10, 53))) for i in range(0, 53, 10)]
    assert len(DataLoader(ds, batch_size=10, drop_last=True)) == 5
    assert batches(DataLoader(ds, batch_size=10, drop_last=True))[-1] == list(range(40, 50))


def test_shuffle_is_the_keyed_permutation(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=10, shuffle=True, seed=7)
    for epoch in range(3):
        assert flat(loader) == permute(range(53), 53, 7, epoch).tolist()


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("prefetch", [None, 1, 5])
def test_workers_and_prefetch_change_nothing(ds: Dataset, workers: int, prefetch: int | None) -> None:
    if workers == 0 and prefetch is not None:
        pytest.skip("torch refuses this")
    loader = DataLoader(
        ds, batch_size=4, shuffle=True, seed=3, num_workers=workers, prefetch_factor=prefetch, drop_last=True
    )
    assert flat(loader) == permute(range(53), 53, 3, 0).tolist()[:52]
    assert flat(loader) == permute(range(53), 53, 3, 1).tolist()[:52]


def test_set_epoch_and_early_break(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=53, shuffle=True, seed=1)
    first, second, third = (flat(loader) for _ in range(3))
    loader.set_epoch(1)
    assert flat(loader) == second
    assert flat(loader) == third
    loader.set_epoch(0)
    for _ in loader:
        break
    assert flat(loader) == second
    assert first != second
    with pytest.raises(UsageError, match="epoch is -1"):
        loader.set_epoch(-1)


def test_seeds(ds: Dataset) -> None:
    def order(**options: Any) -> list[int]:
        return flat(DataLoader(ds, batch_size=53, shuffle=True, **options))

    torch.manual_seed(5)
    by_torch = order()
    assert by_torch == permute(range(53), 53, 5, 0).tolist()
    assert order(generator=torch.Generator().manual_seed(6)) == permute(range(53), 53, 6, 0).tolist()
    assert order(generator=torch.Generator().manual_seed(6), seed=8) == permute(range(53), 53, 8, 0).tolist()
    assert order(seed=-3) == permute(range(53), 53, 2**64 - 3, 0).tolist()
    sampler = data.RandomSampler(ds, generator=torch.Generator().manual_seed(9))
    assert flat(DataLoader(ds, batch_size=53, sampler=sampler)) == permute(range(53), 53, 9, 0).tolist()


def test_the_seed_is_decided_once(ds: Dataset) -> None:
    torch.manual_seed(5)
    loader = DataLoader(ds, batch_size=53, shuffle=True)
    flat(loader)
    torch.manual_seed(99)
    assert flat(loader) == permute(range(53), 53, 5, 1).tolist()


def test_random_numbers_of_the_process_are_left_alone(ds: Dataset) -> None:
    before = torch.get_rng_state()
    flat(DataLoader(ds, batch_size=5, shuffle=True))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_distributed_sampler(ds: Dataset, world: int, drop_last: bool) -> None:
    order = permute(range(53), 53, 4, 2).tolist()
    for rank in range(world):
        sampler = data.DistributedSampler(ds, world, rank, seed=4, drop_last=drop_last)
        loader = DataLoader(ds, batch_size=4, sampler=sampler)
        sampler.set_epoch(2)
        total = 53 // world * world if drop_last else -(-53 // world) * world
        expected = (order + order)[:total][rank::world]
        got = batches(loader)
        assert [x for batch in got for x in batch] == expected
        assert len(got) == len(loader)
        assert loader.stats()["order"] == "fastload"


def test_distributed_sampler_without_shuffle_is_torchs(ds: Dataset) -> None:
    sampler = data.DistributedSampler(ds, 4, 3, shuffle=False)
    assert flat(DataLoader(ds, batch_size=4, sampler=sampler)) == list(sampler)


def test_epochs_of_a_distributed_sampler(ds: Dataset) -> None:
    sampler = data.DistributedSampler(ds, 2, 0, seed=1)
    loader = DataLoader(ds, batch_size=53, sampler=sampler)
    orders = [permute(range(53), 53, 1, epoch).tolist()[::2] for epoch in range(8)]
    assert flat(loader) == orders[0]
    assert flat(loader) == orders[1]  # torch's would repeat the first
    sampler.set_epoch(5)
    assert flat(loader) == orders[5]
    loader.set_epoch(3)
    assert sampler.epoch == 3
    assert flat(loader) == orders[3]
    assert flat(loader) == orders[4]


def test_a_world_larger_than_the_dataset(ds: Dataset) -> None:
    got = [
        flat(
            DataLoader(ds[:2], batch_size=3, sampler=data.DistributedSampler(ds[:2], 5, rank, shuffle=False))
        )
        for rank in range(5)
    ]
    assert got == [[0], [1], [0], [1], [0]]


class Odd(data.Sampler[int]):
    """A sampler that nobody knows."""

    epoch = -1

    def __iter__(self) -> Iterator[int]:
        return iter(range(1, 20, 2))

    def __len__(self) -> int:
        return 10

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_other_samplers_are_followed(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=4, sampler=Odd(), num_workers=2)
    assert batches(loader) == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19]]
    assert loader.stats()["order"] == "sampler"
    assert batches(DataLoader(ds, batch_size=4, sampler=Odd(), drop_last=True)) == batches(loader)[:2]
    loader.set_epoch(6)
    assert loader.sampler.epoch == 6  # type: ignore[attr-defined]
    assert flat(DataLoader(ds, sampler=[5, 3, -1])) == [5, 3, 52]
    with pytest.raises(IndexError, match="index 53"):
        flat(DataLoader(ds, sampler=[53]))


def test_batch_samplers_are_followed(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_sampler=[[1, 2], [50], [3, 3, 3]], num_workers=2)
    assert batches(loader) == [[1, 2], [50], [3, 3, 3]]
    tensors = DataLoader(ds, batch_sampler=[torch.tensor([1, 2]), [torch.tensor(4)]])  # type: ignore[list-item]
    assert batches(tensors) == [[1, 2], [4]]
    known = DataLoader(ds, batch_sampler=data.BatchSampler(data.SequentialSampler(ds), 20, True))
    assert batches(known) == [list(range(20)), list(range(20, 40))]
    assert known.stats()["order"] == "fastload"


def test_random_sampling_with_replacement_is_followed(ds: Dataset) -> None:
    sampler = data.RandomSampler(ds, replacement=True, num_samples=200)
    loader = DataLoader(ds, batch_size=50, sampler=sampler)
    assert len(flat(loader)) == 200
    assert loader.stats()["order"] == "sampler"
    weighted = data.WeightedRandomSampler([0.0] * 50 + [1.0] * 3, 20)
    assert set(flat(DataLoader(ds, batch_size=5, sampler=weighted))) <= {50, 51, 52}


def test_a_sampler_of_another_length_is_followed(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=4, sampler=data.SequentialSampler(range(6)))
    assert batches(loader) == [[0, 1, 2, 3], [4, 5]]


def test_a_failing_sampler(ds: Dataset, no_threads_left: None) -> None:
    def indices() -> Iterator[int]:
        yield from (1, 2, 3, 4)
        raise RuntimeError("no more")

    iterator = iter(DataLoader(ds, batch_size=2, sampler=indices(), num_workers=2, prefetch_factor=1))
    assert next(iterator)["x"].tolist() == [1, 2]
    with pytest.raises(RuntimeError, match="no more"):
        list(iterator)
    assert list(iterator) == []


def test_torchs_wrappers_run_natively(ds: Dataset, backend: str) -> None:
    subset = data.Subset(data.Subset(ds, range(10, 30)), [0, 5, -1])  # type: ignore[arg-type]
    joined: data.Dataset[Any] = data.ConcatDataset([subset, ds[50:]])  # type: ignore[list-item]
    loader = DataLoader(joined, batch_size=4)
    assert flat(loader) == [10, 15, 29, 50, 51, 52]
    assert loader.stats()["engine"] == backend
    parts = data.random_split(ds, [0.8, 0.2], torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    got = [flat(DataLoader(part, batch_size=8, shuffle=True, seed=0)) for part in parts]
    assert sorted(got[0] + got[1]) == list(range(53))
    assert len(got[1]) == 10


def test_subclasses_of_wrappers_are_not_taken_for_their_base(ds: Dataset) -> None:
    class Doubled(data.Subset[Any]):
        def __getitem__(self, index: Any) -> Any:
            return int(super().__getitem__(index)["x"]) * 2

        def __getitems__(self, indices: list[int]) -> Any:
            return [self[index] for index in indices]

    with pytest.warns(UserWarning, match="Doubled wraps a fastload dataset"):
        loader = DataLoader(Doubled(ds, [1, 2]), batch_size=2)  # type: ignore[arg-type]
    (batch,) = loader
    assert batch.tolist() == [2, 4]
    assert loader.stats()["engine"] == "torch"


def test_views(ds: Dataset) -> None:
    assert flat(DataLoader(ds[::-10] + ds[[1, 1]], batch_size=3)) == [52, 42, 32, 22, 12, 2, 1, 1]


def test_an_empty_dataset(ds: Dataset) -> None:
    loader = DataLoader(ds[:0], batch_size=3)
    assert len(loader) == 0
    assert list(loader) == []


def test_names_of_datasets_in_several_files(ds: Dataset, numbers_path: str) -> None:
    both = ds[:2] + fastload.open(numbers_path)[3:5]
    assert flat(DataLoader(both, batch_size=4, num_workers=2)) == [0, 1, 3, 4]
