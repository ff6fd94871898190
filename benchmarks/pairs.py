"""Measure loaders of the image job epoch by epoch in turn, where a machine's noise hides small differences.

Usage: python -m benchmarks.pairs NAME IMAGES SCRATCH LOADER LOADER [...] [--epochs N] [--workers N]
       [--results FOLDER]

All loaders live in one process and are iterated over one after another, in an order that turns round each
time, so that each epoch has neighbours to be compared with: ratios to the first loader are taken epoch by
epoch, and their median counts. Their workers are idle in between. The result goes to FOLDER/NAME.json.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import host, worker
from benchmarks.peers import image as peers
from benchmarks.peers.image_job import Job


def _rate(loader: Iterable[Any]) -> float:
    began = time.perf_counter()
    samples = sum(len(worker.samples_of(batch)) for batch in loader)
    return samples / (time.perf_counter() - began)


def measure(loaders: dict[str, Iterable[Any]], epochs: int) -> dict[str, list[float]]:
    """Return samples/s of each loader's epochs, after one to warm up."""
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    for epoch in range(epochs + 1):
        # First as they are given: workers forked after others began would inherit what those set up.
        for name in reversed(loaders) if epoch % 2 else loaders:
            rate = _rate(loaders[name])
            if epoch:
                rates[name].append(rate)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure loaders of the image job epoch by epoch in turn.")
    parser.add_argument("name", help="of the result")
    parser.add_argument("images", type=Path, help="folder of class folders of JPEGs")
    parser.add_argument("scratch", type=Path, help="where loaders keep their own form of the images")
    parser.add_argument("loaders", nargs="+", choices=sorted(peers.LOADERS))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    job = Job(arguments.images, arguments.scratch, False, arguments.workers, False)
    first = arguments.loaders[0]
    for name in arguments.loaders:
        peers.LOADERS[name].prepare(job)
    rates = measure({name: peers.LOADERS[name].make(job) for name in arguments.loaders}, arguments.epochs)
    result = {
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "revision": host.revision(),
        "host": host.describe(),
        "versions": host.versions(),
        "title": "RandomResizedCrop(224) + flip, batch 128, uint8, epochs in turn",
        "workers": arguments.workers,
        "medians": {
            name: {
                "samples_per_second": statistics.median(found),
                "ratio": statistics.median(
                    mine / other for mine, other in zip(found, rates[first], strict=True)
                ),
            }
            for name, found in rates.items()
        },
        "epochs": rates,
    }
    target = arguments.results / f"{arguments.name}.json"
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["medians"], indent=1))


if __name__ == "__main__":
    main()
