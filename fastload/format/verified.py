"""Which values and blocks were checked already: bitmaps that take memory only where something was read."""

from __future__ import annotations

from fastload.errors import UsageError

__all__ = ["VERIFY", "Verified", "check_verify"]

VERIFY = ("first", "always", "never")
_PAGE_BITS = 12


def check_verify(verify: str) -> str:
    """Return ``verify`` if it is one of :data:`VERIFY`. Raises UsageError otherwise."""
    if verify not in VERIFY:
        raise UsageError(f"verify is {verify!r}", hint=f"use one of {', '.join(VERIFY)}")
    return verify


class Verified:
    """Answers whether a value or block is still to be checked, under one of :data:`VERIFY`."""

    def __init__(self, verify: str) -> None:
        self.verify = check_verify(verify)
        self._pages: dict[tuple[int, int], bytearray] = {}

    def wanted(self, key: int, index: int) -> bool:
        """Return whether item ``index`` of the group ``key`` must be checked now."""
        if self.verify != "first":
            return self.verify == "always"
        page = self._pages.get((key, index >> _PAGE_BITS))
        bit = index & ((1 << _PAGE_BITS) - 1)
        return page is None or not page[bit >> 3] >> (bit & 7) & 1

    def done(self, key: int, index: int) -> None:
        """Note that the item was checked and is right."""
        if self.verify == "first":
            page = self._pages.setdefault((key, index >> _PAGE_BITS), bytearray(1 << _PAGE_BITS >> 3))
            bit = index & ((1 << _PAGE_BITS) - 1)
            page[bit >> 3] |= 1 << (bit & 7)
