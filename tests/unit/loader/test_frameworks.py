"""What frameworks do with a loader: they rebuild it, ask its sampler, tell it epochs, wrap it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import UsageError
from fastload.integrations import accelerate, lightning
from fastload.integrations.rebuild import rebuilt
from fastload.loader.sharding import Topology

COUNT = 53


def drawn(batches: Any) -> list[list[int]]:
    return [batch["x"].tolist() for batch in batches]


def made_anew(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Rebuild a loader as Lightning does: from its public attributes that are not the defaults."""
    attributes = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    parameters = inspect.signature(type(loader).__init__).parameters
    changed = {
        name: attributes[name]
        for name, parameter in parameters.items()
        if name in attributes and parameter.default is not attributes[name]
    }
    fixed = {"shuffle": False, "batch_sampler": None, "sampler": loader.sampler}
    return type(loader)(**{**changed, "dataset": loader.dataset, **fixed, **changes})


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 4},
        {"batch_size": 4, "shard": True},
        {"global_batch_size": 8, "shard": True},
        {"batch_size": 6, "shuffle": True, "seed": 7, "shuffle_window": "1MB"},
        {"batch_size": 6, "mesh": {"dp": 1}, "pad": False, "shuffle": True, "seed": 1},
        {"batch_size": None},
        {"batch_size": 3, "drop_last": True, "num_workers": 1, "persistent_workers": True},
    ],
)
def test_a_loader_made_anew_is_the_same(ds: Dataset, options: dict[str, Any]) -> None:
    loader = DataLoader(ds, **options)
    expected = drawn(loader)
    for again in (made_anew(loader), rebuilt(DataLoader(ds, **options), DataLoader)):
        assert (again.batch_size, again.drop_last) == (loader.batch_size, loader.drop_last)
        for name in ("seed", "shard", "mesh", "global_batch_size", "shuffle_window", "pad"):
            assert getattr(again, name) == getattr(loader, name)
        assert len(again) == len(loader)
        again.set_epoch(0)
        assert drawn(again) == expected


def test_a_rebuilt_loader_goes_on(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=4, shuffle=True, seed=2)
    batches = iter(loader)
    next(batches)
    assert drawn(rebuilt(loader, DataLoader)) == drawn(batches)
    own = data.BatchSampler(data.SubsetRandomSampler([3, 1]), 2, False)
    assert rebuilt(DataLoader(ds, batch_sampler=own), DataLoader).batch_sampler is own


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> list[Topology]:
    """Stand in for a world of two: set the last item to be another rank."""
    here = [Topology(0, 2)]
    for module in ("sharding", "dataloader"):
        monkeypatch.setattr(f"fastload.loader.{module}.process_topology", lambda: here[-1])
    return here


def test_the_sampler_says_that_the_loader_is_sharded(ds: Dataset, two: list[Topology]) -> None:
    loader = DataLoader(ds, batch_size=4, shuffle=True, seed=3, shard=True)
    sampler: Any = loader.sampler
    assert isinstance(sampler, data.DistributedSampler)
    for rank in range(2):
        two.append(Topology(rank, 2))
        assert (sampler.rank, sampler.num_replicas, sampler.seed) == (rank, 2, 3)
        assert len(sampler) == sampler.num_samples == 27
        assert sampler.total_size == 54
        loader.set_epoch(1)
        expected = [x for batch in drawn(loader) for x in batch]
        sampler.set_epoch(1)
        assert list(sampler) == expected
    again = pickle.loads(pickle.dumps(loader))
    again.sampler.set_epoch(1)
    assert [x for batch in drawn(again) for x in batch] == expected


