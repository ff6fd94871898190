"""Making datasets: one Writer, or parts written in parallel and published by one commit."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from fastload import _backend
from fastload.errors import FastloadError, RecordError, UsageError, WriteError
from fastload.format import ShardEntry, Storage, WriteTo, encode_value, parse_size
from fastload.format.layout import check_split_name, shard_name
from fastload.format.manifest import Manifest
from fastload.format.publish import Base, publish_dataset, read_base
from fastload.format.shard_writer import ShardWriter
from fastload.format.split import native_fields
from fastload.schema import Schema, canonical_json
from fastload.storage import open_storage

__all__ = ["Part", "PartWriter", "Writer"]

_SPILL_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Part:
    """Finished shards that no manifest names yet. Picklable: hand it to Writer.commit."""

    name: str
    split: str
    schema_json: bytes
    shards: tuple[ShardEntry, ...]

    @property
    def records(self) -> int:
        """Number of records in the part."""
        return sum(shard.records for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of the part's shards."""
        return sum(shard.file_bytes for shard in self.shards)


class _ShardStream:
    """Writes records into shards of about one size: what Writer and PartWriter share."""

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
        self._random = secrets.token_hex(8)
        self._process = os.getpid()
        self._number = 0
        self._shard: Any = None
        self._file: WriteTo | None = None
        self._failed = False
        self.records = 0
        self.finished: list[ShardEntry] = []

    def append(self, record: Mapping[str, Any]) -> None:
        self.check_process()
        if self._failed:
            raise WriteError("an earlier write failed, so this writer cannot go on", path=self._storage.url)
        payloads = self._payloads(record)
        try:
            if self._shard is None:
                self._begin()
            self._shard.append(payloads)
            if self._shard.bytes_written >= self._shard_size:
                self._end()
        except BaseException:
            self._failed = True
            raise
        self.records += 1

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
        # The temporary file for columns lies beside the shards where it can: /tmp may be memory.
        folder = self._storage.local_path
        if core is not None and hasattr(core, "ShardWriter"):
            self._shard = core.ShardWriter(
                native_fields(self._schema),
                self._schema.json_bytes,
                self._file.write,
                level=self._level,
                spill_bytes=self._spill_bytes,
                spill_folder=folder or "",
            )
        else:
            self._shard = ShardWriter(
                self._schema,
                self._file.write,
                level=self._level,
                spill_bytes=self._spill_bytes,
                spill_folder=folder,
            )

    def _end(self) -> None:
        if self._file is None:
            return
        records, file_bytes, index_bytes, checksum = self._shard.finish()
        self._file.close()
        name = shard_name(self._random, self._number - 1)
        self.finished.append(ShardEntry(name, records, file_bytes, index_bytes, bytes(checksum)))
        self._file = self._shard = None

    def finish(self) -> list[ShardEntry]:
        """Complete the last shard."""
        self.check_process()
        if self._failed:
            raise WriteError("an earlier write failed, so nothing is published", path=self._storage.url)
        self._end()
        return self.finished

    def abort(self) -> None:
        """Remove all shards of this stream."""
        if self._process != os.getpid():
            return  # a forked child's copy: the files are the parent's
        if self._file is not None:
            self._file.abort()
        if isinstance(self._shard, ShardWriter):
            self._shard.close()
        self._file = self._shard = None
        remove_shards(self._storage, self.finished)
        self.finished = []

    def check_process(self) -> None:
        if self._process != os.getpid():
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


def _schema_of(schema: Schema | Mapping[str, Any]) -> Schema:
    return schema if isinstance(schema, Schema) else Schema(schema)


