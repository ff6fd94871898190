"""Functions of the user: per sample on the loader's threads, per batch in the consumer."""

from __future__ import annotations

import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fastload
from fastload import DataLoader
from fastload import transforms as T
from fastload.convert import convert
from fastload.dataset import Dataset
from fastload.errors import EngineError, RecordError, UsageError


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] * 2, "name": sample["name"], "twice": sample["wide"] * 2}


def noisy(sample: dict[str, Any], *, generator: np.random.Generator) -> dict[str, Any]:
    return {"x": sample["x"], "noise": generator.random()}


def globally_noisy(sample: dict[str, Any]) -> dict[str, Any]:
    noise = [random.random(), float(np.random.random()), float(torch.rand(()))]
    return {"x": sample["x"], "noise": torch.tensor(noise)}


@pytest.fixture(scope="module")
def photos(picture_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("photos") / "photos.fl")
    convert(str(picture_folder), path)
    return path


def test_samples_are_mapped(ds: Dataset) -> None:
    mapped = ds.map(double)
    sample = mapped[3]
    assert list(sample) == ["x", "name", "twice"]
    assert (int(sample["x"]), sample["name"], sample["twice"].tolist()) == (6, "3", [6.0] * 4)
    assert [int(one["x"]) for one in mapped.__getitems__([1, 2])] == [2, 4]
    assert int(mapped.map(double_x)[3]["x"]) == 12
    for workers in (0, 2):
        batches = list(DataLoader(mapped, batch_size=10, num_workers=workers))
        assert [x for batch in batches for x in batch["x"].tolist()] == [2 * x for x in range(53)]
        assert batches[0]["twice"].shape == (10, 4)
        assert batches[0]["name"] == [str(x) for x in range(10)]
    x, name = next(iter(DataLoader(mapped.as_tuple("x", "name"), batch_size=2)))
    assert (x.tolist(), list(name)) == ([0, 2], ["0", "1"])
    assert set(mapped.select_columns("twice")[1]) == {"twice"}
    assert "map: double" in repr(mapped)


def double_x(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": sample["x"] * 2}


def test_what_is_refused(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="returned int"):
        ds.map(lambda sample: 3)[0]  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="no field 'y'"):
        ds.map(double).as_tuple("y")[0]
    with pytest.raises(UsageError, match="transforms come before map"):
        ds.map(double).transform(x=lambda x: x)
    with pytest.raises(EngineError, match="map failed with KeyError") as caught:
        list(DataLoader(ds.map(lambda sample: {"y": sample["y"]}), batch_size=4, num_workers=1))
    assert caught.value.record == 0


def test_numpy_samples(ds: Dataset) -> None:
    mapped = ds.with_format("numpy").map(double)
    assert isinstance(mapped[1]["twice"], np.ndarray)
    batch = next(iter(DataLoader(mapped, batch_size=3)))
    assert isinstance(batch["twice"], np.ndarray)
    assert batch["twice"].shape == (3, 4)
    assert batch["name"] == ["0", "1", "2"]


@pytest.mark.parametrize("function", [noisy, globally_noisy])
def test_noise_is_a_function_of_seed_epoch_and_position(ds: Dataset, function: Any) -> None:
    def noise(**options: Any) -> list[list[Any]]:
        loader = DataLoader(ds.map(function), **{"batch_size": 7, "shuffle": True, "seed": 5, **options})
        return [[b for batch in loader for b in batch["noise"].tolist()] for _ in range(2)]

    first, second = noise()
    assert first != second
    assert len({str(value) for value in first}) == 53
    assert noise(num_workers=1) == noise(num_workers=3, prefetch_factor=4) == [first, second]
    assert noise(seed=6)[0] != first
    sample = ds.map(function).sample(0, seed=5, position=9)
    other = ds.map(function).sample(0, seed=5, position=9)
    assert str(sample) == str(other)
    state = torch.get_rng_state(), random.getstate()
    noise(num_workers=2)
    assert torch.equal(state[0], torch.get_rng_state())
    assert state[1] == random.getstate()


def test_functions_with_a_generator_run_at_once(ds: Dataset) -> None:
    together = threading.Barrier(2, timeout=20)

    def meet(sample: dict[str, Any], *, generator: np.random.Generator) -> dict[str, Any]:
        together.wait()
        return sample

    assert len(list(DataLoader(ds[:4].map(meet), batch_size=4, num_workers=2))) == 1


def test_transforms_of_one_field_may_take_a_generator(ds: Dataset) -> None:
    def jitter(x: Any, generator: np.random.Generator) -> Any:
        return x + generator.random()

    wide = [DataLoader(ds.transform(wide=jitter), batch_size=53, seed=1, num_workers=n) for n in (0, 2)]
    a, b = (next(iter(loader))["wide"] for loader in wide)
    assert torch.equal(a, b)
    assert len(set((a[:, 0] - torch.arange(53)).tolist())) > 40


