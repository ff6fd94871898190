"""Slabs: memory that worker processes make batches in and that the parent maps once.

All slabs of an iterator are parts of one anonymous file. Each belongs to one worker, which makes one batch at
a time in it; the parent's tensors are views of it, and it is free again when the last of them is gone. A byte
for each slab says who has it. It has one writer at a time: the worker takes a slab that is free, and the
parent, to whom it goes with the batch, frees it. Two bytes before them are the parent's: whether the iterator
has ended, and how many slabs each worker may have.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import itertools
import os
import weakref
from multiprocessing import reduction
from typing import Any, TypeVar

from torch.utils import data

from fastload._config import logger
from fastload.errors import EngineError
from fastload.loader.mapping import Bytes, Mapping, available, give_back, make_file, reserve, taken

__all__ = ["Channel", "Lease", "Pen", "Receiver", "make_channel", "receiver_of"]

_SPARE = 2
"""Slabs of each worker that the user's batches may hold. It needs one more than batches are made ahead."""

_MOST = 255
"""Slabs that a worker may ever have."""

_WINDOW = 1 << 36
"""Bytes of the file from one slab to the next. What is not written takes no memory."""

_ENDED, _ALLOWED, _FIRST = 0, 1, 2
"""Where in the shared bytes what is."""

_ALIGNMENT = 64
_LEAST = 1 << 16

_LONG_TO_FREE = 1 << 25
"""Bytes that are freed by a thread: the kernel takes 0.2 seconds for each GB."""

_FREE, _TAKEN, _HELD = 0, 1, 2
"""What a slab's byte says. Held are those whose batch was given to the user."""

T = TypeVar("T")

_tokens = itertools.count()
_receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()


class Channel:
    """What the workers of an iterator are given: the file, and how it is divided among them.

    ``stacks`` says that their batches are what default_collate makes of samples.

    Raises OSError where the system gives no such file.
    """

    def __init__(self, workers: int, stacks: bool = False) -> None:
        self.workers, self.stacks = workers, stacks
        self.token = next(_tokens)
        self.file = make_file(begin_of(workers * _MOST))
        self._flags: memoryview | None = None
        self._pen: Pen | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": reduction.DupFd(self.file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, file=state["file"].detach())

    def map_flags(self) -> memoryview:
        """Return the bytes that all share. The first one says whether the iterator has ended."""
        return Mapping(self.file, 0, _rounded(_FIRST + self.workers * _MOST)).array().data

    @property
    def flags(self) -> memoryview:
        """The same in a worker, mapped once. The parent's are the receiver's."""
        if self._flags is None:
            self._flags = self.map_flags()
        return self._flags

    @property
    def pen(self) -> Pen:
        """What the worker that asks writes its batches with."""
        if self._pen is None:
            info = data.get_worker_info()
            assert info is not None
            self._pen = Pen(self, info.id)
        return self._pen


def make_channel(workers: int, stacks: bool) -> Channel | None:
    """Return a channel to so many workers, or None where processes cannot share memory in this way.

    Raises EngineError where that is for want of descriptors or memory: torch's way would need more of both.
    """
    if not available():
        return None
    try:
        return Channel(workers, stacks)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise EngineError(
                f"worker processes need a descriptor for shared memory, and there is none ({error.strerror})",
                hint="raise the limit (ulimit -n), or close iterators and files",
            ) from error
        logger.info("batches of worker processes come by torch's transport: %s", error)
        return None


def begin_of(slab: int) -> int:
    """Return where in the file slab number ``slab`` begins."""
    return (1 + slab) * _WINDOW


