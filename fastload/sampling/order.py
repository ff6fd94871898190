"""The order of an epoch as a pure function of a seed, an epoch and a position."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fastload.sampling.permutation import permute
from fastload.sampling.window import Window, WindowOrder

__all__ = ["ENDLESS", "EpochOrder", "Indices", "Order", "Records"]

Int64Array = npt.NDArray[np.int64]

ENDLESS = 1 << 62
"""The count of an order that never ends."""


class Indices(NamedTuple):
    """One batch: three int64 arrays of one length.

    ``positions`` number the samples in the epoch's global order; one at or beyond the epoch's count is a
    pad, a repeated record that only evens the ranks out.
    """

    positions: Int64Array
    sources: Int64Array
    records: Int64Array


class Order(Protocol):
    """One epoch's global order: which record is at which position. A pure function."""

    @property
    def count(self) -> int:
        """Positions of the epoch, without pads; ENDLESS where it never ends."""

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of the samples at ``positions``, each in [0, count)."""


class Records(Protocol):
    """What a dataset holds, in its own order: entry i is ``ds[i]``."""

    @property
    def count(self) -> int:
        """Entries: ENDLESS where they never end."""

    def __len__(self) -> int: ...

    def locate(self, entries: Int64Array, /) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of ``entries``, each in [0, count)."""

    def digest(self) -> bytes:
        """Return 16 bytes that name the records and their order."""

    def order(self, seed: int, epoch: int, *, shuffle: bool, window: Window | None = None) -> Order:
        """Return the order of one epoch over them."""

    def normalise(self, indices: Sequence[int] | npt.ArrayLike) -> Int64Array:
        """Return user-given indices (negative ones count from the end) as int64 in [0, count)."""

    def __getitem__(self, key: slice, /) -> Records: ...

    def take(self, indices: Int64Array) -> Records:
        """Return the entries at ``indices``, in that order; each in [0, count)."""

    def renumbered(self, numbers: Sequence[int]) -> Records:
        """Return the same with source s called ``numbers[s]``."""

    def source_counts(self, sources: int) -> Int64Array:
        """Return how many records of each of ``sources`` sources may be met."""

    def chunks(self, shard_starts: Sequence[Int64Array]) -> Int64Array:
        """Return where shards begin in a line of ``span`` places, ascending from 0: what a Window takes.

        Entries of a selection are these places; other records have those of what they are drawn from.
        """

    @property
    def span(self) -> int:
        """The length of the line that ``chunks`` divides."""


class _Located(Protocol):
    def __len__(self) -> int: ...
    def locate(self, entries: Int64Array, /) -> tuple[Int64Array, Int64Array]: ...


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """One epoch over ``records``, each of them once.

    Position p is entry p without ``shuffle``; with it entry ``permute(p)`` or, within a ``window``, what
    :class:`fastload.sampling.window.WindowOrder` says.

    >>> from fastload.sampling import Selection
    >>> EpochOrder(Selection.whole(3)).locate(np.array([2, 0]))[1].tolist()
    [2, 0]
    """

    records: _Located
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    window: Window | None = None

    @property
    def count(self) -> int:
        """Positions of the epoch, without pads."""
        return len(self.records)

    @functools.cached_property
    def _within(self) -> WindowOrder | None:
        if self.window is None or not self.shuffle:
            return None
        return WindowOrder(self.window, self.count, self.seed, self.epoch)

    def entries(self, positions: Int64Array) -> Int64Array:
        """Return which entries of the records are at ``positions``, each in [0, count)."""
        if not self.shuffle:
            return positions
        if self._within is not None:
            return self._within.entries(positions)
        return permute(positions, self.count, self.seed, self.epoch)

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of the samples at ``positions``, each in [0, count)."""
        return self.records.locate(self.entries(positions))
