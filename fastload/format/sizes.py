"""Sizes as people write them."""

from __future__ import annotations

import re

from fastload.errors import UsageError

__all__ = ["parse_size"]

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "p": 10**15,
    "ki": 1 << 10,
    "mi": 1 << 20,
    "gi": 1 << 30,
    "ti": 1 << 40,
    "pi": 1 << 50,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgtp]i?)?b?\s*", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """Return a number of bytes given as an integer or as text.

    >>> parse_size("256MB"), parse_size("64 KiB"), parse_size(10)
    (256000000, 65536, 10)

    Raises UsageError for anything else, and for sizes below 1.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        value = size
    else:
        match = _SIZE.fullmatch(size) if isinstance(size, str) else None
        if match is None:
            raise UsageError(
                f"{size!r} is not a size", hint="write bytes as an integer, or for example '256MB'"
            )
        value = int(float(match[1]) * _UNITS[(match[2] or "").lower()])
    if value < 1:
        raise UsageError(f"the size {size!r} is below 1 byte")
    return value
