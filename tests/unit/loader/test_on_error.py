"""What becomes of records whose bytes are bad: the same batches at any num_workers and on both engines."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import fastload
from fastload import DataLoader, _backend
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.engine.reject import ATTEMPTS
from fastload.errors import CorruptionError, DecodeError, EngineError, RecordError, UsageError
from fastload.staging import JaggedTensor

COUNT = 60
NO_IMAGE = [4, 13, 22, 31]
CORRUPT = [17, 40]
NO_TEXT = [9]
BAD = {*NO_IMAGE, *CORRUPT, *NO_TEXT}
SCHEMA = {
    "x": fastload.Scalar("int64"),
    "image": fastload.Image(),
    "raw": fastload.Bytes(),
    "tokens": fastload.Ragged("uint16"),
    "boxes": fastload.Ragged("float32", (None, 4)),
    "mask": fastload.Ragged("bool", (None, None)),
    "maybe": fastload.Scalar("float32", nullable=True),
    "text": fastload.Str(),
}


def _picture(i: int) -> bytes:
    coarse = np.random.default_rng(i).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    size = (40 + i % 5, 50 - i % 7)
    PillowImage.fromarray(coarse).resize(size, PillowImage.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def _damage(path: str, marker: bytes, mask: int) -> None:
    for file in Path(path).glob("*.shard"):
        data = bytearray(file.read_bytes())
        if (at := data.find(marker)) >= 0:
            data[at] ^= mask
            file.unlink()
            file.write_bytes(data)
            return
    raise AssertionError(marker)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset of 60 records, seven of them bad: no image, a failing checksum, no UTF-8."""
    path = str(tmp_path_factory.mktemp("damaged") / "d.fl")
    with fastload.Writer(path, schema=SCHEMA, shard_size=16 << 10) as writer:
        for i in range(COUNT):
            writer.append(
                {
                    "x": i,
                    "image": b"no image" if i in NO_IMAGE else _picture(i),
                    "raw": b"raw value %03d." % i,
                    "tokens": np.arange(i % 7, dtype=np.uint16) + i,
                    "boxes": np.full((i % 3, 4), i, np.float32),
                    "mask": np.ones((i % 3, i % 4), bool),
                    "maybe": None if i % 4 == 0 else i,
                    "text": f"text {i:03d}.",
                }
            )
    for i in CORRUPT:
        _damage(path, b"raw value %03d." % i, 1)
    return path


