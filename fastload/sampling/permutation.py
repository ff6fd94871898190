"""The keyed permutation that orders an epoch: position to record, without a table.

A Feistel network over the smallest power of two that holds ``count``, walked until the value is below
``count``. docs/architecture.md specifies it; native/core/permutation.cpp gives the same numbers.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from fastload import _backend
from fastload.errors import UsageError

__all__ = ["MAX_COUNT", "ORDER_VERSION", "permute"]

Int64Array = npt.NDArray[np.int64]

ORDER_VERSION = 1
"""Version of the order: it changes whenever :func:`permute` would give other numbers."""

MAX_COUNT = 1 << 62
ROUNDS = 8
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def permute(positions: npt.ArrayLike, count: int, seed: int, epoch: int) -> Int64Array:
    """Return where ``positions`` go in the permutation of ``range(count)`` that ``seed`` and ``epoch`` name.

    ``positions`` is a one-dimensional array of integers in [0, count); the result is int64 of the same
    length. Time and memory depend on ``len(positions)`` only. Raises UsageError for a position or a count
    (at most 2^62) out of range.

    >>> permute(range(8), 8, seed=0, epoch=0).tolist()
    [3, 2, 4, 6, 0, 1, 7, 5]
    >>> int(permute([10**9], 10**12, seed=0, epoch=1)[0]) < 10**12
    True
    """
    array: Int64Array = np.ascontiguousarray(positions, dtype=np.int64)
    if not 0 <= count <= MAX_COUNT:
        raise UsageError(f"cannot order {count} records", hint="the limit is 2^62")
    if not len(array):
        return np.empty(0, np.int64)
    outside = (array < 0) | (array >= count)
    if outside.any():
        raise UsageError(f"position {int(array[outside][0])} is not in [0, {count})")
    core = _backend.core()
    if core is not None:
        result: Int64Array = core.permute(array, count, seed & _MASK64, epoch & _MASK64)
        return result
    return _permute_numpy(array, count, seed & _MASK64, epoch & _MASK64)


def _permute_numpy(positions: Int64Array, count: int, seed: int, epoch: int) -> Int64Array:
    bits = max(2, (count - 1).bit_length())
    right_bits = bits // 2
    keys = _round_keys(seed, epoch)
    result = _feistel(positions, bits - right_bits, right_bits, keys)
    outside = np.flatnonzero(result >= count)
    while len(outside):
        result[outside] = _feistel(result[outside], bits - right_bits, right_bits, keys)
        outside = outside[result[outside] >= count]
    return result


def _feistel(values: Int64Array, left_bits: int, right_bits: int, keys: tuple[int, ...]) -> Int64Array:
    left_mask = np.uint32((1 << left_bits) - 1)
    right_mask = np.uint32((1 << right_bits) - 1)
    left = (values >> right_bits).astype(np.uint32)
    right = values.astype(np.uint32) & right_mask
    for number, key in enumerate(keys):
        if number % 2 == 0:
            left ^= _mix32(right, key) & left_mask
        else:
            right ^= _mix32(left, key) & right_mask
    joined: Int64Array = left.astype(np.int64) << right_bits | right.astype(np.int64)
    return joined


def _mix32(values: npt.NDArray[np.uint32], key: int) -> npt.NDArray[np.uint32]:
    mixed: npt.NDArray[np.uint32] = values ^ np.uint32(key)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> np.uint32(16)
    return mixed


@functools.lru_cache(maxsize=64)
def _round_keys(seed: int, epoch: int) -> tuple[int, ...]:
    state = _splitmix64(seed ^ (_GOLDEN * (2 * epoch + 1) & _MASK64))
    return tuple(_splitmix64(state + _GOLDEN * (i + 1)) >> 32 for i in range(ROUNDS))


def _splitmix64(value: int) -> int:
    """Return SplitMix64's finaliser of the low 64 bits of ``value``."""
    value &= _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31
