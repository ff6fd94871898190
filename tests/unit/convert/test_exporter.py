from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import fastload
from fastload.convert import convert, export
from fastload.convert.exporter import _safe_path
from fastload.errors import UsageError
from fastload.schema import Image, Label, Schema, Str

FIELDS = {
    "i": fastload.Scalar("int32"),
    "h": fastload.Scalar("float16"),
    "bf": fastload.Scalar("bfloat16"),
    "flag": fastload.Scalar("bool"),
    "label": fastload.Label(["a", "b"]),
    "t": fastload.Tensor("float32", (2, 3)),
    "r": fastload.Ragged("uint16"),
    "r2": fastload.Ragged("int8", (None, 2)),
    "r3": fastload.Ragged("int8", (None, None)),
    "raw": fastload.Bytes(),
    "s": fastload.Str(nullable=True),
    "l": fastload.StrList(),
    "j": fastload.Json(),
    "image": fastload.Image(),
}
RECORDS = [
    {
        "i": number,
        "h": number / 2,
        "bf": np.uint16(0x3F80 + number),
        "flag": number % 2 == 0,
        "label": number % 2,
        "t": np.full((2, 3), number, np.float32),
        "r": np.arange(number, dtype=np.uint16),
        "r2": np.full((number, 2), number, np.int8),
        "r3": np.full((number, 3), number, np.int8),
        "raw": bytes([number]),
        "s": None if number == 1 else f"é{number}",
        "l": ["x"] * number,
        "j": {"n": [number]},
        "image": b"image%d" % number,
    }
    for number in range(4)
]


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    path = tmp_path / "all.fl"
    with fastload.Writer(path, schema=FIELDS) as writer:
        for record in RECORDS:
            writer.append(record)
    return path


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def test_parquet_and_back(everything: Path, tmp_path: Path) -> None:
    done = export(everything, tmp_path / "out", kind="parquet")
    assert done.records == {"default": 4}
    assert any("JSON" in note for note in done.notes)
    rows = pq.read_table(tmp_path / "out" / "default.parquet").to_pylist()
    assert rows[3]["t"] == [[3.0] * 3] * 2
    assert rows[3]["bf"] == 1 + 3 / 128
    assert rows[1]["s"] is None
    assert rows[2]["j"] == '{"n": [2]}'
    assert rows[2]["image"] == {"bytes": b"image2", "path": None}
    convert(tmp_path / "out", tmp_path / "again.fl", check="none")
    again = fastload.open(tmp_path / "again.fl").with_format("numpy")
    different = {"bf": fastload.Scalar("float32"), "j": fastload.Str()}
    assert dict(again.schema) == {**FIELDS, **different}
    names = [name for name in FIELDS if name not in ("bf", "j", "image")]
    for record, sample in zip(RECORDS, again.select_columns(names), strict=True):
        assert {name: plain(sample[name]) for name in names} == {name: plain(record[name]) for name in names}


def test_parquet_keeps_classes_and_images(tmp_path: Path, picture_folder: Path) -> None:
    convert(picture_folder, tmp_path / "p.fl")
    export(tmp_path / "p.fl", tmp_path / "out", kind="parquet")
    convert(tmp_path / "out", tmp_path / "again.fl")
    again = fastload.open(tmp_path / "again.fl")
    assert dict(again.schema) == {"image": Image(), "label": Label(("cat", "dog")), "path": Str()}
    assert len(again) == 24


def test_image_folder_and_back(tmp_path: Path, picture_folder: Path) -> None:
    convert(picture_folder, tmp_path / "p.fl", jpeg="keep")
    done = export(tmp_path / "p.fl", tmp_path / "out")
    assert done.kind == "image-folder"
    files = sorted(path.relative_to(picture_folder) for path in picture_folder.rglob("*.jpg"))
    assert sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*.jpg")) == files
    for file in files:
        assert (tmp_path / "out" / file).read_bytes() == (picture_folder / file).read_bytes()
    again = convert(tmp_path / "out", tmp_path / "again.fl", jpeg="keep")
    assert again.fingerprint == fastload_fingerprint(tmp_path / "p.fl")


