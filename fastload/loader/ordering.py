"""Which indices come in which epoch, how far they were delivered, and the state that says so."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch.utils import data

from fastload.dataset import Dataset
from fastload.errors import UsageError
from fastload.loader.arguments import Sharding
from fastload.loader.layout import Layout
from fastload.loader.recognise import recognise_batching, recognise_sampler, told_sampler
from fastload.loader.sharded import ShardedSampler, shares_out
from fastload.loader.sharding import process_topology
from fastload.loader.state import Kind, check_workers, read, state_of, written
from fastload.sampler import DistributedSampler
from fastload.sampling import ENDLESS, OrderState, Records, Selection, Window
from fastload.sampling.cursor import Cursor, Place

__all__ = ["Ordering"]

T = TypeVar("T")

_MASK64 = (1 << 64) - 1


def _records_of(dataset: Any) -> Records | None:
    """Return the indices of a map-style Python dataset as records, or None where it has no length."""
    if isinstance(dataset, data.IterableDataset):
        return None
    try:
        return Selection.whole(len(dataset))
    except (TypeError, NotImplementedError, AttributeError):
        return None


class Ordering(data.DataLoader[T], Generic[T]):
    """What a DataLoader knows of order, epochs and state, whatever loads its batches."""

    seed: int | None
    shuffle_window: int | str | None
    _native: Dataset | None
    _sharding: Sharding
    _sized: bool
    _blocks: bool
    _cursor: Cursor
    _sampler_epoch: int | None
    _seed_used: int | None

    def _mark_default(self, given: bool) -> None:
        """Mark a sampler that torch made for shuffle=True: fastload's order stands in for its.

        The mark is on the sampler, since frameworks rebuild a loader with ``sampler=loader.sampler``.
        """
        if not given and type(self.sampler) is data.RandomSampler:
            self.sampler._fastload_order = True  # type: ignore[attr-defined]

    def _records(self) -> Records | None:
        """Return what there is to order, or None where the dataset is iterable or has no length."""
        return _records_of(self.dataset) if self._native is None else self._native.selection

    @functools.cached_property
    def _window(self) -> Window | None:
        if self.shuffle_window is None or self._native is None:
            return None
        return self._native.window(self.shuffle_window)

    @functools.cached_property
    def _fingerprint(self) -> str:
        return "" if self._native is None else self._native.fingerprint

    def _computed(self, sampler: Any) -> bool:
        """Return whether fastload's order may stand in for that of a sampler it knows.

        With a Python dataset a sampler or generator that the user gave is followed: the order is then
        torch's, to the number.
        """
        if self._native is not None:
            return True
        if type(sampler) is data.RandomSampler:
            sharded = self._sharding != Sharding()
            return hasattr(sampler, "_fastload_order") and (sharded or sampler.generator is None)
        return type(sampler) in (data.SequentialSampler, DistributedSampler, ShardedSampler)

    def _kind(self, layout: Layout | None) -> Kind:
        if isinstance(self.dataset, data.IterableDataset):
            return "stream"
        return "sampler" if layout is None else "order"

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration; a sampler that has ``set_epoch`` is told as well.

        After :meth:`load_state_dict` the epoch of the state keeps its position.
        """
        self._cursor.set_epoch(epoch)
        for sampler in self._samplers():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _samplers(self) -> list[Any]:
        batch_sampler: Any = self.batch_sampler
        return [self.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]

    def _layout(self) -> Layout | None:
        """Return how epochs are laid out, or None where the indices of a sampler are followed."""
        records = self._records()
        batching = recognise_batching(self)
        known = None
        if records is not None and batching is not None and self._computed(batching.sampler):
            known = recognise_sampler(batching.sampler, records.count)
        if records is not None and batching is not None and known is not None:
            window = self._window if known.shuffle else None
            return Layout(records, batching, known, self._sharding, window, self._sized, self._blocks)
        sampler = self.batch_sampler if batching is None else batching.sampler
        if self._sharding != Sharding() and not shares_out(sampler):
            raise UsageError(
                f"{type(sampler).__name__} says itself which records this rank takes: it is not shared out",
                hint="leave it out, or leave out shard, mesh, global_batch_size and pad",
            )
        return None

    def _hear(self) -> None:
        """Take note of an epoch that torch's DistributedSampler was told."""
        told = told_sampler(self._samplers())
        if told is not None:
            if told.epoch != self._sampler_epoch:
                self._cursor.set_epoch(int(told.epoch))
            self._sampler_epoch = int(told.epoch)

    def _own_seed(self, layout: Layout | None) -> int | None:
        """Return the seed that the user gave, in one way or another."""
        sampler = None if layout is None else layout.sampler
        generator = self.generator or (sampler.generator if sampler is not None else None)
        if self.seed is not None:
            return self.seed & _MASK64
        if sampler is not None and sampler.distributed is not None:
            return int(sampler.distributed.seed) & _MASK64  # equal on all ranks
        return None if generator is None else int(generator.initial_seed()) & _MASK64

    def _resolve_seed(self, layout: Layout | None) -> int:
        """Return the seed, decided when first asked for and kept: iterations differ by epoch only."""
        if self._seed_used is None:
            own = self._own_seed(layout)
            alone = process_topology().world == 1
            self._seed_used = own if own is not None else torch.initial_seed() & _MASK64 if alone else 0
        return self._seed_used

    def __len__(self) -> int:
        """Return how many batches a whole epoch has on this rank. Raises TypeError if it never ends."""
        layout = None if isinstance(self.dataset, data.IterableDataset) else self._layout()
        if layout is None:
            return super().__len__()
        course = layout.course(self._seed_used or 0, Place())
        if course.order.count >= ENDLESS:
            raise TypeError("an endless dataset has no number of batches")
        return course.batch_count

    def state_dict(self) -> dict[str, Any]:
        """Return how far this loader's batches were delivered, in a few integers that JSON can hold.

        It is the same on all ranks, counts what was delivered and not what is in the making, and is cheap
        enough for every step. Any rank's state loads on every rank, at another number of ranks or workers
        and another batch size. docs/resume.md has the rules, also those of a user's own sampler and of
        iterable datasets, whose states say more.
        """
        layout = self._resumable()
        place = self._cursor.place
        state = self._state(layout, self._resolve_seed(layout), place)
        return written(state, place, self._kind(layout), told_sampler(self._samplers()))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next iteration go on where ``state_dict`` was taken. Iterators that live are left alone.

        Raises StateError, which names what differs, for a state of another dataset, seed or order.
        """
        layout = self._resumable()
        kind = self._kind(layout)
        state, place = read(state_dict, kind)
        check_workers(place, self.num_workers)
        own = self._own_seed(layout) if layout is not None or self._native is not None else self.seed
        self._state(layout, state.seed if own is None else own & _MASK64, place).check_same(state)
        told = told_sampler(self._samplers())
        if told is not None and layout is not None:
            # So that set_epoch is heard also if it names the epoch that the sampler has already.
            told.epoch = self._sampler_epoch = -1
        elif told is not None:
            told.epoch = self._sampler_epoch = int(state_dict["sampler"].get("epoch", told.epoch))
        if kind == "stream":
            self._iterator = None  # persistent workers have copies of the dataset that went on
        self._seed_used = state.seed
        self._cursor.load(place)

    def _resumable(self) -> Layout | None:
        layout = self._layout()
        self._hear()
        return layout

    def _state(self, layout: Layout | None, seed: int, place: Place) -> OrderState:
        records = self._records()
        return state_of(layout, 0 if records is None else records.count, self._fingerprint, seed, place)
