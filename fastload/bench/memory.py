"""How much memory a process and its children take beyond files that are mapped."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType

INTERVAL = 0.05


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _own_bytes(pid: int) -> int:
    """Return anonymous and shared memory, each page divided by the number of processes that share it."""
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("Pss_Anon", "Pss_Shmem"):
                total += int(value.split()[0]) * 1024
    return total


def memory_of_tree(pid: int | None = None) -> int:
    """Return the bytes of anonymous and shared memory of a process and all below it; 0 where not known."""
    waiting, total = [os.getpid() if pid is None else pid], 0
    while waiting:
        one = waiting.pop()
        total += _own_bytes(one)
        waiting += _children(one)
    return total


class MemoryWatch:
    """Watches this process's tree while the block runs; ``peak`` is the most above the block's begin."""

    def __init__(self) -> None:
        self.peak = 0
        self._begin = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def _look(self) -> None:
        self.peak = max(self.peak, memory_of_tree() - self._begin)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._look()

    def __enter__(self) -> MemoryWatch:
        self._begin = memory_of_tree()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._look()
        self._stop.set()
        self._thread.join()
