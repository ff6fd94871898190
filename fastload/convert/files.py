"""A tree of source files, in a local folder or behind an fsspec URL."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, cast

from fastload.convert.source import Concurrency
from fastload.errors import SourceError


@dataclasses.dataclass(frozen=True, slots=True)
class FileEntry:
    """A file: ``path`` relative to the tree's root with ``/`` between, and ``size`` in bytes."""

    path: str
    size: int

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path without its last part; empty for a file in the root."""
        return self.path.rpartition("/")[0]


def local_path(url: str) -> str | None:
    """Return the local path that a path or ``file://`` URL names; None for any other URL.

    >>> local_path("a/b"), local_path("file:///a"), local_path("memory://a")
    ('a/b', '/a', None)
    """
    if url.startswith("file://"):
        return url[len("file://") :]
    return None if "://" in url else url


@dataclasses.dataclass(frozen=True)
class FileTree:
    """The files below ``url``, or the one file that ``url`` is. Picklable."""

    url: str
    storage_options: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def local(self) -> str | None:
        """The root as a local path; None where it is remote."""
        return local_path(self.url)

    @property
    def concurrency(self) -> Concurrency:
        """Who can read at the same time: other processes do not see ``memory://``."""
        return "threads" if self.url.startswith("memory://") else "processes"

    def _remote(self) -> tuple[Any, str]:
        from fastload.storage.remote import filesystem

        return filesystem(self.url, dict(self.storage_options))

    def kind(self) -> str:
        """Return ``"folder"``, ``"file"`` or ``"missing"``."""
        local = self.local
        if local is not None:
            if os.path.isdir(local):
                return "folder"
            return "file" if os.path.exists(local) else "missing"
        system, root = self._remote()
        if system.isfile(root):
            return "file"
        return "folder" if system.isdir(root) else "missing"

    def where(self, path: str) -> str:
        """Return the URL of a file of the tree, for messages."""
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def entries(self) -> list[FileEntry]:
        """Return every regular file below the root, links followed, sorted by folder and then name."""
        local = self.local
        if local is None:
            found = self._remote_entries()
        elif os.path.isdir(local):
            found = list(_walk(local, "", frozenset()))
        else:
            found = [FileEntry("", os.path.getsize(local))]
        for entry in found:
            try:
                entry.path.encode("utf-8")
            except UnicodeEncodeError:
                raise SourceError(
                    f"a file's name is not UTF-8: {entry.path!r}", path=self.url, hint="rename it"
                ) from None
        return sorted(found, key=lambda entry: (entry.folder, entry.name))

    def some_entries(self, count: int) -> list[FileEntry]:
        """Return up to ``count`` of the entries of a folder, in any order, without looking at the others."""
        local = self.local
        if local is None:
            return self._remote_entries()[:count]
        return list(itertools.islice(_walk(local, "", frozenset()), count))

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders directly below ``path``, sorted. Raises SourceError."""
        local = self.local
        if local is None:
            system, root = self._remote()
            listed = system.ls(f"{root.rstrip('/')}/{path}".rstrip("/"), detail=True)
            return sorted(
                item["name"].rstrip("/").rpartition("/")[2] for item in listed if item["type"] == "directory"
            )
        try:
            with os.scandir(os.path.join(local, path)) as scan:
                return sorted(entry.name for entry in scan if entry.is_dir())
        except OSError as error:
            raise SourceError(
                f"the folder cannot be read: {error.strerror}", path=self.where(path)
            ) from error

    def _remote_entries(self) -> list[FileEntry]:
        system, root = self._remote()
        if system.isfile(root):
            return [FileEntry("", int(system.size(root) or 0))]
        prefix = root.rstrip("/") + "/"
        return [
            FileEntry(path[len(prefix) :], int(facts.get("size") or 0))
            for path, facts in system.find(root, detail=True).items()
            if path.startswith(prefix)
        ]

    def open(self, path: str) -> BinaryIO:
        """Open a file of the tree for reading; ``""`` is the root itself. Raises SourceError."""
        local = self.local
        try:
            if local is not None:
                return open(os.path.join(local, path) if path else local, "rb")
            system, root = self._remote()
            return cast(BinaryIO, system.open(f"{root.rstrip('/')}/{path}" if path else root, "rb"))
        except OSError as error:
            raise SourceError(
                f"the file cannot be opened: {error.strerror or error}", path=self.where(path)
            ) from error

    def read(self, path: str) -> bytes:
        """Return the whole of a file. Raises SourceError."""
        with self.open(path) as file:
            try:
                return file.read()
            except OSError as error:
                raise SourceError(
                    f"the file cannot be read: {error.strerror or error}", path=self.where(path)
                ) from error


def _walk(root: str, relative: str, above: frozenset[tuple[int, int]]) -> Iterator[FileEntry]:
    """Yield regular files below ``root/relative``; ``above`` holds the folders passed, against cycles."""
    folder = os.path.join(root, relative)
    try:
        status = os.stat(folder)
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        with os.scandir(folder) as scan:
            for entry in scan:
                path = f"{relative}/{entry.name}" if relative else entry.name
                if entry.is_dir():
                    yield from _walk(root, path, above | {identity})
                elif entry.is_file():
                    yield FileEntry(path, entry.stat().st_size)
    except OSError as error:
        raise SourceError(f"the folder cannot be read: {error.strerror}", path=folder) from error
