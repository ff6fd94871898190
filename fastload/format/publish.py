"""Making a new manifest from an old one and new shards, and publishing it in one step."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastload.errors import FormatError, UsageError, WriteError
from fastload.format.checksum import crc32c
from fastload.format.layout import MANIFEST_NAME, ShardEntry, check_split_name, table_name
from fastload.format.manifest import Manifest, SplitEntry, fingerprint_of, load_table
from fastload.format.protocols import Storage
from fastload.format.table import ShardTable
from fastload.schema import Schema, canonical_json

__all__ = ["MODES", "Base", "publish_dataset", "read_base"]

MODES = ("create", "append", "overwrite")


@dataclasses.dataclass(frozen=True)
class Base:
    """What a writer found when it began: the manifest it builds on, which must still be there at the end.

    ``manifest`` is None where the new manifest starts afresh; ``found`` are the bytes that were there;
    ``generation`` is that of the manifest that is replaced, 0 for none.
    """

    manifest: Manifest | None
    found: bytes | None
    generation: int


def read_base(storage: Storage, mode: str, schema: Schema | None) -> Base:
    """Look at the target of a writer. ``schema`` None skips the comparison of schemas.

    - ``create``: there must be no dataset;
    - ``append``: its splits stay, and the schema must be equal; none there is as good as an empty one;
    - ``overwrite``: whatever is there is replaced as a whole.

    Raises UsageError where the mode does not allow what is there, and the manifest's errors.
    """
    if mode not in MODES:
        raise UsageError(f"mode is {mode!r}", hint=f"use one of {', '.join(MODES)}")
    found = current_manifest(storage)
    if found is None:
        return Base(None, None, 0)
    if mode == "create":
        raise UsageError(
            "there is a dataset already",
            path=storage.url,
            hint="add to it with mode='append', or replace it with mode='overwrite' (convert: --overwrite)",
        )
    path = f"{storage.url}/{MANIFEST_NAME}"
    if mode == "overwrite":
        try:
            return Base(None, found, Manifest.from_bytes(found, path).generation)
        except FormatError:
            return Base(None, found, 0)  # a broken manifest may be overwritten like any other
    manifest = Manifest.from_bytes(found, path)
    if schema is not None and manifest.schema != schema:
        raise UsageError(
            "the schema differs from the dataset's",
            path=storage.url,
            hint="append with the dataset's own schema, or write another dataset",
        )
    return Base(manifest, found, manifest.generation)


def current_manifest(storage: Storage) -> bytes | None:
    """Return manifest.json as it is, of any size, or None."""
    try:
        source = storage.open_read(MANIFEST_NAME)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return bytes(source.read(0, source.size))
    finally:
        source.close()


def publish_dataset(
    storage: Storage,
    base: Base,
    schema: Schema,
    new: Mapping[str, Sequence[ShardEntry]],
    *,
    metadata: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Manifest:
    """Publish the base's splits with ``new`` shards behind their own; splits that are not there are added.

    ``replace=True`` puts ``new`` in the place of the splits' own shards. ``metadata`` None keeps the base's;
    given, its keys replace the base's of the same name. The tables are written and flushed before.
    Raises WriteError where somebody else has published since the base was read, where a shard is missing,
    and where writing fails; then nothing has changed.
    """
    old = base.manifest
    splits: dict[str, SplitEntry] = dict(old.splits) if old is not None else {}
    tables = {name: load_table(storage, split) for name, split in splits.items()}
    merged = {**(dict(old.metadata) if old is not None else {}), **(metadata or {})}
    canonical_json(merged)  # raises SchemaError before anything is written
    check_present(storage, new)
    written: list[str] = []
    random = secrets.token_hex(8)
    try:
        for name, shards in new.items():
            entries = [*(tables[name].entries() if name in tables and not replace else ()), *shards]
            file_name = table_name(check_split_name(name), random)
            data = ShardTable.build(entries)
            written.append(file_name)
            write_file(storage, file_name, data)
            table = tables[name] = ShardTable.parse(data, f"{storage.url}/{file_name}", check_crc=False)
            splits[name] = SplitEntry(
                file_name, len(data), crc32c(data), table.shards, table.records, table.total_bytes
            )
        # The fingerprint takes the splits in the manifest's order.
        ordered = {name: tables[name] for name in splits}
        manifest = Manifest(schema, splits, fingerprint_of(schema, ordered), merged, base.generation + 1)
        storage.publish(MANIFEST_NAME, manifest.to_bytes(), lambda now: _unchanged(now, base, storage.url))
    except BaseException:
        for file_name in written:
            storage.delete(file_name)
        raise
    return manifest


def check_present(storage: Storage, new: Mapping[str, Sequence[ShardEntry]]) -> None:
    """Raise WriteError where a shard that is to be published is not there (any more)."""
    wanted = [entry.name for entries in new.values() for entry in entries]
    if not wanted:
        return
    present = set(storage.list())
    for name in wanted:
        if name not in present:
            raise WriteError(
                "a shard was removed before it could be published",
                path=storage.url,
                shard=name,
                hint="do not run `fastload gc` with --older-than 0 while something writes here",
            )


def write_file(storage: Storage, name: str, data: bytes) -> None:
    """Write a whole file, flushed. Raises WriteError; then nothing is left of it."""
    file = storage.open_write(name)
    try:
        file.write(data)
        file.close()
    except BaseException:
        file.abort()
        raise


def _unchanged(now: bytes | None, base: Base, url: str) -> None:
    if now != base.found:
        raise WriteError(
            "another writer published here meanwhile; publishing would lose its records",
            path=url,
            hint="run it again with mode='append'",
        )
