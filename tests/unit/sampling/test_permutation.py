from __future__ import annotations

import math

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling import permutation
from fastload.sampling.permutation import _permute_numpy, permutation_key, permute


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 4096, 4097])
def test_every_value_once(count: int) -> None:
    assert sorted(permute(range(count), count, 7, 3).tolist()) == list(range(count))


def test_nothing_to_order() -> None:
    assert permute([], 0, 0, 0).tolist() == []
    assert permute([], 10, 0, 0).tolist() == []


@pytest.mark.parametrize("position", [-1, 10, 1 << 40])
def test_position_out_of_range(position: int) -> None:
    with pytest.raises(UsageError, match=r"not in \[0, 10\)"):
        permute([0, position], 10, 0, 0)
    with pytest.raises(UsageError, match=r"not in \[0, 10\)"):
        _permute_numpy(np.array([0, position]), 10, 0)
    with pytest.raises(UsageError, match=r"position 0 is not in \[0, 0\)"):
        permute([0], 0, 0, 0)


@pytest.mark.parametrize("count", [-1, (1 << 62) + 1])
def test_count_out_of_range(count: int) -> None:
    with pytest.raises(UsageError, match="cannot order"):
        permute([0], count, 0, 0)


def test_seed_and_epoch_matter() -> None:
    base = permute(range(100), 100, 0, 0).tolist()
    assert base != permute(range(100), 100, 1, 0).tolist()
    assert base != permute(range(100), 100, 0, 1).tolist()
    # Seeds are 64 bits: a negative one is its complement.
    assert permute(range(100), 100, -1, 0).tolist() == permute(range(100), 100, (1 << 64) - 1, 0).tolist()


def test_known_values() -> None:
    """Version 2 of the order. If this fails, ORDER_VERSION must change with it."""
    assert permutation.ORDER_VERSION == 2
    assert permute(range(8), 8, 0, 0).tolist() == [6, 7, 5, 1, 2, 4, 0, 3]
    large = permute([0, 1, (1 << 62) - 1], 1 << 62, 0x123456789ABCDEF, 5)
    assert large.tolist() == _reference([0, 1, (1 << 62) - 1], 1 << 62, 0x123456789ABCDEF, 5)


def _reference(positions: list[int], count: int, seed: int, epoch: int) -> list[int]:
    """The specification, one scalar step after the other."""
    mask = (1 << 64) - 1
    golden = 0x9E3779B97F4A7C15

    def finalise(z: int) -> int:
        z &= mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    def scramble(v: int, key: int) -> int:
        h = v ^ key
        h ^= h >> 16
        h = h * 0x7FEB352D & 0xFFFFFFFF
        h ^= h >> 15
        h = h * 0x846CA68B & 0xFFFFFFFF
        return h ^ (h >> 16)

    state = 0
    for word in (seed, epoch, count):
        state = finalise((state ^ word) + golden)
    bits = max(2, (count - 1).bit_length())
    keys: list[int] = []
    while len(keys) < max(8, 4 * math.ceil(24 / bits)):
        state += golden
        keys += divmod(finalise(state), 1 << 32)
    right_bits = bits // 2
    left_mask, right_mask = (1 << (bits - right_bits)) - 1, (1 << right_bits) - 1
    out = []
    for x in positions:
        while True:
            left, right = x >> right_bits, x & right_mask
            for i, key in enumerate(keys):
                if i % 2 == 0:
                    left ^= scramble(right, key) & left_mask
                else:
                    right ^= scramble(left, key) & right_mask
            x = left << right_bits | right
            if x < count:
                break
        out.append(x)
    return out


@pytest.mark.parametrize("count", [1, 2, 3, 5, 20, 100, 1000, 12345, 10**6, 2**32 + 5, 10**12, (1 << 62) - 7])
def test_follows_the_specification(count: int) -> None:
    positions = sorted({0, count - 1, count // 2, count // 3})
    for seed, epoch in [(0, 0), (1, 0), (0, 1), (2**64 - 1, 1000), (12345678901234567890, 2**31)]:
        expected = _reference(positions, count, seed, epoch)
        assert permute(positions, count, seed, epoch).tolist() == expected
        numpy = _permute_numpy(np.array(positions, np.int64), count, permutation_key(seed, epoch))
        assert numpy.tolist() == expected
