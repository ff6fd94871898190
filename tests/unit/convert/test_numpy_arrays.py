from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastload.convert.files import FileTree
from fastload.convert.source import SourceOptions
from fastload.convert.sources import numpy_arrays
from fastload.convert.sources.numpy_arrays import NumpySource
from fastload.errors import SourceError
from fastload.schema import Bytes, Label, Scalar, Str, Tensor


def source_of(path: Path, **options: object) -> NumpySource:
    return NumpySource(FileTree(str(path)), SourceOptions(**options))  # type: ignore[arg-type]


def column(source: NumpySource, name: str, shard_bytes: int = 1 << 20) -> list[object]:
    out: list[object] = []
    for partition in source.partitions("default", shard_bytes):
        out += [record[name] for _, record in partition.read()]  # type: ignore[index,call-overload]
    return out


X = np.arange(60, dtype=np.uint8).reshape(10, 2, 3)
Y = np.arange(10, dtype=np.int64)


def test_one_array(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    source = source_of(tmp_path / "x.npy")
    assert dict(source.schema) == {"x": Tensor("uint8", (2, 3))}
    np.testing.assert_array_equal(column(source, "x"), X)
    np.testing.assert_array_equal(column(source, "x", shard_bytes=200), X)
    assert len(source.partitions("default", 200)) > 1


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archive(tmp_path: Path, save: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_arrays, "BLOCK_BYTES", 16)
    names = np.array(["a", "bb", "é"] * 3 + ["x"])
    save(tmp_path / "d.npz", x=X, y=Y.astype(">i4"), f=np.asfortranarray(X), name=names)  # type: ignore[operator]
    source = source_of(tmp_path / "d.npz")
    expected = {
        "x": Tensor("uint8", (2, 3)),
        "y": Scalar("int32"),
        "f": Tensor("uint8", (2, 3)),
        "name": Str(),
    }
    assert dict(source.schema) == expected
    np.testing.assert_array_equal(column(source, "x"), X)
    np.testing.assert_array_equal(column(source, "f"), X)
    np.testing.assert_array_equal(column(source, "y"), Y)
    assert column(source, "name") == list(names)


def test_folder_with_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    np.save(tmp_path / "labels.npy", Y % 2)
    np.save(tmp_path / "raw.npy", np.array([b"ab"] * 10))
    source = source_of(tmp_path, classes=("even", "odd"))
    assert source.schema["labels"] == Label(("even", "odd"))
    assert source.schema["raw"] == Bytes()
    np.testing.assert_array_equal(column(source, "x"), X)
    assert column(source, "raw") == [b"ab"] * 10
    chosen = source_of(tmp_path, columns=("x",))
    assert list(chosen.schema) == ["x"]
    with pytest.raises(SourceError, match=r"no array z.*labels"):
        source_of(tmp_path, columns=("z",))


@pytest.mark.parametrize(
    ("arrays", "cause"),
    [
        ({"a": X, "b": Y[:3]}, "differ in length: a 10, b 3"),
        ({"a": np.array(3)}, "no dimension"),
        ({"a": np.zeros(3, complex)}, "dtype complex128 and shape .. has no field type"),
        ({"a": np.zeros((3, 2), "U2")}, "has no field type"),
        ({"a": np.zeros(3, "M8[s]")}, "has no field type"),
        ({"a": np.array([{}, {}])}, "has no field type"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray], cause: str) -> None:
    np.savez(tmp_path / "d.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=cause):
        source_of(tmp_path / "d.npz")


def test_damage_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.npy").write_bytes(b"not an array at all")
    with pytest.raises(SourceError, match=r"not a NumPy array.*t\.npy"):
        source_of(tmp_path / "t.npy")
    (tmp_path / "t.npz").write_bytes(b"not an archive")
    with pytest.raises(SourceError, match=r"not an \.npz archive"):
        source_of(tmp_path / "t.npz")
    np.save(tmp_path / "x.npy", X)
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-7])
    with pytest.raises(SourceError, match=r"x\.npy"):
        column(source_of(tmp_path / "x.npy"), "x")


def test_empty_array_has_no_partitions(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X[:0])
    assert source_of(tmp_path / "x.npy").partitions("default", 100) == []
