"""NumPy arrays: a .npy file, a folder of them, or an .npz archive. Record i holds row i of each array."""

from __future__ import annotations

import contextlib
import dataclasses
import zipfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from fastload.convert.files import FileTree
from fastload.convert.source import (
    DEFAULT_SPLIT,
    Concurrency,
    Partition,
    SourceItem,
    SourceOptions,
    cut_range,
)
from fastload.errors import SourceError
from fastload.schema import DTYPE_BYTES, Bytes, Field, Label, Scalar, Schema, Str, Tensor

BLOCK_BYTES = 8 << 20
"""How much of an array is read at a time where it cannot be mapped."""


@dataclasses.dataclass(frozen=True)
class ArrayFile:
    """One .npy file: in a tree, or (``member``) in an .npz archive of the tree."""

    tree: FileTree
    path: str
    member: str | None = None

    @property
    def where(self) -> str:
        """The array's name for messages."""
        return self.tree.where(self.path) + (f":{self.member}" if self.member else "")

    @contextlib.contextmanager
    def _opened(self) -> Iterator[IO[bytes]]:
        with contextlib.ExitStack() as stack:
            file: IO[bytes] = stack.enter_context(self.tree.open(self.path))
            if self.member is not None:
                archive = stack.enter_context(zipfile.ZipFile(file))
                file = stack.enter_context(archive.open(self.member))
            yield file

    def header(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Return the array's shape, whether it is in Fortran order, and its dtype. Raises SourceError."""
        try:
            with self._opened() as file:
                return _read_header(file)
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise SourceError(f"not a NumPy array: {error}", path=self.where) from error

    def blocks(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """Yield rows ``start`` to ``stop`` in blocks, without holding the whole array where possible."""
        local = self.tree.local
        if local is not None and self.member is None:
            name = f"{local}/{self.path}" if self.path else local
            try:
                mapped = np.load(name, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise SourceError(f"the array cannot be read: {error}", path=self.where) from error
            rows = max(1, BLOCK_BYTES // max(1, mapped[:1].nbytes))
            for first in range(start, stop, rows):
                yield np.asarray(mapped[first : min(first + rows, stop)])
            return
        with self._opened() as file:
            shape, fortran, dtype = _read_header(file)
            if fortran and len(shape) > 1:  # Its rows are not contiguous: there is no way around the whole.
                array = np.frombuffer(file.read(), dtype).reshape(shape[::-1]).T
                yield array[start:stop]
                return
            row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            file.seek(start * row, 1)
            rows = max(1, BLOCK_BYTES // max(1, row))
            for first in range(start, stop, rows):
                count = min(rows, stop - first)
                data = file.read(count * row)
                if len(data) != count * row:
                    raise SourceError(f"the array is truncated at row {first}", path=self.where)
                yield np.frombuffer(data, dtype).reshape((count, *shape[1:]))

    def rows(self, start: int, stop: int) -> Iterator[npt.NDArray[Any]]:
        """Yield rows ``start`` to ``stop`` one by one."""
        for block in self.blocks(start, stop):
            yield from block


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version[0]}.{version[1]} of the .npy format is not read")


def field_of_array(dtype: np.dtype[Any], shape: tuple[int, ...], where: str) -> Field:
    """Return the field for items of a dtype and shape. Raises SourceError where there is none.

    >>> field_of_array(np.dtype(">f4"), (3,), "x.npy")
    Tensor(nullable=False, dtype='float32', shape=(3,))
    """
    if dtype.kind in "US" and not shape:
        return Str() if dtype.kind == "U" else Bytes()
    if dtype.name not in DTYPE_BYTES:
        raise SourceError(
            f"an array of dtype {dtype} and shape {shape} has no field type",
            path=where,
            hint=f"convert it to one of {', '.join(name for name in DTYPE_BYTES if name != 'bfloat16')}",
        )
    return Tensor(dtype.name, shape) if shape else Scalar(dtype.name)


@dataclasses.dataclass(frozen=True)
class ArrayPartition:
    """Rows ``start`` to ``stop`` of some arrays of one length."""

    arrays: tuple[tuple[str, ArrayFile], ...]
    start: int
    stop: int

    @property
    def records(self) -> int:
        return self.stop - self.start

    def read(self) -> Iterator[SourceItem]:
        names = [name for name, _ in self.arrays]
        where = self.arrays[0][1].where
        columns = [file.rows(self.start, self.stop) for _, file in self.arrays]
        for number, values in enumerate(zip(*columns, strict=True), self.start):
            record = {
                name: value.item() if value.dtype.kind in "US" else value
                for name, value in zip(names, map(np.asarray, values), strict=True)
            }
            yield f"{where} row {number}", record


class NumpySource:
    """Arrays of one length as a :class:`~fastload.convert.source.Source`; one field an array, by its name.

    With ``options.classes`` an integer array named ``label``, ``labels`` or ``y`` becomes a Label. Raises
    SourceError where lengths differ, an array has no first dimension, or its dtype has no field type.
    """

    def __init__(self, tree: FileTree, options: SourceOptions) -> None:
        self._tree = tree
        self.notes: list[str] = []
        self.concurrency: Concurrency = tree.concurrency
        self._split = options.split or DEFAULT_SPLIT
        found = self._find(tree)
        if options.columns is not None:
            missing = [name for name in options.columns if name not in found]
            if missing:
                raise SourceError(
                    f"no array {', '.join(missing)}", path=tree.url, hint=f"it has {', '.join(found)}"
                )
            found = {name: found[name] for name in options.columns}
        if not found:
            raise SourceError("no arrays", path=tree.url, hint="files ending in .npy or .npz are taken")
        fields: dict[str, Field] = {}
        lengths: dict[str, int] = {}
        for name, file in found.items():
            shape, _, dtype = file.header()
            if not shape:
                raise SourceError("an array of no dimension has no records", path=file.where)
            lengths[name] = shape[0]
            fields[name] = field_of_array(dtype, shape[1:], file.where)
            if options.classes is not None and name in ("label", "labels", "y") and dtype.kind in "iu":
                fields[name] = Label(options.classes)
        if len(set(lengths.values())) > 1:
            stated = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise SourceError(f"the arrays differ in length: {stated}", path=tree.url)
        self._arrays = tuple(found.items())
        self._records = next(iter(lengths.values()))
        self.schema = Schema(fields)

    @staticmethod
    def _find(tree: FileTree) -> dict[str, ArrayFile]:
        if tree.kind() == "folder":
            entries = [entry for entry in tree.entries() if entry.path.endswith(".npy")]
            return {
                entry.path[: -len(".npy")].replace("/", "."): ArrayFile(tree, entry.path) for entry in entries
            }
        if not tree.url.endswith(".npz"):
            return {tree.url.rstrip("/").rpartition("/")[2].removesuffix(".npy"): ArrayFile(tree, "")}
        try:
            with tree.open("") as file, zipfile.ZipFile(file) as archive:
                members = archive.namelist()
        except zipfile.BadZipFile as error:
            raise SourceError(f"not an .npz archive: {error}", path=tree.url) from error
        twice = {name for name in members if members.count(name) > 1}
        if twice:
            raise SourceError(f"the archive holds arrays twice: {', '.join(sorted(twice))}", path=tree.url)
        return {name.removesuffix(".npy"): ArrayFile(tree, "", name) for name in members}

    def split_names(self) -> Sequence[str]:
        return [self._split]

    def partitions(self, split: str, shard_bytes: int) -> Sequence[Partition]:
        if not self._records:
            return []
        if any(file.member is not None for _, file in self._arrays):
            # Members of an archive are read front to back; starting inside would decompress what is before.
            return [ArrayPartition(self._arrays, 0, self._records)]
        row = sum(
            int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            for shape, _, dtype in (file.header() for _, file in self._arrays)
        )
        return [
            ArrayPartition(self._arrays, start, stop)
            for start, stop in cut_range(self._records, row, shard_bytes)
        ]
