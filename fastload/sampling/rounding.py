"""Counts in given proportions that sum to a whole exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from fastload.errors import UsageError

__all__ = ["cells_of", "shares_of"]


def shares_of(count: int, fractions: Sequence[float]) -> list[int]:
    """Return ``count`` divided by ``fractions``, which sum to 1, by largest remainder.

    >>> shares_of(10, [0.85, 0.15])
    [9, 1]
    """
    valid = all(math.isfinite(one) and one >= 0 for one in fractions)
    exact = [Fraction(repr(float(one))) for one in fractions] if valid else []
    total = sum(exact, Fraction(0))
    if abs(total - 1) > Fraction(1, 10**6):
        raise UsageError(
            f"these fractions do not sum to 1: {list(fractions)}", hint="give [0.9, 0.1], for example"
        )
    ideal = [one * count / total for one in exact]
    sizes = [int(one) for one in ideal]
    behind = sorted(range(len(sizes)), key=lambda number: sizes[number] - ideal[number])
    for number in behind[: count - sum(sizes)]:
        sizes[number] += 1
    return sizes


def cells_of(rows: Sequence[int], columns: Sequence[int]) -> list[list[int]]:
    """Return a table of integers with these sums, each row divided nearly as the whole is.

    For two columns each cell is off by less than 1 from its share; more columns are divided off one by
    one, and what one is off adds, in proportion, to those after it.

    >>> cells_of([5, 3, 2], [7, 3])
    [[4, 1], [2, 1], [1, 1]]
    """
    left, table = list(rows), [[0] * len(columns) for _ in rows]
    for number, size in enumerate(columns[:-1]):
        total, seen, given = sum(left), 0, 0
        for row, count in enumerate(left):
            seen += count
            # Rounded sums: their differences are the cells, which so sum to ``size``.
            upto = (2 * seen * size + total) // (2 * total) if total else 0
            table[row][number] = upto - given
            given = upto
        left = [count - cells[number] for count, cells in zip(left, table, strict=True)]
    for cells, count in zip(table, left, strict=True):
        cells[-1] = count
    return table
