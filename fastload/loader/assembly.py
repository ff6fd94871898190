"""A batch that several worker threads make together, each some of its samples."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from fastload.loader.rows import Rows

__all__ = ["Assembly", "Regions"]

_MOST_PARTS = 16

_MAPPED = 1 << 20
"""Bytes from which on the tensor of a batch has memory of its own, which malloc does not keep afterwards."""


class Regions:
    """Memory for batches: at most so many regions are kept as were given back, for the next batches.

    >>> regions = Regions(1)
    >>> room = regions.tensor((2, 3), torch.uint8)
    >>> room.shape, regions.kept
    (torch.Size([2, 3]), 0)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[mmap.mmap] = []

    @property
    def kept(self) -> int:
        """How many regions wait for a batch."""
        return len(self._free)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor. Its memory comes back when the last view of it is gone."""
        size = math.prod(shape) * dtype.itemsize
        if size < _MAPPED or not hasattr(mmap, "MAP_ANONYMOUS"):
            return torch.empty(shape, dtype=dtype)
        try:
            region = self._free.pop()
        except IndexError:
            region = None
        if region is None or len(region) != size:
            region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        owner = np.frombuffer(region, np.uint8)  # torch's storage keeps it, and nobody else does
        weakref.finalize(owner, self._take_back, region).atexit = False
        return torch.from_numpy(owner).view(dtype).view(shape)

    def _take_back(self, region: mmap.mmap) -> None:
        if len(self._free) < self._most:
            self._free.append(region)


class Assembly:
    """The samples of a batch, in parts that workers make side by side.

    With ``regions``, which they are collated into, large tensors go to their rows as soon as they are made.
    """

    def __init__(self, round_: int, number: int, indices: Any, size: int, regions: Regions | None) -> None:
        self.round, self.number, self.indices = round_, number, indices
        self.parts = min(_MOST_PARTS, -(-size // 2))
        self.failure: tuple[int, Any] | None = None
        self._samples: list[Any] = [None] * size
        self._left = self.parts
        self._rows = None if regions is None else Rows(size, regions.tensor)
        self._lock = threading.Lock()

    def range_of(self, part: int) -> range:
        """Return the places of a part's samples."""
        size = len(self._samples)
        return range(part * size // self.parts, (part + 1) * size // self.parts)

    def put(self, place: int, sample: Any) -> None:
        """Take a sample."""
        self._samples[place] = sample if self._rows is None else self._rows.moved(place, sample)

    def fail(self, part: int, failure: Any) -> None:
        """Note what went wrong with a part. The first part's counts, as if they were made in turn."""
        with self._lock:
            if self.failure is None or part < self.failure[0]:
                self.failure = part, failure

    def needs(self, part: int) -> bool:
        """Return whether a part is still of use: no part before it failed."""
        return self.failure is None or part < self.failure[0]

    def done(self) -> bool:
        """Note that one part is done with; return whether it was the last."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def collated(self, function: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the batch, which ``function`` makes of the samples where they are not in place already."""
        samples, self._samples = self._samples, []
        return function(samples) if self._rows is None else self._rows.collated(samples, function)
