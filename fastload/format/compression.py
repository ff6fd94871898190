"""The zstd codec of heap fields, with a dictionary where values are small and it helps."""

from __future__ import annotations

from collections.abc import Sequence

import zstandard

from fastload.errors import DecodeError
from fastload.format.layout import MAX_DICTIONARY_BYTES, MAX_VALUE_BYTES
from fastload.format.protocols import BytesLike

__all__ = ["Compressor", "Decompressor", "train_dictionary"]

_MAX_RATIO = 32768  # a block yields at most 128 KiB and takes at least 4 bytes
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
    """Reads zstd frames of one field."""

    def __init__(self, dictionary: BytesLike = b"") -> None:
        self._zstd = zstandard.ZstdDecompressor(
            dict_data=_dictionary(dictionary) if len(dictionary) else None
        )

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
            data = self._zstd.decompress(frame, allow_extra_data=False)
        except (zstandard.ZstdError, MemoryError) as error:
            raise DecodeError(f"the zstd frame cannot be decoded: {error}") from error
        if len(data) != size:
            raise DecodeError(f"the zstd frame holds {len(data)} bytes, not the {size} it names")
        return data


def train_dictionary(samples: Sequence[BytesLike], level: int) -> bytes:
    """Return a dictionary trained on the first values, or nothing where it would not help.

    It is kept where values average at most 16 KiB and, over values it was not trained on, frames with it
    are at least 5 % smaller, its own size included in proportion.
    """
    filled = [bytes(sample) for sample in samples if len(sample)]
    total = sum(map(len, filled))
    if len(filled) < _LEAST_SAMPLES or total > len(filled) * _SMALL_VALUE_BYTES:
        return b""
    training: list[BytesLike] = list(filled[0::2])
    held_out = filled[1::2]
    size = min(_DICTIONARY_BYTES, max(256, total // 16), MAX_DICTIONARY_BYTES)
    try:
        dictionary = zstandard.train_dictionary(size, training, level=level).as_bytes()
        with_dictionary = Compressor(level, dictionary)
    except zstandard.ZstdError:
        return b""  # too few or too uniform samples to learn from
    plain = Compressor(level)
    before = sum(len(plain.compress(sample)) for sample in held_out)
    after = sum(len(with_dictionary.compress(sample)) for sample in held_out)
    return dictionary if after + len(dictionary) // 2 < _LEAST_GAIN * before else b""
