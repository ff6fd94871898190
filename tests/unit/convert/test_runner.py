from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as PillowImage

import fastload
from fastload.convert import convert
from fastload.convert.detect import detect_kind, read_classes
from fastload.errors import FastloadError, RecordError, SourceError, UsageError


def jpeg(seed: int, orientation: int = 1) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = PillowImage.fromarray(pixels)
    exif = image.getexif()
    if orientation != 1:
        exif[0x0112] = orientation
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", exif=exif.tobytes() if orientation != 1 else b"")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for split, count in (("train", 9), ("val", 3)):
        for number in range(count):
            file = root / split / ("cat", "dog")[number % 2] / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(number))
    return root


def contents(path: Any, split: str) -> list[tuple[bytes, int, str]]:
    from fastload.format import Manifest, SplitReader
    from fastload.storage import open_storage

    storage = open_storage(path)
    reader = SplitReader(storage, Manifest.load(storage), split, verify="always")
    return [tuple(reader.value(r, name) for name in reader.schema) for r in range(reader.records)]  # type: ignore[misc]


def test_bytes_are_kept_and_splits_made(pictures: Path, tmp_path: Path) -> None:
    done = convert(pictures, tmp_path / "p.fl", jpeg="keep")
    assert done.records == {"train": 9, "val": 3}
    assert done.kind == "image-folder"
    found = contents(tmp_path / "p.fl", "train")
    assert [path for _, _, path in found] == sorted(path for _, _, path in found)
    for data, label, path in found:
        assert (pictures / "train" / path).read_bytes() == data
        assert ("cat", "dog")[label] == path.split("/")[0]
    assert fastload.open(tmp_path / "p.fl", split="val").metadata["source"]["origin"] == str(pictures)


def test_the_dataset_does_not_depend_on_the_workers(pictures: Path, tmp_path: Path) -> None:
    prints = {
        convert(pictures, tmp_path / f"{workers}.fl", workers=workers, shard_size=1500).fingerprint
        for workers in (0, 1, 2, 3)
    }
    assert len(prints) == 1
    assert contents(tmp_path / "0.fl", "train") == contents(tmp_path / "3.fl", "train")
    sizes = [sorted(f.stat().st_size for f in (tmp_path / f"{n}.fl").glob("*.shard")) for n in (0, 3)]
    assert sizes[0] == sizes[1]
    assert len(sizes[0]) > 4


@pytest.mark.parametrize("workers", [1, 3])
def test_memory_urls(pictures: Path, workers: int) -> None:
    root = f"memory://{uuid.uuid4().hex}"
    filesystem = fsspec.filesystem("memory")
    filesystem.put(str(pictures), f"{root}/pictures", recursive=True)
    done = convert(f"{root}/pictures", f"{root}/p.fl", workers=workers, shard_size=1500)
    assert done.records == {"train": 9, "val": 3}
    assert [path for _, _, path in contents(f"{root}/p.fl", "val")] == ["cat/0.jpg", "cat/2.jpg", "dog/1.jpg"]
    table = pa.table({"a": [1, 2, 3]})
    with filesystem.open(f"{root}/t.parquet", "wb") as file:
        pq.write_table(table, file)
    assert convert(f"{root}/t.parquet", f"{root}/t.fl").records == {"default": 3}
    with filesystem.open(f"{root}/x.npy", "wb") as file:
        np.save(file, np.arange(5))
    assert convert(f"{root}/x.npy", f"{root}/x.fl").records == {"default": 5}


@pytest.mark.parametrize(
    ("data", "cause"),
    [(b"", "the file is empty"), (jpeg(0)[:-40], "truncated"), (b"text", "not an image")],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_image_stops_and_publishes_nothing(
    pictures: Path, tmp_path: Path, data: bytes, cause: str, workers: int
) -> None:
    bad = pictures / "train" / "dog" / "3.jpg"
    bad.write_bytes(data)
    with pytest.raises(SourceError, match=cause) as caught:
        convert(pictures, tmp_path / "p.fl", workers=workers, shard_size=1500)
    assert caught.value.path == str(bad)
    assert "--on-bad skip" in str(caught.value)
    assert not (tmp_path / "p.fl").exists()


def test_bad_images_are_skipped_and_listed(pictures: Path, tmp_path: Path) -> None:
    (pictures / "train" / "dog" / "3.jpg").write_bytes(b"text")
    (pictures / "val" / "cat" / "0.jpg").write_bytes(b"")
    done = convert(pictures, tmp_path / "p.fl", on_bad="skip")
    assert done.records == {"train": 8, "val": 2}
    assert [where.rsplit("/", 1)[1] for where, _ in done.skipped] == ["3.jpg", "0.jpg"]
    assert "not an image" in done.skipped[0][1]
    assert convert(pictures, tmp_path / "q.fl", check="none").records == {"train": 9, "val": 3}


def test_nothing_good_is_no_dataset(tmp_path: Path) -> None:
    (tmp_path / "p" / "a").mkdir(parents=True)
    (tmp_path / "p" / "a" / "1.jpg").write_bytes(b"text")
    with pytest.raises(SourceError, match="no record could be converted; the first: not an image"):
        convert(tmp_path / "p", tmp_path / "p.fl", on_bad="skip")
    assert not (tmp_path / "p.fl").exists()


def test_orientations_are_counted(pictures: Path, tmp_path: Path) -> None:
    (pictures / "train" / "dog" / "3.jpg").write_bytes(jpeg(3, orientation=6))
    done = convert(pictures, tmp_path / "p.fl")
    assert done.oriented == 1
    assert fastload.open(tmp_path / "p.fl", split="val").metadata["source"]["oriented"] == 1


def test_modes(pictures: Path, tmp_path: Path) -> None:
    target = tmp_path / "p.fl"
    convert(pictures, target, split="train")
    before = sorted(file.name for file in target.iterdir())
    with pytest.raises(UsageError, match="--overwrite"):
        convert(pictures, target)
    assert sorted(file.name for file in target.iterdir()) == before
    assert convert(pictures, target, split="val", mode="append").records == {"val": 3}
    assert len(fastload.open(target, split="train")) == 9
    assert len(fastload.open(target, split="val")) == 3
    done = convert(pictures / "val", target, mode="overwrite")
    assert "gc" in done.notes[-1]
    assert len(fastload.open(target)) == 3


def test_a_failed_overwrite_leaves_the_old(pictures: Path, tmp_path: Path) -> None:
    convert(pictures, tmp_path / "p.fl")
    before = sorted(file.name for file in (tmp_path / "p.fl").iterdir())
    (pictures / "val" / "cat" / "0.jpg").write_bytes(b"")
    with pytest.raises(SourceError):
        convert(pictures, tmp_path / "p.fl", mode="overwrite", shard_size=1500)
    assert sorted(file.name for file in (tmp_path / "p.fl").iterdir()) == before
    assert len(contents(tmp_path / "p.fl", "train")) == 9


def test_nulls_where_the_schema_has_none(tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([1, None])})
    pq.write_table(table, tmp_path / "t.parquet")
    done = convert(tmp_path / "t.parquet", tmp_path / "t.fl")
    assert done.records == {"default": 2}
    assert fastload.open(tmp_path / "t.fl")[1]["a"] is None


