from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from fastload.convert.files import FileTree
from fastload.convert.source import SourceOptions
from fastload.convert.sources.parquet import TableSource
from fastload.errors import SourceError
from fastload.schema import Bytes, Image, Label, Ragged, Scalar, Str, StrList, Tensor


def source_of(path: Path, **options: Any) -> TableSource:
    return TableSource(FileTree(str(path)), SourceOptions(**options))


def records_of(source: TableSource, split: str = "default", shard_bytes: int = 1 << 20) -> list[Any]:
    out: list[Any] = []
    for partition in source.partitions(split, shard_bytes):
        out += [record for _, record in partition.read()]
    return out


TABLE = pa.table(
    {
        "i": pa.array([1, 2, 3], pa.int16()),
        "h": pa.array(np.array([0.5, 1, 2], np.float16)),
        "b": [True, False, True],
        "s": ["a", "", "é"],
        "ls": pa.array(["x", "y", "z"], pa.large_string()),
        "d": pa.array(["p", "q", "p"]).dictionary_encode(),
        "raw": [b"1", b"", b"333"],
        "fixed": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        "tokens": pa.array([[1, 2], [], [3]], pa.list_(pa.uint16())),
        "texts": [["a", "b"], [], ["c"]],
        "matrix": pa.array([[[1, 2], [3, 4]]] * 3, pa.list_(pa.list_(pa.float32(), 2), 2)),
        "points": pa.array([[[1, 2]], [], [[3, 4], [5, 6]]], pa.list_(pa.list_(pa.int8(), 2))),
        "grid": pa.array([[[1, 2], [3, 4]], [[5]], []], pa.list_(pa.list_(pa.int32()))),
        "meta": [{"year": 1, "at": {"x": 1.0}}, {"year": 2, "at": {"x": 2.0}}, {"year": 3, "at": {"x": 3.0}}],
    }
)

FIELDS = {
    "i": Scalar("int16"),
    "h": Scalar("float16"),
    "b": Scalar("bool"),
    "s": Str(),
    "ls": Str(),
    "d": Str(),
    "raw": Bytes(),
    "fixed": Bytes(),
    "tokens": Ragged("uint16"),
    "texts": StrList(),
    "matrix": Tensor("float32", (2, 2)),
    "points": Ragged("int8", (None, 2)),
    "grid": Ragged("int32", (None, None)),
    "meta.year": Scalar("int64"),
    "meta.at.x": Scalar("float64"),
}


def write(table: Any, path: Path) -> None:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, str(path), compression="uncompressed")
    else:
        opener = pa.ipc.new_stream if path.suffix == ".arrow" else pa.ipc.new_file
        with opener(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=2)


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.ipc", "t.feather"])
def test_types_and_values(tmp_path: Path, name: str) -> None:
    write(TABLE, tmp_path / name)
    source = source_of(tmp_path / name)
    assert dict(source.schema) == FIELDS
    records = records_of(source)
    rows = TABLE.flatten().flatten().to_pylist()
    assert len(records) == 3
    for record, row in zip(records, rows, strict=True):
        for field, value in record.items():
            expected = row[field]
            made = value.tolist() if hasattr(value, "tolist") else value
            assert made == expected, field
    assert [r["tokens"].dtype for r in records] == [np.uint16] * 3
    assert records[2]["grid"].shape == (0, 0)


def test_nulls_make_a_column_nullable(tmp_path: Path) -> None:
    table = pa.table(
        {
            "never": [1, 2, 3],
            "some": [1, None, 3],
            "text": ["a", None, "c"],
            "tokens": pa.array([[1], None, [2, 3]], pa.list_(pa.int32())),
            "s": pa.array([{"x": 1}, None, {"x": None}]),
            "pixels": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.uint8(), 2)),
        }
    )
    for name in ("t.parquet", "t.ipc"):
        write(table, tmp_path / name)
        source = source_of(tmp_path / name)
        nullable = {field: source.schema[field].nullable for field in source.schema}
        expected = {"never": False, "some": True, "text": True, "tokens": True, "s.x": True, "pixels": True}
        assert nullable == expected
        first, second, third = records_of(source)
        assert {field: value is None for field, value in second.items()} == expected
        assert third["tokens"].tolist() == [2, 3]
        assert (first["some"], first["s.x"], third["s.x"]) == (1, 1, None)
        assert first["pixels"].tolist() == [1, 2]