def test_functions_refuse_records(ds: Dataset) -> None:
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["label"] == 0:
            raise RecordError("even")
        return sample

    with pytest.warns(UserWarning, match="left out"):
        batches = list(DataLoader(ds.map(odd), batch_size=10, on_error="skip", num_workers=2))
    assert batches[0]["x"].tolist() == [1, 3, 5, 7, 9]
    assert len(batches) == 6
    with pytest.warns(UserWarning, match="replaced"):
        batches = list(DataLoader(ds.map(odd), batch_size=10, on_error="substitute", seed=0))
    assert all(batch["label"].all() for batch in batches)
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(EngineError, match="no record of a batch"),
    ):
        list(DataLoader(ds[[0, 2]].map(odd), batch_size=2, on_error="skip"))


def test_only_the_callables_run_in_python(backend: str, photos: str) -> None:
    ds = fastload.open(photos)
    image = [T.RandomResizedCrop(24), T.RandomHorizontalFlip()]
    plain = next(iter(DataLoader(ds.transform(image=image), batch_size=24, seed=1)))
    native = ["image", "label", "path"] if backend == "native" else []
    for mapped in (ds.transform(image=image).map(dict), ds.transform(image=[*image, torch.clone])):
        loader = DataLoader(mapped, batch_size=24, seed=1, num_workers=2)
        iterator = iter(loader)
        batch = next(iterator)
        stats = loader.stats()
        assert stats["engine"] == "python"
        assert stats["engine_counters"]["native_fields"] == native
        assert stats["python_calls"]
        assert stats["why_not_native"]
        assert torch.equal(batch["label"], plain["label"])
        assert torch.equal(batch["image"], plain["image"])
        iterator.close()  # type: ignore[attr-defined]
    floats = [*image, torch.clone, T.ToDtype("float32", scale=True), T.Layout("channels_last")]
    batch = next(iter(DataLoader(ds.transform(image=floats), batch_size=24, seed=1)))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(batch["image"], plain["image"] / 255)


def test_batches_are_mapped(backend: str, ds: Dataset) -> None:
    seen = []

    def add(batch: dict[str, Any], *, generator: np.random.Generator) -> dict[str, Any]:
        seen.append(threading.get_ident())
        return {**batch, "noise": torch.full((len(batch["x"]),), generator.random())}

    mapped = ds.map_batches(add)
    assert "noise" not in mapped[0]
    loaders = [DataLoader(mapped, batch_size=8, shuffle=True, seed=1, num_workers=n) for n in (0, 1, 3)]
    first, *others = [[batch["noise"].tolist() for batch in loader] for loader in loaders]
    assert all(other == first for other in others)
    assert len({noise[0] for noise in first}) == 7
    assert set(seen) == {threading.get_ident()}
    assert loaders[0].stats()["python_calls"] == [f"map_batches: {add.__qualname__}"]
    assert loaders[0].stats()["engine"] == backend
    x, noise = next(iter(DataLoader(mapped.as_tuple("x", "noise"), batch_size=3)))
    assert x.shape == noise.shape == (3,)
    both = ds.map(double).map_batches(add)
    assert set(next(iter(DataLoader(both, batch_size=3)))) == {"x", "name", "twice", "noise"}
    collated = DataLoader(ds.map_batches(sum), batch_size=4, collate_fn=lambda s: [int(x["x"]) for x in s])
    assert next(iter(collated)) == 6


def test_mapped_datasets_pickle(ds: Dataset) -> None:
    again = pickle.loads(pickle.dumps(ds.map(double).map_batches(T.MixUp(num_classes=2))))
    assert int(again[4]["x"]) == 8
    assert again.look == ds.map(double).map_batches(T.MixUp(num_classes=2)).look


FUNCTIONS = st.sampled_from(["mixup", "cutmix", "map", "none"])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(FUNCTIONS, max_size=3),
    workers=st.integers(0, 3),
    ahead=st.integers(1, 6),
    batch_size=st.integers(1, 9),
    seed=st.integers(0, 1 << 40),
)
def test_batches_are_the_same_at_any_num_workers(
    backend: str, photos: str, steps: list[str], workers: int, ahead: int, batch_size: int, seed: int
) -> None:
    ds = fastload.open(photos).transform(image=[T.RandomResizedCrop(12)])
    for step in steps:
        if step == "map":
            ds = ds.map(dict)
        elif step != "none":
            ds = ds.map_batches((T.MixUp if step == "mixup" else T.CutMix)(alpha=0.4, num_classes=2))
    options: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "seed": seed}
    expected = DataLoader(ds, **options)
    if workers:
        options.update(num_workers=workers, prefetch_factor=ahead)
    for one, other in zip(DataLoader(ds, **options), expected, strict=True):
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])
