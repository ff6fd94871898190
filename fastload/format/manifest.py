"""The manifest: what a dataset is (docs/format.md section 1.1)."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, TypeGuard

from fastload.errors import (
    CorruptionError,
    FormatError,
    NotADatasetError,
    SchemaError,
    UnsupportedFormatError,
    UsageError,
)
from fastload.format.checksum import crc32c
from fastload.format.layout import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    VERSION,
    check_file_name,
    check_split_name,
    check_version,
)
from fastload.format.protocols import Storage
from fastload.format.table import ShardTable
from fastload.schema import Schema, canonical_json

__all__ = ["Manifest", "SplitEntry", "fingerprint_of", "load_table"]

_WRITER = "fastload 0.1"


@dataclasses.dataclass(frozen=True)
class SplitEntry:
    """What the manifest says of one split."""

    table: str
    table_bytes: int
    table_crc32c: int
    shards: int
    records: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A dataset's schema, metadata and splits."""

    schema: Schema
    splits: Mapping[str, SplitEntry]
    fingerprint: str
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    generation: int = 1
    writer: str = _WRITER

    def to_bytes(self) -> bytes:
        """Return manifest.json. Raises UsageError where the metadata is no JSON."""
        content: dict[str, Any] = {
            "format": "fastload",
            "version": list(VERSION),
            "required_features": [],
            "schema": self.schema.to_json(),
            "metadata": dict(self.metadata),
            "splits": {name: dataclasses.asdict(split) for name, split in self.splits.items()},
            "fingerprint": self.fingerprint,
            "generation": self.generation,
            "writer": self.writer,
        }
        content["crc32c"] = crc32c(canonical_json(content))
        data = (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8")
        if len(data) > MAX_MANIFEST_BYTES:
            raise UsageError(
                f"the manifest would have {len(data)} bytes; the limit is {MAX_MANIFEST_BYTES}",
                hint="keep large metadata in a field or a file of its own",
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, path: str) -> Manifest:
        """Return the manifest that ``data`` holds.

        Raises FormatError, UnsupportedFormatError or CorruptionError.
        """
        content = _parse_json(data, path)
        if content.get("format") != "fastload":
            raise FormatError("not the manifest of a fastload dataset", path=path)
        _check_crc(content, path)
        version = content.get("version")
        if not isinstance(version, list) or len(version) != 2 or not all(_is_count(part) for part in version):
            raise FormatError(f"the manifest's version is {version!r}", path=path)
        check_version(version[0], version[1], path)
        features = content.get("required_features")
        if not isinstance(features, list):
            raise FormatError(f"the manifest's required_features are {features!r}", path=path)
        if features:
            raise UnsupportedFormatError(
                f"the dataset requires {', '.join(map(repr, features))}",
                path=path,
                hint="install a newer fastload",
            )
        return cls._from_content(content, path)

    @classmethod
    def _from_content(cls, content: dict[str, Any], path: str) -> Manifest:
        try:
            schema = Schema.from_json(content.get("schema"))
        except SchemaError as error:
            raise FormatError(
                f"the manifest's schema: {error.message}", path=path, hint=error.hint
            ) from error
        metadata, splits, fingerprint = (content.get(key) for key in ("metadata", "splits", "fingerprint"))
        generation, writer = content.get("generation"), content.get("writer")
        if not isinstance(metadata, dict) or not isinstance(splits, dict) or not isinstance(writer, str):
            raise FormatError("the manifest's metadata, splits or writer are missing", path=path)
        if not isinstance(fingerprint, str) or not re.fullmatch("[0-9a-f]{32}", fingerprint):
            raise FormatError(f"the manifest's fingerprint is {fingerprint!r}", path=path)
        if not _is_count(generation) or generation < 1:
            raise FormatError(f"the manifest's generation is {generation!r}", path=path)
        entries = {name: _split(name, split, path) for name, split in splits.items()}
        return cls(schema, entries, fingerprint, metadata, generation, writer)

    @classmethod
    def load(cls, storage: Storage) -> Manifest:
        """Read the manifest of a folder. Raises NotADatasetError where there is none, else as from_bytes."""
        manifest = read_manifest_bytes(storage)
        if manifest is None:
            raise NotADatasetError(
                f"no fastload dataset here: there is no {MANIFEST_NAME}",
                path=storage.url,
                hint="check the path; if the manifest was lost, `fastload repair` can rebuild it",
            )
        return cls.from_bytes(manifest, f"{storage.url}/{MANIFEST_NAME}")

    def split_name(self, split: str | None, path: str) -> str:
        """Return ``split``, or the only split where it is None. Raises UsageError for an unknown one."""
        names = ", ".join(self.splits) or "none"
        if split is None:
            if len(self.splits) == 1:
                return next(iter(self.splits))
            if "default" in self.splits:
                return "default"
            raise UsageError("the dataset has several splits", path=path, hint=f"name one of: {names}")
        if split not in self.splits:
            raise UsageError(f"there is no split {split!r}", path=path, hint=f"the splits are: {names}")
        return split


def read_manifest_bytes(storage: Storage) -> bytes | None:
    """Return manifest.json as it is, or None where there is none. Raises FormatError beyond 64 MiB."""
    try:
        source = storage.open_read(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        if source.size > MAX_MANIFEST_BYTES:
            raise FormatError(f"a manifest of {source.size} bytes is too large", path=source.path)
        return bytes(source.read(0, source.size))
    finally:
        source.close()


def load_table(storage: Storage, split: SplitEntry, *, check_crc: bool = True) -> ShardTable:
    """Read a split's shard table and check it against the manifest.

    Raises CorruptionError where they differ, ShardTable.parse's errors, and FormatError where it is missing.
    """
    path = f"{storage.url}/{split.table}"
    try:
        source = storage.open_read(split.table)
    except FileNotFoundError:
        raise FormatError(
            "the shard table that the manifest names is missing",
            path=path,
            hint="restore the file, or rebuild the manifest with `fastload repair`",
        ) from None
    try:
        if source.size != split.table_bytes:
            raise CorruptionError(
                f"the shard table has {source.size} bytes, the manifest says {split.table_bytes}", path=path
            )
        data = source.read(0, source.size)
    finally:
        source.close()
    if check_crc and crc32c(data) != split.table_crc32c:
        raise CorruptionError(
            "the CRC of the shard table differs from the manifest's",
            path=path,
            hint="restore the file, or rebuild it with `fastload repair`",
        )
    table = ShardTable.parse(data, path, check_crc=False)
    said = (split.shards, split.records, split.bytes)
    found = (table.shards, table.records, table.total_bytes)
    if said != found:
        raise CorruptionError(
            f"the manifest says {said[0]} shards, {said[1]} records, {said[2]} bytes; the shard table says "
            f"{found[0]}, {found[1]}, {found[2]}",
            path=path,
        )
    return table


def fingerprint_of(schema: Schema, tables: Mapping[str, ShardTable]) -> str:
    """Return the fingerprint of docs/format.md section 1.3."""
    digest = hashlib.sha256(schema.json_bytes)
    for name, table in tables.items():
        digest.update(b"\0" + name.encode("utf-8") + b"\0")
        digest.update(table.fingerprint_bytes())
    return digest.hexdigest()[:32]


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def _parse_json(data: bytes, path: str) -> dict[str, Any]:
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"the manifest is not JSON: {error}",
            path=path,
            hint="restore the file, or rebuild it with `fastload repair`",
        ) from error
    if not isinstance(content, dict):
        raise FormatError("the manifest is no JSON object", path=path)
    return content


def _check_crc(content: dict[str, Any], path: str) -> None:
    crc = content.pop("crc32c", None)
    try:
        actual = crc32c(canonical_json(content))
    except (SchemaError, RecursionError) as error:
        raise FormatError(f"the manifest is not plain JSON: {error}", path=path) from error
    if not _is_count(crc) or crc != actual:
        raise CorruptionError(
            "the CRC of the manifest differs: it was damaged or edited",
            path=path,
            hint="restore the file, or rebuild it with `fastload repair`",
        )


def _split(name: str, value: object, path: str) -> SplitEntry:
    keys = {field.name for field in dataclasses.fields(SplitEntry)}
    if not isinstance(value, dict) or not keys <= set(value):
        raise FormatError(f"the manifest's split {name!r} is incomplete", path=path)
    try:
        check_split_name(name)
    except UsageError as error:
        raise FormatError(error.message, path=path) from error
    if not isinstance(value["table"], str) or not all(_is_count(value[key]) for key in keys - {"table"}):
        raise FormatError(f"the manifest's split {name!r} has values of a wrong type", path=path)
    check_file_name(value["table"], path)
    return SplitEntry(**{key: value[key] for key in keys})