def test_a_batch_sampler_around_it_is_followed(ds: Dataset, two: list[Topology]) -> None:
    loader = DataLoader(ds, batch_size=4, shard=True)

    class Wrapper:
        def __init__(self, inner: data.BatchSampler) -> None:
            self.__dict__.update(inner.__dict__, inner=inner)

        def __iter__(self) -> Iterator[list[int]]:
            return iter(self.inner)

        def __len__(self) -> int:
            return len(self.inner)

    wrapped: Any = Wrapper(data.BatchSampler(loader.sampler, 4, False))
    plain = made_anew(loader, batch_sampler=wrapped, sampler=None, batch_size=1)
    assert drawn(plain) == drawn(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iteration_that_gave_nothing_follows_an_epoch_that_is_named(ds: Dataset, workers: int) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(ds, batch_size=4, shuffle=True, seed=3, num_workers=workers)

    epochs = [drawn(loader) for loader in [make()] for _ in range(4)]
    loader = make()
    batches = iter(loader)
    loader.set_epoch(2)
    assert drawn(batches) == epochs[2]
    assert drawn(loader) == epochs[3]
    loader.set_epoch(1)
    batches = iter(loader)
    first = next(batches)["x"].tolist()
    loader.set_epoch(3)  # too late for these
    assert [first, *drawn(batches)] == epochs[1]
    assert drawn(loader) == epochs[3]


class Numbers(data.Dataset[int]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
@pytest.mark.parametrize("sampled", [False, True])
def test_so_does_one_over_a_python_dataset(options: dict[str, Any], sampled: bool) -> None:
    def make() -> tuple[DataLoader[Any], Any]:
        if not sampled:
            loader = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=3, shard=True, **options)
            return loader, loader.sampler
        sampler = data.DistributedSampler(Numbers(), 2, 0, seed=3)
        return DataLoader(Numbers(), batch_size=4, sampler=sampler, **options), sampler

    def given(batches: Any) -> list[list[int]]:
        return [batch.tolist() for batch in batches]

    loader, sampler = make()
    epochs = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        epochs.append(given(loader))
    loader, sampler = make()
    batches = iter(loader)
    sampler.set_epoch(2)
    assert given(batches) == epochs[2]
    assert loader.state_dict()["epoch"] == 2
    sampler.set_epoch(1)
    batches = iter(loader)
    first = next(batches).tolist()
    sampler.set_epoch(3)  # too late for these
    assert [first, *given(batches)] == epochs[1]
    assert given(loader) == epochs[3]
    loader.close()


def test_a_python_dataset_is_prepared_and_rebuilt(two: list[Topology]) -> None:
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=3, seed_by="sample")
    again = rebuilt(loader, DataLoader, shard=True)
    assert again.seed_by == "sample"
    assert len(again) == 7
    prepared = accelerate.prepare(Accelerator(), loader)
    assert [batch.tolist() for batch in prepared] != [batch.tolist() for batch in again]
    assert prepared.remainder == COUNT - 6 * 8
    user = data.RandomSampler(Numbers(), generator=torch.Generator())
    with pytest.raises(UsageError, match="says itself which records this rank takes"):
        len(accelerate.prepare(Accelerator(), DataLoader(Numbers(), batch_size=4, sampler=user)))


def test_a_resumed_iteration_keeps_its_place_when_its_epoch_is_named(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=4, shuffle=True, seed=3, shard=True)
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = drawn(batches)
    again = DataLoader(ds, batch_size=4, shuffle=True, seed=3, shard=True)
    again.load_state_dict(state)
    batches = iter(again)
    again.sampler.set_epoch(1)  # type: ignore[attr-defined]
    assert drawn(batches) == rest


