"""One shard, streamed out front to back (docs/format.md section 2)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fastload.errors import EngineError, RecordError
from fastload.format.checksum import combine, crc32c
from fastload.format.compression import Compressor
from fastload.format.directory import Trailer, build_directory, build_header, checksum_of
from fastload.format.layout import (
    BLOCK_BYTES,
    HEADER_BYTES,
    NO_FIELD,
    SECTION_ALIGNMENT,
    TRAILER_BYTES,
    Kind,
    Section,
    align,
)
from fastload.format.protocols import BytesLike
from fastload.format.spill import Spill, SpilledSection
from fastload.schema import ColumnField, HeapField, Schema

__all__ = ["FinishedShard", "ShardWriter"]

_HEAP_BUFFER = 1 << 20
DEFAULT_LEVEL = 3
DEFAULT_SPILL_BYTES = 64 << 20


class FinishedShard(NamedTuple):
    """What the shard table needs to know of a written shard."""

    records: int
    file_bytes: int
    index_bytes: int
    checksum: bytes


class ShardWriter:
    """Writes records, given as payloads in schema order, through ``write``.

    ``write`` is called with pieces of the file in order; flushing and closing are the caller's.
    Columns, ends and checksums are held back until the end: in memory up to ``spill_bytes``, beyond that in
    a temporary file in ``spill_folder``. ``identity`` (16 bytes) is drawn where it is not given.
    ``dictionaries`` holds a zstd dictionary for each field, empty for none.
    """

    def __init__(
        self,
        schema: Schema,
        write: Callable[[BytesLike], object],
        *,
        level: int = DEFAULT_LEVEL,
        dictionaries: Sequence[bytes] = (),
        spill_bytes: int = DEFAULT_SPILL_BYTES,
        spill_folder: str | None = None,
        identity: bytes | None = None,
    ) -> None:
        self._schema = schema
        self._write = write
        self._identity = os.urandom(16) if identity is None else identity
        self._spill = Spill(spill_bytes, spill_folder)
        fields = list(schema.values())
        self._heap_numbers = [n for n, field in enumerate(fields) if field.is_heap]
        self._dictionaries = {n: dictionary for n, dictionary in enumerate(dictionaries) if dictionary}
        compressors = [
            Compressor(level, self._dictionaries.get(n, b""))
            if getattr(fields[n], "codec", "") == "zstd"
            else None
            for n in self._heap_numbers
        ]
        heap_fields = [field for field in fields if isinstance(field, HeapField)]
        self._heap = _Heap(self._out, heap_fields, compressors, self._spill)
        self._columns = {
            n: (self._spill.section(), field.item_bytes)
            for n, field in enumerate(fields)
            if isinstance(field, ColumnField)
        }
        self._validity = {n: _Bits(self._spill.section()) for n, field in enumerate(fields) if field.nullable}
        self._column_bytes = sum(length for _, length in self._columns.values())
        self._position = 0
        self._sections: list[Section] = []
        self._block_crcs: list[int] = []
        self.records = 0
        self._out(build_header(self._identity))
        self._pad(SECTION_ALIGNMENT)

    @property
    def bytes_written(self) -> int:
        """About how large the file would be if it ended now."""
        return (
            HEADER_BYTES
            + self._heap.bytes
            + self.records * (self._column_bytes + 12 * len(self._heap_numbers))
        )

    def append(self, payloads: Sequence[BytesLike | None]) -> None:
        """Add a record: one payload for each field, None for a null.

        Raises RecordError, before anything is stored, where a payload cannot be its field's; WriteError.
        """
        if len(payloads) != len(self._schema):
            raise RecordError(f"{len(payloads)} payloads for {len(self._schema)} fields")
        for number, (name, payload) in enumerate(zip(self._schema, payloads, strict=True)):
            if payload is None:
                if number not in self._validity:
                    raise RecordError("a null in a field that is not nullable", field=name)
            elif number in self._columns and len(payload) != self._columns[number][1]:
                raise RecordError(
                    f"{len(payload)} bytes for an item of {self._columns[number][1]}", field=name
                )
        for number, (section, length) in self._columns.items():
            payload = payloads[number]
            section.write(bytes(length) if payload is None else payload)
        for number, bits in self._validity.items():
            bits.append(payloads[number] is not None)
        if self._heap_numbers:
            self._heap.append([payloads[number] for number in self._heap_numbers])
        self.records += 1

    def finish(self) -> FinishedShard:
        """Write the rest of the file and return what the shard table needs."""
        if self._position < 0:
            raise EngineError("the shard was finished before")
        heap_crc = self._heap.finish()
        heap_offset = SECTION_ALIGNMENT
        self._sections.append(Section(Kind.HEAP, NO_FIELD, heap_offset, self._heap.bytes, heap_crc))
        for number, (section, _) in self._columns.items():
            self._add(Kind.COLUMN, number, section.pieces())
        self._pad(SECTION_ALIGNMENT)
        index_offset = self._position
        self._add(Kind.OFFSETS, NO_FIELD, self._heap.ends.pieces())
        for number, bits in self._validity.items():
            self._add(Kind.VALIDITY, number, bits.finish().pieces())
        for number, dictionary in self._dictionaries.items():
            self._add(Kind.DICTIONARY, number, [memoryview(dictionary)])
        self._add(Kind.VALUE_CHECKSUMS, NO_FIELD, self._heap.crcs.pieces())
        crcs = struct.pack(f"<{len(self._block_crcs)}I", *self._block_crcs)
        self._add(Kind.BLOCK_CHECKSUMS, NO_FIELD, [memoryview(crcs)])
        self._pad(8)
        return self._end(index_offset)

    def close(self) -> None:
        """Drop temporary files; called after ``finish``, or instead of it."""
        self._spill.close()

    def _end(self, index_offset: int) -> FinishedShard:
        directory = build_directory(self._sections, self._schema)
        size = self._position + len(directory) + TRAILER_BYTES
        trailer = Trailer(
            self._position,
            len(directory),
            self.records,
            size,
            index_offset,
            crc32c(directory),
            self._identity,
        )
        self._out(directory)
        self._out(trailer.pack())
        self._position = -1
        self.close()
        return FinishedShard(self.records, size, size - index_offset, checksum_of(directory))

    def _add(self, kind: int, field: int, pieces: Iterable[memoryview]) -> None:
        """Write a section. Pieces but the last are whole numbers of blocks."""
        self._pad(SECTION_ALIGNMENT)
        offset, crc = self._position, 0
        checksums = 4 * len(self._block_crcs)
        for piece in pieces:
            for begin in range(0, len(piece), BLOCK_BYTES):
                block = piece[begin : begin + BLOCK_BYTES]
                block_crc = crc32c(block)
                crc = combine(crc, block_crc, len(block))
                if kind in Kind.WITH_BLOCKS:
                    self._block_crcs.append(block_crc)
            self._out(piece)
        length = self._position - offset
        has_blocks = kind in Kind.WITH_BLOCKS and length > 0
        self._sections.append(Section(kind, field, offset, length, crc, checksums if has_blocks else 0))

    def _pad(self, alignment: int) -> None:
        self._out(bytes(align(self._position, alignment) - self._position))

    def _out(self, data: BytesLike) -> None:
        if len(data):
            self._write(data)
            self._position += len(data)


class _Bits:
    """A bitmap, least significant bit first."""

    def __init__(self, section: SpilledSection) -> None:
        self._section = section
        self._byte = self._count = 0

    def append(self, bit: bool) -> None:
        self._byte |= bit << self._count
        self._count += 1
        if self._count == 8:
            self._section.write(bytes((self._byte,)))
            self._byte = self._count = 0

    def finish(self) -> SpilledSection:
        if self._count:
            self._section.write(bytes((self._byte,)))
            self._count = 0
        return self._section


class _Heap:
    """The heap: values of a record behind one another, streamed out in large pieces."""

    def __init__(
        self,
        out: Callable[[BytesLike], None],
        fields: Sequence[HeapField],
        compressors: Sequence[Compressor | None],
        spill: Spill,
    ) -> None:
        self._out = out
        self._fields = fields
        self._compressors = compressors
        self.ends, self.crcs = spill.section(), spill.section()
        self._pack_ends = struct.Struct(f"<{len(fields)}Q").pack
        self._pack_crcs = struct.Struct(f"<{len(fields)}I").pack
        self.bytes = 0
        self._crc = 0
        self._buffer = bytearray()

    def append(self, payloads: Sequence[BytesLike | None]) -> None:
        ends, crcs = [], []
        for field, compressor, payload in zip(self._fields, self._compressors, payloads, strict=True):
            crc = 0
            if payload is not None:
                stored = payload if compressor is None else compressor.compress(payload)
                self._put(bytes(align(self.bytes, field.alignment) - self.bytes))
                crc = crc32c(stored)
                self._put(stored)
            ends.append(self.bytes)
            crcs.append(crc)
        self.ends.write(self._pack_ends(*ends))
        self.crcs.write(self._pack_crcs(*crcs))

    def finish(self) -> int:
        """Write out what is left, and return the CRC of the heap."""
        self._flush()
        return self._crc

    def _put(self, data: BytesLike) -> None:
        self.bytes += len(data)
        if len(data) >= _HEAP_BUFFER:
            self._flush()
            self._crc = crc32c(data, self._crc)
            self._out(data)
            return
        self._buffer += data
        if len(self._buffer) >= _HEAP_BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._buffer:
            self._crc = crc32c(self._buffer, self._crc)
            self._out(bytes(self._buffer))
            self._buffer = bytearray()
