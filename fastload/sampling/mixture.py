"""Mixtures: several sources in one order, each with epochs of its own. Closed form, no table of samples."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.interleave import Interleaving
from fastload.sampling.order import ENDLESS, Order, Records
from fastload.sampling.permutation import absorb, permutation_key, permute_each
from fastload.sampling.selection import Selection
from fastload.sampling.view import Drawn
from fastload.sampling.window import Window

__all__ = ["Mixture", "MixtureOrder", "Stop"]

Int64Array = npt.NDArray[np.int64]

Stop = Literal["first_exhausted", "all_exhausted", "endless"]
"""When a mixture ends: a source has given its last record; every source has; never."""


@dataclasses.dataclass(frozen=True, eq=False)
class Mixture(Drawn):
    """Records drawn from ``parts`` in turn. Sample k of part s is of its epoch k div N, N its records.

    So each record of a part comes once in each epoch of the part. Made by :meth:`of` or :meth:`repeated`.

    >>> a, b = Selection.whole(3, source=0), Selection.whole(2, source=1)
    >>> mixture = Mixture.of([a, b], [0.5, 0.5], stop="all_exhausted")
    >>> [array.tolist() for array in mixture.locate(np.arange(len(mixture)))]
    [[0, 1, 0, 1, 0], [0, 0, 1, 1, 2]]
    """

    parts: tuple[Records, ...]
    interleaving: Interleaving
    ends: int
    names: tuple[str, ...] = ()
    stop: str = "endless"

    @classmethod
    def of(
        cls,
        parts: Sequence[Records],
        weights: Sequence[float],
        *,
        stop: Stop = "first_exhausted",
        schedule: Sequence[tuple[int, Sequence[float]]] = (),
        names: Sequence[str] = (),
    ) -> Mixture:
        """Return the mixture of ``parts`` by ``weights``, which ``schedule`` changes at some positions.

        Raises UsageError for a part without records that has a weight, and for one that ``stop`` waits for
        and that has none.
        """
        if stop not in ("first_exhausted", "all_exhausted", "endless"):
            raise UsageError(
                f"unknown stop {stop!r}", hint="use 'first_exhausted', 'all_exhausted' or 'endless'"
            )
        if len(weights) != len(parts) or not parts:
            raise UsageError(f"{len(weights)} weights for {len(parts)} sources", hint="give one weight each")
        names = tuple(names) or tuple(str(number) for number in range(len(parts)))
        interleaving = Interleaving.of(weights, schedule)
        drawn = [any(counts) for counts in zip(*interleaving.counts, strict=True)]
        for name, part, wanted in zip(names, parts, drawn, strict=True):
            if wanted and not part.count:
                raise UsageError(
                    f"source {name!r} of a mixture has no records", hint="give it weight 0, or leave it out"
                )
        ends = ENDLESS
        if stop != "endless":
            last = [
                _last(interleaving, number, parts[number].count, names[number], stop)
                for number in range(len(parts))
                if drawn[number]
            ]
            ends = min(last) if stop == "first_exhausted" else max(last)
        return cls(tuple(parts), interleaving, min(ends, ENDLESS), names, stop)

    @classmethod
    def repeated(cls, part: Records, times: int | None) -> Mixture:
        """Return ``times`` epochs of a part, each with an order of its own; None never ends."""
        count = ENDLESS if times is None else min(times * part.count, ENDLESS)
        stop = "endless" if times is None else f"{times} epochs"
        return cls((part,), Interleaving.of([1]), count, ("0",), stop)

    @property
    def count(self) -> int:
        """Samples of an epoch: ENDLESS where it never ends."""
        return self.ends

    def locate(self, entries: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of ``entries``: parts in their own order, nothing shuffled."""
        return MixtureOrder(self).locate(entries)

    def order(self, seed: int, epoch: int, *, shuffle: bool, window: Window | None = None) -> MixtureOrder:
        """Return the order of one epoch: parts begin anew, in orders that (seed, epoch, part) name."""
        return MixtureOrder(self, seed, epoch, shuffle, window)

    def digest(self) -> bytes:
        """Return 16 bytes that name the parts, the weights and where it ends."""
        sha = hashlib.sha256(f"mixture {self.sizes.tolist()} {self.ends}".encode())
        sha.update(repr((self.interleaving.starts, self.interleaving.counts)).encode())
        for part in self.parts if self.joined is None else (self.joined,):
            sha.update(part.digest())
        return sha.digest()[:16]

    def names_at(self, positions: Int64Array) -> list[str]:
        """Return the name of the part that has each of ``positions``: pads, at or beyond the count, too."""
        parts = self.interleaving.place(positions % max(1, self.count))[0]
        return [self.names[part] for part in parts.tolist()]

    def renumbered(self, numbers: Sequence[int]) -> Mixture:
        """Return the mixture with source s called ``numbers[s]``."""
        return dataclasses.replace(self, parts=tuple(part.renumbered(numbers) for part in self.parts))

    def source_counts(self, sources: int) -> Int64Array:
        """Return how many records of each source the parts hold."""
        counts = [part.source_counts(sources) for part in self.parts]
        total: Int64Array = np.sum(counts, axis=0, dtype=np.int64)
        return total

    def chunks(self, shard_starts: Sequence[Int64Array]) -> Int64Array:
        """Return where shards begin in the lines of the parts, one part after another."""
        lines = [part.chunks(shard_starts) for part in self.parts]
        return np.concatenate([line + low for line, low in zip(lines, self.lines.tolist(), strict=False)])

    @property
    def span(self) -> int:
        """The length of the line that ``chunks`` divides."""
        return int(self.lines[-1])

    @functools.cached_property
    def lines(self) -> Int64Array:
        """Where the line of each part begins, and the last one's end."""
        return np.cumsum([0, *(part.span for part in self.parts)], dtype=np.int64)

    def describe(self) -> str:
        """Return in words what is mixed, how, and where it ends."""
        counts = self.interleaving.counts[0]
        shares = [
            f"{name} {100 * count / sum(counts):.4g}%" for name, count in zip(self.names, counts, strict=True)
        ]
        more = [f"… {len(shares) - 8:,} more"] if len(shares) > 8 else []
        changes = len(self.interleaving.starts) - 1
        changing = f", changing {changes} times" if changes else ""
        return f"{', '.join(shares[:8] + more)}{changing}; stop: {self.stop}"

    @functools.cached_property
    def joined(self) -> Selection | None:
        """All parts one after another, if they are plain selections: located at once."""
        selections = [part for part in self.parts if isinstance(part, Selection)]
        return Selection.joined(selections) if len(selections) == len(self.parts) else None

    @functools.cached_property
    def sizes(self) -> Int64Array:
        """How many records each part has."""
        return np.array([part.count for part in self.parts], np.int64)

    @functools.cached_property
    def widths(self) -> npt.NDArray[np.uint8]:
        """How many bits number the records of each part."""
        return np.array([int(size).bit_length() for size in (self.sizes - 1).tolist()], np.uint8)

    @functools.cached_property
    def offsets(self) -> Int64Array:
        """Where each part begins in ``joined``."""
        return np.cumsum(self.sizes) - self.sizes


