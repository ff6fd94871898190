"""What becomes of batches between their making and the user: copied to a device, in the type asked for."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fastload.loader.prefetch import WAIT_SECONDS
from fastload.staging import Copier, Copy

__all__ = ["HandOver", "HasBatch"]


class HasBatch(Protocol):
    """What an iterator fetches: a batch that took it ``waited`` seconds, and what else is to be counted."""

    batch: Any
    waited: float


M = TypeVar("M", bound=HasBatch)


@dataclasses.dataclass
class _Fetched(Generic[M]):
    """One that was fetched: ``made`` (None: the epoch is over), or the ``error`` that came instead."""

    made: M | None = None
    copy: Copy | None = None
    error: Exception | None = None


class HandOver(Generic[M]):
    """Hands over what an iterator fetches, one after another, in the order fetched, errors too.

    With a ``copier`` one batch is copied to its device ahead of its use, where ``ahead`` allows. It is
    fetched without need, so only while batches are there before they are asked for: nothing waits for a
    batch that is not wanted yet. What was fetched ahead is not given yet, and counts when it is.

    ``before`` is called with each batch on the host, ``then`` with what arrives on the device (see
    Copier.submit), ``after`` with what is handed over.
    """

    def __init__(
        self,
        copier: Copier | None,
        *,
        ahead: bool = False,
        before: Callable[[Any], Any] | None = None,
        then: Callable[[Any], Any] | None = None,
        after: Callable[[Any], Any] | None = None,
    ) -> None:
        self._copier = copier
        self._ahead = ahead and copier is not None
        self._before, self._then, self._after = before, then, after
        self._kept: collections.deque[_Fetched[M]] = collections.deque()
        self._prompt = False

    def next(self, fetch: Callable[[], M | None]) -> M | None:
        """Return what ``fetch`` gave next, with its batch ready for use on the current stream.

        None, where ``fetch`` returned it, and errors end nothing here. StopIteration counts as an error.
        """
        fetched = self._kept.popleft() if self._kept else self._fetched(fetch)
        if fetched.made is None and self._copier is not None:
            self._copier.close()  # nothing may come after it for long
        if fetched.error is not None:
            try:
                raise fetched.error
            finally:
                # The error's traceback has this frame: a cycle would leave the iterator, and its workers, to
                # the collector.
                del fetched
        made = fetched.made
        if self._ahead and self._prompt and made is not None:
            try:
                self._kept.append(self._fetched(fetch))
            except Exception as error:  # it is the next one's; Ctrl-C is not
                self._kept.append(_Fetched(error=error))
        if made is not None:
            if self._copier is not None and fetched.copy is not None:
                made.batch = self._copier.take(fetched.copy)
            if self._after is not None:
                made.batch = self._after(made.batch)
        return made

    def _fetched(self, fetch: Callable[[], M | None]) -> _Fetched[M]:
        made = fetch()
        if made is None:
            return _Fetched()
        self._prompt = made.waited < WAIT_SECONDS
        if self._before is not None:
            made.batch = self._before(made.batch)
        if self._copier is None:
            return _Fetched(made)
        return _Fetched(made, self._copier.submit(made.batch, self._then))

    @property
    def pending(self) -> bool:
        """Whether something was fetched that has not been handed over."""
        return bool(self._kept)

    def clear(self) -> None:
        """Drop what was fetched ahead: another epoch begins."""
        self._kept.clear()
        self._prompt = False

    def close(self) -> None:
        """Drop what was fetched ahead, when its copy is over."""
        self.clear()
        if self._copier is not None:
            self._copier.close()
