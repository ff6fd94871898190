"""The order of an epoch as a pure function of a seed, an epoch and a position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.permutation import permute
from fastload.sampling.selection import Selection

__all__ = ["EpochOrder", "Indices"]

Int64Array = npt.NDArray[np.int64]

_BLOCK = 4096
"""Indices computed at once: array operations then cost next to nothing per batch."""


class Indices(NamedTuple):
    """One batch: three int64 arrays of one length.

    ``positions`` number the samples in the epoch's global order; one at or beyond the epoch's count is a
    pad, a repeated record that only evens the ranks out.
    """

    positions: Int64Array
    sources: Int64Array
    records: Int64Array


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """One epoch over ``selection``: global order first, then this rank's share of it.

    Position p of the epoch is entry ``permute(p)`` of the selection (p itself without ``shuffle``). Rank r
    of W takes positions start + r, start + r + W, …, so that the global batches are the same for any W.

    ``tail`` says what becomes of the positions that W does not divide: ``"pad"`` repeats records from the
    order's beginning to fill them up, ``"drop"`` leaves them out, ``"uneven"`` gives some ranks one more.

    >>> order = EpochOrder(Selection.whole(5), shuffle=True, rank=1, world=2)
    >>> [batch.positions.tolist() for batch in order.batches(2)]
    [[1, 3], [5]]
    """

    selection: Selection
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    rank: int = 0
    world: int = 1
    tail: Literal["pad", "drop", "uneven"] = "pad"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank {self.rank} is not in [0, {self.world})")

    @property
    def count(self) -> int:
        """Samples of the whole epoch, over all ranks, without pads."""
        return len(self.selection)

    def local_count(self, start: int = 0) -> int:
        """Return how many samples this rank gets from global position ``start`` on, pads included."""
        left = max(0, self.count - start)
        if self.tail == "drop":
            return left // self.world
        if self.tail == "uneven":
            return max(0, -(-(left - self.rank) // self.world))
        return -(-left // self.world)

    def locate(self, positions: Int64Array) -> Indices:
        """Return which records the samples at ``positions`` (int64) are; pads wrap around."""
        entries = positions
        if len(positions) and self.tail == "pad" and int(positions.max()) >= self.count:
            entries = positions % self.count
        if self.shuffle:
            entries = permute(entries, self.count, self.seed, self.epoch)
        return Indices(positions, *self.selection.locate(entries))

    def batches(self, batch_size: int, *, start: int = 0, drop_last: bool = False) -> Iterator[Indices]:
        """Yield this rank's batches of ``batch_size`` samples from global position ``start`` on.

        The last one may be smaller, unless ``drop_last`` leaves it out.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}", hint="give 1 or more")
        local = self.local_count(start)
        if drop_last:
            local -= local % batch_size
        block = max(1, _BLOCK // batch_size) * batch_size
        for first in range(0, local, block):
            size = min(block, local - first)
            positions = start + self.rank + self.world * np.arange(first, first + size, dtype=np.int64)
            _, sources, records = self.locate(positions)
            for low in range(0, size, batch_size):
                high = low + batch_size
                yield Indices(positions[low:high], sources[low:high], records[low:high])
