"""torch's own iterators, which follow what they deliver, say where things fail, and end quickly."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data import dataloader
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from fastload._config import transport_choice
from fastload.errors import EngineError
from fastload.loader import deaths
from fastload.loader.around import (
    Parcel,
    SeededCollate,
    SeededDataset,
    StreamCollate,
    StreamDataset,
    WorkerStart,
    add_note,
    kept_generators,
    placed,
)
from fastload.loader.handover import HandOver
from fastload.loader.packing import Message, SlabCollate
from fastload.loader.prefetch import Prefetch
from fastload.loader.runs import IndexSource, MapRun, Run
from fastload.loader.slabs import Channel, Receiver, make_channel

__all__ = ["CallerIterator", "ProcessIterator", "TorchIterator", "View", "make_iterator", "stopped"]

_POLL = 1.0
"""Seconds after which it is looked whether workers live: with pinned memory, or in another thread than the
main one, no signal tells."""

_PATIENCE = 5.0
"""Seconds that busy workers are given to end in, all together; torch gives each of them as many."""

_HURRY = 0.5
"""The same after Ctrl-C, or the death of one."""


class View:
    """A loader as torch's iterators are to see it: some attributes are others than the user's."""

    def __init__(self, loader: Any, **others: Any) -> None:
        self.__dict__.update(others, _loader=loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


@dataclasses.dataclass
class _Made:
    """A batch, with what torch gave and its number among the items drawn."""

    batch: Any
    given: Any
    number: int
    waited: float


class TorchIterator:
    """What iterators of torch's kind get here. It is mixed in before them."""

    _sampler_iter: Any
    _run: Run
    _reset: Callable[..., None]

    def _follow(self, loader: weakref.ref[Any], prefetch: Prefetch) -> None:
        self._prefetch = prefetch
        self._loader = loader  # weakly: it keeps its iterator, and workers end when it is dropped
        self._closed = False
        self._number = 0
        self._hand_over: HandOver[_Made] | None = cast(Any, loader())._hand_over()

    def _start(self) -> None:
        self._run = self._sampler_iter
        self._prefetch.begin()
        self._fresh = True
        if self._hand_over is not None:
            self._hand_over.clear()
        loader = self._loader()
        if loader is not None:
            loader._begin(self._run)

    def __next__(self) -> Any:
        hand_over = self._hand_over
        if self._closed and (hand_over is None or not hand_over.pending):
            raise StopIteration
        if self._fresh:
            self._name_epoch()
        run = self._run
        try:
            made = self._make() if hand_over is None else cast(_Made, hand_over.next(self._make))
        except StopIteration:
            run.finish()
            raise
        except KeyboardInterrupt:
            self._interrupt()
            raise
        run.progress.wait_seconds += made.waited
        batch = run.deliver(made.number, made.given)
        if self._prefetch.note(made.waited, batch):
            self._deepen()
        return batch if hand_over is None else made.batch

    def _make(self) -> _Made:
        """Return the next batch, which does not count yet."""
        run = self._run
        started = time.perf_counter()
        while run.passed:
            self._advance()
            run.passed -= 1
        given = self._advance()
        waited = time.perf_counter() - started
        return _Made(given.batch if isinstance(given, Parcel) else given, given, self._number, waited)

    def _deepen(self) -> None:
        """Begin batches until as many are made ahead as ``self._prefetch`` says now."""

    def _name_epoch(self) -> None:
        """Begin anew if an epoch was named since: frameworks make an iterator before they name it."""
        loader = self._loader()
        if loader is not None and loader._begins_anew(self._run):
            self._reset(loader)
        self._fresh = False

    def _advance(self) -> Any:
        return super().__next__()  # type: ignore[misc]

    def _interrupt(self) -> None:
        self.close()

    @property
    def live(self) -> bool:
        """Whether it may give more batches."""
        return not self._closed

    @property
    def reusable(self) -> bool:
        """Whether its workers can make another epoch (persistent_workers)."""
        return self.live

    def engine_stats(self) -> Mapping[str, Any]:
        """Return nothing: torch counts nothing."""
        return {}

    @property
    def transport(self) -> dict[str, int] | None:
        """How many batches came in which way from worker processes; None where there are none."""
        return None

    def close(self) -> None:
        """End it, and its workers. May be called twice; iteration then ends."""
        self._closed = True
        if self._hand_over is not None:
            self._hand_over.close()

    def _failed(self, error: BaseException) -> None:
        add_note(error, self._run.tell(self._number))
        self._run.fail(self._number)


