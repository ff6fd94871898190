"""How a loader lays out its epochs: the recognised sampler, the window, and this process's share."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastload.errors import UsageError
from fastload.loader.arguments import Sharding
from fastload.loader.course import OrderedCourse
from fastload.loader.recognise import Batching, Shuffle
from fastload.loader.sharding import topology
from fastload.sampling import Records, Share, Window
from fastload.sampling.cursor import Place

__all__ = ["Layout"]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The epochs of one loader over ``records``, as fastload computes them.

    World and rank are looked up whenever :meth:`share` is asked: loaders are made before
    torch.distributed is initialised.
    """

    records: Records
    batching: Batching
    sampler: Shuffle
    sharding: Sharding
    window: Window | None = None
    sized: bool = True
    """Whether the batch size was given, beside ``global_batch_size``."""
    blocks: bool = False
    """Whether ranks take positions side by side, see Share."""

    def share(self) -> Share:
        """Return which positions this process takes."""
        sharding = self.sharding
        here = topology(sharding.shard, sharding.mesh, self.sampler.distributed)
        size, total = self.batching.size, sharding.global_batch_size
        if total is None:
            total = size * here.world
        elif self.sized and size != -(-total // here.world):
            raise UsageError(
                f"batch_size is {size} on each of {here.world} ranks, and global_batch_size {total}",
                hint="leave batch_size out: it follows from the other",
            )
        tail: Any = "drop" if self.sampler.drop else "pad" if sharding.pad else "uneven"
        return Share(total, here.rank, here.world, tail, self.batching.drop_last, self.blocks)

    def course(self, seed: int, place: Place) -> OrderedCourse:
        """Return what this process does in an epoch from ``place`` on."""
        order = self.records.order(seed, place.epoch, shuffle=self.sampler.shuffle, window=self.window)
        return OrderedCourse(order, self.share(), place.epoch, place.position)
