"""Making datasets: one Writer, or parts written in parallel and published by one commit."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from fastload.errors import UsageError
from fastload.format import ShardEntry, Storage, parse_size
from fastload.format.layout import check_split_name
from fastload.format.manifest import Manifest
from fastload.format.publish import Base, publish_dataset, read_base
from fastload.format.shard_stream import ShardStream, remove_shards
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


def _schema_of(schema: Schema | Mapping[str, Any]) -> Schema:
    return schema if isinstance(schema, Schema) else Schema(schema)


class PartWriter:
    """Writes one part of a dataset (see :meth:`Writer.part`). A context manager."""

    def __init__(self, stream: ShardStream, schema: Schema, name: str, split: str) -> None:
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
    """Writes a dataset, or adds to one. A context manager: leaving it publishes, but not on an exception.

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
        self._stream = ShardStream(
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
        if not getattr(self, "_finished", True) and self._stream.is_own_process:
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
        stream = ShardStream(storage, known, shard_size, level, parse_size(spill_bytes))
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
