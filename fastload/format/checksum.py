"""CRC-32C: natively where the core is built, else vectorised over NumPy lanes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from fastload import _backend
from fastload.format.protocols import BytesLike

__all__ = ["combine", "crc32c"]

_POLYNOMIAL = 0x82F63B78
_LANE_WORDS = 16
_LANE_BYTES = 4 * _LANE_WORDS
_LEAST_VECTOR_BYTES = 768  # below, the plain loop is faster than 16 rounds of NumPy calls

_Words = npt.NDArray[np.uint32]


def crc32c(data: BytesLike, value: int = 0) -> int:
    """Return the CRC-32C of ``data`` (contiguous), continuing from ``value``, the CRC of what came before.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    core = _backend.core()
    if core is not None:
        return int(core.crc32c(data, value))
    return python_crc32c(data, value)


def python_crc32c(data: BytesLike, value: int = 0) -> int:
    """Return what :func:`crc32c` does, without the core."""
    view = memoryview(data).cast("B")
    state = value ^ 0xFFFFFFFF
    lanes = len(view) // _LANE_BYTES
    if len(view) < _LEAST_VECTOR_BYTES:
        lanes = 0
    for begin in range(0, lanes, 1 << 14):
        part = view[begin * _LANE_BYTES : min(begin + (1 << 14), lanes) * _LANE_BYTES]
        state = _shift(state, len(part)) ^ _lanes(np.frombuffer(part, dtype="<u4"))
    table = _byte_table()
    for byte in view[lanes * _LANE_BYTES :]:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC of two pieces, one behind the other, from the CRCs of each.

    >>> combine(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
    return _shift(first, second_bytes) ^ second


@functools.lru_cache(maxsize=1)
def _byte_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


@functools.lru_cache(maxsize=64)
def _power_basis(power: int) -> tuple[int, ...]:
    """Images of the 32 unit states after 2^power zero bytes: a linear map over GF(2)."""
    if power == 0:
        table = _byte_table()
        return tuple(table[(1 << bit) & 0xFF] ^ ((1 << bit) >> 8) for bit in range(32))
    half = _power_basis(power - 1)
    return tuple(_apply(half, image) for image in half)


def _apply(basis: tuple[int, ...], state: int) -> int:
    out = 0
    while state:
        low = state & -state
        out ^= basis[low.bit_length() - 1]
        state ^= low
    return out


def _shift(state: int, zero_bytes: int) -> int:
    """Return the raw state after that many zero bytes."""
    power = 0
    while zero_bytes and state:
        if zero_bytes & 1:
            state = _apply(_power_basis(power), state)
        zero_bytes >>= 1
        power += 1
    return state


@functools.lru_cache(maxsize=64)
def _halves(power: int) -> tuple[_Words, _Words]:
    """The map of :func:`_power_basis` as two tables, for the low and the high 16 bits of a state."""
    basis = _power_basis(power)
    tables = []
    for first in (0, 16):
        table = np.zeros(1, dtype=np.uint32)
        for bit in range(first, first + 16):
            table = np.concatenate([table, table ^ np.uint32(basis[bit])])
        tables.append(table)
    return tables[0], tables[1]


def _lanes(words: _Words) -> int:
    """Return the raw CRC, from state 0, of whole lanes."""
    columns = np.ascontiguousarray(words.reshape(-1, _LANE_WORDS).T)
    low, high = _halves(2)  # four bytes at a time
    state = np.zeros(columns.shape[1], dtype=np.uint32)
    for column in columns:
        state ^= column
        state = low[state & 0xFFFF] ^ high[state >> 16]
    power = _LANE_BYTES.bit_length() - 1
    while len(state) > 1:
        if len(state) % 2:  # a lane of zeros in front changes nothing
            state = np.concatenate([np.zeros(1, dtype=np.uint32), state])
        low, high = _halves(power)
        left = state[0::2]
        state = low[left & 0xFFFF] ^ high[left >> 16] ^ state[1::2]
        power += 1
    return int(state[0])
