"""A shuffle that keeps near what lies near: so that few shards are open, and a node reads its own only.

docs/architecture.md specifies the order ("Shuffling within a window").
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.permutation import absorb, permutation_key, permute, permute_each

__all__ = ["Window", "WindowOrder"]

Int64Array = npt.NDArray[np.int64]

MAX_STREAMS = 1024
STREAM_BYTES = 8 << 20
"""A stream shuffles among this many bytes at least, where there is more than one."""


@dataclasses.dataclass(frozen=True)
class Window:
    """How far records wander: ``shuffle_window``, resolved for one dataset.

    ``streams`` (a power of two) and ``block`` are functions of the dataset and the window's bytes alone,
    never of ranks: each stream shuffles among ``block`` records at once. ``chunks`` are the entries at
    which shards begin, ascending from 0.

    >>> Window.resolve(64 << 20, np.arange(0, 1000, 10), count=1000, record_bytes=1 << 20)
    Window(streams=8, block=8)
    """

    streams: int
    block: int
    chunks: Int64Array = dataclasses.field(compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.streams < 1 or self.streams & self.streams - 1:
            raise UsageError(f"a window of {self.streams} streams", hint="give a power of two")
        if self.block < 1:
            raise UsageError(f"a window of blocks of {self.block} records", hint="give 1 or more")

    @classmethod
    def resolve(cls, size: int, chunks: Int64Array, *, count: int, record_bytes: float) -> Window:
        """Return the window of ``size`` bytes over ``count`` records of ``record_bytes`` bytes on average."""
        limit = max(1, min(len(chunks), size // STREAM_BYTES, MAX_STREAMS))
        streams = 1 << limit.bit_length() - 1
        block = int(size / streams / record_bytes) if record_bytes > 0 else count
        return cls(streams, max(1, min(block, count)), chunks)


class WindowOrder:
    """One epoch's order within a window: position to entry in constant time, memory of O(chunks).

    The chunks, permuted, make a line of ``count`` entries, which is cut into as many pieces as there are
    streams. Position p is the (p div streams)-th of stream p mod streams; within its piece every block of
    entries is permuted. ``piece_starts`` and ``piece_sizes`` say where on the line each stream's piece lies.
    """

    def __init__(self, window: Window, count: int, seed: int, epoch: int) -> None:
        self.window = window
        self.count = count
        chunks = window.chunks
        if count and (not len(chunks) or chunks[0] != 0 or chunks[-1] >= count):
            raise UsageError(f"the window is not of these {count:,} records", hint="take ds.window(size)")
        order = permute(np.arange(len(chunks)), len(chunks), seed, epoch)
        sizes = np.diff(chunks, append=count)[order]
        self._chunk_starts = chunks[order]
        self._chunk_places = np.cumsum(sizes) - sizes
        self._key = np.array([permutation_key(seed, epoch)], np.uint64)
        streams = window.streams
        self.piece_sizes = count // streams + (np.arange(streams) < count % streams).astype(np.int64)
        turned = _bits_reversed(streams)
        along = self.piece_sizes[turned]
        self.piece_starts = (np.cumsum(along) - along)[turned]

    def entries(self, positions: Int64Array) -> Int64Array:
        """Return the entries at ``positions``, each in [0, count): int64."""
        streams, block = self.window.streams, self.window.block
        stream = positions & streams - 1
        row = positions >> streams.bit_length() - 1
        number = row // block
        first = number * block
        counts = np.minimum(self.piece_sizes[stream] - first, block)
        keys = absorb(absorb(self._key, stream), number)
        return self.entries_at(self.piece_starts[stream] + first + permute_each(row - first, counts, keys))

    def entries_at(self, places: Int64Array) -> Int64Array:
        """Return the entries at these places of the line of permuted chunks."""
        chunks = self.chunks_at(places)
        entries: Int64Array = self._chunk_starts[chunks] + (places - self._chunk_places[chunks])
        return entries

    def chunks_at(self, places: Int64Array) -> Int64Array:
        """Return which chunks of the line, counted along it, have these places."""
        found: Int64Array = np.searchsorted(self._chunk_places, places, side="right") - 1
        return found


def _bits_reversed(count: int) -> Int64Array:
    """Return the numbers below ``count``, a power of two, with their bits in reverse.

    Ranks take streams s = r mod W; so the pieces of one rank lie side by side.
    """
    out = np.zeros(1, np.int64)
    while len(out) < count:
        out = np.concatenate([2 * out, 2 * out + 1])
    return out