def stopped(error: StopIteration) -> EngineError:
    """Return what stands for a StopIteration that must not pass for the end."""
    wrong = EngineError("the dataset or the collate_fn raised StopIteration", hint="see the error above")
    wrong.__cause__ = error
    return wrong


class CallerIterator(TorchIterator, dataloader._SingleProcessDataLoaderIter):
    """torch's iterator that makes samples in the caller."""

    def __init__(self, loader: Any, this: weakref.ref[Any], keeps: bool) -> None:
        self._follow(this, loader._prefetch)
        self._keeps = keeps
        super().__init__(loader)
        self._start()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._start()

    def _next_data(self) -> Any:
        run, drawn = self._run, self._run.drawn
        try:
            with kept_generators() if self._keeps else contextlib.nullcontext():
                made = super()._next_data()  # type: ignore[no-untyped-call]
        except StopIteration as error:
            if run.drawn > drawn and isinstance(run, MapRun):  # the sampler had gone on
                self._number = drawn
                wrong = stopped(error)
                self._failed(wrong)
                raise wrong from error
            raise
        except Exception as error:
            if run.drawn > drawn:
                self._number = drawn
                self._failed(error)
            raise
        self._number = drawn
        return made


class ProcessIterator(TorchIterator, dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator over worker processes."""

    def __init__(self, loader: Any, this: weakref.ref[Any], channel: Channel | None) -> None:
        self._follow(this, loader._prefetch)
        self._got: Any = None
        self._process = os.getpid()
        self._patience = _PATIENCE
        self._receiver = None if channel is None else Receiver(channel, loader.prefetch_factor)
        deaths.note_baseline()
        super().__init__(loader)
        deaths.watch_children()
        if self._receiver is not None:
            self._receiver.starting = False

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self._start()

    def _try_put_index(self) -> None:
        first = self._sampler_iter.first_worker
        self._sampler_iter.first_worker = 0
        for _ in range(first):
            next(self._worker_queue_idx_cycle)
        super()._try_put_index()

    def _deepen(self) -> None:
        while self._prefetch_factor * self._num_workers < self._prefetch.batches:
            self._prefetch_factor += 1
            if self._receiver is not None:
                self._receiver.allow(self._prefetch_factor)
            for _ in range(self._num_workers):
                self._try_put_index()

    def _try_get_data(self, timeout: float = _PATIENCE) -> tuple[bool, Any]:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            found = super()._try_get_data(min(_POLL, max(0.0, left)))  # type: ignore[no-untyped-call]
            if found[0] or left <= _POLL:
                return cast(tuple[bool, Any], found)

    def _get_data(self) -> Any:
        got = super()._get_data()  # type: ignore[no-untyped-call]
        self._got = got[0]
        return got

    def _process_data(self, made: Any, *worker: Any) -> Any:
        self._number = self._rcvd_idx - 1 if getattr(self, "_in_order", True) else self._got
        try:
            batch = super()._process_data(made, *worker)  # type: ignore[no-untyped-call]
            return batch.unpack() if isinstance(batch, Message) else batch
        except StopIteration as error:
            wrong = stopped(error)
            self._failed(wrong)
            raise wrong from error
        except Exception as error:
            if isinstance(made, (ExceptionWrapper, Message)):
                self._failed(error)
                # torch's frame below has the error in a variable: that cycle would leave this iterator to
                # the collector, in which the workers take five seconds to end.
                error = error.with_traceback(None)
            raise error

    def _advance(self) -> Any:
        try:
            return super()._advance()
        except RuntimeError as error:
            self._explain(error)
            raise
        except (ConnectionError, EOFError) as error:  # a worker died while it handed a tensor over
            died = self._wait_for_a_death()
            if died is None:
                raise
            dead = RuntimeError(f"DataLoader worker (pid(s) {died}) exited unexpectedly")
            self._explain(dead)
            raise dead from error

    def _wait_for_a_death(self) -> int | None:
        deadline = time.monotonic() + _POLL
        while time.monotonic() < deadline:
            dead = [worker.pid for worker in self._workers if not worker.is_alive()]
            if dead:
                return cast(int, dead[0])
            time.sleep(0.01)
        return None

    def _explain(self, error: RuntimeError) -> None:
        """Say more of a worker that died or took too long."""
        text = str(error)
        if text.startswith("DataLoader timed out"):
            add_note(error, f"{self._run.tell(self._rcvd_idx)} A worker has been at work on it.")
        if text.startswith("DataLoader worker (pid"):
            codes = [worker.exitcode for worker in self._workers if worker.exitcode]
            deaths.tell(error, deaths.cause_of(codes[0] if codes else None))
            self._interrupt()

    @property
    def reusable(self) -> bool:
        return self.live and all(worker.is_alive() for worker in self._workers)

    def _interrupt(self) -> None:
        self._patience = _HURRY
        self.close()

    def close(self) -> None:
        super().close()
        self._shutdown_workers()

    def _shutdown_workers(self) -> None:
        if os.getpid() != self._process:  # collected in a forked child, whose workers these are not
            return
        if not hasattr(self, "_shutdown"):  # torch's constructor had not come so far
            return
        if self._receiver is not None:
            self._receiver.stop()
        workers = getattr(self, "_workers", [])
        deadline = time.monotonic() + self._patience
        # torch joins one worker after another, each with the same patience: this is one for all. (No thread
        # that ends them could do that: this may run in the collector, with any lock held.)
        self._workers: list[Any] = [_Worker(worker, deadline) for worker in workers]
        try:
            super()._shutdown_workers()
        finally:
            self._workers = workers
            if self._receiver is not None:
                self._receiver.close()

    @property
    def transport(self) -> dict[str, int] | None:
        return None if self._receiver is None else self._receiver.counts


class _Worker:
    """A worker process that is waited for until a deadline, however long is asked."""

    def __init__(self, worker: Any, deadline: float) -> None:
        self._worker, self._deadline = worker, deadline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def join(self, timeout: float) -> None:
        self._worker.join(min(timeout, max(0.0, self._deadline - time.monotonic())))

    def terminate(self) -> None:
        self._worker.terminate()
        self._deadline = time.monotonic() + _HURRY  # for its end


def make_iterator(loader: data.DataLoader[Any], *, seeded: bool, states: dict[int, Any]) -> TorchIterator:
    """Return torch's iterator over ``loader``, whose runs are what ``loader._next_run()`` gives.

    With ``seeded`` samples are seeded by position; the copies of an iterable dataset go on from ``states``,
    by worker.
    """
    others: dict[str, Any] = {"_index_sampler": IndexSource(loader)}
    dataset: Any = loader.dataset
    channel = None
    if loader.num_workers and transport_choice() == "slabs":
        channel = make_channel(loader.num_workers, loader.collate_fn is data.default_collate)
    if not isinstance(dataset, (IterDataPipe, MapDataPipe)):  # torch knows these by their type
        around: Any
        if isinstance(dataset, data.IterableDataset):
            around = StreamDataset(dataset, states)
            others["collate_fn"] = StreamCollate(around, loader.collate_fn, loader.batch_sampler is not None)
        elif seeded:
            around = SeededDataset(dataset, channel=channel)
            others["collate_fn"] = SeededCollate(around, loader.collate_fn)
        else:
            around = placed(dataset, channel)
        others.update(dataset=around, worker_init_fn=WorkerStart(dataset, loader.worker_init_fn))
    if loader.num_workers:
        prefetch: Prefetch = cast(Any, loader)._prefetch
        others["prefetch_factor"] = prefetch.batches // loader.num_workers
        others["pin_memory"] = loader.pin_memory or cast(Any, loader)._target.pins
    if channel is not None:
        others["collate_fn"] = SlabCollate(channel, others.get("collate_fn", loader.collate_fn))
    view = View(loader, **others)
    if loader.num_workers == 0:
        return CallerIterator(view, weakref.ref(loader), keeps=seeded)
    return ProcessIterator(view, weakref.ref(loader), channel)
