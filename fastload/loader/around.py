"""What goes around a Python dataset where its samples are made: in a worker process or in the caller."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data
from torch.utils.data._utils import pin_memory

from fastload.errors import EngineError
from fastload.loader.collating import rows_in
from fastload.loader.heap import keep_freed_memory
from fastload.loader.rows import RowedSamples
from fastload.loader.slabs import Channel
from fastload.sampling.permutation import permutation_key

__all__ = [
    "Parcel",
    "PlacedDataset",
    "SeededBatch",
    "SeededCollate",
    "SeededDataset",
    "StreamCollate",
    "StreamDataset",
    "WorkerStart",
    "add_note",
    "has_state",
    "kept_generators",
    "makes_whole_batches",
    "placed",
]

Collate = Callable[[Any], Any]


def add_note(error: BaseException, text: str) -> None:
    """Add a line to what is shown of ``error``; before Python 3.11 it is kept in ``__notes__`` only.

    >>> error = ValueError("no")
    >>> add_note(error, "dataset[3]")
    >>> error.__notes__
    ['dataset[3]']
    """
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__dict__.setdefault("__notes__", []).append(text)


# --- map-style datasets --------------------------------------------------------------------------------


class PlacedDataset:
    """A map-style dataset whose errors say which index was asked for."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except Exception as error:
            _name(error, index)
            raise


def _name(error: Exception, index: Any) -> None:
    """Let an error of ``dataset[index]`` say so."""
    if isinstance(error, StopIteration):  # it must not pass for the epoch's end
        raise EngineError(f"dataset[{index!r}] raised StopIteration") from error
    add_note(error, f"The sample is dataset[{index!r}].")


class _BatchedDataset(PlacedDataset):
    """One that gives batches whole as well."""

    def __getitems__(self, indices: Any) -> Any:
        return self.dataset.__getitems__(indices)


class _ListedDataset(PlacedDataset):
    """One whose batches are made one sample after another, unless the iterator ends meanwhile."""

    def __init__(self, dataset: Any, channel: Channel | None) -> None:
        super().__init__(dataset)
        self._channel = channel

    def __getitems__(self, indices: Any) -> Any:
        return _gathered(self._made(indices), len(indices), self._channel)

    def _made(self, indices: Any) -> Iterator[Any]:
        ended = _NEVER if self._channel is None else self._channel.flags
        dataset = self.dataset
        for index in indices:
            if ended[0]:
                raise EngineError(_ENDED)
            try:
                sample = dataset[index]
            except Exception as error:
                _name(error, index)
                raise
            yield sample


_NEVER = b"\0"
_ENDED = "the iterator has ended"
"""An error that nobody reads."""


def _gathered(samples: Iterator[Any], size: int, channel: Channel | None) -> list[Any]:
    """Return ``size`` samples, their large tensors in the batch's slab where it is known to stack them."""
    rows = None if channel is None else rows_in(channel, size)
    if channel is None or rows is None:
        return list(samples)
    made = RowedSamples(rows)
    try:
        for place, sample in enumerate(samples):
            made.append(rows.moved(place, sample))
            if not rows:  # nor will the others have anything large
                return [*made, *samples]
    except BaseException:
        channel.pen.abort()
        raise
    return made


def placed(dataset: Any, channel: Channel | None) -> PlacedDataset:
    """Return ``dataset`` with errors that say the index; it is ``.dataset`` of what is returned.

    ``channel`` is that of the worker process that makes the samples, if any does.
    """
    whole = getattr(dataset, "__getitems__", None)
    return _BatchedDataset(dataset) if whole else _ListedDataset(dataset, channel)


class SeededBatch(NamedTuple):
    """What a worker is sent for a batch, or for one sample, that is to be seeded by position."""

    seed: int
    epoch: int
    positions: Sequence[int]
    index: Any


class SeededDataset:
    """A map-style dataset before each sample of which generators are seeded by its position."""

    def __init__(
        self,
        dataset: Any,
        seed_generators: Callable[[int], None] | None = None,
        channel: Channel | None = None,
    ) -> None:
        self.dataset = dataset
        self._channel = channel
        self.seed_generators = seed_generators or _seed_generators
        self._one = PlacedDataset(dataset)
        self._whole = makes_whole_batches(dataset)
        self.collate_key = 0

    def __getitem__(self, batch: SeededBatch) -> Any:
        return self._sample(batch, batch.positions[0], batch.index)

    def __getitems__(self, batch: SeededBatch) -> Any:
        if not batch.positions:
            return self.dataset.__getitems__(batch.index) if self._whole else []
        if self._whole:
            self._seed(batch, batch.positions[0])
            samples = self.dataset.__getitems__(batch.index)
        else:
            pairs = zip(batch.positions, batch.index, strict=True)
            made = (self._sample(batch, position, index) for position, index in pairs)
            samples = _gathered(made, len(batch.positions), self._channel)
        self.collate_key = permutation_key(batch.seed, batch.epoch, batch.positions[0], 1)
        return samples

    def _sample(self, batch: SeededBatch, position: int, index: Any) -> Any:
        if self._channel is not None and self._channel.flags[0]:
            raise EngineError(_ENDED)
        self._seed(batch, position)
        sample = self._one[index]
        self.collate_key = permutation_key(batch.seed, batch.epoch, position, 1)
        return sample

    def _seed(self, batch: SeededBatch, position: int) -> None:
        self.seed_generators(permutation_key(batch.seed, batch.epoch, position))


