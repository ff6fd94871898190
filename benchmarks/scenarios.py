"""What is measured: each scenario is a job with its settings, and the loaders that take part."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where a run finds and keeps its data, and how many workers each loader gets."""

    images: Path
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

    @property
    def needs_images(self) -> bool:
        """Whether the job reads the folder of photographs."""
        return self.module.endswith(".image")


def throughput(result: Result) -> dict[str, float]:
    """Return samples/s (median of the epochs after the first) and seconds to the first batch."""
    first, *measured = result["epochs"]
    return {
        "samples_per_second": statistics.median(epoch["samples"] / epoch["seconds"] for epoch in measured),
        "first_batch_seconds": first["first_batch_seconds"],
    }


def memory(result: Result) -> dict[str, float]:
    """Return peak anonymous and shared memory above the import of torch, in bytes."""
    return {"peak_bytes": result["memory"]["peak_bytes"]}


def opening(result: Result) -> dict[str, float]:
    """Return seconds to open, and to have read one record as well."""
    return {name: result[name] for name in ("open_seconds", "first_record_seconds")}


def _image(*options: str) -> Callable[[Setting], list[str]]:
    def arguments(setting: Setting) -> list[str]:
        scratch = str(setting.scratch / "images")
        return [str(setting.images), scratch, "--workers", str(setting.workers), *options]

    return arguments


def _records(size: int, count: int, batch: int) -> Callable[[Setting], list[str]]:
    def arguments(setting: Setting) -> list[str]:
        job = ["--bytes", str(size), "--count", str(count), "--batch", str(batch)]
        # An epoch of the fast loaders is over in tens of milliseconds: many of them are needed.
        return [str(setting.scratch), *job, "--workers", str(setting.workers), "--seconds", "3"]

    return arguments


IMAGE_LOADERS = ("fastload", "torch-tvio", "torch-pillow", "ffcv", "dali", "turboloader")
IMAGE_MORE = ("spdl", "webdataset", "mds", "litdata", "grain", "ffcv-raw", "turboloader-raw")
RECORD_LOADERS = ("fastload", "ffcv", "torch", "torch-getitems", "turboloader", "numpy")
RECORD_MORE = ("torch-in-process", "webdataset", "mds", "litdata", "grain")

_IMAGE_JOB = "RandomResizedCrop(224) + flip, batch 128"

SCENARIOS: dict[str, Scenario] = {
    "image-uint8": Scenario(
        f"{_IMAGE_JOB}, uint8",
        "benchmarks.jobs.image",
        _image(),
        throughput,
        IMAGE_LOADERS,
        IMAGE_MORE,
    ),
    "image-float32": Scenario(
        f"{_IMAGE_JOB}, float32 normalised",
        "benchmarks.jobs.image",
        _image("--f32"),
        throughput,
        IMAGE_LOADERS,
        ("webdataset", "mds", "litdata", "grain"),
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
    "memory-uint8": Scenario(
        f"{_IMAGE_JOB}, uint8",
        "benchmarks.jobs.image",
        _image(),
        memory,
        IMAGE_LOADERS,
        IMAGE_MORE,
        watch_memory=True,
    ),
    "memory-float32": Scenario(
        f"{_IMAGE_JOB}, float32 normalised",
        "benchmarks.jobs.image",
        _image("--f32"),
        memory,
        IMAGE_LOADERS,
        watch_memory=True,
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
}
"""Every scenario, by the name of its result file."""
