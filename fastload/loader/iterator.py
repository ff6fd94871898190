"""One epoch on its way: batches of indices go into an engine, batches come out."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastload.engine.plan import Allocate, BatchIndices, Engine, Int64Array, Plan, Rejection
from fastload.errors import EngineError
from fastload.loader.course import BatchInfo, Course, SampledPlace
from fastload.loader.handover import HandOver
from fastload.loader.prefetch import Prefetch

__all__ = ["Begun", "EngineIterator", "Job", "Progress", "SpareEngine"]

_abandoned: list[Engine] = []
"""Engines of the parent in a forked child: their threads are not here, so that closing one would hang."""

KEPT_REJECTIONS = 100
"""How many rejections of an epoch stats() lists."""


@dataclasses.dataclass
class Progress(SampledPlace):
    """How far an epoch was delivered. ``position`` counts samples over all ranks, prefetched ones not.

    ``batches`` and ``samples`` count what this iteration gave, ``pads`` the samples among them that only
    even the ranks out. ``rejected`` counts records that could not be made, ``rejections`` tells of the
    first of them.
    """

    batches: int = 0
    samples: int = 0
    pads: int = 0
    wait_seconds: float = 0.0
    rejected: int = 0
    rejections: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    info: BatchInfo | None = None

    def told(self) -> dict[str, Any]:
        """Return it as stats() does."""
        told = dataclasses.asdict(self)
        told["batch_info"] = told.pop("info")
        for name in ("complete", "sampler", "generator", "stream"):
            del told[name]
        return told

    def reject(self, rejections: Sequence[Rejection]) -> None:
        """Count rejections, keep them for stats(), and warn of the first."""
        if rejections and not self.rejected:
            first = rejections[0]
            done = "left out" if first.skipped else "replaced"
            text = f"a bad record was {done}, as will be others; loader.stats() counts them: {first.error}"
            warnings.warn(text, UserWarning, stacklevel=4)
        self.rejected += len(rejections)
        for rejection in rejections[: KEPT_REJECTIONS - len(self.rejections)]:
            told = dataclasses.asdict(rejection)
            del told["skipped"]
            self.rejections.append(told)


@dataclasses.dataclass(frozen=True)
class Job:
    """What an iterator does: which course it follows, and what becomes of its batches.

    ``deliver`` makes the user's batch of what the engine gives, or, with ``singles``, of a list with what
    it gives for each sample alone, of the batch's memory where ``allocate`` made any, and of its first
    position. ``release`` takes the engine back after a complete epoch. ``hand_over``, where there is one,
    stands between what was delivered and the user.
    """

    course: Course
    epoch: int
    prefetch: Prefetch
    deliver: Callable[[Any, Any, int], Any]
    singles: bool = False
    allocate: Callable[[], Allocate] | None = None
    timeout: float = 0
    release: Callable[[Engine], None] | None = None
    hand_over: HandOver[_Made] | None = None


@dataclasses.dataclass
class _Made:
    """A batch, and what is to be counted when it is given."""

    batch: Any
    positions: Int64Array
    skipped: int
    rejections: Sequence[Rejection]
    waited: float


Begun = tuple[Engine, Job, Progress]


class EngineIterator(Iterator[Any]):
    """Iterates over one epoch. Not thread-safe; any number may live at once, each with its engine.

    As many batches as ``job.prefetch`` says are in the making while the consumer works with the one before;
    where that is 0 each is made when it is asked for. A failure ends the iterator: no thread outlives it.
    ``anew`` is asked once, before the first batch, and may give what to do instead.
    """

    def __init__(
        self, engine: Engine, job: Job, progress: Progress, anew: Callable[[], Begun | None] | None = None
    ) -> None:
        self._anew = anew
        self._begin(engine, job, progress)

    def _begin(self, engine: Engine, job: Job, progress: Progress) -> None:
        self._engine = engine
        self._job = job
        self._progress = progress
        self._process = os.getpid()
        self._batches = job.course.batches()
        self._in_flight: collections.deque[tuple[Int64Array, Allocate | None]] = collections.deque()
        self._closed = False
        # Also at interpreter exit, while everything that the engine's threads use is still there.
        self._finalizer = weakref.finalize(self, _close_engine, engine, self._process)
        try:
            job.prefetch.begin()
            for _ in range(job.prefetch.batches):
                self._submit()
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> EngineIterator:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        if os.getpid() != self._process:
            raise EngineError(
                "this iterator was made before a fork, and its threads live in the parent",
                hint="make a new one in this process with iter(loader)",
            )
        try:
            if self._anew is not None:
                self._begin_anew(self._anew())
            hand_over = self._job.hand_over
            made = self._make() if hand_over is None else hand_over.next(self._make)
        except BaseException as error:
            self.close()
            if isinstance(error, StopIteration):  # out of a collate_fn: it must not pass for the epoch's end
                raise EngineError("a collate_fn or function of map_batches raised StopIteration") from error
            raise
        if made is None:
            self._finish()
            raise StopIteration
        self._count(made)
        return made.batch

    def _begin_anew(self, begun: Begun | None) -> None:
        self._anew = None
        if begun is not None:
            self._finalizer()
            self._begin(*begun)

    def _make(self) -> _Made | None:
        """Return the next batch, or None at the epoch's end."""
        if not self._in_flight and not self._submit():
            return None
        started = time.perf_counter()
        positions, memory = self._in_flight[0]
        made, skipped, rejections = self._receive(len(positions))
        self._in_flight.popleft()
        waited = time.perf_counter() - started
        while len(self._in_flight) < self._job.prefetch.batches and self._submit():
            pass
        try:
            batch = self._job.deliver(made, memory, int(positions[0]) if len(positions) else 0)
        except BaseException:
            self._progress.reject(rejections)  # they may be why
            raise
        return _Made(batch, positions, skipped, rejections, waited)

    def _count(self, made: _Made) -> None:
        progress, positions = self._progress, made.positions
        progress.wait_seconds += made.waited
        self._job.prefetch.note(made.waited, made.batch)
        progress.reject(made.rejections)
        progress.info = self._job.course.deliver(progress, progress.batches, positions)
        progress.batches += 1
        progress.samples += len(positions) - made.skipped
        progress.pads += len(positions) - progress.info.samples

    def _submit(self) -> bool:
        indices = next(self._batches, None)
        if indices is None:
            return False
        positions, sources, records = indices
        job = self._job
        memory = None if job.allocate is None else job.allocate()
        if job.singles:
            for number in range(len(records)):
                one = slice(number, number + 1)
                self._engine.submit(BatchIndices(positions[one], sources[one], records[one], job.epoch))
        else:
            self._engine.submit(BatchIndices(positions, sources, records, job.epoch), memory)
        self._in_flight.append((positions, memory))
        return True

    def _receive(
        self, count: int
    ) -> tuple[Mapping[str, Any] | list[Mapping[str, Any]], int, Sequence[Rejection]]:
        """Return what the engine made of ``count`` samples, how many were skipped, and what was rejected."""
        if not self._job.singles:
            made = self._engine.next(self._job.timeout)
            rejections = self._engine.rejections
            return made, sum(rejection.skipped for rejection in rejections), rejections
        singles: list[Mapping[str, Any]] = []
        rejected: list[Rejection] = []
        for _ in range(count):
            one = self._engine.next(self._job.timeout)
            rejected += self._engine.rejections
            if not any(rejection.skipped for rejection in self._engine.rejections):
                singles.append(one)
        return singles, count - len(singles), rejected

    def _finish(self) -> None:
        self._job.course.finish(self._progress)
        if self._job.release is not None and self._finalizer.detach() is not None:
            self._closed = True
            self._job.release(self._engine)
        else:
            self.close()

    @property
    def live(self) -> bool:
        """Whether it may give more batches."""
        return not self._closed

    def engine_stats(self) -> Mapping[str, Any]:
        """Return the engine's own counters."""
        return self._engine.stats()

    def close(self) -> None:
        """Stop the engine and drop what is in flight. May be called twice; iteration then ends."""
        self._closed = True
        self._in_flight.clear()
        if self._job.hand_over is not None:
            self._job.hand_over.close()
        self._finalizer()


class SpareEngine:
    """Keeps the engine of a complete epoch for the next one (persistent_workers)."""

    def __init__(self) -> None:
        self._plan: Plan | None = None
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[..., SpareEngine] | None = None

    def put(self, plan: Plan, engine: Engine) -> None:
        """Keep an engine that has nothing in flight, instead of one kept before."""
        self.close()
        self._plan, self._engine = plan, engine
        self._finalizer = weakref.finalize(self, _close_engine, engine, os.getpid())

    def take(self, plan: Plan) -> Engine | None:
        """Return the engine kept, if it was made here and for this plan."""
        engine, finalizer = self._engine, self._finalizer
        if engine is None or finalizer is None or self._plan != plan:
            self.close()
            return None
        detached = finalizer.detach()
        self._plan = self._engine = self._finalizer = None
        if detached is None or detached[2][1] != os.getpid():
            _abandoned.append(engine)
            return None
        return engine

    def close(self) -> None:
        """Close the engine kept, if any."""
        if self._finalizer is not None:
            self._finalizer()
        self._plan = self._engine = self._finalizer = None


def _close_engine(engine: Engine, process: int) -> None:
    if os.getpid() == process:
        engine.close()
    else:
        _abandoned.append(engine)
