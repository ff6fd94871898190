"""The threads that make a Python dataset's batches: what they run, and how they are begun and ended."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper

from fastload.errors import EngineError
from fastload.loader.around import PlacedDataset, SeededBatch, SeededDataset, StreamDataset
from fastload.loader.assembly import Assembly
from fastload.loader.thread_info import Generators, in_worker_thread, show_info
from fastload.sampling.permutation import permutation_key

__all__ = [
    "ENDED",
    "RENEW",
    "Answer",
    "Crew",
    "Duty",
    "Piece",
    "SampledInThread",
    "SeededInThread",
    "StreamInThread",
    "Task",
    "sampled_in_thread",
]

_PATIENCE = 0.5
"""Seconds for which it is waited until threads have finished the samples they are at: in these they cannot be
stopped, and they end behind them also if nobody waits."""

_AT_EXIT = 5.0
"""The same at the interpreter's exit, which takes from under them what they use; not after Ctrl-C."""

ENDED = object()
"""What a worker answers whose copy of an iterable dataset has no more."""

RENEW = object()
"""Asks a worker to iterate over its copy of an iterable dataset anew, and is its answer when it does."""


class Task(NamedTuple):
    """A batch to make: which iteration over the loader it is of, its number there, and its indices."""

    round: int
    number: int
    index: Any


class Piece(NamedTuple):
    """A part of a batch that several workers make together."""

    assembly: Assembly
    part: int


class Answer(NamedTuple):
    """What became of a batch: itself, an ExceptionWrapper, or ENDED."""

    round: int
    number: int
    worker: int
    made: Any


class _Stopped(BaseException):
    """Raised between samples in a worker thread whose batch nobody wants any more."""


# --- datasets as worker threads see them ---------------------------------------------------------------


class SampledInThread(PlacedDataset):
    """A map-style dataset that a worker leaves between samples when it is to end."""

    def __init__(self, dataset: Any, crew: Crew) -> None:
        super().__init__(dataset)
        self._crew = crew

    def __getitem__(self, index: Any) -> Any:
        self._crew.check()
        return super().__getitem__(index)


class _BatchedInThread(SampledInThread):
    """One that gives batches whole as well."""

    def __getitems__(self, indices: Any) -> Any:
        return self.dataset.__getitems__(indices)


def sampled_in_thread(dataset: Any, crew: Crew) -> SampledInThread:
    """Return a map-style dataset as a worker of ``crew`` fetches from it."""
    kind = _BatchedInThread if getattr(dataset, "__getitems__", None) else SampledInThread
    return kind(dataset, crew)


class SeededInThread(SeededDataset):
    """A map-style dataset that seeds its worker's generators by position: the global ones are shared."""

    def __init__(self, dataset: Any, crew: Crew, generators: Generators) -> None:
        super().__init__(dataset, generators.seed)
        self._one = SampledInThread(dataset, crew)

    def sample_at(self, batch: SeededBatch, place: int) -> Any:
        """Return one sample of a batch that several workers make."""
        return self._sample(batch, batch.positions[place], batch.index[place])

    def begin_collate(self, batch: SeededBatch) -> None:
        """Be as after the batch's first sample, which seeds its collating."""
        self.collate_key = permutation_key(batch.seed, batch.epoch, batch.positions[0], 1)


class StreamInThread(StreamDataset):
    """A worker's copy of an iterable dataset, which it leaves between samples when it is to end."""

    def __init__(self, dataset: Any, states: dict[int, Any], crew: Crew) -> None:
        super().__init__(dataset, states)
        self._crew = crew

    def __iter__(self) -> Iterator[Any]:
        return _Checked(super().__iter__(), self._crew)


class _Checked(Iterator[Any]):
    def __init__(self, iterator: Iterator[Any], crew: Crew) -> None:
        self._iterator, self._crew = iterator, crew

    def __next__(self) -> Any:
        self._crew.check()
        return next(self._iterator)


# --- workers -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Duty:
    """What one worker is to do.

    ``begin`` is called first, then ``fetcher`` for each iteration over the dataset; ``sample`` makes one
    sample of an assembly by its place, ``collate`` its batch, and ``finish`` of any batch what is delivered.
    ``key`` seeds the generators for each part, so that it does not matter which worker makes it; None leaves
    them to the dataset. A worker with ``own_tasks`` makes what it is asked for, in order; others make what is
    oldest among the tasks of all.
    """

    number: int
    info: Any
    generators: Generators
    begin: Callable[[], None]
    fetcher: Callable[[], Any]
    sample: Callable[[Any, int], Any]
    collate: Callable[[Assembly], Any]
    finish: Callable[[Any], Any]
    key: int | None
    own_tasks: bool


