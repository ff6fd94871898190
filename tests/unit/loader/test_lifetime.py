"""Iterators begin and end cleanly, whatever happens to them."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest

from fastload import DataLoader
from fastload.dataset import Dataset
from fastload.errors import EngineError

from .forked import in_child

pytestmark = pytest.mark.usefixtures("no_threads_left")


def make(ds: Dataset, **options: Any) -> DataLoader[Any]:
    return DataLoader(ds, batch_size=4, shuffle=True, seed=0, num_workers=2, **options)


def test_early_break_many_times(ds: Dataset) -> None:
    loader = make(ds)
    for _ in range(100):
        for batch in loader:
            assert len(batch["x"]) == 4
            break


def test_several_live_iterators(ds: Dataset) -> None:
    loader = make(ds)
    expected = [[batch["x"].tolist() for batch in make(ds)], None]
    one, two = iter(loader), iter(loader)
    first = [next(one)["x"].tolist(), next(one)["x"].tolist()]
    other = [next(two)["x"].tolist()]
    first += [batch["x"].tolist() for batch in one]
    other += [batch["x"].tolist() for batch in two]
    assert first == expected[0]
    assert sorted(itertools.chain(*other)) == list(range(53))
    assert other != first
    assert next(one, None) is None


def test_close(ds: Dataset) -> None:
    loader = make(ds)
    one, two = iter(loader), iter(loader)
    next(one)
    loader.close()
    assert list(one) == list(two) == []
    one.close()  # type: ignore[attr-defined]
    assert len(list(loader)) == 14
    with make(ds) as managed:
        iterator = iter(managed)
        next(iterator)
    assert list(iterator) == []


def test_an_iterator_outlives_its_loader(ds: Dataset) -> None:
    iterator = iter(make(ds))
    gc.collect()
    assert len(list(iterator)) == 14


def test_deleting_an_iterator(ds: Dataset) -> None:
    iterator = iter(make(ds))
    next(iterator)
    del iterator
    gc.collect()


def test_persistent_workers(ds: Dataset) -> None:
    with make(ds, persistent_workers=True) as loader:
        plain = make(ds)
        for _ in range(3):
            assert [b["x"].tolist() for b in loader] == [b["x"].tolist() for b in plain]
            for _ in plain:
                break
            for _ in loader:
                break


def test_failures_reach_the_consumer(ds: Dataset) -> None:
    def fail(name: str) -> str:
        if name == "17":
            raise ValueError("seventeen")
        return name

    loader = DataLoader(ds.transform(name=fail), batch_size=4, num_workers=2)
    got = []
    with pytest.raises(EngineError, match=r"seventeen.*record 17") as caught:
        got.extend(loader)
    assert caught.value.record == 17
    assert caught.value.field == "name"
    del caught


def test_a_fork_with_a_live_iterator(ds: Dataset) -> None:
    if not hasattr(os, "fork"):
        pytest.skip("no fork here")
    loader = make(ds)
    iterator = iter(loader)
    next(iterator)

    def work() -> None:
        nonlocal iterator, loader
        with pytest.raises(EngineError, match="before a fork"):
            next(iterator)
        fresh = [batch["x"].tolist() for batch in make(ds)]
        assert sorted(itertools.chain(*fresh)) == list(range(53))
        assert int(ds[3]["x"]) == 3
        loader.close()
        del iterator, loader
        gc.collect()

    in_child(work)
    assert len(list(iterator)) == 13


def run(script: str, path: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_interpreter_exit_with_work_in_flight(ds: Dataset, numbers_path: str) -> None:
    script = """
        import sys, time, fastload
        ds = fastload.open(sys.argv[1])
        slow = ds.transform(name=lambda name: time.sleep(0.2) or name)
        plain, slow = (iter(fastload.DataLoader(d, batch_size=8, num_workers=3)) for d in (ds, slow))
        next(plain), next(slow)
        print("done", time.monotonic())
        sys.stdout.flush()
    """
    started = time.monotonic()
    result = run(script, numbers_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout.startswith("done")
    assert time.monotonic() - started < 30


def test_ctrl_c(ds: Dataset, numbers_path: str) -> None:
    script = """
        import os, signal, sys, threading, time, fastload
        ds = fastload.open(sys.argv[1]).transform(name=lambda name: time.sleep(0.5) or name)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.monotonic()
        try:
            for batch in fastload.DataLoader(ds, batch_size=32, num_workers=2):
                pass
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - started)
    """
    result = run(script, numbers_path)
    assert result.returncode == 0, result.stderr
    word, seconds = result.stdout.split()
    assert word == "interrupted"
    assert float(seconds) < 2.5
