"""What the format needs of the place where bytes live; fastload/storage implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

__all__ = ["BytesLike", "ReadAt", "Storage", "WriteTo"]

BytesLike: TypeAlias = bytes | bytearray | memoryview


class ReadAt(Protocol):
    """One file, read at any position. Thread-safe."""

    @property
    def path(self) -> str:
        """The file's name for error messages."""

    @property
    def size(self) -> int:
        """Bytes of the file when it was opened."""

    @property
    def mapped(self) -> bool:
        """Whether reads are views of a mapping, so that small ones cost nothing."""

    def read(self, offset: int, length: int) -> memoryview:
        """Return exactly ``length`` bytes, read-only. The caller has checked the range against ``size``.

        Raises CorruptionError where the file has become shorter.
        """

    def close(self) -> None:
        """Let go of the file. Views that are still held stay valid."""


class WriteTo(Protocol):
    """One new file, written front to back."""

    def write(self, data: BytesLike) -> None:
        """Append ``data``. Raises WriteError."""

    def close(self) -> None:
        """Complete the file and flush it to disk. Raises WriteError."""

    def abort(self) -> None:
        """Remove what was written. Does nothing after ``close``."""


class Storage(Protocol):
    """A folder, or a prefix of an object store. Picklable."""

    @property
    def url(self) -> str:
        """Where it is, as given to ``open_storage``."""

    @property
    def local_path(self) -> str | None:
        """The folder where it is on a local filesystem."""

    def open_read(self, name: str) -> ReadAt:
        """Open a file. Raises FileNotFoundError where there is none."""

    def open_write(self, name: str) -> WriteTo:
        """Begin a new file, making the folder where there is none. Raises WriteError, also if it exists."""

    def publish(self, name: str, data: bytes, check: Callable[[bytes | None], None] | None = None) -> None:
        """Replace a file in one step, flushed to disk.

        ``check`` is called first with what the file holds now (None: there is none) and may raise to refuse;
        on a local filesystem no other publish comes between the check and the replacing.
        Raises WriteError.
        """

    def list(self) -> list[str]:
        """Return the names of all files, sorted; none where the folder is missing."""

    def exists(self, name: str) -> bool:
        """Return whether the file exists."""

    def size(self, name: str) -> int:
        """Return the bytes of a file. Raises FileNotFoundError."""

    def modified(self, name: str) -> float | None:
        """Return when a file was last written, in seconds since 1970, or None where that is not known."""

    def delete(self, name: str) -> None:
        """Remove a file; nothing happens where there is none. Raises WriteError."""

    def adopt(self, source: Storage, source_name: str, name: str) -> None:
        """Make ``name`` a copy of another storage's file, or a hard link to it where that is possible.

        Raises WriteError, and FileNotFoundError where the source is missing.
        """
