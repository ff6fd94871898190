"""What one iteration over a Python dataset draws its indices from, and how it follows what is delivered."""

from __future__ import annotations

import base64
import itertools
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils import data

from fastload.loader.around import Parcel, SeededBatch
from fastload.loader.course import BatchInfo, OrderedCourse, SampledPlace, Stream, stateful_sampler
from fastload.loader.iterator import Progress
from fastload.sampling.cursor import Place

__all__ = ["IndexSource", "ListedCourse", "MapRun", "Run", "SamplerCourse", "StreamRun"]

Int64Array = np.ndarray[Any, np.dtype[np.int64]]


class PythonCourse(Protocol):
    """Which batches of indices come for a map-style dataset, and what their delivery means for the state."""

    def indices(self, singles: bool) -> Iterator[tuple[Any, Int64Array]]:
        """Yield what torch takes for a batch (a list) or for one sample, with the samples' positions."""

    def deliver(self, place: Place, number: int, positions: Int64Array) -> BatchInfo:
        """Move ``place`` on by delivered batch ``number``, and return what there is to say of it."""

    def finish(self, place: Place) -> None:
        """Move ``place`` to the epoch's end."""


class ListedCourse(OrderedCourse):
    """A share of an order that fastload computes, as lists of indices."""

    def indices(self, singles: bool) -> Iterator[tuple[Any, Int64Array]]:
        for positions, _, records in self.batches():
            yield (int(records[0]) if singles else records.tolist()), positions


class SamplerCourse:
    """The indices of a user's own sampler or batch sampler, whatever they are, from a place on.

    The sampler is asked when the first indices are wanted. At that time the state of the generator it may
    draw from is noted, and put back when the epoch is resumed: the user's own stays there, torch's global
    one only until the first indices are drawn.
    """

    def __init__(self, loader: data.DataLoader[Any], place: Place) -> None:
        self._sampler, self._batch_sampler = loader.sampler, loader.batch_sampler
        self._keeper = stateful_sampler(loader)
        self._epoch = place.epoch
        self._start = place.position
        resumed = place if isinstance(place, SampledPlace) and place.position and not place.complete else None
        self._sampler_state = None if resumed is None else resumed.sampler
        self._generator_state = None if resumed is None else resumed.generator
        self._states: dict[int, Any] = {}
        self.place: SampledPlace | None = None

    def indices(self, singles: bool) -> Iterator[tuple[Any, Int64Array]]:
        position = self._start
        batches = self._drawn()
        for number, (batch, counted) in enumerate(batches):
            positions = np.arange(position, position + counted, dtype=np.int64)
            position += counted
            if self._keeper is not None:
                self._states[number] = self._keeper.state_dict()
            yield batch, positions

    def _drawn(self) -> Iterator[tuple[Any, int]]:
        passed = self._start
        if self._keeper is not None:
            if self._sampler_state is not None:
                self._keeper.load_state_dict(self._sampler_state)
                passed = 0
            if self.place is not None:
                self.place.sampler = self._keeper.state_dict()
        generator = None if self._keeper is not None else _generator_of(self._sampler, self._batch_sampler)
        kept = None if generator is None else generator.get_state()
        if generator is not None and self._generator_state is not None:
            generator.set_state(_unpacked(self._generator_state))
        if generator is not None and self.place is not None:
            self.place.generator = _packed(generator.get_state())
        batches = _batches(self._sampler, self._batch_sampler, passed)
        first = next(batches, None)
        if generator is torch.default_generator and self._generator_state is not None and kept is not None:
            generator.set_state(kept)
        if first is not None:
            yield first
            yield from batches

    def deliver(self, place: Place, number: int, positions: Int64Array) -> BatchInfo:
        if len(positions):
            place.position = int(positions[-1]) + 1
        if isinstance(place, SampledPlace):
            place.sampler = self._states.pop(number, place.sampler)
        return BatchInfo(self._epoch, positions, np.zeros(len(positions), np.bool_), len(positions))

    def finish(self, place: Place) -> None:
        if isinstance(place, SampledPlace):
            place.complete = True


def _batches(sampler: Any, batch_sampler: Any, passed: int) -> Iterator[tuple[Any, int]]:
    """Yield what samplers give, without the first ``passed`` samples, and how many samples each is."""
    if batch_sampler is None:
        for index in itertools.islice(iter(sampler), passed, None):
            yield index, 1
        return
    if passed and type(batch_sampler) is data.BatchSampler:  # cut anew: batches may have been of another size
        indices = itertools.islice(iter(batch_sampler.sampler), passed, None)
        while batch := list(itertools.islice(indices, batch_sampler.batch_size)):
            if len(batch) == batch_sampler.batch_size or not batch_sampler.drop_last:
                yield batch, len(batch)
        return
    for whole in batch_sampler:
        size = len(whole) if hasattr(whole, "__len__") else 1
        if not passed or size > passed:
            yield (whole[passed:] if passed else whole), size - passed
        passed = max(0, passed - size)