def test_a_record_that_does_not_fit_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "label.npy", np.array([0, 1, 5]))
    (tmp_path / "classes.txt").write_text("a\nb\n")
    arguments: dict[str, Any] = {"classes_from": tmp_path / "classes.txt"}
    with pytest.raises(RecordError, match=r"the label 5 is outside .*label\.npy row 2.*'label'"):
        convert(tmp_path / "label.npy", tmp_path / "y.fl", **arguments)
    assert convert(tmp_path / "label.npy", tmp_path / "y.fl", on_bad="skip", **arguments).records == {
        "default": 2
    }


def test_detection(tmp_path: Path, pictures: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    assert detect_kind(str(pictures), {}) == "image-folder"
    assert detect_kind(str(tmp_path / "x.npy"), {}) == "numpy"
    assert detect_kind("package.module:thing", {}) == "torch"
    with pytest.raises(SourceError, match=r"several kinds: image-folder, numpy.*--from"):
        detect_kind(str(tmp_path), {})
    (tmp_path / "empty").mkdir()
    for path, cause in (
        (tmp_path / "empty", "no files"),
        (tmp_path / "none", "no such file"),
        (__file__, "not known"),
    ):
        with pytest.raises(SourceError, match=cause):
            detect_kind(str(path), {})
    convert(pictures, tmp_path / "p.fl")
    with pytest.raises(SourceError, match="a dataset already"):
        detect_kind(str(tmp_path / "p.fl"), {})


def test_empty_sources(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 3)))
    pq.write_table(pa.table({"a": pa.array([], pa.int8())}), tmp_path / "t.parquet")
    for name in ("x.npy", "t.parquet"):
        with pytest.raises(SourceError, match="no records"):
            convert(tmp_path / name, tmp_path / "d.fl")
    assert not (tmp_path / "d.fl").exists()


def test_classes_from(tmp_path: Path, pictures: Path) -> None:
    (tmp_path / "c.txt").write_text("dog\n\ncat\n")
    (tmp_path / "c.json").write_text('["dog", "cat"]')
    convert(pictures, tmp_path / "p.fl", classes_from=tmp_path / "c.txt")
    for origin in ("c.txt", "c.json", "p.fl"):
        assert read_classes(str(tmp_path / origin), {}) == ("dog", "cat")
    (tmp_path / "c.json").write_text("{}")
    (tmp_path / "c.txt").write_text("\n")
    for origin, cause in (
        ("c.json", "no JSON list"),
        ("c.txt", "no class names"),
        ("none.txt", "cannot be read"),
    ):
        with pytest.raises(SourceError, match=cause):
            read_classes(str(tmp_path / origin), {})


@pytest.mark.parametrize("argument", ["kind", "jpeg", "check", "on_bad"])
def test_unknown_choices_list_the_known(pictures: Path, tmp_path: Path, argument: str) -> None:
    options: dict[str, Any] = {argument: "wrong"}
    with pytest.raises(UsageError, match=f"{argument} is 'wrong'.*use one of"):
        convert(pictures, tmp_path / "p.fl", **options)


def test_a_target_that_is_a_file(pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "p.fl").write_text("in the way")
    with pytest.raises(FastloadError, match=r"p\.fl"):
        convert(pictures, tmp_path / "p.fl")
    assert (tmp_path / "p.fl").read_text() == "in the way"


def test_progress_counts_every_record(pictures: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    convert(pictures, tmp_path / "p.fl", progress=lambda done, total: seen.append((done, total)))
    assert sum(done for done, _ in seen) == 12
    assert {total for _, total in seen} == {12}
