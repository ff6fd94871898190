from __future__ import annotations

import pytest

from fastload.errors import UsageError
from fastload.sampling.cursor import Cursor, Place


def never(place: Place) -> bool:
    return False


def over_at_ten(place: Place) -> bool:
    return place.position >= 10


def begin(cursor: Cursor) -> Place:
    found = cursor.peek(over_at_ten)
    place = Place(found.epoch, found.position)
    cursor.begin(place)
    return place


def test_each_iteration_is_the_next_epoch() -> None:
    cursor = Cursor()
    assert cursor.place == Place(0, 0)
    assert [begin(cursor).epoch for _ in range(3)] == [0, 1, 2]
    cursor.set_epoch(7)
    assert [begin(cursor).epoch for _ in range(2)] == [7, 8]
    with pytest.raises(UsageError, match="epoch is -1"):
        cursor.set_epoch(-1)


def test_the_place_is_what_was_delivered() -> None:
    cursor = Cursor()
    cursor.set_epoch(2)
    assert cursor.place == Place(2, 0)
    place = begin(cursor)
    place.position = 4
    cursor.set_epoch(3)  # named, not begun
    assert cursor.place == Place(2, 4)


def test_a_loaded_place() -> None:
    cursor = Cursor()
    old = begin(cursor)
    cursor.load(Place(5, 3))
    old.position = 9  # an iterator that lives on
    assert cursor.place == Place(5, 3)
    assert cursor.peek(never) == cursor.peek(never) == Place(5, 3)
    assert begin(cursor) == Place(5, 3)
    assert begin(cursor) == Place(6, 0)
    cursor.load(Place(1, 1))
    cursor.load(Place(2, 2))
    assert begin(cursor) == Place(2, 2)


def test_naming_an_epoch_after_loading() -> None:
    cursor = Cursor()
    cursor.load(Place(5, 3))
    cursor.set_epoch(5)
    assert begin(cursor) == Place(5, 3)
    cursor.load(Place(5, 3))
    cursor.set_epoch(6)
    assert begin(cursor) == Place(6, 0)
    cursor.set_epoch(1)
    cursor.load(Place(5, 3))  # loading is later than naming
    assert begin(cursor) == Place(5, 3)


def test_the_end_of_an_epoch() -> None:
    cursor = Cursor()
    cursor.load(Place(5, 10))
    assert begin(cursor) == Place(6, 0)
    cursor.load(Place(5, 10))
    cursor.set_epoch(5)
    assert begin(cursor) == Place(5, 10)
