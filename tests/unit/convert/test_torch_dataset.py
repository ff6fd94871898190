from __future__ import annotations

import collections
import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

import fastload
from fastload.convert.source import SourceOptions
from fastload.convert.sources.torch_dataset import TorchDatasetSource, infer_schema, load_object
from fastload.errors import FastloadError, SourceError
from fastload.schema import Bytes, Image, Label, Ragged, Scalar, Str, StrList, Tensor


class Listed(torch.utils.data.Dataset[Any]):
    def __init__(self, samples: list[Any], **attributes: Any) -> None:
        self._samples = samples
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]


class Streamed(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([{"n": number} for number in range(40)])


Pair = collections.namedtuple("Pair", ["left", "right"])


def picture(mode: str = "RGB", seed: int = 0) -> PillowImage.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return PillowImage.fromarray(pixels).convert(mode)


@pytest.mark.parametrize(
    ("sample", "fields"),
    [
        (3, {"x": Scalar("int64")}),
        (True, {"x": Scalar("bool")}),
        (1.5, {"x": Scalar("float64")}),
        ("text", {"x": Str()}),
        (b"bytes", {"x": Bytes()}),
        (["a", "b"], {"x": StrList()}),
        ([1, 2], {"x": Ragged("int64")}),
        ([1, 2.5], {"x": Ragged("float64")}),
        (np.float32(1), {"x": Scalar("float32")}),
        (torch.zeros(3, 4, dtype=torch.bfloat16), {"x": Tensor("bfloat16", (3, 4))}),
        (torch.tensor(7), {"x": Scalar("int64")}),
        ((torch.zeros(2), 1), {"x": Tensor("float32", (2,)), "y": Scalar("int64")}),
        ([torch.zeros(2), 1], {"x": Tensor("float32", (2,)), "y": Scalar("int64")}),
        ((1, 2, 3), {"field0": Scalar("int64"), "field1": Scalar("int64"), "field2": Scalar("int64")}),
        (Pair(1, "b"), {"left": Scalar("int64"), "right": Str()}),
        ({"a": 1, "b": {"c": "x"}}, {"a": Scalar("int64"), "b.c": Str()}),
        (picture(), {"image": Image()}),
        ((picture("L"), 1), {"image": Image(mode="L"), "label": Scalar("int64")}),
    ],
)
def test_schema_of_one_sample(sample: Any, fields: dict[str, Any]) -> None:
    assert dict(infer_schema([sample], None)) == fields


def test_schema_of_several_samples() -> None:
    samples = [{"x": np.zeros((2, 3), "f4"), "n": None}, {"x": np.zeros((5, 3), "f4"), "n": 1}]
    schema = infer_schema(samples, None)
    assert dict(schema) == {"x": Ragged("float32", (None, 3)), "n": Scalar("int64", nullable=True)}
    with pytest.raises(SourceError, match=r"record 1, field 'x'"):
        infer_schema([1, "a"], None)
    with pytest.raises(SourceError, match=r"has the fields b, the first has a .*record 1"):
        infer_schema([{"a": 1}, {"b": 1}], None)
    with pytest.raises(SourceError, match=r"the first 2 samples are None .*field 'a'"):
        infer_schema([{"a": None}] * 2, None)
    with pytest.raises(SourceError, match="of type object has no field type"):
        infer_schema([object()], None)


def test_images_with_classes_round_trip(tmp_path: Path) -> None:
    pictures = [picture(seed=seed) for seed in range(5)]
    dataset = Listed([(image, number % 2) for number, image in enumerate(pictures)], classes=["cat", "dog"])
    made = fastload.from_torch(dataset, tmp_path / "d.fl", split="train")
    assert made.records == {"train": 5}
    assert made.notes == ("Pillow images were encoded as png",)
    opened = fastload.open(tmp_path / "d.fl").with_format("numpy")
    assert opened.classes == ("cat", "dog")
    for number, image in enumerate(pictures):
        sample = opened[number]
        np.testing.assert_array_equal(sample["image"], np.asarray(image).transpose(2, 0, 1))
        assert sample["label"] == number % 2


@pytest.mark.parametrize(("encode", "kind"), [("png", "PNG"), ("webp", "WEBP"), ("jpeg", "JPEG")])
def test_encodings(tmp_path: Path, encode: str, kind: str) -> None:
    source = TorchDatasetSource(Listed([picture()]), SourceOptions(encode=encode))
    ((_, record),) = source.partitions("default", 100)[0].read()
    with PillowImage.open(io.BytesIO(record["image"])) as image:  # type: ignore[index,call-overload]
        assert image.format == kind
        if kind != "JPEG":
            np.testing.assert_array_equal(np.asarray(image), np.asarray(picture()))


def test_values_round_trip(tmp_path: Path) -> None:
    samples = [
        {"t": torch.full((2, 2), number, dtype=torch.bfloat16), "s": f"{number}", "r": list(range(number))}
        for number in range(1, 30)
    ]
    fastload.from_torch(Listed(samples), tmp_path / "d.fl", shard_size=200)
    opened = fastload.open(tmp_path / "d.fl")
    assert len(opened) == 29
    for sample, stored in zip(samples, opened, strict=True):
        assert torch.equal(stored["t"], sample["t"])
        assert stored["s"] == sample["s"]
        assert stored["r"].tolist() == sample["r"]


def test_iterable_dataset(tmp_path: Path) -> None:
    made = fastload.from_torch(Streamed(), tmp_path / "d.fl")
    assert made.records == {"default": 40}
    assert [int(sample["n"]) for sample in fastload.open(tmp_path / "d.fl")] == list(range(40))
    with pytest.raises(SourceError, match="read only once"):
        fastload.from_torch(iter([1, 2]), tmp_path / "e.fl")


@pytest.mark.parametrize(
    ("late", "cause"),
    [
        ("text", "dtype int64 cannot hold|where|'x'"),
        (torch.zeros(3), "dtype float32"),
        (None, "the value is None, but the field is not nullable"),
        ((1, 2), "has the fields x, y, the schema x"),
    ],
)
def test_a_sample_that_differs_later_is_named(tmp_path: Path, late: Any, cause: str) -> None:
    with pytest.raises(FastloadError, match=cause) as caught:
        fastload.from_torch(Listed([1] * 20 + [late]), tmp_path / "d.fl")
    assert "sample 20" in str(caught.value)
    assert not (tmp_path / "d.fl").exists()


def test_what_the_dataset_raises_is_told_with_its_index(tmp_path: Path) -> None:
    class Broken(Listed):
        def __getitem__(self, index: int) -> Any:
            if index == 17:
                raise KeyError("lost")
            return index

    with pytest.raises(SourceError, match=r"the dataset raised KeyError: 'lost' .*record 17"):
        fastload.from_torch(Broken([0] * 20), tmp_path / "d.fl")


def test_a_gray_dataset_refuses_a_late_colour_image(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"the image is RGB, the first ones were L .*sample 16"):
        fastload.from_torch(Listed([picture("L")] * 16 + [picture()]), tmp_path / "d.fl")


def test_given_schema(tmp_path: Path) -> None:
    schema = {"x": Scalar("int64", nullable=True), "y": Label(["a", "b"])}
    samples = [{"x": 1, "y": "b"}] * 20 + [{"x": None, "y": 0}]
    fastload.from_torch(Listed(samples), tmp_path / "d.fl", schema=schema)
    last = fastload.open(tmp_path / "d.fl")[20]
    assert (last["x"], last["y"]) == (None, 0)


def test_load_object(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("my_data")
    module.ready = Listed([1])  # type: ignore[attr-defined]
    module.make = lambda: Listed([2])  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_data", module)
    assert load_object("my_data:ready")[0] == 1
    assert load_object("my_data:make")[0] == 2
    for name, cause in (
        ("my_data:number", "is a int"),
        ("my_data:none", "cannot be imported"),
        ("x:y", "import"),
    ):
        with pytest.raises(SourceError, match=cause):
            load_object(name)


def test_empty_dataset(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="empty"):
        fastload.from_torch(Listed([]), tmp_path / "d.fl")
