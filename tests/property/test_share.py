"""Shares and orders at drawn topologies: one global order, wherever it is cut, whoever takes which part."""

from __future__ import annotations

import dataclasses
import itertools
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastload.sampling import EpochOrder, Selection, Share, Window, batches_of
from fastload.sampling.window import WindowOrder

Int64Array = npt.NDArray[np.int64]

seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 2**32 - 1)
tails = st.sampled_from(["pad", "drop", "uneven"])


@st.composite
def windows(draw: st.DrawFn, count: int) -> Window:
    inner = draw(st.lists(st.integers(1, max(1, count - 1)), max_size=12, unique=True)) if count > 1 else []
    chunks = np.array(sorted({0, *inner}) if count else [], np.int64)
    return Window(2 ** draw(st.integers(0, 5)), draw(st.integers(1, 40)), chunks)


@st.composite
def orders(draw: st.DrawFn) -> EpochOrder:
    """An order of up to 400 records: shuffled or not, within a window or not, of a view of two sources."""
    count = draw(st.integers(0, 400))
    selection = Selection.whole(count)
    if count and draw(st.booleans()):
        selection = selection[:: draw(st.sampled_from([1, 2, -1]))] + Selection.whole(
            draw(st.integers(0, 9)), 1
        )
    window = draw(st.none() | windows(len(selection)))
    return selection.order(draw(seeds), draw(epochs), shuffle=draw(st.booleans()), window=window)


@st.composite
def topologies(draw: st.DrawFn) -> tuple[int, list[int]]:
    """A global batch, and two numbers of ranks that may share it."""
    batch = draw(st.integers(1, 60))
    return batch, [draw(st.integers(1, min(batch, 9))) for _ in range(2)]


def global_batches(order: EpochOrder, share: Share, start: int = 0) -> list[list[tuple[int, int, int]]]:
    """Return all ranks' samples of every batch without pads: (position, source, record), by position."""
    ranks = [batches_of(order, dataclasses.replace(share, rank=rank), start) for rank in range(share.world)]
    out = []
    for parts in itertools.zip_longest(*ranks):
        samples = [tuple(row) for part in parts if part is not None for row in np.stack(part, 1).tolist()]
        out.append(sorted(sample for sample in samples if sample[0] < order.count))
    return out


