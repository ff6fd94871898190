"""Datasets made byte by byte for the golden files: with fixed names, taken apart, changed, sealed again."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np

from fastload.format import (
    Manifest,
    ShardEntry,
    ShardTable,
    ShardWriter,
    SplitEntry,
    encode_value,
)
from fastload.format.checksum import python_crc32c as crc32c
from fastload.format.layout import BLOCK_BYTES, DIRECTORY_HEAD, HEADER, SECTION, TRAILER, Kind, align
from fastload.format.manifest import fingerprint_of
from fastload.schema import (
    Schema,
)

RANDOM = "0123456789abcdef"


def shard_bytes(
    schema: Schema, records: list[dict[str, Any]], number: int = 0, dictionary: bytes = b""
) -> bytes:
    out = bytearray()
    dictionaries = [
        dictionary if getattr(field, "codec", "raw") == "zstd" else b"" for field in schema.values()
    ]
    writer = ShardWriter(schema, out.extend, identity=bytes([number]) * 16, dictionaries=dictionaries)
    for record in records:
        writer.append(
            [
                None if record[name] is None else encode_value(field, record[name])
                for name, field in schema.items()
            ]
        )
    writer.finish()
    return bytes(out)


def entry_of(data: bytes, name: str) -> ShardEntry:
    offset, length, records, size, index, *_ = TRAILER.unpack(data[-64:])
    checksum = hashlib.sha256(data[offset : offset + length]).digest()[:16]
    return ShardEntry(name, records, size, size - index, checksum)


def publish(
    folder: Path, schema: Schema, splits: dict[str, list[tuple[ShardEntry, bytes | None]]], **options: Any
) -> None:
    folder.mkdir(parents=True)
    tables, entries = {}, {}
    for split, shards in splits.items():
        for entry, data in shards:
            if data is not None:
                (folder / entry.name).write_bytes(data)
        table_data = options.get("table") or ShardTable.build([entry for entry, _ in shards])
        name = f"{split}-{RANDOM}.table"
        (folder / name).write_bytes(table_data)
        records, size = sum(e.records for e, _ in shards), sum(e.file_bytes for e, _ in shards)
        entries[split] = SplitEntry(name, len(table_data), crc32c(table_data), len(shards), records, size)
        tables[split] = ShardTable.parse(ShardTable.build([entry for entry, _ in shards]), name)
    manifest = Manifest(
        schema, entries, fingerprint_of(schema, tables), options.get("metadata", {}), 1, "golden"
    )
    (folder / "manifest.json").write_bytes(manifest.to_bytes())


class Craft:
    """A shard taken apart, to be changed and sealed again with right CRCs."""

    def __init__(self, data: bytes) -> None:
        self.body = bytearray(data)
        self.header = list(HEADER.unpack_from(data))
        self.trailer = list(TRAILER.unpack(data[-64:]))
        at = self.trailer[0]
        count, schema_bytes, _ = DIRECTORY_HEAD.unpack_from(data, at)
        self.count, self.reserved = count, bytes(8)
        self.sections = [list(SECTION.unpack_from(data, at + 16 + 64 * i)) for i in range(count)]
        self.schema = data[at + 16 + 64 * count : at + 16 + 64 * count + schema_bytes]

    def section(self, kind: int, field: int = 0xFFFFFFFF) -> list[Any]:
        return next(s for s in self.sections if s[0] == kind and s[1] == field)

    def content(self, kind: int, field: int = 0xFFFFFFFF) -> memoryview:
        section = self.section(kind, field)
        return memoryview(self.body)[section[2] : section[2] + section[3]]

    def fix_checksums(self) -> Craft:
        """Make all CRCs of values, blocks and sections right for what the sections hold now."""
        ends = np.frombuffer(self.content(Kind.OFFSETS), "<u8").tolist()
        heap, values = self.content(Kind.HEAP), self.content(Kind.VALUE_CHECKSUMS)
        for i, end in enumerate(ends):
            start = ends[i - 1] if i else 0
            if start <= end <= len(heap):
                struct.pack_into("<I", values, 4 * i, crc32c(heap[start:end]))
        blocks = self.content(Kind.BLOCK_CHECKSUMS)
        for kind, field, _, length, block, _, at, _ in self.sections:
            for b in range(-(-length // BLOCK_BYTES) if block else 0):
                content = self.content(kind, field)[b * BLOCK_BYTES : (b + 1) * BLOCK_BYTES]
                struct.pack_into("<I", blocks, at + 4 * b, crc32c(content))
        for section in self.sections:
            section[5] = crc32c(self.content(section[0], section[1]))
        return self

    def pack(self) -> bytes:
        directory = DIRECTORY_HEAD.pack(self.count, len(self.schema), self.reserved)
        directory += b"".join(SECTION.pack(*section) for section in self.sections) + self.schema
        at = align(max(section[2] + section[3] for section in Craft(bytes(self.body)).sections), 8)
        self.trailer[1] = len(directory) if self.trailer[1] < 1 << 40 else self.trailer[1]
        self.trailer[3] = at + len(directory) + 64 if self.trailer[3] < 1 << 40 else self.trailer[3]
        self.trailer[5] = crc32c(directory)
        self.trailer[9] = crc32c(TRAILER.pack(*self.trailer)[:56])
        self.header[8] = crc32c(HEADER.pack(*self.header)[:60])
        body = bytes(self.body[:at]) + directory + TRAILER.pack(*self.trailer)
        return HEADER.pack(*self.header) + body[64:]
