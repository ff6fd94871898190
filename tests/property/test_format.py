"""Any schema and any records come back through every writer and reader; no damage passes for data."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastload import _backend, _config
from fastload.errors import DecodeError, FastloadError
from fastload.format import Manifest, SplitReader, encode_value, verify_dataset
from fastload.format.checksum import combine, crc32c, python_crc32c
from fastload.format.layout import Kind
from fastload.schema import (
    DTYPE_BYTES,
    Audio,
    Bytes,
    Field,
    Image,
    Json,
    Label,
    Ragged,
    Scalar,
    Schema,
    Str,
    StrList,
    Tensor,
    Video,
    numpy_dtype_of,
)
from fastload.storage import open_storage
from fastload.writer import Writer
from tests.golden.craft import Craft, entry_of, publish, shard_bytes


def relaxed(examples: int) -> settings:
    return settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=examples)


def engines() -> list[str]:
    choice = _config.backend_choice()
    if choice != "auto":
        return [choice]
    return ["python"] if _backend.core() is None else ["native", "python"]


@contextlib.contextmanager
def engine(name: str) -> Iterator[None]:
    before = os.environ.get("FASTLOAD_BACKEND")
    os.environ["FASTLOAD_BACKEND"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["FASTLOAD_BACKEND"]
        else:
            os.environ["FASTLOAD_BACKEND"] = before


dtypes = st.sampled_from(sorted(DTYPE_BYTES))
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def arrays(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    count = int(np.prod(shape, dtype=np.int64))
    size = count * DTYPE_BYTES[dtype]

    def make(data: bytes) -> Any:
        if dtype == "bool":
            data = bytes(byte & 1 for byte in data)
        return np.frombuffer(data, dtype=numpy_dtype_of(dtype)).reshape(shape)

    return st.binary(min_size=size, max_size=size).map(make)


@st.composite
def fields_with_values(draw: st.DrawFn) -> tuple[Field, st.SearchStrategy[Any]]:
    """Return a field and a strategy of values for it."""
    nullable = draw(st.booleans())
    codec = draw(st.sampled_from(["raw", "zstd"]))
    kind = draw(st.integers(0, 10))
    field: Field
    values: st.SearchStrategy[Any]
    if kind == 0:
        dtype = draw(dtypes)
        field, values = Scalar(dtype, nullable=nullable), arrays(dtype, ()).map(lambda a: a[()])
    elif kind == 1:
        classes = draw(st.lists(texts, min_size=1, max_size=4, unique=True))
        field, values = Label(classes, nullable=nullable), st.integers(0, len(classes) - 1)
    elif kind == 2:
        dtype, shape = draw(dtypes), tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        field, values = Tensor(dtype, shape, nullable=nullable), arrays(dtype, shape)
    elif kind == 3:
        dtype = draw(dtypes)
        dimensions = draw(
            st.lists(st.none() | st.integers(1, 3), min_size=1, max_size=3).filter(lambda s: None in s)
        )
        field = Ragged(dtype, tuple(dimensions), nullable=nullable, codec=codec)
        sizes = st.tuples(*(st.integers(0, 5) if size is None else st.just(size) for size in dimensions))
        values = sizes.flatmap(lambda shape: arrays(dtype, shape))
    elif kind == 4:
        field, values = Str(nullable=nullable, codec=codec), texts
    elif kind == 5:
        field, values = StrList(nullable=nullable, codec=codec), st.lists(texts, max_size=4)
    elif kind == 6:
        field = Json(nullable=nullable, codec=codec)
        values = json_values.filter(lambda value: value is not None)  # None is the null
    else:
        field = [Bytes, Image, Audio, Video][kind - 7](nullable=nullable, codec=codec)
        values = st.binary(max_size=40)
    return field, (st.none() | values) if nullable else values


@st.composite
def datasets(draw: st.DrawFn) -> tuple[Schema, list[dict[str, Any]]]:
    chosen = draw(st.lists(fields_with_values(), min_size=1, max_size=5))
    schema = Schema({f"f{number}": field for number, (field, _) in enumerate(chosen)})
    record = st.fixed_dictionaries({f"f{number}": values for number, (_, values) in enumerate(chosen)})
    return schema, draw(st.lists(record, max_size=12))


def same(field: Field, read: Any, written: Any) -> bool:
    if written is None or read is None:
        return read is None and written is None
    if isinstance(read, np.ndarray) and read.shape != np.shape(written):
        return False
    return bytes(encode_value(field, read)) == bytes(encode_value(field, written))


@relaxed(80)
@given(datasets(), st.sampled_from([1, 200, 10_000_000]), st.sampled_from([1, 1 << 20]))
def test_any_records_come_back_through_every_writer_and_reader(dataset, shard_size, spill_bytes):
    schema, records = dataset
    for writing in engines():
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/d.fl"
            with (
                engine(writing),
                Writer(path, schema, shard_size=shard_size, spill_bytes=spill_bytes) as writer,
            ):
                for record in records:
                    writer.append(record)
            storage = open_storage(path)
            assert verify_dataset(storage) == []
            for reading in engines():
                with engine(reading):
                    reader = SplitReader(storage, Manifest.load(storage), verify="always")
                    assert (reader.native() is None) == (reading == "python")
                    assert len(reader) == len(records)
                    for number, record in enumerate(records):
                        for name, field in schema.items():
                            assert same(field, reader.value(number, name), record[name]), (
                                writing,
                                reading,
                                name,
                            )
                    reader.close()


@pytest.mark.skipif(len(engines()) < 2, reason="one engine")
@relaxed(60)
@given(datasets(), st.sampled_from([1, 1 << 20]))
def test_both_writers_write_the_same_bytes(dataset, spill_bytes):
    from fastload.format import ShardWriter
    from fastload.format.split import native_fields

    schema, records = dataset
    if any(getattr(field, "codec", "raw") == "zstd" for field in schema.values()):
        return  # two builds of zstd may make different frames
    core = _backend._load()
    one, other = bytearray(), bytearray()
    python = ShardWriter(schema, one.extend, identity=b"0123456789abcdef", spill_bytes=spill_bytes)
    native = core.ShardWriter(
        native_fields(schema), schema.json_bytes, other.extend, b"0123456789abcdef", spill_bytes=spill_bytes
    )
    for record in records:
        payloads = [
            None if record[name] is None else encode_value(field, record[name])
            for name, field in schema.items()
        ]
        python.append(payloads)
        native.append(payloads)
    assert tuple(python.finish()) == tuple(native.finish())
    assert one == other


FLIP_SCHEMA = Schema(
    {
        "text": Str(nullable=True),
        "x": Tensor("uint16", (3,), nullable=True),
        "label": Label(["a", "b"]),
        "ids": Ragged("int32"),
        "zip": Str(codec="zstd"),
    }
)


def flip_records() -> list[dict[str, Any]]:
    return [
        {
            "text": None if i % 3 == 0 else f"text {i}",
            "x": None if i % 4 == 1 else [i, i + 1, i + 2],
            "label": i % 2,
            "ids": list(range(i % 5)),
            "zip": f"the number {i} is a number, the number {i}" * (i % 3),
        }
        for i in range(30)
    ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the files of a small dataset of two shards."""
    path = tmp_path_factory.mktemp("sound") / "d.fl"
    with Writer(path, FLIP_SCHEMA, shard_size=1500, metadata={"who": "me"}) as writer:
        for record in flip_records():
            writer.append(record)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    assert sum(name.endswith(".shard") for name in files) >= 2
    return files


