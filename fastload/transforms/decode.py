"""Decoding images with Pillow: the reference of native/image/jpeg.cpp, and its fallback for other codecs."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, UsageError

MAX_PIXELS = 178_956_970
"""The largest image decoded (Pillow's own bound for decompression bombs)."""

CHANNELS = {"RGB": 3, "L": 1}


def _flatten(image: Any, mode: str) -> npt.NDArray[np.uint8]:
    if image.mode.startswith("I;16"):
        # 16 bits per sample: v * 255 / 65535, rounded.
        wide = np.asarray(image).astype(np.uint32)
        gray = ((wide * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(gray[:, :, None], CHANNELS[mode], axis=2)
    if image.mode in ("I", "F"):
        # Pillow reads 16-bit grayscale as I in old versions; 32-bit and float samples have no range to map.
        values = np.asarray(image)
        if image.mode == "F" or (values.size and (values.min() < 0 or values.max() > 65535)):
            raise DecodeError(f"the image has {'float' if image.mode == 'F' else '32-bit'} samples")
        gray = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
        return np.repeat(gray[:, :, None], CHANNELS[mode], axis=2)
    if image.mode == "P" or "transparency" in image.info:
        # The palette first, with its alpha, so that what is dropped below is the alpha alone.
        image = image.convert("RGBA")
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La"):
        image = image.convert("RGBA").convert("RGB") if image.mode != "LA" else image.convert("L")
    if image.mode != mode:
        if mode == "L" and image.mode not in ("1", "RGB"):
            image = image.convert("RGB")
        image = image.convert(mode)
    pixels = np.array(image, np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def image_size(encoded: Any) -> tuple[int, int]:
    """Return the (height, width) of an encoded image, out of its header. Raises DecodeError."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(encoded)) as image:
            return image.height, image.width
    except Exception as error:  # Pillow's plugins raise anything at hostile bytes
        raise DecodeError(f"cannot decode the image: {error or type(error).__name__}") from error


def decode_image(encoded: Any, mode: str = "RGB") -> npt.NDArray[np.uint8]:
    """Decode an image of any format Pillow reads into HWC uint8 pixels, ``mode`` ``"RGB"`` or ``"L"``.

    Grayscale is replicated for RGB; colour becomes luma for L (a JPEG's own Y). CMYK and YCCK are
    converted as Pillow converts them; 16-bit samples are scaled to 8; palettes are looked up; alpha is
    dropped, not blended; an EXIF orientation is not applied; of an animation, the first frame is taken.
    Raises DecodeError for damaged and truncated images, unknown formats, and more than 178,956,970 pixels.

    >>> from PIL import Image; import io
    >>> file = io.BytesIO(); Image.new("L", (3, 2), 7).save(file, "PNG")
    >>> decode_image(file.getvalue()).shape
    (2, 3, 3)
    """
    from PIL import Image

    if mode not in CHANNELS:
        raise UsageError(f"unknown image mode {mode!r}", hint="use RGB or L")
    if len(encoded) == 0:
        raise DecodeError("the image is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DecodeError(
                    f"the image has {image.width} x {image.height} pixels, more than {MAX_PIXELS:,}"
                )
            if mode == "L" and image.format == "JPEG" and image.mode == "RGB":
                image.draft("L", None)
            image.load()
            return _flatten(image, mode)
    except DecodeError:
        raise
    except Exception as error:  # Pillow's plugins raise anything at hostile bytes
        raise DecodeError(f"cannot decode the image: {error or type(error).__name__}") from error
