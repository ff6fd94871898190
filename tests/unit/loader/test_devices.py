"""device= and normalize_on=: what is ahead counts when it is given, and the bits are the host's."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils import data

import fastload
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.errors import EngineError, UsageError
from fastload.loader import handover
from fastload.loader.handover import HandOver
from fastload.staging import Copier

from .ways import Numbers, Plain, Stream, Way, fail_at_20, flat, numbers

accelerated = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
WAYS = pytest.mark.parametrize("name", ["native", "caller", "processes", "threads"])


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fetch ahead however long a batch took, so that each test does so at each step."""
    monkeypatch.setattr(handover, "WAIT_SECONDS", 1e9)


def made_ahead(iterator: Any) -> bool:
    over = iterator._job.hand_over if hasattr(iterator, "_job") else iterator._hand_over
    return bool(over.pending)


# --- what is given, and when it counts ---------------------------------------------------------------------


@WAYS
@pytest.mark.usefixtures("always_ahead")
def test_what_is_copied_ahead_does_not_count(name: str, backend: str, numbers_path: str) -> None:
    way = Way(name, numbers_path)
    plain, loader = way.loader(shuffle=True, seed=3), way.loader(shuffle=True, seed=3, device="cpu")
    iterators = iter(plain), iter(loader)
    for step in range(7):
        batches = [next(iterator) for iterator in iterators]
        assert torch.equal(batches[0]["x"], batches[1]["x"])
        assert batches[0]["name"] == batches[1]["name"]
        assert made_ahead(iterators[1]) == (name != "caller")
        assert plain.state_dict() == loader.state_dict()
        stats = [each.stats() for each in (plain, loader)]
        for told in ("batches", "samples", "position", "pads"):
            assert stats[0][told] == stats[1][told], told
        assert stats[1]["batches"] == step + 1
        infos = plain.batch_info, loader.batch_info
        assert infos[0] is not None
        assert infos[1] is not None
        assert infos[0].positions.tolist() == infos[1].positions.tolist()
    for iterator in iterators:
        assert next(iterator, "over") == "over"
        assert next(iterator, "over") == "over"
    way.check(loader)
    assert plain.state_dict() == loader.state_dict()
    assert numbers(plain) == numbers(loader)


