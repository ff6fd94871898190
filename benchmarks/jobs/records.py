"""The record job: byte records of one size in random order, in batches.

Usage: python -m benchmarks.jobs.records LOADER SCRATCH --bytes 3072 --count 50000 --batch 512 [--prepare]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import host, worker


def parse(about: str) -> argparse.Namespace:
    """Return the command line of a record job, whose first line of help is that of ``about``."""
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("loader")
    parser.add_argument("scratch", type=Path, help="where loaders keep their own form of the records")
    parser.add_argument("--bytes", type=int, default=3072)
    parser.add_argument("--count", type=int, default=50_000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--prepare", action="store_true", help="only make the loader's form of the records")
    return parser.parse_args()


def job_of(arguments: argparse.Namespace) -> Any:
    """Return the job that a command line describes. Imports torch."""
    from benchmarks.peers import records as peers

    folder = arguments.scratch / f"records-{arguments.bytes}-{arguments.count}"
    folder.mkdir(parents=True, exist_ok=True)
    return peers.Job(folder, arguments.bytes, arguments.count, arguments.batch, arguments.workers)


def main() -> None:
    arguments = parse(__doc__)
    worker.announce_baseline()
    from benchmarks.peers import records as peers

    job = job_of(arguments)
    loader = peers.LOADERS[arguments.loader]
    if arguments.prepare:
        loader.prepare(job)
        worker.finish({})
    result = worker.measure(lambda: loader.make(job), arguments.epochs, arguments.seconds)
    worker.finish({**result, "versions": host.versions(), "settings": loader.settings})


if __name__ == "__main__":
    main()
