"""The compiled core against Python: the same CRCs, permutation, shards, records and errors."""

from __future__ import annotations

import pathlib
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fastload import errors
from fastload.format import layout
from fastload.format.checksum import crc32c, python_crc32c
from fastload.format.directory import checksum_of
from fastload.format.shard_reader import ShardReader
from fastload.format.shard_writer import ShardWriter
from fastload.format.table import ShardTable
from fastload.sampling.permutation import _permute_each_numpy, _permute_numpy
from fastload.schema import (
    Bytes,
    ColumnField,
    Field,
    HeapField,
    Image,
    Json,
    Label,
    Ragged,
    Scalar,
    Schema,
    Str,
    StrList,
    Tensor,
)

core = pytest.importorskip("fastload._core")

IDENTITY = bytes(range(16))
SHARD = "0123456789abcdef-000000.shard"
Payload = bytes | None
Finished = tuple[Any, ...]  # records, file bytes, index bytes, content checksum

SCHEMAS: dict[str, dict[str, Field]] = {
    "columns": {"x": Tensor("uint8", (3, 5)), "y": Scalar("int64"), "empty": Tensor("float32", (0,))},
    "heap": {"image": Image(), "tokens": Ragged("uint16"), "names": StrList(), "meta": Json()},
    "nullable": {
        "y": Label(("a", "b"), nullable=True),
        "text": Str(nullable=True),
        "tokens": Ragged("uint8", nullable=True),
        "x": Scalar("float64"),
    },
    "zstd": {
        "text": Str(codec="zstd"),
        "blob": Bytes(codec="zstd", nullable=True),
        "tokens": Ragged("uint32", codec="zstd"),
        "raw": Bytes(),
    },
}


def field_tuples(schema: Schema) -> list[tuple[str, bool, bool, str, int, int]]:
    return [
        (
            name,
            field.is_heap,
            field.nullable,
            field.codec if isinstance(field, HeapField) else "raw",
            field.item_bytes if isinstance(field, ColumnField) else 0,
            field.alignment if isinstance(field, HeapField) else 1,
        )
        for name, field in schema.items()
    ]


def make_records(schema: Schema, count: int, seed: int = 0) -> list[list[Payload]]:
    draw = random.Random(seed)

    def payload(field: Field) -> Payload:
        if field.nullable and draw.random() < 0.3:
            return None
        if isinstance(field, ColumnField):
            return draw.randbytes(field.item_bytes)
        # Repetitive, so that zstd has something to find, and of lengths that need padding.
        return draw.randbytes(draw.randrange(1, 9)) * draw.choice([0, 1, 7, 40])

    return [[payload(field) for field in schema.values()] for _ in range(count)]


def write_python(schema: Schema, records: list[list[Payload]], **options: Any) -> tuple[bytes, Finished]:
    out = bytearray()
    writer = ShardWriter(schema, out.extend, identity=IDENTITY, **options)
    for record in records:
        writer.append(record)
    finished = tuple(writer.finish())
    writer.close()
    return bytes(out), finished


def write_native(schema: Schema, records: list[list[Payload]], **options: Any) -> tuple[bytes, Finished]:
    out = bytearray()
    writer = core.ShardWriter(field_tuples(schema), schema.json_bytes, out.extend, IDENTITY, **options)
    for record in records:
        writer.append(record)
    finished = writer.finish()
    return bytes(out), finished


def table_of(finished: Finished) -> bytes:
    return ShardTable.build([layout.ShardEntry(SHARD, *finished)])


def open_native(
    folder: pathlib.Path, schema: Schema, table: bytes, verify: str = "first", limit: int = 8
) -> Any:
    return core.Dataset(str(folder), field_tuples(schema), schema.json_bytes, table, verify, limit)


class MemoryFile:
    """A file in memory, for the Python reader."""

    path = SHARD
    mapped = True

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self.size = len(data)

    def read(self, offset: int, length: int) -> memoryview:
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


def read_python(data: bytes, schema: Schema, table: bytes, folder: str) -> list[list[Payload]]:
    entry = ShardTable.parse(table, folder).entry(0)
    reader = ShardReader(MemoryFile(data), SHARD, path=folder, schema=schema, expected=entry)

    def payload(record: int, field: int) -> Payload:
        found = reader.payload(record, field)
        return None if found is None else bytes(found)

    return [[payload(record, field) for field in range(len(schema))] for record in range(reader.records)]


