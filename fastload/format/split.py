"""One split of a dataset, opened: which shard has a record, and the few shards that are open."""

from __future__ import annotations

import collections
import os
import threading
from typing import Any

from fastload import _backend
from fastload.errors import DecodeError, ShardNotFoundError, UsageError
from fastload.format.manifest import Manifest, load_table
from fastload.format.protocols import Storage
from fastload.format.shard_reader import ShardReader
from fastload.format.table import ShardTable
from fastload.format.values import decode_value
from fastload.format.verified import check_verify
from fastload.schema import Field, HeapField, Schema

__all__ = ["SplitReader"]

_NATIVE_OPEN_SHARDS = 4096
"""A full shuffle touches every shard all the time: few must be opened again."""


class SplitReader:
    """Reads records of one split. Thread-safe; picklable; usable after a fork.

    ``split`` None is the only one, or ``default``. Opening reads the shard table (a mapping where the storage
    is local) and no shard. At most ``max_open_shards`` stay open, the least recently used going first (4,096
    at least where native code opens them: as mappings, which hold no file descriptor). The other process, or
    a forked child, opens everything anew, by the names of the manifest that was read here.

    Raises UsageError where there is no such split, FormatError and CorruptionError where the table is bad.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        split: str | None = None,
        *,
        verify: str = "first",
        max_open_shards: int = 256,
    ) -> None:
        self.storage = storage
        self.manifest = manifest
        self.name = manifest.split_name(split, storage.url)
        self.verify = check_verify(verify)
        self._max_open = max(1, max_open_shards)
        self._prepare()
        self.table  # noqa: B018 - a bad table is an error of opening, not of the first record

    @classmethod
    def open(
        cls,
        storage: Storage,
        split: str | None = None,
        *,
        verify: str = "first",
        manifest: Manifest | None = None,
    ) -> SplitReader:
        """Open a split, reading the manifest if it is not given.

        Raises NotADatasetError and the manifest's errors, too.
        """
        return cls(storage, Manifest.load(storage) if manifest is None else manifest, split, verify=verify)

    def __getstate__(self) -> dict[str, Any]:
        keep = ("storage", "manifest", "name", "verify", "_max_open")
        return {key: self.__dict__[key] for key in keep}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _prepare(self) -> None:
        self.schema: Schema = self.manifest.schema
        self._split = self.manifest.splits[self.name]
        self._fields: list[Field] = list(self.schema.values())
        self._numbers = {field: number for number, field in enumerate(self.schema)}
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._table: ShardTable | None = None
        self._open: collections.OrderedDict[int, ShardReader] = collections.OrderedDict()
        self._native: Any = None
        self._native_made = False

    def _enter_process(self) -> None:
        if self._process != os.getpid():
            # The parent's lock may be held by a thread that does not exist here.
            self._reset()

    @property
    def folder(self) -> str:
        """URL or path of the dataset."""
        return self.storage.url

    @property
    def local_folder(self) -> str | None:
        """The folder where it is on a local filesystem."""
        return self.storage.local_path

    @property
    def records(self) -> int:
        """Number of records."""
        return self._split.records

    def __len__(self) -> int:
        return self._split.records

    @property
    def table(self) -> ShardTable:
        """The shard table."""
        self._enter_process()
        if self._table is None:
            self._table = load_table(self.storage, self._split, check_crc=self.verify != "never")
        return self._table

    def native(self) -> Any:
        """Return the split as ``_core.Dataset``, or None on the Python engine or where it is not local."""
        self._enter_process()
        if self._native_made and (self._native is None) == (
            _backend.core() is None or self.local_folder is None
        ):
            return self._native
        core, folder, table = _backend.core(), self.local_folder, self.table
        with self._lock:
            self._native = None
            if core is not None and folder is not None and hasattr(core, "Dataset"):
                self._native = core.Dataset(
                    folder,
                    native_fields(self.schema),
                    self.schema.json_bytes,
                    table.data,
                    self.verify,
                    max(self._max_open, _NATIVE_OPEN_SHARDS),
                )
            self._native_made = True
            return self._native

    @property
    def open_shards(self) -> int:
        """Number of shards that are open in this process: read from lately, and kept for further reads."""
        self._enter_process()
        return len(self._open) + (0 if self._native is None else int(self._native.open_shards))

    def locate(self, record: int) -> tuple[int, int]:
        """Return (shard number, record within the shard). Raises UsageError where there is no such record."""
        if not 0 <= record < self._split.records:
            raise UsageError(f"record {record} of a split of {self._split.records}", path=self.folder)
        return self.table.locate(record)

    def shard(self, number: int) -> ShardReader:
        """Return a shard, opening it if need be. Raises ShardNotFoundError and ShardReader's errors."""
        self._enter_process()
        with self._lock:
            found = self._open.get(number)
            if found is not None:
                self._open.move_to_end(number)
                return found
        opened = self._open_shard(number)
        with self._lock:
            # Evicted readers are not closed: another thread may be reading. Their last reference closes them.
            self._open[number] = opened
            while len(self._open) > self._max_open:
                self._open.popitem(last=False)
        return opened

    def _open_shard(self, number: int) -> ShardReader:
        table = self.table
        entry = table.entry(number)
        try:
            source = self.storage.open_read(entry.name)
        except FileNotFoundError:
            raise ShardNotFoundError(
                "a shard that the dataset names is missing",
                path=self.folder,
                shard=entry.name,
                hint="restore the file; `fastload verify` lists all that are missing",
            ) from None
        return ShardReader(
            source,
            entry.name,
            path=self.folder,
            schema=self.schema,
            expected=entry,
            verify=self.verify,
            first_record=int(table.starts[number]),
        )

    def _number(self, field: str) -> int:
        try:
            return self._numbers[field]
        except KeyError:
            raise UsageError(
                f"there is no field {field!r}",
                path=self.folder,
                hint=f"the fields are: {', '.join(self._numbers)}",
            ) from None

    def _check_record(self, record: int) -> None:
        if not 0 <= record < self._split.records:
            raise UsageError(f"record {record} of a split of {self._split.records}", path=self.folder)

    def valid(self, record: int, field: str) -> bool:
        """Return whether the field has a value, and is not null."""
        number = self._number(field)
        native = self.native()
        if native is not None:
            self._check_record(record)
            return bool(native.valid(record, number))
        shard, index = self.locate(record)
        return self.shard(shard).valid(index, number)

    def stored(self, record: int, field: str) -> memoryview:
        """Return the stored bytes of a heap field, before its codec; empty for a null."""
        number = self._number(field)
        if not self._fields[number].is_heap:
            raise UsageError(f"{field!r} is not a heap field", path=self.folder)
        native = self.native()
        if native is not None:
            self._check_record(record)
            return memoryview(native.stored(record, number))
        shard, index = self.locate(record)
        return self.shard(shard).stored(index, number)

    def item(self, record: int, field: str) -> memoryview:
        """Return the item of a column field; zeros for a null."""
        number = self._number(field)
        if self._fields[number].is_heap:
            raise UsageError(f"{field!r} is not a column field", path=self.folder)
        native = self.native()
        if native is not None:
            self._check_record(record)
            return memoryview(native.stored(record, number))
        shard, index = self.locate(record)
        return self.shard(shard).item(index, number)

    def payload(self, record: int, field: str) -> memoryview | None:
        """Return the payload of any field after its codec, or None for a null."""
        number = self._number(field)
        native = self.native()
        if native is None:
            shard, index = self.locate(record)
            return self.shard(shard).payload(index, number)
        self._check_record(record)
        found = self._fields[number]
        if found.nullable and not native.valid(record, number):
            if isinstance(found, HeapField):
                native.stored(record, number)  # checks that a null has no bytes
            return None
        return memoryview(native.value(record, number))

    def value(self, record: int, field: str) -> Any:
        """Return the decoded value (see decode_value), or None for a null. Raises DecodeError too."""
        payload = self.payload(record, field)
        if payload is None:
            return None
        number = self._number(field)
        try:
            return decode_value(self._fields[number], payload)
        except DecodeError as error:
            error.path, error.record, error.field = self.folder, record, field
            error.shard = self.table.name(self.locate(record)[0])
            raise

    def record(self, record: int, fields: list[str] | None = None) -> dict[str, Any]:
        """Return a record's values by field name, of all fields or of those named."""
        return {name: self.value(record, name) for name in (self.schema if fields is None else fields)}

    def close(self) -> None:
        """Let go of all shards. Reading afterwards opens them again."""
        self._reset()


def native_fields(schema: Schema) -> list[tuple[str, bool, bool, str, int, int]]:
    """Return the fields as the core takes them: name, heap, nullable, codec, item bytes, alignment."""
    out = []
    for name, field in schema.items():
        if isinstance(field, HeapField):
            out.append((name, True, field.nullable, field.codec, 0, field.alignment))
        else:
            item_bytes: int = getattr(field, "item_bytes")  # noqa: B009 - column fields have it
            out.append((name, False, field.nullable, "raw", item_bytes, 1))
    return out