def _rounded(size: int) -> int:
    """Return a size of memory for at least ``size`` bytes, such that sizes that differ little share it."""
    step = max(_LEAST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


# --- in a worker ---------------------------------------------------------------------------------------


class Pen:
    """Gives out memory of one worker's slabs, for one batch at a time."""

    def __init__(self, channel: Channel, worker: int) -> None:
        self._file, self._flags = channel.file, channel.flags
        self._numbers = range(worker * _MOST, (worker + 1) * _MOST)
        self._mappings: dict[int, Mapping] = {}
        self._arrays: dict[int, list[weakref.ref[Bytes]]] = {}
        self._largest = 0
        self.slab = -1
        """The slab of the batch in the making, or -1."""
        self.used = 0
        self._ranges: list[tuple[int, int]] = []
        self._array: Bytes | None = None

    @property
    def capacity(self) -> int:
        """How many bytes of the slab there are to map."""
        return self._mappings[self.slab].size if self.slab >= 0 else 0

    def take(self, size: int) -> tuple[int, Bytes] | None:
        """Return ``size`` bytes for the batch in the making, and where they lie, or None: no slab is free.

        Raises EngineError where the system has no memory for it.
        """
        if self.slab < 0 and not self._take_slab():
            return None
        begin = -(-self.used // _ALIGNMENT) * _ALIGNMENT
        end = begin + size
        if end > _WINDOW:
            return None
        if self._array is None or end > len(self._array):
            self._enlarge(end)
        assert self._array is not None
        self.used = end
        return begin, self._array[begin:end]

    def _take_slab(self) -> bool:
        for number in self._numbers[: self._flags[_ALLOWED]]:
            # A collate function may have kept a tensor of an earlier batch.
            kept = any(array() is not None for array in self._arrays.get(number, ()))
            if self._flags[_FIRST + number] == _FREE and not kept:
                self._flags[_FIRST + number] = _TAKEN
                self.slab, self.used, self._ranges, self._array = number, 0, [], None
                self._arrays[number] = []
                if number in self._mappings:
                    self._show(self._mappings[number])
                return True
        return False

    def _enlarge(self, end: int) -> None:
        old = self._mappings.get(self.slab)
        had = 0 if old is None else old.size
        # By half at least, since the first batch comes tensor by tensor.
        size = min(_WINDOW, _rounded(max(end, self._largest, had + had // 2)))
        begin = begin_of(self.slab)
        reserve(self._file, begin + had, size - had)
        self._mappings[self.slab] = Mapping(self._file, begin, size, populate=True)
        self._show(self._mappings[self.slab])

    def _show(self, mapping: Mapping) -> None:
        self._array = mapping.array()
        self._arrays[self.slab].append(weakref.ref(self._array))
        self._ranges.append((mapping.address, mapping.size))

    def find(self, address: int) -> int | None:
        """Return where in the batch's slab an address lies, or None if it does not."""
        for begin, size in self._ranges:
            if begin <= address < begin + size:
                return address - begin
        return None

    def finish(self) -> None:
        """Leave the slab to the parent."""
        self._largest = max(self._largest, self.used)
        self._leave()

    def abort(self) -> None:
        """Take the slab back: no batch came about."""
        if self.slab >= 0:
            self._flags[_FIRST + self.slab] = _FREE
        self._leave()

    def _leave(self) -> None:
        self.slab, self.used, self._ranges, self._array = -1, 0, [], None


# --- in the parent -------------------------------------------------------------------------------------


class Lease:
    """A slab with a batch in it. Arrays over it keep it; when the last one is gone, the slab is free."""

    __slots__ = ("__weakref__", "_flags", "_process", "_receiver", "mapping", "number", "used")

    def __init__(self, receiver: Receiver, number: int, mapping: Mapping, used: int) -> None:
        self._receiver, self._flags, self._process = receiver, receiver.flags, os.getpid()
        self.number, self.mapping, self.used = number, mapping, used

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.mapping.__array_interface__

    def hold(self) -> bool:
        """Give it to the user, unless their batches take so many slabs that the worker would lack one."""
        if self._receiver.held(self.number) >= _SPARE:
            return False
        self._flags[_FIRST + self.number] = _HELD
        return True

    def move_out(self) -> None:
        """Let its arrays have memory of their own, under the same addresses, and free the slab."""
        if os.getpid() == self._process:
            self._receiver.forget(self.number)
            self.mapping.move_out(self.used)
            self._free()

    def _free(self) -> None:
        self._flags[_FIRST + self.number] = _FREE
        self._process = 0

    def __del__(self, process: Any = os.getpid) -> None:
        if process() == self._process:  # in a forked child the slab is still the parent's
            self._free()


class Receiver:
    """The parent's side of a channel. It counts how batches came."""

    def __init__(self, channel: Channel, prefetch_factor: int) -> None:
        self._channel = channel
        self._process = os.getpid()
        self.flags = channel.map_flags()
        self._mappings: dict[int, Mapping] = {}
        self.leases: weakref.WeakValueDictionary[int, Lease] = weakref.WeakValueDictionary()
        self.counts = {"slab_batches": 0, "copied_batches": 0, "torch_batches": 0}
        self.starting = True
        """Whether the processes that are forked now are its workers."""
        self.allow(prefetch_factor)
        _receivers[channel.token] = self

    def allow(self, prefetch_factor: int) -> None:
        """Let each worker have as many slabs as it takes to make so many batches ahead."""
        self.flags[_ALLOWED] = min(_MOST, prefetch_factor + 1 + _SPARE)

    def lease(self, number: int, capacity: int, used: int) -> Lease:
        """Return slab ``number``, of ``capacity`` bytes, which a worker has left with a batch in it."""
        mapping = self._mappings.get(number)
        if mapping is None or mapping.size < capacity:
            mapping = self._mappings[number] = Mapping(self._channel.file, begin_of(number), capacity)
        lease = self.leases[number] = Lease(self, number, mapping, used)
        return lease

    def held(self, number: int) -> int:
        """Return how many slabs of the worker that has slab ``number`` the user's batches take."""
        first = _FIRST + number // _MOST * _MOST
        return self.flags[first : first + _MOST].tobytes().count(_HELD)

    def forget(self, number: int) -> None:
        """Map slab ``number`` anew when it comes again."""
        self._mappings.pop(number, None)

    def stop(self) -> None:
        """Tell workers that what they are making is not wanted any more."""
        self.flags[_ENDED] = 1

    def close(self) -> None:
        """Close the file, and free all memory but that of batches which are held."""
        file, self._channel.file = self._channel.file, -1
        if file < 0 or os.getpid() != self._process:
            return
        mappings, self._mappings = list(self._mappings.values()), {}
        held = sorted(lease.number for lease in _alive(self.leases))
        arguments = file, self._channel.workers * _MOST, held, mappings
        if taken(file) >= _LONG_TO_FREE:
            # None of threading's, whose start is waited for: this may run in the collector, with any lock
            # held. At the interpreter's end there are no new threads.
            with contextlib.suppress(RuntimeError):
                _thread.start_new_thread(_let_go, arguments)
                return
        _let_go(*arguments)

    def __del__(self) -> None:
        self.close()  # its workers could not be started

    def leave_child(self) -> None:
        """Close the file in a forked child that has nothing to do with it."""
        if not self.starting:
            file, self._channel.file = self._channel.file, -1
            if file >= 0:
                os.close(file)


def _let_go(file: int, slabs: int, held: list[int], mappings: list[Mapping]) -> None:
    """Free the slabs that are not held: as long as one is, the file would keep the memory of all."""
    free = 0
    for number in (*held, slabs):
        if number > free:
            give_back(file, begin_of(free), begin_of(number))
        free = number + 1
    os.close(file)
    mappings.clear()


def receiver_of(token: int) -> Receiver:
    """Return the receiver of the channel with this token."""
    return _receivers[token]


def _before_fork() -> None:
    for receiver in _alive(_receivers):
        for lease in _alive(receiver.leases):
            lease.move_out()


def _in_child() -> None:
    for receiver in _alive(_receivers):
        receiver.leave_child()


def _alive(values: weakref.WeakValueDictionary[int, T]) -> list[T]:
    """Return what is in a dictionary, to which another thread may add meanwhile."""
    return [value for value in (reference() for reference in values.valuerefs()) if value is not None]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)
