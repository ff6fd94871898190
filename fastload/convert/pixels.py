"""Images turned into raw pixels: binary PPM and PGM files, which load without decoding."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import _backend
from fastload.convert.images import inspect
from fastload.errors import DecodeError
from fastload.format.values import encode_pixels
from fastload.schema import Image, Schema
from fastload.transforms import Layout, Operation, Resize, apply_program, decode_image, native_specs

IMAGE_MODES = ("keep", "raw")
"""What a conversion makes of images: the files as they are, or raw pixels."""

Pixels = npt.NDArray[np.uint8]


def _fallback(encoded: Any, channels: int) -> Pixels:
    return decode_image(encoded, "L" if channels == 1 else "RGB")


@functools.lru_cache(maxsize=8)
def _decoder(operations: tuple[Operation, ...], channels: int) -> Callable[[bytes], Pixels]:
    """Return what decodes and resizes an image into HWC pixels: natively where that was built."""
    core = _backend.core()
    specs = native_specs(operations)
    if core is None or specs is None:
        return lambda data: apply_program(operations, _fallback(data, channels), (0, 0, 0, 0))
    program = core.ImageProgram(specs, channels, 0)
    return lambda data: np.asarray(program.run(data, 0, 0, 0, _fallback))


def to_netpbm(data: bytes, mode: str = "RGB", longer_side: int | None = None) -> bytes:
    """Return an encoded image as a binary PPM file (PGM for ``mode`` ``"L"``) of 8 bits.

    An image whose longer side is over ``longer_side`` is reduced to it (bilinear, antialiased), others keep
    their size. Raises DecodeError.

    >>> to_netpbm(b"P5 2 1 255 ab", "L")
    b'P5\\n2 1\\n255\\nab'
    """
    operations: list[Operation] = [Layout("NHWC")]
    if longer_side is not None:
        facts = inspect(data, "none")
        if max(facts.width, facts.height) > longer_side:
            operations.insert(0, Resize(None, max_size=longer_side))
    return encode_pixels(_decoder(tuple(operations), 1 if mode == "L" else 3)(data))


@dataclasses.dataclass(frozen=True)
class RawImages:
    """Makes raw pixels of the images of records."""

    schema: Schema
    longer_side: int | None

    def __call__(self, record: Mapping[str, object]) -> Mapping[str, object]:
        """Return the record with its images as raw pixels. Raises DecodeError, naming the field."""
        images = {name: field for name, field in self.schema.items() if isinstance(field, Image)}
        made: dict[str, object] = {}
        for name, field in images.items():
            data = record.get(name)
            if not isinstance(data, bytes):
                continue  # null, or a record that does not fit: the writer says so
            try:
                made[name] = to_netpbm(data, field.mode or "RGB", self.longer_side)
            except DecodeError as error:
                error.field = name if len(images) > 1 else None
                raise
        return {**record, **made}
