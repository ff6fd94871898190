"""The record job with a Python dataset that has __getitem__ only, made by worker processes.

Usage: python -m benchmarks.jobs.python_records LOADER SCRATCH --bytes 3072 --count 50000 --batch 512

LOADER is fastload or torch: the DataLoader of either. Beside the rate it times what workers cost: starting
them, the next epoch of persistent ones, and their end, when they are idle and when they are busy.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks import host, worker
from benchmarks.jobs.records import job_of, parse

REPEATS = 5
"""How often each time is taken; the median counts."""


def _loader(name: str, job: Any, *, persistent: bool) -> Any:
    """Return the DataLoader called ``name`` over records of ``job``."""
    import torch.utils.data

    import fastload
    from benchmarks.peers.records import Records

    make: Any = {"fastload": fastload.DataLoader, "torch": torch.utils.data.DataLoader}[name]
    return make(
        Records(job.records),
        job.batch,
        shuffle=True,
        num_workers=job.workers,
        drop_last=True,
        persistent_workers=persistent,
    )


def _timed(function: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _start(name: str, job: Any) -> float:
    """Return the seconds that it takes to start workers, up to the first batch."""
    loader = _loader(name, job, persistent=False)
    return _timed(lambda: next(iter(loader)))


def _next_epoch(name: str, job: Any) -> float:
    """Return the seconds of ``iter(loader)`` for an epoch after the first."""
    loader = _loader(name, job, persistent=True)
    for _ in loader:
        pass
    return _timed(lambda: iter(loader))


def _shutdown(name: str, job: Any, *, busy: bool) -> float:
    """Return the seconds until workers have ended, once their loader is dropped."""
    loader = _loader(name, job, persistent=True)
    for number, _ in enumerate(loader):
        if busy and number == 2 * job.workers:
            break
    return _timed(lambda: _drop(loader))


def _drop(loader: Any) -> None:
    loader._iterator = None  # as the last reference to the loader would, which the caller still has


def main() -> None:
    arguments = parse(__doc__)
    worker.announce_baseline()
    job = job_of(arguments)
    name = arguments.loader
    job.records  # noqa: B018 - made where it is missing
    if arguments.prepare:
        worker.finish({})
    result = worker.measure(lambda: _loader(name, job, persistent=True), arguments.epochs, arguments.seconds)
    times: dict[str, Callable[[], float]] = {
        "start_seconds": lambda: _start(name, job),
        "next_epoch_seconds": lambda: _next_epoch(name, job),
        "idle_shutdown_seconds": lambda: _shutdown(name, job, busy=False),
        "busy_shutdown_seconds": lambda: _shutdown(name, job, busy=True),
    }
    taken = {key: statistics.median(time() for _ in range(REPEATS)) for key, time in times.items()}
    worker.finish({**result, **taken, "versions": host.versions()})


if __name__ == "__main__":
    main()