class PartWriter:
    """Writes one part of a dataset (see :meth:`Writer.part`). A context manager."""

    def __init__(self, stream: _ShardStream, schema: Schema, name: str, split: str) -> None:
        self._stream = stream
        self._schema = schema
        self._name = name
        self._split = split
        self._part: Part | None = None
        self._aborted = False

    @property
    def records(self) -> int:
        """Number of records so far."""
        return self._stream.records

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record. Raises RecordError (the part stays usable) and WriteError."""
        if self._part is not None or self._aborted:
            raise UsageError("the part is closed")
        self._stream.append(record)

    def close(self) -> Part:
        """Complete the part and return it; it is published by Writer.commit. May be called twice."""
        if self._aborted:
            raise UsageError("the part was dropped after an error")
        if self._part is None:
            try:
                self._part = Part(
                    self._name, self._split, self._schema.json_bytes, tuple(self._stream.finish())
                )
            except BaseException:
                self.abort()
                raise
        return self._part

    def abort(self) -> None:
        """Drop the part and remove its shards, unless it is complete."""
        if self._part is None and not self._aborted:
            self._aborted = True
            self._stream.abort()

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()


class Writer:
    """Writes a dataset, or adds to one. A context manager: leaving it publishes; after an exception nothing is.

    ``mode`` is ``"create"`` (there must be no dataset), ``"append"`` (records go behind the split's own; a
    split that is not there is added; the schema must be equal) or ``"overwrite"`` (the whole dataset is
    replaced when this one is published, not before). ``shard_size`` is bytes or text such as ``"256MB"``: a
    shard ends with the record that reaches it. ``metadata`` is a JSON object kept in the manifest.
    ``compression_level`` is zstd's, for fields with that codec. ``spill_bytes`` bounds what columns and
    offsets of an unfinished shard take of memory. ``storage_options`` go to fsspec.

    Raises UsageError where the call cannot work, and WriteError where the target cannot be written.

    >>> import tempfile
    >>> from fastload.schema import Scalar, Str
    >>> folder = tempfile.mkdtemp() + "/numbers.fl"
    >>> with Writer(folder, {"name": Str(), "value": Scalar("int32")}) as writer:
    ...     writer.append({"name": "one", "value": 1})
    >>> writer.manifest.splits["default"].records
    1
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Schema | Mapping[str, Any],
        *,
        split: str = "default",
        shard_size: int | str = "256MB",
        metadata: Mapping[str, Any] | None = None,
        mode: str = "create",
        storage_options: Mapping[str, Any] | None = None,
        compression_level: int = 3,
        spill_bytes: int | str = _SPILL_BYTES,
    ) -> None:
        self._finished = True  # nothing to warn of until all arguments are known to be right
        self._schema = _schema_of(schema)
        self._split = check_split_name(split)
        self._metadata = _check_metadata(metadata)
        self._storage: Storage = open_storage(path, storage_options)
        self._base: Base = read_base(self._storage, mode, self._schema)
        self._stream = _ShardStream(
            self._storage, self._schema, shard_size, _check_level(compression_level), parse_size(spill_bytes)
        )
        self._finished = False
        self.manifest: Manifest | None = None

    @property
    def schema(self) -> Schema:
        """The schema that records must fit."""
        return self._schema

    @property
    def records(self) -> int:
        """Number of records appended by this Writer."""
        return self._stream.records

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a record: a mapping from field names to values, nested as the schema was given or flat.

        Raises RecordError, naming record and field, where it does not fit: then nothing was added, and the
        Writer stays usable. After a WriteError it does not.
        """
        if self._finished:
            raise UsageError("the writer is closed", path=self._storage.url)
        self._stream.append(record)

    def close(self) -> Manifest:
        """Complete the shards and publish the dataset; returns its manifest. May be called twice.

        Raises WriteError; then nothing is published and this Writer's shards are removed.
        """
        if self.manifest is not None:
            return self.manifest
        if self._finished:
            raise UsageError("the writer was dropped after an error", path=self._storage.url)
        self._stream.check_process()
        try:
            shards = self._stream.finish()
            self.manifest = publish_dataset(
                self._storage, self._base, self._schema, {self._split: shards}, metadata=self._metadata
            )
        except BaseException:
            self.abort()
            raise
        self._finished = True
        return self.manifest

    def abort(self) -> None:
        """Publish nothing, and remove this Writer's shards. Does nothing after ``close``."""
        if not self._finished:
            self._finished = True
            self._stream.abort()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()

    def __del__(self) -> None:
        if not getattr(self, "_finished", True) and self._stream._process == os.getpid():
            warnings.warn(
                f"a Writer of {self._storage.url} was never closed: nothing was published",
                ResourceWarning,
                stacklevel=2,
            )
            self.abort()

    @staticmethod
    def part(
        path: str | os.PathLike[str],
        schema: Schema | Mapping[str, Any],
        *,
        name: str,
        split: str = "default",
        shard_size: int | str = "256MB",
        storage_options: Mapping[str, Any] | None = None,
        compression_level: int = 3,
        spill_bytes: int | str = _SPILL_BYTES,
    ) -> PartWriter:
        """Return a writer of one part, for one of several processes; ``close()`` returns its :class:`Part`.

        Nothing is published before :meth:`commit` gets the parts. ``name`` tells parts of one commit apart.
        An exception in the ``with`` block removes the part's shards.

        >>> import tempfile
        >>> from fastload.schema import Scalar
        >>> folder, schema = tempfile.mkdtemp() + "/numbers.fl", {"value": Scalar("int32")}
        >>> with Writer.part(folder, schema, name="0", split="train") as writer:
        ...     writer.append({"value": 1})
        >>> Writer.commit(folder, [writer.close()]).splits["train"].records
        1
        """
        known = _schema_of(schema)
        storage = open_storage(path, storage_options)
        level = _check_level(compression_level)
        stream = _ShardStream(storage, known, shard_size, level, parse_size(spill_bytes))
        return PartWriter(stream, known, name, check_split_name(split))

    @staticmethod
    def commit(
        path: str | os.PathLike[str],
        parts: Sequence[Part],
        *,
        mode: str = "create",
        schema: Schema | Mapping[str, Any] | None = None,
        splits: Sequence[str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Publish parts as one dataset, in one step; records come in the order of ``parts``.

        ``splits`` fixes the order of new splits (and makes those that have no part, empty); without it they
        come as the parts name them first. ``schema`` is needed only where there are no parts. ``mode`` is as
        for the class. Where it fails, with WriteError or UsageError, nothing is published and the parts stay:
        commit again, or :meth:`discard` them.
        """
        known = _schema_of(schema) if schema is not None else _schema_of_parts(parts)
        new: dict[str, list[ShardEntry]] = {check_split_name(split): [] for split in splits or ()}
        names: set[tuple[str, str]] = set()
        for part in parts:
            if part.schema_json != known.json_bytes:
                raise UsageError(f"part {part.name!r} has another schema", path=os.fspath(path))
            if (part.split, part.name) in names:
                raise UsageError(
                    f"part {part.name!r} of split {part.split!r} is given twice", path=os.fspath(path)
                )
            names.add((part.split, part.name))
            new.setdefault(part.split, []).extend(part.shards)
        storage = open_storage(path, storage_options)
        base = read_base(storage, mode, known)
        return publish_dataset(storage, base, known, new, metadata=_check_metadata(metadata))

    @staticmethod
    def discard(
        path: str | os.PathLike[str],
        parts: Sequence[Part],
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Remove the shards of parts that will not be committed. Never give parts that were."""
        storage = open_storage(path, storage_options)
        for part in parts:
            remove_shards(storage, part.shards)


def _schema_of_parts(parts: Sequence[Part]) -> Schema:
    if not parts:
        raise UsageError("there are no parts to commit", hint="give schema= to publish an empty dataset")
    return Schema.from_json(json.loads(parts[0].schema_json))


def _check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if metadata is None:
        return None
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise UsageError(f"metadata is {metadata!r}", hint="give a JSON object: a dict with str keys")
    out = dict(metadata)
    canonical_json(out)
    return out


def _check_level(level: int) -> int:
    if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 22:
        raise UsageError(f"compression_level is {level!r}", hint="use 1 (fast) to 22 (small)")
    return level
