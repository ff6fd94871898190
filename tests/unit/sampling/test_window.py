from __future__ import annotations

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling import Selection, Window
from fastload.sampling.permutation import _permute_numpy, permutation_key, permute
from fastload.sampling.window import WindowOrder

SHARDS = np.arange(0, 1001, 50)


def every_entry(window: Window, count: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return WindowOrder(window, count, seed, epoch).entries(np.arange(count)).tolist()


def reference(window: Window, count: int, seed: int, epoch: int) -> list[int]:
    """The specification, step by step."""
    ends = [*window.chunks.tolist()[1:], count]
    chunks = [list(range(a, b)) for a, b in zip(window.chunks.tolist(), ends, strict=True)]
    line = [x for n in permute(range(len(chunks)), len(chunks), seed, epoch).tolist() for x in chunks[n]]
    bits = window.streams.bit_length() - 1
    streams: dict[int, list[int]] = {}
    for piece in range(window.streams):
        stream = int(f"{piece:0{bits}b}"[::-1], 2) if bits else 0
        size = count // window.streams + (stream < count % window.streams)
        mine, line = line[:size], line[size:]
        streams[stream] = []
        for number, low in enumerate(range(0, size, window.block)):
            block = mine[low : low + window.block]
            key = permutation_key(seed, epoch, stream, number)
            places = _permute_numpy(np.arange(len(block)), len(block), key)
            streams[stream] += [block[place] for place in places.tolist()]
    return [streams[p % window.streams][p // window.streams] for p in range(count)]


@pytest.mark.parametrize(("streams", "block"), [(1, 7), (4, 13), (16, 1), (16, 1000), (8, 25)])
@pytest.mark.parametrize("count", [997, 1000])
def test_follows_the_specification(streams: int, block: int, count: int) -> None:
    window = Window(streams, block, SHARDS[:-1])
    for seed, epoch in [(0, 0), (2**64 - 1, 3)]:
        expected = reference(window, count, seed, epoch)
        assert every_entry(window, count, seed, epoch) == expected
        assert sorted(expected) == list(range(count))
    order = Selection.whole(count).order(5, 1, shuffle=True, window=window)
    assert order.locate(np.arange(count))[1].tolist() == every_entry(window, count, 5, 1)


def test_without_shuffle_a_window_does_nothing() -> None:
    order = Selection.whole(10).order(5, 1, shuffle=False, window=Window(1, 3, np.zeros(1, np.int64)))
    assert order.locate(np.arange(10))[1].tolist() == list(range(10))


def test_resolve() -> None:
    window = Window.resolve(512 << 20, np.arange(1000), count=10**6, record_bytes=1000.0)
    assert (window.streams, window.block) == (64, (8 << 20) // 1000)
    assert Window.resolve(1, np.arange(5), count=100, record_bytes=10.0) == Window(1, 1, np.arange(5))
    assert Window.resolve(1 << 40, np.arange(9), count=100, record_bytes=10.0).streams == 8
    assert Window.resolve(1 << 50, np.arange(5000), count=5000, record_bytes=1.0).streams == 1024
    assert Window.resolve(100, np.empty(0, np.int64), count=0, record_bytes=0.0).streams == 1
    assert every_entry(Window.resolve(9, np.empty(0, np.int64), count=0, record_bytes=0.0), 0) == []


def test_usage() -> None:
    with pytest.raises(UsageError, match="3 streams"):
        Window(3, 1, SHARDS)
    with pytest.raises(UsageError, match="blocks of 0"):
        Window(4, 0, SHARDS)
    with pytest.raises(UsageError, match="not of these 900 records"):
        WindowOrder(Window(4, 1, SHARDS), 900, 0, 0)


def test_chunks_of_views() -> None:
    whole = Selection.whole(100)
    starts = [np.array([0, 10, 10, 45, 100])]
    assert whole.chunks(starts).tolist() == [0, 10, 45]
    assert whole[10:].chunks(starts).tolist() == [0, 35]
    assert whole[11:45].chunks(starts).tolist() == [0]
    assert whole[::-1].chunks(starts).tolist() == [0, 55, 90]
    assert whole[5::7].chunks(starts).tolist() == [0, 1, 6]
    picks = whole.take(np.arange(60))
    assert picks.chunks(starts).tolist() == [0, 25, 50]
    assert (whole + picks).chunks(starts).tolist() == [0, 10, 45, 100, 125, 150]
    assert whole[:0].chunks(starts).tolist() == []
    assert (whole + Selection.whole(4, 1).take(np.array([0, 2]))).source_counts(2).tolist() == [100, 2]


@pytest.mark.parametrize("step", [1, 2, 3, 7, -1, -2, -9])
@pytest.mark.parametrize("offset", [0, 4, 20])
def test_chunks_are_where_the_shard_changes(step: int, offset: int) -> None:
    starts = np.array([0, 3, 4, 11, 12, 13, 30, 44, 60])
    view = Selection.whole(60)[offset:55][::step]
    shards = np.searchsorted(starts, view.records(), side="right")
    assert view.chunks([starts]).tolist() == [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist()]
