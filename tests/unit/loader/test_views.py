"""Several views of one field, and one transform of several fields."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image as PillowImage

import fastload
from fastload import DataLoader
from fastload import transforms as T
from fastload.dataset import Dataset
from fastload.errors import RecordError, UsageError

COUNT = 20
SCHEMA = {
    "image": fastload.Image(),
    "mask": fastload.Image("L"),
    "array": fastload.Ragged("int32", (None, None)),
    "stack": fastload.Ragged("bool", (2, None, None)),
    "boxes": fastload.Ragged("float32", (None, 4)),
    "label": fastload.Label(["a", "b"]),
}


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return pictures with a rectangle each: drawn in the image and the masks, and given as a box."""
    path = str(tmp_path_factory.mktemp("scenes") / "d.fl")
    with fastload.Writer(path, schema=SCHEMA) as writer:
        for i in range(COUNT):
            height, width = 60 + i, 80 - i
            mask = np.zeros((height, width), np.uint8)
            top, left, bottom, right = 10 + i // 2, 15, 45, 50 - i // 2
            mask[top:bottom, left:right] = 255
            boxes = np.array([[left, top, right, bottom], [0, 0, 2, 2]], np.float32)[: 1 + i % 2]
            image = _png(np.repeat(mask[:, :, None], 3, axis=2))
            writer.append(
                {
                    "image": image,
                    "mask": _png(mask),
                    "array": mask.astype(np.int32) * 1000,
                    "stack": np.stack([mask > 0, mask == 0]),
                    "boxes": boxes,
                    "label": i % 2,
                }
            )
    return path


FIELDS = ("image", "mask", "array", "stack", "boxes")
JOINT = [T.Resize((70, 90)), T.RandomResizedCrop(48, scale=(0.5, 1)), T.RandomHorizontalFlip()]


def _agree(sample: dict[str, Any]) -> None:
    """Check that what the fields show is at one place."""
    image, mask, array, stack = (sample[name] for name in FIELDS[:4])
    assert mask.shape[0] == 1
    assert array.shape == mask.shape[1:] == image.shape[1:] == stack.shape[1:]
    assert torch.equal(array, mask[0].int() * 1000)
    assert torch.equal(stack[0], mask[0] > 0)
    assert torch.equal(stack[1], mask[0] == 0)
    assert set(mask.unique().tolist()) <= {0, 255}
    assert ((image[0] > 127) != (mask[0] > 127)).float().mean() < 0.12
    left, top, right, bottom = sample["boxes"][0].tolist()
    height, width = image.shape[1:]
    assert 0 <= left <= right <= width
    assert 0 <= top <= bottom <= height
    inside = mask[0, round(top) : round(bottom), round(left) : round(right)]
    assert abs(inside.numel() - (mask > 0).sum()) <= 2 * (height + width)
    assert (inside > 0).float().mean() > 0.85 or inside.numel() < 100


@pytest.mark.parametrize("operations", [JOINT, [T.Resize(64), T.CenterCrop((50, 90))], [T.Resize((33, 41))]])
def test_fields_move_together(backend: str, scenes: str, operations: list[Any]) -> None:
    ds = fastload.open(scenes).transform({FIELDS: operations})
    for i in range(COUNT):
        sample = ds.sample(i, seed=3)
        if not isinstance(operations[-1], T.CenterCrop):
            _agree(sample)
        assert len(sample["boxes"]) == 1 + i % 2  # empty ones stay
    batch = next(iter(DataLoader(ds, batch_size=COUNT, num_workers=2)))
    assert batch["mask"].shape[0] == batch["array"].shape[0] == COUNT
    assert [len(boxes) for boxes in batch["boxes"]] == [1 + i % 2 for i in range(COUNT)]
    padded = next(iter(DataLoader(ds.with_ragged(boxes="pad"), batch_size=COUNT)))
    assert padded["boxes"].shape == (COUNT, 2, 4)


