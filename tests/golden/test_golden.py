"""Readers of today read what writers of every version wrote, and refuse what is bad."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest

from fastload import errors
from fastload.format import Manifest, SplitReader, verify_dataset
from fastload.storage import open_storage

HERE = Path(__file__).parent
GOOD = sorted(path.with_suffix("") for path in HERE.glob("v*/*.json"))
BAD = sorted(path for path in HERE.glob("v*/bad/*.json") if path.stem != "sound")


def label(path):
    return path.stem


def jsonable(value):
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def unpack(path, folder):
    content = json.loads(path.read_text())
    for name, text in content["files"].items():
        (folder / name).write_bytes(zlib.decompress(base64.b85decode(text)))
    for name in content["removed"]:
        (folder / name).unlink()
    return content


def read_all(folder, verify="first"):
    storage = open_storage(folder)
    manifest = Manifest.load(storage)
    records = {}
    for split in manifest.splits:
        reader = SplitReader(storage, manifest, split, verify=verify)
        records[split] = [
            {name: jsonable(value) for name, value in reader.record(number).items()}
            for number in range(len(reader))
        ]
    return records


@pytest.mark.parametrize("path", GOOD, ids=label)
@pytest.mark.parametrize("verify", ["first", "always", "never"])
def test_golden_datasets_are_read(path, backend, verify):
    assert read_all(path, verify) == json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", GOOD, ids=label)
def test_golden_datasets_are_sound(path):
    assert verify_dataset(open_storage(path)) == []


@pytest.fixture
def bad(tmp_path, request):
    unpack(request.param.parent / "sound.json", tmp_path)
    return tmp_path, unpack(request.param, tmp_path)


def check(error, expected):
    kind = getattr(errors, expected["error"])
    assert type(error) is kind, error
    assert error.path is not None
    assert len(str(error)) > 20


@pytest.mark.parametrize("bad", BAD, ids=label, indirect=True)
def test_bad_datasets_are_refused(bad, backend):
    folder, expected = bad
    with pytest.raises(errors.FastloadError) as caught:
        read_all(folder)
    check(caught.value, expected)


@pytest.mark.parametrize("bad", BAD, ids=label, indirect=True)
def test_a_full_scan_names_what_is_bad(bad):
    folder, expected = bad
    try:
        problems = verify_dataset(open_storage(folder))
    except errors.NotADatasetError as error:
        problems = [error]
    assert expected["error"] in [type(problem).__name__ for problem in problems]


def test_the_readme_lists_every_bad_dataset():
    for readme in HERE.glob("v*/bad/README.md"):
        text = readme.read_text(encoding="utf-8")
        for path in readme.parent.glob("*.json"):
            assert path.stem == "sound" or f"| {path.stem} |" in text
