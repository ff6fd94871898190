"""Reading every byte of a dataset, to say all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fastload.errors import CorruptionError, FastloadError, FormatError, ShardNotFoundError
from fastload.format.checksum import combine, crc32c
from fastload.format.layout import BLOCK_BYTES, HEADER_BYTES, Kind, Section, ShardEntry
from fastload.format.manifest import Manifest, fingerprint_of, load_table
from fastload.format.protocols import Storage
from fastload.format.shard_reader import ShardReader
from fastload.format.table import ShardTable
from fastload.schema import ColumnField, HeapField, Label, Schema

__all__ = ["Progress", "scan_shard", "verify_dataset"]

Progress = Callable[[int, int], None]
"""Called as (bytes done, bytes in all) after each shard."""

_PIECE_BYTES = 1 << 20
_MAX_PROBLEMS = 100  # of one kind in one shard: a wrong disk would give millions


def verify_dataset(
    storage: Storage, *, split: str | None = None, progress: Progress | None = None
) -> list[FastloadError]:
    """Read the whole dataset, or one split of it, and return every problem; none means that all is well.

    Checks the manifest and its fingerprint, the tables, every section, block and value checksum of every
    shard, reserved bytes and gaps, and that every value decodes (images, audio and video are not decoded).
    Problems are errors as reading would raise them; nothing is raised for bad data. Raises NotADatasetError
    where there is no manifest, UsageError for an unknown split.
    """
    try:
        manifest = Manifest.load(storage)
    except FormatError as error:
        if not storage.exists("manifest.json"):
            raise
        return [error]
    names = list(manifest.splits) if split is None else [manifest.split_name(split, storage.url)]
    problems: list[FastloadError] = []
    tables: dict[str, ShardTable] = {}
    for name in names:
        try:
            tables[name] = load_table(storage, manifest.splits[name])
            ShardTable.parse(tables[name].data, tables[name].path)
        except FastloadError as error:
            problems.append(error)
    if (
        split is None
        and len(tables) == len(names)
        and fingerprint_of(manifest.schema, tables) != manifest.fingerprint
    ):
        problems.append(CorruptionError("the fingerprint differs from the shard tables", path=storage.url))
    total = sum(table.total_bytes for table in tables.values())
    done = 0
    for table in tables.values():
        for number in range(table.shards):
            problems.extend(_verify_shard(storage, manifest.schema, table, number))
            done += int(table.file_bytes[number])
            if progress is not None:
                progress(done, total)
    return problems


def _verify_shard(storage: Storage, schema: Schema, table: ShardTable, number: int) -> list[FastloadError]:
    try:
        entry = table.entry(number)
        reader = open_shard(storage, entry, schema, first_record=int(table.starts[number]))
    except FastloadError as error:
        return [error]
    try:
        return list(scan_shard(reader, storage.url))
    finally:
        reader.close()


def open_shard(storage: Storage, entry: ShardEntry, schema: Schema, *, first_record: int = 0) -> ShardReader:
    """Open a shard outside any SplitReader. Raises ShardNotFoundError and ShardReader's errors."""
    try:
        source = storage.open_read(entry.name)
    except FileNotFoundError:
        raise ShardNotFoundError(
            "a shard that the dataset names is missing",
            path=storage.url,
            shard=entry.name,
            hint="restore the file, or drop it with `fastload repair`",
        ) from None
    return ShardReader(
        source,
        entry.name,
        path=storage.url,
        schema=schema,
        expected=entry,
        verify="first",
        first_record=first_record,
    )


def scan_shard(reader: ShardReader, path: str) -> Iterator[FastloadError]:
    """Yield every problem of a shard that was just opened, ``verify="first"``. ``path`` is for the errors."""
    broken = False
    for section in reader.directory.sections:
        if _section_crc(reader, section) != section.crc:
            broken = True
            kind = Kind.NAMES[section.kind]
            yield CorruptionError(
                f"the CRC of the {kind} section differs",
                path=path,
                shard=reader.name,
                field=list(reader.schema)[section.field] if section.kind in Kind.WITH_FIELD else None,
                offset=section.offset,
            )
    yield from _gaps(reader, path)
    yield from _blocks(reader)
    yield from _unused_bits(reader, path)
    for number, (name, field) in enumerate(reader.schema.items()):
        more = f"more values of {name!r} are damaged"
        plain = isinstance(field, ColumnField) and not field.nullable and not isinstance(field, Label)
        if plain and getattr(field, "dtype", None) != "bool" and not broken:
            continue  # any bytes are numbers, and their blocks were checked
        yield from _limited(_values(reader, number), more, path, reader.name)
    if not broken:
        yield from _heap_gaps(reader, path)


