"""Who takes which positions of an epoch: global batches first, then each rank's share of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.order import Indices, Order

__all__ = ["Share", "batches_of"]

Int64Array = npt.NDArray[np.int64]

_BLOCK = 4096
"""Positions located at once: array operations then cost next to nothing per batch."""


@dataclasses.dataclass(frozen=True)
class Share:
    """Which positions one rank takes, batch by batch.

    Global batch g is positions [start + g B, start + (g + 1) B), B being ``global_batch``; rank r of W
    takes start + g B + r, then every W-th. Where W does not divide B, rank sizes differ by at most one.
    With ``blocks`` it takes as many side by side instead, ranks one after another: what frameworks that put
    the ranks' results behind each other take for the order of the records.

    ``tail`` says what becomes of the last batch where it is not full and W does not divide it: ``"pad"``
    adds positions from ``count`` on, which repeat the order's beginning, ``"drop"`` leaves some out,
    ``"uneven"`` gives some ranks one more. ``drop_last`` leaves out a last batch of less than B positions.
    Every rank gets the same number of batches, but for ``"uneven"``, where a rank's last may be missing.

    >>> [batch.tolist() for batch in Share(4, rank=1, world=2).batches(count=7)]
    [[1, 3], [5, 7]]
    """

    global_batch: int
    rank: int = 0
    world: int = 1
    tail: Literal["pad", "drop", "uneven"] = "pad"
    drop_last: bool = False
    blocks: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank {self.rank} is not in [0, {self.world})")
        if self.tail not in ("pad", "drop", "uneven"):
            raise UsageError(f"unknown tail {self.tail!r}", hint="use 'pad', 'drop' or 'uneven'")
        if self.global_batch < self.world:
            raise UsageError(
                f"a global batch of {self.global_batch} samples for {self.world} ranks",
                hint="every rank needs one at least: make the batch larger",
            )

    def batches(self, count: int, start: int = 0) -> Iterator[Int64Array]:
        """Yield this rank's positions (int64) of each batch from position ``start`` of ``count`` on.

        Those at or beyond ``count`` are pads: the sample at (position mod count) again.
        """
        size = self.global_batch
        full = max(0, count - start) // size
        steps = self._steps(size)
        for number in range(full):
            yield steps + (start + number * size)
        last = start + full * size
        taken = self._last_size(count - last)
        if taken > self.rank:
            yield self._steps(taken) + last

    def _steps(self, taken: int) -> Int64Array:
        """Return which of ``taken`` positions this rank takes."""
        if not self.blocks:
            return np.arange(self.rank, taken, self.world, dtype=np.int64)
        each, over = divmod(taken, self.world)
        low = self.rank * each + min(self.rank, over)
        return np.arange(low, low + self._of_rank(taken), dtype=np.int64)

    def _last_size(self, left: int) -> int:
        """Return how many positions, pads included, all ranks take of a last batch of ``left``."""
        if left <= 0 or self.drop_last:
            return 0
        if self.tail == "uneven":
            return left
        return (left // self.world if self.tail == "drop" else -(-left // self.world)) * self.world

    def batch_count(self, count: int, start: int = 0) -> int:
        """Return how many batches :meth:`batches` gives."""
        full, left = divmod(max(0, count - start), self.global_batch)
        return full + (self._last_size(left) > self.rank)

    def local_count(self, count: int, start: int = 0) -> int:
        """Return how many samples this rank gets from position ``start`` on, pads included."""
        full, left = divmod(max(0, count - start), self.global_batch)
        return full * self._of_rank(self.global_batch) + self._of_rank(self._last_size(left))

    def _of_rank(self, taken: int) -> int:
        return max(0, -(-(taken - self.rank) // self.world))

    def global_size(self, count: int, first: int) -> int:
        """Return how many samples all ranks together get of the batch that begins at ``first``.

        Pads are not counted.
        """
        left = count - first
        return self.global_batch if left >= self.global_batch else min(max(0, left), self._last_size(left))


def batches_of(order: Order, share: Share, start: int = 0) -> Iterator[Indices]:
    """Yield one rank's batches of an epoch from position ``start`` on.

    >>> from fastload.sampling import Selection
    >>> order = Selection.whole(5).order(0, 0, shuffle=False)
    >>> [batch.records.tolist() for batch in batches_of(order, Share(4, rank=1, world=2))]
    [[1, 3], [0]]
    """
    count = order.count
    waiting: list[Int64Array] = []
    size = 0
    for positions in share.batches(count, start):
        waiting.append(positions)
        size += len(positions)
        if size >= _BLOCK:
            yield from _located(order, waiting)
            waiting, size = [], 0
    yield from _located(order, waiting)


def _located(order: Order, batches: list[Int64Array]) -> Iterator[Indices]:
    if not batches:
        return
    positions = np.concatenate(batches)
    count = order.count
    sources, records = order.locate(positions % count if positions[-1] >= count else positions)
    low = 0
    for batch in batches:
        high = low + len(batch)
        yield Indices(batch, sources[low:high], records[low:high])
        low = high
