"""Batches packed into slabs by workers, and unpacked into views of them by the parent."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import pin_memory

from fastload.errors import EngineError
from fastload.loader.collating import collating_into
from fastload.loader.mapping import Bytes
from fastload.loader.rows import RowedSamples
from fastload.loader.slabs import Channel, Lease, Pen, Receiver, receiver_of
from fastload.staging.nested import is_plain

__all__ = ["Message", "SlabCollate"]

SMALL = 1 << 14
"""Up to so many bytes of a tensor travel in the message: whoever keeps the labels only keeps no slab."""

_LARGE_MESSAGE = 1 << 16
_SHARED_MEMORY = "/dev/shm"

Collate = Callable[[Any], Any]


# --- in a worker ---------------------------------------------------------------------------------------


class SlabCollate:
    """A collate function that leaves its batch in a slab, and gives what goes through torch's queue."""

    def __init__(self, channel: Channel, collate: Collate) -> None:
        self._channel, self._collate = channel, collate

    def __call__(self, samples: Any) -> Packed:
        pen = self._channel.pen
        try:
            with collating_into(pen):
                rowed = isinstance(samples, RowedSamples)
                batch = samples.collated(self._collate) if rowed else self._collate(samples)
            return self._pack(batch, pen)
        except BaseException:
            pen.abort()
            raise

    def _pack(self, batch: Any, pen: Pen) -> Packed:
        buffer = io.BytesIO()
        # Here, and not in the thread of torch's queue: there an error would leave the parent waiting.
        packer = _Packer(buffer, pen)
        packer.dump(batch)
        payload: Any = buffer.getbuffer() if buffer.tell() > _LARGE_MESSAGE else buffer.getvalue()
        if isinstance(payload, memoryview):
            payload = _put(payload, pen)
        packed = Packed(self._channel.token, pen.slab, pen.capacity, pen.used, payload, packer.foreign)
        pen.finish()
        return packed


def _put(payload: memoryview, pen: Pen) -> Any:
    taken = pen.take(len(payload))
    if taken is None:
        return payload.tobytes()
    begin, room = taken
    room[:] = np.frombuffer(payload, np.uint8)
    return begin, begin + len(payload)


class Packed:
    """A batch as it goes through the queue: a pickle of all but its tensors, or where in the slab that is."""

    def __init__(self, token: int, slab: int, capacity: int, used: int, payload: Any, foreign: bool) -> None:
        self._about = (token, slab, capacity, used, payload, foreign)

    def __reduce__(self) -> Any:
        return Message, self._about


class _Packer(ForkingPickler):
    """Pickles as torch does, but for plain tensors and arrays, which go into a slab."""

    def __init__(self, buffer: io.BytesIO, pen: Pen) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._pen = pen
        self.foreign = False
        """Whether something was pickled that its receiver has to fetch at once, as descriptors."""

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is torch.Tensor:
            reduced = self._reduce_tensor(value)
        elif kind is np.ndarray:
            reduced = self._reduce_array(value)
        else:
            self.foreign = self.foreign or kind in ForkingPickler._extra_reducers  # type: ignore[attr-defined]
            return NotImplemented
        return NotImplemented if reduced is None else reduced

    def _reduce_tensor(self, value: torch.Tensor) -> Any:
        reduced = self._placed(value) if is_plain(value) else None
        if reduced is None:
            self.foreign = True
            if value.device.type == "cpu" and value.layout is torch.strided and not value.is_shared():  # type: ignore[no-untyped-call]
                _check_room(value.untyped_storage().nbytes())
        return reduced

    def _placed(self, value: torch.Tensor) -> Any:
        """Return how to make ``value`` of bytes in the slab, where they lie already or are copied to."""
        value = value.resolve_conj().resolve_neg()  # most often itself; torch would forget about it
        shape, size = tuple(value.shape), value.numel()
        stride = None if value.stride() == _usual_stride(shape) else value.stride()
        if stride is not None and size:
            size = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
        nbytes = size * value.element_size()
        if not nbytes:
            return _empty, (value.dtype, shape, stride)
        begin = self._pen.find(value.data_ptr())
        if begin is not None:
            return _view, (begin, nbytes, value.dtype, shape, stride)
        if value.is_shared():  # type: ignore[no-untyped-call]
            return None  # the user's own shared memory is passed on as such
        flat = value.as_strided((size,), (1,), value.storage_offset()).view(torch.uint8).numpy()
        if nbytes <= SMALL:
            return _inline, (bytearray(flat), value.dtype, shape, stride)
        taken = self._pen.take(nbytes)
        if taken is None:
            return None
        begin, room = taken
        room[:] = flat
        return _view, (begin, nbytes, value.dtype, shape, stride)

    def _reduce_array(self, value: np.ndarray[Any, Any]) -> Any:
        if value.nbytes <= SMALL or not value.flags.c_contiguous or value.dtype.hasobject:
            return None
        begin = self._pen.find(value.__array_interface__["data"][0])
        if begin is None:
            taken = self._pen.take(value.nbytes)
            if taken is None:
                return None
            begin, room = taken
            room.view(value.dtype).reshape(value.shape)[...] = value
        return _array, (begin, value.nbytes, value.dtype, value.shape)


