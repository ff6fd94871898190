"""What batches hold, and what torch's arguments mean."""

from __future__ import annotations

import pickle
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import fastload
from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import EngineError, UsageError


def test_a_batch(ds: Dataset) -> None:
    batch = next(iter(DataLoader(ds, batch_size=3, num_workers=2)))
    assert list(batch) == ["x", "wide", "label", "name"]
    assert batch["x"].dtype == torch.int64
    assert batch["x"].tolist() == [0, 1, 2]
    assert batch["wide"].shape == (3, 4)
    assert batch["label"].tolist() == [0, 1, 0]
    assert batch["name"] == ["0", "1", "2"]


def test_tuples_and_numpy(ds: Dataset) -> None:
    x, name = next(iter(DataLoader(ds.as_tuple("x", "name"), batch_size=2)))
    assert (x.tolist(), name) == ([0, 1], ["0", "1"])
    batch = next(iter(DataLoader(ds.with_format("numpy"), batch_size=2)))
    assert isinstance(batch["wide"], np.ndarray)
    assert batch["label"].dtype == np.int64


def test_batches_stay_what_they_are(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=4, num_workers=2)
    kept = list(loader)
    list(loader)
    assert [batch["x"].tolist() for batch in kept] == [
        list(range(i, min(i + 4, 53))) for i in range(0, 53, 4)
    ]
    kept[0]["wide"].zero_()
    assert next(iter(loader))["wide"][1].tolist() == [1.0] * 4


def test_collate_fn_gets_a_list_of_samples(ds: Dataset) -> None:
    def collate(samples: list[Any]) -> list[tuple[int, int]]:
        assert all(type(sample["label"]) is int for sample in samples)
        return [(int(sample["x"]), sample["label"]) for sample in samples]

    for workers in (0, 2):
        loader = DataLoader(ds, batch_size=5, collate_fn=collate, num_workers=workers)
        got = list(loader)
        assert got[0] == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0)]
        assert len(got) == len(loader) == 11
    shuffled = list(DataLoader(ds, batch_size=5, collate_fn=collate, shuffle=True, seed=2))
    plain = list(DataLoader(ds, batch_size=5, shuffle=True, seed=2))
    assert [x for batch in shuffled for x, _ in batch] == torch.cat([batch["x"] for batch in plain]).tolist()


def test_default_collate_given_by_name_is_native(ds: Dataset) -> None:
    batch = next(iter(DataLoader(ds, batch_size=2, collate_fn=data.default_collate)))
    assert batch["wide"].shape == (2, 4)


def test_a_failing_collate_fn(ds: Dataset, no_threads_left: None) -> None:
    def collate(samples: list[Any]) -> Any:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        list(DataLoader(ds, batch_size=2, collate_fn=collate, num_workers=2))
    with pytest.raises(EngineError, match="StopIteration"):
        list(DataLoader(ds, batch_size=2, collate_fn=lambda samples: next(iter([]))))


def test_single_samples(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=None, num_workers=2)
    samples = list(loader)
    assert len(samples) == len(loader) == 53
    assert samples[3]["x"].shape == ()
    assert type(samples[3]["label"]) is int
    names = list(DataLoader(ds, batch_size=None, collate_fn=lambda sample: sample["name"]))
    assert names == [str(i) for i in range(53)]


def test_arguments_without_meaning_warn_once(ds: Dataset) -> None:
    with pytest.warns(UserWarning, match="worker_init_fn does nothing for a fastload dataset"):
        loader = DataLoader(ds, num_workers=1, worker_init_fn=print)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(loader)
    with pytest.warns(UserWarning, match="multiprocessing_context does nothing"):
        DataLoader(ds, num_workers=1, multiprocessing_context="spawn")


def test_many_threads_are_no_processes_to_warn_of(ds: Dataset) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list(DataLoader(ds, batch_size=10, num_workers=64))) == 6


def test_torchs_checks_hold(ds: Dataset) -> None:
    for options in (
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"shuffle": True, "sampler": [1]},
        {"batch_sampler": [[1]], "batch_size": 2},
        {"batch_size": None, "drop_last": True},
        {"batch_size": 0},
    ):
        with pytest.raises(ValueError):
            DataLoader(ds, **options)  # type: ignore[arg-type]
    loader = DataLoader(ds)
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


