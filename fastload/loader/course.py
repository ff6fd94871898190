"""One epoch's way through a dataset: which batches come, and what their delivery means for the state."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from torch.utils import data

from fastload.engine.plan import Int64Array
from fastload.loader.recognise import integers, recognise_batching
from fastload.sampling import Indices, Order, Records, Share, batches_of
from fastload.sampling.cursor import Place

__all__ = [
    "BatchInfo",
    "Course",
    "FollowedCourse",
    "GlobalBatch",
    "OrderedCourse",
    "SampledPlace",
    "Stream",
    "stateful_sampler",
]


@dataclasses.dataclass(frozen=True)
class BatchInfo:
    """What a loader says of the batch that it delivered last.

    ``positions`` (int64) are the places in the epoch's global order of this rank's samples, also of those
    that ``on_error="skip"`` left out; ``pads`` (bool) marks the ones that only repeat a record so that the
    ranks are even. ``global_samples`` counts the samples of all ranks in this global batch, without pads.
    """

    epoch: int
    positions: Int64Array
    pads: np.ndarray[Any, np.dtype[np.bool_]]
    global_samples: int
    world: int = 1

    @property
    def samples(self) -> int:
        """Samples of this rank, without pads."""
        return len(self.positions) - int(self.pads.sum())

    @property
    def weight(self) -> float:
        """What to multiply the mean loss of this rank's samples by, pads left out.

        Averaged over ranks, as DistributedDataParallel averages gradients, that gives the mean over the
        global batch: 1.0 where all ranks have equally many samples.
        """
        return self.world * self.samples / self.global_samples if self.global_samples else 0.0


@dataclasses.dataclass(frozen=True)
class GlobalBatch:
    """What the ranks together take as one batch: int64 arrays in the global order, without pads."""

    epoch: int
    positions: Int64Array
    sources: Int64Array
    records: Int64Array


class Course(Protocol):
    """What an iterator of one epoch follows. Batches are delivered in the order given, each once."""

    @property
    def sampler_state(self) -> Any:
        """What a user's sampler says of itself before the first batch."""

    def batches(self) -> Iterator[Indices]:
        """Yield this rank's batches."""

    def deliver(self, place: Place, number: int, positions: Int64Array) -> BatchInfo:
        """Move ``place`` on by delivered batch ``number``, and return what there is to say of it."""

    def finish(self, place: Place) -> None:
        """Move ``place`` to the epoch's end."""


@dataclasses.dataclass(frozen=True)
class OrderedCourse:
    """A share of an order that fastload computes, from position ``start`` on."""

    order: Order
    share: Share
    epoch: int
    start: int = 0
    sampler_state: Any = None

    def batches(self) -> Iterator[Indices]:
        return batches_of(self.order, self.share, self.start)

    @property
    def batch_count(self) -> int:
        """How many batches this rank gets."""
        return self.share.batch_count(self.order.count, self.start)

    def deliver(self, place: Place, number: int, positions: Int64Array) -> BatchInfo:
        first = self.start + number * self.share.global_batch
        place.position = min(first + self.share.global_batch, self.order.count)
        pads = positions >= self.order.count
        samples = self.share.global_size(self.order.count, first)
        return BatchInfo(self.epoch, positions, pads, samples, self.share.world)

    def finish(self, place: Place) -> None:
        place.position = self.order.count

    def plan(self) -> Iterator[GlobalBatch]:
        """Yield the global batches to come."""
        share = dataclasses.replace(self.share, rank=0)
        for number in range(share.batch_count(self.order.count, self.start)):
            first = self.start + number * share.global_batch
            size = share.global_size(self.order.count, first)
            positions = np.arange(first, first + size, dtype=np.int64)
            yield GlobalBatch(self.epoch, positions, *self.order.locate(positions))


@dataclasses.dataclass
class SampledPlace(Place):
    """A place in what a user's sampler gives: ``position`` counts its samples on this rank.

    ``complete`` says that the sampler came to its end, ``sampler`` is its own state, where it has one, and
    ``generator`` (base64) the state of the generator that it drew from when the epoch began. Of an iterable
    dataset batches are counted, and ``stream`` says where its workers are.
    """

    complete: bool = False
    sampler: Any = None
    generator: str | None = None
    stream: Stream | None = None


@dataclasses.dataclass
class Stream:
    """Where the workers of an iterable dataset are: ``states`` by worker, ``next`` the one that is next."""

    workers: int
    next: int = 0
    states: dict[int, Any] = dataclasses.field(default_factory=dict)


class FollowedCourse:
    """The indices of a user's own sampler or batch sampler, from a place on.

    A sampler with ``state_dict`` and ``load_state_dict`` is given its state again. Any other one has to
    give the same sequence again, and the indices before the place are passed over.
    """

    sampler_state: Any = None

    def __init__(self, loader: data.DataLoader[Any], records: Records, place: Place) -> None:
        self._records = records
        self._epoch = place.epoch
        self._start = passed = place.position
        self._keeper = stateful_sampler(loader)
        self._states: collections.deque[Any] = collections.deque()
        if self._keeper is not None:
            if isinstance(place, SampledPlace) and place.sampler is not None and not place.complete:
                self._keeper.load_state_dict(place.sampler)
                passed = 0
            self.sampler_state = self._keeper.state_dict()
        self._batches = _index_batches(loader, passed)

    def batches(self) -> Iterator[Indices]:
        position = self._start
        for batch in self._batches:
            entries = self._records.normalise(integers(batch))
            positions = np.arange(position, position + len(entries), dtype=np.int64)
            position += len(entries)
            if self._keeper is not None:
                self._states.append(self._keeper.state_dict())
            yield Indices(positions, *self._records.locate(entries))

    def deliver(self, place: Place, number: int, positions: Int64Array) -> BatchInfo:
        place.position += len(positions)
        if self._states and isinstance(place, SampledPlace):
            place.sampler = self._states.popleft()
        return BatchInfo(self._epoch, positions, np.zeros(len(positions), np.bool_), len(positions))

    def finish(self, place: Place) -> None:
        if isinstance(place, SampledPlace):
            place.complete = True


def stateful_sampler(loader: data.DataLoader[Any]) -> Any:
    """Return the sampler or batch sampler that keeps its own state, if one does."""
    for sampler in (loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None), loader.sampler):
        if hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict"):
            return sampler
    return None


def _index_batches(loader: data.DataLoader[Any], passed: int) -> Iterator[Any]:
    """Yield the batches of indices that a loader's samplers give, without the first ``passed`` indices."""
    batching = recognise_batching(loader)
    if batching is not None:
        indices = itertools.islice(iter(batching.sampler), passed, None)
        while batch := list(itertools.islice(indices, batching.size)):
            if len(batch) == batching.size or not batching.drop_last:
                yield batch
        return
    assert loader.batch_sampler is not None, "a loader without one is recognised"
    for whole in loader.batch_sampler:
        size = len(whole)
        if size > passed:
            yield whole[passed:] if passed else whole
        passed = max(0, passed - size)
