"""Mixtures at drawn weights, schedules and sizes, against a model that counts sample by sample."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fastload.errors import UsageError
from fastload.sampling import Mixture, Selection, Window, cells_of, shares_of
from fastload.sampling.interleave import Interleaving

weights_of = st.lists(st.integers(0, 12) | st.floats(0, 1).map(lambda w: round(w, 2)), min_size=1, max_size=6)


@st.composite
def interleavings(draw: st.DrawFn) -> Interleaving:
    weights = draw(weights_of)
    assume(any(weights))
    schedule = []
    for position in sorted(draw(st.lists(st.integers(0, 200), max_size=4))):
        changed = draw(st.lists(st.integers(0, 9), min_size=len(weights), max_size=len(weights)))
        assume(any(changed))
        schedule.append((position, changed))
    return Interleaving.of(weights, schedule)


@settings(deadline=None)
@given(interleavings())
def test_every_prefix_has_each_source_to_less_than_one_sample(interleaving: Interleaving) -> None:
    length = 300
    sources, indices = interleaving.place(np.arange(length))
    expected = [Fraction(0)] * len(interleaving.counts[0])
    seen = [0] * len(expected)
    for position in range(length):
        segment = max(n for n, start in enumerate(interleaving.starts) if start <= position)
        counts = interleaving.counts[segment]
        if (position - interleaving.starts[segment]) % sum(counts) == 0:
            assert seen == expected  # exact where a block begins
        source = int(sources[position])
        assert indices[position] == seen[source]
        seen[source] += 1
        for number, count in enumerate(counts):
            expected[number] += Fraction(count, sum(counts))
            assert abs(seen[number] - expected[number]) < 1


@st.composite
def mixtures(draw: st.DrawFn, endless: bool = True) -> Mixture:
    weights = draw(weights_of)
    assume(any(weights))
    parts = [
        Selection.whole(draw(st.integers(1 if weight else 0, 40)), number)
        for number, weight in enumerate(weights)
    ]
    stops = ["first_exhausted", "all_exhausted"] + ["endless"] * endless
    return Mixture.of(parts, weights, stop=draw(st.sampled_from(stops)))  # type: ignore[arg-type]


@settings(deadline=None)
@given(mixtures(), st.integers(0, 2**64 - 1), st.integers(0, 1000), st.booleans(), st.data())
def test_a_mixture_is_one_function_of_the_position(
    mixture: Mixture, seed: int, epoch: int, shuffle: bool, data: st.DataObject
) -> None:
    order = mixture.order(seed, epoch, shuffle=shuffle)
    count = min(order.count, 2000)
    sources, records = order.locate(np.arange(count))
    for source, part in enumerate(mixture.parts):
        mine = records[sources == source].tolist()
        for low in range(0, len(mine), max(1, part.count)):
            once = mine[low : low + part.count]
            assert len(set(once)) == len(once)
            assert shuffle or once == list(range(len(once)))
    some = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    again = mixture.order(seed, epoch, shuffle=shuffle).locate(some)
    assert again[0].tolist() == sources[some].tolist()
    assert again[1].tolist() == records[some].tolist()


@settings(deadline=None)
@given(mixtures(), st.integers(0, 2**64 - 1), st.integers(1, 30), st.integers(1, 6), st.data())
def test_a_window_moves_records_within_their_source_only(
    mixture: Mixture, seed: int, block: int, streams: int, data: st.DataObject
) -> None:
    shards = data.draw(st.integers(1, 9))
    starts = [np.append(np.arange(0, part.count, shards), part.count) for part in mixture.parts]
    window = Window(1 << streams, block, mixture.chunks(starts))
    order = mixture.order(seed, 0, shuffle=True, window=window)
    count = min(order.count, 300)
    sources, records = order.locate(np.arange(count))
    assert sources.tolist() == mixture.order(seed, 0, shuffle=True).locate(np.arange(count))[0].tolist()
    for source, part in enumerate(mixture.parts):
        mine = records[sources == source].tolist()
        for low in range(0, len(mine), max(1, part.count)):
            once = mine[low : low + part.count]
            assert len(set(once)) == len(once)
            assert all(0 <= record < part.count for record in once)
    some = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=20)), np.int64)
    again = mixture.order(seed, 0, shuffle=True, window=window).locate(some)
    assert again[1].tolist() == records[some].tolist()


@settings(deadline=None)
@given(mixtures(endless=False))
def test_stop_rules_end_where_a_source_gives_its_last(mixture: Mixture) -> None:
    sources, _ = mixture.locate(np.arange(mixture.count))
    given_ = np.bincount(sources, minlength=len(mixture.parts))
    used = [n for n, count in enumerate(mixture.interleaving.counts[0]) if count]
    last = int(sources[-1])
    if mixture.stop == "first_exhausted":
        assert given_[last] == mixture.parts[last].count
        assert all(given_[n] < mixture.parts[n].count for n in used if n != last)
    else:
        assert all(given_[n] >= mixture.parts[n].count for n in used)
        assert given_[last] == mixture.parts[last].count


@given(st.integers(0, 10**6), st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_shares_sum_to_the_whole(count: int, parts: list[int]) -> None:
    fractions = [part / sum(parts) for part in parts]
    sizes = shares_of(count, fractions)
    assert sum(sizes) == count
    assert all(abs(size - count * one) < 1 + 1e-6 for size, one in zip(sizes, fractions, strict=True))


@given(st.lists(st.integers(0, 50), max_size=30), st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_cells_have_these_sums(rows: list[int], parts: list[int]) -> None:
    columns = shares_of(sum(rows), [part / sum(parts) for part in parts])
    table = cells_of(rows, columns)
    assert [sum(cells) for cells in table] == rows
    if rows:
        assert [sum(column) for column in zip(*table, strict=True)] == columns
    assert all(cell >= 0 for cells in table for cell in cells)
    if len(columns) == 2 and sum(rows):
        for row, cells in zip(rows, table, strict=True):
            assert abs(cells[0] - row * columns[0] / sum(rows)) < 1


@pytest.mark.parametrize("fractions", [[], [0.5], [0.5, 0.6], [1.5, -0.5], [float("nan"), 1]])
def test_fractions_that_are_none(fractions: list[float]) -> None:
    with pytest.raises(UsageError, match="do not sum to 1"):
        shares_of(10, fractions)
