"""What a conversion looks at in an image file: whether it is one, whether it is whole, how it is oriented."""

from __future__ import annotations

import dataclasses
import io
import struct

from fastload.errors import DecodeError

CHECKS = ("none", "header", "decode")
"""How much of an image is looked at: nothing; headers and the end; every pixel."""

_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


@dataclasses.dataclass(frozen=True)
class ImageFacts:
    """What was found: ``format`` as a file extension; EXIF ``orientation`` 1 to 8, 1 meaning upright."""

    format: str
    width: int
    height: int
    orientation: int = 1


def inspect(data: bytes, check: str = "header") -> ImageFacts:
    """Look at an encoded image and return what it is.

    With ``check="header"`` the headers are read, and JPEG, PNG and WebP files must be there to their end;
    with ``"decode"`` the pixels are decoded too. Raises DecodeError with the cause.

    >>> inspect(b"hello")
    Traceback (most recent call last):
    fastload.errors.DecodeError: not an image: it begins with b'hello'
    """
    if not data:
        raise DecodeError("the file is empty")
    if data[:2] == b"\xff\xd8":
        facts = _inspect_jpeg(data)
    elif data[:8] == b"\x89PNG\r\n\x1a\n":
        facts = _inspect_png(data)
    else:
        facts = _inspect_with_pillow(data)
    if check == "decode":
        _decode(data)
    return facts


def orientation_of_exif(tiff: bytes) -> int:
    """Return the orientation that an EXIF block (from its TIFF header on) states; 1 where it states none.

    >>> orientation_of_exif(bytes.fromhex("4d4d002a 00000008 0001 0112 0003 00000001 0006 0000"))
    6
    """
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 10:
        return 1
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    if start + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for number in range(entries):
        entry = start + 2 + 12 * number
        if entry + 12 > len(tiff):
            break
        tag, kind, _count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == 0x0112 and kind == 3:
            return int(value) if 1 <= value <= 8 else 1
    return 1


def _inspect_jpeg(data: bytes) -> ImageFacts:
    position, end = 2, len(data)
    width = height = 0
    orientation = 1
    while True:
        while position < end and data[position] == 0xFF:
            position += 1
        if position >= end:
            raise DecodeError(f"the JPEG is truncated in its headers ({end} bytes)")
        marker = data[position]
        if data[position - 1] != 0xFF:
            raise DecodeError(f"the JPEG has no marker at byte {position}")
        position += 1
        if marker in _STANDALONE:
            continue
        if marker == 0xD9:
            raise DecodeError("the JPEG ends without an image")
        if position + 2 > end:
            raise DecodeError(f"the JPEG is truncated in its headers ({end} bytes)")
        length = data[position] << 8 | data[position + 1]
        if length < 2 or position + length > end:
            raise DecodeError(f"the JPEG is truncated in its headers ({end} bytes)")
        if marker in _FRAMES and length >= 8:
            height, width = struct.unpack_from(">HH", data, position + 3)
        elif marker == 0xE1 and data[position + 2 : position + 8] == b"Exif\0\0":
            orientation = orientation_of_exif(data[position + 8 : position + length])
        position += length
        if marker == 0xDA:
            break
    if not width:
        raise DecodeError("the JPEG has no frame header")
    # In entropy-coded data FF is followed by 00 or a restart marker, so that FF D9 is the end marker.
    if data.rfind(b"\xff\xd9", position) < 0:
        raise DecodeError(f"the JPEG is truncated: {end} bytes without an end marker")
    return ImageFacts("jpg", width, height, orientation)


def _inspect_png(data: bytes) -> ImageFacts:
    if len(data) < 33 or data[12:16] != b"IHDR":
        raise DecodeError(f"the PNG is truncated in its header ({len(data)} bytes)")
    width, height = struct.unpack_from(">II", data, 16)
    position, orientation = 8, 1
    while position + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, position)
        kind = data[position + 4 : position + 8]
        if kind == b"eXIf":
            orientation = orientation_of_exif(data[position + 8 : position + 8 + length])
        position += 12 + length
        if kind == b"IEND" and position <= len(data):
            return ImageFacts("png", width, height, orientation)
    raise DecodeError(f"the PNG is truncated: {len(data)} bytes without an end chunk")


def _inspect_with_pillow(data: bytes) -> ImageFacts:
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP" and struct.unpack_from("<I", data, 4)[0] + 8 > len(data):
        raise DecodeError(f"the WebP is truncated: it has {len(data)} bytes and states more")
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            extension = {"JPEG": "jpg", "TIFF": "tif", "PPM": "ppm"}.get(str(image.format))
            extension = extension or str(image.format).lower()
            orientation = image.getexif().get(0x0112, 1)
            upright = orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
            return ImageFacts(extension, image.width, image.height, upright)
    except UnidentifiedImageError as error:
        raise DecodeError(f"not an image: it begins with {data[:16]!r}") from error
    except Exception as error:  # Pillow's plugins raise what they like on hostile files.
        raise DecodeError(f"the image cannot be read: {error}") from error


def _decode(data: bytes) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            image.load()
    except Exception as error:  # Pillow's plugins raise what they like on hostile files.
        raise DecodeError(f"the image cannot be decoded: {error}") from error
