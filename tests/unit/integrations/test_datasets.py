from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage
from torch.utils import data

import fastload
from fastload.errors import DecodeError, UsageError

datasets = pytest.importorskip("datasets")

COUNT = 25


def encoded(number: int) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(np.full((4, 6, 3), number, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a dataset in several files and record batches."""
    features = datasets.Features(
        {
            "number": datasets.Value("int32"),
            "half": datasets.Value("float32"),
            "maybe": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["a", "b"]),
            "tokens": datasets.Sequence(datasets.Value("int64")),
            "words": datasets.Sequence(datasets.Value("string")),
            "grid": datasets.Array2D((2, 3), "float32"),
            "nested": datasets.Sequence(datasets.Sequence(datasets.Value("int16"))),
            "image": datasets.Image(),
        }
    )
    rows = [
        {
            "number": n,
            "half": n / 2,
            "maybe": None if n % 3 == 0 else n,
            "text": f"é{n}",
            "label": n % 2,
            "tokens": list(range(n % 4)),
            "words": ["w"] * (n % 3),
            "grid": np.full((2, 3), n, np.float32).tolist(),
            "nested": [[n], [n, n]] if n % 2 else [[n, 1], [n, 2]],
            "image": {"bytes": encoded(n), "path": None},
        }
        for n in range(COUNT)
    ]
    path = tmp_path_factory.mktemp("hf") / "saved"
    whole = datasets.Dataset.from_list(rows, features=features)
    whole.save_to_disk(str(path), num_shards=3)
    return path


@pytest.fixture
def source(saved: Path) -> Any:
    return datasets.load_from_disk(str(saved))


def numbers(ds: Any) -> list[int]:
    return [int(ds[i]["number"]) for i in range(len(ds))]


def test_what_a_sample_holds(source: Any) -> None:
    ds = fastload.from_hf(source)
    assert len(ds) == COUNT
    sample = ds[5]
    assert sample["number"].dtype == torch.int32
    assert sample["number"].shape == ()
    assert sample["half"].dtype == torch.float32
    assert float(sample["half"]) == 2.5
    assert sample["text"] == "é5"
    assert sample["label"] == 1
    assert sample["tokens"].tolist() == [0]
    assert sample["tokens"].dtype == torch.int64
    assert sample["words"] == ["w", "w"]
    assert torch.equal(sample["grid"], torch.full((2, 3), 5.0))
    assert [row.tolist() for row in sample["nested"]] == [[5], [5, 5]]
    assert ds[4]["nested"].tolist() == [[4, 1], [4, 2]]
    assert torch.equal(sample["image"], torch.full((3, 4, 6), 5, dtype=torch.uint8))
    assert ds[3]["maybe"] is None
    assert int(ds[4]["maybe"]) == 4
    assert ds[0]["tokens"].shape == (0,)
    assert int(ds[-1]["number"]) == COUNT - 1
    with pytest.raises(IndexError, match="25 is out of range: the dataset has 25 records"):
        ds[COUNT]


def test_batches_are_in_the_order_asked(source: Any) -> None:
    ds = fastload.from_hf(source)
    asked = [20, 3, 3, 11, 0, 24]
    assert [int(sample["number"]) for sample in ds.__getitems__(asked)] == asked
    assert ds.__getitems__([]) == []


def test_views_are_respected(source: Any) -> None:
    for view in (
        source.select([7, 2, 2, 24]),
        source.shuffle(seed=1),
        source.filter(lambda row: row["number"] % 2, load_from_cache_file=False),
        source.select(range(5, 15)).select([1, 0]),
        source.train_test_split(0.2, seed=0)["test"],
        datasets.concatenate_datasets([source.select([1]), source]),
    ):
        assert numbers(fastload.from_hf(view)) == view["number"][:]
    two = fastload.from_hf(source.select_columns(["text", "number"]))
    assert list(two[0]) == ["text", "number"]
    chosen = source.with_format("torch", columns=["number"])
    assert list(fastload.from_hf(chosen)[0]) == ["number"]


def collate(samples: list[Any]) -> list[int]:
    return [int(sample["number"]) for sample in samples]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_it_loads_in_workers(source: Any, context: str) -> None:
    ds = pickle.loads(pickle.dumps(fastload.from_hf(source.select(range(1, COUNT)))))
    ds[0]  # opened in the parent before the fork
    loader = data.DataLoader(
        ds, batch_size=5, num_workers=1, multiprocessing_context=context, collate_fn=collate
    )
    assert [n for batch in loader for n in batch] == list(range(1, COUNT))


def test_fastloads_loader_takes_it(source: Any) -> None:
    ds = fastload.from_hf(source, transform=lambda sample: (sample["image"].float() / 255, sample["label"]))
    images, labels = next(iter(fastload.DataLoader(ds, batch_size=4)))
    assert images.shape == (4, 3, 4, 6)
    assert labels.tolist() == [0, 1, 0, 1]


def test_what_cannot_be_read(source: Any) -> None:
    with pytest.raises(UsageError, match="give one split"):
        fastload.from_hf(datasets.DatasetDict(train=source))
    with pytest.raises(UsageError, match="no Arrow tables"):
        fastload.from_hf(source.to_iterable_dataset())
    with pytest.raises(UsageError, match="transform of its own"):
        fastload.from_hf(source.with_transform(lambda rows: rows))
    bad = datasets.Dataset.from_list([{"image": {"bytes": b"no image", "path": None}}])
    bad = bad.cast_column("image", datasets.Image())
    with pytest.raises(DecodeError, match="cannot be read"):
        fastload.from_hf(bad)[0]
