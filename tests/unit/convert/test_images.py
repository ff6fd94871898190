from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

from fastload.convert.images import inspect
from fastload.errors import DecodeError

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def encode(kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    PillowImage.fromarray(PIXELS).save(buffer, kind, **options)
    return buffer.getvalue()


def with_orientation(kind: str, value: int) -> bytes:
    image = PillowImage.fromarray(PIXELS)
    exif = image.getexif()
    exif[0x0112] = value
    buffer = io.BytesIO()
    image.save(buffer, kind, exif=exif.tobytes())
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "extension", "options"),
    [
        ("JPEG", "jpg", {}),
        ("JPEG", "jpg", {"progressive": True}),
        ("JPEG", "jpg", {"restart_marker_rows": 1}),
        ("PNG", "png", {}),
        ("WEBP", "webp", {}),
        ("BMP", "bmp", {}),
        ("TIFF", "tif", {}),
        ("PPM", "ppm", {}),
        ("GIF", "gif", {}),
    ],
)
@pytest.mark.parametrize("check", ["header", "decode"])
def test_says_what_an_image_is(kind: str, extension: str, options: dict[str, Any], check: str) -> None:
    facts = inspect(encode(kind, **options), check)
    assert (facts.format, facts.width, facts.height, facts.orientation) == (extension, 60, 40, 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_reads_the_orientation(kind: str, orientation: int) -> None:
    assert inspect(with_orientation(kind, orientation)).orientation == orientation


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_every_truncation_is_noticed(kind: str) -> None:
    whole = encode(kind)
    for length in {*range(0, 700, 13), *range(len(whole) - 5, len(whole))}:
        if length < len(whole) - 1:  # a WebP may end in one byte of padding
            with pytest.raises(DecodeError):
                inspect(whole[:length])


def test_the_end_of_a_thumbnail_is_not_the_end_of_the_image() -> None:
    whole = encode("JPEG")
    thumbnail = encode("JPEG", quality=5)
    segment = b"\xff\xe2" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    nested = whole[:2] + segment + whole[2:]
    assert inspect(nested).width == 60
    with pytest.raises(DecodeError, match="truncated"):
        inspect(nested[:-200])


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "the file is empty"),
        (b"this is text, named .jpg", "not an image: it begins with b'this is text"),
        (b"\xff\xd8\xff\xd9", "ends without an image"),
        (b"\xff\xd8\xff\xdb\x00", "truncated in its headers"),
        (b"\xff\xd8\xff\xda\x00\x02\xff\xd9", "no frame header"),
        (b"\xff\xd8garbage garbage", "no marker"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "truncated in its header"),
    ],
)
def test_says_why_not(data: bytes, cause: str) -> None:
    with pytest.raises(DecodeError, match=cause):
        inspect(data)


def test_decoding_finds_what_headers_hide() -> None:
    whole = encode("PNG")
    begin = whole.index(b"IDAT") + 4
    broken = whole[:begin] + bytes(20) + whole[begin + 20 :]
    assert inspect(broken).format == "png"
    with pytest.raises(DecodeError, match="cannot be decoded"):
        inspect(broken, "decode")


def test_hostile_exif_is_upright() -> None:
    whole = encode("JPEG")
    for body in (b"", b"II*\0", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff", b"??" + bytes(30)):
        exif = b"Exif\0\0" + body
        segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
        assert inspect(whole[:2] + segment + whole[2:]).orientation == 1
