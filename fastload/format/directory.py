"""A shard's header, trailer and directory, built and checked (docs/format.md section 2)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence

from fastload.errors import CorruptionError, FormatError, SchemaError, UnsupportedFormatError
from fastload.format.checksum import crc32c
from fastload.format.layout import (
    BLOCK_BYTES,
    DIRECTORY_HEAD,
    HEADER,
    HEADER_BYTES,
    MAX_DICTIONARY_BYTES,
    NO_FIELD,
    SECTION,
    SECTION_ALIGNMENT,
    SHARD_MAGIC,
    TRAILER,
    TRAILER_BYTES,
    TRAILER_MAGIC,
    VERSION,
    Kind,
    Section,
    align,
    check_version,
)
from fastload.schema import ColumnField, HeapField, Schema, canonical_json

__all__ = [
    "Directory",
    "Trailer",
    "build_directory",
    "build_header",
    "check_header",
    "checksum_of",
    "parse_directory",
]


@dataclasses.dataclass(frozen=True)
class Where:
    """The file that a check is about, for its errors."""

    path: str
    shard: str

    def format_error(self, message: str, offset: int | None = None) -> FormatError:
        """Return an error that says that the file contradicts the format."""
        return FormatError(message, path=self.path, shard=self.shard, offset=offset)

    def corruption(
        self, message: str, offset: int | None = None, record: int | None = None, field: str | None = None
    ) -> CorruptionError:
        """Return an error that says that the file is damaged, and what to do."""
        return CorruptionError(
            message,
            path=self.path,
            shard=self.shard,
            record=record,
            field=field,
            offset=offset,
            hint="restore the file from a copy; `fastload verify` lists all damage",
        )


def build_header(identity: bytes) -> bytes:
    """Return the 64 bytes that begin a shard."""
    head = HEADER.pack(SHARD_MAGIC, *VERSION, HEADER_BYTES, 0, 0, identity, bytes(12), 0)[:-4]
    return head + crc32c(head).to_bytes(4, "little")


def check_header(data: memoryview, where: Where) -> bytes:
    """Check a shard's header and return the shard's identity."""
    magic, major, minor, header_bytes, required, _optional, identity, reserved, crc = HEADER.unpack(data)
    if magic != SHARD_MAGIC:
        raise where.format_error("not a fastload shard: its first bytes are wrong", 0)
    if crc32c(data[:-4]) != crc:
        raise where.corruption("the CRC of the shard's header differs", 0)
    check_version(major, minor, where.path, where.shard)
    if required:
        raise UnsupportedFormatError(
            f"the shard requires features that this fastload does not know (bits {required:#x})",
            path=where.path,
            shard=where.shard,
            hint="install a newer fastload",
        )
    if header_bytes != HEADER_BYTES or any(reserved):
        raise where.format_error("the shard's header contradicts the format", 0)
    return bytes(identity)


@dataclasses.dataclass(frozen=True)
class Trailer:
    """The last 64 bytes of a shard."""

    directory_offset: int
    directory_bytes: int
    records: int
    file_bytes: int
    index_offset: int
    directory_crc: int
    identity: bytes

    def pack(self) -> bytes:
        """Return the 64 bytes."""
        body = TRAILER.pack(
            self.directory_offset,
            self.directory_bytes,
            self.records,
            self.file_bytes,
            self.index_offset,
            self.directory_crc,
            *VERSION,
            self.identity[:8],
            0,
            TRAILER_MAGIC,
        )[:-8]
        return body + crc32c(body).to_bytes(4, "little") + TRAILER_MAGIC

    @classmethod
    def parse(cls, data: memoryview, file_bytes: int, identity: bytes, where: Where) -> Trailer:
        """Check a trailer against the file's real size and the header's identity."""
        at = file_bytes - TRAILER_BYTES
        directory_offset, directory_bytes, records, said_bytes, index_offset, directory_crc, *rest = (
            TRAILER.unpack(data)
        )
        major, minor, tail, crc, magic = rest
        if magic != TRAILER_MAGIC:
            raise where.format_error("the shard's last bytes are wrong: it was cut off, or is no shard", at)
        if crc32c(data[:-8]) != crc:
            raise where.corruption("the CRC of the shard's trailer differs", at)
        check_version(major, minor, where.path, where.shard)
        if tail != identity[:8]:
            raise where.format_error("header and trailer are of different shards", at)
        trailer = cls(
            directory_offset, directory_bytes, records, said_bytes, index_offset, directory_crc, identity
        )
        sizes_fit = (
            trailer.file_bytes == file_bytes
            and trailer.directory_offset + trailer.directory_bytes + TRAILER_BYTES == file_bytes
            and trailer.directory_offset % 8 == 0
            and trailer.directory_bytes >= DIRECTORY_HEAD.size
            and trailer.index_offset % SECTION_ALIGNMENT == 0
            and HEADER_BYTES <= trailer.index_offset <= trailer.directory_offset
            and trailer.records < 1 << 63
        )
        if not sizes_fit:
            raise where.format_error("the sizes in the shard's trailer contradict each other", at)
        return trailer


@dataclasses.dataclass(frozen=True)
class Directory:
    """A checked directory: every section lies within the file and has the length that it must have."""

    schema: Schema
    sections: tuple[Section, ...]
    heap: Section
    offsets: Section
    value_checksums: Section
    block_checksums: Section
    columns: dict[int, Section]
    validity: dict[int, Section]
    dictionaries: dict[int, Section]


def build_directory(sections: Sequence[Section], schema: Schema) -> bytes:
    """Return the bytes of a directory."""
    text = schema.json_bytes
    head = DIRECTORY_HEAD.pack(len(sections), len(text), bytes(8))
    return head + b"".join(section.pack() for section in sections) + text


def checksum_of(directory: bytes | memoryview) -> bytes:
    """Return the content checksum of a shard (docs/format.md section 2.4)."""
    return hashlib.sha256(directory).digest()[:16]


def parse_directory(data: memoryview, trailer: Trailer, schema: Schema | None, where: Where) -> Directory:
    """Check a directory whose CRC is right, and return it.

    ``schema`` is the dataset's, which the shard's must equal; None takes the shard's.
    """
    count, schema_bytes, reserved = DIRECTORY_HEAD.unpack_from(data)
    if any(reserved) or DIRECTORY_HEAD.size + count * SECTION.size + schema_bytes != len(data):
        raise where.format_error("the directory's counts contradict its length", trailer.directory_offset)
    schema = _schema(bytes(data[len(data) - schema_bytes :]), schema, where)
    sections = []
    previous_end = HEADER_BYTES
    for number in range(count):
        section = _section(data, number, where, trailer)
        if (
            section.offset < previous_end
            or section.offset % SECTION_ALIGNMENT
            or section.end > trailer.directory_offset
        ):
            raise where.format_error("a section overlaps another or leaves the file", section.offset)
        if (section.kind in Kind.BEFORE_INDEX) != (section.offset < trailer.index_offset):
            misplaced = section.length or section.kind not in Kind.BEFORE_INDEX
            if misplaced:
                raise where.format_error("a section is on the wrong side of the index offset", section.offset)
        if section.kind in Kind.BEFORE_INDEX and section.end > trailer.index_offset:
            raise where.format_error("a section passes the index offset", section.offset)
        previous_end = section.end
        sections.append(section)
    if align(previous_end, 8) != trailer.directory_offset:
        raise where.format_error("the directory is not behind the last section", trailer.directory_offset)
    return _assemble(sections, schema, trailer.records, where)


def _schema(text: bytes, expected: Schema | None, where: Where) -> Schema:
    if expected is not None:
        if text != expected.json_bytes:
            raise where.corruption("the shard's schema differs from the dataset's")
        return expected
    try:
        schema = Schema.from_json(json.loads(text.decode("utf-8")))
    except (ValueError, RecursionError, SchemaError) as error:
        raise where.format_error(f"the shard's schema cannot be read: {error}") from error
    if canonical_json(schema.to_json()) != text:
        raise where.format_error("the shard's schema is not written canonically")
    return schema


def _section(data: memoryview, number: int, where: Where, trailer: Trailer) -> Section:
    at = DIRECTORY_HEAD.size + number * SECTION.size
    kind, field, offset, length, block_bytes, crc, checksums, reserved = SECTION.unpack_from(data, at)
    if kind not in Kind.NAMES or any(reserved):
        raise where.format_error(
            f"the directory has a section of unknown kind {kind}", trailer.directory_offset + at
        )
    section = Section(kind, field, offset, length, crc, checksums)
    if block_bytes != (BLOCK_BYTES if kind in Kind.WITH_BLOCKS else 0):
        raise where.format_error(f"a {Kind.NAMES[kind]} section has blocks of {block_bytes} bytes", offset)
    if not section.blocks and checksums:
        raise where.format_error(f"a {Kind.NAMES[kind]} section without blocks has block checksums", offset)
    return section


def _assemble(sections: list[Section], schema: Schema, records: int, where: Where) -> Directory:
    fields = list(schema.values())
    by_key: dict[tuple[int, int], Section] = {}
    for section in sections:
        if section.kind in Kind.WITH_FIELD:
            known = section.field < len(fields) and _belongs(section.kind, fields[section.field])
        else:
            known = section.field == NO_FIELD
        if not known or (section.kind, section.field) in by_key:
            raise where.format_error(
                f"a {Kind.NAMES[section.kind]} section does not belong to the schema", section.offset
            )
        by_key[section.kind, section.field] = section
    values = records * len(schema.heap_names)
    lengths: dict[tuple[int, int], int] = {
        (Kind.OFFSETS, NO_FIELD): 8 * values,
        (Kind.VALUE_CHECKSUMS, NO_FIELD): 4 * values,
        (Kind.BLOCK_CHECKSUMS, NO_FIELD): 4 * sum(section.blocks for section in sections),
    }
    for number, field in enumerate(fields):
        if isinstance(field, ColumnField):
            lengths[Kind.COLUMN, number] = records * field.item_bytes
        if field.nullable:
            lengths[Kind.VALIDITY, number] = -(-records // 8)
    for (kind, number), length in lengths.items():
        found = by_key.get((kind, number))
        if found is None or found.length != length:
            said = "is missing" if found is None else f"has {found.length} bytes, not {length}"
            raise where.format_error(f"the {Kind.NAMES[kind]} section {said}")
    if (Kind.HEAP, NO_FIELD) not in by_key or (not values and by_key[Kind.HEAP, NO_FIELD].length):
        raise where.format_error("the heap section is missing, or holds bytes of no value")
    _check_blocks(sections, lengths[Kind.BLOCK_CHECKSUMS, NO_FIELD], where)
    return Directory(
        schema,
        tuple(sections),
        heap=by_key[Kind.HEAP, NO_FIELD],
        offsets=by_key[Kind.OFFSETS, NO_FIELD],
        value_checksums=by_key[Kind.VALUE_CHECKSUMS, NO_FIELD],
        block_checksums=by_key[Kind.BLOCK_CHECKSUMS, NO_FIELD],
        columns=_by_field(by_key, Kind.COLUMN),
        validity=_by_field(by_key, Kind.VALIDITY),
        dictionaries=_by_field(by_key, Kind.DICTIONARY),
    )


def _by_field(by_key: dict[tuple[int, int], Section], kind: int) -> dict[int, Section]:
    return {number: section for (its_kind, number), section in by_key.items() if its_kind == kind}


def _belongs(kind: int, field: object) -> bool:
    if kind == Kind.COLUMN:
        return isinstance(field, ColumnField)
    if kind == Kind.DICTIONARY:
        return isinstance(field, HeapField) and field.codec == "zstd"
    return bool(getattr(field, "nullable", False))


def _check_blocks(sections: Sequence[Section], checksum_bytes: int, where: Where) -> None:
    for section in sections:
        end = section.checksums + 4 * section.blocks
        if section.blocks and (section.checksums % 4 or end > checksum_bytes):
            raise where.format_error("block checksums lie outside their section", section.offset)
        if section.kind == Kind.DICTIONARY and section.length > MAX_DICTIONARY_BYTES:
            raise where.format_error(f"a dictionary of {section.length} bytes is too large", section.offset)
