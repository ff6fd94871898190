"""Files of an object store, or whatever else fsspec knows by name; the only importer of fsspec."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from fastload.errors import CorruptionError, FastloadError, UsageError, WriteError
from fastload.storage.base import BytesLike, Source, copy_file, write_error

__all__ = ["RemoteStorage"]


class _RemoteReadAt:
    """A file read by ranges."""

    mapped = False

    def __init__(self, filesystem: Any, key: str, path: str) -> None:
        self._filesystem, self._key, self.path = filesystem, key, path
        self.size = int(filesystem.size(key))

    def read(self, offset: int, length: int) -> memoryview:
        if not length:
            return memoryview(b"")
        data = self._filesystem.cat_file(self._key, start=offset, end=offset + length)
        if len(data) != length:
            raise CorruptionError(
                f"bytes {offset} to {offset + length} of a file of {self.size}", path=self.path
            )
        return memoryview(data)

    def close(self) -> None:
        pass


class _RemoteWriteTo:
    """An upload. The object appears when it is closed, where the store works so."""

    def __init__(self, filesystem: Any, key: str, path: str) -> None:
        self._filesystem, self._key, self._path = filesystem, key, path
        self._file: Any = filesystem.open(key, "wb")

    def write(self, data: BytesLike) -> None:
        try:
            self._file.write(bytes(data))
        except Exception as error:
            raise write_error(error, self._path) from error

    def close(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            file.close()
        except Exception as error:
            raise write_error(error, self._path) from error

    def abort(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        # Stores differ: some can drop an upload, some only finish and delete it.
        with contextlib.suppress(Exception):
            discard = getattr(file, "discard", None)
            if discard is not None:
                discard()
        with contextlib.suppress(Exception):
            file.closed or file.close()
        with contextlib.suppress(Exception):
            self._filesystem.rm_file(self._key)


class RemoteStorage:
    """A prefix. See fastload.format.protocols.Storage for what the methods promise.

    Publishing is one PUT; two writers that publish at the same moment are told only where the one has
    finished before the other looks.
    """

    local_path: str | None = None

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url.rstrip("/")
        self._options = dict(options)
        self._opened: tuple[int, Any, str] | None = None
        self._filesystem()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "_options": self._options, "_opened": None}

    def _filesystem(self) -> tuple[Any, str]:
        """Return fsspec's filesystem, of this process, and the prefix in it."""
        if self._opened is None or self._opened[0] != os.getpid():
            import fsspec.core

            try:
                filesystem, root = fsspec.core.url_to_fs(self.url, **self._options)
            except (ValueError, ImportError) as error:
                raise UsageError(f"the URL cannot be opened: {error}", path=self.url) from error
            self._opened = (os.getpid(), filesystem, root.rstrip("/"))
        return self._opened[1], self._opened[2]

    def _key(self, name: str) -> tuple[Any, str]:
        filesystem, root = self._filesystem()
        return filesystem, f"{root}/{name}"

    def open_read(self, name: str) -> _RemoteReadAt:
        return _RemoteReadAt(*self._key(name), f"{self.url}/{name}")

    def open_write(self, name: str) -> _RemoteWriteTo:
        filesystem, key = self._key(name)
        path = f"{self.url}/{name}"
        try:
            if filesystem.exists(key):
                raise WriteError("the file exists already", path=path)
            filesystem.makedirs(key.rsplit("/", 1)[0], exist_ok=True)
            return _RemoteWriteTo(filesystem, key, path)
        except FastloadError:
            raise
        except Exception as error:
            raise write_error(error, path) from error

    def publish(self, name: str, data: bytes, check: Callable[[bytes | None], None] | None = None) -> None:
        filesystem, key = self._key(name)
        if check is not None:
            filesystem.invalidate_cache()
            check(filesystem.cat_file(key) if filesystem.exists(key) else None)
        try:
            filesystem.makedirs(key.rsplit("/", 1)[0], exist_ok=True)
            filesystem.pipe_file(key, data)
        except Exception as error:
            raise write_error(error, f"{self.url}/{name}") from error

    def list(self) -> list[str]:
        filesystem, root = self._filesystem()
        filesystem.invalidate_cache()
        try:
            entries = filesystem.ls(root, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(entry["name"].rsplit("/", 1)[-1] for entry in entries if entry["type"] == "file")

    def exists(self, name: str) -> bool:
        filesystem, key = self._key(name)
        return bool(filesystem.isfile(key))

    def size(self, name: str) -> int:
        filesystem, key = self._key(name)
        return int(filesystem.size(key))

    def modified(self, name: str) -> float | None:
        filesystem, key = self._key(name)
        try:
            return float(filesystem.modified(key).timestamp())
        except (NotImplementedError, AttributeError, KeyError):
            return None

    def delete(self, name: str) -> None:
        filesystem, key = self._key(name)
        try:
            filesystem.rm_file(key)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise write_error(error, f"{self.url}/{name}") from error

    def adopt(self, source: Source, source_name: str, name: str) -> None:
        copy_file(source, source_name, self, name)


def filesystem(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return fsspec's filesystem for a URL, and the path in it. Raises UsageError as RemoteStorage does."""
    return RemoteStorage(url, options)._filesystem()
