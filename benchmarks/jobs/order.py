"""The order job: which records come next, of 10^9 virtual ones, without reading any.

Usage: python -m benchmarks.jobs.order KIND; KIND is ``full`` (a full shuffle), ``window`` (64 streams over
10,000 shards), ``window-large`` (1,024 streams over 1,000,000 shards) or ``sequential``. One thread computes
and waits for nothing, so that its CPU time is what is measured: it depends least on what else runs.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time

import numpy as np

from benchmarks import host, worker

RECORDS = 1_000_000_000
BATCH, WORLD, BATCHES = 256, 8, 4000
SHARDS = {"window": 10_000, "window-large": 1_000_000}
STREAMS = {"window": 64, "window-large": 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("full", "window", "window-large", "sequential"))
    parser.add_argument("--prepare", action="store_true", help="there is nothing to prepare")
    arguments = parser.parse_args()
    worker.announce_baseline()
    from fastload.sampling import Selection, Share, Window, batches_of, permute

    if arguments.prepare:
        worker.finish({})
    window = None
    if arguments.kind in SHARDS:
        chunks = np.arange(0, RECORDS, RECORDS // SHARDS[arguments.kind])
        window = Window(STREAMS[arguments.kind], 5000, chunks)
    share = Share(BATCH * WORLD, 3, WORLD)
    permute(np.arange(BATCH), RECORDS, 0, 0)  # loads the core, which is not what is timed

    starts, rates = [], []
    for epoch in range(5):
        begin = time.process_time()
        order = Selection.whole(RECORDS).order(
            0, epoch, shuffle=arguments.kind != "sequential", window=window
        )
        batches = batches_of(order, share, RECORDS // 2)
        next(batches)
        starts.append(time.process_time() - begin)
        begin = time.process_time()
        for _ in itertools.islice(batches, BATCHES):
            pass
        rates.append((time.process_time() - begin) / BATCHES)
    million = np.arange(1_000_000)
    permuted = []
    for epoch in range(9):
        begin = time.process_time()
        permute(million, len(million), 0, epoch)
        permuted.append(time.process_time() - begin)
    worker.finish(
        {
            "start_seconds": statistics.median(starts),
            "batch_seconds": statistics.median(rates),
            "permute_million_seconds": statistics.median(permuted),
            "versions": host.versions(),
        }
    )


if __name__ == "__main__":
    main()
