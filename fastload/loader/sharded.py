"""What a sharded loader has for its sampler: frameworks ask that for what this process takes."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.utils import data

from fastload.loader.arguments import Sharding
from fastload.loader.sharding import topology
from fastload.sampler import DistributedSampler
from fastload.sampling import Share
from fastload.sampling.cursor import Cursor

__all__ = ["ShardedSampler", "shares_out"]

_MASK64 = (1 << 64) - 1


class ShardedSampler(DistributedSampler):
    """The sampler of a loader with ``shard=True`` or ``mesh=``.

    The loader computes its order itself. To frameworks this says that the loader is sharded, so that they
    put in no sampler of their own; they tell it epochs; and it can be iterated, where a framework wraps it.
    World and rank are those of the moment: loaders are made before torch.distributed is initialised.
    """

    def __init__(
        self,
        dataset: Any,
        count: int | None,
        shuffle: bool,
        sharding: Sharding,
        seed: int | None,
        generator: torch.Generator | None,
    ) -> None:  # not the base's, which asks for the world at once
        self.dataset = dataset
        self.count = len(dataset) if count is None else count
        self.shuffle = shuffle
        self.drop_last = False
        self.epoch = 0
        self.generator = generator
        self.cursor = Cursor()
        self._start = 0
        self._given = seed
        self._sharding = sharding

    @property
    def num_replicas(self) -> int:  # type: ignore[override]
        """How many ranks take different records."""
        return topology(self._sharding.shard, self._sharding.mesh, None).world

    @property
    def rank(self) -> int:  # type: ignore[override]
        """This process's number among them."""
        return topology(self._sharding.shard, self._sharding.mesh, None).rank

    @property
    def seed(self) -> int:  # type: ignore[override]
        """The loader's seed, as far as it was given."""
        if self._given is not None:
            return self._given & _MASK64
        if self.generator is not None:
            return int(self.generator.initial_seed()) & _MASK64
        return torch.initial_seed() & _MASK64 if self.num_replicas == 1 else 0

    @property
    def num_samples(self) -> int:  # type: ignore[override]
        """Samples of this rank in an epoch."""
        return len(self)

    @property
    def total_size(self) -> int:  # type: ignore[override]
        """Samples of all ranks in an epoch, were each to get as many."""
        return len(self) * self.num_replicas

    @property
    def _share(self) -> Share:
        world = self.num_replicas
        tail: Literal["pad", "uneven"] = "pad" if self._sharding.pad else "uneven"
        return Share(world, self.rank, world, tail)


def shares_out(sampler: Any) -> bool:
    """Return whether a sampler, or what a batch sampler batches, gives this rank's part only."""
    return isinstance(sampler, data.DistributedSampler) or isinstance(
        getattr(sampler, "sampler", None), data.DistributedSampler
    )
