"""What an epoch asks of each rank and node, before any of it runs.

Nothing depends on how many records there are: what would take every position is counted only for small
epochs, and otherwise computed from the rule of the order or sampled, which the result says.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.sampling.order import Order
from fastload.sampling.selection import Selection
from fastload.sampling.share import Share, batches_of
from fastload.sampling.window import Window, WindowOrder

__all__ = ["Layout", "Preview", "preview"]

Int64Array = npt.NDArray[np.int64]

COUNTED_SAMPLES = 1 << 20
"""A node of at most so many samples is followed position by position."""

NODES = 8
MOMENTS = 64
SHARDS = 512
"""How many nodes, moments of the epoch and shards are looked at where there are more."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """A dataset as its shard table has it: ``chunks`` are the records at which shards begin."""

    records: int
    bytes: int
    chunks: Int64Array

    @classmethod
    def even(cls, records: int, shards: int, size: int) -> Layout:
        """Return a dataset of ``size`` bytes in shards of one size, as far as that goes.

        >>> Layout.even(10, 3, 1000).chunks.tolist()
        [0, 4, 7]
        """
        if not 0 <= shards <= records or (records and not shards):
            raise UsageError(f"{records:,} records in {shards:,} shards", hint="give each shard a record")
        numbers = np.arange(shards, dtype=np.int64)
        each, more = divmod(records, max(1, shards))
        return cls(records, size, numbers * each + np.minimum(numbers, more))

    @property
    def record_bytes(self) -> float:
        """Stored bytes of a record on average."""
        return self.bytes / max(1, self.records)

    @property
    def sizes(self) -> Int64Array:
        """The records of each shard."""
        return np.diff(self.chunks, append=self.records)


@dataclasses.dataclass(frozen=True)
class Preview:
    """An epoch's demands. Pairs are the least and the most of any rank, or of any node.

    ``pads`` are over all ranks, and counted in samples. Of the nodes looked at, the most: ``shards`` that one
    opens in the whole epoch, ``shards_at_once`` that it reads from at any moment, ``cache_bytes`` that lie
    between first being read from there and last being used, ``reads`` of stretches of consecutive records.
    ``notes`` say which of these are bounds, expectations or samples.
    """

    batches: int
    pads: int
    rank_samples: tuple[int, int]
    node_samples: tuple[int, int]
    shards: int
    shards_at_once: int
    cache_bytes: int
    reads: int
    notes: tuple[str, ...]


def preview(
    layout: Layout,
    share: Share,
    *,
    node_ranks: int | None = None,
    shuffle: bool = True,
    window: Window | None = None,
    seed: int = 0,
    epoch: int = 0,
) -> Preview:
    """Return what an epoch over ``layout`` asks of the ranks of ``share``, ``node_ranks`` of them on a node.

    >>> preview(Layout.even(1000, 10, 10**6), Share(64, world=4), node_ranks=2).node_samples
    (500, 500)
    """
    world, records = share.world, layout.records
    each = world if node_ranks is None else node_ranks
    if not 1 <= each <= world:
        raise UsageError(f"{each} ranks on a node, of {world}", hint="give 1 to as many as there are ranks")
    ranks = [dataclasses.replace(share, rank=rank).local_count(records) for rank in range(world)]
    nodes = [range(first, min(first + each, world)) for first in range(0, world, each)]
    samples = [sum(ranks[node.start : node.stop]) for node in nodes]
    full = records // share.global_batch * share.global_batch
    order = Selection.whole(records).order(seed, epoch, shuffle=shuffle, window=window)
    pattern: _Sequential | _Shuffled | _Windowed
    if not shuffle:
        pattern = _Sequential(layout, share)
    elif window is None:
        pattern = _Shuffled(layout)
    else:
        pattern = _Windowed(WindowOrder(window, records, seed, epoch), share)

    looked_at = sorted({int(number) for number in np.linspace(0, len(nodes) - 1, NODES)})
    notes: dict[str, None] = {}
    shards, at_once, kept, reads = [], [], [], []
    for number in looked_at:
        node = nodes[number]
        if samples[number] <= COUNTED_SAMPLES:
            shards.append(_counted(layout, order, share, node))
        else:
            opened, note = pattern.shards(node, samples[number])
            shards.append(opened)
            notes.update({note: None} if note else {})
        in_use, needed = pattern.at_once(node)
        at_once.append(min(in_use, shards[-1]))
        kept.append(needed)
        reads.append(min(pattern.reads(node, samples[number]), samples[number]))
    if len(looked_at) < len(nodes):
        notes[f"the most of {len(looked_at)} nodes of {len(nodes):,} that were looked at"] = None
    if isinstance(pattern, _Windowed) and pattern.shared:
        notes["shards opened, cache and reads: at most, since ranks share streams"] = None
    if pattern.sampled_moments:
        notes[f"shards at once, cache and reads: from {MOMENTS} moments of the epoch"] = None
    return Preview(
        batches=share.batch_count(records),
        pads=sum(ranks) - full - share.global_size(records, full),
        rank_samples=(min(ranks), max(ranks)),
        node_samples=(min(samples), max(samples)),
        shards=max(shards),
        shards_at_once=max(at_once),
        cache_bytes=round(max(kept) * layout.record_bytes),
        reads=max(reads),
        notes=tuple(notes),
    )


def _counted(layout: Layout, order: Order, share: Share, node: range) -> int:
    """Return how many shards a node opens, following every sample."""
    opened = np.zeros(len(layout.chunks), np.bool_)
    for rank in node:
        for batch in batches_of(order, dataclasses.replace(share, rank=rank)):
            opened[np.searchsorted(layout.chunks, batch.records, side="right") - 1] = True
    return int(opened.sum())


class _Sequential:
    """Positions are records: every global batch is a stretch of them."""

    def __init__(self, layout: Layout, share: Share) -> None:
        self._layout = layout
        self._share = share
        batches = share.batch_count(layout.records)
        self.sampled_moments = batches > MOMENTS

    def shards(self, node: range, samples: int) -> tuple[int, str]:
        batch, world = self._share.global_batch, self._share.world
        begins, sizes = self._layout.chunks, self._layout.sizes
        small = np.flatnonzero(sizes < 2 * world)  # in any larger one every rank has a record
        looked_at = small[:: max(1, len(small) // SHARDS)]
        touched = 0
        for shard in looked_at.tolist():
            ranks = (begins[shard] + np.arange(sizes[shard])) % batch % world
            touched += bool(((ranks >= node.start) & (ranks < node.stop)).any())
        opened = len(sizes) - len(small) + round(touched * len(small) / max(1, len(looked_at)))
        note = f"shards opened: from {len(looked_at):,} of {len(small):,} small shards"
        return opened, note if len(looked_at) < len(small) else ""

    def at_once(self, node: range) -> tuple[int, float]:
        records, batch = self._layout.records, self._share.global_batch
        batches = self._share.batch_count(records)
        firsts = np.unique(np.linspace(0, max(0, batches - 1), MOMENTS).astype(np.int64)) * batch
        ends = np.minimum(firsts + batch, records)
        low = np.searchsorted(self._layout.chunks, firsts, side="right")
        return int((np.searchsorted(self._layout.chunks, ends, side="left") - low + 1).max()), 0.0

    def reads(self, node: range, samples: int) -> int:
        if len(node) == self._share.world:
            return len(self._layout.chunks)
        return -(-samples // len(node))  # as many records in a row as there are ranks on the node


class _Shuffled:
    """Any record may be next: every shard stays in use, every record is a read."""

    sampled_moments = False

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def shards(self, node: range, samples: int) -> tuple[int, str]:
        missed = np.exp(samples * np.log1p(-self._layout.sizes / self._layout.records))
        opened = round(float(len(missed) - missed.sum()))
        return opened, "shards opened: the number to be expected" if opened < len(missed) else ""

    def at_once(self, node: range) -> tuple[int, float]:
        return len(self._layout.chunks), float(self._layout.records)

    def reads(self, node: range, samples: int) -> int:
        return samples


class _Windowed:
    """Each stream goes through its own piece of the line of shards, block by block."""

    def __init__(self, order: WindowOrder, share: Share) -> None:
        self._order = order
        self._share = share
        self._blocks = -(-int(order.piece_sizes.max()) // order.window.block)
        self.sampled_moments = self._blocks > MOMENTS

    def _streams(self, node: range) -> Int64Array:
        """Return the streams that a node has records of."""
        streams = np.arange(self._order.window.streams)
        return streams[np.isin(streams % self._classes(), np.array(node) % self._classes())]

    @property
    def shared(self) -> bool:
        """Whether several ranks take from one stream."""
        return self._classes() < self._share.world

    def _classes(self) -> int:
        """Return in how many classes the streams fall of which a rank has one."""
        return math.gcd(self._share.world, self._order.window.streams, self._share.global_batch)

    def shards(self, node: range, samples: int) -> tuple[int, str]:
        streams = self._streams(node)
        starts, sizes = self._order.piece_starts[streams], self._order.piece_sizes[streams]
        opened = self._stretches(starts, sizes)[0]
        return opened, ""

    def _stretches(self, starts: Int64Array, sizes: Int64Array) -> tuple[int, int]:
        """Return how many shards these parts of the line touch, and in how many stretches of records."""
        order = np.argsort(starts[sizes > 0])
        begins, ends = starts[sizes > 0][order], (starts + sizes)[sizes > 0][order] - 1
        first, last = self._order.chunks_at(begins), self._order.chunks_at(ends)
        stretches = int((last - first + 1).sum())
        return stretches - int((first[1:] == last[:-1]).sum()), stretches

    def _moments(self, node: range) -> Iterator[tuple[int, int, int]]:
        """Yield how many shards are in use, stretches read and records held in blocks of the epoch."""
        streams, block = self._streams(node), self._order.window.block
        starts, sizes = self._order.piece_starts[streams], self._order.piece_sizes[streams]
        for number in np.unique(np.linspace(0, self._blocks - 1, MOMENTS).astype(np.int64)).tolist():
            held = np.clip(sizes - number * block, 0, block)
            yield (*self._stretches(starts + number * block, held), int(held.sum()))

    def at_once(self, node: range) -> tuple[int, float]:
        moments = list(self._moments(node))
        return max(shards for shards, _, _ in moments), float(max(held for _, _, held in moments))

    def reads(self, node: range, samples: int) -> int:
        stretches = [stretches for _, stretches, _ in self._moments(node)]
        return round(sum(stretches) / len(stretches) * self._blocks)
