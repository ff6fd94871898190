from __future__ import annotations

import pickle

import numpy as np
import pytest

from fastload.sampling import Selection


def pairs(selection: Selection) -> list[tuple[int, int]]:
    sources, records = selection.locate(np.arange(len(selection), dtype=np.int64))
    assert sources.dtype == records.dtype == np.int64
    return list(zip(sources.tolist(), records.tolist(), strict=True))


def test_whole() -> None:
    assert pairs(Selection.whole(3, source=2)) == [(2, 0), (2, 1), (2, 2)]
    assert pairs(Selection.whole(0)) == []


def test_ranges_stay_ranges() -> None:
    selection = Selection.whole(10**12)[5::3][::-1][:1000]
    assert len(selection.picked_records) == 0
    assert len(selection.pieces) == 1
    assert selection.records()[0] == 10**12 - 2


@pytest.mark.parametrize("step", [1, 2, 3, 7, -1, -2, -5])
def test_slices_of_several_pieces(step: int) -> None:
    selection = (
        Selection.whole(5) + Selection.whole(4, 1).take(np.array([3, 0, 0])) + Selection.whole(6, 2)[::-2]
    )
    expected = pairs(selection)
    for start in (None, 0, 3, 6, -2, 100):
        for stop in (None, 0, 5, 9, -1, -100):
            assert pairs(selection[start:stop:step]) == expected[start:stop:step]


def test_a_list_is_copied() -> None:
    indices = np.array([2, 1])
    taken = Selection.whole(3).take(indices)
    indices[:] = 0
    assert pairs(taken) == [(0, 2), (0, 1)]


def test_renumbered() -> None:
    selection = Selection.whole(2) + Selection.whole(3, 1).take(np.array([2]))
    assert pairs(selection.renumbered([1, 0])) == [(1, 0), (1, 1), (0, 2)]


def test_normalise() -> None:
    whole = Selection.whole(5)
    assert whole.normalise([-1, 0, 4]).tolist() == [4, 0, 4]
    assert whole.normalise([]).tolist() == []
    with pytest.raises(IndexError, match="index 5 is out of range: the dataset has 5 records"):
        whole.normalise([0, 5])
    with pytest.raises(IndexError, match="index -6"):
        whole.normalise([-6])
    for wrong in ([1.5], [[1]], ["a"]):
        with pytest.raises(TypeError, match="list of integers"):
            whole.normalise(wrong)


def test_digest_and_pickle() -> None:
    selection = Selection.whole(5)[1:] + Selection.whole(4, 1).take(np.array([3, 0]))
    again = pickle.loads(pickle.dumps(selection))
    assert pairs(again) == pairs(selection)
    assert again.digest() == selection.digest()
    assert selection[1:].digest() != selection.digest()
