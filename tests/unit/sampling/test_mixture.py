from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from fastload.errors import UsageError
from fastload.sampling import ENDLESS, Mixture, Selection, Share, Weighted, Window, batches_of, permute


def selections(*counts: int) -> list[Selection]:
    return [Selection.whole(count, number) for number, count in enumerate(counts)]


def pairs(order: Any, count: int | None = None, start: int = 0) -> list[tuple[int, int]]:
    stop = order.count if count is None else start + count
    return list(zip(*(a.tolist() for a in order.locate(np.arange(start, stop))), strict=True))


def test_stop_rules() -> None:
    parts = selections(6, 9)
    assert Mixture.of(parts, [0.5, 0.5], stop="first_exhausted").count == 11  # 0 1 0 1 ... 0
    assert Mixture.of(parts, [0.5, 0.5], stop="all_exhausted").count == 18
    endless = Mixture.of(parts, [0.5, 0.5], stop="endless")
    assert endless.count == ENDLESS
    with pytest.raises(TypeError, match=r"never ends.*take\(n\)"):
        len(endless)
    with pytest.raises(UsageError, match="unknown stop 'never'"):
        Mixture.of(parts, [0.5, 0.5], stop="never")  # type: ignore[arg-type]


def test_the_first_to_be_exhausted_gives_its_last_record_last() -> None:
    mixture = Mixture.of(selections(5, 100), [0.2, 0.8])
    got = pairs(mixture.order(3, 1, shuffle=True))
    assert got[-1][0] == 0
    assert sorted(record for source, record in got if source == 0) == list(range(5))
    others = [record for source, record in got if source == 1]
    assert len(others) == len(set(others))


