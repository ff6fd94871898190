"""Tasks done by worker processes or threads: results in the tasks' order, one failure ends all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from fastload.errors import EngineError, FastloadError

Task = TypeVar("Task")
Result = TypeVar("Result")
Report = Callable[[int], None]
"""Called with how many more records are done."""

REPORT_SECONDS = 0.1
JOIN_SECONDS = 5.0


class _Stopped(Exception):
    """The work is to end: another worker failed."""


def run_tasks(
    work: Callable[[Task, Report], Result],
    tasks: Sequence[Task],
    *,
    workers: int,
    processes: bool = True,
    report: Report = lambda _: None,
    undo: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Return ``[work(task, report) for task in tasks]``, done by up to ``workers`` at a time.

    Workers are spawned processes (``work``, tasks and results are then pickled), or threads where
    ``processes`` is False; with one worker or one task the work is done in the calling thread. The first
    failure is raised after the others were stopped and ``undo`` was called with what was done.
    """
    workers = min(workers, len(tasks))
    done: dict[int, Result] = {}
    try:
        if workers <= 1:
            for number, task in enumerate(tasks):
                done[number] = work(task, report)
        elif processes:
            _run_in_processes(work, tasks, workers, report, done)
        else:
            _run_in_threads(work, tasks, workers, report, done)
    except BaseException:
        for result in done.values():
            undo(result)
        raise
    return [done[number] for number in range(len(tasks))]


def _run_in_threads(
    work: Callable[[Task, Report], Result],
    tasks: Sequence[Task],
    workers: int,
    report: Report,
    done: dict[int, Result],
) -> None:
    stop = threading.Event()
    lock = threading.Lock()

    def locked_report(count: int) -> None:
        if stop.is_set():
            raise _Stopped
        with lock:
            report(count)

    def one(number: int) -> None:
        result = work(tasks[number], locked_report)
        with lock:
            done[number] = result

    with concurrent.futures.ThreadPoolExecutor(workers) as executor:
        futures = [executor.submit(one, number) for number in range(len(tasks))]
        try:
            for future in concurrent.futures.as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            executor.shutdown(wait=True, cancel_futures=True)
            raise


def _run_in_processes(
    work: Callable[[Task, Report], Result],
    tasks: Sequence[Task],
    workers: int,
    report: Report,
    done: dict[int, Result],
) -> None:
    context = multiprocessing.get_context("spawn")
    waiting = iter(enumerate(tasks))
    processes: dict[Connection, Any] = {}
    try:
        with _interrupts_held_back():
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, work), daemon=True)
                process.start()
                theirs.close()
                processes[ours] = process
        for connection in processes:
            connection.send(next(waiting))
        while len(done) < len(tasks):
            for ready in multiprocessing.connection.wait(list(processes)):
                assert isinstance(ready, Connection)
                _handle(ready, processes[ready], waiting, report, done)
    finally:
        _end(processes, done)


def _handle(
    connection: Connection,
    process: Any,
    waiting: Iterator[tuple[int, Any]],
    report: Report,
    done: dict[int, Any],
) -> None:
    try:
        kind, value = connection.recv()
    except (EOFError, OSError):
        process.join(JOIN_SECONDS)
        code = process.exitcode
        died = (
            f"was killed by signal {-code}"
            if code is not None and code < 0
            else f"ended with exit code {code}"
        )
        raise EngineError(
            f"a worker process {died}", hint="if the machine ran out of memory, use fewer workers"
        ) from None
    if kind == "progress":
        report(value)
    elif kind == "failed":
        raise value
    else:
        number, result = value
        done[number] = result
        following = next(waiting, None)
        if following is not None:
            connection.send(following)


def _end(processes: dict[Connection, Any], done: dict[int, Any]) -> None:
    for connection, process in processes.items():
        with contextlib.suppress(OSError):
            connection.send(None)  # ends a worker that waits
        process.terminate()  # and one that works
    deadline = time.monotonic() + JOIN_SECONDS
    for connection, process in processes.items():
        # What a worker still had to say: a result that came while the others were stopped.
        with contextlib.suppress(EOFError, OSError):
            while connection.poll(max(0.0, deadline - time.monotonic())):
                kind, value = connection.recv()
                if kind == "done":
                    done[value[0]] = value[1]
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        connection.close()


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Hold Ctrl-C back while workers start: they inherit the mask, and so die quietly with their parent."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    # Otherwise the first worker's start starts it, which ends by letting SIGINT through again.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, work: Callable[[Any, Report], Any]) -> None:
    """Do tasks until the parent goes away. The body of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reporter = _Reporter(connection)
    # Only noted, and heeded between records: an exception just anywhere could lose a result on its way.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: reporter.stop())
    try:
        while True:
            message = connection.recv()
            if message is None or reporter.stopped:
                return
            number, task = message
            try:
                result = work(task, reporter)
            except _Stopped:
                return
            except FastloadError as error:
                connection.send(("failed", error))
                return
            except Exception as error:
                connection.send(("failed", _portable(error)))
                return
            reporter.flush()
            connection.send(("done", (number, result)))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        os._exit(1)  # The parent is gone: nobody waits for the result.


def _portable(error: Exception) -> Exception:
    """Return an error that survives pickling and still carries its traceback, as text."""
    if isinstance(error, OSError):
        return error
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    portable = EngineError(f"{type(error).__name__}: {error}")
    portable.__dict__["__notes__"] = [text]
    return portable


class _Reporter:
    """Sends progress through a connection, now and then."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._count = 0
        self._sent = time.monotonic()
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True

    def __call__(self, count: int) -> None:
        if self.stopped:
            raise _Stopped
        self._count += count
        if time.monotonic() - self._sent >= REPORT_SECONDS:
            self.flush()

    def flush(self) -> None:
        if self._count:
            self._connection.send(("progress", self._count))
        self._count, self._sent = 0, time.monotonic()