def test_the_byte_budget(ds: Dataset) -> None:
    for size in (1, 4096, "1MB"):
        loader = DataLoader(ds, batch_size=8, num_workers=2, prefetch_factor=4, buffer_bytes=size)
        assert torch.cat([batch["x"] for batch in loader]).tolist() == list(range(53))
    assert loader.buffer_bytes == "1MB"
    with pytest.raises(UsageError, match="not a size"):
        DataLoader(ds, buffer_bytes="lots")


def test_timeout(ds: Dataset, no_threads_left: None) -> None:
    slow = ds.transform(x=lambda x: time.sleep(0.4) or x)
    with pytest.raises(EngineError, match=r"timeout of 0\.05 seconds"):
        list(DataLoader(slow, batch_size=1, num_workers=1, timeout=0.05))
    assert len(list(DataLoader(slow[:2], batch_size=1, num_workers=1, timeout=30))) == 2


def test_attributes_are_torchs(ds: Dataset) -> None:
    loader = DataLoader(ds, 4, num_workers=2, seed=3, buffer_bytes=1 << 20)
    assert isinstance(loader, data.DataLoader)
    assert (loader.dataset, loader.batch_size, loader.num_workers) == (ds, 4, 2)
    assert (loader.prefetch_factor, loader.pin_memory, loader.drop_last) == (2, False, False)
    assert (loader.seed, loader.buffer_bytes) == (3, 1 << 20)
    assert type(loader.batch_sampler) is data.BatchSampler
    assert type(loader.sampler) is data.SequentialSampler


def test_pickle(ds: Dataset) -> None:
    loader = DataLoader(ds, batch_size=53, shuffle=True, seed=4)
    iterator = iter(loader)
    again = pickle.loads(pickle.dumps(loader))
    next(iterator)
    assert next(iter(again))["x"].tolist() == next(iter(loader))["x"].tolist()


def test_stats(ds: Dataset, backend: str) -> None:
    loader = DataLoader(ds, batch_size=10, num_workers=1)
    assert loader.stats()["engine"] is None
    assert loader.stats()["open_shards"] == 0
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    stats = loader.stats()
    assert stats["engine"] == backend
    assert (stats["why_not_native"] is None) == (backend == "native")
    assert (stats["batches"], stats["samples"], stats["position"], stats["epoch"]) == (2, 20, 20, 0)
    assert stats["engine_counters"]["samples"] >= 20
    assert stats["wait_seconds"] >= 0
    plain = loader.stats()
    list(iterator)
    assert loader.stats()["samples"] == 53
    assert loader.stats()["open_shards"] == ds.sources[0].table.shards > 1
    assert plain["samples"] == 20


def test_why_not_native(ds: Dataset, backend: str) -> None:
    loader = DataLoader(ds.transform(name=str.upper), batch_size=2)
    assert next(iter(loader))["name"] == ["0", "1"]
    assert loader.stats()["engine"] == "python"
    if backend == "native":
        assert "'name'" in loader.stats()["why_not_native"]


def test_transforms_draw_by_position(ds: Dataset) -> None:
    view = ds.transform(wide=lambda wide: torch.rand(2)).select_columns(["x", "wide"])

    def drawn(**options: Any) -> list[list[float]]:
        loader = DataLoader(view, batch_size=7, shuffle=True, seed=5, **options)
        return [batch["wide"].tolist() for batch in loader]

    first = drawn()
    assert drawn(num_workers=3) == first
    assert drawn(num_workers=2, prefetch_factor=4) == first
    loader = DataLoader(view, batch_size=7, shuffle=True, seed=5)
    epochs = [[batch["wide"].tolist() for batch in loader] for _ in range(2)]
    assert epochs[0] == first
    assert epochs[1] != first