def makes_whole_batches(dataset: Any) -> bool:
    """Return whether a dataset makes a batch in a way that is its own, not one sample after another."""
    if type(dataset) is data.Subset:
        return makes_whole_batches(dataset.dataset)
    return bool(getattr(dataset, "__getitems__", None))


class SeededCollate:
    """A collate function before which the generators are seeded by its batch's first position."""

    def __init__(self, dataset: SeededDataset, collate: Collate) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, samples: Any) -> Any:
        self._dataset.seed_generators(self._dataset.collate_key)
        return self._collate(samples)


def _seed_generators(key: int) -> None:
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key)


@contextlib.contextmanager
def kept_generators() -> Iterator[None]:
    """Put the global generators back afterwards: training draws from them in the caller."""
    python, numpy, ours = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.default_generator.set_state(ours)


# --- iterable datasets ---------------------------------------------------------------------------------


def has_state(thing: Any) -> bool:
    """Return whether ``thing`` can say its state and be given it again."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class Parcel:
    """A batch of an iterable dataset on its way, with the worker it is from.

    ``state`` is empty where neither dataset nor iterator keeps one, else the one item of it.
    """

    __slots__ = ("batch", "samples", "state", "worker")

    def __init__(self, batch: Any, samples: int, worker: int, state: tuple[Any, ...]) -> None:
        self.batch, self.samples, self.worker, self.state = batch, samples, worker, state

    def pin_memory(self) -> Parcel:
        """Return it with its batch in pinned memory, as torch's pinning thread asks."""
        batch = pin_memory.pin_memory(self.batch)  # type: ignore[no-untyped-call]
        return Parcel(batch, self.samples, self.worker, self.state)


class StreamDataset:
    """An iterable dataset that goes on from ``states`` (by worker) the first time it is iterated."""

    def __init__(self, dataset: Any, states: dict[int, Any]) -> None:
        self.dataset = dataset
        self._states = states
        self._keeper: Any = None

    def __repr__(self) -> str:
        return repr(self.dataset)  # torch's warning of a wrong length shows it

    def __iter__(self) -> Iterator[Any]:
        number = _worker_number()
        resumed, state = number in self._states, self._states.pop(number, None)
        keeper, iterator = self.dataset, None
        if not has_state(keeper):
            keeper = iterator = iter(self.dataset)
        if resumed and has_state(keeper):
            keeper.load_state_dict(state)
        self._keeper = keeper if has_state(keeper) else None
        return iter(self.dataset) if iterator is None else iterator

    def state(self) -> tuple[Any, ...]:
        """Return a copy of the state: the queue's own thread pickles it while the dataset goes on."""
        return () if self._keeper is None else (copy.deepcopy(self._keeper.state_dict()),)


class StreamCollate:
    """A collate function that puts the dataset's state beside each batch."""

    def __init__(self, stream: StreamDataset, collate: Collate, batched: bool) -> None:
        self._stream, self._collate, self._batched = stream, collate, batched

    def __call__(self, samples: Any) -> Parcel:
        try:
            batch = self._collate(samples)
        except StopIteration as error:  # it must not pass for the epoch's end
            raise EngineError("a collate_fn raised StopIteration") from error
        count = len(samples) if self._batched else 1
        return Parcel(batch, count, _worker_number(), self._stream.state())


def _worker_number() -> int:
    info = data.get_worker_info()
    return 0 if info is None else info.id


# --- workers -------------------------------------------------------------------------------------------


class WorkerStart:
    """A worker_init_fn that shows the user's code the user's dataset, then calls the user's own."""

    def __init__(self, dataset: Any, function: Callable[[int], None] | None) -> None:
        self._dataset, self._function = dataset, function

    def __call__(self, worker: int) -> None:
        keep_freed_memory()
        object.__setattr__(data.get_worker_info(), "dataset", self._dataset)
        if self._function is not None:
            self._function(worker)