def read_all(path: Path) -> list[dict[str, Any]]:
    storage = open_storage(path)
    reader = SplitReader(storage, Manifest.load(storage))
    return [reader.record(number) for number in range(len(reader))]


def comparable(records: list[dict[str, Any]]) -> list[list[bytes | None]]:
    return [
        [None if record[n] is None else bytes(encode_value(f, record[n])) for n, f in FLIP_SCHEMA.items()]
        for record in records
    ]


def interesting_bits(data: bytes, count: int, seed: int) -> list[int]:
    """Return bits to flip: half anywhere, half where there is more than padding."""
    draw = random.Random(seed)
    filled = [i for i, byte in enumerate(data) if byte]
    anywhere = [draw.randrange(8 * len(data)) for _ in range(count // 2)]
    return anywhere + [8 * draw.choice(filled) + draw.randrange(8) for _ in range(count - count // 2)]


@pytest.mark.parametrize("reading", engines())
def test_no_flipped_bit_passes_for_data(sound, tmp_path, reading):
    truth = comparable(flip_records())
    silent = 0
    with engine(reading):
        for name, data in sound.items():
            for file_name, content in sound.items():
                (tmp_path / file_name).write_bytes(content)
            for bit in interesting_bits(data, 400 if name.endswith(".shard") else 150, seed=len(name)):
                damaged = bytearray(data)
                damaged[bit // 8] ^= 1 << bit % 8
                # A file of its own: the one before is still mapped.
                (tmp_path / name).unlink()
                (tmp_path / name).write_bytes(damaged)
                try:
                    records = read_all(tmp_path)
                except FastloadError:
                    pass
                else:
                    assert comparable(records) == truth, (name, bit)
                    silent += 1
                    if name == "manifest.json":
                        changed = json.loads(damaged.decode("utf-8"))
                        assert changed == json.loads(sound[name]), bit
            (tmp_path / name).unlink()
            (tmp_path / name).write_bytes(data)
    assert silent > 0  # padding: the test sees the difference


def test_a_full_scan_finds_every_flipped_bit(sound, tmp_path):
    for name, content in sound.items():
        (tmp_path / name).write_bytes(content)
    for name, data in sound.items():
        if name == "manifest.json":
            continue
        for bit in interesting_bits(data, 60, seed=7):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            (tmp_path / name).unlink()
            (tmp_path / name).write_bytes(damaged)
            assert verify_dataset(open_storage(tmp_path)), (name, bit)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(data)
    assert verify_dataset(open_storage(tmp_path)) == []


NUMBERS = [
    0,
    1,
    2,
    7,
    8,
    63,
    64,
    4095,
    4096,
    8192,
    65536,
    1 << 31,
    1 << 32,
    1 << 60,
    1 << 63,
    (1 << 64) - 4096,
]


def hostile_shard(data: bytes, draw: random.Random) -> bytes:
    """Return the shard with a few numbers changed and all checksums right again."""
    craft = Craft(data)
    for _ in range(draw.randint(1, 3)):
        number = draw.choice(NUMBERS)
        place = draw.randrange(4)
        if place == 0:
            craft.trailer[draw.randrange(5)] = number
        elif place == 1:
            part = draw.choice([0, 1, 2, 3, 4, 6])
            draw.choice(craft.sections)[part] = number % (1 << (64 if part in (2, 3, 6) else 32))
        else:
            kind = draw.choice([Kind.OFFSETS, Kind.HEAP, Kind.VALIDITY, Kind.COLUMN, Kind.DICTIONARY])
            found = [section for section in Craft(data).sections if section[0] == kind and section[3] >= 8]
            if found:
                section = draw.choice(found)
                at = section[2] + 8 * draw.randrange(section[3] // 8)
                craft.body[at : at + 8] = number.to_bytes(8, "little")
    with contextlib.suppress(Exception):  # sections that lie nowhere keep the checksums they have
        craft.fix_checksums()
    return craft.pack()


@pytest.mark.parametrize("reading", engines())
def test_hostile_numbers_with_right_checksums_do_no_harm(tmp_path, reading):
    """Whatever the file says, a reader returns, or raises an error of its own."""
    records = flip_records()
    data = shard_bytes(FLIP_SCHEMA, records)
    draw = random.Random(5)
    refused = 0
    with engine(reading):
        for number in range(600):
            hostile = hostile_shard(data, draw)
            entry = entry_of(hostile, "0123456789abcdef-000000.shard")
            if entry.records >= 1 << 63 or not 0 <= entry.index_bytes <= entry.file_bytes == len(hostile):
                entry = dataclasses.replace(entry, records=30, file_bytes=len(hostile), index_bytes=100)
            folder = tmp_path / str(number)
            publish(folder, FLIP_SCHEMA, {"default": [(entry, hostile)]})
            storage = open_storage(folder)
            try:
                reader = SplitReader(storage, Manifest.load(storage))
                for record in range(min(len(reader), 40)):
                    for name in FLIP_SCHEMA:
                        with contextlib.suppress(DecodeError):
                            reader.value(record, name)
            except FastloadError:
                refused += 1
    assert refused > 300


@relaxed(100)
@given(st.binary(max_size=5000), st.integers(0, 2**32 - 1), st.integers(0, 5000))
def test_crc32c_agrees_with_a_bitwise_one(data, value, cut):
    state = value ^ 0xFFFFFFFF
    for byte in data[:64]:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    assert python_crc32c(data[:64], value) == crc32c(data[:64], value) == state ^ 0xFFFFFFFF
    assert python_crc32c(data, value) == crc32c(data, value)
    assert combine(crc32c(data[:cut]), crc32c(data[cut:]), len(data[cut:])) == crc32c(data)


@pytest.mark.parametrize("length", [0, 767, 768, 1 << 16, (1 << 20) + 13, (3 << 20) + 1])
def test_crc32c_of_long_data(length):
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    parts = [data[i : i + 500] for i in range(0, length, 500)]
    crc = 0
    for part in parts[:200]:
        crc = python_crc32c(part, crc)
    assert crc == python_crc32c(b"".join(parts[:200]))
    assert python_crc32c(data) == crc32c(data)