class Squares(data.Dataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> int:
        return index * index


class Stream(data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.mark.parametrize("workers", [0, 1])
def test_other_datasets_are_torchs(workers: int) -> None:
    loader = DataLoader(Squares(), batch_size=4, num_workers=workers)
    assert [batch.tolist() for batch in loader] == [[0, 1, 4, 9], [16, 25]]
    stats = loader.stats()
    assert stats["engine"] == "torch"
    assert "Squares" in stats["why_not_native"]
    assert [batch.tolist() for batch in DataLoader(Stream(), batch_size=3)] == [[0, 1, 2], [3, 4]]
    loader.set_epoch(3)
    loader.close()


def test_an_unknown_wrapper_warns_that_the_fast_path_is_lost(ds: Dataset) -> None:
    class Wrapper(data.Dataset[Any]):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, index: int) -> Any:
            return self.inner[index]["x"] + 1

    for inner in (ds, data.Subset(ds, [0, 1, 2])):  # type: ignore[arg-type]
        with pytest.warns(UserWarning, match="Wrapper wraps a fastload dataset"):
            loader = DataLoader(Wrapper(inner), batch_size=3)
        assert next(iter(loader)).tolist() == [1, 2, 3]


def test_concatenating_unlike_datasets_warns(ds: Dataset) -> None:
    unlike: Any = data.ConcatDataset([ds.select_columns("x"), ds.select_columns("x").with_format("numpy")])  # type: ignore[list-item]
    with pytest.warns(UserWarning, match="ConcatDataset wraps"):
        loader = DataLoader(unlike, batch_size=53)
    assert len(list(loader)) == 2


def test_images(backend: str, picture_folder: Any, tmp_path: Any) -> None:
    schema = {"image": fastload.Image(), "label": fastload.Label(["cat", "dog"])}
    path = str(tmp_path / "pictures.fl")
    with fastload.Writer(path, schema=schema) as writer:
        for file in sorted(picture_folder.rglob("*.jpg")):
            writer.append({"image": file.read_bytes(), "label": file.parent.name})
    ds = fastload.open(path)
    with pytest.raises(EngineError, match="record"):
        list(DataLoader(ds, batch_size=8, num_workers=2))
    T = fastload.transforms
    crops = ds.transform(
        image=[T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToDtype(torch.float32, scale=True)]
    )
    one, two = (
        torch.cat([batch["image"] for batch in DataLoader(crops, batch_size=5, num_workers=n, seed=1)])
        for n in (0, 3)
    )
    assert one.shape == (24, 3, 16, 16)
    assert torch.equal(one, two)
    assert torch.equal(crops.sample(3, seed=1)["image"], one[3])
    sizes = list(
        DataLoader(ds, batch_size=6, num_workers=2, collate_fn=lambda s: [x["image"].shape for x in s])
    )
    assert len({size for batch in sizes for size in batch}) > 6


def test_a_bad_image_names_its_record(backend: str, tmp_path: Any, no_threads_left: None) -> None:
    path = str(tmp_path / "bad.fl")
    with fastload.Writer(path, schema={"image": fastload.Image()}) as writer:
        for i in range(6):
            writer.append({"image": b"not an image" if i == 4 else _png()})
    loader = DataLoader(fastload.open(path), batch_size=2, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    with pytest.raises(fastload.errors.DecodeError, match=r"record 4.*field 'image'") as caught:
        next(iterator)
    assert caught.value.record == 4
    assert list(iterator) == []
    del caught


def _png() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (4, 4)).save(file, "PNG")
    return file.getvalue()


def test_batches_made_in_given_memory(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """What pin_memory does, with ordinary memory in the place of pinned."""
    from fastload.loader import dataloader
    from fastload.staging import PinnedBatch

    given: list[Any] = []

    def make(device: torch.device | None) -> PinnedBatch:
        assert device is None
        given.append(PinnedBatch(pin=False))
        return given[-1]

    monkeypatch.setattr(dataloader, "pin_available", lambda: True)
    monkeypatch.setattr(dataloader, "PinnedBatch", make)
    for workers in (0, 2):
        given.clear()
        for number, batch in enumerate(DataLoader(ds, batch_size=10, num_workers=workers, pin_memory=True)):
            assert batch["x"].tolist() == list(range(53))[number * 10 : number * 10 + 10]
            assert batch["wide"].data_ptr() == given[number].storage("wide").data_ptr()
        assert len(given) == 6


def test_pinning_without_an_accelerator_warns(ds: Dataset) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is an accelerator")
    with pytest.warns(UserWarning, match="no accelerator"):
        batches = list(DataLoader(ds, batch_size=60, pin_memory=True))
    assert len(batches) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_pinned_batches(ds: Dataset) -> None:
    for options in ({}, {"collate_fn": lambda samples: torch.stack([s["wide"] for s in samples])}):
        loader = DataLoader(ds, batch_size=8, num_workers=2, pin_memory=True, **options)  # type: ignore[arg-type]
        for batch in loader:
            tensor = batch["wide"] if isinstance(batch, dict) else batch
            assert tensor.is_pinned()
            assert torch.equal(tensor.cuda(non_blocking=True).cpu(), tensor)
