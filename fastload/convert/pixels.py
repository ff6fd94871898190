"""Images turned into raw pixels (binary PPM and PGM files, which load without decoding) or into arrays."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload import _backend
from fastload.convert.images import inspect
from fastload.convert.source import Record, Source
from fastload.errors import DecodeError, SourceError
from fastload.format.values import encode_pixels
from fastload.schema import DTYPE_BYTES, Field, Image, Ragged, Schema
from fastload.transforms import Layout, Operation, Resize, apply_program, decode_image, native_specs

IMAGE_MODES = ("keep", "raw", "array")
"""What a conversion makes of images: the files as they are, raw pixels, or arrays of their own values."""

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

    def __call__(self, record: Record) -> Record:
        """Return the record with its images as raw pixels. Raises DecodeError, naming the field."""
        return _each_image(
            self.schema, record, lambda data, field: to_netpbm(data, field.mode or "RGB", self.longer_side)
        )


def _each_image(schema: Schema, record: Record, make: Callable[[bytes, Image], object]) -> Record:
    """Return the record with what ``make`` makes of each image."""
    images = {name: field for name, field in schema.items() if isinstance(field, Image)}
    made: dict[str, object] = {}
    for name, field in images.items():
        data = record.get(name)
        if not isinstance(data, bytes):
            continue  # null, or a record that does not fit: the writer says so
        try:
            made[name] = make(data, field)
        except DecodeError as error:
            error.field = name if len(images) > 1 else None
            raise
    return {**record, **made}


def read_array(data: bytes) -> npt.NDArray[Any]:
    """Return the values of an image file as they are stored: of any depth, with any channels or pages.

    TIFF files are read by tifffile, others by Pillow. Raises DecodeError, and SourceError without tifffile.

    >>> read_array(b"P5 2 1 255 ab")
    array([[97, 98]], dtype=uint8)
    """
    try:
        array = _decode_array(data)
    except ImportError as error:
        raise SourceError(
            "TIFF files are read as arrays by tifffile, which is not installed",
            hint="pip install fastload[tiff]",
        ) from error
    except Exception as error:  # both libraries raise what they like on hostile files
        raise DecodeError(f"the image cannot be read as an array: {error}") from error
    if array.ndim < 2 or not array.size:
        raise DecodeError(f"the image holds no pixels: its shape is {array.shape}")
    return array


def _decode_array(data: bytes) -> npt.NDArray[Any]:
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        import tifffile

        return np.asarray(tifffile.imread(io.BytesIO(data)))
    from PIL import Image as PillowImage

    with PillowImage.open(io.BytesIO(data)) as image:
        return np.asarray(image)


@dataclasses.dataclass(frozen=True)
class ArrayImages:
    """Makes arrays of the images of records."""

    schema: Schema

    def __call__(self, record: Record) -> Record:
        """Return the record with its images as arrays. Raises DecodeError, naming the field."""
        return _each_image(self.schema, record, lambda data, _field: read_array(data))


def _array_schema(schema: Schema, record: Record) -> Schema:
    """Return the schema with Ragged fields of the first record's dtype and dimensions for images."""
    fields: dict[str, Field] = dict(schema)
    for name, array in ArrayImages(schema)(record).items():
        if not isinstance(schema[name], Image):
            continue
        if not isinstance(array, np.ndarray) or array.dtype.name not in DTYPE_BYTES:
            raise SourceError(
                f"the first image says nothing of the arrays' type: it is {getattr(array, 'dtype', array)!r}",
                field=name,
                hint="store images as files (--image keep)",
            )
        shape = (None,) * array.ndim
        fields[name] = Ragged(array.dtype.name, shape, nullable=schema[name].nullable)
    return Schema(fields)


def image_step(
    source: Source, image: str, size: int | None, shard_bytes: int
) -> tuple[Schema, RawImages | ArrayImages | None]:
    """Return the schema that a conversion writes, and what is done to the images of each record.

    Arrays have the type of the first record's. Raises SourceError where that cannot be read.
    """
    if image == "raw":
        return source.schema, RawImages(source.schema, size)
    if image == "keep":
        return source.schema, None
    for name in source.split_names():
        for partition in source.partitions(name, shard_bytes):
            for where, record in partition.read():
                if isinstance(record, SourceError):
                    raise record
                try:
                    return _array_schema(source.schema, record), ArrayImages(source.schema)
                except DecodeError as error:
                    raise SourceError(error.message, path=where, field=error.field) from error
    return source.schema, None
