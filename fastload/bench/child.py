"""One measurement in a process of its own: ``python -m fastload.bench.child`` with a request on stdin.

The request and the answer (the last line of stdout) are JSON objects: see :class:`Request`.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np

WARM_UP_SECONDS = 1.0
AHEAD = 3


@dataclasses.dataclass(frozen=True)
class Request:
    """What to measure.

    ``what`` is ``"loader"`` (fastload's DataLoader), ``"engine"`` (its engine alone: batches are dropped as
    they come) or ``"torch"``. ``cold`` drops the shards from the page cache first, and then there is no
    warm-up. ``peer`` is a PeerData as a mapping.
    """

    what: str
    dataset: str
    split: str
    records: int
    batch_size: int
    workers: int
    seconds: float
    size: int
    cold: bool = False
    peer: dict[str, Any] | None = None


def open_for_bench(request: Request) -> Any:
    """Return the dataset as it is measured: images cropped at random and flipped, with their label."""
    from fastload import transforms as T
    from fastload.dataset import open_dataset
    from fastload.schema import Image, Label

    dataset = open_dataset(request.dataset, request.split).take(request.records)
    images = [name for name, field in dataset.schema.items() if isinstance(field, Image)]
    if not images:
        return dataset
    labels = [name for name, field in dataset.schema.items() if isinstance(field, Label)]
    operations = [T.RandomResizedCrop(request.size), T.RandomHorizontalFlip()]
    return dataset.select_columns([images[0], *labels[:1]]).transform(**{images[0]: operations})


def evict(folder: str) -> None:
    """Drop a local folder's files from the page cache, as far as nobody maps them."""
    for entry in os.scandir(folder):
        descriptor = os.open(entry.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not yet written cannot be dropped
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _engine_batches(dataset: Any, request: Request) -> Iterator[int]:
    """Yield the sizes of batches without end, straight from one engine that is never left without work.

    An engine anew each epoch would start threads and check the shards' checksums each time, which the loader
    with persistent workers does once.
    """
    from fastload.engine import BatchIndices, make_engine

    engine = make_engine(dataset.plan(seed=0), request.workers)
    random = np.random.default_rng(0)
    in_flight: collections.deque[int] = collections.deque()
    try:
        for epoch in itertools.count():
            order = random.permutation(request.records).astype(np.int64)
            for first in range(0, request.records - request.batch_size + 1, request.batch_size):
                records = order[first : first + request.batch_size]
                positions = np.arange(first, first + len(records))
                engine.submit(BatchIndices(positions, np.zeros_like(records), records, epoch))
                in_flight.append(len(records))
                if len(in_flight) > AHEAD:
                    engine.next()
                    yield in_flight.popleft()
    finally:
        engine.close()


def _epochs(request: Request) -> Callable[[], Iterator[Any]]:
    """Return what makes an epoch's iterator."""
    if request.what == "torch":
        from fastload.bench.peer import PeerData, torch_loader

        assert request.peer is not None
        facts = {key: _tuples(value) for key, value in request.peer.items()}
        reader = open_for_bench(request).sources[0]
        loader = torch_loader(
            PeerData(**facts),
            reader,
            request.records,
            batch_size=request.batch_size,
            workers=request.workers,
            size=request.size,
        )
        return lambda: iter(loader)
    dataset = open_for_bench(request)
    if request.what == "engine":
        return lambda: _engine_batches(dataset, request)
    import fastload

    mine: Any = fastload.DataLoader(
        dataset,
        batch_size=request.batch_size,
        shuffle=True,
        num_workers=request.workers,
        drop_last=True,
        persistent_workers=request.workers > 0,
        seed=0,
    )
    return lambda: iter(mine)


def _tuples(value: Any) -> Any:
    """Return JSON's lists as the tuples they were."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _batches(make: Callable[[], Iterator[Any]], *, once: bool) -> Generator[Any, None, None]:
    """Yield the batches of one epoch, or of epochs without end."""
    yield from make()
    while not once:
        yield from make()


def measure(request: Request) -> dict[str, float]:
    """Run epochs for the time asked for and return rates, the first batch's time and the peak memory."""
    # Memory is counted above the imports.
    importlib.import_module("torch.utils.data" if request.what == "torch" else "fastload.loader")
    from fastload.bench.memory import MemoryWatch

    if request.cold:
        evict(request.dataset)
    with MemoryWatch() as memory:
        make = _epochs(request)
        begin = time.perf_counter()
        # A cold epoch ends where its records do: a second one would find them in the page cache.
        batches = _batches(make, once=request.cold)
        next(batches)
        first = time.perf_counter() - begin
        count = 1
        if not request.cold:
            while time.perf_counter() - begin < first + WARM_UP_SECONDS:
                next(batches)
            begin, count = time.perf_counter(), 0
        for _ in batches:
            count += 1
            if time.perf_counter() - begin >= request.seconds:
                break
        elapsed = time.perf_counter() - begin
        batches.close()
    return {
        "samples_per_second": count * request.batch_size / elapsed,
        "batches_per_second": count / elapsed,
        "first_batch_seconds": first,
        "peak_memory_bytes": memory.peak,
    }


def main() -> None:
    """Read a request, measure, print the answer."""
    request = Request(**json.load(sys.stdin))
    print(json.dumps(measure(request)), flush=True)


if __name__ == "__main__":
    main()