def _generator_of(sampler: Any, batch_sampler: Any) -> torch.Generator | None:
    """Return the generator that samplers may draw from, or None for those of torch's that draw from none."""
    inner = sampler if batch_sampler is None else getattr(batch_sampler, "sampler", batch_sampler)
    known = batch_sampler is None or type(batch_sampler) is data.BatchSampler
    if known and type(inner) in (data.SequentialSampler, data.DistributedSampler):
        return None
    own = getattr(inner, "generator", None)
    if isinstance(own, torch.Generator):
        return own
    default: torch.Generator = torch.default_generator
    return default


def _packed(state: torch.Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _unpacked(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)


class Run(Iterator[Any]):
    """One iteration: torch draws from it what it sends to workers, and it is told what was delivered."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.drawn = 0
        self.over = False
        """Whether it was asked for more than there is."""

    passed = 0
    """Batches to make and drop before the first one that is delivered."""

    first_worker = 0

    def deliver(self, number: int, made: Any) -> Any:
        """Note that item ``number`` drawn was delivered; return the user's batch."""
        raise NotImplementedError

    def fail(self, number: int) -> None:
        """Note that item ``number`` failed. What is delivered after it counts on behind it."""

    def finish(self) -> None:
        """Note the epoch's end."""
        raise NotImplementedError

    def tell(self, number: int) -> str:
        """Return words about item ``number``."""
        return f"It is batch {number} of this iteration (epoch {self.progress.epoch})."


class MapRun(Run):
    """An iteration over a map-style dataset."""

    def __init__(self, course: PythonCourse, progress: Progress, singles: bool, seed: int | None) -> None:
        super().__init__(progress)
        self._course = course
        self._seed = seed
        self._indices = course.indices(singles)
        self._sent: dict[int, tuple[Any, Int64Array]] = {}
        self._delivered: dict[int, Int64Array] = {}
        if isinstance(course, SamplerCourse):
            course.place = progress

    def __next__(self) -> Any:
        try:
            index, positions = next(self._indices)
        except StopIteration:
            self.over = True
            raise
        self._sent[self.drawn] = index, positions
        self.drawn += 1
        if self._seed is None:
            return index
        return SeededBatch(self._seed, self.progress.epoch, positions.tolist(), index)

    def deliver(self, number: int, made: Any) -> Any:
        progress = self.progress
        _, positions = self._sent.pop(number)
        self._delivered[number] = positions
        progress.info = self._course.deliver(Place(), number, positions)
        # With in_order=False one before it may still be to come: the place waits for that one.
        waited_for = min(self._sent, default=self.drawn)
        for each in sorted(each for each in self._delivered if each < waited_for):
            self._course.deliver(progress, each, self._delivered.pop(each))
        progress.batches += 1
        progress.samples += len(positions)
        progress.pads += int(progress.info.pads.sum())
        return made

    def fail(self, number: int) -> None:
        self._sent.pop(number, None)

    def finish(self) -> None:
        self._course.finish(self.progress)

    def tell(self, number: int) -> str:
        index = self._sent[number][0] if number in self._sent else None
        return f"{super().tell(number)[:-1]}{'' if index is None else ', of ' + _shown(index)}."


def _shown(index: Any) -> str:
    if not isinstance(index, (list, tuple)):
        return f"index {index!r}"[:200]
    few = ", ".join(repr(each)[:40] for each in index[:8])
    return f"indices {few}{', …' if len(index) > 8 else ''} ({len(index)})"


class StreamRun(Run):
    """An iteration over an iterable dataset: positions count its batches."""

    def __init__(self, sampler: Iterator[Any], progress: Progress, stream: Stream, passed: int) -> None:
        super().__init__(progress)
        self._sampler = sampler
        self.stream = stream
        self.passed = passed
        self.first_worker = stream.next if not passed else 0

    def __next__(self) -> Any:
        self.drawn += 1
        return next(self._sampler)

    def deliver(self, number: int, made: Any) -> Any:
        progress = self.progress
        progress.position += 1
        progress.batches += 1
        if not isinstance(made, Parcel):
            return made
        progress.samples += made.samples
        self.stream.next = (made.worker + 1) % max(1, self.stream.workers)
        if made.state:
            (self.stream.states[made.worker],) = made.state
        return made.batch

    def finish(self) -> None:
        self.progress.complete = True


class IndexSource:
    """What torch's iterators take for the sampler of indices: each iteration is a new run of the loader.

    It does not keep the loader: that keeps its iterator, and workers end when the loader is dropped.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._length = weakref.WeakMethod(loader.__len__)

    def __iter__(self) -> Run:
        loader = self._loader()
        if loader is None:
            raise ReferenceError("the DataLoader of this iterator is gone")
        run: Run = loader._next_run()
        return run

    def __len__(self) -> int:
        length = self._length()
        return 0 if length is None else length()
