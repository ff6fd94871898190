"""A sequence of records out of one or more sources, as views of datasets are made of."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fastload.sampling.order import EpochOrder
from fastload.sampling.permutation import permutation_key, permute
from fastload.sampling.window import Window

__all__ = ["Selection", "normalised"]

Int64Array = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class _Piece:
    """Entries ``start``, ``start + step``, … (``count`` of them).

    Entries are records of ``source``; if ``source`` is -1, places in the selection's list of picks; below
    that places in its shuffled selection number -2 - ``source``.
    """

    source: int
    start: int
    step: int
    count: int

    def cut(self, first: int, step: int, count: int) -> _Piece:
        return _Piece(self.source, self.start + self.step * first, self.step * step, count)

    def moved(self, picks: int, shuffles: int) -> _Piece:
        """Return the piece where lists and shuffles come behind so many picks and shuffles."""
        if self.source == _LISTED:
            return dataclasses.replace(self, start=self.start + picks)
        if self.source <= _SHUFFLED:
            return dataclasses.replace(self, source=self.source - shuffles)
        return self

    def crossings(self, starts: Int64Array) -> Int64Array:
        """Return 0 and the entries whose record is of another shard than that of the entry before."""
        last = self.start + self.step * (self.count - 1)
        low, high = sorted((self.start, last))
        # The first record of every shard but the one that has ``low``.
        begins = starts[slice(*np.searchsorted(starts, (low + 1, high + 1)))]
        if self.step > 0:
            entries = -((self.start - begins) // self.step)
        else:
            entries = (begins - self.start) // self.step + 1
        return np.unique(np.concatenate([np.zeros(1, np.int64), entries]))


_LISTED = -1
_SHUFFLED = -2
_VIEW = 0x76696577
"""Keeps the permutation of a view apart from that of an epoch: "view" in ASCII."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Shuffled:
    """The entries of a selection in the order of a keyed permutation."""

    inner: Selection
    seed: int

    def locate(self, places: Int64Array) -> tuple[Int64Array, Int64Array]:
        key = permutation_key(self.seed, _VIEW)
        return self.inner.locate(permute(places, self.inner.count, key, 0))


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """A sequence of (source, record) pairs: ranges stay ranges, also of a shuffle; lists become arrays.

    It slices, takes and concatenates as Python lists do, without copying what is behind it. Its memory is
    a few numbers for each contiguous piece, and 12 bytes for each entry picked by a list.

    >>> whole = Selection.whole(10)
    >>> (whole[2:8:2] + whole.take(np.array([9, 9])))[::-1].records().tolist()
    [9, 9, 6, 4, 2]
    """

    pieces: tuple[_Piece, ...]
    picked_sources: npt.NDArray[np.int32]
    picked_records: Int64Array
    shuffles: tuple[_Shuffled, ...] = ()
    _offsets: Int64Array = dataclasses.field(init=False, repr=False)
    _table: Int64Array = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        pieces = tuple(piece for piece in self.pieces if piece.count)
        object.__setattr__(self, "pieces", pieces)
        counts = np.array([piece.count for piece in pieces], dtype=np.int64)
        object.__setattr__(self, "_offsets", np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
        table = np.array([(p.source, p.start, p.step) for p in pieces], dtype=np.int64).reshape(-1, 3)
        object.__setattr__(self, "_table", table)

    @classmethod
    def whole(cls, count: int, source: int = 0) -> Selection:
        """Return all ``count`` records of a source, in order."""
        return cls((_Piece(source, 0, 1, count),), np.empty(0, np.int32), np.empty(0, np.int64))

    @classmethod
    def listed(cls, sources: Int64Array, records: Int64Array) -> Selection:
        """Return a selection of these records of these sources, copied: 12 bytes each."""
        piece = _Piece(_LISTED, 0, 1, len(records))
        return cls((piece,), sources.astype(np.int32), np.array(records))

    @classmethod
    def joined(cls, parts: Sequence[Selection]) -> Selection:
        """Return the entries of all ``parts``, one after another; a list that parts share is kept once."""
        pieces: list[_Piece] = []
        lists: dict[int, tuple[int, Selection]] = {}
        shuffles: list[_Shuffled] = []
        length = 0
        for part in parts:
            if id(part.picked_records) not in lists:
                lists[id(part.picked_records)] = (length, part)
                length += len(part.picked_records)
            shift = lists[id(part.picked_records)][0]
            pieces += [piece.moved(shift, len(shuffles)) for piece in part.pieces]
            shuffles += part.shuffles
        empty = [cls.whole(0)]
        return cls(
            tuple(pieces),
            np.concatenate([part.picked_sources for part in [*(one for _, one in lists.values()), *empty]]),
            np.concatenate([part.picked_records for part in [*(one for _, one in lists.values()), *empty]]),
            tuple(shuffles),
        )

    def __len__(self) -> int:
        return int(self._offsets[-1])

    @property
    def count(self) -> int:
        """Entries: what len() gives."""
        return int(self._offsets[-1])

    @property
    def span(self) -> int:
        """The length of the line that ``chunks`` divides: all entries."""
        return self.count

    def shuffled(self, seed: int) -> Selection:
        """Return the entries in another order, a function of ``seed``, in constant memory.

        >>> view = Selection.whole(10).shuffled(0)
        >>> view.records().tolist(), view[2:4].records().tolist()
        ([5, 1, 4, 9, 6, 7, 3, 0, 8, 2], [4, 9])
        """
        piece = _Piece(_SHUFFLED, 0, 1, self.count)
        return Selection((piece,), np.empty(0, np.int32), np.empty(0, np.int64), (_Shuffled(self, seed),))

    def locate(self, indices: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (sources, records) of the entries at ``indices``, each in [0, len): two int64 arrays."""
        if len(self.pieces) == 1:
            piece = self.pieces[0]
            entries = indices if (piece.start, piece.step) == (0, 1) else piece.start + piece.step * indices
            if piece.source == _LISTED:
                return self.picked_sources[entries].astype(np.int64), self.picked_records[entries]
            if piece.source <= _SHUFFLED:
                return self.shuffles[_SHUFFLED - piece.source].locate(entries)
            return np.full(len(indices), piece.source, dtype=np.int64), entries
        if not len(indices):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        numbers = np.searchsorted(self._offsets, indices, side="right") - 1
        sources, starts, steps = self._table[numbers].T
        entries = starts + steps * (indices - self._offsets[numbers])
        sources = np.ascontiguousarray(sources)
        special = sources < 0
        if special.any():
            for kind in np.unique(sources[special]).tolist():
                chosen = sources == kind
                places = entries[chosen]
                if kind == _LISTED:
                    found = self.picked_sources[places].astype(np.int64), self.picked_records[places]
                else:
                    found = self.shuffles[_SHUFFLED - kind].locate(places)
                sources[chosen], entries[chosen] = found
        return sources, entries

    def order(self, seed: int, epoch: int, *, shuffle: bool, window: Window | None = None) -> EpochOrder:
        """Return the order of one epoch over the entries, each once."""
        return EpochOrder(self, seed, epoch, shuffle, window)

    def source_counts(self, sources: int) -> Int64Array:
        """Return how many entries are of each of ``sources`` sources; for a part of a shuffle, on average."""
        counts = np.zeros(sources, np.int64)
        for piece in self.pieces:
            if piece.source == _LISTED:
                picks = piece.start + piece.step * np.arange(piece.count)
                counts += np.bincount(self.picked_sources[picks], minlength=sources)
            elif piece.source <= _SHUFFLED:
                inner = self.shuffles[_SHUFFLED - piece.source].inner
                counts += np.rint(inner.source_counts(sources) * (piece.count / inner.count)).astype(np.int64)
            else:
                counts[piece.source] += piece.count
        return counts

    def chunks(self, shard_starts: Sequence[Int64Array]) -> Int64Array:
        """Return the entries at which shards begin, ascending from 0: int64.

        ``shard_starts[s]`` are the records at which shards of source s begin, and its number of records.
        A list of picks or a shuffle, which may be of any shards, is cut evenly into pieces of a shard's mean
        records.

        >>> Selection.whole(30)[5::2].chunks([np.array([0, 10, 20, 30])]).tolist()
        [0, 3, 8]
        """
        shards = max(1, sum(len(starts) - 1 for starts in shard_starts))
        mean = max(1, sum(int(starts[-1]) for starts in shard_starts) // shards)
        found = []
        for piece, offset in zip(self.pieces, self._offsets.tolist(), strict=False):
            if piece.source < 0:
                begins = np.arange(0, piece.count, mean, dtype=np.int64)
            else:
                begins = piece.crossings(shard_starts[piece.source])
            found.append(begins + offset)
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def records(self) -> Int64Array:
        """Return the records of all entries, without their sources, as an int64 array."""
        return self.locate(np.arange(len(self), dtype=np.int64))[1]

    def __getitem__(self, key: slice) -> Selection:
        wanted = range(*key.indices(len(self)))
        if not wanted:
            return dataclasses.replace(self, pieces=())
        ascending = wanted if wanted.step > 0 else wanted[::-1]
        pieces = []
        for number, piece in enumerate(self.pieces):
            low, high = int(self._offsets[number]), int(self._offsets[number + 1])
            first = ascending.start + max(0, -(-(low - ascending.start) // ascending.step)) * ascending.step
            count = len(range(first, min(high, ascending.stop), ascending.step))
            pieces.append(piece.cut(first - low, ascending.step, count))
        if wanted.step < 0:
            pieces = [p.cut(p.count - 1, -1, p.count) for p in reversed(pieces)]
        return dataclasses.replace(self, pieces=tuple(pieces))

    def normalise(self, indices: Sequence[int] | npt.ArrayLike) -> Int64Array:
        """Return user-given indices (negative ones count from the end) as int64 in [0, len).

        Raises IndexError for one out of range, TypeError for what is no list of integers.
        """
        return normalised(indices, self.count)

    def take(self, indices: Int64Array) -> Selection:
        """Return the entries at ``indices``, in that order; each in [0, len)."""
        # The caller may change its list later; what was selected must not change with it.
        return Selection.listed(*self.locate(indices))

    def __add__(self, other: Selection) -> Selection:
        if not isinstance(other, Selection):
            return NotImplemented
        return Selection.joined([self, other])

    def renumbered(self, numbers: Sequence[int]) -> Selection:
        """Return the selection with source s called ``numbers[s]``."""
        pieces = tuple(
            piece if piece.source < 0 else dataclasses.replace(piece, source=numbers[piece.source])
            for piece in self.pieces
        )
        picked = np.asarray(numbers, np.int32)[self.picked_sources]
        shuffles = tuple(_Shuffled(one.inner.renumbered(numbers), one.seed) for one in self.shuffles)
        return Selection(pieces, picked, self.picked_records, shuffles)

    def digest(self) -> bytes:
        """Return 16 bytes that name the sequence as it is stored: equal for selections made the same way."""
        sha = hashlib.sha256(repr(self.pieces).encode())
        sha.update(np.ascontiguousarray(self.picked_sources, "<i4").tobytes())
        sha.update(np.ascontiguousarray(self.picked_records, "<i8").tobytes())
        for shuffled in self.shuffles:
            sha.update(f"shuffled {shuffled.seed}".encode() + shuffled.inner.digest())
        return sha.digest()[:16]


def normalised(indices: Sequence[int] | npt.ArrayLike, count: int) -> Int64Array:
    """Return user-given indices (negative ones count from the end) as int64 in [0, ``count``).

    Raises IndexError for one out of range, TypeError for what is no list of integers.
    """
    array = np.asarray(indices)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"indices must be a list of integers, not {array.dtype} of {array.ndim} dimensions")
    array = array.astype(np.int64, copy=False)
    if len(array) and (int(array.min()) < 0 or int(array.max()) >= count):
        outside = (array < -count) | (array >= count)
        if outside.any():
            wrong = int(array[outside][0])
            raise IndexError(f"index {wrong} is out of range: the dataset has {count:,} records")
        array = np.where(array < 0, array + count, array)
    return array