def test_colours_are_the_images_alone(backend: str, scenes: str) -> None:
    fields = ("image", "mask")
    floats = [*JOINT, T.ToDtype("float32", scale=True), T.Normalize([0.5], [0.5])]
    ds = fastload.open(scenes).select_columns(fields)
    batch = next(iter(DataLoader(ds.transform({fields: floats}), batch_size=COUNT, seed=1)))
    assert batch["image"].dtype == torch.float32
    assert batch["mask"].dtype == torch.uint8
    later = ds.transform({fields: JOINT}).transform(image=floats[3:])
    other = next(iter(DataLoader(later, batch_size=COUNT, seed=1)))
    assert torch.equal(batch["image"], other["image"])
    assert torch.equal(batch["mask"], other["mask"])
    loader = DataLoader(later, batch_size=COUNT)
    next(iter(loader))
    assert loader.stats()["engine"] == backend
    last = ds.transform({fields: [*JOINT, T.Layout("NHWC")]})[0]
    assert last["mask"].shape == (48, 48, 1)


def test_boxes_follow_exactly(backend: str, scenes: str) -> None:
    ds = fastload.open(scenes)
    boxes = ds[0]["boxes"]
    half = ds.transform({("image", "boxes"): [T.Resize((30, 40))]})[0]["boxes"]
    assert torch.allclose(half, boxes / 2)
    flipped = ds.transform({("image", "boxes"): [T.RandomHorizontalFlip(1.0)]})[0]["boxes"]
    assert flipped[0].tolist() == [80 - 50, 10, 80 - 15, 45]
    cropped = ds.transform({("image", "boxes"): [T.CenterCrop(20)]})[1]["boxes"]
    assert cropped.tolist() == [[0, 0, 20, 20], [0, 0, 0, 0]]  # clipped; the second is empty
    wider = ds.transform({("image", "boxes"): [T.CenterCrop((60, 100))]})[0]["boxes"]
    assert wider[0].tolist() == [25, 10, 60, 45]


def test_what_cannot_move_together(backend: str, scenes: str) -> None:
    ds = fastload.open(scenes)
    for fields, operations, message in [
        (("mask", "label"), [T.Resize(8)], "cannot be transformed together"),
        (("array", "boxes"), [T.Resize(8)], "no Image field"),
        (("image", "mask"), [lambda x: x], "cannot move masks and boxes"),
        (("image", "nothing"), [T.Resize(8)], "no field 'nothing'"),
    ]:
        with pytest.raises(UsageError, match=message):
            ds.transform({fields: operations})
    with pytest.raises(UsageError, match="before other transforms"):
        ds.transform(image=[T.Resize(8)]).transform({("image", "mask"): [T.Resize(8)]})


def test_masks_of_another_size_are_bad_records(backend: str, tmp_path: Any) -> None:
    path = str(tmp_path / "d.fl")
    schema = {"image": fastload.Image(), "mask": fastload.Tensor("uint8", (4, 5))}
    with fastload.Writer(path, schema=schema) as writer:
        writer.append({"image": _png(np.zeros((6, 5, 3), np.uint8)), "mask": np.zeros((4, 5), np.uint8)})
    ds = fastload.open(path).transform({("image", "mask"): [T.Resize((8, 8))]})
    with pytest.raises(RecordError, match=r"the mask is \(4, 5\), its image 'image' \(6, 5\)"):
        ds[0]


@pytest.mark.parametrize("operations", [[T.Resize((8, 8))], [T.RandomHorizontalFlip()]])
@pytest.mark.parametrize("fields", [("image", "mask"), ("mask", "image")])
def test_mask_images_of_another_size_are_bad_records(
    backend: str, tmp_path: Any, operations: list[T.Operation], fields: tuple[str, ...]
) -> None:
    path = str(tmp_path / "d.fl")
    nullable = fastload.Image(nullable=True)
    with fastload.Writer(path, schema={"image": nullable, "mask": fastload.Image("L")}) as writer:
        for height, width in [(6, 5), (6, 5), (4, 5), (6, 5)]:
            image, mask = np.zeros((6, 5, 3), np.uint8), np.zeros((height, width), np.uint8)
            writer.append({"image": _png(image), "mask": _png(mask)})
        writer.append({"image": None, "mask": _png(np.zeros((3, 5), np.uint8))})
    stored = fastload.open(path)
    ds = stored.transform({("image", "mask"): operations}).select_columns(fields)
    assert ds[1]["mask"].shape[0] == 1
    assert ds[4]["image"] is None
    for called in (ds, ds.transform(image=[lambda image: image])):
        with pytest.raises(RecordError, match=r"the mask is \(4, 5\), its image 'image' \(6, 5\)") as caught:
            called[2]
        assert (caught.value.record, caught.value.field) == (2, "mask")
        for workers in (0, 2):
            with pytest.raises(RecordError, match=r"record 2.*field 'mask'"):
                list(DataLoader(called, batch_size=4, num_workers=workers))
    skipping = DataLoader(ds, batch_size=2, num_workers=1, on_error="skip")
    with pytest.warns(UserWarning, match="the mask is"):
        assert [len(batch["mask"]) for batch in skipping] == [2, 1, 1]
    assert ds.select_columns("mask")[2]["mask"].shape[0] == 1  # no image to compare with