class _Worker:
    """One thread's work."""

    def __init__(self, crew: Crew, duty: Duty) -> None:
        self._crew, self._duty = crew, duty
        self._fetcher: Any = None
        self._failure: ExceptionWrapper | None = None
        self._ended = False

    def run(self, limited: bool) -> None:
        if limited:
            torch.set_num_threads(1)
            torch.get_num_threads()  # once asked for, it is this thread's own
            self._crew.answers.put(None)
        duty = self._duty
        show_info(duty.info)
        self._renew(duty.begin)
        tasks = self._crew.tasks[duty.number]
        while (task := tasks.get()) is not None:
            if not duty.own_tasks:
                tasks = self._crew.pool  # the first was its own: which worker raises first is no chance
            self._do(task)
            del task  # an idle thread keeps nothing

    def _renew(self, begin: Callable[[], None] | None = None) -> None:
        self._ended, self._failure = False, None
        try:
            if begin is not None:
                begin()
            self._fetcher = self._duty.fetcher()
        except BaseException as error:
            self._failure = self._wrapped(error)

    def _do(self, task: Any) -> None:
        crew = self._crew
        if crew.stopped:
            return
        if task is RENEW:
            self._renew()
            crew.answers.put(RENEW)
            return
        with contextlib.suppress(_Stopped):
            if isinstance(task, Piece):
                self._take_part(*task)
            elif self._duty.own_tasks or task.round == crew.round:
                crew.answers.put(Answer(task.round, task.number, self._duty.number, self._make(task)))

    def _take_part(self, assembly: Assembly, part: int) -> None:
        if assembly.round != self._crew.round:
            return
        if self._failure is not None:
            assembly.fail(part, self._failure)
        elif assembly.needs(part):
            try:
                self._seed(assembly, part)
                for place in assembly.range_of(part):
                    assembly.put(place, self._duty.sample(assembly.indices, place))
            except _Stopped:
                raise
            except BaseException as error:
                assembly.fail(part, self._wrapped(error))
        if assembly.done():
            made = self._completed(assembly)
            self._crew.answers.put(Answer(assembly.round, assembly.number, self._duty.number, made))

    def _completed(self, assembly: Assembly) -> Any:
        if assembly.failure is not None:
            return assembly.failure[1]
        try:
            self._seed(assembly, assembly.parts)
            return self._duty.finish(self._duty.collate(assembly))
        except BaseException as error:
            return self._wrapped(error)

    def _seed(self, task: Task | Assembly, part: int = 0) -> None:
        if self._duty.key is not None:
            key = permutation_key(self._duty.key, task.round, task.number, part)
            self._duty.generators.seed(key)

    def _make(self, task: Task) -> Any:
        if self._ended:
            return ENDED
        if self._failure is not None:
            return self._failure
        duty = self._duty
        try:
            self._seed(task)
            return duty.finish(self._fetcher.fetch(task.index))
        except _Stopped:
            raise
        except BaseException as error:
            if duty.own_tasks and isinstance(error, StopIteration):
                self._ended = True
                return ENDED
            return self._wrapped(error)

    def _wrapped(self, error: BaseException) -> ExceptionWrapper:
        """Return the error being handled, as torch carries errors of workers."""
        where = f"in DataLoader worker thread {self._duty.number}"
        if isinstance(error, Exception):
            return ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
        # It would have ended a worker process; here it would end the caller's program.
        kind = type(error).__name__
        wrong = EngineError(f"{kind} was raised in a worker thread: {error}", hint="see the error above")
        info = EngineError, wrong, error.__traceback__
        return ExceptionWrapper(info, where)  # type: ignore[no-untyped-call]


# --- threads -------------------------------------------------------------------------------------------


class Crew:
    """The threads of one iterator, and the queues between it and them. They do not know the iterator.

    An iterator may be dropped wherever the collector runs, whatever lock is held there: so nothing here is
    done under one, and queues are SimpleQueues, which may be put to from anywhere.
    """

    def __init__(self, count: int) -> None:
        self.tasks: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(count)]
        self.pool: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.round = 0
        self.stopped = False
        self._process = os.getpid()
        self._threads: list[threading.Thread] = []
        _crews.add(self)

    def start(self, duties: list[Duty]) -> None:
        """Start a thread for each of ``duties``, in which torch's operations are not parallel in turn."""
        # Limiting one thread also sets what others begin with when they first ask. So this one asks before,
        # and sets that again when all have begun.
        parallel = torch.get_num_threads()
        openmp = torch.backends.openmp.is_available()  # type: ignore[no-untyped-call]
        limited = parallel > 1 and openmp
        for duty in duties:
            worker = _Worker(self, duty)
            name = f"fastload-worker-{duty.number}"
            # Daemons, since Python would wait for others before it calls what was registered for its exit.
            thread = threading.Thread(target=worker.run, args=(limited,), name=name, daemon=True)
            thread.start()
            self._threads.append(thread)
        if limited:
            for _ in duties:
                self.answers.get()
            torch.set_num_threads(parallel)

    @property
    def here(self) -> bool:
        """Whether its threads are in this process, not in one that this was forked from."""
        return self._process == os.getpid()

    def check(self) -> None:
        """Raise, in a worker thread, if it is to end."""
        if self.stopped:
            raise _Stopped

    def stop(self, deadline: float | None = None) -> None:
        """Let all threads end after the sample they are at, and wait for that until a deadline."""
        if not self.here:
            return
        self.stopped = True
        for tasks in self.tasks:
            tasks.put(None)
            self.pool.put(None)
        if in_worker_thread():  # the collector came by the iterator there
            return
        deadline = time.monotonic() + _PATIENCE if deadline is None else deadline
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End all threads at exit, while everything that they use is still there."""
    interrupted = issubclass(getattr(sys, "last_type", None) or object, KeyboardInterrupt)
    deadline = time.monotonic() + (_PATIENCE if interrupted else _AT_EXIT)
    for crew in list(_crews):
        crew.stop(deadline)
