"""What a process does with memory that samples have freed."""

from __future__ import annotations

import contextlib

import numpy as np

__all__ = ["keep_freed_memory"]

_LARGEST = (32 << 20) - (64 << 10)
"""About the largest block that glibc adapts to: with its header, in whole pages, it must be under 32 MiB."""


def keep_freed_memory() -> None:
    """Let this process keep up to 64 MiB that a batch's samples have freed, for those of the next batch.

    By default glibc gives back to the kernel what lies at a heap's end, and the kernel clears every page of
    it anew: for samples of 100 KB that takes several times as long as to fill them. But glibc adapts to the
    largest block that was freed: it then takes smaller ones out of its heaps, which may end in twice as much
    free memory (``M_MMAP_THRESHOLD`` in mallopt(3)). So one is freed here, untouched. Where the user's
    environment or program sets such limits, they stay; other C libraries take no notice.
    """
    with contextlib.suppress(MemoryError):  # under a limit of the address space
        np.empty(_LARGEST, np.uint8)
