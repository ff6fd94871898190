"""What the machine, and the control group that this process runs in, let it use: CPUs and memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["out_of_memory_kills", "usable_cpus", "usable_memory_bytes"]

_ROOT = "/sys/fs/cgroup"
_OWN = "/proc/self/cgroup"


def usable_cpus(root: str = _ROOT, own: str = _OWN) -> int:
    """Return how many CPUs this process may use: its affinity, and the quota of its control group.

    A quota of 1.5 CPUs counts as 2. ``root`` and ``own`` are where the kernel tells of control groups.

    >>> 1 <= usable_cpus() <= os.cpu_count()
    True
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, own, "cpu"):
        quota = _numbers(folder / "cpu.max")  # version 2: quota and period
        if not quota:
            quota = _numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us")
        if len(quota) == 2 and quota[0] > 0 and quota[1] > 0:
            cpus = min(cpus, math.ceil(quota[0] / quota[1]))
    return max(1, cpus)


def usable_memory_bytes(root: str = _ROOT, own: str = _OWN, machine: str = "/proc/meminfo") -> int | None:
    """Return how many bytes may be taken now before memory runs out, or None where nothing tells.

    It is what the kernel calls available, or what the control group's limit leaves if that is less. Pages of
    files count as free: the kernel drops them.

    >>> usable_memory_bytes() is None or usable_memory_bytes() > 0
    True
    """
    left = _named(Path(machine), "MemAvailable:")
    least = None if left is None else left * 1024
    for folder in _groups(root, own, "memory"):
        limit = _numbers(folder / "memory.max") or _numbers(folder / "memory.limit_in_bytes")
        used = _numbers(folder / "memory.current") or _numbers(folder / "memory.usage_in_bytes")
        if not limit or not used:
            continue
        pages = _named(folder / "memory.stat", "total_inactive_file")
        if pages is None:
            pages = _named(folder / "memory.stat", "inactive_file") or 0
        free = max(0, limit[0] - max(0, used[0] - pages))
        least = free if least is None else min(least, free)
    return least


def out_of_memory_kills(root: str = _ROOT, own: str = _OWN) -> int | None:
    """Return how often the kernel killed for memory in this process's control group, or None where not told.

    >>> out_of_memory_kills() is None or out_of_memory_kills() >= 0
    True
    """
    for folder in _groups(root, own, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            kills = _named(folder / name, "oom_kill")
            if kills is not None:
                return kills
    return None


def _groups(root: str, own: str, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those that it lies in."""
    for line in _text(Path(own)).splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            top = Path(root)
        elif controller in controllers.split(","):
            top = Path(root, controller)
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _numbers(path: Path) -> list[int]:
    """Return the numbers of a file's only line, none of them if one is a word ("max")."""
    try:
        return [int(word) for word in _text(path).split()]
    except ValueError:
        return []


def _named(path: Path, name: str) -> int | None:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None