@given(
    taken=st.lists(st.integers(0, 8), min_size=1, max_size=3),
    native=st.booleans(),
    workers=st.sampled_from([0, 2]),
    size=st.integers(5, 20),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_anywhere_and_resumed(
    numbers_path: str,
    always_ahead: None,
    taken: list[int],
    native: bool,
    workers: int,
    size: int,
) -> None:
    dataset: Any = fastload.open(numbers_path) if native else Numbers()
    options: dict[str, Any] = {"shuffle": True, "seed": 7, "num_workers": workers}
    if not native:
        options["worker_method"] = "thread"  # which starts sooner than processes
    whole = numbers(fastload.DataLoader(dataset, size, **options))
    got: list[list[int]] = []
    state = None
    for count in taken:
        loader = fastload.DataLoader(dataset, size, device="cpu", **options)
        if state is not None:
            loader.load_state_dict(state)
        for _, batch in zip(range(count), loader, strict=False):
            got.append(batch["x"].tolist())
        if len(got) == len(whole):
            break
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
    assert got == whole[: len(got)]


@pytest.mark.usefixtures("always_ahead")
@pytest.mark.parametrize("kind", [Stream, Plain])
@pytest.mark.parametrize("method", ["multiprocessing", "thread"])
def test_streams_go_on_where_they_were_given(kind: Any, method: Any) -> None:
    def make() -> fastload.DataLoader[Any]:
        return fastload.DataLoader(kind(), 3, num_workers=2, device="cpu", worker_method=method)

    whole = [batch.tolist() for batch in make()]
    loader = make()
    iterator = iter(loader)
    got = [next(iterator).tolist() for _ in range(3)]
    again = make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    loader.close()
    assert got + [batch.tolist() for batch in again] == whole


@pytest.mark.usefixtures("always_ahead")
def test_processes_resume_without_order(numbers_path: str) -> None:
    options: dict[str, Any] = {"num_workers": 2, "device": "cpu", "in_order": False, "seed": 1}
    loader = fastload.DataLoader(Numbers(), 5, shuffle=True, **options)
    iterator = iter(loader)
    got = [next(iterator)["x"].tolist() for _ in range(4)]
    state = loader.state_dict()
    loader.close()
    again = fastload.DataLoader(Numbers(), 5, shuffle=True, **options)
    again.load_state_dict(state)
    rest = numbers(again)
    # What was given behind a batch that had not been is given again: nothing is lost.
    assert set(flat(got + rest)) == set(range(53))


@pytest.mark.usefixtures("always_ahead")
def test_persistent_workers_begin_each_epoch_with_nothing_ahead() -> None:
    loader = fastload.DataLoader(
        Numbers(), 8, num_workers=1, persistent_workers=True, device="cpu", shuffle=True, seed=2
    )
    expected = fastload.DataLoader(Numbers(), 8, shuffle=True, seed=2)
    iterator = iter(loader)
    next(iterator)
    assert made_ahead(iterator)
    for epoch in range(1, 3):
        loader.set_epoch(epoch)
        expected.set_epoch(epoch)
        assert numbers(loader) == numbers(expected)
    loader.close()


@WAYS
@pytest.mark.usefixtures("always_ahead")
def test_an_epoch_named_late(name: str, backend: str, numbers_path: str) -> None:
    way = Way(name, numbers_path)
    plain, loader = way.loader(shuffle=True, seed=3), way.loader(shuffle=True, seed=3, device="cpu")
    iterator = iter(loader)
    loader.set_epoch(4)
    plain.set_epoch(4)
    assert numbers(iterator) == numbers(plain)


# --- errors and ends ---------------------------------------------------------------------------------------


@WAYS
@pytest.mark.usefixtures("always_ahead")
def test_a_batch_before_a_failing_one_is_given(name: str, backend: str, numbers_path: str) -> None:
    loader = Way(name, numbers_path, fail_at_20).loader(device="cpu")
    iterator = iter(loader)
    got = [next(iterator)["x"].tolist() for _ in range(2)]
    assert got[1] == list(range(8, 16))
    state = loader.state_dict()
    assert made_ahead(iterator) == (name != "caller")
    with pytest.raises((KeyError, EngineError), match="twenty"):
        next(iterator)
    assert state["position"] == 16
    if name == "native":
        assert next(iterator, None) is None, "an engine's iterator is over"
    else:
        assert next(iterator)["x"].tolist() == list(range(24, 32)), "torch's goes on"


@pytest.mark.usefixtures("always_ahead")
def test_a_worker_that_dies_ahead_of_a_good_batch() -> None:
    loader = fastload.DataLoader(Dying(), 8, num_workers=1, device="cpu")
    iterator = iter(loader)
    assert next(iterator).tolist() == list(range(8))
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(iterator)
    assert next(iterator, None) is None


class Dying(data.Dataset[int]):
    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        if index == 8:
            time.sleep(0.3)  # so that the batch before has gone out
            import os

            os._exit(3)
        return index


@pytest.mark.usefixtures("always_ahead")
def test_a_timeout_ahead_comes_in_its_turn(backend: str, numbers_path: str) -> None:
    slow = Way("native", numbers_path, _slow_at_8).loader(device="cpu", timeout=0.3, num_workers=1)
    iterator = iter(slow)
    assert next(iterator)["x"].tolist() == list(range(8))
    with pytest.raises(EngineError, match="within the timeout"):
        next(iterator)


def _slow_at_8(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["x"]) == 8:
        time.sleep(1)
    return sample


@WAYS
@pytest.mark.usefixtures("always_ahead")
def test_closing_drops_what_was_ahead(name: str, backend: str, numbers_path: str) -> None:
    loader = Way(name, numbers_path).loader(device="cpu")
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert next(iterator, None) is None
    assert not made_ahead(iterator)


@pytest.mark.usefixtures("always_ahead")
def test_rejections_count_with_their_batch(backend: str, numbers_path: str) -> None:
    loader = Way("native", numbers_path, _refuse_9).loader(device="cpu", on_error="skip")
    iterator = iter(loader)
    next(iterator)
    assert made_ahead(iterator)
    assert loader.stats()["rejected"] == 0
    with pytest.warns(UserWarning, match="left out") as warned:
        assert len(next(iterator)["x"]) == 7
    assert warned[0].filename == __file__
    assert loader.stats()["rejected"] == 1


def _refuse_9(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["x"]) == 9:
        raise fastload.errors.RecordError("nine")
    return sample


@pytest.mark.usefixtures("always_ahead")
def test_an_error_leaves_no_cycle_behind() -> None:
    loader = fastload.DataLoader(Numbers(fail_at_20), 8, num_workers=1, device="cpu")
    iterator = iter(loader)
    workers = iterator._workers  # type: ignore[attr-defined]
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            for _ in range(5):
                next(iterator)
        del iterator
        assert not any(worker.is_alive() for worker in workers)
    finally:
        gc.enable()


class _Item:
    def __init__(self, batch: Any, waited: float = 0.0) -> None:
        self.batch, self.waited = batch, waited


def test_nothing_waits_for_a_batch_that_is_not_wanted_yet() -> None:
    waits = iter([0.2, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0])
    fetched: list[int] = []

    def fetch() -> Any:
        fetched.append(len(fetched))
        return _Item(fetched[-1], next(waits))

    over: HandOver[Any] = HandOver(Copier(torch.device("cpu")), ahead=True)
    seen = []
    for _ in range(5):
        seen.append((over.next(fetch).batch, len(fetched)))
    # The first was waited for; the second was there, so the third is fetched with it; the fourth, fetched
    # ahead, had to be waited for, so that none is fetched ahead of the fifth.
    assert seen == [(0, 1), (1, 3), (2, 4), (3, 4), (4, 6)]


def test_ctrl_c_is_not_kept_for_later() -> None:
    given = iter([1, 2])

    def fetch() -> Any:
        number = next(given)
        if number == 2:
            raise KeyboardInterrupt
        return _Item(number)

    over: HandOver[Any] = HandOver(Copier(torch.device("cpu")), ahead=True)
    with pytest.raises(KeyboardInterrupt):
        over.next(fetch)


# --- arguments ---------------------------------------------------------------------------------------------


def test_arguments_that_cannot_be_met(ds: Dataset) -> None:
    with pytest.raises(UsageError, match="'tpu9', which torch does not know"):
        fastload.DataLoader(ds, device="tpu9")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device 'cuda' is not available: there is cpu"):
            fastload.DataLoader(Numbers(), device="cuda")
    with pytest.raises(UsageError, match=r"with_format\('numpy'\) gives NumPy arrays"):
        fastload.DataLoader(ds.with_format("numpy"), device="cpu")
    fastload.DataLoader(ds.with_format("numpy"), device="cpu", output="torch")


def test_without_device_nothing_stands_between(ds: Dataset) -> None:
    for dataset in (ds, Numbers()):
        assert fastload.DataLoader(dataset)._hand_over() is None


# --- normalising on the device -----------------------------------------------------------------------------


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def finish(dtype: str = "float32", *more: Any) -> list[Any]:
    return [T.ToDtype(dtype, scale=True), T.Normalize(MEAN, STD), *more]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("devices") / "pictures.fl")
    random = np.random.default_rng(0)
    schema = {
        "image": fastload.Image(),
        "gray": fastload.Image("L", nullable=True),
        "x": fastload.Scalar("int64"),
    }
    with fastload.Writer(path, schema=schema) as writer:
        for x in range(12):
            gray = random.integers(0, 256, (8, 8, 1), np.uint8) if x % 3 else None
            writer.append({"image": random.integers(0, 256, (20, 24, 3), np.uint8), "gray": gray, "x": x})
    return path


