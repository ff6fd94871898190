"""Worker threads in place of worker processes: for work that releases the GIL, and for Python without one."""

from __future__ import annotations

import contextlib
import copy
import functools
import queue
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data import dataloader
from torch.utils.data._utils.pin_memory import pin_memory

from fastload.errors import EngineError, UsageError
from fastload.loader.around import SeededBatch, SeededCollate, StreamCollate, add_note, makes_whole_batches
from fastload.loader.assembly import Assembly, Regions
from fastload.loader.collating import collates_as_torch
from fastload.loader.crew import (
    ENDED,
    RENEW,
    Answer,
    Crew,
    Duty,
    Piece,
    SampledInThread,
    SeededInThread,
    StreamInThread,
    Task,
    sampled_in_thread,
)
from fastload.loader.heap import keep_freed_memory
from fastload.loader.runs import IndexSource, StreamRun
from fastload.loader.target import Target
from fastload.loader.thread_info import Generators, install, make_info
from fastload.loader.torch_iterator import TorchIterator, View, stopped

__all__ = ["ThreadIterator", "make_thread_iterator"]


class ThreadIterator(TorchIterator, dataloader._BaseDataLoaderIter):
    """An iterator over worker threads, which gives what worker processes would, in their order.

    A batch of a map-style dataset is made by whichever thread is free, and of an iterable one by each in
    turn, which has a copy of the dataset.
    """

    def __init__(self, loader: Any, this: weakref.ref[Any], seeded: bool, states: dict[int, Any]) -> None:
        self._follow(this, loader._prefetch)
        super().__init__(loader)
        install()
        keep_freed_memory()
        self._in_order = getattr(loader, "in_order", True)
        self._iterable = isinstance(loader.dataset, data.IterableDataset)
        self._crew = Crew(self._num_workers)
        self._finalizer = weakref.finalize(self, self._crew.stop)
        self._finalizer.atexit = False  # at exit all crews have one deadline
        self._greeted = 0
        dataset: Any = loader.dataset
        self._splits = self._auto_collation and not self._iterable and not makes_whole_batches(dataset)
        direct = loader.collate_fn is data.default_collate and collates_as_torch()
        self._regions = Regions(2) if self._splits and direct else None
        try:
            self._crew.start(
                [self._duty(loader, number, seeded, states) for number in range(self._num_workers)]
            )
            self._prime()
        except BaseException:
            self.close()
            raise

    def _duty(self, loader: Any, number: int, seeded: bool, states: dict[int, Any]) -> Duty:
        """Return what worker ``number`` does, with whatever it has to itself."""
        crew, generators, base = self._crew, Generators(), int(self._base_seed)
        dataset, collate, start = loader.dataset, loader.collate_fn, loader.worker_init_fn
        around: Any
        key: int | None = None
        if self._iterable:
            dataset, collate, start = _copied(dataset, collate, start)
            around = StreamInThread(dataset, states, crew)
            collate = StreamCollate(around, collate, loader.batch_sampler is not None)
        elif seeded:
            around = SeededInThread(dataset, crew, generators)
            collate = SeededCollate(around, collate)
        else:
            around = sampled_in_thread(dataset, crew)
            key = base
        seed = base + number
        generators.seed(seed)
        one = SampledInThread(dataset, crew)
        settings = self._dataset_kind, around, self._auto_collation, collate, self._drop_last
        return Duty(
            number,
            make_info(number, self._num_workers, seed, dataset, generators),
            generators,
            begin=_beginning(number, start, pinned=self._pin_memory),
            fetcher=functools.partial(_fetcher, *settings),
            sample=around.sample_at if seeded else lambda indices, place: one[indices[place]],
            collate=functools.partial(_collated, collate, around if seeded else None),
            finish=functools.partial(_pinned, self._pin_memory_device) if self._pin_memory else _as_it_is,
            key=key,
            own_tasks=self._iterable,
        )

    # --- tasks -----------------------------------------------------------------------------------------

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._check_process()
        try:
            super()._reset(loader, first_iter)
            self._renew()
            self._prime()
        except BaseException:
            self.close()
            raise

    def _renew(self) -> None:
        """Be done with all tasks so far."""
        crew = self._crew
        crew.round += 1
        if self._iterable:  # the copies go on from there, so all that they were asked for is made
            for tasks in crew.tasks:
                tasks.put(RENEW)
            for _ in crew.tasks:
                while crew.answers.get() is not RENEW:
                    pass
            return
        for left in (crew.pool, crew.answers):
            with contextlib.suppress(queue.Empty):
                while True:
                    left.get_nowait()

    def _prime(self) -> None:
        self._sent: dict[int, int] = {}  # number of a task -> its worker, oldest first
        self._made: dict[int, Any] = {}  # what came before its turn
        self._ended: set[int] = set()
        self._count = 0
        run = self._sampler_iter
        self._turn = run.first_worker if isinstance(run, StreamRun) else 0
        self._deepen()
        self._start()

    def _deepen(self) -> None:
        while len(self._sent) < self._prefetch.batches and self._submit():
            pass

    def _submit(self) -> bool:
        """Ask for one batch more; return whether there is one, and a worker for it."""
        try:
            index = next(self._sampler_iter)
        except StopIteration:
            return False
        crew, number = self._crew, self._count
        if self._iterable:
            worker = self._choose()
            if worker < 0:
                return False
            crew.tasks[worker].put(Task(crew.round, number, index))
            self._sent[number] = worker
        else:
            for task in self._split(number, index):
                tasks = crew.pool
                if self._greeted < self._num_workers:
                    tasks = crew.tasks[self._greeted]
                    self._greeted += 1
                tasks.put(task)
            self._sent[number] = -1
        self._count += 1
        return True

    def _split(self, number: int, index: Any) -> list[Task] | list[Piece]:
        """Return what workers do for a batch of a map-style dataset."""
        listed = index.index if isinstance(index, SeededBatch) else index
        if not self._splits or type(listed) is not list or len(listed) < 2:
            return [Task(self._crew.round, number, index)]
        assembly = Assembly(self._crew.round, number, index, len(listed), self._regions)
        return [Piece(assembly, part) for part in range(assembly.parts)]

    def _choose(self) -> int:
        """Return the next worker in turn that has more and, out of order, room; -1 if there is none."""
        count = self._num_workers
        room = self._prefetch.batches // max(1, count - len(self._ended))
        busy = list(self._sent.values())
        for _ in range(count):
            worker = self._turn
            self._turn = (worker + 1) % count
            if worker not in self._ended and (self._in_order or busy.count(worker) < room):
                return worker
        return -1

    # --- batches ---------------------------------------------------------------------------------------

    def __next__(self) -> Any:
        if not self._closed:
            self._check_process()
        return super().__next__()

    def _check_process(self) -> None:
        if not self._crew.here:
            raise EngineError(
                "this iterator was made before a fork, and its threads live in the parent",
                hint="make a new one in this process with iter(loader)",
            )

    def _next_data(self) -> Any:
        while self._sent:
            first = next(iter(self._sent))
            if first in self._made:
                return self._give(first, self._made.pop(first))
            round_, number, worker, made = self._receive(first)
            if round_ != self._crew.round:
                continue
            if made is ENDED:
                del self._sent[number]
                self._ended.add(worker)
                self._deepen()
            elif self._in_order and number != first:
                self._made[number] = made
            else:
                return self._give(number, made)
        if not self._persistent_workers:
            self._crew.stop()
        raise StopIteration

    def _receive(self, first: int) -> Answer:
        try:
            answer: Answer = self._crew.answers.get(timeout=self._timeout or None)
        except queue.Empty:
            late = RuntimeError(f"DataLoader timed out after {self._timeout} seconds")
            add_note(late, f"{self._run.tell(first)} A worker has been at work on it.")
            raise late from None
        return answer

    def _give(self, number: int, made: Any) -> Any:
        del self._sent[number]
        self._number = number
        self._deepen()
        if not isinstance(made, ExceptionWrapper):
            return made
        try:
            made.reraise()  # type: ignore[no-untyped-call]
        except StopIteration as error:
            wrong = stopped(error)
            self._failed(wrong)
            raise wrong from error
        except Exception as error:
            self._failed(error)
            raise

    # --- the end ---------------------------------------------------------------------------------------

    @property
    def reusable(self) -> bool:
        return self.live and self._crew.here and not self._crew.stopped

    def close(self) -> None:
        """End it, and its threads after the samples they are at. May be called twice; iteration then ends."""
        super().close()
        self._finalizer()


