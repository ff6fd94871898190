"""One shard, checked as docs/format.md says: the Python engine's reader."""

from __future__ import annotations

from typing import Any

from fastload.errors import DecodeError, FormatError, UsageError
from fastload.format.checksum import crc32c
from fastload.format.compression import Decompressor
from fastload.format.directory import Directory, Trailer, Where, check_header, checksum_of, parse_directory
from fastload.format.layout import (
    BLOCK_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    Section,
    ShardEntry,
    align,
)
from fastload.format.protocols import ReadAt
from fastload.format.values import decode_value
from fastload.format.verified import Verified
from fastload.schema import Field, HeapField, Schema

__all__ = ["ShardReader"]

_MAX_PREFETCH = 64 << 20
_VALUES = -1  # the group of heap values in Verified; sections count from 0


class ShardReader:
    """Reads records of one shard.

    ``schema`` is the dataset's and ``expected`` what its table says: a shard that differs is refused.
    Without them the shard alone is trusted, as repair must. ``first_record`` is added to record numbers in
    errors. Fields are given by their number in the schema; record numbers are within the shard, and the
    caller has checked them.

    Raises FormatError, UnsupportedFormatError or CorruptionError where the file is not right.
    """

    def __init__(
        self,
        source: ReadAt,
        name: str,
        *,
        path: str = "",
        schema: Schema | None = None,
        expected: ShardEntry | None = None,
        verify: str = "first",
        first_record: int = 0,
    ) -> None:
        self._where = Where(path, name)
        self.name = name
        self.first_record = first_record
        self._verified = Verified(verify)
        size = source.size
        if expected is not None and size != expected.file_bytes:
            raise self._where.corruption(
                f"the shard has {size} bytes, the shard table says {expected.file_bytes}"
            )
        if size < HEADER_BYTES + TRAILER_BYTES:
            raise self._where.format_error(f"{size} bytes are too few for a shard")
        self._source = source
        self._tail, self._tail_offset = b"", size
        self.identity = check_header(self.read(0, HEADER_BYTES), self._where)
        if (
            not source.mapped
            and expected is not None
            and TRAILER_BYTES <= expected.index_bytes <= _MAX_PREFETCH
        ):
            # One request brings everything that opening and locating records needs.
            self._tail_offset = size - expected.index_bytes
            self._tail = bytes(source.read(self._tail_offset, expected.index_bytes))
        tail = self.read(size - TRAILER_BYTES, TRAILER_BYTES)
        self.trailer = Trailer.parse(tail, size, self.identity, self._where)
        self.directory = self._read_directory(schema, expected)
        self.schema = self.directory.schema
        self.records = self.trailer.records
        self._fields: list[Field] = list(self.schema.values())
        self._names = list(self.schema)
        self._heap_index = {self._names.index(name): v for v, name in enumerate(self.schema.heap_names)}
        self._section_number = {id(section): n for n, section in enumerate(self.directory.sections)}
        self._decompressors: dict[int, Decompressor] = {}
        self._check_heap_end()

    def _check_heap_end(self) -> None:
        offsets, heap = self.directory.offsets, self.directory.heap
        if not offsets.length:
            return
        last = offsets.length - 8
        if int.from_bytes(self.read(offsets.offset + last, 8), "little") != heap.length:
            # A damaged block is the likelier cause, and another error.
            self.read_section(offsets, last, offsets.length, self.records - 1, None)
            raise self._where.format_error(
                "the last offset differs from the length of the heap", offsets.offset + last
            )

    def _read_directory(self, schema: Schema | None, expected: ShardEntry | None) -> Directory:
        trailer = self.trailer
        data = self.read(trailer.directory_offset, trailer.directory_bytes)
        if crc32c(data) != trailer.directory_crc:
            raise self._where.corruption("the CRC of the shard's directory differs", trailer.directory_offset)
        if expected is not None:
            said = (expected.records, expected.index_bytes, expected.checksum)
            if said != (trailer.records, trailer.file_bytes - trailer.index_offset, checksum_of(data)):
                raise self._where.corruption("the shard is not the one that the shard table describes")
        return parse_directory(data, trailer, schema, self._where)

    @property
    def entry(self) -> ShardEntry:
        """What a shard table should say of this shard."""
        trailer = self.trailer
        data = self.read(trailer.directory_offset, trailer.directory_bytes)
        index_bytes = trailer.file_bytes - trailer.index_offset
        return ShardEntry(self.name, self.records, trailer.file_bytes, index_bytes, checksum_of(data))

    def close(self) -> None:
        """Let go of the file. Views that are still held stay valid."""
        self._source.close()

    def read(self, offset: int, length: int) -> memoryview:
        """Return bytes of the file, unchecked but for the range, which the caller has checked."""
        if offset >= self._tail_offset:
            # A view of its own each time, as _LocalReadAt.read has.
            return memoryview(self._tail)[offset - self._tail_offset : offset - self._tail_offset + length]
        return self._source.read(offset, length)

    def read_section(
        self, section: Section, begin: int, end: int, record: int, field: int | None
    ) -> memoryview:
        """Return bytes of a section with block checksums, checking the blocks that are touched as asked.

        ``record`` and ``field`` are for the error.
        """
        number = self._section_number[id(section)]
        for block in range(begin // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            if self._verified.wanted(number, block):
                self._check_block(section, block, record, field)
                self._verified.done(number, block)
        return self.read(section.offset + begin, end - begin)

    def _check_block(self, section: Section, block: int, record: int, field: int | None) -> None:
        begin = block * BLOCK_BYTES
        data = self.read(section.offset + begin, min(BLOCK_BYTES, section.length - begin))
        place = self.directory.block_checksums.offset + section.checksums + 4 * block
        if crc32c(data) != int.from_bytes(self.read(place, 4), "little"):
            raise self._where.corruption(
                "the CRC of a block differs",
                section.offset + begin,
                self.first_record + record,
                None if field is None else self._names[field],
            )

    def valid(self, record: int, field: int) -> bool:
        """Return whether the field has a value, and is not null."""
        section = self.directory.validity.get(field)
        if section is None:
            return True
        byte = self.read_section(section, record >> 3, (record >> 3) + 1, record, field)[0]
        return bool(byte >> (record & 7) & 1)

    def item(self, record: int, field: int) -> memoryview:
        """Return the item of a column field; zeros for a null."""
        section = self.directory.columns.get(field)
        if section is None:
            raise UsageError(f"{self._names[field]!r} is not a column field")
        length: int = getattr(self._fields[field], "item_bytes")  # noqa: B009 - column fields have it
        return self.read_section(section, record * length, (record + 1) * length, record, field)

    def stored(self, record: int, field: int) -> memoryview:
        """Return the stored bytes of a heap field, before its codec; empty for a null."""
        start, end = self.range_of(record, field)
        heap = self.directory.heap
        data = self.read(heap.offset + start, end - start)
        index = record * len(self._heap_index) + self._heap_index[field]
        if self._verified.wanted(_VALUES, index):
            place = self.directory.value_checksums.offset + 4 * index
            # A null's entry is 0, as is the CRC of no bytes.
            if crc32c(data) != int.from_bytes(self.read(place, 4), "little"):
                raise self._where.corruption(
                    "the CRC of a value differs",
                    heap.offset + start,
                    self.first_record + record,
                    self._names[field],
                )
            self._verified.done(_VALUES, index)
        return data

    def range_of(self, record: int, field: int) -> tuple[int, int]:
        """Return where in the heap a value's stored bytes begin and end; equal for a null."""
        v = self._heap_index.get(field)
        if v is None:
            raise UsageError(f"{self._names[field]!r} is not a heap field")
        index = record * len(self._heap_index) + v
        offsets = self.directory.offsets
        data = self.read_section(offsets, 8 * max(index - 1, 0), 8 * (index + 1), record, field)
        end = int.from_bytes(data[-8:], "little")
        previous = int.from_bytes(data[:8], "little") if index else 0
        start = previous
        valid = self.valid(record, field)
        if valid:
            start = align(previous, self._heap_field(field).alignment)
        if not start <= end <= self.directory.heap.length or (not valid and start != end):
            raise FormatError(
                f"the value's end {end} contradicts its start {start} or the heap",
                path=self._where.path,
                shard=self.name,
                record=self.first_record + record,
                field=self._names[field],
                offset=offsets.offset + 8 * index,
            )
        return start, end

    def payload(self, record: int, field: int) -> memoryview | None:
        """Return the payload of any field after its codec, or None for a null. Raises DecodeError too."""
        if not self.valid(record, field):
            if field in self._heap_index:
                self.stored(record, field)
            return None
        if field not in self._heap_index:
            return self.item(record, field)
        data = self.stored(record, field)
        if self._heap_field(field).codec == "raw":
            return data
        try:
            return memoryview(self._decompressor(field, record).decompress(data))
        except DecodeError as error:
            raise self._located(error, record, field) from error

    def value(self, record: int, field: int) -> Any:
        """Return the decoded value (see decode_value), or None for a null."""
        payload = self.payload(record, field)
        if payload is None:
            return None
        try:
            return decode_value(self._fields[field], payload)
        except DecodeError as error:
            raise self._located(error, record, field) from error

    def _located(self, error: DecodeError, record: int, field: int) -> DecodeError:
        return DecodeError(
            error.message,
            path=self._where.path,
            shard=self.name,
            record=self.first_record + record,
            field=self._names[field],
            hint=error.hint,
        )

    def _heap_field(self, field: int) -> HeapField:
        found = self._fields[field]
        assert isinstance(found, HeapField)
        return found

    def _decompressor(self, field: int, record: int) -> Decompressor:
        found = self._decompressors.get(field)
        if found is None:
            section = self.directory.dictionaries.get(field)
            dictionary = memoryview(b"")
            if section is not None:
                dictionary = self.read_section(section, 0, section.length, record, field)
            found = self._decompressors[field] = Decompressor(dictionary)
        return found
