"""Records that have an order of their own: what such views share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.order import ENDLESS
from fastload.sampling.selection import Selection, normalised

__all__ = ["MAX_LISTED", "Drawn"]

Int64Array = npt.NDArray[np.int64]

MAX_LISTED = 1 << 31
"""Entries that a slice may list at most: 24 GB of numbers."""


class Drawn:
    """The base of records that are drawn from others by a rule: ``count`` entries, found by ``locate``.

    Slices and lists of them are plain selections, which list what they hold (12 bytes an entry).
    """

    @property
    def count(self) -> int:
        """Entries: ENDLESS where they never end."""
        raise NotImplementedError

    def locate(self, entries: Int64Array, /) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of ``entries``, each in [0, count)."""
        raise NotImplementedError

    def __len__(self) -> int:
        if self.count >= ENDLESS:
            raise TypeError("this mixture never ends, and has no length: take(n) gives its first n samples")
        return self.count

    def normalise(self, indices: Sequence[int] | npt.ArrayLike) -> Int64Array:
        """Return user-given indices (negative ones count from the end) as int64 in [0, count)."""
        return normalised(indices, self.count)

    def take(self, indices: Int64Array) -> Selection:
        """Return the entries at ``indices``, in that order; each in [0, count)."""
        return Selection.listed(*self.locate(indices))

    def __getitem__(self, key: slice) -> Selection:
        wanted = range(*key.indices(self.count))
        if len(wanted) > MAX_LISTED:
            raise UsageError(
                "a slice of a mixture lists its samples, and this one has too many",
                hint="mix slices of the sources, or take fewer",
            )
        return self.take(np.arange(wanted.start, wanted.stop, wanted.step, dtype=np.int64))
