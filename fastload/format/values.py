"""One value of a field to its payload bytes and back (docs/format.md section 3)."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from fastload.errors import DecodeError, RecordError
from fastload.format.arrays import as_array
from fastload.format.protocols import BytesLike
from fastload.schema import (
    Audio,
    Bytes,
    Field,
    Image,
    Json,
    Label,
    Ragged,
    Scalar,
    Str,
    StrList,
    Tensor,
    Video,
)

__all__ = ["decode_value", "encode_pixels", "encode_value"]


def encode_value(field: Field, value: object) -> BytesLike:
    """Return the payload of ``value``, before any codec. None is the caller's to handle.

    Numbers and arrays may be Python's, NumPy's or torch's; a label is an index or a class name; images,
    audio and video are encoded files as bytes, images also uint8 pixels (height, width, channels).
    Raises RecordError, without record and field, where the value does not fit.

    >>> encode_value(Scalar("int16"), 258)
    b'\\x02\\x01'
    """
    if value is None:
        raise RecordError("the value is None, but the field is not nullable", hint="declare it nullable=True")
    return _ENCODERS[type(field)](field, value)


def decode_value(field: Field, data: BytesLike) -> Any:
    """Return the value of a payload.

    Scalar gives a NumPy scalar, Label an int, Tensor and Ragged read-only arrays over ``data`` (bfloat16 as
    uint16 bits), Str str, StrList a list of str, Json what it holds, all others bytes.
    Raises DecodeError where the payload contradicts the field.

    >>> decode_value(Label(["cat", "dog"]), bytes([1, 0, 0, 0, 0, 0, 0, 0]))
    1
    """
    return _DECODERS[type(field)](field, memoryview(data))


def _encode_array(field: Any, value: object) -> BytesLike:
    array = as_array(value, field.dtype)
    if array.shape != field.item_shape:
        raise RecordError(f"the shape is {array.shape}, the schema says {field.item_shape}")
    return array.tobytes() if array.nbytes <= 4096 else _bytes_of(array)


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _encode_label(field: Label, value: object) -> bytes:
    if isinstance(value, str):
        try:
            index = field.classes.index(value)
        except ValueError:
            raise RecordError(f"{value!r} is not one of the {len(field.classes)} classes") from None
    else:
        array = as_array(value, "int64")
        if array.shape != ():
            raise RecordError(f"a label of shape {array.shape}", hint="give one index or one class name")
        index = int(array)
    if not 0 <= index < len(field.classes):
        raise RecordError(f"the label {index} is outside the {len(field.classes)} classes")
    return struct.pack("<q", index)


def _encode_ragged(field: Ragged, value: object) -> BytesLike:
    array = as_array(value, field.dtype)
    free = field.free_dimensions
    if array.size == 0 and array.ndim == 1 and len(field.shape) > 1 and len(free) == 1:
        array = array.reshape([size or 0 for size in field.shape])  # [] says nothing of inner dimensions
    fits = array.ndim == len(field.shape) and all(
        size is None or size == actual for size, actual in zip(field.shape, array.shape, strict=True)
    )
    if not fits:
        raise RecordError(f"the shape is {array.shape}, the schema says {field.shape}")
    if len(free) == 1:
        return array.tobytes() if array.nbytes <= 4096 else _bytes_of(array)
    return struct.pack(f"<{len(free)}Q", *(array.shape[i] for i in free)) + array.tobytes()


def _encode_bytes(field: Field, value: object) -> BytesLike:
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)) or (
        isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1
    ):
        return bytes(value)  # a copy: the owner may change it before it is written
    hint = "give the bytes of the encoded file" if not isinstance(field, Bytes) else None
    raise RecordError(f"a {type(value).__name__} where bytes are asked for", hint=hint)


def encode_pixels(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return uint8 ``pixels`` (height, width, 1 or 3) as a binary PGM or PPM file.

    >>> encode_pixels(np.full((1, 2, 1), 65, np.uint8))
    b'P5\\n2 1\\n255\\nAA'
    """
    height, width, channels = pixels.shape
    return b"P%d\n%d %d\n255\n" % (5 if channels == 1 else 6, width, height) + pixels.tobytes()


def _encode_image(field: Image, value: object) -> BytesLike:
    if not isinstance(value, (bytes, bytearray, memoryview)) and len(getattr(value, "shape", ())) == 3:
        channels = 1 if field.mode == "L" else 3
        pixels = as_array(value, "uint8")
        if pixels.shape[2] != channels or not pixels.size:
            raise RecordError(f"pixels of shape {pixels.shape}", hint=f"give (height, width, {channels})")
        return encode_pixels(pixels)
    return _encode_bytes(field, value)


def _text(value: object) -> bytes:
    if not isinstance(value, str):
        raise RecordError(f"a {type(value).__name__} where text is asked for")
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RecordError(f"text that cannot be written as UTF-8: {error}") from error


def _encode_str(field: Str, value: object) -> bytes:
    return _text(value)


