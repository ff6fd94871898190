from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage

import fastload
from fastload.convert import convert
from fastload.convert.pixels import read_array, to_netpbm
from fastload.errors import DecodeError, RecordError, SourceError, UsageError
from fastload.transforms import Layout, Resize, apply_program, decode_image


def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_pixels_are_kept() -> None:
    pixels = noise(9, 14)
    made = to_netpbm(encode(pixels))
    assert made == b"P6\n14 9\n255\n" + pixels.tobytes()
    with PillowImage.open(io.BytesIO(made)) as image:
        assert np.array_equal(np.asarray(image), pixels)
    assert to_netpbm(encode(pixels), "L").startswith(b"P5\n14 9\n255\n")


@pytest.mark.parametrize(
    ("height", "width", "expected"), [(40, 80, (16, 32)), (64, 33, (32, 16)), (9, 32, (9, 32))]
)
def test_the_longer_side_is_bounded(height: int, width: int, expected: tuple[int, int]) -> None:
    image = encode(noise(height, width), "JPEG")
    made = decode_image(to_netpbm(image, longer_side=32))
    assert made.shape == (*expected, 3)
    if expected != (height, width):
        reduced = [Resize(None, max_size=32), Layout("NHWC")]
        assert np.array_equal(made, apply_program(reduced, decode_image(image), (0, 0, 0, 0)))


def test_what_cannot_be_decoded() -> None:
    with pytest.raises(DecodeError):
        to_netpbm(b"\xff\xd8 no image")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (height, width) in enumerate([(40, 60), (90, 50), (20, 20), (33, 64)]):
        file = tmp_path / "pictures" / ("cat", "dog")[number % 2] / f"{number}.{('jpg', 'png')[number // 2]}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encode(noise(height, width, number), ("JPEG", "PNG")[number // 2]))
    return tmp_path / "pictures"


def test_convert(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "raw.fl", image="raw", size=48, workers=2)
    dataset = fastload.open(str(tmp_path / "raw.fl")).with_format("numpy")
    sizes = [sample["image"].shape for sample in dataset]
    assert sizes == [(3, 32, 48), (3, 20, 20), (3, 48, 26), (3, 24, 48)]
    for sample in dataset:
        pixels = decode_image(
            (folder / ("cat", "dog")[sample["label"]] / sample["path"].split("/")[1]).read_bytes()
        )
        if max(pixels.shape) > 48:
            pixels = apply_program([Resize(None, max_size=48), Layout("NHWC")], pixels, (0, 0, 0, 0))
        assert np.array_equal(sample["image"], pixels.transpose(2, 0, 1))


def test_a_bad_image_is_named_or_skipped(folder: Path, tmp_path: Path) -> None:
    bad = folder / "cat" / "bad.png"
    bad.write_bytes(encode(noise(9, 9))[:-40])
    with pytest.raises(SourceError, match=r"bad\.png"):
        convert(folder, tmp_path / "raw.fl", image="raw", check="none")
    done = convert(folder, tmp_path / "raw.fl", image="raw", check="none", on_bad="skip")
    assert [where.rpartition("/")[2] for where, _ in done.skipped] == ["bad.png"]
    assert done.records == {"default": 4}


def test_a_size_needs_raw_pixels(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="image='raw'"):
        convert(folder, tmp_path / "raw.fl", size=48)
    with pytest.raises(UsageError, match="use one of keep, raw, array"):
        convert(folder, tmp_path / "raw.fl", image="cooked")


def test_arrays_of_any_type(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    draw = np.random.default_rng(1)
    arrays = [draw.integers(0, 65536, (5, 20 + i, 30), np.uint16) for i in range(4)]
    for number, array in enumerate(arrays):
        file = tmp_path / "scans" / ("a", "b")[number // 2] / f"{number}.tif"
        file.parent.mkdir(parents=True, exist_ok=True)
        tifffile.imwrite(file, array, byteorder="<>"[number % 2], photometric="minisblack")
    convert(tmp_path / "scans", tmp_path / "scans.fl", image="array", workers=2)
    dataset = fastload.open(str(tmp_path / "scans.fl")).with_format("numpy")
    assert dataset.schema["image"] == fastload.Ragged("uint16", (None, None, None))
    for sample, array in zip(dataset, arrays, strict=True):
        assert np.array_equal(sample["image"], array)
    (tmp_path / "scans" / "b" / "4.tif").write_bytes(b"II*\0 no TIFF")
    with pytest.raises(SourceError, match=r"4\.tif"):
        convert(tmp_path / "scans", tmp_path / "more.fl", image="array")
    done = convert(tmp_path / "scans", tmp_path / "more.fl", image="array", on_bad="skip")
    assert (done.records, len(done.skipped)) == ({"default": 4}, 1)


def test_arrays_of_one_type(folder: Path, tmp_path: Path) -> None:
    deep = PillowImage.fromarray(np.full((3, 4), 40000, np.uint16))
    deep.save(folder / "dog" / "deep.png")
    with pytest.raises(RecordError, match="deep"):
        convert(folder, tmp_path / "arrays.fl", image="array")
    done = convert(folder, tmp_path / "arrays.fl", image="array", on_bad="skip")
    assert done.records == {"default": 4}
    (folder / "cat" / "0.jpg").write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"0\.jpg"):
        convert(folder, tmp_path / "none.fl", image="array")
    assert read_array((folder / "dog" / "deep.png").read_bytes()).max() == 40000
