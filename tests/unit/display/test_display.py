"""Dataset.show, Dataset.explain and what notebooks show."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

import fastload
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.display.pictures import grid, to_pixels
from fastload.errors import UsageError, WriteError

pytestmark = pytest.mark.usefixtures("backend")

CLASSES = [f"class {number}" for number in range(1000)]


def image(height: int, width: int, value: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(np.full((height, width, 3), value, np.uint8)).save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    schema = {
        "image": fastload.Image(nullable=True),
        "label": fastload.Label(CLASSES),
        "name": fastload.Str(),
        "x": fastload.Tensor("float32", (2,)),
    }
    with fastload.Writer(str(tmp_path / "d.fl"), schema=schema) as writer:
        for i in range(6):
            picture = None if i == 5 else image(300 + i, 400, 40 * i, ("PNG", "JPEG")[i % 2])
            writer.append({"image": picture, "label": i, "name": f"<b>{i}", "x": [i, i]})
    return fastload.open(str(tmp_path / "d.fl"))


NORMALISED = [
    T.RandomResizedCrop(64),
    T.RandomHorizontalFlip(),
    T.ToDtype("float32", scale=True),
    T.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1)),
]


def test_show_undoes_what_normalising_did(ds: Dataset, tmp_path: Path) -> None:
    page = ds[1:4].transform(image=NORMALISED).show(path=tmp_path / "page.png")
    with PillowImage.open(tmp_path / "page.png") as written:
        assert np.array_equal(np.asarray(written), np.asarray(page))
    pixels = np.asarray(page)
    for value in (40, 80, 120):
        assert (np.abs(pixels.astype(int) - value).max(axis=2) <= 1).sum() >= 128 * 128  # 64, enlarged


def test_show_shows_what_a_loader_gives(ds: Dataset) -> None:
    view = ds[:5].transform(image=[T.RandomResizedCrop(256), T.RandomHorizontalFlip()]).with_format("numpy")
    page = np.asarray(view.show(1, seed=3, epoch=2))
    sample = view.sample(0, seed=3, epoch=2)["image"].transpose(1, 2, 0)
    assert np.array_equal(page[2:258, 2:258], sample)


def test_null_images_are_left_out(ds: Dataset) -> None:
    assert ds.show(6).size == ds.show(5).size
    with pytest.raises(UsageError, match="no image to show"):
        ds[5:].show()


def test_show_needs_images_and_a_file_name(ds: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no image field"):
        ds.select_columns("x").show()
    with pytest.raises(WriteError, match=r"use \.png or \.jpg"):
        ds.show(1, tmp_path / "page.nothing")


@pytest.mark.parametrize("layout", ["NCHW", "channels_last", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_every_dtype_and_layout_is_shown(ds: Dataset, layout: str, dtype: str) -> None:
    steps = [T.Resize((40, 50)), T.ToDtype(dtype, scale=True), T.Layout(layout)]
    pixels = np.asarray(ds[3:4].transform(image=steps).show(1))
    assert (np.abs(pixels.astype(int) - 120).max(axis=2) <= 1).sum() >= 200 * 250


def test_what_a_callable_makes_is_stretched() -> None:
    values = np.array([[[-1.0, 0.0, 3.0]]], np.float32)
    call = [T.Call(abs)]
    assert to_pixels(values, call, 1)[0, :, 0].tolist() == [0, 64, 255]
    assert to_pixels(np.full((1, 1, 1), 0.5, np.float32), call, 1).item() == 128


def test_grids() -> None:
    pictures = [np.zeros((10, 20, channels), np.uint8) for channels in (1, 2, 3, 4, 5)]
    page = grid(pictures, ["a caption much wider than the picture is, which is cut" * 3, "ü", "漢", "", "e"])
    assert page.width <= 4 * 260


def test_explain(ds: Dataset) -> None:
    view = ds.transform(image=NORMALISED, x=lambda value: value + 1)
    told = view.explain(3, seed=7, epoch=1)
    names = [(step.field, step.name.partition("(")[0]) for step in told.steps]
    assert names == [
        ("image", "read"),
        ("image", "decode JPEG"),
        ("image", "RandomResizedCrop"),
        ("image", "RandomHorizontalFlip"),
        ("image", "ToDtype"),
        ("image", "Normalize"),
        ("label", "read"),
        ("name", "read"),
        ("x", "read"),
        ("x", "Call"),
    ]
    crop = told.steps[2]
    assert crop.result == "uint8 64 x 64 x 3"
    draws = T.Draws(7, 1, 3, 0, 0)
    assert crop.draws[0] == draws.uniform(0)
    assert told.steps[1].result == "uint8 303 x 400 x 3"
    assert all(step.seconds >= 0 for step in told.steps)
    assert told.engine_seconds > 0
    text = str(told)
    assert "Record 3 of" in text
    assert "bytes" in text
    assert "<table>" in told._repr_html_()
    assert "&lt;b&gt;3" in told._repr_html_()


def test_functions_of_whole_samples(ds: Dataset) -> None:
    view = ds[:5].map(lambda sample: {"only": sample["name"]})
    assert np.array_equal(np.asarray(view.show()), np.asarray(ds[:5].show()))
    assert [step.field for step in view.explain(0).steps] == ["image", "image", "label", "name", "x"]


def test_explain_names_what_is_null(ds: Dataset) -> None:
    steps = [step for step in ds.explain(-1).steps if step.field == "image"]
    assert [(step.name, step.result) for step in steps] == [("read", "0 bytes: None")]
    with pytest.raises(IndexError):
        ds.explain(6)


def test_representations(ds: Dataset) -> None:
    assert "Label(class 0, class 1, class 2, … 1,000 classes)" in repr(ds)
    assert len(repr(ds)) < 600
    text = ds.transform(image=T.Resize(9))._repr_html_()
    assert text.count("<img") == 4
    assert "Resize(size=9" in text
    assert "<b>" not in text
    assert "null" in ds[5:]._repr_html_()
    assert "<img" not in ds.select_columns("x")._repr_html_()
    assert "0 records" in ds[:0]._repr_html_()


def test_a_notebook_shows_why_an_image_is_bad(tmp_path: Path) -> None:
    with fastload.Writer(str(tmp_path / "d.fl"), schema={"image": fastload.Image()}) as writer:
        writer.append({"image": b"no <image>"})
    text = fastload.open(str(tmp_path / "d.fl"))._repr_html_()
    assert 'class="bad"' in text
