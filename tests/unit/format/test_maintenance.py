"""verify_dataset, repair, gc and merge."""

from __future__ import annotations

import os
import uuid

import pytest

from fastload.errors import (
    CorruptionError,
    FormatError,
    NotADatasetError,
    ShardNotFoundError,
    UsageError,
)
from fastload.format import Manifest, SplitReader, gc, merge, repair, verify_dataset
from fastload.schema import Scalar, Schema, Str
from fastload.storage import open_storage
from fastload.writer import Writer

SCHEMA = Schema({"text": Str(nullable=True), "value": Scalar("int32")})


def write(path, numbers, **options):
    with Writer(path, SCHEMA, shard_size=200, **options) as writer:
        for i in numbers:
            writer.append({"text": None if i % 3 == 0 else f"text {i}", "value": i})
    return writer.manifest


def values(path, split=None):
    storage = open_storage(path)
    reader = SplitReader(storage, Manifest.load(storage), split)
    return [int(reader.value(i, "value")) for i in range(len(reader))]


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "d.fl", range(30), split="train", metadata={"a": 1})
    write(tmp_path / "d.fl", range(30, 40), split="val", mode="append")
    return tmp_path / "d.fl"


def replace(file, data):
    file.unlink()
    file.write_bytes(data)


class TestVerify:
    def test_it_finds_every_problem_and_goes_on(self, path):
        shards = sorted(path.glob("*.shard"))
        replace(shards[0], shards[0].read_bytes()[:-1])
        data = bytearray(shards[1].read_bytes())
        data[4096] ^= 1
        replace(shards[1], data)
        shards[2].unlink()
        seen = []
        problems = verify_dataset(open_storage(path), progress=lambda done, total: seen.append((done, total)))
        assert {type(problem) for problem in problems} == {CorruptionError, ShardNotFoundError}
        assert {problem.shard for problem in problems} == {shard.name for shard in shards[:3]}
        assert (
            seen[-1][0]
            == seen[-1][1]
            == sum(s.bytes for s in Manifest.load(open_storage(path)).splits.values())
        )
        assert len(seen) == len(shards)

    def test_one_split(self, path):
        split = Manifest.load(open_storage(path)).splits["val"]
        (path / split.table).unlink()
        assert len(verify_dataset(open_storage(path))) == 1
        assert verify_dataset(open_storage(path), split="train") == []
        with pytest.raises(UsageError):
            verify_dataset(open_storage(path), split="test")

    def test_padding_is_looked_at(self, path):
        shard = next(path.glob("*.shard"))
        data = bytearray(shard.read_bytes())
        data[100] = 1
        replace(shard, data)
        assert values(path, "train") == list(range(30))
        (problem,) = verify_dataset(open_storage(path))
        assert "gap" in str(problem)

    def test_a_broken_manifest_is_a_problem_none_is_an_error(self, path):
        replace(path / "manifest.json", b"{")
        (problem,) = verify_dataset(open_storage(path))
        assert isinstance(problem, FormatError)
        (path / "manifest.json").unlink()
        with pytest.raises(NotADatasetError):
            verify_dataset(open_storage(path))


