"""Draws: reproducible, independent, uniform."""

from __future__ import annotations

import numpy as np
import pytest

from fastload.transforms.random import Draws, philox4x32


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        # The known answers that come with the reference implementation (Random123).
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, words):
    assert philox4x32(counter, key) == words


def test_every_part_of_the_key_matters():
    keys = [(1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0), (0, 0, 0, 1, 0), (0, 0, 0, 0, 1)]
    keys += [(1 << 63, 0, 0, 0, 0), (0, 0, 1 << 40, 0, 0), (0, 0, 0, 0, 0)]
    drawn = {Draws(*key).uniform(i) for key in keys for i in range(4)}
    assert len(drawn) == 4 * len(keys)


def test_draws_are_uniform():
    values = np.array([Draws(3, 1, position).uniform(i) for position in range(2000) for i in range(4)])
    assert values.min() >= 0
    assert values.max() < 1
    counts, _ = np.histogram(values, bins=16, range=(0, 1))
    assert ((counts - 500.0) ** 2 / 500.0).sum() < 45  # chi-squared, 15 degrees: p = 1e-4 is at 44


def test_integers_cover_their_range():
    drawn = [Draws(0, 0, position).integer(2, 7) for position in range(300)]
    assert set(drawn) == set(range(7))
