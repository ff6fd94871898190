"""How many batches are made ahead of the consumer: what was asked for, or as many as it turns out to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastload._config import launched_world_here
from fastload._machine import usable_cpus, usable_memory_bytes

__all__ = ["AutoWorkers", "Prefetch", "batch_bytes"]

WAIT_SECONDS = 0.005
"""A batch that takes the consumer less than this was ready. Handing over one that is takes torch's worker
processes 1 to 3 ms where all CPUs are busy, and native threads 0.07 ms."""

SHARE_OF_MEMORY = 8
"""Where no ``buffer_bytes`` is given, prefetched batches may grow to one part in so many of what is free."""

MOST_BATCHES = 256
"""However small they are: behind so many, the order of work is no longer what the consumer waits for."""


class AutoWorkers(int):
    """How many workers ``num_workers="auto"`` came to be.

    It is an int for everyone who reads ``loader.num_workers``, and says "auto" again to the loader that a
    framework makes of this one.

    >>> AutoWorkers.choose() >= 1
    True
    """

    @classmethod
    def choose(cls) -> AutoWorkers:
        """Return one worker a CPU that this process may use, shared with the ranks on this machine."""
        return cls(max(1, usable_cpus() // launched_world_here()))


class Prefetch:
    """How many batches are made ahead of the consumer.

    With ``grows`` they become ``step`` more when the consumer waits for a batch although it had found as
    many ready in a row, before it, as are made ahead: then the workers keep up on the whole, and what was
    ready did not last over the slow one. A consumer that always waits has workers that are too slow, and one
    that never waits has enough; more batches would help neither. All together they stay below
    ``limit_bytes``.

    >>> prefetch = Prefetch(2, grows=True, limit_bytes=1000)
    >>> for waited in (0.5, 0, 0, 0.5):
    ...     grown = prefetch.note(waited, {"x": bytes(100)})
    >>> grown, prefetch.batches
    (True, 3)
    """

    def __init__(
        self, batches: int, *, grows: bool = False, step: int = 1, limit_bytes: int | None = None
    ) -> None:
        self.batches = batches
        self.waits = 0
        """How often the consumer waited, the start of an iteration left out."""
        self._grows = grows
        self._step = step
        self._limit_bytes = limit_bytes
        self._ready: int | None = None

    def begin(self) -> None:
        """Begin an iteration, whose first batch is waited for by everyone."""
        self._ready = None

    def note(self, waited: float, batch: Any) -> bool:
        """Note that ``batch`` took the consumer ``waited`` seconds; return whether more are to be made."""
        if self._ready is None:
            self._ready = 0
            return False
        if waited < WAIT_SECONDS:
            self._ready += 1
            return False
        self.waits += 1
        ready, self._ready = self._ready, 0
        if not self._grows or ready < self.batches or not self._fits(self.batches + self._step, batch):
            return False
        self.batches += self._step
        return True

    def _fits(self, batches: int, batch: Any) -> bool:
        if self._limit_bytes is None:
            free = usable_memory_bytes()
            share = SHARE_OF_MEMORY * launched_world_here()
            self._limit_bytes = (1 << 30 if free is None else free) // share
        return batches <= MOST_BATCHES and batches * batch_bytes(batch) <= self._limit_bytes

    def told(self) -> dict[str, int]:
        """Return it as stats() does."""
        return {"prefetch_batches": self.batches, "waits": self.waits}


def batch_bytes(batch: Any, depth: int = 8) -> int:
    """Return how many bytes of arrays, tensors, bytes and text are in ``batch``, nested up to ``depth``.

    >>> import torch
    >>> batch_bytes([{"x": torch.zeros(2, 3)}, ("ab", b"c", 7)])
    27
    """
    size = getattr(batch, "nbytes", None)
    if isinstance(size, int):
        return size
    if isinstance(batch, (bytes, bytearray, str)):
        return len(batch)
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        batch = vars(batch).values() if hasattr(batch, "__dict__") else ()
    return sum(batch_bytes(part, depth - 1) for part in batch) if depth else 0