def _last(interleaving: Interleaving, part: int, records: int, name: str, stop: str) -> int:
    """Return how many positions there are up to the last record of a part."""
    if records >= ENDLESS:
        return ENDLESS
    found = interleaving.reach(part, records)
    if found is not None:
        return found
    if stop == "first_exhausted":
        return ENDLESS
    raise UsageError(
        f"source {name!r} of a mixture keeps weight 0 before all its records came, so that it never ends",
        hint="use stop='first_exhausted' or 'endless'",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class MixtureOrder:
    """One epoch of a mixture. Part s in its epoch e is ordered by seed (seed, epoch, s) and epoch e.

    A ``window`` is shared out among the parts by their records.
    """

    mixture: Mixture
    seed: int = 0
    epoch: int = 0
    shuffle: bool = False
    window: Window | None = None
    _orders: dict[tuple[int, int], Order] = dataclasses.field(default_factory=dict, repr=False)

    @property
    def count(self) -> int:
        """Positions of the epoch, without pads; ENDLESS where it never ends."""
        return self.mixture.count

    @functools.cached_property
    def _seeds(self) -> npt.NDArray[np.uint64]:
        parts = np.arange(len(self.mixture.parts))
        return absorb(np.full(len(parts), permutation_key(self.seed, self.epoch), np.uint64), parts)

    @functools.cached_property
    def _keys(self) -> npt.NDArray[np.uint64]:
        return absorb(np.zeros(len(self._seeds), np.uint64), self._seeds)

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records), int64, of the samples at ``positions``, each in [0, count)."""
        mixture = self.mixture
        parts, samples = mixture.interleaving.place(positions)
        sizes = mixture.sizes[parts]
        epochs, entries = np.divmod(samples, sizes) if len(samples) else (samples, samples)
        if mixture.joined is None or (self.shuffle and self.window is not None):
            return self._locate_each(parts, epochs, entries)
        if self.shuffle:
            by_width = np.argsort(mixture.widths[parts], kind="stable")  # permute_each is faster so
            keys = absorb(self._keys[parts], epochs)[by_width]
            shuffled = np.empty_like(entries)
            shuffled[by_width] = permute_each(entries[by_width], sizes[by_width], keys)
            entries = shuffled
        return mixture.joined.locate(mixture.offsets[parts] + entries)

    def _locate_each(
        self, parts: Int64Array, epochs: Int64Array, entries: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Locate entries of parts, one part and epoch after another."""
        sources, records = np.empty_like(entries), np.empty_like(entries)
        if not len(entries):
            return sources, records
        by_epoch = np.lexsort((epochs, parts))
        changes = (np.diff(parts[by_epoch]) != 0) | (np.diff(epochs[by_epoch]) != 0)
        for chosen in np.split(by_epoch, np.flatnonzero(changes) + 1):
            order = self._order_of(int(parts[chosen[0]]), int(epochs[chosen[0]]))
            sources[chosen], records[chosen] = order.locate(entries[chosen])
        return sources, records

    def _order_of(self, part: int, epoch: int) -> Order:
        """Return the order of a part's epoch; the latest are kept, because one with a window is a table."""
        known = self._orders.get((part, epoch))
        if known is None:
            if len(self._orders) >= 2 * len(self.mixture.parts):
                self._orders.clear()
            seed, window = int(self._seeds[part]), self._windows[part]
            known = self.mixture.parts[part].order(seed, epoch, shuffle=self.shuffle, window=window)
            self._orders[part, epoch] = known
        return known

    @functools.cached_property
    def _windows(self) -> Sequence[Window | None]:
        """Return the window of each part: its share of the whole window's records, in as many streams."""
        mixture, window = self.mixture, self.window
        if window is None:
            return [None] * len(mixture.parts)
        found = []
        lines = mixture.lines.tolist()
        for low, high in itertools.pairwise(lines):
            first, last = np.searchsorted(window.chunks, (low, high))
            chunks = window.chunks[first:last] - low
            streams = min(window.streams, 1 << max(1, len(chunks)).bit_length() - 1)
            share = window.streams * window.block * (high - low) // (max(1, lines[-1]) * streams)
            found.append(Window(streams, max(1, share), chunks))
        return found
