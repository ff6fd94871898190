from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fastload.bench import photographs
from fastload.bench.photographs import PAINTED, make_photographs, paint
from fastload.convert.images import inspect
from fastload.errors import WriteError


def digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*.jpg")):
        whole.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return whole.hexdigest()


@pytest.mark.parametrize("painted", [False, True])
def test_photographs_are_jpegs_in_class_folders(tmp_path: Path, painted: bool) -> None:
    size = make_photographs(tmp_path, 110, painted=painted, workers=1)
    files = sorted(tmp_path.rglob("*.jpg"))
    assert len(files) == 110
    assert sum(file.stat().st_size for file in files) == size
    assert 30_000 < size / 110 < 160_000
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "val"]
    assert len(list((tmp_path / "train").iterdir())) == 10
    assert len(list((tmp_path / "val").rglob("*.jpg"))) == 10
    for file in files:
        facts = inspect(file.read_bytes(), "decode")
        assert (facts.format, facts.orientation) == ("jpg", 1)
        assert min(facts.width, facts.height) >= 64
        assert max(facts.width, facts.height) <= 800


def test_the_same_photographs_each_time(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_photographs(tmp_path / name, 20, seed=seed, workers=1)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_paintings_differ() -> None:
    made = {name: paint(name, width=64, height=48) for name in PAINTED}
    means = np.stack([image.mean((0, 1)) for image in made.values()])
    distances = np.abs(means[:, None] - means[None]).max(-1) + 255 * np.eye(len(means))
    assert distances.min() > 3
    np.testing.assert_array_equal(made["snow"], paint("snow", width=64, height=48))


def test_paintings_stand_in_where_nothing_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(photographs.SHIPPED, "cat", ("no_such_package", "cat.png"))
    assert photographs.shipped_photographs() == {}
    monkeypatch.setitem(photographs.SHIPPED, "cat", ("numpy", "cat.png"))
    assert photographs.shipped_photographs() == {}


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteError, match="file"):
        make_photographs(tmp_path / "file" / "inside", 20, workers=1)
