"""torch's default_collate in a worker, made to stack samples where their batch is to lie."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torchs

from fastload.loader.rows import Rows
from fastload.loader.slabs import Channel, Pen
from fastload.loader.thread_info import beneath
from fastload.staging.nested import is_plain

__all__ = ["collates_as_torch", "collating_into", "rows_in"]

_LEAST = 1 << 14
"""Bytes below which a batch's tensor has ordinary memory: it travels in the message."""

_DTYPE = operator.attrgetter("dtype")


class _Collating(threading.local):
    pen: Pen | None = None


_collating = _Collating()


@contextlib.contextmanager
def collating_into(pen: Pen) -> Iterator[None]:
    """Let default_collate put what it makes in this thread where ``pen`` says.

    It does so by torch's own table of functions by type, in which those that the user has put there stay.
    """
    _install()
    _collating.pen = pen
    try:
        yield
    finally:
        _collating.pen = None


def _install() -> None:
    table: dict[Any, Any] = torchs.default_collate_fn_map
    for kind, torchs_own, ours in _OURS:
        if beneath(table.get(kind)) is torchs_own:
            table[kind] = ours  # at its place: torch asks for subclasses in the table's order


def collates_as_torch() -> bool:
    """Return whether default_collate stacks tensors and arrays, and nobody taught it another way.

    >>> collates_as_torch()
    True
    """
    table: dict[Any, Any] = torchs.default_collate_fn_map
    return all(
        beneath(table.get(kind)) in (torchs_own, ours)
        for kind, torchs_own, ours in _OURS
        if kind in (torch.Tensor, np.ndarray)
    )


def rows_in(channel: Channel, size: int) -> Rows | None:
    """Return rows in the slab of the calling worker for a batch of ``size`` samples, if it stacks them."""
    if size < 2 or not channel.stacks or not collates_as_torch():
        return None
    return Rows(size, functools.partial(_room_for, channel.pen))


def _room_for(pen: Pen, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor to stack into, in the slab unless it is small or no slab is free."""
    size = math.prod(shape) * dtype.itemsize
    taken = pen.take(size) if size >= _LEAST else None
    if taken is None:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(taken[1]).view(dtype).view(shape)


def _collate_tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
    pen, first = _collating.pen, batch[0]
    if pen is not None and is_plain(first):
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # torch's own says it in its words
            if len(set(map(_DTYPE, batch))) > 1:
                return torch.stack(batch, 0)  # promoted, as in the caller: torch's workers cut numbers short
            return torch.stack(batch, 0, out=_room_for(pen, (len(batch), *first.shape), first.dtype))
    return torchs.collate_tensor_fn(batch, collate_fn_map=collate_fn_map)


def _collate_arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
    pen = _collating.pen
    if pen is not None:
        stacked = _stacked(batch, pen)
        if stacked is not None:
            return stacked
    return torchs.collate_numpy_array_fn(batch, collate_fn_map=collate_fn_map)


def _stacked(batch: Any, pen: Pen) -> torch.Tensor | None:
    """Return arrays that torch would take, and are alike, as one tensor; else None."""
    first = batch[0]
    if not set(map(type, batch)) <= {np.ndarray, np.memmap} or not first.ndim or not first.size:
        return None
    if {each.shape for each in batch} != {first.shape}:
        return None
    if not all(each.flags.c_contiguous or _has_torchs_strides(each) for each in batch):
        return None
    try:
        dtype = torch.from_numpy(np.empty(0, first.dtype)).dtype
        out = _room_for(pen, (len(batch), *first.shape), dtype)
        flat = out.view(len(batch) * first.shape[0], *first.shape[1:]).numpy()
        np.concatenate(batch, out=flat, casting="no")
    except (TypeError, ValueError):  # a dtype that torch does not have, or another one among them
        return None
    return out


def _has_torchs_strides(array: np.ndarray[Any, Any]) -> bool:
    return all(step > 0 and step % array.itemsize == 0 for step in array.strides)


def _collate_ints(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return _numbers(batch, int, np.int64, torchs.collate_int_fn)


def _collate_floats(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return _numbers(batch, float, np.float64, torchs.collate_float_fn)


def _numbers(batch: Any, kind: type, dtype: type, torchs_own: Callable[[Any], Any]) -> Any:
    """Return Python's numbers as a tensor: NumPy reads a list of them several times faster than torch."""
    if _collating.pen is not None and set(map(type, batch)) == {kind}:
        with contextlib.suppress(OverflowError):
            return torch.from_numpy(np.array(batch, dtype))
    return torchs_own(batch)


_OURS = [
    (torch.Tensor, torchs.collate_tensor_fn, _collate_tensors),
    (np.ndarray, torchs.collate_numpy_array_fn, _collate_arrays),
    (int, torchs.collate_int_fn, _collate_ints),
    (float, torchs.collate_float_fn, _collate_floats),
]
