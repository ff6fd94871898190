"""Real conversions in real processes, also those that end badly."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastload

COMMAND = [sys.executable, "-m", "fastload"]


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=110, **options
    )


def shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.shard"))


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Return an array that is converted into some sixty shards of 1 MB: long enough to be interrupted."""
    path = tmp_path / "x.npy"
    array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(200_000, 300))
    array[::7] = 3
    array.flush()
    return path


def start(many: Path, target: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a conversion and return when it has written something."""
    process = subprocess.Popen(
        [*COMMAND, "convert", str(many), str(target), "--shard-size", "1MB", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not shards(target) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()
    return process


def wait_for_the_group(process: subprocess.Popen[str]) -> None:
    """Wait until no process of the session is left."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    raise AssertionError("a worker outlived its parent")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_conversion_publishes_nothing_and_can_be_run_again(
    many: Path, tmp_path: Path, workers: str
) -> None:
    target = tmp_path / "x.fl"
    process = start(many, target, "--workers", workers)
    process.kill()
    process.communicate()
    wait_for_the_group(process)
    assert not (target / "manifest.json").exists()
    opened = run("info", target)
    assert opened.returncode == 1
    assert "no fastload dataset here" in opened.stderr
    assert run("convert", many, target, "--workers", workers).returncode == 0
    assert run("gc", target, "--yes", "--older-than", "0").returncode == 0
    assert run("verify", target).returncode == 0
    assert len(fastload.open(target)) == 200_000
    assert len(shards(target)) == 1


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_conversion_leaves_nothing(
    many: Path, tmp_path: Path, workers: str, number: signal.Signals, status: int
) -> None:
    target = tmp_path / "x.fl"
    process = start(many, target, "--workers", workers)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does it: to the workers as well
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert out == ""
    assert "Traceback" not in err
    wait_for_the_group(process)
    assert not target.exists()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_told_and_leaves_nothing(many: Path, tmp_path: Path, workers: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    target = tmp_path / "x.fl"
    done = run("convert", many, target, "--shard-size", "10MB", "--workers", workers, preexec_fn=limit)
    assert done.returncode == 1
    assert "larger than is allowed" in done.stderr
    assert str(target) in done.stderr
    assert "Traceback" not in done.stderr
    assert not target.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if (
        not mounted
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("a small filesystem cannot be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_disk_that_is_really_full(many: Path, small_disk: Path) -> None:
    done = run("convert", many, small_disk / "x.fl", "--shard-size", "1MB", "--workers", "2")
    assert done.returncode == 1
    assert "the disk is full" in done.stderr
    assert list(small_disk.iterdir()) == []


def test_an_unwritable_target(many: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("convert", many, tmp_path / "file" / "x.fl")
    assert done.returncode == 1
    assert "file" in done.stderr
    assert "Traceback" not in done.stderr
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o500)
        done = run("convert", many, tmp_path / "locked" / "x.fl")
        assert done.returncode == 1
        assert "no permission" in done.stderr
    done = run("convert", many, "/proc/x.fl")
    assert done.returncode == 1
    assert "/proc/x.fl" in done.stderr


def test_a_torch_dataset_by_name(tmp_path: Path) -> None:
    (tmp_path / "my_data.py").write_text(
        "import torch\n"
        "class Squares(torch.utils.data.Dataset):\n"
        "    classes = ['even', 'odd']\n"
        "    def __len__(self): return 50\n"
        "    def __getitem__(self, i): return {'x': torch.full((100,), i * i), 'label': i % 2}\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(fastload.__file__).parents[1])}
    done = run(
        "convert", "my_data:Squares", "s.fl", "--workers", "2", "--shard-size", "10kB", cwd=tmp_path, env=env
    )
    assert done.returncode == 0, done.stderr
    opened = fastload.open(tmp_path / "s.fl")
    assert opened.classes == ("even", "odd")
    assert [int(sample["x"][0]) for sample in opened] == [i * i for i in range(50)]
    assert len(shards(tmp_path / "s.fl")) > 2


def test_labels_and_order_as_torchvision(tmp_path: Path, picture_folder: Path) -> None:
    folders = pytest.importorskip("torchvision.datasets")
    theirs = folders.ImageFolder(str(picture_folder))
    assert run("convert", picture_folder, tmp_path / "p.fl").returncode == 0
    ours = fastload.open(tmp_path / "p.fl")
    assert ours.class_to_idx == theirs.class_to_idx
    stored = [(sample["path"], int(sample["label"])) for sample in ours.select_columns(["path", "label"])]
    assert stored == [(os.path.relpath(path, picture_folder), label) for path, label in theirs.samples]
