"""The byte structures of docs/format.md: headers, trailer, directory entries, names."""

from __future__ import annotations

import dataclasses
import re
import struct
from typing import ClassVar

from fastload.errors import FormatError, UnsupportedFormatError, UsageError

__all__ = [
    "BLOCK_BYTES",
    "DIRECTORY_HEAD",
    "HEADER",
    "HEADER_BYTES",
    "MANIFEST_NAME",
    "MAX_DICTIONARY_BYTES",
    "MAX_MANIFEST_BYTES",
    "MAX_VALUE_BYTES",
    "NO_FIELD",
    "SECTION",
    "SECTION_ALIGNMENT",
    "SHARD_MAGIC",
    "TABLE_HEADER",
    "TABLE_MAGIC",
    "TRAILER",
    "TRAILER_BYTES",
    "TRAILER_MAGIC",
    "VERSION",
    "Kind",
    "Section",
    "ShardEntry",
    "align",
    "check_file_name",
    "check_split_name",
    "check_version",
    "shard_name",
    "table_name",
]

VERSION = (0, 1)

SHARD_MAGIC = b"\x89FLS\r\n\x1a\n"
TABLE_MAGIC = b"\x89FLT\r\n\x1a\n"
TRAILER_MAGIC = b"FLSE"
MANIFEST_NAME = "manifest.json"

HEADER_BYTES = TRAILER_BYTES = 64
SECTION_ALIGNMENT = 4096
BLOCK_BYTES = 65536
NO_FIELD = 0xFFFFFFFF
MAX_DICTIONARY_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_VALUE_BYTES = 1 << 40

# magic, major, minor, header bytes, required features, optional features, identity, reserved, CRC
HEADER = struct.Struct("<8sHHIQQ16s12sI")
# directory offset, directory bytes, records, file bytes, index offset, directory CRC, major, minor,
# identity[:8], CRC, magic
TRAILER = struct.Struct("<QQQQQIHH8sI4s")
# sections, schema bytes, reserved
DIRECTORY_HEAD = struct.Struct("<II8s")
# kind, field, offset, bytes, block bytes, CRC, offset of the block CRCs, reserved
SECTION = struct.Struct("<IIQQIIQ24s")
# magic, major, minor, header bytes, shards, names bytes, file bytes, reserved, body CRC, CRC
TABLE_HEADER = struct.Struct("<8sHHIQQQ16sII")


class Kind:
    """Kinds of sections."""

    HEAP = 1
    COLUMN = 2
    OFFSETS = 3
    VALIDITY = 4
    DICTIONARY = 5
    VALUE_CHECKSUMS = 6
    BLOCK_CHECKSUMS = 7

    WITH_FIELD = frozenset((COLUMN, VALIDITY, DICTIONARY))
    WITHOUT_FIELD = frozenset((HEAP, OFFSETS, VALUE_CHECKSUMS, BLOCK_CHECKSUMS))
    WITH_BLOCKS = frozenset((COLUMN, OFFSETS, VALIDITY, DICTIONARY))
    BEFORE_INDEX = frozenset((HEAP, COLUMN))
    NAMES: ClassVar[dict[int, str]] = {
        HEAP: "heap",
        COLUMN: "column",
        OFFSETS: "offsets",
        VALIDITY: "validity",
        DICTIONARY: "dictionary",
        VALUE_CHECKSUMS: "value checksums",
        BLOCK_CHECKSUMS: "block checksums",
    }


@dataclasses.dataclass(frozen=True)
class Section:
    """An entry of a shard's directory."""

    kind: int
    field: int
    offset: int
    length: int
    crc: int
    checksums: int = 0

    @property
    def end(self) -> int:
        """Offset of the first byte behind the section."""
        return self.offset + self.length

    @property
    def blocks(self) -> int:
        """Number of blocks with a CRC of their own."""
        return -(-self.length // BLOCK_BYTES) if self.kind in Kind.WITH_BLOCKS else 0

    def pack(self) -> bytes:
        """Return the 64 bytes of the entry."""
        block_bytes = BLOCK_BYTES if self.kind in Kind.WITH_BLOCKS else 0
        return SECTION.pack(
            self.kind, self.field, self.offset, self.length, block_bytes, self.crc, self.checksums, bytes(24)
        )


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """What the shard table says of one shard."""

    name: str
    records: int
    file_bytes: int
    index_bytes: int
    checksum: bytes


def align(position: int, alignment: int) -> int:
    """Return ``position`` rounded up to a multiple of ``alignment``.

    >>> align(4097, 4096), align(8, 8)
    (8192, 8)
    """
    return -(-position // alignment) * alignment


def check_version(major: int, minor: int, path: str, shard: str | None = None) -> None:
    """Raise UnsupportedFormatError where a file is of a major version that this release does not know."""
    if major != VERSION[0]:
        raise UnsupportedFormatError(
            f"format version {major}.{minor}; this fastload reads {VERSION[0]}.x",
            path=path,
            shard=shard,
            hint="install a newer fastload",
        )


def check_file_name(name: str, path: str) -> str:
    """Return ``name`` if it is a plain file name. Raises FormatError otherwise: it might leave the folder."""
    try:
        length = len(name.encode("utf-8"))
    except UnicodeEncodeError:
        length = 0
    if not 1 <= length <= 255 or name in (".", "..") or any(c in name for c in "/\\\0"):
        raise FormatError(f"{name!r} is not a plain file name", path=path, hint="do not trust this dataset")
    return name


_SPLIT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def check_split_name(name: object) -> str:
    """Return ``name`` if it can name a split. Raises UsageError otherwise.

    >>> check_split_name("train")
    'train'
    """
    if not isinstance(name, str) or not _SPLIT_NAME.fullmatch(name):
        raise UsageError(
            f"a split cannot be named {name!r}",
            hint="use 1 to 100 letters, digits, '_', '-' and '.', not beginning with '.' or '-'",
        )
    return name


def shard_name(random: str, number: int) -> str:
    """Return the file name of a Writer's shard.

    >>> shard_name("0123456789abcdef", 7)
    '0123456789abcdef-000007.shard'
    """
    return f"{random}-{number:06d}.shard"


def table_name(split: str, random: str) -> str:
    """Return the file name of a split's shard table."""
    return f"{split}-{random}.table"
