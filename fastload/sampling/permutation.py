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

__all__ = ["MAX_COUNT", "ORDER_VERSION", "absorb", "permutation_key", "permute", "permute_each"]

Int64Array = npt.NDArray[np.int64]
UInt32Array = npt.NDArray[np.uint32]
UInt64Array = npt.NDArray[np.uint64]

ORDER_VERSION = 2
"""Version of the order: it changes whenever :func:`permute` or the window order would give other numbers."""

MAX_COUNT = 1 << 62
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def permute(positions: npt.ArrayLike, count: int, seed: int, epoch: int) -> Int64Array:
    """Return where ``positions`` go in the permutation of ``range(count)`` that ``seed`` and ``epoch`` name.

    ``positions`` is a one-dimensional array of integers in [0, count); the result is int64 of the same
    length. Time and memory depend on ``len(positions)`` only. Raises UsageError for a position or a count
    (at most 2^62) out of range.

    >>> permute(range(8), 8, seed=0, epoch=0).tolist()
    [6, 7, 5, 1, 2, 4, 0, 3]
    >>> int(permute([10**9], 10**12, seed=0, epoch=1)[0]) < 10**12
    True
    """
    array: Int64Array = np.ascontiguousarray(positions, dtype=np.int64)
    if not 0 <= count <= MAX_COUNT:
        raise UsageError(f"cannot order {count} records", hint="the limit is 2^62")
    if not len(array):
        return np.empty(0, np.int64)
    core = _backend.core()
    key = permutation_key(seed, epoch)
    if core is None or not count:
        return _permute_numpy(array, count, key)
    result: Int64Array = core.permute(array, count, key)
    return result


def permute_each(positions: Int64Array, counts: Int64Array, keys: UInt64Array) -> Int64Array:
    """Return where each of ``positions`` goes in a permutation of its own: of ``range(counts[i])``.

    All three are one-dimensional, of one length, and contiguous. Raises UsageError for a position that is
    not below its count, or a count above 2^62.

    >>> keys = np.full(3, permutation_key(0, 0), np.uint64)
    >>> permute_each(np.arange(3), np.full(3, 8), keys).tolist() == permute(range(3), 8, 0, 0).tolist()
    True
    """
    core = _backend.core()
    if core is not None:
        result: Int64Array = core.permute_each(positions, counts, keys)
        return result
    return _permute_each_numpy(positions, counts, keys)


def permutation_key(*words: int) -> int:
    """Return the 64-bit key that a sequence of integers (their low 64 bits) names.

    >>> permutation_key(0, 1) != permutation_key(1, 0)
    True
    """
    key = 0
    for word in words:
        key = _mix64((key ^ word & _MASK64) + _GOLDEN)
    return key


def absorb(keys: UInt64Array, words: Int64Array | UInt64Array) -> UInt64Array:
    """Return the keys of the sequences that ``keys`` name with one more word each.

    >>> keys = absorb(np.array([permutation_key(5)], np.uint64), np.array([6]))
    >>> keys.tolist() == [permutation_key(5, 6)]
    True
    """
    return _mix64_array((keys ^ words.astype(np.uint64)) + np.uint64(_GOLDEN))


# --- the network ---------------------------------------------------------------------------------------


def _permute_numpy(positions: Int64Array, count: int, key: int) -> Int64Array:
    outside = (positions < 0) | (positions >= count)
    if outside.any():
        raise UsageError(f"position {int(positions[outside][0])} is not in [0, {count})")
    if count == 1:
        return np.zeros_like(positions)
    return _walk(positions, np.array([count]), _bits(count), _scalar_round_keys(key, count))


def _permute_each_numpy(positions: Int64Array, counts: Int64Array, keys: UInt64Array) -> Int64Array:
    outside = (positions < 0) | (positions >= counts) | (counts > MAX_COUNT)
    if outside.any():
        wrong = int(np.flatnonzero(outside)[0])
        raise UsageError(f"position {positions[wrong]} is not in [0, {counts[wrong]})")
    result = np.zeros(len(positions), np.int64)
    sizes, which = np.unique(counts, return_inverse=True)
    widths = np.array([_bits(size) for size in sizes.tolist()], np.int64)[which]
    for bits in np.unique(widths[counts > 1]).tolist():
        chosen = np.flatnonzero(widths == bits)
        round_keys = _round_keys(keys[chosen], counts[chosen], bits)
        result[chosen] = _walk(positions[chosen], counts[chosen], bits, round_keys)
    return result


def _bits(count: int) -> int:
    return max(2, (count - 1).bit_length())


def _rounds(bits: int) -> int:
    """Return the number of rounds: after r of them pairs are uniform to about 2^(-bits * r / 2)."""
    return max(8, 4 * -(-24 // bits))


def _walk(positions: Int64Array, counts: Int64Array, bits: int, keys: UInt32Array) -> Int64Array:
    """Run the network until every value is below its count.

    ``counts`` has 1 or as many numbers as there are values, all of ``bits`` bits; ``keys`` are (rounds, 1)
    or (rounds, values).
    """
    result = _feistel(positions, bits, keys)
    outside = np.flatnonzero(result >= counts)
    while len(outside):
        chosen = keys if keys.shape[1] == 1 else keys[:, outside]
        result[outside] = _feistel(result[outside], bits, chosen)
        outside = outside[result[outside] >= (counts if len(counts) == 1 else counts[outside])]
    return result


def _feistel(values: Int64Array, bits: int, keys: UInt32Array) -> Int64Array:
    right_bits = bits // 2
    left_mask = np.uint32((1 << bits - right_bits) - 1)
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


def _mix32(values: UInt32Array, key: UInt32Array) -> UInt32Array:
    mixed: UInt32Array = values ^ key
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x7FEB352D)
    mixed ^= mixed >> np.uint32(15)
    mixed *= np.uint32(0x846CA68B)
    mixed ^= mixed >> np.uint32(16)
    return mixed


def _round_keys(keys: UInt64Array, counts: Int64Array, bits: int) -> UInt32Array:
    """Return the round keys of permutations of ``counts``, all of ``bits`` bits: (rounds, keys)."""
    states = absorb(keys, counts)
    rounds = _rounds(bits)
    out = np.empty((rounds, len(keys)), np.uint32)
    for pair in range(rounds // 2):
        mixed = _mix64_array(states + np.uint64(_GOLDEN * (pair + 1) & _MASK64))
        out[2 * pair] = mixed >> np.uint64(32)
        out[2 * pair + 1] = mixed & np.uint64(0xFFFFFFFF)
    return out


@functools.lru_cache(maxsize=64)
def _scalar_round_keys(key: int, count: int) -> UInt32Array:
    return _round_keys(np.array([key], np.uint64), np.array([count]), _bits(count))


def _mix64(value: int) -> int:
    """Return SplitMix64's finaliser of the low 64 bits of ``value``."""
    value &= _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31


def _mix64_array(values: UInt64Array) -> UInt64Array:
    mixed: UInt64Array = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
