"""Files of a folder on a local (or mounted) filesystem: mapped to read, flushed before they are published."""

from __future__ import annotations

import contextlib
import importlib.util
import mmap
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from fastload.errors import CorruptionError, WriteError
from fastload.storage.base import BytesLike, Source, copy_file, write_error

# Windows has no fcntl: publishing is atomic there too, but two writers at one moment are not told.
fcntl: Any = importlib.import_module("fcntl") if importlib.util.find_spec("fcntl") else None

__all__ = ["LocalStorage"]


class _LocalReadAt:
    """A mapped file. Views keep the mapping alive, also when the file is deleted."""

    mapped = True

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        try:
            self.size = os.fstat(descriptor).st_size
            self._mapping = mmap.mmap(descriptor, self.size, access=mmap.ACCESS_READ) if self.size else b""
        finally:
            os.close(descriptor)

    def read(self, offset: int, length: int) -> memoryview:
        # A view of its own each time: without a GIL, threads must not slice one (python/cpython#155606).
        data = memoryview(self._mapping)[offset : offset + length]
        if len(data) != length:
            raise CorruptionError(
                f"bytes {offset} to {offset + length} of a file of {self.size}", path=self.path
            )
        return data

    def close(self) -> None:
        self._mapping = b""
        self.size = 0


class _LocalWriteTo:
    """A new file. It exists under its name from the start; readers know it only once a manifest names it."""

    def __init__(self, path: str) -> None:
        self._path = path
        flags = (
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        )
        self._descriptor = os.open(path, flags, 0o666)

    def write(self, data: BytesLike) -> None:
        view = memoryview(data).cast("B")
        try:
            while len(view):
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise write_error(error, self._path) from error

    def close(self) -> None:
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        try:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_error(error, self._path) from error

    def abort(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class LocalStorage:
    """A folder. See fastload.format.protocols.Storage for what the methods promise."""

    def __init__(self, path: str) -> None:
        self.url = path
        self.local_path: str | None = os.path.abspath(path)
        self._folder = os.path.abspath(path)

    def _path(self, name: str) -> str:
        return os.path.join(self._folder, name)

    def open_read(self, name: str) -> _LocalReadAt:
        return _LocalReadAt(self._path(name))

    def open_write(self, name: str) -> _LocalWriteTo:
        try:
            self._make_folder()
            return _LocalWriteTo(self._path(name))
        except OSError as error:
            raise write_error(error, self._path(name)) from error

    def publish(self, name: str, data: bytes, check: Callable[[bytes | None], None] | None = None) -> None:
        path = self._path(name)
        temporary = f"{name}.{secrets.token_hex(8)}.tmp"
        file = self.open_write(temporary)
        try:
            file.write(data)
            file.close()
            with self._lock():
                if check is not None:
                    check(self._content(path))
                # New names reach the disk before the manifest that uses them, and that before we return.
                _flush_folder(self._folder)
                os.replace(self._path(temporary), path)
                _flush_folder(self._folder)
        except BaseException as error:
            file.abort()
            with contextlib.suppress(OSError):
                os.unlink(self._path(temporary))
            if isinstance(error, OSError) and not isinstance(error, WriteError):
                raise write_error(error, path) from error
            raise

    def list(self) -> list[str]:
        try:
            with os.scandir(self._folder) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, name: str) -> bool:
        return os.path.isfile(self._path(name))

    def size(self, name: str) -> int:
        return os.stat(self._path(name)).st_size

    def modified(self, name: str) -> float | None:
        return os.stat(self._path(name)).st_mtime

    def delete(self, name: str) -> None:
        try:
            os.unlink(self._path(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise write_error(error, self._path(name)) from error

    def adopt(self, source: Source, source_name: str, name: str) -> None:
        if source.local_path is not None:
            try:
                self._make_folder()
                os.link(os.path.join(source.local_path, source_name), self._path(name))
                return
            except FileNotFoundError:
                raise
            except OSError:
                pass  # another filesystem, or one without hard links: copy
        copy_file(source, source_name, self, name)

    def _make_folder(self) -> None:
        if not os.path.isdir(self._folder):
            os.makedirs(self._folder, exist_ok=True)
            _flush_folder(os.path.dirname(self._folder))

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Hold the folder against other publishers, where the filesystem knows locks."""
        if fcntl is None:
            yield
            return
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @staticmethod
    def _content(path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None


def _flush_folder(folder: str) -> None:
    if os.name == "nt":
        return  # folders cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
