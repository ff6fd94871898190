"""What a worker process does with memory that samples have freed."""

from __future__ import annotations

import ctypes
import sys

from fastload._config import malloc_is_tuned

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 64 << 20
_LARGEST = 32 << 20


def keep_freed_memory() -> bool:
    """Let this process keep up to 64 MiB that a batch's samples have freed, for those of the next batch.

    By default glibc gives it back to the kernel as soon as it lies at the heap's end, and the kernel clears
    every page of it anew: for samples of 100 KB that takes several times as long as to fill them. glibc comes
    to these very limits by itself once a block of 32 MiB was freed. Returns whether they are set: they are
    not under other C libraries, and where the user's environment sets some.
    """
    if not sys.platform.startswith("linux") or malloc_is_tuned():
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _KEPT))