def _limited(problems: Iterator[FastloadError], more: str, path: str, shard: str) -> Iterator[FastloadError]:
    for count, problem in enumerate(problems):
        if count == _MAX_PROBLEMS:
            yield CorruptionError(more, path=path, shard=shard)
            return
        yield problem


def _section_crc(reader: ShardReader, section: Section) -> int:
    crc = 0
    for begin in range(0, section.length, _PIECE_BYTES):
        length = min(_PIECE_BYTES, section.length - begin)
        crc = combine(crc, crc32c(reader.read(section.offset + begin, length)), length)
    return crc


def _gaps(reader: ShardReader, path: str) -> Iterator[FastloadError]:
    """Check that between the sections there are zeros."""
    position = HEADER_BYTES
    ends = [(section.offset, section.end) for section in reader.directory.sections]
    for offset, end in [*ends, (reader.trailer.directory_offset, 0)]:
        if offset - position > 2 * 4096:
            yield FormatError(
                f"a gap of {offset - position} bytes", path=path, shard=reader.name, offset=position
            )
        elif any(reader.read(position, offset - position)):
            yield CorruptionError(
                "a gap between sections is not zeros", path=path, shard=reader.name, offset=position
            )
        position = end


def _blocks(reader: ShardReader) -> Iterator[FastloadError]:
    for section in reader.directory.sections:
        field = section.field if section.kind in Kind.WITH_FIELD else None
        for block in range(section.blocks):
            begin = block * BLOCK_BYTES
            record = _first_record_of(reader, section, begin)
            try:
                reader.read_section(section, begin, begin + 1, record, field)
            except FastloadError as error:
                yield error


def _first_record_of(reader: ShardReader, section: Section, begin: int) -> int:
    if section.kind == Kind.VALIDITY:
        return begin * 8
    return begin * reader.records // section.length if section.kind != Kind.DICTIONARY else 0


def _unused_bits(reader: ShardReader, path: str) -> Iterator[FastloadError]:
    for number, section in reader.directory.validity.items():
        if reader.records % 8 and reader.read(section.end - 1, 1)[0] >> (reader.records % 8):
            yield FormatError(
                "unused bits of the validity bitmap are set",
                path=path,
                shard=reader.name,
                field=list(reader.schema)[number],
                offset=section.end - 1,
            )


def _values(reader: ShardReader, number: int) -> Iterator[FastloadError]:
    for record in range(reader.records):
        try:
            reader.value(record, number)
        except FastloadError as error:
            yield error


def _heap_gaps(reader: ShardReader, path: str) -> Iterator[FastloadError]:
    """Check the last end, and that the zeros for alignment are zeros."""
    directory = reader.directory
    fields = [field for field in reader.schema.values() if isinstance(field, HeapField)]
    if not fields or not reader.records:
        return
    last = int.from_bytes(reader.read(directory.offsets.end - 8, 8), "little")
    if last != directory.heap.length:
        yield FormatError(
            f"the last value ends at {last} of a heap of {directory.heap.length} bytes",
            path=path,
            shard=reader.name,
            offset=directory.offsets.end - 8,
        )
    if all(field.alignment == 1 for field in fields):
        return
    ends: np.ndarray[Any, Any] = np.frombuffer(
        reader.read(directory.offsets.offset, directory.offsets.length), dtype="<u8"
    )
    for index in np.flatnonzero(ends[:-1] % 8):
        end = int(ends[index])
        record, v = divmod(int(index) + 1, len(fields))
        number = list(reader.schema).index(reader.schema.heap_names[v])
        start, _ = reader.range_of(record, number)
        if any(reader.read(directory.heap.offset + end, start - end)):
            yield CorruptionError(
                "the bytes between two values are not zeros",
                path=path,
                shard=reader.name,
                offset=directory.heap.offset + end,
            )