VIEWS = {
    "global": (2, [T.RandomResizedCrop(32, scale=(0.4, 1.0)), T.RandomHorizontalFlip()]),
    "local": (3, [T.RandomResizedCrop(16), T.ToDtype("float32", scale=True)]),
}


def test_views(backend: str, scenes: str) -> None:
    ds = fastload.open(scenes).select_columns(["image", "label"]).transform(image=T.MultiView(VIEWS))
    assert list(ds.schema) == ["global", "local", "label"]
    sample = ds[0]
    assert list(sample) == ["global", "local", "label"]
    assert [tuple(view.shape) for view in sample["global"]] == [(3, 32, 32)] * 2
    assert sample["local"][2].dtype == torch.float32
    loader = DataLoader(ds, batch_size=4, shuffle=True, seed=1, num_workers=2)
    batch = next(iter(loader))
    assert [tuple(view.shape) for view in batch["local"]] == [(4, 3, 16, 16)] * 3
    assert not torch.equal(*batch["global"])  # each draws for itself
    assert loader.stats()["engine"] == backend
    label, views = next(iter(DataLoader(ds.as_tuple("label", "local"), batch_size=2)))
    assert label.tolist() == [0, 1]
    assert len(views) == 3
    single = ds.sample(3, seed=1, position=0)["local"][1]
    assert torch.equal(single, ds.sample(3, seed=1, position=0)["local"][1])
    assert "global" in repr(ds)
    assert str(ds.explain(0))
    mapped = ds.map(lambda sample: {"first": sample["global"][0]})
    assert next(iter(DataLoader(mapped, batch_size=5)))["first"].shape == (5, 3, 32, 32)


def test_what_views_refuse(backend: str, scenes: str) -> None:
    ds = fastload.open(scenes)
    with pytest.raises(UsageError, match="for Image fields"):
        ds.transform(boxes=T.MultiView(VIEWS))
    with pytest.raises(UsageError, match="a field 'label' already"):
        ds.transform(image=T.MultiView({"label": (1, [])}))
    with pytest.raises(UsageError, match="before other transforms"):
        ds.transform(image=[T.Resize(8)]).transform(image=T.MultiView(VIEWS))
    with pytest.raises(UsageError, match="is a view"):
        ds.transform(image=T.MultiView(VIEWS)).transform(local=[T.Resize(8)])
    for wrong in ({}, {"a": 3}, {"a": (0, [])}, {"a": ("x", [])}):
        with pytest.raises(UsageError, match=r"MultiView|\(count, operations\)"):
            T.MultiView(wrong)  # type: ignore[arg-type]
    same = ds.transform(image=T.MultiView({"image": (2, [T.Resize((8, 8))])}))
    assert len(same[0]["image"]) == 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.integers(1, 3), ahead=st.integers(1, 5), size=st.integers(1, 7), seed=st.integers(0, 1 << 60)
)
def test_the_same_at_any_num_workers(
    backend: str, scenes: str, workers: int, ahead: int, size: int, seed: int
) -> None:
    joint = fastload.open(scenes).transform({FIELDS: JOINT})
    views = fastload.open(scenes).select_columns("image").transform(image=T.MultiView(VIEWS))

    def load(ds: Dataset, **options: Any) -> list[Any]:
        return list(DataLoader(ds, batch_size=size, shuffle=True, seed=seed, **options))

    for ds in (joint, views):
        for one, other in zip(load(ds), load(ds, num_workers=workers, prefetch_factor=ahead), strict=True):
            for name in one:
                for a, b in zip(one[name], other[name], strict=True):
                    assert torch.equal(a, b)