def _fetcher(*settings: Any) -> Any:
    return dataloader._DatasetKind.create_fetcher(*settings)  # type: ignore[no-untyped-call]


def _collated(function: Callable[[Any], Any], seeded: SeededInThread | None, assembly: Assembly) -> Any:
    if seeded is not None:
        seeded.begin_collate(assembly.indices)
    return assembly.collated(function)


def _pinned(device: Any, batch: Any) -> Any:
    return pin_memory(batch, device)  # type: ignore[no-untyped-call]


def _as_it_is(batch: Any) -> Any:
    return batch


def _copied(*parts: Any) -> Any:
    """Return a worker's own copies of an iterable dataset and what may belong to it, as a process has."""
    try:
        return copy.deepcopy(parts)
    except Exception as error:
        raise UsageError(
            f"a worker thread needs a copy of the {type(parts[0]).__name__}, which cannot be made: {error}",
            hint="define its __deepcopy__, or make what cannot be copied in its __iter__; "
            "or use worker_method='multiprocessing'",
        ) from error


def _beginning(number: int, start: Callable[[int], Any] | None, *, pinned: bool) -> Callable[[], None]:
    """Return what a worker thread does first."""
    accelerator: Any = getattr(torch, "accelerator", None)
    device = None
    if pinned and accelerator is not None:
        device = accelerator.current_device_index()

    def begin() -> None:
        if device is not None:
            accelerator.set_device_index(device)  # threads begin at device 0, and would open it
        if start is not None:
            start(number)

    return begin


def make_thread_iterator(
    loader: data.DataLoader[Any], *, seeded: bool, states: dict[int, Any]
) -> ThreadIterator:
    """Return an iterator over worker threads, whose runs are what ``loader._next_run()`` gives.

    With ``seeded`` the generators of worker infos are seeded by position; the copies of an iterable dataset
    go on from ``states``, by worker.
    """
    target: Target = cast(Any, loader)._target
    view = View(loader, _index_sampler=IndexSource(loader), pin_memory=loader.pin_memory or target.pins)
    return ThreadIterator(view, weakref.ref(loader), seeded, states)
