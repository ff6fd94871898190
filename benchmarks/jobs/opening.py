"""The opening job: open a dataset and read one random record, in a process that has done neither before.

Usage: python -m benchmarks.jobs.opening KIND SCRATCH [--prepare]; KIND is ``records`` (1,000,000 records of
a byte string and a label in one shard) or ``shards`` (16,000 in 1,000 shards).
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

from benchmarks import host, worker

COUNTS = {"records": 1_000_000, "shards": 16_000}
PAYLOAD = {"records": 8, "shards": 1_000}
SHARD_BYTES = {"records": 1 << 30, "shards": 16 * 1_008}  # all in one; 16 records, label included
SHARDS = {"records": 1, "shards": 1_000}


def _payload(kind: str, record: int) -> bytes:
    return (b"%08d" % record).ljust(PAYLOAD[kind], b".")


def _prepare(kind: str, path: Path) -> None:
    import fastload

    schema = {"x": fastload.Bytes(), "y": fastload.Label(["a", "b"])}
    with fastload.Writer(str(path), schema, shard_size=SHARD_BYTES[kind]) as writer:
        for record in range(COUNTS[kind]):
            writer.append({"x": _payload(kind, record), "y": record & 1})
    made = len(list(path.glob("*.shard")))
    assert made == SHARDS[kind], made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=tuple(COUNTS))
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--prepare", action="store_true", help="only make the dataset")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    path = arguments.scratch / f"opening-{arguments.kind}.fl"
    worker.announce_baseline()
    import fastload

    if arguments.prepare:
        if not path.exists():
            _prepare(arguments.kind, path)
        worker.finish({})
    record = random.randrange(COUNTS[arguments.kind])
    open_dataset = fastload.open  # imports what it needs, which is not what is timed
    begin = time.perf_counter()
    dataset = open_dataset(str(path))
    opened = time.perf_counter()
    value = dataset[record]["x"]
    read = time.perf_counter()
    assert value == _payload(arguments.kind, record)
    assert len(dataset) == COUNTS[arguments.kind]
    worker.finish(
        {"open_seconds": opened - begin, "first_record_seconds": read - begin, "versions": host.versions()}
    )


if __name__ == "__main__":
    main()
