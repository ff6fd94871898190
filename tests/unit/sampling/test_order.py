from __future__ import annotations

import numpy as np

from fastload.sampling import EpochOrder, Selection, Share, batches_of, permute


def records(order: EpochOrder, batch: int, *, drop_last: bool = False, start: int = 0) -> list[list[int]]:
    share = Share(batch, drop_last=drop_last)
    return [batch.records.tolist() for batch in batches_of(order, share, start)]


def test_sequential() -> None:
    order = Selection.whole(5).order(0, 0, shuffle=False)
    assert records(order, 2) == [[0, 1], [2, 3], [4]]
    assert records(order, 2, drop_last=True) == [[0, 1], [2, 3]]
    assert records(Selection.whole(0).order(0, 0, shuffle=True), 2) == []


def test_shuffle_is_the_permutation() -> None:
    order = Selection.whole(100)[10:].order(3, 2, shuffle=True)
    got = [record for batch in records(order, 7) for record in batch]
    assert got == (permute(range(90), 90, 3, 2) + 10).tolist()


def test_blocks_do_not_show() -> None:
    order = Selection.whole(10_000).order(0, 0, shuffle=True)
    one = np.concatenate([batch.records for batch in batches_of(order, Share(9000))])
    many = np.concatenate([batch.records for batch in batches_of(order, Share(7))])
    assert np.array_equal(one, many)


def test_pads_repeat_the_beginning() -> None:
    order = Selection.whole(5).order(0, 0, shuffle=True)
    (batch,) = batches_of(order, Share(20, rank=1, world=2))
    assert batch.positions.tolist() == [1, 3, 5]
    assert batch.records.tolist() == permute([1, 3, 0], 5, 0, 0).tolist()


def test_start_continues() -> None:
    order = Selection.whole(101).order(9, 0, shuffle=True)
    assert records(order, 10)[3:] == records(order, 10, start=30)
