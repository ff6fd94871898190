"""A batch that several worker threads make together, each some of its samples."""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate

from fastload.staging.nested import is_plain

__all__ = ["Assembly", "Regions"]

_MOST_PARTS = 16
_LARGE = 4096
"""Bytes from which on a tensor is copied to its place in the batch as soon as it is made."""

_MAPPED = 1 << 20
"""Bytes from which on the tensor of a batch has memory of its own, which malloc does not keep afterwards."""


class Regions:
    """Memory for batches: at most so many regions are kept as were given back, for the next batches.

    >>> regions = Regions(1)
    >>> room = regions.tensor((2, 3), torch.uint8)
    >>> room.shape, regions.kept
    (torch.Size([2, 3]), 0)
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._free: list[mmap.mmap] = []

    @property
    def kept(self) -> int:
        """How many regions wait for a batch."""
        return len(self._free)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised tensor. Its memory comes back when the last view of it is gone."""
        size = math.prod(shape) * dtype.itemsize
        if size < _MAPPED or not hasattr(mmap, "MAP_ANONYMOUS"):
            return torch.empty(shape, dtype=dtype)
        try:
            region = self._free.pop()
        except IndexError:
            region = None
        if region is None or len(region) != size:
            region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        owner = np.frombuffer(region, np.uint8)  # torch's storage keeps it, and nobody else does
        weakref.finalize(owner, self._take_back, region).atexit = False
        return torch.from_numpy(owner).view(dtype).view(shape)

    def _take_back(self, region: mmap.mmap) -> None:
        if len(self._free) < self._most:
            self._free.append(region)


class _Slot:
    """Stands in a sample for a tensor that was copied to its row of the batch's."""

    __slots__ = ("room",)

    def __init__(self, room: torch.Tensor) -> None:
        self.room = room


class _UnevenError(Exception):
    """Samples are not alike, and it is torch that says what becomes of them."""


class Assembly:
    """The samples of a batch, in parts that workers make side by side.

    With ``regions`` the large tensors of samples that are to be collated by torch's default_collate are
    copied to their rows of the batch as soon as they are made, and let go: a batch then takes its own memory
    and not twice that. The result is torch's, which gets to collate all else.
    """

    def __init__(self, round_: int, number: int, indices: Any, size: int, regions: Regions | None) -> None:
        self.round, self.number, self.indices = round_, number, indices
        self.parts = min(_MOST_PARTS, -(-size // 2))
        self.failure: tuple[int, Any] | None = None
        self._samples: list[Any] = [None] * size
        self._left = self.parts
        self._regions = regions
        self._rooms: dict[tuple[Any, ...], torch.Tensor] = {}
        self._lock = threading.Lock()

    def range_of(self, part: int) -> range:
        """Return the places of a part's samples."""
        size = len(self._samples)
        return range(part * size // self.parts, (part + 1) * size // self.parts)

    def put(self, place: int, sample: Any) -> None:
        """Take a sample."""
        self._samples[place] = sample if self._regions is None else self._moved(place, sample, ())

    def fail(self, part: int, failure: Any) -> None:
        """Note what went wrong with a part. The first part's counts, as if they were made in turn."""
        with self._lock:
            if self.failure is None or part < self.failure[0]:
                self.failure = part, failure

    def needs(self, part: int) -> bool:
        """Return whether a part is still of use: no part before it failed."""
        return self.failure is None or part < self.failure[0]

    def done(self) -> bool:
        """Note that one part is done with; return whether it was the last."""
        with self._lock:
            self._left -= 1
            return self._left == 0

    def collated(self, function: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the batch, which ``function`` makes of the samples where they are not in place already."""
        samples, self._samples = self._samples, []
        if self._regions is None:
            return function(samples)
        slots = {**collate.default_collate_fn_map, _Slot: self._room}
        try:
            return collate.collate(samples, collate_fn_map=slots)
        except Exception:  # the words for it are torch's, of the samples as they were
            return function([_restored(sample, place) for place, sample in enumerate(samples)])

    def _moved(self, place: int, value: Any, path: tuple[Any, ...]) -> Any:
        """Return ``value`` with slots for its large tensors, which are copied to row ``place``."""
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
                    assert self._regions is not None
                    shape = (len(self._samples), *value.shape)
                    room = self._rooms[path] = self._regions.tensor(shape, value.dtype)
        if room.shape[1:] != value.shape or room.dtype != value.dtype:
            return value
        room[place].copy_(value)
        return _Slot(room)

    def _room(self, slots: Sequence[Any], **_: Any) -> torch.Tensor:
        room: torch.Tensor = slots[0].room
        if any(type(slot) is not _Slot or slot.room is not room for slot in slots) or len(slots) != len(room):
            raise _UnevenError
        return room


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
