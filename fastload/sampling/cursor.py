"""Where a run is in its epochs: what its state says, and what a loaded state sets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from fastload.errors import UsageError

__all__ = ["Cursor", "Place"]


@dataclasses.dataclass
class Place:
    """How far one epoch was delivered: ``position`` counts the samples of its global order, without pads."""

    epoch: int = 0
    position: int = 0


class Cursor:
    """Decides at which place each iteration begins, and follows the latest one.

    Each iteration is the next epoch, unless one is named or a place was loaded. An iteration asks with
    :meth:`peek`, and takes its turn with :meth:`begin` once nothing can fail any more; from then on the
    place it moves is what :attr:`place` says.

    >>> cursor = Cursor()
    >>> cursor.load(Place(3, 40))
    >>> cursor.set_epoch(3)
    >>> cursor.peek(lambda place: False)
    Place(epoch=3, position=40)
    """

    def __init__(self) -> None:
        self._next = 0
        self._named: int | None = None
        self._loaded: Place | None = None
        self._latest: Place | None = None

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration. The epoch of a loaded place keeps its position."""
        if epoch < 0:
            raise UsageError(f"epoch is {epoch}", hint="give 0 or more")
        self._named = epoch

    def load(self, place: Place) -> None:
        """Let the next iteration go on at ``place``; what was named or loaded before is forgotten."""
        self._named, self._loaded = None, place

    def peek(self, over: Callable[[Place], bool]) -> Place:
        """Return where the next iteration begins.

        ``over(place)`` says whether an epoch has nothing left at a loaded place: the next one follows then,
        unless that very epoch was named.
        """
        loaded = self._loaded
        if self._named is not None:
            return loaded if loaded is not None and loaded.epoch == self._named else Place(self._named)
        if loaded is not None:
            return Place(loaded.epoch + 1) if loaded.position and over(loaded) else loaded
        return Place(self._next)

    def begin(self, place: Place) -> None:
        """Begin an iteration at ``place``, which it moves on as samples are delivered."""
        self._named = self._loaded = None
        self._next, self._latest = place.epoch + 1, place

    def named_since(self, place: Place) -> int | None:
        """Return the epoch named since the latest iteration began, if that is at ``place``; it is used then.

        For an iteration that has given nothing yet: frameworks begin one before they name its epoch.
        """
        if self._latest is not place or self._loaded is not None:
            return None
        named, self._named = self._named, None
        return named

    @property
    def place(self) -> Place:
        """The place loaded last, if no iteration began since; else how far the latest one was delivered."""
        if self._loaded is not None:
            return self._loaded
        if self._latest is not None:
            return self._latest
        return Place(self._next if self._named is None else self._named)
