"""How fast a dataset loads on this machine, beside torch's DataLoader on the same records in the same run."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastload import _backend
from fastload._machine import usable_cpus
from fastload.bench.child import Request
from fastload.bench.peer import PeerData, prepare
from fastload.errors import EngineError, UsageError
from fastload.format import Manifest, SplitReader
from fastload.schema import Image
from fastload.storage import open_storage

IMAGE_RECORDS = 2000
RECORD_BYTES = 512 << 20
"""How many bytes of records without images are measured."""

CHILD_SECONDS = 300.0

Report = Callable[[int, "int | None"], None]


@dataclasses.dataclass(frozen=True)
class Measured:
    """Medians of one loader over the rounds. ``megabytes_per_second`` are of stored bytes."""

    samples_per_second: float
    batches_per_second: float
    megabytes_per_second: float
    first_batch_seconds: float
    peak_memory_bytes: float
    rounds: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What :func:`bench` found. ``ratio`` is warm samples/s over torch's; results are by name.

    The names are ``engine`` (the engine alone: the ceiling), ``warm`` (fastload's DataLoader, files in the
    page cache), ``cold`` (the same, read from the disk) and ``torch``.
    """

    dataset: str
    split: str
    records: int
    record_bytes: float
    batch_size: int
    workers: int
    seconds: float
    image_size: int | None
    host: dict[str, Any]
    peer: str
    results: dict[str, Measured]
    ratio: float | None
    notes: tuple[str, ...]


def bench(
    dataset: str | os.PathLike[str],
    *,
    split: str | None = None,
    batch_size: int = 128,
    workers: int | None = None,
    rounds: int = 3,
    seconds: float = 4.0,
    records: int | None = None,
    image_size: int = 224,
    compare: bool = True,
    report: Report = lambda _done, _total: None,
) -> Benchmark:
    """Measure a local dataset's split: each loader in turn, each time in its own process, medians of rounds.

    Images are cropped at random to ``image_size`` and flipped; other records are loaded as they are. Only
    the first ``records`` are used: at most 2,000 images, or 512 MiB of others, if not given. Raises
    UsageError for a dataset that is not local or is empty, and EngineError where a loader fails.
    """
    folder, manifest, reader = _open(dataset, split)
    record_bytes = manifest.splits[reader.name].bytes / reader.records
    has_images = any(isinstance(field, Image) for field in manifest.schema.values())
    limit = IMAGE_RECORDS if has_images else max(1, int(RECORD_BYTES / record_bytes))
    used = min(reader.records, records or max(limit, batch_size))
    request = Request(
        "loader",
        folder,
        reader.name,
        used,
        min(batch_size, used),
        usable_cpus() if workers is None else workers,
        seconds,
        image_size,
    )
    with tempfile.TemporaryDirectory(prefix="fastload-bench-") as scratch:
        peer = prepare(reader, used, Path(scratch)) if compare else None
        runs = _run_rounds(request, peer, rounds, report)
    results = {key: _median(values, record_bytes) for key, values in runs.items()}
    return Benchmark(
        dataset=os.fspath(dataset),
        split=reader.name,
        records=used,
        record_bytes=record_bytes,
        batch_size=request.batch_size,
        workers=request.workers,
        seconds=seconds,
        image_size=image_size if has_images else None,
        host=host_facts(),
        peer="" if peer is None else peer.text,
        results=results,
        ratio=_ratio(results),
        notes=_warm(folder, read=False),
    )


def _open(dataset: str | os.PathLike[str], split: str | None) -> tuple[str, Manifest, SplitReader]:
    storage = open_storage(dataset)
    folder = storage.local_path
    if folder is None:
        raise UsageError("only a local dataset can be measured", path=storage.url)
    manifest = Manifest.load(storage)
    name = "train" if split is None and "train" in manifest.splits else split
    reader = SplitReader(storage, manifest, manifest.split_name(name, storage.url), verify="first")
    if not reader.records:
        raise UsageError("the split has no records", path=storage.url)
    return folder, manifest, reader


def _ratio(results: dict[str, Measured]) -> float | None:
    if "torch" not in results:
        return None
    return results["warm"].samples_per_second / results["torch"].samples_per_second


def _run_rounds(
    request: Request, peer: PeerData | None, rounds: int, report: Report
) -> dict[str, list[dict[str, float]]]:
    """Run every loader once a round, so that what else the machine does falls on all of them."""
    requests = {
        "cold": dataclasses.replace(request, cold=True),
        "warm": request,
        "engine": dataclasses.replace(request, what="engine"),
    }
    if not hasattr(os, "posix_fadvise"):
        del requests["cold"]
    if peer is not None:
        requests["torch"] = dataclasses.replace(request, what="torch", peer=dataclasses.asdict(peer))
    total = rounds * len(requests)
    report(0, total)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in requests}
    for _ in range(rounds):
        for name, one in requests.items():
            if name != "cold":
                _warm(request.dataset, read=True)
            runs[name].append(_run_child(one))
            report(1, total)
    return runs


def _run_child(request: Request) -> dict[str, float]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "fastload.bench.child"],
            input=json.dumps(dataclasses.asdict(request)),
            capture_output=True,
            text=True,
            timeout=CHILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineError(
            f"measuring {request.what} took over {CHILD_SECONDS:g} s", hint="use fewer records"
        ) from error
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise EngineError(f"measuring {request.what} failed: {last[0]}")
    answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def _median(runs: list[dict[str, float]], record_bytes: float) -> Measured:
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return Measured(
        samples_per_second=middle["samples_per_second"],
        batches_per_second=middle["batches_per_second"],
        megabytes_per_second=middle["samples_per_second"] * record_bytes / 1e6,
        first_batch_seconds=middle["first_batch_seconds"],
        peak_memory_bytes=middle["peak_memory_bytes"],
        rounds=tuple(run["samples_per_second"] for run in runs),
    )


def _warm(folder: str, *, read: bool) -> tuple[str, ...]:
    """Read a folder's files into the page cache where they fit; return a note where they do not."""
    files = [entry for entry in os.scandir(folder) if entry.is_file()]
    size = sum(entry.stat().st_size for entry in files)
    if size > _total_memory() // 2:
        return ("the dataset does not fit into the page cache: warm is not quite warm",)
    if read:
        for entry in files:
            with open(entry.path, "rb", buffering=0) as file:
                while file.read(8 << 20):
                    pass
    return ()


def _total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 1 << 62


def host_facts() -> dict[str, Any]:
    """Return what the figures depend on: CPUs, memory, versions, and which engine runs."""
    from importlib.metadata import version

    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "cpu": model,
        "cpus": usable_cpus(),
        "memory_bytes": _total_memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "backend": _backend.name(),
    }
