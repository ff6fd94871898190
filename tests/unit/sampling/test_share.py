from __future__ import annotations

import itertools

import pytest

from fastload.errors import UsageError
from fastload.sampling import ENDLESS, Selection, Share, batches_of


def shares(batch: int, world: int, count: int, **options: object) -> list[list[list[int]]]:
    """Return the positions of every batch of every rank."""
    every = [Share(batch, rank, world, **options) for rank in range(world)]  # type: ignore[arg-type]
    out = [[positions.tolist() for positions in share.batches(count)] for share in every]
    for share, got in zip(every, out, strict=True):
        assert len(got) == share.batch_count(count)
        assert sum(map(len, got)) == share.local_count(count)
    return out


@pytest.mark.parametrize("count", [0, 1, 3, 8, 10, 13])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_tails(count: int, world: int) -> None:
    for tail in ("pad", "drop", "uneven"):
        got = shares(2 * world, world, count, tail=tail)
        positions = sorted(p for share in got for batch in share for p in batch)
        if tail == "uneven":
            assert positions == list(range(count))
        else:
            kept = count // world * world if tail == "drop" else -(-count // world) * world
            assert positions == list(range(kept))
            assert len({len(share) for share in got}) == 1


def test_a_batch_that_ranks_do_not_divide() -> None:
    assert shares(5, 2, 13) == [[[0, 2, 4], [5, 7, 9], [10, 12]], [[1, 3], [6, 8], [11, 13]]]
    assert shares(5, 2, 13, tail="drop") == [[[0, 2, 4], [5, 7, 9], [10]], [[1, 3], [6, 8], [11]]]
    assert shares(5, 2, 11, tail="uneven") == [[[0, 2, 4], [5, 7, 9], [10]], [[1, 3], [6, 8]]]
    assert shares(5, 2, 14, drop_last=True) == [[[0, 2, 4], [5, 7, 9]], [[1, 3], [6, 8]]]


def test_global_sizes_count_no_pads() -> None:
    assert [Share(5, 1, 2).global_size(13, first) for first in (0, 5, 10, 15)] == [5, 5, 3, 0]
    assert Share(5, 1, 2, "drop").global_size(13, 10) == 2
    assert Share(5, 1, 2, drop_last=True).global_size(13, 10) == 0


def test_pads_wrap_where_there_are_fewer_records_than_ranks() -> None:
    order = Selection.whole(2).order(0, 0, shuffle=False)
    got = [next(batches_of(order, Share(15, rank, 5))) for rank in range(5)]
    assert [batch.positions.tolist() for batch in got] == [[0], [1], [2], [3], [4]]
    assert [batch.records.tolist() for batch in got] == [[0], [1], [0], [1], [0]]


def test_an_endless_order() -> None:
    share = Share(1 << 20, 3, 4)
    assert share.batch_count(ENDLESS) == 1 << 42
    first = next(share.batches(ENDLESS, 1 << 60))
    assert first[:2].tolist() == [(1 << 60) + 3, (1 << 60) + 7]
    assert len(list(itertools.islice(share.batches(ENDLESS), 3))) == 3


def test_usage() -> None:
    with pytest.raises(UsageError, match="rank 2"):
        Share(4, rank=2, world=2)
    with pytest.raises(UsageError, match="batch of 3 samples for 4 ranks"):
        Share(3, world=4)
    with pytest.raises(UsageError, match="batch of 0 samples"):
        Share(0)
    with pytest.raises(UsageError, match="unknown tail"):
        Share(4, tail="cut")  # type: ignore[arg-type]
