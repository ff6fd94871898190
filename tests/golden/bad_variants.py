"""The known-bad variants of the golden files, made once by make_golden.py."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

from fastload.format import (
    ShardEntry,
    ShardWriter,
)
from fastload.format.checksum import python_crc32c as crc32c
from fastload.format.layout import Kind
from fastload.schema import (
    Bytes,
    Json,
    Label,
    Ragged,
    Scalar,
    Schema,
    Str,
    StrList,
    canonical_json,
)
from tests.golden.craft import RANDOM, Craft, entry_of, publish, shard_bytes

BAD_SCHEMA = Schema({"text": Str(nullable=True), "kind": Label(["a", "b"])})
BAD_RECORDS = [{"text": t, "kind": i % 2} for i, t in enumerate(["one", None, "three", "four", ""])]
SHARD, TABLE = f"{RANDOM}-000000.shard", f"default-{RANDOM}.table"
Edit = Callable[[bytearray], object]


def reseal_table(data: bytes, edit: Edit) -> bytes:
    out = bytearray(data)
    edit(out)
    struct.pack_into("<I", out, 56, crc32c(out[64:]))
    struct.pack_into("<I", out, 60, crc32c(out[:60]))
    return bytes(out)


class BadMaker:
    """Writes the known-bad variants: each is the files that differ from ``sound``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.cases: list[tuple[str, str, str]] = []
        self.data = shard_bytes(BAD_SCHEMA, BAD_RECORDS)
        publish(folder / "sound", BAD_SCHEMA, {"default": [(entry_of(self.data, SHARD), self.data)]})
        self.table = (folder / "sound" / TABLE).read_bytes()
        self.sound_manifest = (folder / "sound" / "manifest.json").read_bytes()
        self.case("sound", "", "nothing", {f.name: f.read_bytes() for f in (folder / "sound").iterdir()})
        shutil.rmtree(folder / "sound")

    def case(
        self, name: str, error: str, what: str, files: dict[str, bytes], removed: tuple[str, ...] = ()
    ) -> None:
        content = {
            "error": error,
            "what": what,
            "removed": list(removed),
            "files": {n: base64.b85encode(zlib.compress(data, 9)).decode() for n, data in files.items()},
        }
        (self.folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        self.cases.append((name, what, error))

    def flipped(self, name: str, error: str, what: str, file: str, data: bytes, offset: int) -> None:
        out = bytearray(data)
        out[offset] ^= 0x10
        self.case(name, error, what, {file: bytes(out)})

    def shard(
        self, name: str, error: str, what: str, change: Callable[[Craft], object], *, fix: bool = False
    ) -> None:
        """A shard changed by ``change``, with right CRCs, a table and a manifest that agree with it."""
        craft = Craft(self.data)
        change(craft)
        data = (craft.fix_checksums() if fix else craft).pack()
        self.whole(name, error, what, data)

    def whole(
        self,
        name: str,
        error: str,
        what: str,
        data: bytes,
        entry: ShardEntry | None = None,
        schema: Schema = BAD_SCHEMA,
    ) -> None:
        sane = Craft(self.data).trailer
        offset, length, _, _, index = struct.unpack_from("<5Q", data, len(data) - 64)
        index = index if index < len(data) else sane[4]
        checksum = hashlib.sha256(data[offset : offset + length]).digest()[:16]
        made = ShardEntry(SHARD, sane[2], len(data), max(len(data) - index, 0), checksum)
        made = entry or made
        scratch = self.folder / "scratch"
        publish(scratch, schema, {"default": [(made, data)]})
        self.case(name, error, what, {file.name: file.read_bytes() for file in scratch.iterdir()})
        shutil.rmtree(scratch)

    def tabled(self, name: str, error: str, what: str, edit: Edit) -> None:
        """A table changed by ``edit``, with right CRCs, and a manifest that agrees with it."""
        scratch = self.folder / "scratch"
        table = reseal_table(self.table, edit)
        publish(scratch, BAD_SCHEMA, {"default": [(entry_of(self.data, SHARD), None)]}, table=table)
        self.case(name, error, what, {file.name: file.read_bytes() for file in scratch.iterdir()})
        shutil.rmtree(scratch)

    def manifest(self, name: str, error: str, what: str, change: Callable[[dict[str, Any]], object]) -> None:
        content = json.loads(self.sound_manifest)
        content.pop("crc32c")
        change(content)
        content["crc32c"] = crc32c(canonical_json(content))
        self.case(name, error, what, {"manifest.json": json.dumps(content, indent=1).encode()})

    def values(self, name: str, field: Any, payload: bytes, what: str) -> None:
        """A value whose payload contradicts its type."""
        schema = Schema({"v": field})
        out = bytearray()
        # What is stored is the payload itself, so a zstd field is written as a raw one and renamed.
        raw = Bytes() if getattr(field, "codec", "raw") == "zstd" else field
        writer = ShardWriter(Schema({"v": raw}), out.extend, identity=bytes(16))
        writer.append([payload])
        writer.finish()
        craft = Craft(bytes(out))
        craft.schema = schema.json_bytes
        data = craft.pack()
        self.whole(name, "DecodeError", what, data, entry_of(data, SHARD), schema)


def set_item(target: Any, key: Any, value: Any) -> None:
    target[key] = value


def make_bad_bytes(bad: BadMaker) -> None:
    """Damage that CRCs show, and magics."""
    data, trailer = bad.data, Craft(bad.data).trailer
    sections = Craft(data)

    def at(kind: int, field: int = 0xFFFFFFFF) -> int:
        return int(sections.section(kind, field)[2])

    bad.case("no_manifest", "NotADatasetError", "the manifest is missing", {}, ("manifest.json",))
    bad.case("missing_shard", "ShardNotFoundError", "the shard is missing", {}, (SHARD,))
    bad.case("missing_table", "FormatError", "the shard table is missing", {}, (TABLE,))
    bad.case(
        "truncated_shard", "CorruptionError", "the shard's last 100 bytes are cut off", {SHARD: data[:-100]}
    )
    bad.case("grown_shard", "CorruptionError", "a byte follows the shard", {SHARD: data + b"\0"})
    bad.case("empty_shard", "CorruptionError", "the shard is empty", {SHARD: b""})
    bad.case(
        "truncated_table", "CorruptionError", "the table's last 8 bytes are cut off", {TABLE: bad.table[:-8]}
    )
    bad.flipped("flip_header", "CorruptionError", "a bit of the shard's identity", SHARD, data, 40)
    bad.flipped("flip_heap", "CorruptionError", "a bit of a value", SHARD, data, at(Kind.HEAP) + 1)
    bad.flipped("flip_column", "CorruptionError", "a bit of a column", SHARD, data, at(Kind.COLUMN, 1) + 9)
    bad.flipped("flip_offsets", "CorruptionError", "a bit of an end", SHARD, data, at(Kind.OFFSETS) + 8)
    bad.flipped(
        "flip_validity", "CorruptionError", "a bit of the validity bitmap", SHARD, data, at(Kind.VALIDITY, 0)
    )
    bad.flipped(
        "flip_value_crc", "CorruptionError", "a bit of a value's CRC", SHARD, data, at(Kind.VALUE_CHECKSUMS)
    )
    bad.flipped(
        "flip_block_crc", "CorruptionError", "a bit of a block's CRC", SHARD, data, at(Kind.BLOCK_CHECKSUMS)
    )
    bad.flipped("flip_directory", "CorruptionError", "a bit of the directory", SHARD, data, trailer[0] + 20)
    bad.flipped("flip_trailer", "CorruptionError", "a bit of the trailer", SHARD, data, len(data) - 60)
    bad.flipped("flip_shard_magic", "FormatError", "a bit of the shard's magic", SHARD, data, 1)
    bad.flipped(
        "flip_end_magic", "FormatError", "a bit of the magic at the shard's end", SHARD, data, len(data) - 1
    )
    bad.flipped("flip_table", "CorruptionError", "a bit of the table's arrays", TABLE, bad.table, 200)
    bad.flipped("flip_table_header", "CorruptionError", "a bit of the table's header", TABLE, bad.table, 17)
    manifest = bad.sound_manifest
    place = manifest.index(b'"records": 5') + 11
    bad.case(
        "flip_manifest",
        "CorruptionError",
        "a bit of a count in the manifest",
        {"manifest.json": manifest[:place] + bytes([manifest[place] ^ 1]) + manifest[place + 1 :]},
    )
    bad.case(
        "broken_manifest",
        "FormatError",
        "half of the manifest",
        {"manifest.json": manifest[: len(manifest) // 2]},
    )
    bad.case("other_manifest", "FormatError", "JSON of something else", {"manifest.json": b'{"a": 1}'})
    bad.case("deep_manifest", "FormatError", "100,000 nested lists", {"manifest.json": b"[" * 100_000})
    bad.whole("short_shard", "FormatError", "a shard of 100 bytes, as the table says", data[:100])


def make_bad_structure(bad: BadMaker) -> None:
    """Files with right CRCs that contradict the format."""
    huge = 1 << 60
    bad.shard("shard_major", "UnsupportedFormatError", "major version 9", lambda c: set_item(c.header, 1, 9))
    bad.shard(
        "trailer_major",
        "UnsupportedFormatError",
        "major version 9 at the end",
        lambda c: set_item(c.trailer, 6, 9),
    )
    bad.shard(
        "shard_feature",
        "UnsupportedFormatError",
        "an unknown required feature",
        lambda c: set_item(c.header, 4, 4),
    )
    bad.shard(
        "header_reserved",
        "FormatError",
        "a reserved byte of the header",
        lambda c: set_item(c.header, 7, b"x" + bytes(11)),
    )
    bad.shard("header_bytes", "FormatError", "a header of 128 bytes", lambda c: set_item(c.header, 3, 128))
    bad.shard(
        "other_identity",
        "FormatError",
        "the trailer of another shard",
        lambda c: set_item(c.trailer, 8, b"x" * 8),
    )
    bad.shard(
        "huge_directory_offset",
        "FormatError",
        "a directory far behind the end",
        lambda c: set_item(c.trailer, 0, huge),
    )
    bad.shard(
        "huge_directory", "FormatError", "a directory of 2^60 bytes", lambda c: set_item(c.trailer, 1, huge)
    )
    bad.shard("huge_file", "FormatError", "a file of 2^60 bytes", lambda c: set_item(c.trailer, 3, huge))
    bad.shard("huge_sections", "FormatError", "2^31 sections", lambda c: setattr(c, "count", 1 << 31))
    bad.shard(
        "directory_reserved",
        "FormatError",
        "a reserved byte of the directory",
        lambda c: setattr(c, "reserved", b"x" * 8),
    )
    bad.shard(
        "odd_index_offset",
        "FormatError",
        "an index that begins anywhere",
        lambda c: set_item(c.trailer, 4, c.trailer[4] + 8),
    )
    for name, what, position, value in [
        ("unknown_kind", "a section of an unknown kind", 0, 99),
        ("other_field", "a column of a field that is none", 1, 0),
        ("absent_field", "a column of field 1,000", 1, 1000),
        ("huge_section_offset", "a section at 2^60", 2, huge),
        ("wrapping_section_offset", "a section whose end passes 2^64", 2, (1 << 64) - 4096),
        ("odd_section_offset", "a section at no multiple of 4,096", 2, 8200),
        ("overlap", "a column over the heap", 2, 4096),
        ("huge_section", "a column of 2^60 bytes", 3, huge),
        ("short_section", "a column of 32 bytes for 5 records", 3, 32),
        ("block_bytes", "blocks of 1 byte", 4, 1),
        ("block_crcs", "block CRCs behind their section", 6, 4096),
        ("section_reserved", "a reserved byte of a section", 7, b"x" + bytes(23)),
    ]:
        bad.shard(
            name,
            "FormatError",
            what,
            lambda c, p=position, v=value: set_item(c.section(Kind.COLUMN, 1), p, v),
        )
    bad.shard(
        "twice",
        "FormatError",
        "two validity sections, no offsets",
        lambda c: set_item(c.section(Kind.OFFSETS), slice(0, 2), [Kind.VALIDITY, 0]),
    )
    bad.shard(
        "dictionary_of_raw",
        "FormatError",
        "a dictionary of a field without zstd",
        lambda c: set_item(c.section(Kind.VALIDITY, 0), 0, Kind.DICTIONARY),
    )
    bad.shard(
        "heap_in_index",
        "FormatError",
        "an index that begins with the heap",
        lambda c: set_item(c.trailer, 4, 4096),
    )

    def ends(values: list[int]) -> Callable[[Craft], object]:
        return lambda c: struct.pack_into("<5Q", c.content(Kind.OFFSETS), 0, *values)

    bad.shard("descending_ends", "FormatError", "an end before its start", ends([3, 3, 1, 12, 12]), fix=True)
    bad.shard("huge_end", "FormatError", "an end behind the heap", ends([3, 3, huge, huge, huge]), fix=True)
    bad.shard(
        "wrapping_end",
        "FormatError",
        "an end of 2^64 - 1",
        ends([3, 3, 8, (1 << 64) - 1, (1 << 64) - 1]),
        fix=True,
    )
    bad.shard("null_with_bytes", "FormatError", "a null that has bytes", ends([3, 5, 8, 12, 12]), fix=True)
    entry = entry_of(bad.data, SHARD)
    for name, what, changed in [
        (
            "table_checksum",
            "another checksum in the table",
            ShardEntry(SHARD, 5, entry.file_bytes, entry.index_bytes, bytes(16)),
        ),
        (
            "table_records",
            "another record count in the table",
            ShardEntry(SHARD, 6, entry.file_bytes, entry.index_bytes, entry.checksum),
        ),
        (
            "table_bytes",
            "another size in the table",
            ShardEntry(SHARD, 5, entry.file_bytes + 8, entry.index_bytes, entry.checksum),
        ),
        (
            "table_index",
            "another index length in the table",
            ShardEntry(SHARD, 5, entry.file_bytes, entry.index_bytes - 4096, entry.checksum),
        ),
    ]:
        bad.whole(name, "CorruptionError", what, bad.data, changed)
    other = Schema({"text": Str(nullable=True), "kind": Label(["a", "c"])})
    bad.whole("other_schema", "CorruptionError", "a manifest of another schema", bad.data, entry, other)


def make_bad_tables(bad: BadMaker) -> None:
    """Tables and manifests with right CRCs that contradict the format."""

    def put(offset: int, value: int, kind: str = "<Q") -> Edit:
        return lambda data: struct.pack_into(kind, data, offset, value)

    bad.tabled("table_magic", "FormatError", "another magic in the table", put(0, 7, "<B"))
    bad.tabled("table_major", "UnsupportedFormatError", "major version 9 of the table", put(8, 9, "<H"))
    bad.tabled("table_header_bytes", "FormatError", "a table header of 128 bytes", put(12, 128, "<I"))
    bad.tabled("table_reserved", "FormatError", "a reserved byte of the table", put(40, 1))
    bad.tabled("huge_shards", "FormatError", "2^60 shards", put(16, 1 << 60))
    bad.tabled("wrapping_shards", "FormatError", "2^61 shards, whose arrays wrap around", put(16, 1 << 61))
    bad.tabled("huge_names", "FormatError", "names of 2^60 bytes", put(24, 1 << 60))
    bad.tabled("huge_table", "FormatError", "a table of 2^60 bytes", put(32, 1 << 60))
    bad.tabled("first_start", "FormatError", "a first start that is not 0", put(64, 1))
    bad.tabled("huge_records", "FormatError", "2^63 records", put(72, 1 << 63))
    bad.tabled("name_end", "FormatError", "a name that ends elsewhere", put(320, 3))

    def rename(name: bytes) -> Edit:
        return lambda data: data.__setitem__(slice(384, 384 + len(name)), name)

    length = len(SHARD)
    bad.tabled(
        "name_leaves",
        "FormatError",
        "a shard's name that leaves the folder",
        rename(b"../" + b"x" * (length - 3)),
    )
    bad.tabled(
        "name_absolute",
        "FormatError",
        "an absolute path as a shard's name",
        rename(b"/" + b"x" * (length - 1)),
    )
    bad.tabled("name_with_nul", "FormatError", "a NUL in a shard's name", rename(b"x" * (length - 1) + b"\0"))
    bad.tabled("name_no_utf8", "FormatError", "a shard's name that is no UTF-8", rename(b"\xff" * length))

    split = ("splits", "default")
    bad.manifest(
        "manifest_major",
        "UnsupportedFormatError",
        "major version 9",
        lambda m: set_item(m, "version", [9, 0]),
    )
    bad.manifest(
        "manifest_feature",
        "UnsupportedFormatError",
        "an unknown required feature",
        lambda m: m["required_features"].append("x"),
    )
    bad.manifest(
        "manifest_version", "FormatError", "a version that is none", lambda m: set_item(m, "version", "0.1")
    )
    bad.manifest(
        "manifest_schema",
        "FormatError",
        "a field of an unknown type",
        lambda m: set_item(m["schema"]["fields"][0], "type", "cube"),
    )
    bad.manifest(
        "manifest_no_fields",
        "FormatError",
        "a schema without fields",
        lambda m: set_item(m["schema"], "fields", []),
    )
    bad.manifest(
        "manifest_split_name",
        "FormatError",
        "a split called ../x",
        lambda m: set_item(m["splits"], "../x", m["splits"].pop("default")),
    )
    bad.manifest(
        "manifest_table_leaves",
        "FormatError",
        "a table's name that leaves the folder",
        lambda m: set_item(m[split[0]][split[1]], "table", "../x.table"),
    )
    bad.manifest(
        "manifest_negative",
        "FormatError",
        "a negative count",
        lambda m: set_item(m[split[0]][split[1]], "records", -1),
    )
    bad.manifest(
        "manifest_records",
        "CorruptionError",
        "another record count",
        lambda m: set_item(m[split[0]][split[1]], "records", 6),
    )
    bad.manifest(
        "manifest_shards",
        "CorruptionError",
        "another shard count",
        lambda m: set_item(m[split[0]][split[1]], "shards", 2),
    )
    bad.manifest(
        "manifest_table_crc",
        "CorruptionError",
        "another CRC of the table",
        lambda m: set_item(m[split[0]][split[1]], "table_crc32c", 1),
    )


def make_bad_values(bad: BadMaker) -> None:
    """Values with right CRCs that contradict their type."""
    u64 = struct.Struct("<Q").pack
    bad.values("text_no_utf8", Str(), b"\xff\xfe", "text that is no UTF-8")
    bad.values("json_broken", Json(), b"{", "half of a JSON text")
    bad.values("label_outside", Label(["a"]), u64(7), "a label outside its classes")
    bad.values("bool_two", Scalar("bool"), b"\2", "a bool that is 2")
    bad.values("ragged_length", Ragged("int32"), b"123", "3 bytes of int32")
    bad.values(
        "ragged_shape",
        Ragged("int8", (None, None)),
        u64(1 << 40) + u64(1 << 40) + b"x",
        "a shape of 2^80 items",
    )
    bad.values("ragged_short", Ragged("int8", (None, None)), b"x", "a value shorter than its dimensions")
    bad.values("list_count", StrList(), u64(1 << 60), "a list of 2^60 texts")
    bad.values("list_ends", StrList(), u64(2) + u64(3) + u64(1) + b"abc", "ends that descend")
    bad.values("zstd_garbage", Bytes(codec="zstd"), b"no frame at all", "no zstd frame")
    frame = zstandard.ZstdCompressor().compress(b"x" * 100)
    bad.values("zstd_more", Bytes(codec="zstd"), frame + b"!", "a byte behind the frame")
    bad.values("zstd_cut", Bytes(codec="zstd"), frame[:-2], "a frame that is cut off")
    bad.values(
        "zstd_huge",
        Bytes(codec="zstd"),
        b"\x28\xb5\x2f\xfd\xe0" + u64(1 << 50) + b"\1\0\0",
        "a frame that claims 2^50 bytes",
    )
    bad.values(
        "zstd_ratio",
        Bytes(codec="zstd"),
        b"\x28\xb5\x2f\xfd\xe0" + u64(1 << 38) + b"\1\0\0",
        "16 bytes that claim to hold 2^38",
    )
    unnamed = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 100)
    bad.values("zstd_no_size", Bytes(codec="zstd"), unnamed, "a frame that does not name its size")


def make_bad(folder: Path) -> None:
    bad = BadMaker(folder)
    for make in (make_bad_bytes, make_bad_structure, make_bad_tables, make_bad_values):
        make(bad)
    lines = [
        "# Known-bad datasets",
        "",
        "Each JSON file is one dataset, as its difference from `sound.json`: the files that differ",
        "(zlib, then base 85), the files to remove, what was changed, and the error that a reader must",
        "raise by the time it has read every value. CRCs are right wherever the change is not about them.",
        "Made once by ../../make_golden.py.",
        "",
        "| file | what was changed | error |",
        "|---|---|---|",
        *(f"| {name} | {what} | {error} |" for name, what, error in bad.cases if error),
        "",
    ]
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