@pytest.fixture(scope="module")
def no_text(damaged: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the dataset with a text that is no UTF-8, to be read without looking at checksums."""
    import shutil

    path = str(tmp_path_factory.mktemp("no_text") / "d.fl")
    shutil.copytree(damaged, path)
    for i in NO_TEXT:
        _damage(path, f"text {i:03d}.".encode(), 0x80)
    return path


def _open(path: str, *names: str, **options: Any) -> Dataset:
    ds = fastload.open(path, **options).transform(image=[T.RandomResizedCrop(16), T.RandomHorizontalFlip()])
    return ds.select_columns(names) if names else ds


def _load(ds: Any, **options: Any) -> tuple[list[Any], dict[str, Any]]:
    loader = DataLoader(ds, **{"batch_size": 8, "shuffle": True, "seed": 3, **options})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return list(loader), loader.stats()


def _same(a: Any, b: Any, tolerance: int = 0) -> None:
    if isinstance(a, dict):
        assert list(a) == list(b)
        for name in a:
            _same(a[name], b[name], 1 if tolerance and name == "image" else 0)
    elif isinstance(a, torch.Tensor):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert not a.numel() or a.stride() == b.stride()
        assert not a.numel() or (a.to(torch.float64) - b.to(torch.float64)).abs().max() <= tolerance
    elif isinstance(a, JaggedTensor):
        _same(a.values, b.values)
        _same(a.offsets, b.offsets)
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            _same(one, other, tolerance)
    else:
        assert a == b


def test_raise_is_the_default(backend: str, damaged: str) -> None:
    with pytest.raises((CorruptionError, DecodeError)):
        _load(_open(damaged))


@pytest.mark.parametrize("mode", ["list", "pad", "jagged"])
def test_skip_shortens_batches(backend: str, damaged: str, mode: str) -> None:
    ds = _open(damaged).with_ragged(tokens=mode, boxes=mode)
    ds = ds if mode == "jagged" else ds.with_ragged(mask=mode)
    batches, stats = _load(ds, on_error="skip")
    whole = DataLoader(fastload.open(damaged).select_columns("x"), batch_size=8, shuffle=True, seed=3)
    expected = [[x for x in batch["x"].tolist() if x not in {*NO_IMAGE, *CORRUPT}] for batch in whole]
    assert [batch["x"].tolist() for batch in batches] == expected
    assert len(batches) == len(whole)
    for batch, numbers in zip(batches, expected, strict=True):
        assert batch["image"].shape == (len(numbers), 3, 16, 16)
        assert batch["text"] == [f"text {x:03d}." for x in numbers]
        assert batch["maybe"] == [None if x % 4 == 0 else x for x in numbers]
        for number, x in enumerate(numbers):
            if mode == "pad":
                assert batch["tokens"][number].tolist()[: x % 7] == [x + k for k in range(x % 7)]
                assert not batch["tokens"][number][x % 7 :].any()
                assert batch["mask"].shape[1:] == (
                    max(x % 3 for x in numbers),
                    max(x % 4 for x in numbers),
                )
            elif mode == "list":
                assert batch["tokens"][number].tolist() == [x + k for k in range(x % 7)]
        if mode == "jagged":
            assert batch["tokens"].offsets.tolist() == np.cumsum([0, *(x % 7 for x in numbers)]).tolist()
            assert batch["boxes"].values[:, 0].tolist() == [x for x in numbers for _ in range(x % 3)]
    assert (stats["rejected"], stats["samples"], stats["position"]) == (6, COUNT - 6, COUNT)
    assert {entry["record"]: entry["field"] for entry in stats["rejections"]} == {
        **dict.fromkeys(NO_IMAGE, "image"),
        **dict.fromkeys(CORRUPT, "raw"),
    }
    assert all(entry["path"] == damaged and entry["error"] for entry in stats["rejections"])


@pytest.mark.parametrize("mode", ["list", "pad", "jagged"])
def test_substitutes_fill_batches(backend: str, damaged: str, mode: str) -> None:
    ds = _open(damaged).with_ragged(tokens=mode, boxes=mode)
    batches, stats = _load(ds, on_error="substitute")
    plain = _load(fastload.open(damaged).select_columns("x"))[0]
    for batch, reference in zip(batches, plain, strict=True):
        assert batch["image"].shape == (len(reference["x"]), 3, 16, 16)
        for number, (x, meant) in enumerate(zip(batch["x"].tolist(), reference["x"].tolist(), strict=True)):
            assert x not in {*NO_IMAGE, *CORRUPT}
            assert x == meant or meant in {*NO_IMAGE, *CORRUPT}
            assert batch["text"][number] == f"text {x:03d}."
    assert stats["rejected"] >= 6
    assert stats["samples"] == COUNT
    other = _load(ds, on_error="substitute", seed=4)[0]
    assert [b["x"].tolist() for b in other] != [b["x"].tolist() for b in batches]


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
@pytest.mark.parametrize("mode", ["list", "pad"])
def test_the_same_at_any_num_workers_and_on_both_engines(
    damaged: str, no_text: str, monkeypatch: pytest.MonkeyPatch, on_error: str, mode: str
) -> None:
    results = []
    engines = ["python"] if _backend.core() is None else ["native", "python"]
    for engine in engines:
        monkeypatch.setenv("FASTLOAD_BACKEND", engine)
        ds = _open(no_text, verify="never").with_ragged(tokens=mode, boxes=mode, mask=mode)
        for options in ({}, {"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 5}):
            batches, stats = _load(ds, on_error=on_error, **options)
            results.append((engine, batches, stats["rejected"], [e["record"] for e in stats["rejections"]]))
    for engine, *result in results[1:]:
        assert result[1:] == list(results[0][2:])
        _same(results[0][1], result[0], 0 if engine == results[0][0] else 1)
    assert results[0][2] >= len(NO_IMAGE) + len(NO_TEXT)


def test_images_of_their_own_size(backend: str, damaged: str) -> None:
    ds = fastload.open(damaged).select_columns(["x", "image"])[NO_IMAGE[0] : NO_IMAGE[0] + 2]
    (batch,), _ = _load(ds, on_error="skip", shuffle=False)
    assert batch["image"].shape[0] == 1
    assert batch["x"].tolist() == [NO_IMAGE[0] + 1]
    (batch,), _ = _load(ds, on_error="substitute", shuffle=False)
    assert batch["x"].tolist() == [NO_IMAGE[0] + 1] * 2
    ds = fastload.open(damaged).select_columns(["image"])[[*NO_IMAGE, 0]]
    with pytest.raises(EngineError, match="cannot be put into one batch"):
        _load(fastload.open(damaged).select_columns(["image"])[:9], on_error="substitute", shuffle=False)


@pytest.mark.parametrize("layout", ["NCHW", "channels_last", "NHWC"])
def test_a_batch_of_nothing_but_bad_records(backend: str, damaged: str, layout: str) -> None:
    ds = fastload.open(damaged).transform(image=[T.Resize((8, 9)), T.Layout(layout)])[[NO_IMAGE[0]] * 2]
    (batch,), stats = _load(ds, on_error="skip", shuffle=False)
    assert tuple(batch["image"].shape) == ((0, 8, 9, 3) if layout == "NHWC" else (0, 3, 8, 9))
    assert (batch["x"].tolist(), batch["text"]) == ([], [])
    assert stats["samples"] == 0
    with pytest.raises(DecodeError, match=f"{ATTEMPTS} substitutes for it failed as well"):
        _load(ds, on_error="substitute")


def test_collated_samples(backend: str, damaged: str) -> None:
    ds = _open(damaged, "x", "image")[:8]

    def collate(samples: list[Any]) -> list[int]:
        return [int(sample["x"]) for sample in samples]

    for on_error, expected in (("skip", [0, 1, 2, 3, 5, 6, 7]), ("substitute", None)):
        ((numbers,), stats) = _load(ds, on_error=on_error, shuffle=False, collate_fn=collate, num_workers=2)
        assert 4 not in numbers
        assert expected is None or numbers == expected
        assert stats["rejected"] >= 1
    samples, _ = _load(ds, on_error="substitute", batch_size=None, shuffle=False)
    assert len(samples) == 8
    with pytest.raises(UsageError, match="batch_size=None"):
        DataLoader(ds, batch_size=None, on_error="skip")
    with pytest.raises(UsageError, match="unknown on_error"):
        DataLoader(ds, on_error="ignore")  # type: ignore[arg-type]


def test_the_first_is_warned_of(backend: str, damaged: str) -> None:
    loader = DataLoader(_open(damaged), batch_size=8, on_error="skip")
    with pytest.warns(UserWarning, match="bad record was left out.*record 4") as caught:
        list(loader)
    assert len(caught) == 1
    assert loader.on_error == "skip"


def test_callables_refuse_records_and_other_errors_end_the_epoch(backend: str, damaged: str) -> None:
    def refuse(x: Any) -> Any:
        if int(x) == 2:
            raise RecordError("two is not wanted")
        return x

    ds = fastload.open(damaged).select_columns(["x"]).transform(x=refuse)
    batches, stats = _load(ds, on_error="skip", num_workers=2, shuffle=False)
    assert 2 not in [x for batch in batches for x in batch["x"].tolist()]
    assert [entry["record"] for entry in stats["rejections"]] == [2]

    def fail(x: Any) -> Any:
        raise KeyError("a mistake")

    with pytest.raises(EngineError, match="a mistake"):
        _load(fastload.open(damaged).select_columns(["x"]).transform(x=fail), on_error="skip")


def test_only_the_first_hundred_are_listed(backend: str, damaged: str) -> None:
    ds = _open(damaged, "image")[[NO_IMAGE[0], 0] * 120]
    _, stats = _load(ds, on_error="skip")
    assert (stats["rejected"], len(stats["rejections"])) == (120, 100)


def test_missing_shards_are_no_bad_records(backend: str, damaged: str, tmp_path: Path) -> None:
    import shutil

    path = str(tmp_path / "d.fl")
    shutil.copytree(damaged, path)
    os.unlink(sorted(Path(path).glob("*.shard"))[0])
    with pytest.raises(fastload.errors.ShardNotFoundError):
        _load(fastload.open(path).select_columns(["x"]), on_error="skip")
