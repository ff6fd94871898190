"""SplitReader: lazily opened shards, few of them, in any process and thread."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest

from fastload.errors import CorruptionError, NotADatasetError, ShardNotFoundError, UsageError
from fastload.format import Manifest, ShardEntry, ShardTable, SplitReader
from fastload.schema import Scalar, Schema, Str, Tensor
from fastload.storage import open_storage
from fastload.writer import Writer

SCHEMA = Schema({"text": Str(nullable=True), "value": Scalar("int32"), "packed": Str(codec="zstd")})


def record(i):
    return {"text": None if i % 5 == 0 else f"text {i}", "value": i, "packed": "x" * i}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "d.fl"
    with Writer(path, SCHEMA, shard_size=120) as writer:
        for i in range(60):
            writer.append(record(i))
    assert writer.manifest.splits["default"].shards > 10
    return path


@pytest.fixture
def reader(path, backend):
    return SplitReader.open(open_storage(path))


def test_its_attributes(reader, path, backend):
    assert reader.records == len(reader) == 60
    assert reader.name == "default"
    assert reader.schema == SCHEMA
    assert reader.folder == reader.local_folder == str(path)
    assert reader.verify == "first"
    assert reader.table.records == 60
    assert (reader.native() is None) == (backend == "python")


def test_stored_item_valid_payload_value(reader):
    assert bytes(reader.stored(7, "text")) == b"text 7"
    assert bytes(reader.stored(5, "text")) == b""
    assert bytes(reader.stored(7, "packed")) != b"x" * 7
    assert bytes(reader.payload(7, "packed")) == b"x" * 7
    assert reader.payload(5, "text") is None
    assert (reader.valid(5, "text"), reader.valid(6, "text"), reader.valid(5, "value")) == (False, True, True)
    assert bytes(reader.item(7, "value")) == b"\7\0\0\0"
    assert reader.record(7) == record(7)
    assert reader.record(5, ["text"]) == {"text": None}


def test_locate_finds_each_record(reader):
    places = [reader.locate(i) for i in range(60)]
    assert places == sorted(places)
    assert len(set(places)) == 60
    for number in (-1, 60, 1 << 70):
        with pytest.raises(UsageError, match="of a split of 60"):
            reader.locate(number)
        with pytest.raises(UsageError, match="of a split of 60"):
            reader.value(number, "value")


def test_wrong_fields(reader):
    with pytest.raises(UsageError, match="text, value, packed"):
        reader.value(0, "txet")
    with pytest.raises(UsageError, match="not a heap field"):
        reader.stored(0, "value")
    with pytest.raises(UsageError, match="not a column field"):
        reader.item(0, "text")


def test_few_shards_stay_open(path, monkeypatch):
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    reader = SplitReader(open_storage(path), Manifest.load(open_storage(path)), max_open_shards=3)
    first = reader.shard(0)
    assert reader.shard(0) is first
    for number in range(10):
        reader.shard(number)
    assert len(reader._open) == reader.open_shards == 3
    assert reader.shard(0) is not first
    assert first.value(0, 1) == 0  # whoever holds an evicted shard may go on reading


def test_a_view_outlives_the_reader(path, backend):
    reader = SplitReader.open(open_storage(path))
    view = reader.stored(7, "text")
    reader.close()
    del reader
    assert bytes(view) == b"text 7"


def test_reading_after_close_opens_again(reader):
    reader.close()
    assert reader.record(7) == record(7)


def read_in_process(reader):
    return [reader.record(i) for i in (0, 7, 59)], os.getpid()


def test_it_goes_to_another_process(reader):
    reader.record(3)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        records, process = pool.submit(read_in_process, reader).result()
    assert records == [record(0), record(7), record(59)]
    assert process != os.getpid()
    assert len(pickle.dumps(reader)) < 3000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_opens_anew(reader):
    reader.record(3)
    reader._lock.acquire()  # as by a thread that the child does not have
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if reader.record(7) == record(7) and reader._process == os.getpid() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader._lock.release()
    assert reader.record(7) == record(7)


@pytest.mark.parametrize("max_open_shards", [2, 100])
def test_threads(path, backend, max_open_shards):
    storage = open_storage(path)
    reader = SplitReader(storage, Manifest.load(storage), max_open_shards=max_open_shards)
    numbers = list(range(60)) * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(reader.record, numbers)) == [record(i) for i in numbers]


def test_a_pickled_reader_keeps_its_manifest(path, backend):
    reader = pickle.dumps(SplitReader.open(open_storage(path)))
    with Writer(path, SCHEMA, mode="overwrite") as writer:
        writer.append(record(1))
    assert pickle.loads(reader).record(7) == record(7)


def test_errors_name_the_place(path, backend):
    storage = open_storage(path)
    reader = SplitReader.open(storage)
    shard, _ = reader.locate(31)
    name = reader.table.name(shard)
    data = bytearray((path / name).read_bytes())
    at = data.index(b"text 31")
    data[at] ^= 1
    (path / name).unlink()
    (path / name).write_bytes(data)
    with pytest.raises(CorruptionError) as caught:
        reader.value(31, "text")
    error = caught.value
    assert (error.shard, error.record, error.field) == (name, 31, "text")
    assert error.path is not None
    assert error.offset == at
    assert error.hint is not None
    assert SplitReader.open(storage, verify="never").value(31, "text") == "uext 31"
    (path / name).unlink()
    with pytest.raises(ShardNotFoundError) as missing:
        SplitReader.open(storage).value(31, "text")
    assert missing.value.shard == name


def test_first_checks_once_and_always_every_time(path, monkeypatch):
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    from fastload.format import shard_reader

    checked = []
    monkeypatch.setattr(
        shard_reader, "crc32c", lambda data, value=0: checked.append(len(data)) or real(data, value)
    )
    from fastload.format.checksum import crc32c as real

    for verify, again in (("first", 0), ("always", None), ("never", 0)):
        reader = SplitReader.open(open_storage(path), verify=verify)
        reader.record(7)
        checked.clear()
        reader.record(7)
        assert (len(checked) == again) if again is not None else len(checked) >= 3
    with pytest.raises(UsageError, match="verify"):
        SplitReader.open(open_storage(path), verify="sometimes")


def test_no_dataset(tmp_path):
    with pytest.raises(NotADatasetError, match="no fastload dataset"):
        SplitReader.open(open_storage(tmp_path))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotADatasetError):
        SplitReader.open(open_storage(tmp_path / "file"))


def test_a_remote_dataset_is_read_by_ranges(monkeypatch):
    url = f"memory://{uuid.uuid4().hex}/d.fl"
    with Writer(url, SCHEMA) as writer:
        for i in range(60):
            writer.append(record(i))
    storage = open_storage(url)
    reader = SplitReader.open(storage)
    assert reader.native() is None
    reader.record(3)
    source = reader.shard(0)._source
    reads = []
    real = type(source).read
    monkeypatch.setattr(type(source), "read", lambda self, o, n: reads.append(n) or real(self, o, n))
    assert reader.value(7, "text") == "text 7"
    assert reads == [6]  # ends, validity and checksums came with the one suffix read


def test_opening_is_fast_with_many_shards(tmp_path):
    """A table of 10^5 shards opens without a loop over them; generous, since machines are busy."""
    entries = [ShardEntry(f"{i:016x}-000000.shard", 10, 5000, 4000, bytes(16)) for i in range(100_000)]
    data = ShardTable.build(entries)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        table = ShardTable.parse(data, "t", check_crc=False)
        assert table.locate(777_777) == (77_777, 7)
        assert table.name(77_777) == entries[77_777].name
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.02
    assert table.entry(99_999) == entries[-1]


def test_one_record_of_a_million(tmp_path, backend):
    with Writer(tmp_path / "d.fl", {"x": Tensor("uint8", (4,))}) as writer:
        row = np.zeros(4, np.uint8)
        for _ in range(100_000):
            writer.append({"x": row})
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        SplitReader.open(open_storage(tmp_path / "d.fl")).value(77_777, "x")
        times.append(time.perf_counter() - begin)
    assert min(times) < 0.02
