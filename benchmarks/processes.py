"""Run a job in its own process, and watch its memory and its children's."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.worker import BASELINE, RESULT

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS = 0.01


def _kilobytes(path: str, keys: tuple[str, ...]) -> int | None:
    """Return the sum of the named lines of a /proc file in kB; None where the process is gone."""
    try:
        with open(path) as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    return sum(int(words[1]) for words in lines if words and words[0].rstrip(":") in keys)


def _children(pid: int) -> list[int]:
    """Return all descendants of a process."""
    found = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            tasks = os.listdir(f"/proc/{parent}/task")
            lists = [Path(f"/proc/{parent}/task/{task}/children").read_text().split() for task in tasks]
        except OSError:
            continue
        direct = [int(child) for children in lists for child in children]
        found += direct
        waiting += direct
    return found


def private_and_shared_bytes(processes: Sequence[int]) -> int:
    """Return the anonymous and shared memory of a process and its descendants, in bytes; files are left out.

    Of several processes each page counts once: a page that n of them map counts 1/n in each (Linux's
    proportional set size).
    """
    if len(processes) == 1:
        return (_kilobytes(f"/proc/{processes[0]}/status", ("RssAnon", "RssShmem")) or 0) * 1024
    shares = (_kilobytes(f"/proc/{pid}/smaps_rollup", ("Pss_Anon", "Pss_Shmem")) for pid in processes)
    return sum(share or 0 for share in shares) * 1024


def resident_bytes(processes: Sequence[int]) -> int:
    """Return the sum of resident memory in bytes, as ``ps`` and ``top`` show it.

    Files are in it, and a page that n processes map counts n times.
    """
    return sum(_kilobytes(f"/proc/{pid}/status", ("VmRSS",)) or 0 for pid in processes) * 1024


class MemoryWatch:
    """Samples the memory of a process tree in a thread, from :meth:`baseline` on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._baseline = 0
        self._peak = 0
        self._resident = 0

    def baseline(self) -> None:
        """Take the memory of now as the zero, and begin to watch."""
        self._look()
        self._baseline = self._peak
        self._thread.start()

    def _look(self) -> None:
        processes = (self._pid, *_children(self._pid))
        self._peak = max(self._peak, private_and_shared_bytes(processes))
        self._resident = max(self._resident, resident_bytes(processes))

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._look()

    def stop(self) -> dict[str, int]:
        """End watching; return bytes: the baseline, the peak above it, and the peak of resident memory."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        return {
            "baseline_bytes": self._baseline,
            "peak_bytes": self._peak - self._baseline,
            "resident_bytes": self._resident,
        }


@dataclasses.dataclass(frozen=True)
class Failure(Exception):
    """A job that did not end with a result."""

    message: str

    def __str__(self) -> str:
        return self.message


def run_job(
    python: str, module: str, arguments: Sequence[str], *, watch_memory: bool = False, timeout: float = 900.0
) -> dict[str, Any]:
    """Run ``python -m module arguments`` and return its result, with ``memory`` where asked for.

    Raises Failure with the end of what it printed where it fails or takes longer than ``timeout`` seconds.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    watch = MemoryWatch(process.pid) if watch_memory else None
    killer = threading.Timer(timeout, lambda: os.killpg(process.pid, 9))
    killer.start()
    begin = time.perf_counter()
    result: dict[str, Any] | None = None
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if watch is not None and line.startswith(BASELINE):
                watch.baseline()
            elif line.startswith(RESULT):
                result = json.loads(line[len(RESULT) :])
                break
            else:
                said.append(line)
        if watch is not None:
            memory = watch.stop()
    finally:
        # Workers of some loaders outlive their parent; nothing of one job may disturb the next.
        killer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
    if result is None:
        took = time.perf_counter() - begin
        raise Failure(f"no result after {took:.0f} s; it ended with: {''.join(said[-12:]).strip()}")
    if watch is not None:
        result["memory"] = memory
    return result
