"""The only reader of the environment, and the only logger.

| variable | values | meaning |
|---|---|---|
| ``FASTLOAD_BACKEND`` | ``auto`` (default), ``native``, ``python`` | which engine and readers to use |
| ``FASTLOAD_TRANSPORT`` | ``slabs`` (default), ``torch`` | how worker processes hand batches over |
| ``WORLD_SIZE`` | a number, set by torchrun | how many processes were launched together |
| ``LOCAL_WORLD_SIZE`` | a number, set by torchrun | how many of them run on this machine |
"""

from __future__ import annotations

import logging
import os

from fastload.errors import UsageError

logger = logging.getLogger("fastload")

BACKENDS = ("auto", "native", "python")
TRANSPORTS = ("slabs", "torch")


def backend_choice() -> str:
    """Return what ``FASTLOAD_BACKEND`` asks for: ``"auto"``, ``"native"`` or ``"python"``.

    Raises UsageError for any other value.

    >>> backend_choice() in BACKENDS
    True
    """
    return _choice("FASTLOAD_BACKEND", BACKENDS)


def transport_choice() -> str:
    """Return what ``FASTLOAD_TRANSPORT`` asks for: ``"slabs"`` or ``"torch"``.

    Raises UsageError for any other value.

    >>> transport_choice() in TRANSPORTS
    True
    """
    return _choice("FASTLOAD_TRANSPORT", TRANSPORTS)


def _choice(name: str, choices: tuple[str, ...]) -> str:
    """Return the value of a variable that is one of ``choices``, the first by default."""
    value = os.environ.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"{name} is {value!r}", hint=f"set it to one of {', '.join(choices)}, or unset it")
    return value


def launched_world() -> int:
    """Return how many processes torchrun, or another launcher, started together: 1 where none did."""
    return _number("WORLD_SIZE")


def launched_world_here() -> int:
    """Return how many processes were started together on this machine: 1 where no launcher says."""
    return _number("LOCAL_WORLD_SIZE")


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return max(1, int(value)) if value.isdecimal() else 1