def same(ds: Dataset, **options: Any) -> list[Any]:
    """Return the batches, asserting that they are the same bits wherever they are normalised."""
    host = list(fastload.DataLoader(ds, 5, seed=1, device="cpu", **options))
    device = list(fastload.DataLoader(ds, 5, seed=1, device="cpu", normalize_on="device", **options))
    assert len(host) == len(device) == 3
    for expected, batch in zip(host, device, strict=True):
        _same_bits(expected, batch)
    return device


def _same_bits(expected: Any, got: Any) -> None:
    assert type(expected) is type(got)
    if isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape) == (got.dtype, got.shape)
        if expected.ndim == 4:
            assert expected.stride() == got.stride()
        assert torch.equal(expected, got)
    elif isinstance(expected, dict):
        assert list(expected) == list(got)
        _same_bits(list(expected.values()), list(got.values()))
    elif isinstance(expected, (list, tuple)):
        assert len(expected) == len(got)
        for pair in zip(expected, got, strict=True):
            _same_bits(*pair)
    else:
        assert expected == got


@pytest.mark.parametrize("layout", ["NCHW", "channels_last", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_bits_are_the_hosts(backend: str, pictures: str, dtype: str, layout: str) -> None:
    ds = fastload.open(pictures).select_columns(["x", "image"])
    crop = [T.RandomResizedCrop(16), T.RandomHorizontalFlip()]
    (first, *_) = same(ds.transform(image=[*crop, *finish(dtype, T.Layout(layout))]), num_workers=2)
    assert first["image"].dtype == getattr(torch, dtype)
    same(ds.transform(image=[*crop, T.Layout(layout), *finish(dtype)]).as_tuple())


def test_all_kinds_of_fields(backend: str, pictures: str) -> None:
    ds = fastload.open(pictures)
    (first, *_) = same(
        ds.transform(image=[T.Resize((8, 8)), *finish()], gray=[T.ToDtype("float16", scale=True)])
    )
    assert first["gray"][0] is None
    assert first["gray"][1].dtype == torch.float16
    (first, *_) = same(
        ds.transform(image=[T.Resize((8, 8)), T.ToDtype("float32"), T.Normalize([1.0], [3.0])])
    )
    assert first["gray"][1].dtype == torch.uint8, "what stays uint8 is left alone"
    views = T.MultiView({"a": (2, [T.RandomResizedCrop(8), *finish("float16")]), "b": (1, [T.CenterCrop(4)])})
    (first, *_) = same(ds.transform(image=views))
    assert [view.dtype for view in (*first["a"], *first["b"])] == [torch.float16] * 2 + [torch.uint8]
    mixed = fastload.mix({"a": (ds, 1), "b": (ds.transform(), 1)}).take(12)
    same(mixed.transform(image=[T.CenterCrop(4), *finish()]))


def test_samples_and_other_outputs(backend: str, pictures: str) -> None:
    ds = fastload.open(pictures).transform(image=[T.Resize((8, 8)), *finish()])
    for layout in ("NCHW", "NHWC"):
        one, *_ = fastload.DataLoader(
            ds.transform(image=T.Layout(layout)), None, device="cpu", normalize_on="device"
        )
        _same_bits(one["image"], ds.transform(image=T.Layout(layout))[0]["image"])
    expected = next(iter(fastload.DataLoader(ds, 5)))["image"].numpy()
    for dataset in (ds, ds.with_format("numpy")):
        loader = fastload.DataLoader(dataset, 5, device="cpu", normalize_on="device", output="numpy")
        assert np.array_equal(next(iter(loader))["image"], expected)


def test_what_cannot_be_normalised_on_the_device(ds: Dataset, pictures: str) -> None:
    images = fastload.open(pictures)
    ready = images.transform(image=[T.Resize((8, 8)), *finish()])

    def refused(dataset: Any, match: str, **options: Any) -> None:
        with pytest.raises(UsageError, match=match):
            fastload.DataLoader(dataset, 4, normalize_on="device", **{"device": "cpu", **options})

    refused(ready, "needs a device", device=None)
    refused(ds, "no image field of the dataset is converted to floats")
    refused(images, "no image field of the dataset is converted to floats")
    refused(Numbers(), "is for fastload datasets, not a Numbers")
    refused(images.transform(image=[*finish(), T.RandomErasing()]), r"takes floats \(field 'image'\)")
    refused(images.transform(image=[*finish(), lambda image: image]), r"behind all other transforms")
    erased = [T.ToDtype("float32"), T.RandomErasing(), T.Normalize(MEAN, STD)]
    refused(images.transform(image=erased), "RandomErasing.*takes floats")
    refused(ready.map(dict), "not normalised yet")
    refused(ready.map_batches(dict), "not normalised yet")
    refused(ready, "not normalised yet", collate_fn=list)
    refused(images.transform(image=[*finish(), T.ToDtype("uint8")]), "no image field")
    refused(images.transform(image=[*finish(), T.ToDtype("uint8"), *finish()]), "and not back")
    with pytest.raises(UsageError, match="unknown normalize_on 'gpu'"):
        fastload.DataLoader(ready, 4, normalize_on="gpu")  # type: ignore[arg-type]


# --- where there is an accelerator -------------------------------------------------------------------------


@accelerated
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_on_the_accelerator(ds: Dataset, workers: int) -> None:
    for dataset in (ds, Numbers()):
        with torch.cuda.stream(torch.cuda.Stream()):
            got = []
            for batch in fastload.DataLoader(dataset, 8, num_workers=workers, device="cuda"):
                assert batch["wide"].is_cuda
                got.append((batch["x"] * 1).cpu())
        assert torch.cat(got).tolist() == list(range(53))


@accelerated
def test_the_bits_are_the_hosts_on_the_accelerator(pictures: str) -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        ds = fastload.open(pictures).transform(image=[T.Resize((8, 8)), *finish(dtype)])
        host = fastload.DataLoader(ds, 5, device="cuda")
        device = fastload.DataLoader(ds, 5, device="cuda", normalize_on="device")
        for expected, batch in zip(host, device, strict=True):
            assert torch.equal(expected["image"], batch["image"])