@settings(deadline=None)
@given(orders(), topologies(), tails, st.booleans(), st.booleans())
def test_global_batches_are_the_same_at_any_topology(
    order: EpochOrder, topology: tuple[int, list[int]], tail: str, drop_last: bool, blocks: bool
) -> None:
    batch, worlds = topology
    shares = [Share(batch, 0, world, tail, drop_last, blocks) for world in worlds]  # type: ignore[arg-type]
    one, other = (global_batches(order, share) for share in shares)
    if tail == "drop":  # what the ranks do not divide is left out at the end
        one, other = (batches[: order.count // batch] for batches in (one, other))
    assert one == other
    positions = [position for samples in one for position, _, _ in samples]
    assert positions == list(range(len(positions)))
    if not drop_last and tail != "drop":
        assert len(positions) == order.count
        # Every record exactly once.
        held = zip(*(array.tolist() for array in order.records.locate(np.arange(order.count))), strict=True)
        assert sorted((s, r) for samples in one for _, s, r in samples) == sorted(held)


@settings(deadline=None)
@given(orders(), topologies(), tails, st.data())
def test_starting_in_the_middle_continues_exactly(
    order: EpochOrder, topology: tuple[int, list[int]], tail: str, data: st.DataObject
) -> None:
    batch, (before, after) = topology
    whole = global_batches(order, Share(batch, 0, before, tail))  # type: ignore[arg-type]
    done = data.draw(st.integers(0, order.count // batch))
    rest = global_batches(order, Share(batch, 0, after, tail), start=done * batch)  # type: ignore[arg-type]
    full = order.count // batch - done
    assert rest[:full] == whole[done : done + full]
    if tail != "drop":
        assert rest == whole[done:]
        other = data.draw(st.integers(after, 70))  # another batch size: the same samples, cut elsewhere
        samples = [s for b in global_batches(order, Share(other, 0, after), done * batch) for s in b]
        assert samples == [s for b in whole[done:] for s in b]


@given(st.integers(0, 300), st.integers(0, 320), topologies(), tails, st.booleans(), st.booleans())
def test_counts_and_sizes(
    count: int, start: int, topology: tuple[int, list[int]], tail: str, drop_last: bool, blocks: bool
) -> None:
    batch, (world, _) = topology
    options: Any = {"tail": tail, "drop_last": drop_last, "blocks": blocks}
    shares = [Share(batch, rank, world, **options) for rank in range(world)]
    batches = [list(share.batches(count, start)) for share in shares]
    for share, mine in zip(shares, batches, strict=True):
        assert len(mine) == share.batch_count(count, start)
        assert sum(map(len, mine)) == share.local_count(count, start)
        assert all(len(positions) for positions in mine)
    if tail != "uneven":
        assert len({len(mine) for mine in batches}) == 1
    for number in range(max(map(len, batches))):
        parts = [mine[number] for mine in batches if number < len(mine)]
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        first = start + number * batch
        together = np.concatenate(parts)
        assert not blocks or (np.diff(together) > 0).all()  # the ranks' parts, one behind the other
        together.sort()
        assert together.tolist() == list(range(first, first + len(together)))
        assert int((together < count).sum()) == shares[0].global_size(count, first)
        assert tail == "pad" or together[-1] < count
        assert not drop_last or len(together) == batch
        if number == len(batches[0]) - 1 and tail == "pad" and not drop_last and together[-1] >= count:
            assert len(set(sizes)) == 1
            assert len(together) - (count - first) < world


@settings(deadline=None)
@given(orders(), topologies())
def test_pads_repeat_the_beginning(order: EpochOrder, topology: tuple[int, list[int]]) -> None:
    batch, (world, _) = topology
    for rank in range(world):
        for indices in batches_of(order, Share(batch, rank, world)):
            pads = indices.positions >= order.count
            expected = order.locate(indices.positions[pads] % order.count)
            assert indices.sources[pads].tolist() == expected[0].tolist()
            assert indices.records[pads].tolist() == expected[1].tolist()


@given(st.integers(1, 500), seeds, epochs, st.data())
def test_records_stay_within_their_window(count: int, seed: int, epoch: int, data: st.DataObject) -> None:
    window = data.draw(windows(count))
    order = WindowOrder(window, count, seed, epoch)
    positions = np.arange(count)
    entries = order.entries(positions)
    assert np.array_equal(np.sort(entries), positions)
    line = order.entries_at(positions)
    assert np.array_equal(np.sort(line), positions)
    pieces = []
    for stream in range(window.streams):
        begin, size = int(order.piece_starts[stream]), int(order.piece_sizes[stream])
        pieces.append((begin, size))
        mine = entries[stream :: window.streams]
        here = line[begin : begin + size].tolist()
        # A stream's records come from its piece of the line; each leaves its place by less than a block.
        places = np.array([here.index(entry) for entry in mine.tolist()], np.int64)
        assert len(mine) == size
        assert np.array_equal(places // window.block, np.arange(size) // window.block)
    covered = [place for begin, size in sorted(pieces) for place in range(begin, begin + size)]
    assert covered == positions.tolist()


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5), st.integers(1, 30), st.integers(1, 50), seeds)
def test_ranks_read_no_shard_in_common(
    log_world: int, log_more: int, each: int, shard: int, block: int, seed: int
) -> None:
    """Shards of one size, as many for each rank; so a node of half of the ranks opens half of them."""
    world = 2**log_world
    shards = world * each
    window = Window(world * 2**log_more, block, np.arange(0, shards * shard, shard))
    order = Selection.whole(shards * shard).order(seed, 1, shuffle=True, window=window)
    opened: list[int] = []
    for rank in range(world):
        records = [batch.records for batch in batches_of(order, Share(2 * world, rank, world))]
        mine = np.unique(np.concatenate(records) // shard).tolist()
        assert len(mine) == each
        opened += mine
    assert sorted(opened) == list(range(shards))


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(2, 500), st.data())
def test_shards_of_any_size_are_read_once_but_at_the_seams(
    log_world: int, log_more: int, count: int, data: st.DataObject
) -> None:
    world = 2**log_world
    window = dataclasses.replace(data.draw(windows(count)), streams=world * 2**log_more)
    order = Selection.whole(count).order(0, 0, shuffle=True, window=window)
    opened = 0
    for rank in range(world):
        records = [batch.records for batch in batches_of(order, Share(world, rank, world, "uneven"))]
        read = np.concatenate([*records, np.empty(0, np.int64)])
        opened += len(np.unique(np.searchsorted(window.chunks, read, side="right")))
    assert opened <= len(window.chunks) + world - 1


def virtual(count: int, shuffle: bool, windowed: bool) -> EpochOrder:
    window = Window(256, 5000, np.arange(0, count, max(1, count // 1000))) if windowed else None
    return Selection.whole(count).order(3, 1, shuffle=shuffle, window=window)


@pytest.mark.parametrize(("shuffle", "windowed"), [(False, False), (True, False), (True, True)])
def test_memory_does_not_grow_with_the_records(shuffle: bool, windowed: bool) -> None:
    peaks = []
    for count in (10**3, 10**6, 10**10, 10**10):
        tracemalloc.start()
        order = virtual(count, shuffle, windowed)
        for _ in itertools.islice(batches_of(order, Share(512, 1, 2), count // 2 // 512 * 512), 40):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    # Blocks of 4,096 positions, and tables of 1,000 chunks; 10^3 records do not fill one block.
    assert max(peaks) < 2 << 20
    assert peaks[3] < peaks[1] + (256 << 10)


@settings(max_examples=20, deadline=None)
@given(st.integers(10**9, 10**10), seeds, st.booleans(), st.data())
def test_positions_of_billions(count: int, seed: int, windowed: bool, data: st.DataObject) -> None:
    window = Window(1024, 10_000, np.arange(0, count, 10**6)) if windowed else None
    order = Selection.whole(count).order(seed, 0, shuffle=True, window=window)
    start = data.draw(st.integers(0, count - 1))
    shares: Iterator[list[int]] = (
        next(batches_of(order, Share(4096, rank, 2), start)).records.tolist() for rank in range(2)
    )
    records = [record for share in shares for record in share]
    kept = [record for record in records if 0 <= record < count]
    assert len(kept) == len(records)
    assert len(set(kept)) >= min(4096, count - start)