def _encode_str_list(field: StrList, value: object) -> bytes:
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"a {type(value).__name__} where a list of texts is asked for")
    texts = [_text(item) for item in value]
    ends = np.cumsum([len(text) for text in texts], dtype="<u8") if texts else np.zeros(0, "<u8")
    return struct.pack("<Q", len(texts)) + ends.astype("<u8").tobytes() + b"".join(texts)


def _encode_json(field: Json, value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise RecordError(f"not representable as JSON: {error}") from error


def _decode_array(field: Any, data: memoryview) -> Any:
    array = np.frombuffer(data, dtype=field.numpy_dtype) if len(data) else np.zeros(0, field.numpy_dtype)
    _check_bool(field.dtype, array)
    if len(data) != field.item_bytes:
        raise DecodeError(f"{len(data)} bytes where the schema says {field.item_bytes}")
    return array[0] if isinstance(field, Scalar) else _read_only(array.reshape(field.item_shape))


def _check_bool(dtype: str, array: np.ndarray[Any, Any]) -> None:
    if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise DecodeError("a bool is neither 0 nor 1")


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def _decode_label(field: Label, data: memoryview) -> int:
    if len(data) != 8:
        raise DecodeError(f"a label of {len(data)} bytes")
    index = int.from_bytes(data, "little", signed=True)
    if not 0 <= index < len(field.classes):
        raise DecodeError(f"the label {index} is outside the {len(field.classes)} classes")
    return index


def _decode_ragged(field: Ragged, data: memoryview) -> Any:
    free = field.free_dimensions
    shape = [size or 0 for size in field.shape]
    if len(free) == 1:
        if len(data) % field.inner_bytes:
            raise DecodeError(
                f"{len(data)} bytes are no multiple of the {field.inner_bytes} of the fixed dimensions"
            )
        shape[free[0]] = len(data) // field.inner_bytes
    else:
        head = 8 * len(free)
        if len(data) < head:
            raise DecodeError("the value is shorter than its dimensions")
        sizes = struct.unpack_from(f"<{len(free)}Q", data)
        for dimension, size in zip(free, sizes, strict=True):
            shape[dimension] = size
        data = data[head:]
        fits = math.prod(sizes) * field.inner_bytes == len(data) and max(sizes) < 1 << 62
        if not fits:
            raise DecodeError(f"{len(data)} bytes do not fit the shape {tuple(shape)}")
    array = np.frombuffer(data, dtype=field.numpy_dtype) if len(data) else np.zeros(0, field.numpy_dtype)
    _check_bool(field.dtype, array)
    try:
        return _read_only(array.reshape(shape))
    except ValueError as error:  # an empty array whose other dimensions are absurd
        raise DecodeError(f"the shape {tuple(shape)} is impossible: {error}") from error


def _decode_bytes(field: Field, data: memoryview) -> bytes:
    return bytes(data)


def _decode_text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError(f"text that is not UTF-8: {error}") from error


def _decode_str(field: Str, data: memoryview) -> str:
    return _decode_text(data)


def _decode_str_list(field: StrList, data: memoryview) -> list[str]:
    count = int.from_bytes(data[:8], "little")
    if len(data) < 8 or count > (len(data) - 8) // 8:
        raise DecodeError(f"{len(data)} bytes cannot hold a list of {count} texts")
    ends = np.frombuffer(data, dtype="<u8", count=count, offset=8).tolist()
    text = data[8 + 8 * count :]
    starts = [0, *ends[:-1]]
    if (ends[-1] if ends else 0) != len(text) or any(a > b for a, b in zip(starts, ends, strict=False)):
        raise DecodeError("the ends of a list of texts contradict its length")
    return [_decode_text(text[a:b]) for a, b in zip(starts, ends, strict=False)]


def _decode_json(field: Json, data: memoryview) -> Any:
    try:
        return json.loads(_decode_text(data))
    except (ValueError, RecursionError) as error:
        if isinstance(error, DecodeError):
            raise
        raise DecodeError(f"not JSON: {error}") from error


_ENCODERS: dict[type[Field], Callable[[Any, object], BytesLike]] = {
    Scalar: _encode_array,
    Label: _encode_label,
    Tensor: _encode_array,
    Ragged: _encode_ragged,
    Bytes: _encode_bytes,
    Str: _encode_str,
    StrList: _encode_str_list,
    Json: _encode_json,
    Image: _encode_image,
    Audio: _encode_bytes,
    Video: _encode_bytes,
}

_DECODERS: dict[type[Field], Callable[[Any, memoryview], Any]] = {
    Scalar: _decode_array,
    Label: _decode_label,
    Tensor: _decode_array,
    Ragged: _decode_ragged,
    Bytes: _decode_bytes,
    Str: _decode_str,
    StrList: _decode_str_list,
    Json: _decode_json,
    Image: _decode_bytes,
    Audio: _decode_bytes,
    Video: _decode_bytes,
}
