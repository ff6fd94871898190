from __future__ import annotations

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling import EpochOrder, Selection, permute


def records(order: EpochOrder, batch_size: int, **options: object) -> list[list[int]]:
    return [batch.records.tolist() for batch in order.batches(batch_size, **options)]  # type: ignore[arg-type]


def test_sequential() -> None:
    order = EpochOrder(Selection.whole(5))
    assert records(order, 2) == [[0, 1], [2, 3], [4]]
    assert records(order, 2, drop_last=True) == [[0, 1], [2, 3]]
    assert records(EpochOrder(Selection.whole(0)), 2) == []


def test_shuffle_is_the_permutation() -> None:
    order = EpochOrder(Selection.whole(100)[10:], seed=3, epoch=2, shuffle=True)
    got = [record for batch in records(order, 7) for record in batch]
    assert got == (permute(range(90), 90, 3, 2) + 10).tolist()


def test_blocks_do_not_show() -> None:
    order = EpochOrder(Selection.whole(10_000), shuffle=True)
    one = np.concatenate([batch.records for batch in order.batches(9000)])
    many = np.concatenate([batch.records for batch in order.batches(7)])
    assert np.array_equal(one, many)


@pytest.mark.parametrize("count", [0, 1, 3, 8, 10, 13])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_tails(count: int, world: int) -> None:
    whole = Selection.whole(count)
    for tail in ("pad", "drop", "uneven"):
        shares = []
        for rank in range(world):
            order = EpochOrder(whole, shuffle=True, rank=rank, world=world, tail=tail)  # type: ignore[arg-type]
            batches = list(order.batches(2))
            assert sum(len(batch.records) for batch in batches) == order.local_count()
            shares.append([int(p) for batch in batches for p in batch.positions])
        positions = sorted(p for share in shares for p in share)
        if tail == "uneven":
            assert positions == list(range(count))
        else:
            kept = count // world * world if tail == "drop" else -(-count // world) * world
            assert positions == list(range(kept))
            assert len({len(share) for share in shares}) == 1


def test_pads_repeat_the_beginning() -> None:
    order = EpochOrder(Selection.whole(5), shuffle=True, rank=1, world=2)
    (batch,) = order.batches(10)
    first = permute([0], 5, 0, 0)[0]
    assert batch.positions.tolist() == [1, 3, 5]
    assert batch.records[-1] == first


def test_start_continues() -> None:
    order = EpochOrder(Selection.whole(101), shuffle=True, seed=9)
    assert records(order, 10)[3:] == records(order, 10, start=30)


def test_usage() -> None:
    with pytest.raises(UsageError, match="rank 2"):
        EpochOrder(Selection.whole(1), rank=2, world=2)
    with pytest.raises(UsageError, match="batch_size is 0"):
        list(EpochOrder(Selection.whole(1)).batches(0))
