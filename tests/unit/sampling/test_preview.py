from __future__ import annotations

import dataclasses
import time
import tracemalloc

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling import Selection, Share, Window, batches_of, preview
from fastload.sampling.preview import Layout
from fastload.sampling.preview import preview as look
from fastload.sampling.window import WindowOrder

UNEVEN = Layout(1000, 10**6, np.array([0, 3, 4, 100, 160, 161, 300, 555, 900, 990]))
EVEN = Layout.even(960, 32, 96_000)


def opened(layout: Layout, share: Share, node_ranks: int, window: Window | None, shuffle: bool) -> list[int]:
    """Return how many shards each node opens, following every sample."""
    order = Selection.whole(layout.records).order(5, 2, shuffle=shuffle, window=window)
    out = []
    for first in range(0, share.world, node_ranks):
        shards: set[int] = set()
        for rank in range(first, min(first + node_ranks, share.world)):
            for batch in batches_of(order, dataclasses.replace(share, rank=rank)):
                shards |= set(np.searchsorted(layout.chunks, batch.records, side="right").tolist())
        out.append(len(shards))
    return out


@pytest.mark.parametrize("layout", [UNEVEN, EVEN])
@pytest.mark.parametrize("kind", ["sequential", "shuffled", "window"])
@pytest.mark.parametrize(("batch", "world", "on_node"), [(8, 1, 1), (16, 8, 4), (30, 8, 3), (24, 6, 6)])
@pytest.mark.parametrize("followed", [True, False])
def test_every_sample_followed(
    layout: Layout, kind: str, batch: int, world: int, on_node: int, followed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if not followed:
        monkeypatch.setattr(preview, "COUNTED_SAMPLES", 0)
    share = Share(batch, 0, world)
    window = Window(16, 10, layout.chunks) if kind == "window" else None
    shuffle = kind != "sequential"
    found = look(layout, share, node_ranks=on_node, shuffle=shuffle, window=window, seed=5, epoch=2)
    counts = [dataclasses.replace(share, rank=rank).local_count(layout.records) for rank in range(world)]
    nodes = [sum(counts[first : first + on_node]) for first in range(0, world, on_node)]
    assert found.rank_samples == (min(counts), max(counts))
    assert found.node_samples == (min(nodes), max(nodes))
    assert found.pads == sum(counts) - layout.records
    assert found.batches == -(-layout.records // batch)
    truth = max(opened(layout, share, on_node, window, shuffle))
    at_most = any("at most" in note for note in found.notes)
    assert at_most == ((kind == "window" and world == 6) or (kind == "window" and batch == 30))
    if followed or (kind != "shuffled" and not at_most):
        assert found.shards == truth
    elif at_most:
        assert found.shards >= truth
    else:
        assert abs(found.shards - truth) <= 2
    assert 1 <= found.shards_at_once <= found.shards
    assert found.reads <= found.node_samples[1]


def test_a_window_bounds_what_is_open_and_kept() -> None:
    window = Window(16, 10, EVEN.chunks)
    found = look(EVEN, Share(16, 0, 8), node_ranks=4, window=window, seed=5, epoch=2)
    assert found.shards == 16
    assert found.notes == ()
    order = WindowOrder(window, 960, 5, 2)
    # Pieces of 60 records are two shards each, so that a block of 10 lies in one.
    assert (found.shards_at_once, found.reads, found.cache_bytes) == (8, 48, 8 * 10 * 100)
    assert order.piece_sizes.tolist() == [60] * 16


def test_full_and_no_shuffle() -> None:
    found = look(EVEN, Share(16, 0, 8), node_ranks=4, shuffle=True)
    assert (found.shards, found.shards_at_once, found.reads, found.cache_bytes) == (32, 32, 480, 96_000)
    found = look(EVEN, Share(16, 0, 8), node_ranks=4, shuffle=False)
    assert (found.shards, found.shards_at_once, found.reads, found.cache_bytes) == (32, 2, 120, 0)
    assert look(EVEN, Share(16, 0, 8), shuffle=False).reads == 32


@pytest.mark.parametrize("records", [0, 1, 3])
def test_hardly_any_records(records: int) -> None:
    layout = Layout.even(records, records, 10 * records)
    for window in (None, Window(4, 2, layout.chunks)):
        found = look(layout, Share(8, 0, 4), node_ranks=2, window=window)
        assert found.batches == min(records, 1)
        assert found.pads == (4 - records if records else 0)


@pytest.mark.parametrize("kind", ["sequential", "shuffled", "window"])
def test_ten_billion_records_on_4096_ranks(kind: str) -> None:
    layout = Layout.even(10**10, 100_000, 10**15)
    window = None
    if kind == "window":
        window = Window.resolve(10**11, layout.chunks, count=layout.records, record_bytes=layout.record_bytes)
    tracemalloc.start()
    begun = time.perf_counter()
    found = look(
        layout, Share(256 * 4096, 0, 4096), node_ranks=8, shuffle=kind != "sequential", window=window
    )
    spent, peak = time.perf_counter() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spent < 10
    assert peak < 32 << 20
    assert found.batches == 9537
    assert any("8 nodes of 512" in note for note in found.notes)
    if kind == "window":
        assert 100_000 // 128 <= found.shards <= 100_000 // 128 + 20
        assert found.cache_bytes <= 8 * (10**11 // 1024)


def test_usage() -> None:
    with pytest.raises(UsageError, match="9 ranks on a node, of 8"):
        look(EVEN, Share(16, 0, 8), node_ranks=9)
    with pytest.raises(UsageError, match="5 records in 6 shards"):
        Layout.even(5, 6, 10)
    with pytest.raises(UsageError, match="5 records in 0 shards"):
        Layout.even(5, 0, 10)
