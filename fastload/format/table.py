"""The shard table: which shards a split has, mapped rather than parsed (docs/format.md section 1.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import CorruptionError, FormatError, UsageError
from fastload.format.checksum import crc32c
from fastload.format.layout import (
    HEADER_BYTES,
    TABLE_HEADER,
    TABLE_MAGIC,
    VERSION,
    ShardEntry,
    align,
    check_file_name,
    check_version,
)
from fastload.format.protocols import BytesLike

__all__ = ["ShardTable"]

_U64 = npt.NDArray[np.uint64]
_MAX_RECORDS = (1 << 63) - 1


def _places(shards: int, names_bytes: int) -> tuple[list[int], int]:
    """Return where the six arrays begin, and the bytes of the whole file."""
    offsets = []
    position = HEADER_BYTES
    for length in (8 * (shards + 1), 8 * shards, 8 * shards, 16 * shards, 8 * shards, names_bytes):
        position = align(position, 64)
        offsets.append(position)
        position += length
    return offsets, position


@dataclasses.dataclass(frozen=True, eq=False)
class ShardTable:
    """A split's shards as arrays over the table's bytes.

    ``starts`` has one entry more than there are shards: ``starts[i]`` records lie before shard i.
    """

    path: str
    data: memoryview
    starts: _U64
    file_bytes: _U64
    index_bytes: _U64
    checksums: npt.NDArray[np.uint8]
    name_ends: _U64
    names: npt.NDArray[np.uint8]

    @classmethod
    def parse(cls, data: BytesLike, path: str, *, check_crc: bool = True) -> ShardTable:
        """Return the table that ``data`` holds; it is viewed, not copied.

        ``check_crc=False`` leaves out the CRC of the arrays (where the manifest's CRC of the whole file was
        checked, or checks are off). Raises FormatError, UnsupportedFormatError or CorruptionError.
        """
        view = memoryview(data).cast("B").toreadonly()
        shards, names_bytes = cls._header(view, path, check_crc)
        places, end = _places(shards, names_bytes)
        if end != len(view):
            raise FormatError(f"a shard table of {shards} shards has {len(view)} bytes, not {end}", path=path)

        def array(number: int, count: int) -> _U64:
            return np.frombuffer(view, dtype="<u8", count=count, offset=places[number])

        table = cls(
            path,
            view,
            array(0, shards + 1),
            array(1, shards),
            array(2, shards),
            np.frombuffer(view, dtype=np.uint8, count=16 * shards, offset=places[3]).reshape(shards, 16),
            array(4, shards),
            np.frombuffer(view, dtype=np.uint8, offset=places[5]),
        )
        table._check()
        return table

    @staticmethod
    def _header(view: memoryview, path: str, check_crc: bool) -> tuple[int, int]:
        if len(view) < HEADER_BYTES:
            raise FormatError(f"{len(view)} bytes are too few for a shard table", path=path)
        magic, major, minor, header_bytes, shards, names_bytes, file_bytes, reserved, body_crc, crc = (
            TABLE_HEADER.unpack_from(view)
        )
        if magic != TABLE_MAGIC:
            raise FormatError("not a fastload shard table: its first bytes are wrong", path=path)
        if crc32c(view[: HEADER_BYTES - 4]) != crc:
            raise CorruptionError("the CRC of the shard table's header differs", path=path, offset=0)
        check_version(major, minor, path)
        if header_bytes != HEADER_BYTES or any(reserved):
            raise FormatError("the shard table's header contradicts the format", path=path)
        # The counts are compared with the real size before anything is made of them.
        if file_bytes != len(view) or shards > len(view) // 48 or names_bytes > len(view):
            raise FormatError(
                f"the shard table has {len(view)} bytes, but says {shards} shards in {file_bytes} bytes",
                path=path,
            )
        if check_crc and crc32c(view[HEADER_BYTES:]) != body_crc:
            raise CorruptionError("the CRC of the shard table differs", path=path, offset=HEADER_BYTES)
        return shards, names_bytes

    def _check(self) -> None:
        starts, ends = self.starts, self.name_ends
        if starts[0] != 0 or int(starts[-1]) > _MAX_RECORDS or bool(np.any(starts[1:] < starts[:-1])):
            raise FormatError("the record counts of the shard table contradict each other", path=self.path)
        if (int(ends[-1]) if len(ends) else 0) != len(self.names) or bool(np.any(ends[1:] < ends[:-1])):
            raise FormatError("the names of the shard table contradict each other", path=self.path)
        if bool(np.any(self.index_bytes > self.file_bytes)):
            raise FormatError(
                "a shard's index is larger than the shard, says the shard table", path=self.path
            )

    @classmethod
    def build(cls, entries: Sequence[ShardEntry]) -> bytes:
        """Return the bytes of the table of these shards, in this order. Raises UsageError for bad names."""
        names = [check_file_name(entry.name, entry.name).encode("utf-8") for entry in entries]
        shards, names_bytes = len(entries), sum(len(name) for name in names)
        places, end = _places(shards, names_bytes)
        out = bytearray(end)

        def put(number: int, values: Sequence[int]) -> None:
            array = np.asarray(values, dtype="<u8")
            out[places[number] : places[number] + array.nbytes] = array.tobytes()

        starts = [0]
        for entry in entries:
            starts.append(starts[-1] + entry.records)
        if starts[-1] > _MAX_RECORDS:
            raise UsageError(f"a split of {starts[-1]} records is too large")
        put(0, starts)
        put(1, [entry.file_bytes for entry in entries])
        put(2, [entry.index_bytes for entry in entries])
        out[places[3] : places[3] + 16 * shards] = b"".join(entry.checksum for entry in entries)
        put(4, np.cumsum([len(name) for name in names], dtype=np.uint64).tolist())
        out[places[5] :] = b"".join(names)
        body = crc32c(memoryview(out)[HEADER_BYTES:])
        head = TABLE_HEADER.pack(
            TABLE_MAGIC, *VERSION, HEADER_BYTES, shards, names_bytes, end, bytes(16), body, 0
        )[:-4]
        out[:HEADER_BYTES] = head + crc32c(head).to_bytes(4, "little")
        return bytes(out)

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.file_bytes)

    @property
    def records(self) -> int:
        """Number of records of all shards."""
        return int(self.starts[-1])

    @property
    def total_bytes(self) -> int:
        """Bytes of all shards."""
        total = int(np.sum(self.file_bytes, dtype=np.uint64))
        # float64 shows whether 64 bits were enough: hostile sizes must not wrap around
        return total if float(np.sum(self.file_bytes, dtype=np.float64)) < 2**63 else 1 << 64

    def name(self, shard: int) -> str:
        """Return a shard's file name. Raises FormatError where it might leave the folder."""
        begin = int(self.name_ends[shard - 1]) if shard else 0
        raw = self.names[begin : int(self.name_ends[shard])].tobytes()
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError:
            raise FormatError(f"the name {raw!r} of shard {shard} is not UTF-8", path=self.path) from None
        return check_file_name(name, self.path)

    def entry(self, shard: int) -> ShardEntry:
        """Return all that the table says of one shard."""
        return ShardEntry(
            self.name(shard),
            int(self.starts[shard + 1]) - int(self.starts[shard]),
            int(self.file_bytes[shard]),
            int(self.index_bytes[shard]),
            self.checksums[shard].tobytes(),
        )

    def entries(self) -> Iterator[ShardEntry]:
        """Yield :meth:`entry` of every shard."""
        return (self.entry(shard) for shard in range(self.shards))

    def locate(self, record: int) -> tuple[int, int]:
        """Return (shard, record within the shard) of a record that exists."""
        shard = int(np.searchsorted(self.starts, np.uint64(record), side="right")) - 1
        return shard, record - int(self.starts[shard])

    def fingerprint_bytes(self) -> bytes:
        """Return what the fingerprint takes from a split: each shard's record count and checksum."""
        out = np.empty((self.shards, 24), dtype=np.uint8)
        counts = (self.starts[1:] - self.starts[:-1]).astype("<u8")
        out[:, :8] = np.frombuffer(counts.tobytes(), dtype=np.uint8).reshape(-1, 8)
        out[:, 8:] = self.checksums
        return out.tobytes()