class Accelerator:
    """Has what fastload takes from one."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.gradient_state = self
        self.live: list[Any] = []
        self.prepared: list[Any] = []
        self.device = torch.device("cpu")

    def __getattr__(self, name: str) -> Any:
        defaults = {"even_batches": True, "torch_device_mesh": None}
        return self.__dict__["options"].get(name, defaults.get(name, False))

    def _add_dataloader(self, loader: Any) -> None:
        self.live.append(loader)

    def _remove_dataloader(self, loader: Any) -> None:
        self.live.remove(loader)

    def prepare_data_loader(self, loader: Any) -> Any:
        assert loader._is_accelerate_prepared
        self.prepared.append(loader)
        return loader


def test_accelerate_hears_of_the_last_batch(ds: Dataset) -> None:
    accelerator = Accelerator()
    loader = accelerate.prepare(accelerator, DataLoader(ds, batch_size=10))
    assert accelerator.prepared == [loader]
    ends, remainders = [], []
    for batch in loader:
        assert accelerator.live == [loader]
        ends.append(loader.end_of_dataloader)
        remainders.append(loader.remainder)
        assert loader.batch_info is not None
        assert loader.batch_info.samples == len(batch["x"])
    assert ends == [False] * 5 + [True]
    assert remainders == [-1] * 5 + [3]
    assert accelerator.live == []
    assert loader.total_batch_size == 10
    assert loader.total_dataset_length == COUNT
    assert list(accelerate.prepare(accelerator, DataLoader(ds[:0], batch_size=10))) == []


def test_accelerates_options(ds: Dataset, two: list[Topology]) -> None:
    halves = []
    for rank in range(2):
        two.append(Topology(rank, 2))
        loader = accelerate.prepare(Accelerator(split_batches=True), DataLoader(ds, batch_size=10))
        assert (loader.batch_size, loader.global_batch_size, len(loader)) == (5, 10, 6)
        halves.append(drawn(loader))
    assert [one + other for one, other in zip(*halves, strict=True)] == [
        [*range(low, min(low + 10, COUNT)), *([0] if low == 50 else [])] for low in range(0, COUNT, 10)
    ]
    uneven = accelerate.prepare(Accelerator(even_batches=False), DataLoader(ds, batch_size=9))
    assert not uneven.pad
    with pytest.raises(UsageError, match="dispatch_batches lets one process load"):
        accelerate.prepare(Accelerator(dispatch_batches=True), DataLoader(ds))
    with pytest.raises(UsageError, match="is no fastload DataLoader"):
        accelerate.prepare(Accelerator(), data.DataLoader(ds))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"integrations\.accelerate\.prepare"):
        DataLoader(ds, shard=True)._is_accelerate_prepared  # noqa: B018
    assert not DataLoader(ds)._is_accelerate_prepared


def test_what_is_prepared_stays_so(ds: Dataset) -> None:
    accelerator = Accelerator()
    loader = accelerate.prepare(accelerator, DataLoader(ds, batch_size=10, shuffle=True, seed=1))
    assert accelerate.prepare(accelerator, loader) is loader
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    assert state["position"] == 10
    rest = drawn(batches)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert drawn(loader) == rest


class Fabric:
    def to_device(self, batch: Any) -> Any:
        return {name: value for name, value in batch.items() if name != "name"}


def test_fabric(ds: Dataset, two: list[Topology]) -> None:
    plain = DataLoader(ds, batch_size=4, shuffle=True, seed=1)
    loader, kept = lightning.setup_dataloaders(
        Fabric(), plain, DataLoader(ds, shard=True), move_to_device=True
    )
    assert len(loader) == 7
    assert loader.shard
    assert len(kept) == 27
    batch = next(iter(loader))
    assert "name" not in batch
    assert loader.state_dict()["position"] == 8
    again = lightning.setup_dataloaders(Fabric(), plain, move_to_device=False)
    again.load_state_dict(loader.state_dict())
    assert "name" in next(iter(again))
    assert again.state_dict()["position"] == 16
    with pytest.raises(UsageError, match="is no fastload DataLoader"):
        lightning.setup_dataloaders(Fabric(), data.DataLoader(ds))  # type: ignore[arg-type]


def test_importing_the_integrations_loads_no_framework() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from fastload.integrations import accelerate, datasets, lightning, transformers;"
        "print({'accelerate', 'datasets', 'lightning', 'transformers'} & set(sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "set()"
    assert fastload.from_hf is not None
