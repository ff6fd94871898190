"""Decoding with Pillow: every kind of image has one answer."""

from __future__ import annotations

import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from fastload.errors import DecodeError, UsageError
from fastload.transforms import decode, decode_image


def encode(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def rgb():
    return np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "TIFF"])
def test_lossless_formats(rgb, kind):
    encoded = encode(Image.fromarray(rgb), kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert np.array_equal(decode_image(encoded), rgb)
    assert np.array_equal(decode_image(memoryview(encoded)), rgb)


def test_gray_is_replicated(rgb):
    gray = rgb[:, :, 0]
    for kind in ("PNG", "JPEG"):
        pixels = decode_image(encode(Image.fromarray(gray), kind))
        assert pixels.shape == (20, 30, 3)
        assert (pixels[:, :, :1] == pixels).all()
    assert np.array_equal(decode_image(encode(Image.fromarray(gray), "PNG"), "L")[:, :, 0], gray)


def test_colour_to_luma(rgb):
    image = Image.fromarray(rgb)
    assert np.array_equal(decode_image(encode(image, "PNG"), "L")[:, :, 0], np.asarray(image.convert("L")))
    encoded = encode(image, "JPEG", quality=95)
    luma = np.asarray(Image.open(io.BytesIO(encoded)).convert("L")).astype(int)
    assert (
        np.abs(decode_image(encoded, "L")[:, :, 0] - luma).max() <= 40
    )  # its own Y, not that of clipped RGB


def test_alpha_is_dropped_not_blended(rgb):
    rgba = np.dstack([rgb, np.full((20, 30), 3, np.uint8)])
    assert np.array_equal(decode_image(encode(Image.fromarray(rgba), "PNG")), rgb)
    la = Image.merge("LA", (Image.fromarray(rgb[:, :, 0]), Image.fromarray(rgb[:, :, 1])))
    assert np.array_equal(decode_image(encode(la, "PNG"), "L")[:, :, 0], rgb[:, :, 0])


def test_palettes_and_bits(rgb):
    palette = Image.fromarray(rgb).quantize(16)
    assert np.array_equal(decode_image(encode(palette, "PNG")), np.asarray(palette.convert("RGB")))
    assert np.array_equal(
        decode_image(encode(palette, "PNG", transparency=0)), np.asarray(palette.convert("RGB"))
    )
    bits = Image.fromarray(rgb[:, :, 0] > 99)
    assert set(np.unique(decode_image(encode(bits, "PNG")))) == {0, 255}


def test_sixteen_bits_are_scaled():
    wide = np.array([[0, 128, 129, 32768, 65535]], np.uint16)
    expected = [0, 0, 1, 128, 255]
    for kind in ("PNG", "TIFF"):
        assert decode_image(encode(Image.fromarray(wide), kind), "L")[0, :, 0].tolist() == expected


def test_samples_without_a_range_are_refused():
    for array in (np.ones((2, 2), np.float32), np.full((2, 2), 1 << 20, np.int32)):
        with pytest.raises(DecodeError, match="samples"):
            decode_image(encode(Image.fromarray(array), "TIFF"))


def test_cmyk(rgb):
    image = Image.fromarray(rgb).convert("CMYK")
    encoded = encode(image, "JPEG", quality=95)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))
    assert np.array_equal(decode_image(encoded), expected)


def test_exif_orientation_is_not_applied(rgb):
    exif = Image.Exif()
    exif[0x0112] = 6
    assert decode_image(encode(Image.fromarray(rgb), "JPEG", exif=exif)).shape == (20, 30, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_truncated_images_are_refused(rgb, kind):
    encoded = encode(Image.fromarray(rgb), kind, **({"progressive": True} if kind == "JPEG" else {}))
    for size in range(0, len(encoded) - 20, 13):
        with pytest.raises(DecodeError):
            decode_image(encoded[:size])


def test_other_bytes_are_refused():
    for data in (b"", b"hello, this is text", bytes(100)):
        with pytest.raises(DecodeError):
            decode_image(data)


def test_bombs_are_refused(rgb, monkeypatch):
    monkeypatch.setattr(decode, "MAX_PIXELS", 500)
    with pytest.raises(DecodeError, match="30 x 20 pixels"):
        decode_image(encode(Image.fromarray(rgb), "PNG"))


def test_threads_leave_the_filters_of_warnings_alone():
    encoded = encode(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8)), "PNG"
    )
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        assert {pixels.shape for pixels in pool.map(decode_image, [encoded] * 160)} == {(300, 400, 3)}
    assert warnings.filters == before


def test_unknown_mode():
    with pytest.raises(UsageError):
        decode_image(b"x", "YCbCr")