def _usual_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a new tensor's strides. Others are contiguous too, if they differ where there is no step."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def _check_room(needed: int) -> None:
    """Raise EngineError if torch's own way of sharing ``needed`` bytes would find no memory."""
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return
    free = found.f_bavail * found.f_frsize
    if free < needed:
        raise EngineError(
            f"a batch needs {needed:,} bytes of shared memory, and {_SHARED_MEMORY} has {free:,} free",
            hint="make it larger (docker run --shm-size), hold fewer batches, or use fewer workers, "
            "a smaller prefetch_factor or smaller batches",
        )


# --- in the parent -------------------------------------------------------------------------------------


class _Opened(threading.local):
    """The memory of the batch that this thread unpacks."""

    array: Bytes | None = None
    copies = False


_opened = _Opened()


def _bytes(begin: int, size: int) -> Bytes:
    array = _opened.array
    assert array is not None
    found = array[begin : begin + size]
    return found.copy() if _opened.copies else found


def _view(begin: int, size: int, dtype: torch.dtype, shape: Any, stride: Any) -> torch.Tensor:
    return _shaped(torch.from_numpy(_bytes(begin, size)), dtype, shape, stride)


def _inline(content: bytearray, dtype: torch.dtype, shape: Any, stride: Any) -> torch.Tensor:
    return _shaped(torch.frombuffer(content, dtype=torch.uint8), dtype, shape, stride)


def _empty(dtype: torch.dtype, shape: Any, stride: Any) -> torch.Tensor:
    return (
        torch.empty(shape, dtype=dtype) if stride is None else torch.empty_strided(shape, stride, dtype=dtype)
    )


def _shaped(flat: torch.Tensor, dtype: torch.dtype, shape: Any, stride: Any) -> torch.Tensor:
    typed = flat.view(dtype)
    return typed.view(shape) if stride is None else typed.as_strided(shape, stride)


def _array(begin: int, size: int, dtype: np.dtype[Any], shape: Any) -> np.ndarray[Any, Any]:
    made: np.ndarray[Any, Any] = _bytes(begin, size).view(dtype).reshape(shape)
    return made


@contextlib.contextmanager
def _open(array: Bytes | None, *, copies: bool) -> Iterator[None]:
    _opened.array, _opened.copies = array, copies
    try:
        yield
    finally:
        _opened.array = None


class Message:
    """A batch as the parent has received it. It is unpacked when it is delivered, or pinned."""

    __slots__ = ("_error", "_foreign", "_lease", "_made", "_payload", "_receiver")

    def __init__(self, token: int, slab: int, capacity: int, used: int, payload: Any, foreign: bool) -> None:
        self._receiver: Receiver = receiver_of(token)
        self._payload, self._foreign = payload, foreign
        self._lease: Lease | None = None
        self._made: Any = None
        self._error: BaseException | None = None
        # Nothing is raised here: torch would lose count of a batch that cannot be received.
        try:
            self._lease = self._receiver.lease(slab, capacity, used) if slab >= 0 else None
            if foreign:  # the worker that has the descriptors may be gone when the batch is delivered
                self._made = self._load()
        except Exception as error:
            self._error = error

    def unpack(self) -> Any:
        """Return the batch. May be called once. Raises what its unpickling raises."""
        if self._error is not None:
            raise self._error
        return self._made if self._foreign else self._load()

    def pin_memory(self) -> Any:
        """Return the batch in pinned memory, as torch's pinning thread asks."""
        return pin_memory.pin_memory(self.unpack())  # type: ignore[no-untyped-call]

    def _load(self) -> Any:
        lease, self._lease = self._lease, None
        held = lease is None or lease.hold()
        way = (
            "torch_batches"
            if lease is None and self._foreign
            else "slab_batches"
            if held
            else "copied_batches"
        )
        self._receiver.counts[way] += 1
        array = None if lease is None else np.asarray(lease)
        payload, self._payload = self._payload, None
        if isinstance(payload, tuple):
            assert array is not None
            payload = array[slice(*payload)]
        with _open(array, copies=not held):
            return pickle.loads(payload)
