"""What is measured: each scenario is a job with its settings, and the loaders that take part."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.jobs.stall import LOADERS as STALL_LOADERS

Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where a run finds and keeps its data, and how many workers each loader gets.

    ``large`` is a folder of photographs of about 2,000 x 1,500 pixels.
    """

    images: Path
    large: Path
    scratch: Path
    workers: int


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One job.

    ``module`` is run with the loader's name and ``arguments``; ``metrics`` reads figures out of its result;
    ``loaders`` take part by default, ``more`` when asked for.
    """

    title: str
    module: str
    arguments: Callable[[Setting], list[str]]
    metrics: Callable[[Result], dict[str, float]]
    loaders: Sequence[str]
    more: Sequence[str] = ()
    watch_memory: bool = False

    photographs: str = ""
    """Which photographs the job reads: ``"images"``, ``"large"`` or none."""


def throughput(result: Result) -> dict[str, float]:
    """Return samples/s (median of the epochs after the first) and seconds to the first batch."""
    first, *measured = result["epochs"]
    return {
        "samples_per_second": statistics.median(epoch["samples"] / epoch["seconds"] for epoch in measured),
        "first_batch_seconds": first["first_batch_seconds"],
    }


def workers(result: Result) -> dict[str, float]:
    """Return what :func:`throughput` does, and the seconds that worker processes start and end in."""
    names = ("start_seconds", "next_epoch_seconds", "idle_shutdown_seconds", "busy_shutdown_seconds")
    return {**throughput(result), **{name: result[name] for name in names}}


def memory(result: Result) -> dict[str, float]:
    """Return peaks in bytes: unshared memory above the import of torch, and all resident memory."""
    return {name: result["memory"][name] for name in ("peak_bytes", "resident_bytes")}


def opening(result: Result) -> dict[str, float]:
    """Return seconds to open, and to have read one record as well."""
    return {name: result[name] for name in ("open_seconds", "first_record_seconds")}


def ordering(result: Result) -> dict[str, float]:
    """Return CPU seconds to a first batch in the middle of an epoch, for one more, and to permute 10^6."""
    return {name: result[name] for name in ("start_seconds", "batch_seconds", "permute_million_seconds")}


def stalls(result: Result) -> dict[str, float]:
    """Return the share of time spent in next(), and its median and 99th percentile in seconds."""
    return {name: result[name] for name in ("stall_share", "wait_p50_seconds", "wait_p99_seconds")}


def _image(
    title: str,
    *options: str,
    loaders: Sequence[str],
    more: Sequence[str] = (),
    photographs: str = "images",
    metrics: Callable[[Result], dict[str, float]] = throughput,
) -> Scenario:
    def arguments(setting: Setting) -> list[str]:
        folder = getattr(setting, photographs)
        return [str(folder), str(setting.scratch / photographs), "--workers", str(setting.workers), *options]

    return Scenario(
        title,
        "benchmarks.jobs.image",
        arguments,
        metrics,
        loaders,
        more,
        watch_memory=metrics is memory,
        photographs=photographs,
    )


def _records(size: int, count: int, batch: int) -> Callable[[Setting], list[str]]:
    def arguments(setting: Setting) -> list[str]:
        job = ["--bytes", str(size), "--count", str(count), "--batch", str(batch)]
        # An epoch of the fast loaders is over in tens of milliseconds: many of them are needed.
        return [str(setting.scratch), *job, "--workers", str(setting.workers), "--seconds", "3"]

    return arguments


def is_ours(loader: str) -> bool:
    """Say whether a loader is one of fastload's entries.

    >>> is_ours("fastload-raw"), is_ours("torch")
    (True, False)
    """
    return loader.startswith("fastload")


FASTLOAD = ("fastload", "fastload-fast")
PEERS = ("torch-tvio", "torch-pillow", "ffcv", "dali", "turboloader")
PYTHON_DATASET = (
    *("torch-pillow", "torch-pillow+1", "torch-pillow-forkserver"),
    *("fastload-processes", "fastload-threads", "fastload-threads+1"),
)
STREAMS = ("webdataset", "mds", "litdata", "grain")
RECORD_LOADERS = ("fastload", "ffcv", "torch", "torch-getitems", "turboloader", "numpy")
RECORD_MORE = ("torch-in-process", "webdataset", "mds", "litdata", "grain")

_IMAGE_JOB = "RandomResizedCrop(224) + flip, batch 128"
_LARGE_JOB = f"2,000 x 1,500 pixels, {_IMAGE_JOB}"
# An epoch of the fast ones is short.
_RAW = ("--seconds", "6")

SCENARIOS: dict[str, Scenario] = {
    "image-uint8": _image(
        f"{_IMAGE_JOB}, uint8", loaders=(*FASTLOAD, *PEERS), more=("fastload-keep", "spdl", *STREAMS)
    ),
    "image-float32": _image(
        f"{_IMAGE_JOB}, float32 normalised",
        "--f32",
        loaders=(*FASTLOAD, *PEERS),
        more=("fastload-keep", *STREAMS),
    ),
    "large-uint8": _image(
        f"{_LARGE_JOB}, uint8",
        "--seconds",
        "8",
        loaders=(*FASTLOAD, *PEERS),
        more=("fastload-keep", "spdl"),
        photographs="large",
    ),
    "raw-uint8": _image(
        f"raw pixels, 256 at most, {_IMAGE_JOB}, uint8",
        *_RAW,
        loaders=("fastload-raw", "ffcv-raw", "turboloader-raw"),
    ),
    "raw-float32": _image(
        f"raw pixels, 256 at most, {_IMAGE_JOB}, float32 normalised",
        *_RAW,
        "--f32",
        loaders=("fastload-raw", "ffcv-raw", "turboloader-raw"),
    ),
    "evaluation-uint8": _image(
        "Resize(256) + CenterCrop(224) in order, batch 128, uint8",
        "--eval",
        loaders=(*FASTLOAD, "torch-tvio", "torch-pillow", "ffcv", "dali"),
        more=("fastload-keep",),
    ),
    "scaling-uint8": _image(
        f"one worker and more, {_IMAGE_JOB}, uint8",
        *_RAW,
        loaders=("fastload-1", "fastload", "fastload-fast-1", "fastload-fast"),
        more=("fastload-raw-1", "fastload-raw", "fastload-keep-1", "fastload-keep"),
    ),
    "records-3072": Scenario(
        "3,072 B records, batch 512",
        "benchmarks.jobs.records",
        _records(3072, 50_000, 512),
        throughput,
        RECORD_LOADERS,
        RECORD_MORE,
    ),
    "records-114660": Scenario(
        "114,660 B records, batch 400",
        "benchmarks.jobs.records",
        _records(114_660, 10_000, 400),
        throughput,
        RECORD_LOADERS,
        RECORD_MORE,
    ),
    "python-records-3072": Scenario(
        "3,072 B records of a Python dataset, batch 512",
        "benchmarks.jobs.python_records",
        _records(3072, 50_000, 512),
        workers,
        ("fastload", "torch"),
    ),
    "python-records-114660": Scenario(
        "114,660 B records of a Python dataset, batch 400",
        "benchmarks.jobs.python_records",
        _records(114_660, 10_000, 400),
        workers,
        ("fastload", "torch"),
    ),
    "memory-uint8": _image(
        f"{_IMAGE_JOB}, uint8",
        loaders=("fastload", *PEERS),
        more=("fastload-fast", "fastload-raw", "ffcv-raw", "turboloader-raw", "spdl", *STREAMS),
        metrics=memory,
    ),
    "memory-float32": _image(
        f"{_IMAGE_JOB}, float32 normalised", "--f32", loaders=("fastload", *PEERS), metrics=memory
    ),
    "pillow": _image(
        f"a Python dataset that decodes with Pillow, {_IMAGE_JOB}, uint8",
        "--epochs",
        "2",
        loaders=PYTHON_DATASET,
    ),
    "pillow-memory": _image(
        f"a Python dataset that decodes with Pillow, {_IMAGE_JOB}, uint8",
        loaders=PYTHON_DATASET,
        metrics=memory,
    ),
    "stall": Scenario(
        "a step of 30 ms, and samples of which one in ten takes ten times as long, batch 32",
        "benchmarks.jobs.stall",
        lambda setting: ["--workers", str(setting.workers)],
        stalls,
        STALL_LOADERS,
    ),
    "opening-records": Scenario(
        "open 1,000,000 records and read one",
        "benchmarks.jobs.opening",
        lambda setting: [str(setting.scratch)],
        opening,
        ("records",),
    ),
    "opening-shards": Scenario(
        "open 1,000 shards and read one record",
        "benchmarks.jobs.opening",
        lambda setting: [str(setting.scratch)],
        opening,
        ("shards",),
    ),
    "order": Scenario(
        "the order of 1,000,000,000 records: start in the middle, batches of 256",
        "benchmarks.jobs.order",
        lambda setting: [],
        ordering,
        ("full", "window", "window-large", "sequential"),
    ),
}
"""Every scenario, by the name of its result file."""
