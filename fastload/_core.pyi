"""fastload's compiled core; imported only by fastload/_backend.py."""

from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray


def crc32c(buffer: object, value: int = 0) -> int:
    """Continue the CRC-32C `value` over the bytes of `buffer`."""

def permute(positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], count: int, key: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')]:
    """
    Return where `positions` (int64) go in the permutation of `count` that `key` names.
    """

def permute_each(positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C')]:
    """
    Return where each position (int64) goes in the permutation of its own count and key (uint64).
    """

class ImageProgram:
    def __init__(self, ops: Sequence[tuple[str, Sequence[float]]], channels: int, group: int) -> None: ...

    @property
    def fixed_size(self) -> tuple[int, int] | None: ...

    def run(self, encoded: object, seed: int, epoch: int, position: int, fallback: object | None = None) -> NDArray: ...

def simd_sets() -> list[str]:
    """
    The instruction sets that image code can use on this machine, from plain to the best.
    """

def use_simd(name: str) -> None:
    """Use one of simd_sets() from now on, for tests."""

def segment_jpeg(encoded: object, keep_icc: bool = False) -> tuple[bytes | None, str | None]:
    """
    Rewrite a JPEG image so that parts of it decode alone; or say why it is to be kept as it is.
    """

class Dataset:
    """
    One split of a local dataset: its shard table, and its shards, mapped when first needed.
    """

    def __init__(self, folder: str, fields: Sequence[tuple[str, bool, bool, str, int, int]], schema_json: bytes, table: object, verify: str = 'first', max_open_shards: int = 1024) -> None: ...

    @property
    def records(self) -> int:
        """Number of records."""

    @property
    def shards(self) -> int:
        """Number of shards."""

    @property
    def open_shards(self) -> int:
        """Number of shards that are mapped for later use."""

    def valid(self, record: int, field_index: int) -> bool:
        """Return whether the record has a value."""

    def stored(self, record: int, field_index: int) -> memoryview:
        """
        Return the bytes of a column's item or of a heap value as stored, without copying them.
        """

    def value(self, record: int, field_index: int) -> bytes:
        """Return the bytes of a column's item or of a heap value, decompressed."""

class ShardWriter:
    """
    Writes one shard through `write`, front to back. Used by one thread at a time.
    """

    def __init__(self, fields: Sequence[tuple[str, bool, bool, str, int, int]], schema_json: bytes, write: object, identity: bytes, level: int = 3, dictionaries: Sequence[bytes] = [], spill_bytes: int = 67108864, spill_folder: str | None = None) -> None: ...

    @property
    def records(self) -> int:
        """Number of records so far."""

    @property
    def bytes_written(self) -> int:
        """About how large the file would be if it ended now."""

    def append(self, payloads: Iterable) -> None:
        """Add a record: a payload for each field, None for a null."""

    def finish(self) -> tuple[int, int, int, bytes]:
        """
        Write the rest; return (records, file bytes, index bytes, content checksum).
        """

class Engine:
    """Threads that make batches; see fastload/engine/native.py."""

    def __init__(self, sources: list, fields: list, seed: int, threads: int, byte_budget: int, tolerant: bool = False) -> None: ...

    def submit(self, positions: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], sources: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], records: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], epoch: int, addresses: Sequence[int]) -> None:
        """Queue a batch."""

    def next(self, timeout: float) -> tuple:
        """
        Wait for the oldest batch. Return, a field: data, offsets, lengths, validity, height, width; and the samples that were left unmade, each with its error.
        """

    @property
    def in_flight(self) -> int:
        """Number of batches submitted and not delivered."""

    def stats(self) -> dict:
        """Return the counters."""

    def close(self) -> None:
        """Stop and join the threads."""