class TestRepair:
    def test_a_sound_dataset_needs_nothing(self, path):
        before = (path / "manifest.json").read_bytes()
        report = repair(open_storage(path))
        assert (report.needed, report.manifest, report.problems, report.orphans) == (False, None, [], [])
        assert report.splits == {"train": 30, "val": 10}
        assert (path / "manifest.json").read_bytes() == before

    @pytest.mark.parametrize("damage", ["lost", "half", "flipped"])
    def test_a_manifest_is_rebuilt_from_the_tables(self, path, damage):
        file = path / "manifest.json"
        data = file.read_bytes()
        file.unlink()
        if damage == "half":
            file.write_bytes(data[: len(data) // 2])
        elif damage == "flipped":
            file.write_bytes(data.replace(b'"records": 30', b'"records": 31'))
        dry = repair(open_storage(path), dry_run=True)
        assert dry.needed
        assert dry.manifest is None
        assert file.exists() == (damage != "lost")
        report = repair(open_storage(path))
        assert (values(path, "train"), values(path, "val")) == (list(range(30)), list(range(30, 40)))
        assert report.orphans == []
        assert verify_dataset(open_storage(path)) == []
        assert dict(Manifest.load(open_storage(path)).metadata) == ({"a": 1} if damage == "flipped" else {})

    def test_lost_shards_are_left_out_and_named(self, path):
        gone = sorted(path.glob("*.shard"))[0]
        gone.unlink()
        report = repair(open_storage(path))
        assert [problem.shard for problem in report.problems] == [gone.name]
        assert sum(report.splits.values()) == len(values(path, "train")) + len(values(path, "val")) < 40
        assert verify_dataset(open_storage(path)) == []
        assert report.manifest.generation == 3

    def test_orphans_are_asked_about(self, path):
        with Writer.part(path, SCHEMA, name="0") as part:
            part.append({"text": "orphan", "value": 99})
        report = repair(open_storage(path))
        assert [orphan.entry.records for orphan in report.orphans] == [1]
        assert not report.needed
        asked = []
        report = repair(open_storage(path), decide=lambda orphan: asked.append(orphan) or "val")
        assert len(asked) == 1
        assert asked[0].table is None
        assert report.splits == {"train": 30, "val": 11}
        assert values(path, "val")[-1] == 99
        assert verify_dataset(open_storage(path)) == []

    def test_from_shards_alone(self, path):
        for file in [*path.glob("*.table"), path / "manifest.json"]:
            file.unlink()
        with pytest.raises(UsageError, match="nothing here can be rebuilt"):
            repair(open_storage(path))
        repair(open_storage(path), decide=lambda orphan: "all")
        assert sorted(values(path, "all")) == list(range(40))

    def test_older_tables_are_not_taken_for_the_newest(self, path):
        write(path, range(100, 103), split="train", mode="append")
        (path / "manifest.json").unlink()
        for age, table in enumerate(
            sorted(path.glob("*.table"), key=lambda file: file.stat().st_size, reverse=True)
        ):
            os.utime(table, (1e9 - age, 1e9 - age))  # the longest is the newest
        report = repair(open_storage(path))
        assert report.splits == {"train": 33, "val": 10}

    def test_an_unfinished_shard_is_no_orphan(self, path):
        (path / "0123456789abcdef-000000.shard").write_bytes(b"\x89FLS\r\n\x1a\n" + bytes(5000))
        assert repair(open_storage(path)).orphans == []

    def test_nothing_there(self, tmp_path):
        with pytest.raises(UsageError):
            repair(open_storage(tmp_path))


class TestGc:
    def test_only_own_names_that_nothing_needs(self, path):
        needed = {file.name for file in path.iterdir()}
        write(path, range(3), mode="overwrite")
        foreign = {"notes.txt", "x.shard", "manifest.json.bak", "0123456789abcdef-1.shard"}
        own = {
            "0123456789abcdef-000001.shard",
            "manifest.json.0123456789abcdef.tmp",
            "x-0123456789abcdef.table",
        }
        for name in foreign | own:
            (path / name).write_bytes(b"12345")
        dry = gc(open_storage(path), older_than=0)
        expected = (needed - {"manifest.json"}) | own
        assert set(dry.files) == expected
        assert not dry.removed
        assert dry.bytes > 15
        assert all((path / name).exists() for name in expected)
        assert gc(open_storage(path), older_than=0, dry_run=False).files == dry.files
        assert not any((path / name).exists() for name in expected)
        assert all((path / name).exists() for name in foreign)
        assert values(path) == [0, 1, 2]
        assert verify_dataset(open_storage(path)) == []

    def test_without_a_manifest_nothing_is_removed(self, path):
        (path / "manifest.json").unlink()
        with pytest.raises(NotADatasetError):
            gc(open_storage(path), dry_run=False, older_than=0)
        assert len(list(path.glob("*.shard"))) > 3


class TestMerge:
    @pytest.mark.parametrize("where", ["local", "memory"])
    def test_splits_are_put_together(self, path, tmp_path, where):
        write(tmp_path / "other.fl", range(50, 55), split="val")
        url = str(tmp_path / "merged.fl") if where == "local" else f"memory://{uuid.uuid4().hex}/m.fl"
        sources = [open_storage(path), open_storage(tmp_path / "other.fl"), open_storage(path)]
        manifest = merge(open_storage(url), sources)
        assert list(manifest.splits) == ["train", "val"]
        assert values(url, "train") == [*range(30), *range(30)]
        assert values(url, "val") == [*range(30, 40), *range(50, 55), *range(30, 40)]
        assert manifest.metadata == {"a": 1}
        assert verify_dataset(open_storage(url)) == []

    def test_the_sources_may_go(self, path, tmp_path):
        merge(open_storage(tmp_path / "m.fl"), [open_storage(path)])
        for file in path.iterdir():
            file.unlink()
        assert values(tmp_path / "m.fl", "train") == list(range(30))

    def test_append(self, path, tmp_path):
        write(tmp_path / "other.fl", range(50, 55), split="val")
        merge(open_storage(path), [open_storage(tmp_path / "other.fl")], mode="append")
        assert values(path, "val") == [*range(30, 40), *range(50, 55)]

    def test_what_cannot_be_merged(self, path, tmp_path):
        with Writer(tmp_path / "other.fl", {"x": Str()}) as writer:
            writer.append({"x": "a"})
        target = open_storage(tmp_path / "m.fl")
        with pytest.raises(UsageError, match="schema differs"):
            merge(target, [open_storage(path), open_storage(tmp_path / "other.fl")])
        with pytest.raises(UsageError, match="nothing to merge"):
            merge(target, [])
        with pytest.raises(UsageError, match="dataset already"):
            merge(open_storage(path), [open_storage(path)])
        next(path.glob("*.shard")).unlink()
        with pytest.raises(ShardNotFoundError):
            merge(target, [open_storage(path)])
        assert target.list() == []
