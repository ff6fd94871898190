from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from fastload import _backend, _config
from fastload.convert import convert
from fastload.convert.images import inspect
from fastload.convert.jpeg import NO_CORE, JpegMode
from fastload.errors import SourceError, UsageError
from fastload.format import Manifest, SplitReader
from fastload.storage import open_storage

needs_core = pytest.mark.skipif(_backend.core() is None, reason="the compiled core is not in use")


def photograph(seed: int, height: int = 90, width: int = 130) -> PillowImage.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 13, 3), dtype=np.uint8)
    return PillowImage.fromarray(coarse).resize((width, height), PillowImage.Resampling.BICUBIC)


def encode(image: PillowImage.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(PillowImage.open(io.BytesIO(data)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    root.mkdir()
    exif = PillowImage.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description that is no use to training" * 20
    (root / "0.jpg").write_bytes(encode(photograph(0), quality=92))
    (root / "1.jpg").write_bytes(encode(photograph(1), quality=92, exif=exif, icc_profile=b"i" * 3000))
    (root / "2.jpg").write_bytes(encode(photograph(2), quality=92, progressive=True))
    damaged = encode(photograph(3), quality=80)
    (root / "3.jpg").write_bytes(damaged[:-200] + b"\xff\xd0" + damaged[-198:])
    (root / "4.jpg").write_bytes(encode(photograph(4).convert("CMYK"), quality=92))
    photograph(5).save(root / "5.png")
    return root


def stored(path: Path) -> list[bytes]:
    storage = open_storage(path)
    manifest = Manifest.load(storage)
    reader = SplitReader(storage, manifest, next(iter(manifest.splits)), verify="always")
    return [reader.value(record, "image") for record in range(reader.records)]  # type: ignore[misc]


@needs_core
@pytest.mark.parametrize("workers", [1, 2])
def test_segments_are_lossless_and_counted(folder: Path, tmp_path: Path, workers: int) -> None:
    done = convert(folder, tmp_path / "p.fl", workers=workers)
    found = stored(tmp_path / "p.fl")
    sources = [file.read_bytes() for file in sorted(folder.iterdir())]
    for source, result in zip(sources, found, strict=True):
        assert np.array_equal(pixels(source), pixels(result))
        assert len(result) <= len(source)
    assert found[3] == sources[3]
    assert found[5] == sources[5]
    for number in (0, 1, 2, 4):
        assert b"\xff\xdd\x00\x04" in found[number]  # a restart interval
        assert b"\xff\xc2" not in found[number][:700]  # no progressive frame
    assert inspect(found[1]).orientation == 6
    assert b"description" not in found[1]
    assert b"ICC_PROFILE" not in found[1]
    assert done.oriented == 1
    assert done.jpeg is not None
    assert done.jpeg.images == 5
    assert done.jpeg.bytes_before == sum(map(len, sources[:5]))
    assert done.jpeg.bytes_after == sum(map(len, found[:5]))
    assert done.jpeg.kept == {"damaged": 1}


@needs_core
def test_a_colour_profile_is_kept_on_request(folder: Path, tmp_path: Path) -> None:
    core = _backend.core()
    assert core is not None
    data, reason = core.segment_jpeg((folder / "1.jpg").read_bytes(), keep_icc=True)
    assert reason is None
    assert PillowImage.open(io.BytesIO(data)).info["icc_profile"] == b"i" * 3000
    assert core.segment_jpeg(b"text") == (None, "damaged")
    for jpeg in ("segment", "encode 60 64"):
        for icc in (False, True):
            convert(folder, tmp_path / "p.fl", jpeg=jpeg, icc=icc, mode="overwrite")
            found = [PillowImage.open(io.BytesIO(data)).info for data in stored(tmp_path / "p.fl")]
            assert [info.get("icc_profile") for info in found[:3]] == [
                None,
                b"i" * 3000 if icc else None,
                None,
            ]
            assert inspect(stored(tmp_path / "p.fl")[1]).orientation == 6


def test_keep(folder: Path, tmp_path: Path) -> None:
    done = convert(folder, tmp_path / "p.fl", jpeg="keep")
    assert stored(tmp_path / "p.fl") == [file.read_bytes() for file in sorted(folder.iterdir())]
    assert done.jpeg is not None
    assert done.jpeg.bytes_before == done.jpeg.bytes_after
    assert not done.jpeg.kept


@pytest.mark.parametrize("core", [pytest.param(True, marks=needs_core), False])
def test_encode(folder: Path, tmp_path: Path, core: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not core:
        monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    done = convert(folder, tmp_path / "p.fl", jpeg="encode 60 64")
    sources, found = sorted(folder.iterdir()), stored(tmp_path / "p.fl")
    for data in found[:5]:
        assert PillowImage.open(io.BytesIO(data)).size == (64, 44)
        assert (b"\xff\xdd\x00\x04" in data) == core
    assert found[5] == sources[5].read_bytes()
    assert inspect(found[1]).orientation == 6
    assert (NO_CORE in done.notes) != core
    # An image that would only become larger stays as it was, but for the segments.
    convert(folder, tmp_path / "q.fl", jpeg="encode 100")
    assert np.array_equal(pixels(stored(tmp_path / "q.fl")[0]), pixels(sources[0].read_bytes()))


def test_without_the_core_images_are_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    assert _config.backend_choice() == "python"
    done = convert(folder, tmp_path / "p.fl")
    assert NO_CORE in done.notes
    assert stored(tmp_path / "p.fl")[0] == (folder / "0.jpg").read_bytes()
    assert NO_CORE not in convert(folder, tmp_path / "q.fl", jpeg="keep").notes


def test_an_image_that_cannot_be_encoded_anew_is_a_bad_record(folder: Path, tmp_path: Path) -> None:
    data = bytearray(encode(photograph(7), quality=90))
    table = data.find(b"\xff\xc4")
    data[table + 5 : table + 21] = b"\xff" * 16  # more codes than there can be
    (folder / "1.jpg").write_bytes(data)
    with pytest.raises(SourceError, match="encoded anew") as caught:
        convert(folder, tmp_path / "p.fl", jpeg="encode 60", workers=1)
    assert caught.value.path == str(folder / "1.jpg")
    done = convert(folder, tmp_path / "p.fl", jpeg="encode 60", on_bad="skip")
    assert done.records == {"default": 5}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "segments",
        "segment 4",
        "encode",
        "encode x",
        "encode 0",
        "encode 101",
        "encode 90 0",
        "encode 1 2 3",
    ],
)
def test_bad_modes(text: str) -> None:
    with pytest.raises(UsageError, match="jpeg is"):
        JpegMode.parse(text)


def test_modes() -> None:
    assert JpegMode.parse("segment") == JpegMode("segment")
    assert JpegMode.parse("segment", icc=True) == JpegMode("segment", icc=True)
    assert JpegMode.parse("encode 90") == JpegMode("encode", 90)
