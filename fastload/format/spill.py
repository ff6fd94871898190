"""Sections that grow while the heap streams out: in memory, and past a budget in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import IO

from fastload.errors import WriteError
from fastload.format.protocols import BytesLike

__all__ = ["Spill", "SpilledSection"]

_PIECE_BYTES = 1 << 20


class Spill:
    """The budget that all sections of a shard share.

    The file has no name on systems that allow it, so that nothing is left of a killed writer.
    """

    def __init__(self, budget: int, folder: str | None = None) -> None:
        self._budget = budget
        self._folder = folder
        self._buffered = 0
        self._sections: list[SpilledSection] = []
        self._file: IO[bytes] | None = None

    def section(self) -> SpilledSection:
        """Return a new empty section."""
        self._sections.append(SpilledSection(self))
        return self._sections[-1]

    def grown(self, length: int) -> None:
        """Note that a section holds more bytes in memory; write all out where that is too much."""
        self._buffered += length
        if self._buffered <= self._budget:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by close()
            for section in self._sections:
                section.move_to(self._file)
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            raise WriteError(
                f"columns cannot be set aside in a temporary file: {error.strerror or error}",
                path=place,
                hint="free space there",
            ) from error
        self._buffered = 0

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the temporary file."""
        assert self._file is not None
        self._file.seek(offset)
        data = self._file.read(length)
        if len(data) != length:
            raise WriteError("the temporary file for columns has become shorter")
        return data

    def close(self) -> None:
        """Drop the temporary file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class SpilledSection:
    """Bytes appended now and read back once."""

    def __init__(self, spill: Spill) -> None:
        self._spill = spill
        self._extents: list[tuple[int, int]] = []
        self._buffer = bytearray()

    def write(self, data: BytesLike) -> None:
        """Append ``data``."""
        self._buffer += data
        self._spill.grown(len(data))

    def move_to(self, file: IO[bytes]) -> None:
        """Write what is in memory behind the end of ``file``."""
        if self._buffer:
            offset = file.seek(0, 2)
            file.write(self._buffer)
            self._extents.append((offset, len(self._buffer)))
            self._buffer = bytearray()

    def pieces(self) -> Iterator[memoryview]:
        """Yield the bytes in order, in pieces of 1 MiB; the last is shorter."""
        pending = bytearray()
        for offset, length in self._extents:
            for begin in range(0, length, _PIECE_BYTES):
                pending += self._spill.read(offset + begin, min(_PIECE_BYTES, length - begin))
                while len(pending) >= _PIECE_BYTES:
                    yield memoryview(bytes(pending[:_PIECE_BYTES]))
                    del pending[:_PIECE_BYTES]
        rest = memoryview(bytes(pending + self._buffer) if pending else self._buffer)
        for begin in range(0, len(rest), _PIECE_BYTES):
            yield rest[begin : begin + _PIECE_BYTES]
