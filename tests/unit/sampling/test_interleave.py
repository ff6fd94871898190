from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling.interleave import MAX_BLOCK, Interleaving, block_counts, pattern


def test_weights_of_up_to_four_decimals_are_exact() -> None:
    for weights in ([0.333, 0.667], [0.001, 0.999], [0.1234, 0.8766], [0.5, 0.25, 0.125, 0.125]):
        counts = block_counts(weights)
        for count, weight in zip(counts, weights, strict=True):
            assert Fraction(count, sum(counts)) == Fraction(repr(weight))
    assert block_counts([0.7, 0.3]) == block_counts([7, 3]) == block_counts([1.4, 0.6]) == (7, 3)
    assert block_counts([np.float32(0.5), np.float64(0.5)]) == (1, 1)
    assert block_counts([1 / 3] * 3) == (1, 1, 1)
    assert block_counts([1] * 30_000) == (1,) * 30_000
    assert block_counts([0, 2, 0]) == (0, 1, 0)


@pytest.mark.parametrize("sources", [2, 3, 100, 1000, 3000])
def test_other_weights_are_off_by_less_than_one_position_of_the_block(sources: int) -> None:
    weights = np.random.default_rng(sources).uniform(0.5, 1, sources).tolist()
    counts = block_counts(weights)
    block = max(MAX_BLOCK, 10 * sources)
    assert block % sum(counts) == 0
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count / sum(counts) - weight / sum(weights)) < 1 / block


def test_a_weight_above_zero_gets_one_position_at_least() -> None:
    assert block_counts([1, 1e-9]) == (MAX_BLOCK - 1, 1)
    assert block_counts([1e-9] * 3 + [1]) == (1, 1, 1, MAX_BLOCK - 3)
    assert block_counts([1281167, 50000, 0]) == (1203, 47, 0)


@pytest.mark.parametrize("weights", [[], [0, 0], [-1, 2], [float("nan"), 1], [float("inf")]])
def test_weights_that_cannot_be(weights: list[float]) -> None:
    with pytest.raises(UsageError):
        block_counts(weights)


@pytest.mark.parametrize(
    "counts", [(1,), (7, 3), (1, 0, 4), (9001, *[1] * 999), (1,) * 1000, (5, 5, 90, 900)]
)
def test_every_prefix_of_a_block_has_each_source_as_it_should(counts: tuple[int, ...]) -> None:
    sources, ranks = pattern(counts)
    block = sum(counts)
    prefix = np.arange(1, block + 1)
    for source, count in enumerate(counts):
        chosen = sources == source
        assert ranks[chosen].tolist() == list(range(count))
        seen = np.cumsum(chosen)
        assert (seen >= prefix * count // block).all()
        assert (seen <= -(-prefix * count // block)).all()


def test_a_change_of_weights_waits_for_the_end_of_the_block() -> None:
    interleaving = Interleaving.of([0.7, 0.3], [(10, [1, 1]), (13, [0, 1]), (13, [1, 0]), (100, [0.9, 0.1])])
    assert interleaving.starts == (0, 10, 14, 14, 100)
    sources, indices = interleaving.place(np.arange(200))
    assert np.bincount(sources[:10]).tolist() == [7, 3]
    assert np.bincount(sources[10:14]).tolist() == [2, 2]
    assert not sources[14:100].any()
    assert np.bincount(sources[100:]).tolist() == [90, 10]
    for source in (0, 1):
        assert indices[sources == source].tolist() == list(range(int((sources == source).sum())))


def test_schedules_that_cannot_be() -> None:
    for schedule in ([(5, [1])], [(-1, [1, 1])], [(9, [1, 1]), (5, [1, 1])], [(5, [0, 0])]):
        with pytest.raises(UsageError):
            Interleaving.of([1, 1], schedule)


def test_far_positions() -> None:
    interleaving = Interleaving.of([0.7, 0.3], [(1 << 50, [0.5, 0.5])])
    far = (1 << 61) + np.arange(1000)
    sources, indices = interleaving.place(far)
    assert np.bincount(sources).tolist() == [500, 500]
    for number in (0, 500, 999):
        position, source = int(far[number]), int(sources[number])
        assert interleaving.reach(source, int(indices[number]) + 1) == position + 1


def test_how_far_a_number_of_samples_reaches() -> None:
    interleaving = Interleaving.of([1, 1, 0], [(10, [1, 0, 0]), (20, [0, 1, 1])])
    sources, _ = interleaving.place(np.arange(60))
    for source in range(3):
        places = np.flatnonzero(sources == source)
        for samples in range(1, len(places) + 1):
            assert interleaving.reach(source, samples) == places[samples - 1] + 1
    assert interleaving.reach(0, 16) is None
    assert Interleaving.of([1, 0]).reach(1, 1) is None
