"""Workers that die, and programs that are interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload.loader import deaths

from .ways import Numbers, numbers

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")


class _Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(30 if index >= 8 else 0)
        return super().__getitem__(index)


def _killed(iterator: Any, meanwhile: Callable[[], Any], *, holding: bool = False) -> None:
    if holding:  # as a worker would be that was killed while it wrote
        assert iterator._worker_result_queue._wlock.acquire(timeout=5)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    meanwhile()
    time.sleep(5)


@pytest.mark.parametrize("holding", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_reported_with_the_likely_cause(holding: bool, persistent: bool) -> None:
    loader = fastload.DataLoader(
        _Slow(), 4, num_workers=2, prefetch_factor=1, persistent_workers=persistent, worker_init_fn=None
    )
    iterator: Any = iter(loader)
    numbers([next(iterator), next(iterator)])
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*The likely cause: out of memory"):
        _killed(iterator, lambda: next(iterator), holding=holding)
    loader.close()
    assert time.monotonic() - started < 5 + 5
    if persistent:
        with fastload.DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True) as again:
            assert len(numbers(again)) == 14


def test_a_worker_killed_while_nobody_waits_is_reported() -> None:
    loader = fastload.DataLoader(Numbers(), 4, num_workers=2)
    iterator: Any = iter(loader)
    next(iterator)
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"killed by signal: Killed.*The likely cause: out of memory"):
        _killed(iterator, lambda: time.sleep(5))  # the training step
    assert time.monotonic() - started < 5
    loader.close()


def test_after_a_death_persistent_workers_are_made_anew() -> None:
    with fastload.DataLoader(Numbers(), 4, num_workers=2, persistent_workers=True) as loader:
        iterator: Any = iter(loader)
        next(iterator)
        with pytest.raises(RuntimeError, match="DataLoader worker"):
            _killed(iterator, lambda: list(iterator))
        assert len(numbers(loader)) == 14


class _Exits(Numbers):
    def __getitem__(self, index: int) -> Any:
        os._exit(3)


def test_a_worker_that_exits_is_reported() -> None:
    loader = fastload.DataLoader(_Exits(), 4, num_workers=1)
    with pytest.raises(RuntimeError, match=r"The likely cause: something in it called exit\(3\)"):
        list(loader)


# --- causes --------------------------------------------------------------------------------------------


def test_the_causes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(deaths, "out_of_memory_kills", lambda: 3)
    monkeypatch.setattr(deaths, "_baseline", 1)
    assert "the kernel counts 2 such kills" in deaths.cause_of(-signal.SIGKILL)
    monkeypatch.setattr(deaths, "_baseline", 3)
    assert "did not count one" in deaths.cause_of(-signal.SIGKILL, str(tmp_path))
    monkeypatch.setattr(deaths.shutil, "disk_usage", lambda folder: _Usage())
    assert "of which shared memory is a part" in deaths.cause_of(-signal.SIGKILL)
    assert deaths.cause_of(-signal.SIGBUS).startswith("shared memory ran out (/dev/shm has 0 of 64 MiB free)")
    assert deaths.cause_of(-signal.SIGTERM) == "signal SIGTERM was sent to it"
    assert deaths.cause_of(None) == ""


class _Usage:
    total, free = 64 << 20, 1 << 10


def test_a_cause_is_told_once() -> None:
    error = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    for _ in range(2):
        deaths.tell(error, "the weather")
    assert str(error) == (
        "DataLoader worker (pid 7) is killed by signal: Killed. The likely cause: the weather."
    )
    other = RuntimeError("something else")
    deaths.tell(other, "the weather")
    assert str(other) == "something else"


# --- Ctrl-C --------------------------------------------------------------------------------------------

_PROGRAM = """
import sys, time, torch, fastload
from torch.utils import data

class Slow(data.Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index >= 8:
            time.sleep(60)
        return torch.tensor(index)

def slowly(sample):
    time.sleep(0.05)
    return sample

way, path = sys.argv[1:]
dataset = fastload.open(path).map(slowly) if way == "native" else Slow()
workers = 0 if way == "caller" else 2
method = "thread" if way.startswith("threads") else "multiprocessing"
loader = fastload.DataLoader(dataset, 4, num_workers=workers, worker_method=method)
for number, batch in enumerate(loader):
    if number == 0:
        print("ready", flush=True)
    if way.endswith("training"):
        time.sleep(60)
"""


@pytest.mark.parametrize(
    ("way", "group"),
    # A worker that is busy in C hears nothing of it: while the caller trains, it gets torch's 5 seconds.
    [
        ("native", False),
        ("caller", False),
        ("processes", False),
        ("processes", True),
        ("training", True),
        ("threads", False),
        ("threads training", False),
    ],
)
def test_ctrl_c_ends_the_program(way: str, group: bool, numbers_path: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_PROGRAM), way, numbers_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        began = time.monotonic()
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        took = time.monotonic() - began
        time.sleep(0.3)
        interrupted = time.monotonic()
        if group:  # as a terminal does
            os.killpg(program.pid, signal.SIGINT)
        else:
            program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
        # On a machine so busy that the program needs long to begin, it may to end.
        assert time.monotonic() - interrupted < max(2.0, took / 2)
        assert "KeyboardInterrupt" in errors
    finally:
        program.kill()