def fastload_fingerprint(path: Path) -> str:
    from fastload.format import Manifest
    from fastload.storage import open_storage

    return Manifest.load(open_storage(path)).fingerprint


def test_paths_that_leave_the_folder_are_not_followed(tmp_path: Path) -> None:
    paths = [
        "../../evil.jpg",
        "/etc/evil.jpg",
        "a/../../evil.jpg",
        "a/ok.jpg",
        "a/ok.jpg",
        "b/wrong-class.jpg",
    ]
    with fastload.Writer(
        tmp_path / "e.fl", {"image": Image(), "label": Label(["a", "b"]), "path": Str()}
    ) as writer:
        for path in paths:
            writer.append({"image": b"\xff\xd8", "label": "a", "path": path})
    export(tmp_path / "e.fl", tmp_path / "deep" / "er" / "out")
    assert not list(tmp_path.glob("**/evil.jpg"))
    written = [path for path in (tmp_path / "deep" / "er" / "out").rglob("*") if path.is_file()]
    assert len(written) == 6
    assert {path.parent.name for path in written} == {"a"}
    assert (_safe_path("a/b.jpg", "a"), _safe_path("a\\b.jpg", None), _safe_path("a/b.jpg", "c")) == (
        "a/b.jpg",
        None,
        None,
    )


def test_numpy_and_back(tmp_path: Path, record_dataset: str) -> None:
    done = export(record_dataset, tmp_path / "out", kind="numpy")
    assert any("ragged" in note for note in done.notes)
    x = np.load(tmp_path / "out" / "x.npy")
    np.testing.assert_array_equal(x, np.stack([np.full((3, 4), number, np.uint8) for number in range(100)]))
    assert (tmp_path / "out" / "y.classes.txt").read_text() == "a\nb\nc\n"
    shapes = np.load(tmp_path / "out" / "t.shapes.npy")
    assert shapes[:, 0].tolist() == [number % 7 for number in range(100)]
    assert len(np.load(tmp_path / "out" / "t.values.npy")) == shapes.sum()
    export(record_dataset, tmp_path / "columns", kind="numpy", fields=["x", "y"])
    classes = tmp_path / "columns" / "y.classes.txt"
    convert(tmp_path / "columns", tmp_path / "again.fl", classes_from=classes)
    again = fastload.open(tmp_path / "again.fl")
    assert again.classes == ("a", "b", "c")
    assert int(again[99]["y"]) == 0


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"kind": "numpy"}, "cannot hold the fields raw, s, l, j, image"),
        ({"kind": "image-folder", "fields": ["i"]}, "one image field"),
        ({"fields": ["none"]}, "no field none"),
        ({"splits": ["none"]}, "no split 'none'"),
    ],
)
def test_refusals_leave_nothing(everything: Path, tmp_path: Path, arguments: Any, cause: str) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match=cause):
        export(everything, tmp_path / "out", **arguments)
    assert sorted(tmp_path.iterdir()) == before


def test_an_existing_target_is_replaced_only_when_told(everything: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(UsageError, match="--overwrite"):
        export(everything, tmp_path / "out", kind="parquet")
    assert (tmp_path / "out" / "precious").exists()
    export(everything, tmp_path / "out", kind="parquet", overwrite=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["default.parquet"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.fl", "out"]


def test_several_splits_are_several_folders(tmp_path: Path) -> None:
    schema = Schema({"x": fastload.Scalar("int8")})
    for split in ("train", "val"):
        with fastload.Writer(tmp_path / "d.fl", schema, split=split, mode="append") as writer:
            writer.append({"x": 1})
    export(tmp_path / "d.fl", tmp_path / "out")
    assert sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.parquet")) == [
        "train/train.parquet",
        "val/val.parquet",
    ]
