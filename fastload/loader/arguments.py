"""The DataLoader's own arguments, and what is wrong with them whatever the world will be."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastload.errors import UsageError
from fastload.format import parse_size

__all__ = ["Sharding", "check_on_error", "check_window"]


@dataclasses.dataclass(frozen=True)
class Sharding:
    """What the user says of sharing out, as the DataLoader's arguments of the same names."""

    shard: bool = False
    mesh: Any = None
    global_batch_size: int | None = None
    pad: bool = True

    def check(self, batch_size: int | None, *, native: bool) -> None:
        """Raise UsageError for what cannot work, whatever the world will be."""
        if not native and self != Sharding():
            raise UsageError(
                "shard, mesh, global_batch_size and pad are for fastload datasets",
                hint="with another dataset give sampler=fastload.DistributedSampler(dataset)",
            )
        if self.global_batch_size is None:
            return
        if self.global_batch_size < 1:
            raise UsageError(f"global_batch_size is {self.global_batch_size}", hint="give 1 or more")
        if batch_size is None:
            raise UsageError("batch_size=None makes no batches, and global_batch_size is given")

    def check_once(self) -> None:
        """Raise UsageError where ranks share the dataset out, and a framework would do it once more."""
        if self.asked:
            raise UsageError(
                "this loader is sharded, and accelerator.prepare would share it out once more",
                hint="use fastload.integrations.accelerate.prepare(accelerator, loader)",
            )

    @property
    def asked(self) -> bool:
        """Whether ranks are to share the dataset out."""
        return self.shard or self.mesh is not None


def check_on_error(on_error: str, *, singles: bool) -> None:
    """Raise UsageError for an unknown ``on_error``, or one that would shorten batches of one sample."""
    if on_error not in ("raise", "substitute", "skip"):
        raise UsageError(f"unknown on_error {on_error!r}", hint="use 'raise', 'substitute' or 'skip'")
    if on_error == "skip" and singles:
        raise UsageError(
            "on_error='skip' shortens batches, and batch_size=None makes none",
            hint="use on_error='substitute'",
        )


def check_window(window: int | str | None, *, shuffled: bool) -> None:
    """Raise UsageError for a ``shuffle_window`` that is no size, or where nothing is shuffled."""
    if window is not None and parse_size(window) and not shuffled:
        raise UsageError(
            "shuffle_window bounds the shuffle of a fastload dataset", hint="give shuffle=True with it"
        )
