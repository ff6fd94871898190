"""The engine of Python threads: the same plan, where callables take part or nothing was compiled.

Fields that native code can make are made natively here as well, each sample by the thread that needs it;
everything else in NumPy and Pillow.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fastload.engine.collate import collate_field
from fastload.engine.plan import Allocate, BatchIndices, BatchValue, Jagged, Plan, Rejection
from fastload.engine.reject import BAD_RECORD, answer
from fastload.engine.sample import SampleMaker, native_part
from fastload.errors import EngineError

__all__ = ["PythonEngine"]

_JOIN_SECONDS = 5.0


class PythonEngine:
    """Makes batches with ``num_workers`` threads, or in the thread that calls ``next`` where that is 0.

    ``byte_budget`` bounds the batches that are made and not yet delivered, measured by the largest one so
    far; one is always admitted. ``reason`` says why the native engine does not run, for ``stats``.
    Not thread-safe; one owner.
    """

    name = "python"

    def __init__(
        self, plan: Plan, num_workers: int, byte_budget: int | None = None, *, reason: str | None = None
    ) -> None:
        self._reason = reason
        self.rejections: Sequence[Rejection] = ()
        self._process = os.getpid()
        self._state = _State(plan, byte_budget)
        self._maker: SampleMaker | None = None  # of the thread that calls next(), where it works
        self._in_flight: collections.deque[_Job] = collections.deque()
        self._threads = [
            threading.Thread(target=_work, args=(self._state,), name=f"fastload-{number}", daemon=True)
            for number in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()
        # Daemon threads, ended here also at interpreter exit: an exit must not wait for queued work.
        self._finalizer = weakref.finalize(self, _shut_down, self._state, self._threads, self._process)

    def submit(self, indices: BatchIndices, allocate: Allocate | None = None) -> None:
        """Queue a batch. Never blocks."""
        if self._state.closed:
            raise EngineError("the engine is closed")
        job = _Job(indices, allocate, min(len(self._threads), len(indices)))
        self._in_flight.append(job)
        if self._threads:
            self._state.enqueue(job)

    def next(self, timeout: float = 0) -> Mapping[str, BatchValue]:
        """Wait for the oldest batch in flight; see :class:`fastload.engine.plan.Engine`."""
        if not self._in_flight:
            raise EngineError("no batch is in flight")
        started = time.perf_counter()
        job = self._in_flight[0]
        if not self._threads:
            if self._maker is None:
                self._maker = SampleMaker(self._state.plan)
            job.make(0, self._state, self._maker)
        elif not job.done.wait(timeout or None):
            raise EngineError(f"no batch came within the timeout of {timeout:g} seconds")
        self._in_flight.popleft()
        self._state.delivered(job, time.perf_counter() - started)
        if job.error is not None:
            raise job.error
        self.rejections = job.rejections
        return job.result

    def stats(self) -> Mapping[str, Any]:
        """Return counters since the engine was made; ``work_seconds`` are summed over threads.

        ``batches``, ``samples`` and ``batch_bytes`` (made), ``work_seconds``, ``wait_seconds`` (the
        consumer), ``in_flight``, ``reason`` (why the native engine does not run), ``native_fields`` (those
        that are made natively all the same, or begun so).
        """
        return {
            **self._state.stats(),
            "in_flight": len(self._in_flight),
            "reason": self._reason,
            "native_fields": list(native_part(self._state.plan)),
        }

    def close(self) -> None:
        """Stop and join every thread, dropping what is in flight. May be called twice."""
        self._in_flight.clear()
        self._finalizer()
        if self._maker is not None:
            self._maker.close()


class _State:
    """What the threads share. It knows nothing of the engine, so that one forgotten is collected."""

    def __init__(self, plan: Plan, byte_budget: int | None) -> None:
        self.plan = plan
        self.closed = False
        self.tasks: queue.SimpleQueue[tuple[_Job, int] | None] = queue.SimpleQueue()
        self._byte_budget = byte_budget
        self._lock = threading.Lock()
        self._waiting: collections.deque[_Job] = collections.deque()
        self._admitted = 0
        self._largest = 0
        self._counts = {"batches": 0, "samples": 0, "batch_bytes": 0}
        self._seconds = {"work_seconds": 0.0, "wait_seconds": 0.0}

    def enqueue(self, job: _Job) -> None:
        with self._lock:
            self._waiting.append(job)
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            job = self._waiting.popleft()
            self._admitted += 1
            for chunk in range(job.chunks):
                self.tasks.put((job, chunk))

    def _has_room(self) -> bool:
        if not self._admitted or self._byte_budget is None:
            return True
        # Until one batch is finished, nothing is known of the next one's size.
        return self._largest > 0 and (self._admitted + 1) * self._largest <= self._byte_budget

    def finished(self, job: _Job) -> None:
        with self._lock:
            size = _bytes_of(job.result)
            self._largest = max(self._largest, size)
            self._counts["batches"] += 1
            self._counts["samples"] += len(job.indices)
            self._counts["batch_bytes"] += size
            self._seconds["work_seconds"] += job.seconds
            self._admit()

    def delivered(self, job: _Job, waited: float) -> None:
        with self._lock:
            self._seconds["wait_seconds"] += waited
            self._admitted = max(0, self._admitted - 1)
            self._admit()

    def stats(self) -> dict[str, Any]:
        with self._lock:
            return {**self._counts, **self._seconds}


class _Job:
    """One batch on its way: chunks of samples are made anywhere; who makes the last one collates."""

    def __init__(self, indices: BatchIndices, allocate: Allocate | None, chunks: int) -> None:
        self.indices = indices
        self.allocate = allocate
        self.chunks = max(1, chunks)
        self.done = threading.Event()
        self.result: Mapping[str, BatchValue] = {}
        self.error: BaseException | None = None
        self.seconds = 0.0
        self._samples: list[Any] = [None] * len(indices)
        self._records = indices.records.copy()
        self._rejections: dict[int, list[Rejection]] = {}
        self._errors: dict[int, BaseException] = {}
        self._left = self.chunks
        self._lock = threading.Lock()

    def make(self, chunk: int, state: _State, maker: SampleMaker) -> None:
        """Make the samples of one chunk, and the batch if it is the last one."""
        started = time.perf_counter()
        count = len(self.indices)
        for number in range(count * chunk // self.chunks, count * (chunk + 1) // self.chunks):
            if state.closed:
                return
            try:
                self._samples[number] = self._make_sample(state.plan, number, maker)
            except Exception as error:
                self._errors[number] = error
                break
        with self._lock:
            self.seconds += time.perf_counter() - started
            self._left -= 1
            last = not self._left
        if last:
            self._finish(state)

    def _make_sample(self, plan: Plan, number: int, maker: SampleMaker) -> Any:
        try:
            return maker.make(self.indices, number)
        except BAD_RECORD as error:
            if plan.on_error == "raise":
                raise
            found, one, sample = answer(plan, self.indices, number, error, lambda one: maker.make(one, 0))
            self._rejections[number] = found
            self._records[number] = one.records[0]
            return sample

    @property
    def rejections(self) -> list[Rejection]:
        """Return what was rejected, in the order of the samples."""
        return [rejection for number in sorted(self._rejections) for rejection in self._rejections[number]]

    def _finish(self, state: _State) -> None:
        started = time.perf_counter()
        if self._errors:
            self.error = self._errors[min(self._errors)]
        else:
            try:
                self.result = self._collate(state.plan)
            except Exception as error:
                self.error = error
        self._samples = []
        self.seconds += time.perf_counter() - started
        state.finished(self)
        self.done.set()

    def _collate(self, plan: Plan) -> Mapping[str, BatchValue]:
        made = [number for number, sample in enumerate(self._samples) if sample is not None]
        samples: list[Any] = [self._samples[number] for number in made]
        if plan.finish is not None:
            return {Plan.SAMPLES: samples}
        records = self._records[made]
        return {
            field.name: collate_field(field, [sample[number] for sample in samples], records, self.allocate)
            for number, field in enumerate(plan.fields)
        }


def _work(state: _State) -> None:
    maker = SampleMaker(state.plan)
    while (task := state.tasks.get()) is not None:
        job, chunk = task
        job.make(chunk, state, maker)
        del task, job  # an idle thread must not keep a delivered batch alive
    maker.close()


def _shut_down(state: _State, threads: list[threading.Thread], process: int) -> None:
    state.closed = True
    if os.getpid() != process:
        return  # a forked child has the objects, but not the threads
    for _ in threads:
        state.tasks.put(None)
    deadline = time.monotonic() + _JOIN_SECONDS
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def _bytes_of(batch: Mapping[str, BatchValue]) -> int:
    total = 0
    for value in batch.values():
        if isinstance(value, Jagged):
            total += value.values.nbytes + value.offsets.nbytes
        elif isinstance(value, np.ndarray):
            total += value.nbytes
        else:
            total += _size(value)
    return total


def _size(item: Any) -> int:
    """Return about how many bytes an item of a list takes."""
    if isinstance(item, (list, tuple)):
        return sum(map(_size, item))
    if isinstance(item, Mapping):
        return sum(map(_size, item.values()))
    return len(item) if isinstance(item, (bytes, str)) else int(getattr(item, "nbytes", 64))
