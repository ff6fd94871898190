"""Every error that fastload raises on its own account.

The tree::

    FastloadError
    ├── UsageError (ValueError)            a call that cannot work as it was made
    │   ├── SchemaError                    a schema that contradicts itself
    │   └── RecordError                    a record that does not fit its schema
    ├── FormatError (ValueError)           bytes that are no fastload file, or contradict the format
    │   ├── NotADatasetError               a folder without a manifest
    │   ├── UnsupportedFormatError         a version or feature this release does not know
    │   └── CorruptionError                bytes that are not those that were written
    ├── ShardNotFoundError (FileNotFoundError)   a shard that the dataset names is missing
    ├── DecodeError (ValueError)           a value that its codec cannot read
    ├── SourceError (ValueError)           something `convert` cannot take
    ├── StateError (ValueError)            a saved state that nothing here can go on from
    ├── WriteError (OSError)               bytes that could not be written
    └── EngineError (RuntimeError)         the engine cannot go on
        └── BackendError                   the compiled core is wanted and cannot be had

Each message says what happened, where, and what to do next. The parts of *where* are attributes as
well (``path``, ``shard``, ``record``, ``field``, ``offset``), ``None`` where they do not apply.
"""

from __future__ import annotations

__all__ = [
    "BackendError",
    "CorruptionError",
    "DecodeError",
    "EngineError",
    "FastloadError",
    "FormatError",
    "NotADatasetError",
    "RecordError",
    "SchemaError",
    "ShardNotFoundError",
    "SourceError",
    "StateError",
    "UnsupportedFormatError",
    "UsageError",
    "WriteError",
]


class FastloadError(Exception):
    """The base of all errors here.

    >>> error = FastloadError("the CRC differs", path="d.fl/a.shard", record=7, hint="run fastload verify")
    >>> print(error)
    the CRC differs (d.fl/a.shard, record 7): run fastload verify
    >>> error.record
    7
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        shard: str | None = None,
        record: int | None = None,
        field: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        self.message = message
        self.path = path
        self.shard = shard
        self.record = record
        self.field = field
        self.offset = offset
        self.hint = hint
        super().__init__(message)

    def __str__(self) -> str:
        where = [
            text
            for text in (
                self.path,
                None if self.shard is None else f"shard {self.shard}",
                None if self.record is None else f"record {self.record}",
                None if self.field is None else f"field {self.field!r}",
                None if self.offset is None else f"offset {self.offset}",
            )
            if text is not None
        ]
        text = self.message
        if where:
            text += f" ({', '.join(where)})"
        if self.hint is not None:
            text += f": {self.hint}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only state would be lost by Exception's own pickling (errors cross worker processes).
        return (type(self), (self.message,), dict(self.__dict__))


class UsageError(FastloadError, ValueError):
    """A call that cannot work as it was made."""


class SchemaError(UsageError):
    """A schema that contradicts itself or the format."""


class RecordError(UsageError):
    """A record that does not fit its schema."""


class FormatError(FastloadError, ValueError):
    """Bytes that are no fastload file, or contradict the format."""


class NotADatasetError(FormatError):
    """A folder without a manifest."""


class UnsupportedFormatError(FormatError):
    """A format version or feature that this release does not know."""


class CorruptionError(FormatError):
    """Bytes that are not those that were written."""


class ShardNotFoundError(FastloadError, FileNotFoundError):
    """A shard that the dataset names is missing."""


class DecodeError(FastloadError, ValueError):
    """A value that its codec cannot read."""


class SourceError(FastloadError, ValueError):
    """Something that conversion cannot take."""


class StateError(FastloadError, ValueError):
    """A saved state that is malformed, or of another dataset, seed or order."""


class WriteError(FastloadError, OSError):
    """Bytes that could not be written."""


class EngineError(FastloadError, RuntimeError):
    """The engine cannot go on."""


class BackendError(EngineError):
    """The compiled core is wanted and cannot be had."""
