"""Parquet, and Arrow in its IPC forms (``.arrow``, ``.feather``, ``.ipc``): a file, or a folder of files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from fastload.convert.files import FileEntry, FileTree
from fastload.convert.source import (
    DEFAULT_SPLIT,
    RECORD_OVERHEAD,
    Concurrency,
    Partition,
    SourceItem,
    SourceOptions,
    are_splits,
    choose_split,
    cut,
    order_splits,
    split_of_file,
)
from fastload.convert.sources.arrow_types import (
    Column,
    extract,
    field_of,
    is_image_struct,
    label_classes,
    leaves,
    values_of,
)
from fastload.errors import SourceError
from fastload.schema import Label, Schema

PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather", ".ipc")
BATCH_RECORDS = 1024


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A row group of a Parquet file, or a record batch of an Arrow file."""

    path: str
    number: int
    first_row: int
    rows: int
    bytes: int


class TableFile:
    """One Parquet or Arrow file, opened: its schema, its chunks, their contents and where there are nulls."""

    def __init__(self, tree: FileTree, path: str) -> None:
        self._path = path
        self.where = tree.where(path)
        self._is_parquet = self.where.lower().endswith(PARQUET)
        try:
            local = tree.local
            if local is not None:
                source = pa.memory_map(f"{local}/{path}" if path else local)
            else:
                source = pa.PythonFile(tree.open(path), mode="r")
            self._file = pq.ParquetFile(source) if self._is_parquet else _open_ipc(source)
            self.schema = self._file.schema_arrow if self._is_parquet else self._file.schema
        except (pa.ArrowException, OSError, ValueError) as error:
            kind = "Parquet" if self._is_parquet else "Arrow"
            raise SourceError(f"not a readable {kind} file: {error}", path=self.where) from error

    def chunks(self) -> list[Chunk]:
        """Return the file's chunks in order."""
        out: list[Chunk] = []
        row = 0
        count = self._file.num_row_groups if self._is_parquet else self._file.num_record_batches
        for number in range(count):
            if self._is_parquet:
                group = self._file.metadata.row_group(number)
                rows, size = group.num_rows, group.total_byte_size
            else:
                batch = self._file.get_batch(number)
                rows, size = batch.num_rows, batch.nbytes
            out.append(Chunk(self._path, number, row, rows, size))
            row += rows
        return out

    def batches(self, number: int, columns: Sequence[Column]) -> Iterator[Any]:
        """Yield the record batches of one chunk. Raises SourceError for bytes that Arrow cannot read."""
        tops = list(dict.fromkeys(column.path[0] for column in columns))
        try:
            if self._is_parquet:
                yield from self._file.iter_batches(BATCH_RECORDS, row_groups=[number], columns=tops)
            else:
                batch = self._file.get_batch(number)
                for start in range(0, batch.num_rows, BATCH_RECORDS):
                    yield batch.slice(start, BATCH_RECORDS)
        except (pa.ArrowException, OSError) as error:
            raise SourceError(f"the file cannot be read: {error}", path=self.where) from error

    def has_nulls(self, column: Column) -> bool:
        """Say whether a column has nulls: by the file's statistics where they tell, else by its values."""
        if self._is_parquet and len(column.path) == 1:
            counts = [self._null_count(number, column.path[0]) for number in range(self._file.num_row_groups)]
            if None not in counts:
                return any(counts)
        return any(
            bool(_null_array(column, extract(batch, column.path)).null_count)
            for chunk in self.chunks()
            for batch in self.batches(chunk.number, [column])
        )

    def _null_count(self, number: int, name: str) -> int | None:
        group = self._file.metadata.row_group(number)
        for index in range(group.num_columns):
            facts = group.column(index)
            if facts.path_in_schema == name:  # Columns of lists and structs have longer paths.
                statistics = facts.statistics
                return statistics.null_count if statistics is not None and statistics.has_null_count else None
        return None


def _null_array(column: Column, array: Any) -> Any:
    return (
        array.flatten()[array.type.get_field_index("bytes")] if is_image_struct(column.arrow_type) else array
    )


def _open_ipc(source: Any) -> Any:
    try:
        return pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        return _Stream(pa.ipc.open_stream(source))


class _Stream:
    """The streaming form of Arrow IPC with the reading methods of the file form."""

    def __init__(self, reader: Any) -> None:
        self.schema = reader.schema
        self._batches = list(reader)  # Over a memory map these are views, not copies.
        self.num_record_batches = len(self._batches)

    def get_batch(self, number: int) -> Any:
        return self._batches[number]


@dataclasses.dataclass(frozen=True)
class TablePartition:
    """Some consecutive chunks of some consecutive files."""

    tree: FileTree
    columns: tuple[Column, ...]
    chunks: tuple[Chunk, ...]

    @property
    def records(self) -> int:
        return sum(chunk.rows for chunk in self.chunks)

    def read(self) -> Iterator[SourceItem]:
        file: TableFile | None = None
        path: str | None = None
        for chunk in self.chunks:
            if file is None or chunk.path != path:
                file, path = TableFile(self.tree, chunk.path), chunk.path
            row = chunk.first_row
            for batch in file.batches(chunk.number, self.columns):
                values = [values_of(column, extract(batch, column.path)) for column in self.columns]
                for record in zip(*values, strict=True):
                    yield self._item(f"{file.where} row {row}", record)
                    row += 1

    def _item(self, where: str, values: tuple[Any, ...]) -> SourceItem:
        for value in values:
            if isinstance(value, SourceError):
                return where, value
        return where, {column.name: value for column, value in zip(self.columns, values, strict=True)}


