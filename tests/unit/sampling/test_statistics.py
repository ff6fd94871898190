"""The keyed permutation against chance: positions, pairs, whole permutations, neighbouring keys and counts.

Everything here is fixed, so that a test fails always or never; the bounds are five standard deviations.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest

from fastload.sampling import permute
from fastload.sampling.permutation import (
    _bits,
    _mix32,
    _scalar_round_keys,
    absorb,
    permutation_key,
    permute_each,
)

Int64Array = npt.NDArray[np.int64]

DEVIATIONS = 5.0
SEEDS = np.arange(100_000)


def outcomes(positions: list[int], count: int, seeds: Int64Array = SEEDS, epoch: int = 0) -> Int64Array:
    """Return where positions go under each seed: (seeds, positions)."""
    keys = absorb(absorb(np.zeros(1, np.uint64), seeds), np.array([epoch]))
    given = np.tile(np.array(positions, np.int64), len(seeds))
    counts = np.full(len(given), count, np.int64)
    return permute_each(given, counts, np.repeat(keys, len(positions))).reshape(len(seeds), -1)


def assert_uniform(cells: Int64Array, number: int) -> None:
    """Compare how often each of ``number`` cells was met with equal chances (chi-square, both sides)."""
    expected = len(cells) / number
    assert expected >= 5
    found = np.bincount(cells, minlength=number)
    assert len(found) == number
    freedom = number - 1
    statistic = float(((found - expected) ** 2).sum()) / expected
    # Wilson and Hilferty: the cube root of a chi-square is nearly normal, for few cells too.
    spread = 2 / (9 * freedom)
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)
    assert abs(deviation) < DEVIATIONS, f"{number} cells, chi-square {statistic:.1f}: {deviation:.1f} sigma"


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7])
def test_whole_permutations_of_few(count: int) -> None:
    whole = outcomes(list(range(count)), count)
    numbers = {order: number for number, order in enumerate(itertools.permutations(range(count)))}
    table = np.full(count**count, -1)
    places = count ** np.arange(count)
    for order, number in numbers.items():
        table[int(np.array(order) @ places)] = number
    assert_uniform(table[whole @ places], math.factorial(count))


@pytest.mark.parametrize("count", [*range(3, 20), 24, 31, 32, 33, 48, 63, 64, 65, 100])
def test_pairs(count: int) -> None:
    for first, second in {(0, 1), (0, count - 1), (count // 2, count // 2 + 1), (1, count // 2 + 1)}:
        if first == second or second >= count:
            continue
        got = outcomes([first, second], count)
        x, y = got[:, 0], got[:, 1]
        assert_uniform(x, count)
        assert_uniform(y, count)
        assert_uniform(x * (count - 1) + y - (y > x), count * (count - 1))


def binned(values: Int64Array, count: int, bins: int) -> tuple[Int64Array, int]:
    """Return values of [0, count) as numbers of at most ``bins`` cells that are equal to 1 in 10^4."""
    return (values, count) if count <= 5000 else ((values / (count / bins)).astype(np.int64), bins)


@pytest.mark.parametrize("count", [128, 1000, 4097, 10**6, 2**32 - 1, 2**32 + 1, 2**40, 2**61 + 1])
def test_positions_and_distances_of_many(count: int) -> None:
    got = outcomes([0, 1, 2, count // 2, count - 1], count)
    for column in range(got.shape[1]):
        assert_uniform(*binned(got[:, column], count, 256))
        if count % 128 == 0:
            assert_uniform(got[:, column] % 128, 128)
    for left, right in itertools.combinations(range(got.shape[1]), 2):
        distance = (got[:, right] - got[:, left]) % count
        assert distance.min() > 0
        assert_uniform(*binned(distance - 1, count - 1, 64))
        if count > 10**5:  # then both may as well be in one cell
            x, y = (binned(got[:, column], count, 16)[0] for column in (left, right))
            assert_uniform(16 * x + y, 256)


def correlations(one: Int64Array, other: Int64Array) -> npt.NDArray[np.float64]:
    """Return the correlation of each row with the same row of ``other``, in standard deviations."""
    count = one.shape[1]
    spread = (count**2 - 1) / 12
    centred = (one - (count - 1) / 2) * (other - (other.shape[1] - 1) / 2)
    result: npt.NDArray[np.float64] = centred.mean(axis=1) / spread * math.sqrt(count - 1)
    return result


def assert_chance(deviations: npt.NDArray[np.float64]) -> None:
    """Compare correlations with independent normal ones: their mean, their spread, their largest."""
    number = len(deviations)
    assert abs(deviations.mean()) * math.sqrt(number) < DEVIATIONS
    assert abs(deviations.var() - 1) * math.sqrt(number / 2) < DEVIATIONS
    assert np.abs(deviations).max() < 6


@pytest.mark.parametrize("count", [50, 256, 1000])
def test_neighbouring_seeds_epochs_and_counts(count: int) -> None:
    seeds = np.arange(2000)
    positions = list(range(count))
    here = outcomes(positions, count, seeds)
    others = {
        "seed": outcomes(positions, count, seeds + 1),
        "high seed": outcomes(positions, count, seeds + (1 << 40)),
        "epoch": outcomes(positions, count, seeds, epoch=1),
        "count": outcomes(positions, count + 1, seeds),
        "twice the count": outcomes(positions, 2 * count, seeds) // 2,
    }
    for name, other in others.items():
        assert_chance(correlations(here, other))
        if name != "twice the count":
            # Positions that both orders send to the same place: one an order on average.
            same = int((here == other).sum())
            expected = len(seeds) * count / (count + (name == "count"))
            assert abs(same - expected) < DEVIATIONS * math.sqrt(expected), name


def test_epochs_of_one_seed_are_unrelated() -> None:
    keys = absorb(np.array([permutation_key(7)], np.uint64), np.arange(3000))
    given, counts = np.tile(np.arange(100), 3000), np.full(300_000, 100)
    orders = permute_each(given, counts, np.repeat(keys, 100)).reshape(3000, 100)
    for lag in (1, 2, 3, 64, 1024):
        assert_chance(correlations(orders[:-lag], orders[lag:]))
    assert_uniform(orders[:, 0], 100)


def test_blocks_and_streams_of_a_window_are_unrelated() -> None:
    key = np.array([permutation_key(7, 3)], np.uint64)
    streams, blocks = (axis.ravel() for axis in np.meshgrid(np.arange(64), np.arange(64), indexing="ij"))
    keys = absorb(absorb(key, streams), blocks)
    assert len(np.unique(keys)) == 64 * 64
    given, counts = np.tile(np.arange(100), len(keys)), np.full(100 * len(keys), 100)
    orders = permute_each(given, counts, np.repeat(keys, 100)).reshape(64, 64, 100)
    assert_chance(correlations(orders[:, 1:].reshape(-1, 100), orders[:, :-1].reshape(-1, 100)))
    assert_chance(correlations(orders[1:].reshape(-1, 100), orders[:-1].reshape(-1, 100)))
    off_diagonal = ~np.eye(64, dtype=bool)
    turned = orders.transpose(1, 0, 2)
    assert_chance(correlations(orders[off_diagonal][::2], turned[off_diagonal][::2]))
    assert_uniform(orders[:, :, 0].ravel(), 100)


@pytest.mark.parametrize("count", [1000, 65536, 100_003])
def test_within_an_order(count: int) -> None:
    for seed in range(20):
        order = permute(range(count), count, seed, 0)
        for lag in (1, 2, 3, 7, 64, 256):
            assert abs(correlations(order[None], np.roll(order, lag)[None])[0]) < DEVIATIONS
        assert abs(correlations(order[None], np.arange(count)[None])[0]) < DEVIATIONS
        # Ascents: (n - 1) / 2 on average, with variance (n + 1) / 12.
        ascents = int((np.diff(order) > 0).sum())
        assert abs(ascents - (count - 1) / 2) < DEVIATIONS * math.sqrt((count + 1) / 12)
        # Neighbours that stay neighbours: two an order on average, nearly Poisson.
        assert int((np.abs(np.diff(order)) == 1).sum()) < 15
        halves = order[: count // 2] * 2 // count
        assert abs(int(halves.sum()) - count / 4) < DEVIATIONS * math.sqrt(count / 16)


@pytest.mark.parametrize("bits", [20, 31, 32, 33, 40])
def test_every_bit_depends_on_every_bit(bits: int) -> None:
    draw = np.random.default_rng(bits)
    positions = draw.integers(0, 1 << bits, 2000)
    base = permute(positions, 1 << bits, 3, 1)
    for bit in range(bits):
        changed = base ^ permute(positions ^ (1 << bit), 1 << bits, 3, 1)
        flips = [(changed >> out & 1).mean() for out in range(bits)]
        assert np.abs(np.array(flips) - 0.5).max() < DEVIATIONS * 0.5 / math.sqrt(2000)


def inverse(values: Int64Array, count: int, seed: int, epoch: int) -> Int64Array:
    """Return which positions go to ``values``: the network's rounds backwards."""
    bits = _bits(count)
    right_bits = bits // 2
    left_mask, right_mask = np.uint32((1 << bits - right_bits) - 1), np.uint32((1 << right_bits) - 1)
    keys = _scalar_round_keys(permutation_key(seed, epoch), count)
    out = values.copy()
    waiting = np.arange(len(values))
    while len(waiting):
        left = (out[waiting] >> right_bits).astype(np.uint32)
        right = out[waiting].astype(np.uint32) & right_mask
        for number in reversed(range(len(keys))):
            if number % 2 == 0:
                left ^= _mix32(right, keys[number]) & left_mask
            else:
                right ^= _mix32(left, keys[number]) & right_mask
        out[waiting] = left.astype(np.int64) << right_bits | right
        waiting = waiting[out[waiting] >= count]
    return out


@pytest.mark.parametrize("count", [1, 2, 3, 5, 100, 2**20 + 1, 2**32 - 1, 2**32 + 1, 10**12, 2**40])
def test_it_can_be_inverted(count: int) -> None:
    draw = np.random.default_rng(count % 997)
    positions = np.unique(np.concatenate([draw.integers(0, count, 20_000), [0, count - 1]]))
    for seed in (0, 2**64 - 1):
        there = permute(positions, count, seed, 4)
        assert there.min() >= 0
        assert there.max() < count
        assert np.array_equal(inverse(there, count, seed, 4), positions)


@pytest.mark.parametrize("count", [*range(1, 130), 255, 256, 257, 1023, 1025, 70_000])
def test_every_value_once(count: int) -> None:
    for seed in range(5):
        assert np.array_equal(np.sort(permute(range(count), count, seed, 1)), np.arange(count))
