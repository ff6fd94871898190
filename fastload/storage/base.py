"""What the storages share. Their interface is in fastload.format.protocols; they fit it structurally."""

from __future__ import annotations

import errno
from typing import Protocol, TypeAlias

from fastload.errors import WriteError

__all__ = ["BytesLike", "Source", "copy_file", "write_error"]

BytesLike: TypeAlias = bytes | bytearray | memoryview

_COPY_BYTES = 8 << 20


class _Readable(Protocol):
    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> memoryview: ...

    def close(self) -> None: ...


class _Writable(Protocol):
    def write(self, data: BytesLike) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Source(Protocol):
    """A storage to copy from."""

    @property
    def local_path(self) -> str | None: ...

    def open_read(self, name: str) -> _Readable: ...


class _Target(Protocol):
    def open_write(self, name: str) -> _Writable: ...


def copy_file(source: Source, source_name: str, target: _Target, name: str) -> None:
    """Copy a file of another storage. Where it is missing: FileNotFoundError, and nothing is made."""
    file = source.open_read(source_name)
    try:
        copy = target.open_write(name)
        try:
            for begin in range(0, file.size, _COPY_BYTES):
                copy.write(file.read(begin, min(_COPY_BYTES, file.size - begin)))
            copy.close()
        except BaseException:
            copy.abort()
            raise
    finally:
        file.close()


def write_error(error: BaseException, path: str) -> WriteError:
    """Return the WriteError that says what an operating system's error means here."""
    number = error.errno if isinstance(error, OSError) else None
    sentence, hint = {
        errno.ENOSPC: ("the disk is full", "free space there, or write elsewhere, and run it again"),
        errno.EDQUOT: ("the disk quota is used up", "free space there, or write elsewhere, and run it again"),
        errno.EFBIG: (
            "the file would be larger than is allowed here",
            "raise the limit, or lower shard_size",
        ),
        errno.EACCES: ("no permission to write here", "choose a folder that you may write to"),
        errno.EPERM: ("no permission to write here", "choose a folder that you may write to"),
        errno.EROFS: ("the filesystem is read-only", "choose a folder that you may write to"),
        errno.EEXIST: ("the file exists already", None),
        errno.ENOTDIR: ("a part of the path is a file, not a folder", "choose another path"),
    }.get(number if number is not None else -1, (f"writing failed: {error}", None))
    out = WriteError(sentence, path=path, hint=hint)
    out.errno = number
    return out
