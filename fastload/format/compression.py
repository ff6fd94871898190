"""The zstd codec of heap fields, with a dictionary where values are small and it helps."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import zstandard

from fastload.errors import DecodeError
from fastload.format.layout import MAX_DICTIONARY_BYTES, MAX_VALUE_BYTES
from fastload.format.protocols import BytesLike
from fastload.schema import HeapField, Schema

__all__ = ["Compressor", "Decompressor", "Training", "train_dictionary"]

_MAX_RATIO = 32768  # a block yields at most 128 KiB and takes at least 4 bytes
_TRAINING_BYTES = 4 << 20
_TRAINING_RECORDS = 10_000
_LEAST_SAMPLES = 16
_SMALL_VALUE_BYTES = 16384
_DICTIONARY_BYTES = 65536
_LEAST_GAIN = 0.95


def _dictionary(data: BytesLike) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(bytes(data))


class Compressor:
    """Makes zstd frames of one level, with or without a dictionary."""

    def __init__(self, level: int, dictionary: bytes = b"") -> None:
        self._zstd = zstandard.ZstdCompressor(
            level, dict_data=_dictionary(dictionary) if dictionary else None, write_content_size=True
        )
        self.dictionary = dictionary

    def compress(self, data: BytesLike) -> bytes:
        """Return one frame that names its content size."""
        return self._zstd.compress(data)


class Decompressor:
    """Reads zstd frames of one field. Thread-safe."""

    def __init__(self, dictionary: BytesLike = b"") -> None:
        self._dictionary = _dictionary(dictionary) if len(dictionary) else None
        # zstd releases the GIL, and its contexts serve one thread at a time.
        self._local = threading.local()

    @staticmethod
    def content_size(frame: BytesLike) -> int:
        """Return the length after decompression. Raises DecodeError where the frame is refused."""
        try:
            size: int = zstandard.frame_content_size(bytes(frame[:32]))
        except zstandard.ZstdError as error:
            raise DecodeError(f"not a zstd frame: {error}") from error
        if size < 0:
            raise DecodeError("a zstd frame that does not name its content size")
        if size > MAX_VALUE_BYTES or size > len(frame) * _MAX_RATIO:
            raise DecodeError(f"a zstd frame of {len(frame)} bytes claims to hold {size} bytes")
        return size

    def decompress(self, frame: BytesLike) -> bytes:
        """Return the content of exactly one frame. Raises DecodeError."""
        size = self.content_size(frame)
        try:
            context = getattr(self._local, "context", None)
            if context is None:
                context = self._local.context = zstandard.ZstdDecompressor(dict_data=self._dictionary)
            # decompress() takes a content size of 0 at its word, and looks no further.
            data: bytes = (
                context.decompress(frame, allow_extra_data=False) if size else _empty(context, frame)
            )
        except (zstandard.ZstdError, MemoryError) as error:
            raise DecodeError(f"the zstd frame cannot be decoded: {error}") from error
        if len(data) != size:
            raise DecodeError(f"the zstd frame holds {len(data)} bytes, not the {size} it names")
        return data


def _empty(context: zstandard.ZstdDecompressor, frame: BytesLike) -> bytes:
    stream = context.decompressobj()
    data = stream.decompress(frame)
    if not stream.eof or stream.unused_data:
        raise DecodeError("the zstd frame does not end where the value ends")
    return data


class Training:
    """Holds a writer's first records back, to train the dictionaries of its zstd fields on them."""

    def __init__(self, schema: Schema, level: int, max_dictionary_bytes: int) -> None:
        self._zstd = [isinstance(field, HeapField) and field.codec == "zstd" for field in schema.values()]
        self._level = level
        self._max_bytes = max_dictionary_bytes
        self._bytes = 0
        self.held: list[list[bytes | None]] = []

    @property
    def wanted(self) -> bool:
        """Whether more records are needed; never without a zstd field."""
        return any(self._zstd) and self._bytes < _TRAINING_BYTES and len(self.held) < _TRAINING_RECORDS

    def hold(self, payloads: Sequence[BytesLike | None]) -> None:
        """Keep a record, copied: its owner may change it."""
        self.held.append([None if payload is None else bytes(payload) for payload in payloads])
        self._bytes += sum(len(payload) for payload in payloads if payload is not None)

    def dictionaries(self) -> list[bytes]:
        """Return a dictionary for each field of the schema, empty for none."""
        return [
            train_dictionary(
                [v for record in self.held if (v := record[n]) is not None], self._level, self._max_bytes
            )
            if zstd
            else b""
            for n, zstd in enumerate(self._zstd)
        ]


def train_dictionary(
    samples: Sequence[BytesLike], level: int, max_bytes: int = MAX_DICTIONARY_BYTES
) -> bytes:
    """Return a dictionary trained on the first values, or nothing where it would not help.

    It is kept where values average at most 16 KiB and, over values it was not trained on, frames with it
    are at least 5 % smaller, its own size included in proportion.
    """
    if max_bytes < 256:
        return b""
    filled = [bytes(sample) for sample in samples if len(sample)]
    total = sum(map(len, filled))
    if len(filled) < _LEAST_SAMPLES or total > len(filled) * _SMALL_VALUE_BYTES:
        return b""
    training: list[BytesLike] = list(filled[0::2])
    held_out = filled[1::2]
    size = min(_DICTIONARY_BYTES, max(256, total // 16), max_bytes)
    try:
        dictionary = zstandard.train_dictionary(size, training, level=level).as_bytes()
        with_dictionary = Compressor(level, dictionary)
    except zstandard.ZstdError:
        return b""  # too few or too uniform samples to learn from
    plain = Compressor(level)
    before = sum(len(plain.compress(sample)) for sample in held_out)
    after = sum(len(with_dictionary.compress(sample)) for sample in held_out)
    return dictionary if after + len(dictionary) // 2 < _LEAST_GAIN * before else b""
