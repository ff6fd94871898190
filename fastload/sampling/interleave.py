"""Sources interleaved by weights: which one has a position, and how many samples of it came before.

docs/architecture.md specifies it ("Mixtures").
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError

__all__ = ["MAX_BLOCK", "Interleaving", "block_counts", "pattern"]

Int64Array = npt.NDArray[np.int64]

MAX_BLOCK = 10_000
"""Weights are exact if a block of so many positions can hold them, else off by less than 1 in so many."""


def block_counts(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many positions of a block each source gets: weights as integers, in lowest terms.

    Weights are read as the decimals they print as, and need not sum to 1. They are exact where a block of
    MAX_BLOCK positions can hold them: so are weights of up to four decimals that sum to 1, and equal
    weights of any number of sources. Others are rounded by largest remainder to a block of MAX_BLOCK, or
    of ten positions a source where that is more: each share is off by less than 1 position of the block,
    but that every source of a weight above zero gets one at least.

    >>> block_counts([0.7, 0.3]), block_counts([1, 1, 1]), block_counts([0.125, 0, 0.5])
    ((7, 3), (1, 1, 1), (1, 0, 4))
    >>> block_counts([math.pi, 1])
    (1517, 483)
    """
    exact = [_fraction(weight) for weight in weights]
    unit = math.lcm(*(weight.denominator for weight in exact))
    integers = [weight.numerator * (unit // weight.denominator) for weight in exact]
    total, divisor = sum(integers), math.gcd(*integers)
    if not total:
        raise UsageError("no source has a weight above zero", hint="give one at least a weight")
    used = len(integers) - integers.count(0)
    if total // divisor > max(MAX_BLOCK, used):
        integers = _largest_remainder(integers, total, max(MAX_BLOCK, 10 * used))
        divisor = math.gcd(*integers)
    return tuple(weight // divisor for weight in integers)


def _fraction(weight: float) -> Fraction:
    value = float(weight)
    if not (math.isfinite(value) and value >= 0):
        raise UsageError(f"a weight is {weight}", hint="give finite numbers, 0 or more")
    return Fraction(repr(value))


def _largest_remainder(weights: Sequence[int], total: int, block: int) -> list[int]:
    """Return ``block`` divided by ``weights``, which sum to ``total``: 1 at least for a weight above 0."""
    counts = [max(weight * block // total, int(weight > 0)) for weight in weights]

    def above(source: int) -> int:
        return counts[source] * total - weights[source] * block

    for source in sorted(range(len(counts)), key=above)[: max(0, block - sum(counts))]:
        counts[source] += 1
    while sum(counts) > block:  # for sources that got 1 and have less
        counts[max((s for s in range(len(counts)) if counts[s] > 1), key=above)] -= 1
    return counts


@functools.lru_cache(maxsize=64)
def pattern(counts: tuple[int, ...]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Return, for each position of a block, its source and how many of that source came before it there.

    Of the first m of L positions a source with c positions has floor(m c / L) or ceil(m c / L). Proof: its
    sample j may not come before position floor(j L / c), and must be among the first ceil((j + 1) L / c).
    Samples of a source that have both limits within positions [a, b) number at most (b - a) c / L, so
    those of all sources at most b - a: Hall's condition, so that an order within all limits exists, and
    taking the sample of the earliest deadline among those released, as is done here, finds one. Then at
    position m, of a source's samples, those with (j + 1) L / c <= m came, and only those with j L / c < m.

    >>> pattern((3, 2))[0].tolist()
    [0, 1, 0, 0, 1]
    """
    block = sum(counts)
    sources = np.empty(block, np.int32)
    ranks = np.empty(block, np.int32)
    waiting = [(0, source) for source, count in enumerate(counts) if count]  # a heap of (release, source)
    released: list[tuple[int, int]] = []  # a heap of (deadline, source)
    given = [0] * len(counts)
    for position in range(block):
        while waiting and waiting[0][0] <= position:
            source = heapq.heappop(waiting)[1]
            deadline = -(-(given[source] + 1) * block // counts[source])
            heapq.heappush(released, (deadline, source))
        source = heapq.heappop(released)[1]
        sources[position], ranks[position] = source, given[source]
        given[source] += 1
        if given[source] < counts[source]:
            heapq.heappush(waiting, (given[source] * block // counts[source], source))
    return sources, ranks


@dataclasses.dataclass(frozen=True, eq=False)
class Interleaving:
    """Sources interleaved in blocks, by weights that may change at some positions.

    ``starts[i]`` is where segment i begins, ``counts[i]`` what its blocks hold of each source. Memory is
    O(segments x (sources + block)).

    In any prefix of m positions each source has floor or ceil of its share of the block begun, and exactly
    its share of all complete blocks: it is off by less than 1 sample from the sum of its weights (as
    :func:`block_counts` rounds them) over the m positions.

    >>> interleaving = Interleaving.of([0.5, 0.5], schedule=[(3, [0, 1])])
    >>> interleaving.starts
    (0, 4)
    >>> sources, indices = interleaving.place(np.arange(6))
    >>> sources.tolist(), indices.tolist()
    ([0, 1, 0, 1, 1, 1], [0, 0, 1, 1, 2, 3])
    """

    starts: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(
        cls, weights: Sequence[float], schedule: Sequence[tuple[int, Sequence[float]]] = ()
    ) -> Interleaving:
        """Return the interleaving by ``weights`` up to the first position of ``schedule``.

        From each of its positions on its weights count; a change waits for the end of the block begun.
        """
        starts, counts = [0], [block_counts(weights)]
        for asked, changed in schedule:
            if len(changed) != len(weights):
                raise UsageError(
                    f"{len(changed)} weights from position {asked} on, for {len(weights)} sources"
                )
            if asked < 0:
                raise UsageError(f"weights change at position {asked}", hint="give 0 or more")
            block = sum(counts[-1])
            start = starts[-1] - (starts[-1] - asked) // block * block if asked > starts[-1] else starts[-1]
            starts.append(start)
            counts.append(block_counts(changed))
        if any(one[0] > other[0] for one, other in itertools.pairwise(schedule)):
            raise UsageError("the positions of a schedule must ascend")
        return cls(tuple(starts), tuple(counts))

    @functools.cached_property
    def _patterns(self) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
        """Return the patterns of all segments in a row: sources, ranks; where each begins, its length."""
        parts = [pattern(counts) for counts in self.counts]
        sizes = np.array([len(part[0]) for part in parts], np.int64)
        sources = np.concatenate([part[0] for part in parts]).astype(np.int64)
        ranks = np.concatenate([part[1] for part in parts]).astype(np.int64)
        return sources, ranks, np.cumsum(sizes) - sizes, sizes

    @functools.cached_property
    def _before(self) -> Int64Array:
        """Samples of each source before each segment: (segments, sources)."""
        counts = np.array(self.counts, np.int64)
        starts = np.array(self.starts, np.int64)
        blocks = np.diff(starts) // counts[:-1].sum(axis=1)
        before = np.zeros_like(counts)
        before[1:] = np.cumsum(counts[:-1] * blocks[:, None], axis=0)
        return before

    def place(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the source at each position, and how many samples of that source came before it."""
        sources, ranks, firsts, sizes = self._patterns
        counts = self._counts
        if len(self.starts) == 1:
            blocks, places = np.divmod(positions, sizes[0])
            chosen = sources[places]
            return chosen, blocks * counts[0][chosen] + ranks[places]
        starts = np.array(self.starts, np.int64)
        segments = np.searchsorted(starts, positions, side="right") - 1
        within: Int64Array = positions - starts[segments]
        blocks = within // sizes[segments]
        places = within - blocks * sizes[segments] + firsts[segments]
        chosen = sources[places]
        return chosen, self._before[segments, chosen] + blocks * counts[segments, chosen] + ranks[places]

    @functools.cached_property
    def _counts(self) -> Int64Array:
        return np.array(self.counts, np.int64)

    def reach(self, source: int, samples: int) -> int | None:
        """Return the least number of positions that have ``samples`` (1 or more) samples of a source.

        None where its weight is zero before and for ever.

        >>> Interleaving.of([0.7, 0.3]).reach(1, 30)
        100
        """
        before: list[int] = self._before[:, source].tolist()
        for segment in reversed(range(len(self.starts))):
            count = self.counts[segment][source]
            if before[segment] < samples:
                if not count:
                    return None  # no segment after it has any either
                blocks, rank = divmod(samples - before[segment] - 1, count)
                place = int(np.flatnonzero(pattern(self.counts[segment])[0] == source)[rank])
                return self.starts[segment] + blocks * sum(self.counts[segment]) + place + 1
        return None
