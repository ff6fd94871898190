"""Rows of a batch that is in the making: where large tensors of samples go as soon as these are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate

from fastload.staging.nested import is_plain

__all__ = ["RowedSamples", "Rows"]

_LARGE = 4096
"""Bytes from which on a tensor is copied to its row: for smaller ones that costs more than it saves."""


class _Slot:
    """Stands in a sample for a tensor that was copied to its row of the batch's."""

    __slots__ = ("room",)

    def __init__(self, room: torch.Tensor) -> None:
        self.room = room


class _UnevenError(Exception):
    """Samples are not alike, and it is torch that says what becomes of them."""


class Rows:
    """The large tensors of a batch whose ``size`` samples are to be collated by torch's default_collate.

    Each is copied to its row of the batch's tensor when its sample is made, and let go: the batch then takes
    its own memory and not twice that, and what is copied is still in the processor's cache. The result is
    torch's, which gets to collate all else. ``room(shape, dtype)`` returns the memory of the batch's tensors,
    uninitialised. Several threads may move samples of one batch.

    >>> rows = Rows(2, lambda shape, dtype: torch.empty(shape, dtype=dtype))
    >>> samples = [rows.moved(place, {"x": torch.full((2000,), place), "n": place}) for place in range(2)]
    >>> batch = rows.collated(samples, torch.utils.data.default_collate)
    >>> batch["x"][:, 0], batch["n"]
    (tensor([0, 1]), tensor([0, 1]))
    """

    def __init__(self, size: int, room: Callable[[tuple[int, ...], torch.dtype], torch.Tensor]) -> None:
        self._size, self._room_for = size, room
        self._rooms: dict[tuple[Any, ...], torch.Tensor] = {}
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Return whether any sample had a large tensor."""
        return bool(self._rooms)

    def moved(self, place: int, sample: Any) -> Any:
        """Return ``sample`` with slots for its large tensors, which are copied to row ``place``."""
        return self._moved(place, sample, ())

    def _moved(self, place: int, value: Any, path: tuple[Any, ...]) -> Any:
        kind = type(value)
        if kind is dict:
            return {key: self._moved(place, each, (*path, key)) for key, each in value.items()}
        if kind is list:
            return [self._moved(place, each, (*path, i)) for i, each in enumerate(value)]
        if kind is tuple:
            return tuple(self._moved(place, each, (*path, i)) for i, each in enumerate(value))
        if kind is np.ndarray and value.nbytes >= _LARGE and value.dtype.kind in "biuf":
            value = torch.as_tensor(value)
        elif kind is not torch.Tensor or not _moves(value):
            return value
        room = self._rooms.get(path)
        if room is None:
            with self._lock:
                room = self._rooms.get(path)
                if room is None:
                    room = self._rooms[path] = self._room_for((self._size, *value.shape), value.dtype)
        if room.shape[1:] != value.shape or room.dtype != value.dtype:
            return value
        room[place].copy_(value)
        return _Slot(room)

    def collated(self, samples: Sequence[Any], function: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the batch. ``function`` is default_collate: where samples are not alike it says so."""
        slots = {**collate.default_collate_fn_map, _Slot: self._whole}
        try:
            return collate.collate(samples, collate_fn_map=slots)
        except Exception:  # the words for it are torch's, of the samples as they were
            return function([_restored(sample, place) for place, sample in enumerate(samples)])

    def _whole(self, slots: Sequence[Any], **_: Any) -> torch.Tensor:
        room: torch.Tensor = slots[0].room
        if any(type(slot) is not _Slot or slot.room is not room for slot in slots) or len(slots) != len(room):
            raise _UnevenError
        return room


class RowedSamples(list[Any]):
    """The samples of a batch, whose large tensors are in ``rows``."""

    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows

    def collated(self, function: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the batch. ``function`` is default_collate."""
        return self.rows.collated(self, function)


def _moves(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is nothing but numbers in memory, and so many that copying them soon pays."""
    return tensor.nbytes >= _LARGE and is_plain(tensor) and not (tensor.is_conj() or tensor.is_neg())


def _restored(value: Any, place: int) -> Any:
    """Return a sample with its tensors instead of slots."""
    kind = type(value)
    if kind is _Slot:
        return value.room[place]
    if kind is dict:
        return {key: _restored(each, place) for key, each in value.items()}
    if kind in (list, tuple):
        return kind(_restored(each, place) for each in value)
    return value