def test_each_source_has_epochs_of_its_own() -> None:
    mixture = Mixture.of(selections(10, 7), [0.7, 0.3], stop="endless")
    got = pairs(mixture.order(1, 2, shuffle=True), 1000)
    for source, size in ((0, 10), (1, 7)):
        mine = [record for s, record in got if s == source]
        epochs = [mine[low : low + size] for low in range(0, len(mine) - size, size)]
        assert all(sorted(epoch) == list(range(size)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == len(epochs)
    assert pairs(mixture.order(1, 2, shuffle=True), 100, 500) == got[500:600]
    assert pairs(mixture.order(1, 3, shuffle=True), 1000) != got
    assert pairs(mixture.order(2, 2, shuffle=True), 1000) != got


def test_not_shuffled_sources_come_in_their_order() -> None:
    mixture = Mixture.of(selections(3, 2), [0.5, 0.5], stop="all_exhausted")
    assert pairs(mixture.order(9, 9, shuffle=False)) == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    assert pairs(mixture) == pairs(mixture.order(9, 9, shuffle=False))


def test_zero_weights_and_empty_sources() -> None:
    one = Mixture.of(selections(4, 0, 3), [1, 0, 0])
    assert one.count == 4
    assert sorted(pairs(one.order(0, 0, shuffle=True))) == [(0, r) for r in range(4)]
    with pytest.raises(UsageError, match=r"source 'b' of a mixture has no records.*weight 0"):
        Mixture.of(selections(4, 0), [1, 1], names=["a", "b"])
    with pytest.raises(UsageError, match="no source has a weight"):
        Mixture.of(selections(4, 4), [0, 0])
    with pytest.raises(UsageError, match="1 weights for 2 sources"):
        Mixture.of(selections(4, 4), [1])
    with pytest.raises(UsageError, match="0 weights for 0 sources"):
        Mixture.of([], [])


def test_a_source_that_never_comes_to_its_end() -> None:
    with pytest.raises(UsageError, match="source 'b' of a mixture keeps weight 0"):
        Mixture.of(selections(4, 9), [1, 1], schedule=[(4, [1, 0])], stop="all_exhausted", names=["a", "b"])
    assert Mixture.of(selections(4, 9), [1, 1], schedule=[(4, [1, 0])]).count == 6
    # Met within the schedule: it comes to its end later.
    later = Mixture.of(selections(4, 9), [1, 0], schedule=[(4, [1, 1])], stop="all_exhausted")
    assert later.count == 4 + 18


def test_a_schedule() -> None:
    mixture = Mixture.of(
        selections(100, 100), [1, 0], schedule=[(50, [0.5, 0.5]), (100, [0, 1])], stop="endless"
    )
    sources = np.array([source for source, _ in pairs(mixture.order(0, 0, shuffle=True), 200)])
    assert not sources[:50].any()
    assert sources[50:100].sum() == 25
    assert sources[100:].all()


def test_a_thousand_sources() -> None:
    counts = np.random.default_rng(0).integers(1, 50, 1000).tolist()
    weights = np.random.default_rng(1).uniform(0.1, 1, 1000).tolist()
    mixture = Mixture.of(selections(*counts), weights, stop="all_exhausted")
    got = mixture.order(0, 0, shuffle=True).locate(np.arange(mixture.count))
    assert len(set(zip(*(a.tolist() for a in got), strict=True))) == sum(counts)


def test_one_source_repeated() -> None:
    twice = Mixture.repeated(Selection.whole(6), 2)
    got = [record for _, record in pairs(twice.order(5, 0, shuffle=True))]
    assert len(twice) == 12
    assert sorted(got[:6]) == sorted(got[6:]) == list(range(6))
    assert got[:6] != got[6:]
    assert Mixture.repeated(Selection.whole(6), None).count == ENDLESS
    assert Mixture.repeated(Selection.whole(6), 0).count == 0
    assert Mixture.repeated(Selection.whole(1 << 40), 1 << 40).count == ENDLESS


def test_mixtures_of_mixtures_are_the_same_as_they_are_alone() -> None:
    inner = Mixture.of(selections(8, 5), [0.5, 0.5])
    other = Selection.whole(20, 2)
    outer = Mixture.of([inner, other], [0.5, 0.5], stop="all_exhausted")
    got = pairs(outer.order(1, 0, shuffle=True))
    assert len(got) == outer.count == 40
    inside = [pair for pair in got if pair[0] < 2]
    first = inside[: inner.count]
    assert sorted(record for source, record in first if source == 1) == list(range(5))
    endless = Mixture.of(
        [Mixture.of(selections(3, 4), [1, 1], stop="endless"), other], [1, 1], stop="all_exhausted"
    )
    assert endless.count == ENDLESS
    assert Mixture.of([Mixture.repeated(other, None), other], [1, 1]).count == 40


def test_both_ways_of_locating_agree() -> None:
    parts = selections(10, 7)
    plain = Mixture.of(parts, [0.7, 0.3], stop="endless").order(4, 2, shuffle=True)
    positions = np.arange(500)
    apart = plain._locate_each(*(plain_parts := _places(plain, positions)))
    assert len(plain_parts) == 3
    for one, other in zip(plain.locate(positions), apart, strict=True):
        assert one.tolist() == other.tolist()


def _places(order: Any, positions: np.ndarray[Any, Any]) -> tuple[Any, Any, Any]:
    parts, samples = order.mixture.interleaving.place(positions)
    sizes = order.mixture.sizes[parts]
    return parts, samples // sizes, samples % sizes


def test_a_window_is_shared_out() -> None:
    parts = selections(1000, 200)
    mixture = Mixture.of(parts, [0.5, 0.5], stop="all_exhausted")
    starts = [np.arange(0, 1001, 10), np.arange(0, 201, 10)]
    assert mixture.chunks(starts).tolist() == list(range(0, 1200, 10))
    window = Window(4, 30, mixture.chunks(starts))
    order = mixture.order(7, 0, shuffle=True, window=window)
    got = pairs(order)
    big = [record for source, record in got if source == 0]
    small = [record for source, record in got if source == 1]
    assert sorted(big) == list(range(1000))
    assert all(sorted(small[low : low + 200]) == list(range(200)) for low in range(0, 800, 200))
    # Among a hundred samples that follow each other far fewer shards are met than by a full shuffle.
    assert len({record // 10 for record in big[:100]}) < 30
    assert pairs(mixture.order(7, 0, shuffle=True, window=window), 50, 333) == got[333:383]


def test_shares_of_a_mixture_are_cut_from_one_order() -> None:
    mixture = Mixture.of(selections(40, 30), [0.6, 0.4], stop="endless")
    order = mixture.order(0, 0, shuffle=True)
    ranks = [batches_of(order, Share(6, rank, 3), start=12) for rank in range(3)]
    whole = pairs(order, 600, 12)
    for number in range(100):
        batches = [next(rank) for rank in ranks]
        for rank, batch in enumerate(batches):
            got = list(zip(batch.sources.tolist(), batch.records.tolist(), strict=True))
            assert got == whole[6 * number + rank : 6 * number + 6 : 3]


def test_slices_are_selections() -> None:
    endless = Mixture.of(selections(4, 4), [1, 1], stop="endless")
    assert pairs(endless[2:6]) == pairs(endless.order(0, 0, shuffle=False), 4, 2)
    assert isinstance(endless[:3], Selection)
    with pytest.raises(UsageError, match="too many"):
        endless[5:]
    finite = Mixture.of(selections(4, 4), [1, 1])
    assert pairs(finite[::-1]) == pairs(finite)[::-1]
    assert pairs(finite.take(finite.normalise([-1]))) == pairs(finite)[-1:]
    with pytest.raises(IndexError):
        finite.normalise([7])


def test_digests_name_what_is_mixed() -> None:
    def digest(
        counts: tuple[int, ...] = (6, 9), weights: tuple[float, ...] = (0.5, 0.5), **more: Any
    ) -> bytes:
        return Mixture.of(selections(*counts), weights, **more).digest()

    others = [
        digest((9, 6)),
        digest(weights=(0.4, 0.6)),
        digest(stop="endless"),
        digest(schedule=[(4, (0.1, 0.9))], stop="endless"),
        Mixture.repeated(Selection.whole(6), 2).digest(),
        Mixture.repeated(Selection.whole(6), 3).digest(),
        Mixture.of([Mixture.repeated(Selection.whole(6), 2)], [1]).digest(),
        Weighted(Selection.whole(6), np.ones(6), 6).digest(),
        Weighted(Selection.whole(6), np.ones(6), 7).digest(),
        Selection.whole(6).shuffled(0).digest(),
        Selection.whole(6).shuffled(1).digest(),
    ]
    assert len({digest(), *others}) == len(others) + 1
    assert digest() == digest(weights=(1, 1)) == digest(stop="first_exhausted")


def test_memory_does_not_grow_with_records() -> None:
    def peak(count: int) -> int:
        tracemalloc.start()
        mixture = Mixture.of(selections(count, count // 2), [0.7, 0.3], stop="all_exhausted")
        mixture.order(0, 0, shuffle=True).locate(np.arange(4096))
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(10**4)
    assert peak(10**10) < 2 * peak(10**4) + 100_000


def test_weighted_draws() -> None:
    weights = np.array([0.0, 1, 2, 5, 0])
    weighted = Weighted(Selection.whole(5), weights, 80_000)
    order = weighted.order(3, 1, shuffle=True)
    drawn = order.locate(np.arange(80_000))[1]
    counts = np.bincount(drawn, minlength=5)
    assert counts[0] == counts[4] == 0
    expected = 10_000 * weights
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected + 1)).all()
    assert order.locate(np.arange(500, 600))[1].tolist() == drawn[500:600].tolist()
    assert weighted.order(3, 2, shuffle=True).locate(np.arange(100))[1].tolist() != drawn[:100].tolist()
    fixed = weighted.locate(np.arange(100))[1].tolist()
    assert weighted.order(3, 2, shuffle=False).locate(np.arange(100))[1].tolist() == fixed
    # Neighbouring draws do not depend on each other.
    pairs_seen = np.bincount(drawn[:-1] * 5 + drawn[1:], minlength=25).reshape(5, 5)
    independent = np.outer(counts, counts) / len(drawn)
    assert (np.abs(pairs_seen - independent) < 5 * np.sqrt(independent + 1)).all()


@pytest.mark.parametrize("kind", ["even", "random", "sparse", "steep", "one"])
def test_draws_find_the_entries_that_the_sums_say(kind: str) -> None:
    random = np.random.default_rng(0)
    weights = {
        "even": np.ones(1000),
        "random": random.random(1000),
        "sparse": (random.random(1000) < 0.02) * random.random(1000),
        "steep": 0.9 ** np.arange(1000),
        "one": np.eye(1000)[500],
    }[kind]
    weighted = Weighted(Selection.whole(1000), weights, 1)
    uniform = np.concatenate([random.random(5000), np.arange(1000) / 1000, [1 - 2.0**-53]])
    sums = np.cumsum(weights)
    expected = np.searchsorted(sums, uniform * sums[-1], side="right")
    assert weighted.entries(uniform).tolist() == np.minimum(expected, np.flatnonzero(weights)[-1]).tolist()


def test_weights_that_cannot_be_drawn_by() -> None:
    for weights, samples in (([1.0], 1), ([1.0, -1], 1), ([1, np.nan], 1), ([0.0, 0], 1), ([1.0, 1], -1)):
        with pytest.raises(UsageError):
            Weighted(Selection.whole(2), np.array(weights), samples)
    assert Weighted(Selection.whole(0), np.empty(0), 0).count == 0


def test_a_shuffled_selection_composes() -> None:
    base = Selection.whole(50, 1)[5:] + Selection.whole(10, 0)
    shuffled = base.shuffled(3)
    line = pairs(shuffled, 55)
    assert sorted(line) == sorted(pairs(base, 55))
    assert line != pairs(base, 55)
    assert pairs(shuffled[10:40:3][::-1], 10) == line[10:40:3][::-1]
    joined = shuffled[:5] + base[:2] + base.take(np.array([7])) + base.shuffled(4)[:3] + shuffled[50:]
    assert pairs(joined, len(joined)) == (
        line[:5] + pairs(base, 2) + pairs(base, 1, 7) + pairs(base.shuffled(4), 3) + line[50:]
    )
    assert pairs(joined.renumbered([4, 6]), 5) == [({0: 4, 1: 6}[s], r) for s, r in line[:5]]
    assert joined.source_counts(2).sum() == len(joined)
    assert shuffled.chunks([np.array([0, 10]), np.array([0, 25, 50])]).tolist() == [0, 20, 40]
    assert pairs(shuffled.shuffled(3), 55) != line
    # Not the order of an epoch with the same seed.
    assert Selection.whole(1000).shuffled(0).records().tolist() != permute(range(1000), 1000, 0, 0).tolist()
    assert len(Selection.whole(0).shuffled(0).records()) == 0
