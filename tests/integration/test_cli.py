"""The command line as a user meets it: a subprocess, its exit code, its stdout and its stderr."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage

import fastload
from fastload import _backend


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastload", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        **options,
    )


def answer(*arguments: Any) -> Any:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.fixture
def photos(tmp_path: Path, picture_folder: Path) -> Path:
    done = run("convert", picture_folder, tmp_path / "p.fl", "--shard-size", "10kB")
    assert done.returncode == 0, done.stderr
    *about_images, summary = done.stdout.splitlines()
    assert re.fullmatch(r"24 records, .* in \d+\.\d s: .*p\.fl", summary)
    if _backend.core() is None:
        assert "needs the compiled core" in done.stderr
        assert not about_images
    else:
        assert done.stderr == ""
        (line,) = about_images
        assert re.fullmatch(r"24 JPEG images: [\d.]+ kB before, [\d.]+ kB now.*", line)
    return tmp_path / "p.fl"


def test_info_and_head(photos: Path, tmp_path: Path) -> None:
    text = run("info", photos, "--shards").stdout
    assert "label  2 classes: cat, dog" in text
    assert len(re.findall(r"\.shard", text)) > 1
    facts = answer("info", photos, "--shards")
    assert facts["splits"]["default"]["records"] == 24
    assert sum(shard["records"] for shard in facts["splits"]["default"]["files"]) == 24
    assert [field["name"] for field in facts["schema"]["fields"]] == ["image", "label", "path"]
    text = run("head", photos, "-n", "2").stdout
    assert "cat/00.jpg" in text
    assert "JPG" in text
    page = tmp_path / "sheet.html"
    records = answer("head", photos, "-n", "3", "--start", "11", "--images", page)["records"]
    assert [record["path"] for record in records] == ["cat/11.jpg", "dog/00.jpg", "dog/01.jpg"]
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 3
    assert "dog/00.jpg" in html
    assert answer("head", photos, "--start", "100")["records"] == []


def test_verify_repair_and_gc(photos: Path) -> None:
    assert run("verify", photos).returncode == 0
    assert answer("gc", photos, "--older-than", "0")["files"] == {}
    shard = sorted(photos.glob("*.shard"))[0]
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    done = run("verify", photos)
    assert done.returncode == 1
    assert shard.name in done.stdout
    found = run("verify", photos, "--json")
    assert found.returncode == 1
    report = json.loads(found.stdout)
    assert not report["sound"]
    assert report["problems"][0]["shard"] == shard.name
    data[5000] ^= 1
    shard.write_bytes(data)
    (photos / "manifest.json").unlink()
    assert run("info", photos).returncode == 1
    assert answer("repair", photos, "--dry-run")["published"] is False
    assert not (photos / "manifest.json").exists()
    assert answer("repair", photos)["splits"] == {"default": 24}
    assert run("verify", photos).returncode == 0
    assert "nothing to repair" in run("repair", photos).stdout
    (photos / f"{'0' * 16}-000000.shard").write_bytes(b"left by a killed writer")
    text = run("gc", photos, "--older-than", "0").stdout
    assert "2 files" in text  # and the table of before the repair
    assert "--yes" in text
    assert len(answer("gc", photos, "--older-than", "0", "--yes")["files"]) == 2
    assert answer("gc", photos, "--older-than", "0")["files"] == {}
    assert run("verify", photos).returncode == 0


def test_merge_and_export(photos: Path, tmp_path: Path, picture_folder: Path) -> None:
    assert answer("merge", photos, photos, tmp_path / "m.fl")["records"] == {"default": 48}
    again = run("merge", photos, tmp_path / "m.fl")
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert answer("merge", photos, tmp_path / "m.fl", "--append")["records"] == {"default": 72}
    assert answer("export", photos, tmp_path / "out")["kind"] == "image-folder"
    for file in picture_folder.rglob("*.jpg"):
        exported = PillowImage.open(tmp_path / "out" / file.relative_to(picture_folder))
        assert np.array_equal(np.asarray(exported), np.asarray(PillowImage.open(file)))
    assert run("export", photos, tmp_path / "out").returncode == 2
    assert answer("export", photos, tmp_path / "out", "--to", "parquet", "--overwrite")["records"] == {
        "default": 24
    }
    assert answer("convert", tmp_path / "out", tmp_path / "q.fl")["records"] == {"default": 24}


def test_convert_says_what_it_skips(tmp_path: Path, picture_folder: Path) -> None:
    for number, data in enumerate([b"", b"text", (picture_folder / "cat" / "00.jpg").read_bytes()[:-30]]):
        (tmp_path / "src" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / "a" / f"bad{number}.jpg").write_bytes(data)
    (tmp_path / "src" / "a" / "good.jpg").write_bytes((picture_folder / "cat" / "01.jpg").read_bytes())
    done = run("convert", tmp_path / "src", tmp_path / "d.fl")
    assert done.returncode == 1
    assert "bad0.jpg" in done.stderr
    assert not (tmp_path / "d.fl").exists()
    failed = run("convert", tmp_path / "src", tmp_path / "d.fl", "--json")
    assert json.loads(failed.stdout)["error"]["path"].endswith("bad0.jpg")
    done = run("convert", tmp_path / "src", tmp_path / "d.fl", "--on-bad", "skip")
    assert done.returncode == 0
    assert "3 records skipped" in done.stderr
    assert re.search(r"skipped .*bad1\.jpg: not an image", done.stderr)
    report = answer("convert", tmp_path / "src", tmp_path / "d.fl", "--on-bad", "skip", "--overwrite")
    assert len(report["skipped"]) == 3
    assert report["records"] == {"default": 1}


def test_errors_are_sentences_and_debug_shows_more(tmp_path: Path) -> None:
    done = run("info", tmp_path / "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("fastload: no fastload dataset here")
    assert "Traceback" not in done.stderr
    assert "Traceback" in run("info", tmp_path / "nowhere", "--debug").stderr
    error = json.loads(run("info", tmp_path / "nowhere", "--json").stdout)["error"]
    assert error["type"] == "NotADatasetError"
    for wrong in (
        ["nonsense"],
        ["convert", "a"],
        ["head", "x", "-n", "-1"],
        ["convert", "a", "b", "--jpeg", "x"],
    ):
        assert run(*wrong).returncode == 2
    assert run("convert", tmp_path, tmp_path / "d.fl").returncode == 1
    assert run("convert", tmp_path / "no", tmp_path / "d.fl", "--shard-size", "huge").returncode == 1
    np.save(tmp_path / "x.npy", np.arange(3))
    assert run("convert", tmp_path / "x.npy", tmp_path / "d.fl", "--shard-size", "huge").returncode == 2


def test_a_reader_that_goes_away_is_no_error(record_dataset: str) -> None:
    done = subprocess.run(
        f"{sys.executable} -m fastload head {record_dataset} -n 100 | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stderr == ""


def test_help_and_version_are_light() -> None:
    assert run("--version").stdout.startswith("fastload ")
    code = (
        "import sys\n"
        "from fastload.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'pyarrow', 'numpy', 'PIL', 'rich', 'fsspec'}\n"
        "    print(end.code, sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
    for name in ("convert", "info", "head", "verify", "repair", "gc", "merge", "export", "bench"):
        assert name in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_bench_makes_photographs_and_measures(tmp_path: Path) -> None:
    arguments = ["--photographs", 40, "--rounds", 1, "--seconds", 0.3, "--batch-size", 8, "--workers", 1]
    found = answer("bench", "--folder", tmp_path / "kept", *arguments)
    assert found["ratio"] > 0
    assert found["records"] == 30
    assert len(fastload.open(tmp_path / "kept" / "photographs.fl", split="val")) == 10
    text = run("bench", tmp_path / "kept" / "photographs.fl", "--no-torch", *arguments[2:]).stdout
    assert "engine alone (the ceiling)" in text


def test_no_progress_bar_without_a_terminal(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(30))
    done = run("convert", tmp_path / "x.npy", tmp_path / "x.fl", env={**os.environ, "FORCE_COLOR": "1"})
    assert (done.returncode, done.stderr) == (0, "")
