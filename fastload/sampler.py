"""Samplers for torch's own DataLoader, thin over the orders of fastload.sampling."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils import data

from fastload.dataset import Dataset
from fastload.errors import UsageError
from fastload.sampling import Order, OrderState, Selection, Share
from fastload.sampling.cursor import Cursor, Place
from fastload.transforms.random import DRAWS_VERSION

__all__ = ["DistributedSampler"]

_BLOCK = 4096
"""Indices computed at once."""


class DistributedSampler(data.DistributedSampler[int]):
    """torch's DistributedSampler in fastload's order: no list of indices, and a state to resume from.

    Args:
        dataset: anything with a length; its indices are what the sampler gives.
        num_replicas, rank: by default those of torch.distributed, which has to be initialised then.
        shuffle: whether to give them in the order that ``seed`` and the epoch name, or as they are.
        seed: has to be the same on all ranks.
        drop_last: leave out the indices that ``num_replicas`` does not divide, instead of filling up.

    It works in torch's DataLoader and any other. fastload's DataLoader recognises it, computes the order
    natively, and gives the same as with ``shard=True``. Other loaders cannot shuffle a mixture with it.

    Each iteration is the next epoch, unless :meth:`set_epoch` names one. Memory is the same at any number
    of indices.

    >>> sampler = DistributedSampler(range(10**12), num_replicas=8, rank=3, seed=1)
    >>> indices = iter(sampler)
    >>> first = [next(indices) for _ in range(3)]
    >>> again = DistributedSampler(range(10**12), num_replicas=8, rank=3, seed=1)
    >>> again.load_state_dict(sampler.state_dict())
    >>> next(iter(again)) == next(indices)
    True
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        self.cursor = Cursor()
        self._start = 0

    @property
    def _share(self) -> Share:
        return Share(
            self.num_replicas, self.rank, self.num_replicas, tail="drop" if self.drop_last else "pad"
        )

    def _order(self, epoch: int) -> Order:
        return Selection.whole(len(self.dataset)).order(self.seed, epoch, shuffle=self.shuffle)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._share.local_count(len(self.dataset))  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration."""
        self.cursor.set_epoch(epoch)
        super().set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        records = self.dataset.selection if isinstance(self.dataset, Dataset) else None
        if self.shuffle and records is not None and not isinstance(records, Selection):
            raise UsageError(
                "this dataset shuffles its parts by itself, and indices cannot say how",
                hint="load it with fastload.DataLoader, or give shuffle=False",
            )
        share, count = self._share, len(self.dataset)  # type: ignore[arg-type]
        found = self.cursor.peek(lambda place: not share.local_count(count, place.position))
        place = Place(found.epoch, found.position)
        self.epoch, self._start = place.epoch, place.position
        self.cursor.begin(place)
        return self._indices(self._order(place.epoch), share, place)

    def _indices(self, order: Order, share: Share, place: Place) -> Iterator[int]:
        start = place.position
        local = share.local_count(order.count, start)
        for first in range(0, local, _BLOCK):
            numbers = np.arange(first, min(first + _BLOCK, local), dtype=np.int64)
            positions = (start + share.rank + share.world * numbers) % order.count
            for entry in order.locate(positions)[1].tolist():
                place.position = min(place.position + share.world, order.count)
                yield entry
        place.position = order.count

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return where this sampler is: a few integers, the same on all ranks.

        ``consumed`` is how many indices of the latest iteration on this rank count as used; by default all
        that were given. A loader with workers asks for more than it has delivered: there, say how many
        samples training has had. In fastload's DataLoader that is known, and needs no saying.
        """
        place = self.cursor.place
        epoch, position = place.epoch, place.position
        if consumed is not None:
            position = min(self._start + consumed * self.num_replicas, len(self.dataset))  # type: ignore[arg-type]
        return dict(self._state(epoch, position).to_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken, at any ``num_replicas``.

        Raises StateError for a state of another dataset, seed or order.
        """
        state = OrderState.from_dict(state_dict)
        self._state(state.epoch, state.position).check_same(state)
        self.cursor.load(Place(state.epoch, state.position))

    @functools.cached_property
    def _fingerprint(self) -> str:
        return self.dataset.fingerprint if isinstance(self.dataset, Dataset) else ""

    def _state(self, epoch: int, position: int) -> OrderState:
        return OrderState(
            epoch=epoch,
            position=position,
            seed=self.seed & (1 << 64) - 1,
            draws=DRAWS_VERSION,
            shuffle=bool(self.shuffle),
            count=len(self.dataset),  # type: ignore[arg-type]
            fingerprint=self._fingerprint,
        )