def test_hugging_face_images_and_classes(tmp_path: Path) -> None:
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", image), ("label", pa.int64())],
        metadata={b"huggingface": json.dumps({"info": {"features": features}}).encode()},
    )
    rows = [{"image": {"bytes": b"1", "path": "a.jpg"}, "label": 1}]
    for name in (
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
        "test-00000-of-00001.parquet",
    ):
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / name)
    source = source_of(tmp_path)
    assert dict(source.schema) == {"image": Image(), "label": Label(("cat", "dog"))}
    assert list(source.split_names()) == ["train", "test"]
    assert records_of(source, "train") == [{"image": b"1", "label": 1}] * 2
    assert source.notes == ["the paths beside the bytes of 'image' were left out"]


def test_bytes_can_be_images(tmp_path: Path) -> None:
    write(TABLE, tmp_path / "t.parquet")
    source = source_of(tmp_path / "t.parquet", columns=("raw", "i"), image_columns=("raw",))
    assert dict(source.schema) == {"raw": Image(), "i": Scalar("int16")}


def test_splits_from_folders(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        (tmp_path / split).mkdir()
        for part in "ab":
            write(TABLE, tmp_path / split / f"{part}.parquet")
    source = source_of(tmp_path, columns=("i",))
    assert list(source.split_names()) == ["train", "validation"]
    assert [int(r["i"]) for r in records_of(source, "validation", shard_bytes=1)] == [1, 2, 3, 1, 2, 3]


def test_bad_columns_are_refused(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    write(twice, tmp_path / "twice.ipc")
    with pytest.raises(SourceError, match=r"a column occurs twice.*'a'"):
        source_of(tmp_path / "twice.ipc")
    write(TABLE, tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"no column z.*it has i, h"):
        source_of(tmp_path / "t.parquet", columns=("i", "z"))
    with pytest.raises(SourceError, match="asked for twice: i"):
        source_of(tmp_path / "t.parquet", columns=("i", "i"))


def test_files_must_agree(tmp_path: Path) -> None:
    write(pa.table({"a": [1], "b": [1]}), tmp_path / "1.parquet")
    write(pa.table({"a": [1], "c": [1]}), tmp_path / "2.parquet")
    with pytest.raises(SourceError, match=r"lacks b and adds c, unlike .*1\.parquet"):
        source_of(tmp_path)
    write(pa.table({"a": [1.5], "b": [1]}), tmp_path / "2.parquet")
    with pytest.raises(SourceError, match="is double here and int64"):
        source_of(tmp_path)


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1], pa.timestamp("s")),
        pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        pa.nulls(1),
        pa.array([[[b"x"]]]),
    ],
)
def test_unknown_types_are_refused(tmp_path: Path, array: Any) -> None:
    write(pa.table({"a": array}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match=r"have no field type .*field 'a'.*--columns"):
        source_of(tmp_path / "t.parquet")


def test_an_unfit_record_is_an_error_of_its_own(tmp_path: Path) -> None:
    rows = [[[1, 2], [3, 4]], [[1], [2, 3]], [[None, 2]]]
    write(pa.table({"a": pa.array(rows, pa.list_(pa.list_(pa.int32())))}), tmp_path / "t.parquet")
    (partition,) = source_of(tmp_path / "t.parquet").partitions("default", 1 << 20)
    fine, uneven, null = partition.read()
    assert not isinstance(fine[1], SourceError)
    assert uneven[0].endswith("t.parquet row 1")
    assert "unequal lengths" in str(uneven[1])
    assert "a null inside a list" in str(null[1])


def test_damage_is_named(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.arrow"):
        (tmp_path / name).write_bytes(b"nothing of the kind" * 10)
        with pytest.raises(SourceError, match=r"not a readable .*t\."):
            source_of(tmp_path / name)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no tables"):
        source_of(tmp_path / "empty")
