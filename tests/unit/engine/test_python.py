"""The Python engine by itself: bounds, failures, closing."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import fastload
from fastload.engine import PythonEngine, indices_of
from fastload.engine.plan import BatchIndices, FieldPlan, Jagged, Plan
from fastload.errors import CorruptionError, EngineError
from fastload.format import SplitReader
from fastload.storage import open_storage
from fastload.transforms import Call

pytestmark = pytest.mark.backend_free


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, record_dataset: str) -> SplitReader:
    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    return SplitReader.open(open_storage(record_dataset))


def plan(reader: SplitReader, ragged: str = "list", **functions: Any) -> Plan:
    fields = []
    for name, field in reader.schema.items():
        operations = (Call(functions[name]),) if name in functions else ()
        fields.append(FieldPlan(name, field, operations, 0, ragged))
    return Plan((reader,), tuple(fields))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_in_the_order_submitted(reader: SplitReader, workers: int) -> None:
    engine = PythonEngine(plan(reader), workers)
    for first in range(0, 100, 7):
        engine.submit(indices_of(range(first, min(first + 7, 100))))
    for first in range(0, 100, 7):
        batch = engine.next()
        records = list(range(first, min(first + 7, 100)))
        assert isinstance(batch["x"], np.ndarray)
        assert batch["x"].shape == (len(records), 3, 4)
        assert batch["x"][:, 0, 0].tolist() == records
        assert batch["y"].tolist() == [i % 3 for i in records]  # type: ignore[union-attr]
        assert [len(value) for value in batch["t"]] == [i % 7 for i in records]  # type: ignore[union-attr]
    with pytest.raises(EngineError, match="no batch is in flight"):
        engine.next()
    stats = engine.stats()
    assert (stats["batches"], stats["samples"], stats["in_flight"]) == (15, 100, 0)
    assert stats["work_seconds"] > 0
    engine.close()
    engine.close()


def test_ragged_modes(reader: SplitReader) -> None:
    engine = PythonEngine(plan(reader, "pad"), 0)
    engine.submit(indices_of([3, 0, 1]))
    padded = engine.next()["t"]
    assert padded.tolist() == [[0, 1, 2], [0, 0, 0], [0, 0, 0]]  # type: ignore[union-attr]
    engine = PythonEngine(plan(reader, "jagged"), 0)
    engine.submit(indices_of([3, 0, 1]))
    jagged = engine.next()["t"]
    assert isinstance(jagged, Jagged)
    assert (jagged.values.tolist(), jagged.offsets.tolist()) == ([0, 1, 2, 0], [0, 3, 3, 4])
    assert jagged.values.dtype == np.uint16


def test_memory_of_the_caller(reader: SplitReader) -> None:
    memory: dict[str, np.ndarray[Any, Any]] = {}

    def allocate(name: str, size: int) -> int:
        memory[name] = np.zeros(size, np.uint8)
        return memory[name].ctypes.data

    engine = PythonEngine(plan(reader), 2)
    engine.submit(indices_of([5, 6]), allocate)
    batch = engine.next()
    assert set(memory) == {"x", "y"}
    assert memory["x"].tolist() == [5] * 12 + [6] * 12
    assert np.shares_memory(memory["x"], batch["x"])  # type: ignore[arg-type]
    engine.close()


def test_the_first_failing_sample_is_reported(reader: SplitReader) -> None:
    def fail(label: int) -> int:
        if label == 2:
            raise ValueError("two")
        return label

    for workers in (0, 1, 4):
        engine = PythonEngine(plan(reader, y=fail), workers)
        engine.submit(indices_of(range(12, 24)))
        engine.submit(indices_of([0, 1]))
        with pytest.raises(EngineError, match=r"ValueError: two .*record 14, field 'y'") as caught:
            engine.next()
        assert caught.value.record == 14
        assert engine.next()["y"].tolist() == [0, 1]  # type: ignore[union-attr]
        engine.close()


def test_errors_of_the_format_pass_as_they_are(reader: SplitReader, monkeypatch: pytest.MonkeyPatch) -> None:
    def value(record: int, field: str) -> Any:
        raise CorruptionError("the CRC differs", shard="s", record=record, field=field, offset=9)

    monkeypatch.setattr(reader, "value", value)
    engine = PythonEngine(plan(reader), 2)
    engine.submit(indices_of([4]))
    with pytest.raises(CorruptionError, match="shard s, record 4"):
        engine.next()
    engine.close()


def test_the_byte_budget_admits_one_at_a_time(reader: SplitReader) -> None:
    running: list[int] = []

    def note(x: Any) -> Any:
        running.append(int(x[0, 0]) // 10)
        return x

    engine = PythonEngine(plan(reader, x=note), 2, byte_budget=1)
    for first in range(0, 60, 10):
        engine.submit(indices_of(range(first, first + 10)))
    for number in range(6):
        time.sleep(0.05)
        assert set(running) <= set(range(number + 1))
        assert len(engine.next()["x"]) == 10
    engine.close()


def test_closing_drops_what_is_in_flight(reader: SplitReader) -> None:
    before = threading.active_count()
    engine = PythonEngine(plan(reader, y=lambda label: time.sleep(0.05) or label), 3)
    for _ in range(5):
        engine.submit(indices_of(range(100)))
    time.sleep(0.1)
    started = time.monotonic()
    engine.close()
    assert time.monotonic() - started < 2
    assert threading.active_count() == before
    with pytest.raises(EngineError, match="closed"):
        engine.submit(indices_of([1]))
    with pytest.raises(EngineError, match="no batch is in flight"):
        engine.next()


def test_a_forgotten_engine_ends_its_threads(reader: SplitReader) -> None:
    before = threading.active_count()
    engine = PythonEngine(plan(reader), 3)
    engine.submit(indices_of(range(100)))
    del engine
    assert threading.active_count() == before


def test_timeout_leaves_the_batch_in_flight(reader: SplitReader) -> None:
    engine = PythonEngine(plan(reader, y=lambda label: time.sleep(0.3) or label), 1)
    engine.submit(indices_of([1]))
    with pytest.raises(EngineError, match="timeout"):
        engine.next(0.01)
    assert engine.next(30)["y"].tolist() == [1]  # type: ignore[union-attr]
    engine.close()


def test_several_sources(reader: SplitReader, record_dataset: str) -> None:
    other = SplitReader.open(open_storage(record_dataset))
    engine = PythonEngine(Plan((reader, other), plan(reader).fields), 0)
    sources, records = np.array([0, 1, 0]), np.array([5, 6, 7])
    engine.submit(BatchIndices(records, sources, records))
    assert engine.next()["x"][:, 0, 0].tolist() == [5, 6, 7]  # type: ignore[call-overload, union-attr]


def test_images_of_unequal_size_name_both_records(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from PIL import Image

    monkeypatch.setenv("FASTLOAD_BACKEND", "python")
    path = str(tmp_path / "images.fl")
    with fastload.Writer(path, schema={"image": fastload.Image()}) as writer:
        for width in (4, 4, 5):
            file = io.BytesIO()
            Image.new("RGB", (width, 3)).save(file, "PNG")
            writer.append({"image": file.getvalue()})
    reader = SplitReader.open(open_storage(path))
    engine = PythonEngine(plan(reader), 0)
    engine.submit(indices_of([0, 1, 2]))
    with pytest.raises(EngineError, match="records 0 and 2 cannot be put into one batch"):
        engine.next()
