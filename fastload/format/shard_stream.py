"""Records into shards of about one size: what Writer and Part writers share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastload import _backend
from fastload.errors import FastloadError, RecordError, UsageError, WriteError
from fastload.format.compression import Training
from fastload.format.layout import ShardEntry, shard_name
from fastload.format.protocols import BytesLike, Storage, WriteTo
from fastload.format.shard_writer import ShardWriter
from fastload.format.sizes import parse_size
from fastload.format.split import native_fields
from fastload.format.values import encode_value
from fastload.schema import Schema

__all__ = ["ShardStream", "remove_shards"]


class ShardStream:
    """Writes records into new shards of ``storage``; a shard ends with the record that reaches the size.

    File names are drawn anew for each stream. ``finished`` are the complete shards.
    """

    def __init__(
        self, storage: Storage, schema: Schema, shard_size: int | str, level: int, spill_bytes: int
    ) -> None:
        self._storage = storage
        self._schema = schema
        self._fields = list(schema.items())
        self._nested = any("." in name for name in schema)
        self._shard_size = parse_size(shard_size)
        self._level = level
        self._spill_bytes = spill_bytes
        self._dictionaries: list[bytes] = []
        # A dictionary is repeated in every shard, so small shards allow only small ones.
        training = Training(schema, level, self._shard_size // 16)
        self._training: Training | None = training if training.wanted else None
        self._random = secrets.token_hex(8)
        self._process = os.getpid()
        self._number = 0
        self._shard: Any = None
        self._file: WriteTo | None = None
        self._failed = False
        self.records = 0
        self.finished: list[ShardEntry] = []

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record. After a RecordError nothing was added; after any other error the stream is dead."""
        self.check_process()
        if self._failed:
            raise WriteError("an earlier write failed, so this writer cannot go on", path=self._storage.url)
        payloads = self._payloads(record)
        try:
            if self._training is None:
                self._store(payloads)
            else:
                self._training.hold(payloads)
                if not self._training.wanted:
                    self._end_training()
        except BaseException:
            self._failed = True
            raise
        self.records += 1

    def _end_training(self) -> None:
        if self._training is None:
            return
        training, self._training = self._training, None
        self._dictionaries = training.dictionaries()
        for payloads in training.held:
            self._store(payloads)

    def _store(self, payloads: Sequence[BytesLike | None]) -> None:
        if self._shard is None:
            self._begin()
        self._shard.append(payloads)
        if self._shard.bytes_written >= self._shard_size:
            self._end()

    def _payloads(self, record: Mapping[str, Any]) -> list[Any]:
        if not isinstance(record, Mapping):
            raise RecordError(
                f"a record is a {type(record).__name__}", record=self.records, hint="give a mapping"
            )
        if self._nested:
            record = _flatten(record, self._schema)
        payloads: list[Any] = []
        for name, field in self._fields:
            try:
                value = record[name]
                payloads.append(None if value is None and field.nullable else encode_value(field, value))
            except KeyError:
                if name in record:
                    raise
                raise RecordError(
                    "the record lacks the field",
                    record=self.records,
                    field=name,
                    hint=_missing_hint(field.nullable),
                ) from None
            except RecordError as error:
                error.record, error.field = self.records, name
                raise
        if len(record) > len(payloads):
            unknown = [str(name) for name in record if name not in self._schema]
            raise RecordError(
                f"the record has fields that the schema lacks: {', '.join(unknown[:5])}",
                record=self.records,
                hint=f"the schema has: {', '.join(self._schema)}",
            )
        return payloads

    def _begin(self) -> None:
        self._file = self._storage.open_write(shard_name(self._random, self._number))
        self._number += 1
        core = _backend.core()
        options: dict[str, Any] = {
            "identity": os.urandom(16),
            "level": self._level,
            "dictionaries": self._dictionaries,
            "spill_bytes": self._spill_bytes,
            # beside the shards where it can be: /tmp may be memory
            "spill_folder": self._storage.local_path,
        }
        write = self._file.write
        if core is not None:
            fields, schema_json = native_fields(self._schema), self._schema.json_bytes
            self._shard = core.ShardWriter(fields, schema_json, write, **options)
        else:
            self._shard = ShardWriter(self._schema, write, **options)

    def _end(self) -> None:
        if self._file is None:
            return
        records, file_bytes, index_bytes, checksum = self._shard.finish()
        self._file.close()
        name = shard_name(self._random, self._number - 1)
        self.finished.append(ShardEntry(name, records, file_bytes, index_bytes, bytes(checksum)))
        self._file = self._shard = None

    def finish(self) -> list[ShardEntry]:
        """Complete the last shard and return all of them."""
        self.check_process()
        if self._failed:
            raise WriteError("an earlier write failed, so nothing is published", path=self._storage.url)
        self._end_training()
        self._end()
        return self.finished

    def abort(self) -> None:
        """Remove all shards of this stream."""
        if not self.is_own_process:
            return  # a forked child's copy: the files are the parent's
        if self._file is not None:
            self._file.abort()
        if isinstance(self._shard, ShardWriter):
            self._shard.close()
        self._file = self._shard = None
        remove_shards(self._storage, self.finished)
        self.finished = []

    @property
    def is_own_process(self) -> bool:
        """Whether this is the process that made the stream, not one forked from it."""
        return self._process == os.getpid()

    def check_process(self) -> None:
        """Raise UsageError in any other process than the stream's own."""
        if not self.is_own_process:
            raise UsageError(
                "a writer was carried into another process",
                path=self._storage.url,
                hint="give each process its own Writer.part, and publish with Writer.commit",
            )


def _missing_hint(nullable: bool) -> str:
    return "give None for a null" if nullable else "every record needs every field of the schema"


def _flatten(record: Mapping[str, Any], schema: Schema) -> Mapping[str, Any]:
    """Return the record with nested mappings as dotted names, where the schema asks for it."""
    out: dict[str, Any] = {}

    def visit(mapping: Mapping[str, Any], prefix: str) -> None:
        for key, value in mapping.items():
            name = f"{prefix}{key}"
            if name not in schema and isinstance(value, Mapping):
                visit(value, f"{name}.")
            elif name in out:
                raise RecordError("the record has the field twice", field=name)
            else:
                out[name] = value

    visit(record, "")
    return out


def remove_shards(storage: Storage, shards: Sequence[ShardEntry]) -> None:
    """Remove shards as far as that is possible; what stays is `fastload gc`'s."""
    for shard in shards:
        try:
            storage.delete(shard.name)
        except FastloadError:
            continue
