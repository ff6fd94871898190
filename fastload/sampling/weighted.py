"""Records drawn with replacement, each as often as its weight says."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.order import Records
from fastload.sampling.permutation import absorb, permutation_key
from fastload.sampling.view import Drawn
from fastload.sampling.window import Window

__all__ = ["Weighted", "WeightedOrder"]

Int64Array = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted(Drawn):
    """``samples`` draws of entries of ``records``, with replacement, in proportion to ``weights``.

    Each draw is a function of (seed, epoch, position) alone. ``locate`` has those of seed 0, epoch 0.

    >>> from fastload.sampling import Selection
    >>> weighted = Weighted(Selection.whole(3), np.array([0.0, 1.0, 3.0]), 1000)
    >>> np.bincount(weighted.locate(np.arange(1000))[1], minlength=3).tolist()
    [0, 226, 774]
    """

    records: Records
    weights: npt.NDArray[np.float64]
    samples: int

    def __post_init__(self) -> None:
        weights = self.weights
        if weights.shape != (self.records.count,):
            raise UsageError(f"weights of shape {weights.shape} for {self.records.count:,} records")
        if self.samples < 0:
            raise UsageError(f"cannot draw {self.samples} samples")
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise UsageError("weights must be finite, and 0 or more")
        if self.samples and not weights.any():
            raise UsageError("no record has a weight above zero")

    @property
    def count(self) -> int:
        """How many samples are drawn."""
        return self.samples

    def locate(self, entries: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of ``entries``: the draws of seed 0, epoch 0."""
        return WeightedOrder(self).locate(entries)

    def order(self, seed: int, epoch: int, *, shuffle: bool, window: Window | None = None) -> WeightedOrder:
        """Return the draws of one epoch; without ``shuffle`` those of :meth:`locate`. No window applies."""
        return WeightedOrder(self, seed, epoch) if shuffle else WeightedOrder(self)

    def digest(self) -> bytes:
        """Return 16 bytes that name the records and the weights."""
        sha = hashlib.sha256(f"weighted {self.samples}".encode())
        sha.update(self.records.digest())
        sha.update(np.ascontiguousarray(self.weights, "<f8").tobytes())
        return sha.digest()[:16]

    def renumbered(self, numbers: Sequence[int]) -> Weighted:
        """Return the same of source s called ``numbers[s]``."""
        return dataclasses.replace(self, records=self.records.renumbered(numbers))

    def source_counts(self, sources: int) -> Int64Array:
        """Return how many records of each source may be drawn."""
        return self.records.source_counts(sources)

    def chunks(self, shard_starts: Sequence[Int64Array]) -> Int64Array:
        """Return the entries of the records at which shards begin."""
        return self.records.chunks(shard_starts)

    @property
    def span(self) -> int:
        """The length of the line that ``chunks`` divides."""
        return self.records.span

    def describe(self) -> str:
        """Return in words what it is."""
        return f"drawn with replacement from {self.records.count:,} by weight"

    @functools.cached_property
    def sums(self) -> npt.NDArray[np.float64]:
        """The running sum of the weights: draw x in [0, 1) is the first entry whose sum is above x total."""
        return np.cumsum(self.weights)

    @functools.cached_property
    def _last(self) -> int:
        return int(np.flatnonzero(self.weights)[-1])

    @functools.cached_property
    def _guide(self) -> Int64Array:
        """For each of as many equal parts of [0, 1) as there are records, no later entry than its draws."""
        edges = np.arange(len(self.sums)) / len(self.sums) * self.sums[-1] * (1 - 1e-12)
        found: Int64Array = np.searchsorted(self.sums, edges, side="right")
        return found

    def entries(self, uniform: npt.NDArray[np.float64]) -> Int64Array:
        """Return the entries that draws in [0, 1) choose."""
        sums, wanted = self.sums, uniform * self.sums[-1]
        entries = self._guide[(uniform * len(sums)).astype(np.int64)]
        for _ in range(_STEPS):
            entries += (sums[entries] <= wanted) & (entries < self._last)
        left = np.flatnonzero((sums[entries] <= wanted) & (entries < self._last))
        entries[left] = np.searchsorted(sums, wanted[left], side="right")
        return np.minimum(entries, self._last)  # rounding may give the total itself


@dataclasses.dataclass(frozen=True, eq=False)
class WeightedOrder:
    """One epoch's draws."""

    weighted: Weighted
    seed: int = 0
    epoch: int = 0

    @property
    def count(self) -> int:
        """Positions of the epoch, without pads."""
        return self.weighted.count

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of the samples at ``positions``, each in [0, count)."""
        if not len(positions):
            return positions, positions
        keys = np.full(len(positions), permutation_key(self.seed, self.epoch, _DRAWS), np.uint64)
        uniform = (absorb(keys, positions) >> np.uint64(11)) * 2.0**-53
        return self.weighted.records.locate(self.weighted.entries(uniform))


_STEPS = 3
"""Entries looked at from the guide's on, before the whole is searched: nearly all draws need no more."""

_DRAWS = 0x77656967687464
"""Keeps these draws apart from the permutation of the same seed and epoch: the letters of "weightd"."""
