"""The random draws of transforms: Philox4x32-10 keyed by seed, epoch, position, group and operation.

A draw is a pure function of its key, so that a sample is augmented alike on any number of workers,
ranks and nodes, and after a resume. native/core/philox.h draws the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple

DRAWS_VERSION = 1
"""Version of the draws: it changes whenever a key would give other numbers (docs/architecture.md)."""

_MASK = 0xFFFFFFFF

# The numbers of transform groups end here; these key other draws.
LAST_GROUP = 251
MAP_GROUP = 252
BATCH_GROUP = 253
SUBSTITUTE_GROUP = 255


class SampleKey(NamedTuple):
    """What identifies the draws of one sample in one transform group."""

    seed: int = 0
    epoch: int = 0
    position: int = 0
    group: int = 0


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Return the four 32-bit words of the block at ``counter`` under ``key`` (ten rounds).

    >>> [hex(word) for word in philox4x32((0, 0, 0, 0), (0, 0))]
    ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = 0xD2511F53 * c0
        product1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (
            (product1 >> 32) ^ c1 ^ k0,
            product1 & _MASK,
            (product0 >> 32) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0 = (k0 + 0x9E3779B9) & _MASK
        k1 = (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


class Draws:
    """The draws of one operation on one sample.

    ``group`` numbers the transform group and ``op`` the operation in it, each below 256; draw numbers
    are below 131,072. Drawing number i twice gives the same value twice.

    >>> Draws(7, 0, 42).uniform(3) == Draws(7, 0, 42).uniform(3)
    True
    """

    __slots__ = ("_counter", "_key")

    def __init__(self, seed: int, epoch: int, position: int, group: int = 0, op: int = 0) -> None:
        self._key = (seed & _MASK, (seed >> 32) & _MASK)
        self._counter = (
            position & _MASK,
            (position >> 32) & _MASK,
            epoch & _MASK,
            (group & 0xFF) << 24 | (op & 0xFF) << 16,
        )

    def uniform(self, i: int) -> float:
        """Return draw number ``i``: uniform in [0, 1), a multiple of 2**-53."""
        c0, c1, c2, c3 = self._counter
        block = philox4x32((c0, c1, c2, c3 | ((i >> 1) & 0xFFFF)), self._key)
        at = (i & 1) * 2
        return ((block[at] >> 5) * 67108864.0 + (block[at + 1] >> 6)) * (1.0 / 9007199254740992.0)

    def integer(self, i: int, n: int) -> int:
        """Return draw number ``i`` as an integer in [0, ``n``): floor(uniform * n)."""
        return int(self.uniform(i) * float(n))

    def seed(self, i: int) -> int:
        """Return draw number ``i`` as 53 random bits, to seed another generator with."""
        return int(self.uniform(i) * 9007199254740992.0)
