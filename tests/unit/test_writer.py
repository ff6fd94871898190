"""The Writer: what it publishes, and what it leaves behind when it cannot."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from fastload.errors import NotADatasetError, RecordError, SchemaError, UsageError, WriteError
from fastload.format import Manifest, SplitReader, gc, verify_dataset
from fastload.schema import Bytes, Image, Label, Ragged, Scalar, Schema, Str, Tensor
from fastload.storage import open_storage
from fastload.writer import Part, Writer

# ruff: noqa: PT012 - what is tested is an exception that leaves a Writer's block

pytestmark = pytest.mark.usefixtures("backend")

SCHEMA = Schema({"text": Str(), "value": Scalar("int32")})


def record(i):
    return {"text": f"text {i}", "value": i}


def write(path, numbers, **options):
    with Writer(path, SCHEMA, **options) as writer:
        for i in numbers:
            writer.append(record(i))
    return writer.manifest


def values(path, split=None):
    storage = open_storage(path)
    reader = SplitReader(storage, Manifest.load(storage), split)
    return [reader.value(i, "value") for i in range(len(reader))]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "d.fl"


class TestPublishing:
    def test_records_come_back_in_order_over_many_shards(self, path):
        manifest = write(path, range(50), shard_size=200, metadata={"source": "test"})
        assert values(path) == list(range(50))
        assert manifest.splits["default"].shards > 5
        assert Manifest.load(open_storage(path)).metadata == {"source": "test"}
        assert verify_dataset(open_storage(path)) == []

    def test_a_shard_ends_with_the_record_that_reaches_its_size(self, path):
        with Writer(path, {"x": Bytes()}, shard_size="1KB") as writer:
            for _ in range(3):
                writer.append({"x": bytes(5000)})
        assert writer.manifest.splits["default"].shards == 3

    def test_no_records(self, path):
        manifest = write(path, [])
        assert (manifest.splits["default"].records, manifest.splits["default"].shards) == (0, 0)
        assert values(path) == []
        assert verify_dataset(open_storage(path)) == []

    def test_nothing_is_there_before_it_is_closed(self, path):
        writer = Writer(path, SCHEMA, shard_size=1)
        writer.append(record(0))
        with pytest.raises(NotADatasetError):
            values(path)
        writer.close()
        assert values(path) == [0]
        assert writer.close() is writer.manifest

    def test_equal_content_has_an_equal_fingerprint(self, tmp_path):
        one, other = write(tmp_path / "a", range(9)), write(tmp_path / "b", range(9))
        assert one.fingerprint == other.fingerprint
        assert one.fingerprint != write(tmp_path / "c", range(8)).fingerprint

    def test_a_remote_store(self):
        url = f"memory://{uuid.uuid4().hex}/d.fl"
        write(url, range(20), shard_size=100)
        assert values(url) == list(range(20))
        assert verify_dataset(open_storage(url)) == []

    def test_columns_larger_than_the_spill_budget(self, path):
        rows = np.random.default_rng(0).integers(0, 256, (40, 5000), dtype=np.uint8)
        with Writer(
            path, {"x": Tensor("uint8", (5000,)), "t": Ragged("uint8")}, spill_bytes="10KB"
        ) as writer:
            for i, row in enumerate(rows):
                writer.append({"x": row, "t": row[:i]})
        reader = SplitReader.open(open_storage(path))
        for i, row in enumerate(rows):
            assert np.array_equal(reader.value(i, "x"), row)
            assert np.array_equal(reader.value(i, "t"), row[:i])
        assert verify_dataset(open_storage(path)) == []
        assert sorted(file.suffix for file in path.iterdir()) == [".json", ".shard", ".table"]

    def test_values_larger_than_every_buffer(self, path):
        big = os.urandom(3_000_000)
        with Writer(
            path, {"a": Bytes(), "z": Bytes(codec="zstd"), "x": Tensor("uint8", (2_000_000,))}
        ) as writer:
            for i in range(3):
                writer.append({"a": big[i:], "z": bytes(i * 1_000_000), "x": np.full(2_000_000, i, np.uint8)})
        reader = SplitReader.open(open_storage(path))
        assert reader.value(2, "a") == big[2:]
        assert reader.value(2, "z") == bytes(2_000_000)
        assert (reader.value(2, "x") == 2).all()
        assert verify_dataset(open_storage(path)) == []

    def test_torch_tensors(self, path):
        torch = pytest.importorskip("torch")
        schema = {"x": Tensor("float32", (2, 2)), "b": Tensor("bfloat16", (3,)), "y": Scalar("int64")}
        bits = torch.tensor([1.0, -2.5, 3e38], dtype=torch.bfloat16)
        with Writer(path, schema) as writer:
            writer.append({"x": torch.eye(2).T, "b": bits, "y": torch.tensor(7)})
        reader = SplitReader.open(open_storage(path))
        assert np.array_equal(reader.value(0, "x"), np.eye(2, dtype=np.float32))
        assert np.array_equal(reader.value(0, "b"), bits.view(torch.int16).numpy().view(np.uint16))
        assert reader.value(0, "y") == 7

    def test_nested_records(self, path):
        with Writer(
            path, {"a": Scalar("int8"), "meta": {"year": Scalar("int16"), "in": {"x": Str()}}}
        ) as writer:
            writer.append({"a": 1, "meta": {"year": 1999, "in": {"x": "deep"}}})
            writer.append({"a": 2, "meta.year": 2000, "meta": {"in.x": "flat"}})
        reader = SplitReader.open(open_storage(path))
        assert reader.record(1) == {"a": 2, "meta.year": 2000, "meta.in.x": "flat"}
        assert reader.value(0, "meta.in.x") == "deep"

    def test_a_dictionary_is_used_only_where_it_helps(self, tmp_path):
        def size(make):
            folder = tmp_path / uuid.uuid4().hex
            with Writer(folder, {"t": Bytes(codec="zstd")}) as writer:
                for i in range(2000):
                    writer.append({"t": make(i)})
            reader = SplitReader.open(open_storage(folder))
            assert all(reader.value(i, "t") == make(i) for i in range(0, 2000, 97))
            return len(reader.shard(0).directory.dictionaries)

        template = b'{"name": "somebody", "city": "somewhere", "occupation": "something", "number": %d}'
        assert size(lambda i: template % i) == 1
        assert size(lambda i: np.random.default_rng(i).bytes(80)) == 0
        assert size(lambda i: b"x" * 20) == 0


class TestModes:
    def test_create_refuses_a_dataset(self, path):
        write(path, range(3))
        with pytest.raises(UsageError, match="dataset already"):
            Writer(path, SCHEMA)
        assert values(path) == [0, 1, 2]

    def test_append(self, path):
        first = write(path, range(3), metadata={"a": 1, "b": 1})
        second = write(path, range(3, 5), mode="append", metadata={"b": 2})
        assert values(path) == [0, 1, 2, 3, 4]
        assert (first.generation, second.generation) == (1, 2)
        assert second.metadata == {"a": 1, "b": 2}
        assert verify_dataset(open_storage(path)) == []

    def test_append_adds_a_split(self, path):
        write(path, range(3), split="train")
        manifest = write(path, range(7, 9), split="val", mode="append")
        assert list(manifest.splits) == ["train", "val"]
        assert (values(path, "train"), values(path, "val")) == ([0, 1, 2], [7, 8])
        with pytest.raises(UsageError, match="several splits"):
            values(path)
        with pytest.raises(UsageError, match="train, val"):
            values(path, "test")

    def test_append_refuses_another_schema(self, path):
        write(path, range(3))
        with pytest.raises(UsageError, match="schema differs"):
            Writer(path, {"text": Str()}, mode="append")

    def test_append_to_nothing_creates(self, path):
        write(path, range(3), mode="append")
        assert values(path) == [0, 1, 2]

    def test_overwrite_replaces_only_when_it_is_done(self, path):
        write(path, range(3), split="train")
        with Writer(path, {"other": Scalar("int8")}, mode="overwrite") as writer:
            writer.append({"other": 1})
            assert values(path, "train") == [0, 1, 2]
        manifest = Manifest.load(open_storage(path))
        assert list(manifest.splits) == ["default"]
        assert manifest.generation == 2

    def test_overwrite_replaces_a_broken_manifest(self, path):
        write(path, range(3))
        (path / "manifest.json").write_bytes(b"{")
        write(path, range(2), mode="overwrite")
        assert values(path) == [0, 1]

    def test_readers_of_the_older_manifest_are_undisturbed(self, path):
        write(path, range(50), shard_size=200)
        reader = SplitReader.open(open_storage(path))
        write(path, range(2), mode="overwrite")
        assert [reader.value(i, "value") for i in range(50)] == list(range(50))

    @pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
    def test_what_another_writer_published_is_not_lost(self, path, mode):
        if mode != "create":
            write(path, range(3))
        writer = Writer(path, SCHEMA, mode=mode)
        writer.append(record(9))
        write(path, range(3, 6), mode="append")
        before = sorted(path.iterdir())
        with pytest.raises(WriteError, match="another writer"):
            writer.close()
        assert values(path) == ([3, 4, 5] if mode == "create" else [0, 1, 2, 3, 4, 5])
        assert set(path.iterdir()) < set(before)


class TestBadCalls:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"mode": "w"}, "mode is"),
            ({"split": "../x"}, "split cannot"),
            ({"shard_size": "many"}, "not a size"),
            ({"shard_size": 0}, "below 1"),
            ({"compression_level": 0}, "compression_level"),
            ({"metadata": [1]}, "JSON object"),
            ({"storage_options": {"a": 1}}, "storage_options"),
        ],
    )
    def test_options(self, path, options, message):
        with pytest.raises(UsageError, match=message):
            Writer(path, SCHEMA, **options)
        assert not path.exists()

    def test_metadata_that_is_no_json(self, path):
        with pytest.raises(SchemaError, match="JSON"):
            Writer(path, SCHEMA, metadata={"x": float("nan")})

    @pytest.mark.parametrize(
        ("bad", "field"),
        [
            ({"text": "x"}, "value"),
            ({"text": "x", "value": 1, "more": 2}, None),
            ({"text": None, "value": 1}, "text"),
            ({"text": "x", "value": 2**31}, "value"),
            ({"text": "x", "value": 1.5}, "value"),
            ({"text": b"x", "value": 1}, "text"),
            ({"text": "\ud800", "value": 1}, "text"),
            ([1, 2], None),
        ],
    )
    def test_a_bad_record_is_named_and_adds_nothing(self, path, bad, field):
        with Writer(path, SCHEMA) as writer:
            writer.append(record(0))
            with pytest.raises(RecordError) as caught:
                writer.append(bad)
            assert (caught.value.record, caught.value.field) == (1, field)
            writer.append(record(1))
        assert values(path) == [0, 1]

    def test_other_bad_values(self, path):
        schema = {
            "x": Tensor("uint8", (2,)),
            "l": Label(["a", "b"]),
            "t": Ragged("int16", (None, 2)),
            "i": Image(),
            "h": Scalar("float16"),
        }
        good = {"x": [1, 2], "l": "b", "t": [[1, 2]], "i": b"jpeg", "h": 1.0}
        with Writer(path, schema) as writer:
            writer.append(good)
            for name, value in [
                ("x", [1, 2, 3]),
                ("x", [1, 256]),
                ("x", [[1], [2, 3]]),
                ("x", "12"),
                ("l", "c"),
                ("l", 2),
                ("l", -1),
                ("t", [[1, 2, 3]]),
                ("t", [1, 2]),
                ("i", "file.jpg"),
                ("h", 1e6),
            ]:
                with pytest.raises(RecordError) as caught:
                    writer.append({**good, name: value})
                assert caught.value.field == name

    def test_a_closed_writer(self, path):
        writer = Writer(path, SCHEMA)
        writer.close()
        with pytest.raises(UsageError, match="closed"):
            writer.append(record(0))

    def test_a_forgotten_close_is_said(self, path):
        writer = Writer(path, SCHEMA)
        writer.append(record(0))
        with pytest.warns(ResourceWarning, match="never closed"):
            del writer
        assert list(path.iterdir()) == []


class TestFailures:
    def test_an_exception_publishes_nothing_and_removes_its_own_files(self, path):
        write(path, range(3))
        before = sorted(path.iterdir())
        with pytest.raises(ZeroDivisionError), Writer(path, SCHEMA, mode="append", shard_size=100) as writer:
            for i in range(20):
                writer.append(record(i))
            raise ZeroDivisionError
        assert sorted(path.iterdir()) == before
        assert values(path) == [0, 1, 2]

    def test_an_unwritable_target(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        writer = Writer(tmp_path / "file" / "d.fl", SCHEMA)
        with pytest.raises(WriteError):
            writer.append(record(0))
        writer.abort()

    def test_a_full_disk(self, path):
        program = (
            "import resource, sys\n"
            "from fastload.writer import Writer\n"
            "from fastload.schema import Bytes\n"
            "from fastload.errors import WriteError\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))\n"
            "try:\n"
            "    with Writer(sys.argv[1], {'x': Bytes()}) as writer:\n"
            "        for _ in range(10):\n"
            "            writer.append({'x': bytes(1_000_000)})\n"
            "except WriteError as error:\n"
            "    print(error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
        )
        assert "larger than is allowed" in done.stdout, done
        assert list(path.iterdir()) == []

    def test_after_a_write_error_a_writer_stays_dead(self, path):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        writer = Writer(path, {"x": Bytes()})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
            with pytest.raises(WriteError, match="larger than"):
                writer.append({"x": bytes(2_000_000)})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        with pytest.raises(WriteError, match="earlier write"):
            writer.append({"x": b""})
        with pytest.raises(WriteError, match="nothing is published"):
            writer.close()
        assert list(path.iterdir()) == []

    def test_a_killed_writer(self, path):
        program = (
            "import sys, time\n"
            "from fastload.writer import Writer\n"
            "from fastload.schema import Bytes\n"
            "writer = Writer(sys.argv[1], {'x': Bytes()}, shard_size=100_000, spill_bytes=1)\n"
            "for _ in range(5):\n"
            "    writer.append({'x': bytes(60_000)})\n"
            "print('ready', flush=True)\n"
            "time.sleep(60)\n"
        )
        process = subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert not (path / "manifest.json").exists()
        left = sorted(path.iterdir())
        assert [file.suffix for file in left] == [".shard"] * 3
        with pytest.raises(NotADatasetError):
            values(path)
        write(path, range(3))
        assert values(path) == [0, 1, 2]
        storage = open_storage(path)
        assert gc(storage).files == {}  # it might still be at work
        assert set(gc(storage).recent) == {file.name for file in left}
        assert set(gc(storage, dry_run=False, older_than=0).files) == {file.name for file in left}
        assert values(path) == [0, 1, 2]
        assert len(list(path.iterdir())) == 3

    def test_a_shard_that_was_removed_before_publishing(self, path):
        with pytest.raises(WriteError, match="removed before"), Writer(path, SCHEMA, shard_size=1) as writer:
            writer.append(record(0))
            next(path.glob("*.shard")).unlink()
        assert not (path / "manifest.json").exists()


def write_part(job):
    path, number, split = job
    with Writer.part(path, SCHEMA, name=str(number), split=split, shard_size=200) as writer:
        for i in range(number * 10, number * 10 + 10):
            writer.append(record(i))
    return writer.close()


class TestParts:
    def test_processes_write_and_one_commit_publishes(self, path):
        jobs = [(path, number, "train" if number < 4 else "val") for number in range(6)]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            parts = list(pool.map(write_part, jobs))
        assert not (path / "manifest.json").exists()
        manifest = Writer.commit(path, parts, metadata={"a": 1})
        assert list(manifest.splits) == ["train", "val"]
        assert values(path, "train") == list(range(40))
        assert values(path, "val") == list(range(40, 60))
        assert verify_dataset(open_storage(path)) == []

    def test_the_order_of_splits_can_be_given(self, path):
        manifest = Writer.commit(path, [write_part((path, 0, "b"))], splits=["a", "b"])
        assert [(name, split.records) for name, split in manifest.splits.items()] == [("a", 0), ("b", 10)]

    def test_a_part_is_small_and_picklable(self, path):
        part = write_part((path, 1, "train"))
        assert isinstance(part, Part)
        assert pickle.loads(pickle.dumps(part)) == part
        assert part.records == 10
        assert part.bytes == sum(file.stat().st_size for file in path.glob("*.shard"))

    def test_a_failed_part_leaves_nothing(self, path):
        with pytest.raises(ZeroDivisionError), Writer.part(path, SCHEMA, name="0", shard_size=1) as writer:
            writer.append(record(0))
            raise ZeroDivisionError
        assert list(path.iterdir()) == []
        with pytest.raises(UsageError, match="dropped"):
            writer.close()

    def test_discard(self, path):
        Writer.discard(path, [write_part((path, 0, "train"))])
        assert list(path.iterdir()) == []

    def test_commit_refuses_what_does_not_fit(self, path):
        part = write_part((path, 0, "train"))
        with pytest.raises(UsageError, match="given twice"):
            Writer.commit(path, [part, part])
        with pytest.raises(UsageError, match="another schema"):
            Writer.commit(path, [part], schema={"x": Scalar("int8")})
        with pytest.raises(UsageError, match="no parts"):
            Writer.commit(path, [])
        Writer.commit(path, [part])
        with pytest.raises(UsageError, match="dataset already"):
            Writer.commit(path, [write_part((path, 1, "train"))])
        Writer.commit(path, [write_part((path, 1, "train"))], mode="append")
        assert values(path) == list(range(20))

    def test_a_writer_carried_into_a_fork_is_refused(self, path):
        if not hasattr(os, "fork"):
            pytest.skip("no fork here")
        writer = Writer(path, SCHEMA)
        writer.append(record(0))
        child = os.fork()
        if child == 0:
            try:
                writer.append(record(1))
            except UsageError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.close()
        assert values(path) == [0]


def test_two_writers_at_once_do_not_disturb_each_other(path):
    write(path, range(2))
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        results = [pool.submit(append_one, path, i) for i in range(10, 14)]
        published = [result.result() for result in results]
    assert sorted(values(path)) == sorted([0, 1, *(i for i in published if i is not None)])
    assert any(i is not None for i in published)


def append_one(path: Path, i: int) -> int | None:
    try:
        with Writer(path, SCHEMA, mode="append") as writer:
            writer.append(record(i))
            time.sleep(0.01)
    except WriteError:
        return None
    return i