class TableSource:
    """Parquet or Arrow files of one schema as a :class:`~fastload.convert.source.Source`.

    Structs flatten to dotted names; a column is nullable where it holds a null. Splits are folders or file
    names that name a split (``train-00000-of-00004.parquet``). Raises SourceError where files differ in
    their columns, a column occurs twice or is asked for and missing, or a type has no field type.
    """

    def __init__(self, tree: FileTree, options: SourceOptions) -> None:
        self._tree = tree
        self.notes: list[str] = []
        self.concurrency: Concurrency = tree.concurrency
        self._chunks: dict[str, list[Chunk]] = {}
        first: TableFile | None = None
        columns: list[Column] = []
        nulls: set[str] = set()
        for split, entries in self._find_splits(options).items():
            self._chunks[split] = []
            for entry in entries:  # One open at a time: there may be more files than descriptors.
                file = TableFile(tree, entry.path)
                if first is None:
                    first, columns = file, list(self._choose_columns(file, options))
                _check_same(first, file)
                self._chunks[split] += file.chunks()
                nulls |= {
                    c.name for c in columns if c.may_be_null and c.name not in nulls and file.has_nulls(c)
                }
        self._columns = tuple(
            dataclasses.replace(c, field=dataclasses.replace(c.field, nullable=c.name in nulls))
            for c in columns
        )
        self.schema = Schema({column.name: column.field for column in self._columns})

    def _find_splits(self, options: SourceOptions) -> Mapping[str, list[FileEntry]]:
        tree = self._tree
        entries = [
            entry
            for entry in tree.entries()
            if tree.where(entry.path).lower().endswith(PARQUET + ARROW)
            and not entry.name.startswith(("_", "."))
        ]
        if not entries:
            raise SourceError(
                "no tables", path=tree.url, hint=f"files ending in {', '.join(PARQUET + ARROW)} are taken"
            )
        tops = {entry.path.partition("/")[0] for entry in entries}
        by_name = {entry.path: split_of_file(entry.name) for entry in entries}
        if are_splits(tops):
            split_of = {entry.path: entry.path.partition("/")[0] for entry in entries}
        elif len(entries) > 1 and all(by_name.values()):
            split_of = {path: split or DEFAULT_SPLIT for path, split in by_name.items()}
        else:
            return {options.split or DEFAULT_SPLIT: entries}
        chosen = choose_split(order_splits(set(split_of.values())), options.split, tree.url)
        return {split: [entry for entry in entries if split_of[entry.path] == split] for split in chosen}

    def _choose_columns(self, file: TableFile, options: SourceOptions) -> Iterator[Column]:
        found = {name: (path, kind, null) for name, path, kind, null in leaves(file.schema)}
        wanted = list(found) if options.columns is None else list(options.columns)
        missing = [name for name in (*wanted, *options.image_columns) if name not in found]
        if missing:
            raise SourceError(
                f"no column {', '.join(missing)}", path=file.where, hint=f"it has {', '.join(found)}"
            )
        twice = sorted({name for name in wanted if wanted.count(name) > 1})
        if twice:
            raise SourceError(f"columns are asked for twice: {', '.join(twice)}", path=file.where)
        classes = label_classes(file.schema)
        for name in wanted:
            path, kind, may_be_null = found[name]
            field = field_of(kind, name, image=is_image_struct(kind) or name in options.image_columns)
            if name in classes or (options.classes is not None and name == "label"):
                field = Label(options.classes or tuple(classes[name]))
            yield Column(name, path, kind, field, may_be_null)
            if is_image_struct(kind):
                self.notes.append(f"the paths beside the bytes of {name!r} were left out")

    def split_names(self) -> Sequence[str]:
        return list(self._chunks)

    def partitions(self, split: str, shard_bytes: int) -> Sequence[Partition]:
        sized = (
            (chunk, chunk.bytes + RECORD_OVERHEAD * chunk.rows) for chunk in self._chunks[split] if chunk.rows
        )
        return [
            TablePartition(self._tree, self._columns, tuple(chunks)) for chunks in cut(sized, shard_bytes)
        ]


def _check_same(first: TableFile, other: TableFile) -> None:
    types = {name: kind for name, _, kind, _ in leaves(first.schema)}
    others = {name: kind for name, _, kind, _ in leaves(other.schema)}
    missing = [name for name in types if name not in others]
    added = [name for name in others if name not in types]
    if missing or added:
        stated = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"adds {', '.join(added)}"] * bool(added)
        raise SourceError(f"the file {' and '.join(stated)}, unlike {first.where}", path=other.where)
    for name, kind in types.items():
        if others[name] != kind:
            raise SourceError(
                f"the column is {others[name]} here and {kind} in {first.where}", path=other.where, field=name
            )
