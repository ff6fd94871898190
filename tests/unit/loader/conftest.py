from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload.dataset import Dataset


@pytest.fixture(scope="session")
def numbers_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset of 53 records: ``x`` (int64) is the record's number, ``wide`` an array full of it."""
    path = str(tmp_path_factory.mktemp("loader") / "numbers.fl")
    schema = {
        "x": fastload.Scalar("int64"),
        "wide": fastload.Tensor("float32", (4,)),
        "label": fastload.Label(["even", "odd"]),
        "name": fastload.Str(),
    }
    with fastload.Writer(path, schema=schema, shard_size=1024) as writer:
        for i in range(53):
            writer.append({"x": i, "wide": np.full(4, i, np.float32), "label": i % 2, "name": str(i)})
    return path


@pytest.fixture
def ds(backend: str, numbers_path: str) -> Dataset:
    return fastload.open(numbers_path)


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Fail a test that leaves a thread behind, native ones included."""
    before = thread_count()
    yield
    gc.collect()
    deadline = time.monotonic() + 5
    while thread_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert thread_count() <= before, [thread.name for thread in threading.enumerate()]


def thread_count() -> int:
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
