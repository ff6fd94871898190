"""The stall job: a training step that waits for batches of which some take far longer than others.

Usage: python -m benchmarks.jobs.stall LOADER [--workers N] [--batches N]; LOADER is ``torch``,
``fastload-processes`` or ``fastload-threads``, with ``-unordered`` (in_order=False) or, for fastload's,
``-growing`` (batches ahead as with num_workers="auto").

A step sleeps 30 ms. A sample sleeps 0.9 ms, and one in ten, drawn once by its index, ten times as long: with
two workers a batch of 32 takes 27 ms on average, and sleeping's own overhead, so that they just keep up.
Everything sleeps, so that what is compared is how work is handed out and waited for, not how fast it is done,
and other work on the machine disturbs little. Samples come in order: all loaders meet the same slow ones.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from benchmarks import host, worker

STEP_SECONDS = 0.030
SAMPLE_SECONDS = 0.0009
SLOWER = 10
BATCH = 32
LOADERS = (
    *("torch", "torch-unordered"),
    *(f"fastload-{kind}{how}" for kind in ("processes", "threads") for how in ("", "-unordered", "-growing")),
)


class Sleepy:
    """A map-style dataset whose samples take time and no work."""

    def __init__(self, count: int) -> None:
        self.count = count
        draw = random.Random(0)
        self.slow = [draw.random() < 0.1 for _ in range(count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        time.sleep(SAMPLE_SECONDS * (SLOWER if self.slow[index] else 1))
        return index


def make(loader: str, count: int, workers: int) -> Any:
    """Return a loader by its name in LOADERS."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "in_order": not loader.endswith("-unordered")}
    if loader.startswith("torch"):
        from torch.utils.data import DataLoader

        return DataLoader(Sleepy(count), num_workers=workers, **arguments)  # type: ignore[arg-type]
    import fastload
    from fastload.loader.prefetch import AutoWorkers

    growing = loader.endswith("-growing")
    return fastload.DataLoader(
        Sleepy(count),  # type: ignore[arg-type]
        num_workers=AutoWorkers(workers) if growing else workers,
        worker_method="thread" if "threads" in loader else "multiprocessing",
        **arguments,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batches", type=int, default=600)
    parser.add_argument("--prepare", action="store_true", help="there is nothing to prepare")
    arguments = parser.parse_args()
    worker.announce_baseline()
    if arguments.prepare:
        worker.finish({})
    iterator = iter(make(arguments.loader, arguments.batches * BATCH, arguments.workers))
    waits = []
    next(iterator)  # the start is not what is measured
    began = time.perf_counter()
    while True:
        time.sleep(STEP_SECONDS)
        asked = time.perf_counter()
        if next(iterator, None) is None:
            break
        waits.append(time.perf_counter() - asked)
    took = asked - began
    assert len(waits) == arguments.batches - 1, len(waits)
    percentiles = statistics.quantiles(waits, n=100)
    worker.finish(
        {
            "stall_share": sum(waits) / took,
            "wait_p50_seconds": percentiles[49],
            "wait_p99_seconds": percentiles[98],
            "versions": host.versions(),
        }
    )


if __name__ == "__main__":
    main()