def read_native(dataset: Any, schema: Schema) -> list[list[Payload]]:
    def payload(record: int, field: int) -> Payload:
        value = dataset.value(record, field)  # reads and checks a null too
        return bytes(value) if dataset.valid(record, field) else None

    return [[payload(record, field) for field in range(len(schema))] for record in range(dataset.records)]


def outcome(read: Callable[[], list[list[Payload]]]) -> object:
    """Return what a reader made of a file: the records, or what it said against them."""
    try:
        return read()
    except errors.FastloadError as error:
        return type(error), error.path, error.shard


def assert_same_outcome(folder: pathlib.Path, data: bytes, schema: Schema, table: bytes, note: str) -> object:
    path = folder / SHARD
    path.unlink(missing_ok=True)  # a file that an earlier reader still maps must not change
    path.write_bytes(data)
    native = outcome(lambda: read_native(open_native(folder, schema, table), schema))
    python = outcome(lambda: read_python(data, schema, table, str(folder)))
    assert native == python, note
    return native


def test_crc32c() -> None:
    draw = random.Random(1)
    for length in [0, 1, 7, 8, 9, 63, 300, 767, 768, 4096, 12288, 70_001]:
        data = draw.randbytes(length)
        assert core.crc32c(data) == python_crc32c(data) == crc32c(data)
        first = core.crc32c(data[: length // 3])
        assert core.crc32c(memoryview(data)[length // 3 :], first) == core.crc32c(data)
    assert core.crc32c(b"123456789") == 0xE3069283


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 1000, 65537, (1 << 40) + 7, 1 << 62])
def test_permutation(count: int) -> None:
    draw = np.random.default_rng(count % 1000)
    positions = draw.integers(0, count, 2000)
    for key in (0, 12345, 0xFFFFFFFFFFFFFFFF):
        native = core.permute(positions, count, key)
        assert native.dtype == np.int64
        np.testing.assert_array_equal(native, _permute_numpy(positions, count, key))


@pytest.mark.parametrize("largest", [1, 3, 20, 3000, 1 << 40, 1 << 62])
def test_permutations_of_each(largest: int) -> None:
    draw = np.random.default_rng(largest % 1000)
    counts = draw.integers(1, largest, 3000, endpoint=True)
    counts[500:1500] = largest  # as blocks are: most of them equal
    positions = draw.integers(0, counts)
    keys = draw.integers(0, 1 << 64, 3000, np.uint64)
    native = core.permute_each(positions, counts, keys)
    np.testing.assert_array_equal(native, _permute_each_numpy(positions, counts, keys))
    for number in range(0, 3000, 100):
        alone = core.permute(positions[number : number + 1], int(counts[number]), int(keys[number]))
        assert native[number] == alone[0]


def test_permutation_refuses_positions_out_of_range() -> None:
    for position in (-1, 5):
        given, counts, keys = np.array([0, position]), np.array([5, 5]), np.zeros(2, np.uint64)
        with pytest.raises(errors.UsageError):
            core.permute(given, 5, 0)
        for function in (core.permute_each, _permute_each_numpy):
            with pytest.raises(errors.UsageError):
                function(given, counts, keys)
    with pytest.raises(errors.UsageError):
        core.permute_each(np.zeros(1, np.int64), np.array([(1 << 62) + 1]), np.zeros(1, np.uint64))
    with pytest.raises(errors.UsageError, match="differ in length"):
        core.permute_each(np.zeros(1, np.int64), np.ones(2, np.int64), np.zeros(1, np.uint64))


@pytest.mark.parametrize("name", ["columns", "heap", "nullable"])
@pytest.mark.parametrize("count", [0, 1, 8, 9, 700])
def test_writers_give_the_same_bytes(name: str, count: int) -> None:
    schema = Schema(SCHEMAS[name])
    records = make_records(schema, count)
    python = write_python(schema, records)
    assert write_native(schema, records) == python
    assert write_native(schema, records, spill_bytes=100) == python


def test_writers_give_the_same_bytes_of_large_values() -> None:
    schema = Schema({"blob": Bytes(), "x": Tensor("uint8", (100_000,))})
    draw = random.Random(2)
    records: list[list[Payload]] = [
        [draw.randbytes(size), draw.randbytes(100_000)]
        for size in (3, 1 << 20, 700_000, 700_000, 3_000_001, 0)
    ]
    python = write_python(schema, records)
    assert write_native(schema, records) == python
    assert write_native(schema, records, spill_bytes=1 << 18) == python


@pytest.mark.parametrize("writer", [write_python, write_native])
@pytest.mark.parametrize("name", list(SCHEMAS))
@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_readers_give_the_same_records(
    tmp_path: pathlib.Path,
    writer: Callable[..., tuple[bytes, Finished]],
    name: str,
    verify: str,
) -> None:
    schema = Schema(SCHEMAS[name])
    records = make_records(schema, 200)
    data, finished = writer(schema, records)
    table = table_of(finished)
    (tmp_path / SHARD).write_bytes(data)
    assert read_native(open_native(tmp_path, schema, table, verify), schema) == records
    assert read_python(data, schema, table, str(tmp_path)) == records


def test_native_zstd_uses_dictionaries(tmp_path: pathlib.Path) -> None:
    schema = Schema({"text": Str(codec="zstd")})
    words = [b"the quick brown fox number %d" % i for i in range(2000)]
    plain, _ = write_native(schema, [[word] for word in words])
    dictionary = b"the quick brown fox number "
    data, finished = write_native(schema, [[word] for word in words], dictionaries=[dictionary])
    assert len(data) < len(plain)
    (tmp_path / SHARD).write_bytes(data)
    table = table_of(finished)
    assert read_native(open_native(tmp_path, schema, table), schema) == [[word] for word in words]
    assert read_python(data, schema, table, str(tmp_path)) == [[word] for word in words]


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_readers_agree_on_flipped_bits_and_cuts(tmp_path: pathlib.Path, name: str) -> None:
    schema = Schema(SCHEMAS[name])
    data, finished = write_python(schema, make_records(schema, 40))
    table = table_of(finished)
    whole = assert_same_outcome(tmp_path, data, schema, table, "undamaged")
    assert isinstance(whole, list)
    draw = random.Random(3)
    trailer = len(data) - layout.TRAILER_BYTES
    directory = int.from_bytes(data[trailer : trailer + 8], "little")
    spots = [*range(64), *range(directory, len(data), 5), *(draw.randrange(len(data)) for _ in range(300))]
    for spot in spots:
        damaged = bytearray(data)
        damaged[spot] ^= 1 << draw.randrange(8)
        note = f"byte {spot} of {len(data)} flipped"
        result = assert_same_outcome(tmp_path, bytes(damaged), schema, table, note)
        # Gaps between sections hold nothing, so that a change there is not seen.
        assert result == whole or isinstance(result, tuple)
    for length in [0, 1, 63, 64, 127, 128, 4096, len(data) - 1]:
        assert_same_outcome(tmp_path, data[:length], schema, table, f"cut to {length} bytes")


def reseal(data: bytearray) -> tuple[bytes, bytes]:
    """Make all CRCs and the table fit again; return the shard and its table."""
    trailer = len(data) - layout.TRAILER_BYTES
    offset, length, records, _, index = struct.unpack_from("<5Q", data, trailer)
    directory = data[offset : offset + length]
    data[60:64] = crc32c(data[:60]).to_bytes(4, "little")
    data[trailer + 40 : trailer + 44] = crc32c(directory).to_bytes(4, "little")
    data[trailer + 56 : trailer + 60] = crc32c(data[trailer : trailer + 56]).to_bytes(4, "little")
    records = min(records, (1 << 63) - 1)
    index_bytes = min(max(len(data) - index, 0), len(data))
    return bytes(data), table_of((records, len(data), index_bytes, checksum_of(bytes(directory))))


@pytest.mark.parametrize("name", list(SCHEMAS))
def test_readers_agree_on_hostile_files(tmp_path: pathlib.Path, name: str) -> None:
    """Numbers changed to absurd ones, with every CRC made to fit again."""
    schema = Schema(SCHEMAS[name])
    data, _ = write_python(schema, make_records(schema, 40))
    draw = random.Random(4)
    trailer = len(data) - layout.TRAILER_BYTES
    directory = int.from_bytes(data[trailer : trailer + 8], "little")
    entries_end = trailer - len(schema.json_bytes)
    words = [*range(8, 64, 4), *range(trailer, trailer + 40, 8), *range(directory, entries_end, 4)]
    powers = [1 << bit for bit in (0, 3, 12, 16, 20, 31, 32, 61, 63, 64)]
    absurd = [number for power in powers for number in (power - 1, power)]
    for spot in words:
        for value in [*draw.sample(absurd, 4), max(0, int.from_bytes(data[spot : spot + 8], "little") - 1)]:
            changed = bytearray(data)
            width = draw.choice([4, 8])
            changed[spot : spot + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
            shard, table = reseal(changed)
            if ShardTable.parse(table, SHARD).records == 0:
                continue  # the dataset would have no reason to open the shard
            assert_same_outcome(tmp_path, shard, schema, table, f"{value:#x} at byte {spot}")


def test_writer_refuses_the_same_records() -> None:
    schema = Schema(SCHEMAS["nullable"])
    native = core.ShardWriter(field_tuples(schema), schema.json_bytes, bytearray().extend, IDENTITY)
    python = ShardWriter(schema, bytearray().extend, identity=IDENTITY)
    good: list[Payload] = [bytes(8), b"text", b"abc", bytes(8)]
    for bad in (good[:3], [*good[:3], None], [bytes(7), *good[1:]]):
        messages = []
        for writer in (native, python):
            with pytest.raises(errors.RecordError) as caught:
                writer.append(bad)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    native.append(good)
    assert native.records == 1
    native.finish()
    with pytest.raises(errors.EngineError):
        native.finish()


def test_writer_passes_the_sinks_error_on_and_stops() -> None:
    schema = Schema({"blob": Bytes()})
    calls = []

    def write(data: memoryview) -> None:
        calls.append(data)
        if len(calls) > 3:
            raise OSError(28, "No space left on device")

    writer = core.ShardWriter(field_tuples(schema), schema.json_bytes, write, IDENTITY)
    writer.append([bytes(1 << 20)])
    with pytest.raises(OSError, match="No space"):
        writer.append([bytes(1 << 20)])
    with pytest.raises(errors.EngineError):
        writer.append([b""])
    with pytest.raises(ValueError, match="released"):
        bytes(calls[0])


def test_shards_open_lazily_and_few_stay_open(tmp_path: pathlib.Path) -> None:
    schema = Schema({"y": Scalar("int64"), "text": Str()})
    entries = []
    for number in range(6):
        name = layout.shard_name("0123456789abcdef", number)
        records: list[list[Payload]] = [
            [(10 * number + i).to_bytes(8, "little"), b"%d" % number] for i in range(number % 3)
        ]
        data, finished = write_native(schema, records)
        (tmp_path / name).write_bytes(data)
        entries.append(layout.ShardEntry(name, *finished))
    dataset = open_native(tmp_path, schema, ShardTable.build(entries), limit=2)
    assert (dataset.records, dataset.shards, dataset.open_shards) == (6, 6, 0)
    assert [int.from_bytes(dataset.value(r, 0), "little") for r in range(6)] == [10, 20, 21, 40, 50, 51]
    assert dataset.open_shards == 2
    kept = dataset.stored(0, 1)
    assert [bytes(dataset.stored(r, 1)) for r in (5, 3, 1)] == [b"5", b"4", b"2"]
    assert kept == b"1"
    assert kept.readonly
    with pytest.raises(errors.UsageError):
        dataset.value(6, 0)
    with pytest.raises(errors.UsageError):
        dataset.value(0, 2)
    (tmp_path / entries[4].name).unlink()
    with pytest.raises(errors.ShardNotFoundError) as caught:
        open_native(tmp_path, schema, ShardTable.build(entries)).value(3, 0)
    assert (caught.value.path, caught.value.shard) == (str(tmp_path), entries[4].name)


def test_errors_name_the_datasets_record(tmp_path: pathlib.Path) -> None:
    schema = Schema({"text": Str()})
    entries, shards = [], []
    for number in range(2):
        data, finished = write_native(schema, [[b"value %d" % i] for i in range(5)])
        shards.append(bytearray(data))
        entries.append(layout.ShardEntry(layout.shard_name("0123456789abcdef", number), *finished))
    place = bytes(shards[1]).index(b"value 3")
    shards[1][place] ^= 1
    for entry, shard in zip(entries, shards, strict=True):
        (tmp_path / entry.name).write_bytes(shard)
    dataset = open_native(tmp_path, schema, ShardTable.build(entries))
    assert dataset.value(7, 0) == b"value 2"
    with pytest.raises(errors.CorruptionError) as caught:
        dataset.value(8, 0)
    error = caught.value
    assert (error.path, error.shard, error.record, error.field, error.offset) == (
        str(tmp_path),
        entries[1].name,
        8,
        "text",
        place,
    )
    assert "fastload verify" in str(error)
