from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastload.convert.files import FileTree
from fastload.convert.source import SourceOptions
from fastload.convert.sources.image_folder import EXTENSIONS, ImageFolderSource
from fastload.errors import SourceError
from fastload.schema import Label


def make(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(name.encode())
    return root


def source_of(root: Path, **options: object) -> ImageFolderSource:
    return ImageFolderSource(FileTree(str(root)), SourceOptions(**options))  # type: ignore[arg-type]


def records_of(source: ImageFolderSource, split: str, shard_bytes: int = 1 << 20) -> list[dict[str, object]]:
    out: list[dict[str, object]] = []
    for partition in source.partitions(split, shard_bytes):
        out += [dict(record) for _, record in partition.read()]  # type: ignore[arg-type]
    return out


def classes_of(source: ImageFolderSource) -> tuple[str, ...]:
    field = source.schema["label"]
    assert isinstance(field, Label)
    return field.classes


def as_torchvision_lists(root: Path) -> list[tuple[str, int]]:
    """List files and labels as torchvision's ImageFolder does, by its documented rules."""
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    out = []
    for index, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                if file.lower().endswith(EXTENSIONS):
                    out.append((os.path.relpath(os.path.join(folder, file), root), index))
    return out


def test_order_and_labels_are_torchvisions(tmp_path: Path) -> None:
    names = [
        "b/2.JPG",
        "b/10.png",
        "b/a/1.jpg",
        "b/a-b/1.jpg",
        "b/a/b/1.webp",
        "B/x.tiff",
        "a b/ü.bmp",
        "b-c/1.jpg",
    ]
    root = make(tmp_path, *names, "b/notes.txt")
    source = source_of(root)
    expected = as_torchvision_lists(root)
    assert [(record["path"], record["label"]) for record in records_of(source, "default")] == expected
    assert classes_of(source) == ("B", "a b", "b", "b-c")
    assert source.notes == ["1 files that are no images by their name were left out"]


def test_records_hold_the_files_bytes_whatever_the_cut(tmp_path: Path) -> None:
    source = source_of(make(tmp_path, *(f"{c}/{n}.jpg" for c in "ab" for n in range(5))))
    whole = records_of(source, "default")
    assert [record["image"] for record in whole] == [str(record["path"]).encode() for record in whole]
    assert records_of(source, "default", shard_bytes=1) == whole
    assert len(source.partitions("default", 1)) == 10


def test_splits_share_one_class_list(tmp_path: Path) -> None:
    source = source_of(
        make(tmp_path, "val/dog/1.jpg", "train/cat/1.jpg", "train/eel/2.jpg", "test/dog/1.jpg")
    )
    assert list(source.split_names()) == ["train", "val", "test"]
    assert classes_of(source) == ("cat", "dog", "eel")
    assert [(r["path"], r["label"]) for r in records_of(source, "val")] == [("dog/1.jpg", 1)]
    only = source_of(tmp_path, split="val")
    assert list(only.split_names()) == ["val"]
    with pytest.raises(SourceError, match=r"no split 'dev'.*train, val, test"):
        source_of(tmp_path, split="dev")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    source = source_of(make(tmp_path, "train/1.jpg", "plane/1.jpg"))
    assert classes_of(source) == ("plane", "train")


def test_images_without_folders_have_no_label(tmp_path: Path) -> None:
    source = source_of(make(tmp_path, "2.jpg", "1.jpg"), split="pictures")
    assert list(source.schema) == ["image", "path"]
    assert [record["path"] for record in records_of(source, "pictures")] == ["1.jpg", "2.jpg"]


def test_images_beside_class_folders_are_left_out_and_counted(tmp_path: Path) -> None:
    source = source_of(make(tmp_path, "cover.jpg", "a/1.jpg"))
    assert [record["path"] for record in records_of(source, "default")] == ["a/1.jpg"]
    assert source.notes == ["1 images outside the class folders were left out"]


def test_given_classes_fix_the_labels(tmp_path: Path) -> None:
    root = make(tmp_path, "a/1.jpg", "b/1.jpg")
    source = source_of(root, classes=("z", "b", "a"))
    assert [record["label"] for record in records_of(source, "default")] == [2, 1]
    with pytest.raises(SourceError, match="1 class folders are not among the given classes: b"):
        source_of(root, classes=("a", "c"))


def test_what_cannot_be_labelled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no images"):
        source_of(make(tmp_path / "text", "a/1.txt"))
    empty = make(tmp_path / "empty", "a/1.jpg")
    (empty / "b").mkdir()
    with pytest.raises(SourceError, match="1 class folders hold no image: b"):
        source_of(empty)
    with pytest.raises(SourceError, match="split test has images but no class folders"):
        source_of(make(tmp_path / "mixed", "train/a/1.jpg", "test/1.jpg"))


def test_links_are_followed_and_cycles_end(tmp_path: Path) -> None:
    root = make(tmp_path / "root", "a/1.jpg")
    make(tmp_path / "other", "2.jpg")
    (root / "b").symlink_to(tmp_path / "other")
    (root / "a" / "again").symlink_to(root / "a")
    source = source_of(root)
    assert [record["path"] for record in records_of(source, "default")] == ["a/1.jpg", "b/2.jpg"]


def test_a_file_that_vanishes_is_named(tmp_path: Path) -> None:
    root = make(tmp_path, "a/1.jpg", "a/2.jpg")
    (partition,) = source_of(root).partitions("default", 1 << 20)
    (root / "a" / "1.jpg").unlink()
    (where, error), (_, fine) = partition.read()
    assert where == str(root / "a" / "1.jpg")
    assert isinstance(error, SourceError)
    assert "No such file" in str(error)
    assert not isinstance(fine, SourceError)


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "x.jpg").write_bytes(b"x")
    try:
        os.rename(folder / "x.jpg", os.fsencode(folder) + b"/\xff.jpg")
    except OSError:
        pytest.skip("the filesystem takes UTF-8 names only")
    with pytest.raises(SourceError, match="not UTF-8"):
        source_of(tmp_path)
