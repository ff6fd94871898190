"""Batches copied to a device ahead of their use, on a stream beside the consumer's.

**Streams.** Copies run on a stream of their own, so that they do not queue behind the consumer's kernels, and
the consumer's stream waits for the event behind each; the host never waits. The memory of what arrives
belongs to the copies' stream: ``record_stream`` tells the caching allocator of the stream that uses it, so
that it is not handed out again while kernels that were queued still read it.

**Sources.** A copy is asynchronous only from pinned memory, so that what is not pinned is pinned first, into
storages of torch's host allocator. That one notes an event for each copy that it sees reading a storage, and
hands the storage out again only when the event is over: a source may be dropped at once, behind a stream
that is busy for seconds. What others pinned (``cudaHostRegister``, another vendor's allocator) has no such
notes. So every source is held until the event behind its copy is over, which costs one look at an event.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from fastload.errors import UsageError
from fastload.staging.nested import mapped, tensors_of

__all__ = ["AcceleratorStreams", "Copier", "Copy", "HostStreams", "Streams", "current_at", "find_device"]


class Streams(Protocol):
    """What copying ahead needs of a device."""

    device: torch.device
    asynchronous: bool
    """Whether copies are queued on streams, and come from pinned memory."""

    def guard(self) -> AbstractContextManager[Any]:
        """Make the device the current one: whatever is made within touches no other."""

    def side(self) -> Any:
        """Return the stream that copies are queued on."""

    def current(self) -> Any:
        """Return the stream that the calling thread queues work on."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Let the calling thread queue work on ``stream``."""

    def record(self, stream: Any) -> Any:
        """Return an event that is over when all that ``stream`` was given so far is done."""

    def wait(self, stream: Any, event: Any) -> None:
        """Let ``stream``, not the host, wait for ``event``."""

    def keep(self, tensor: Any, stream: Any) -> None:
        """Note that ``stream`` uses the memory of ``tensor``."""

    def pin(self, leaf: Any) -> Any:
        """Return a tensor or an object of the user's in memory that copies can be queued from."""


class _HostEvent:
    """Over at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostStreams:
    """A device without streams of its own: the CPU, and accelerators whose modules have none."""

    asynchronous = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def guard(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def side(self) -> Any:
        return None

    def current(self) -> Any:
        return None

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def record(self, stream: Any) -> Any:
        return _HostEvent()

    def wait(self, stream: Any, event: Any) -> None:
        pass

    def keep(self, tensor: Any, stream: Any) -> None:
        pass

    def pin(self, leaf: Any) -> Any:
        return leaf


class AcceleratorStreams:
    """The streams and events of ``torch.cuda``, or of another module that has the same."""

    asynchronous = True
    _NEEDED = ("Stream", "Event", "current_stream", "stream", "current_device")

    def __init__(self, device: torch.device) -> None:
        module = _module_of(device)
        index = module.current_device() if device.index is None else device.index
        self.device = torch.device(device.type, index)
        self._module = module

    @classmethod
    def known(cls, device: torch.device) -> bool:
        """Return whether the device's module has what is needed."""
        module = _module_of(device)
        return device.type != "cpu" and all(hasattr(module, name) for name in cls._NEEDED)

    def guard(self) -> AbstractContextManager[Any]:
        return current_at(self.device)

    def side(self) -> Any:
        return _side_stream(self.device)

    def current(self) -> Any:
        return self._module.current_stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._module.stream(stream)
        return context

    def record(self, stream: Any) -> Any:
        event = self._module.Event()
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def keep(self, tensor: Any, stream: Any) -> None:
        tensor.record_stream(stream)

    def pin(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf.pin_memory() if callable(getattr(leaf, "pin_memory", None)) else leaf
        if leaf.device.type != "cpu" or leaf.layout is not torch.strided or leaf.is_pinned():
            return leaf
        return leaf.pin_memory()


@functools.cache
def _side_stream(device: torch.device) -> Any:
    """Return the stream of all copies to ``device``.

    It is one for all loaders and epochs: what was freed on a stream the caching allocator keeps for that
    stream, so that with another one for each epoch memory would be taken anew.
    """
    return _module_of(device).Stream(device=device)


class Copy:
    """A batch on its way: what it is on the device, and the event behind its copy."""

    __slots__ = ("batch", "event")

    def __init__(self, batch: Any, event: Any) -> None:
        self.batch, self.event = batch, event


class Copier:
    """Copies nested batches to ``device``: :meth:`submit` begins, :meth:`take` hands over. One thread's.

    Tensors move, in containers of the same types (see ``mapped``); so do objects with a method
    ``to(device)``, which are told ``non_blocking`` where they take it. Everything else stays as it is. An
    object that keeps tensors where its attributes do not show them needs a method ``record_stream(stream)``.

    Streams are asked for with the first batch, and ``device`` without an index is the current one of that
    time: before it nothing is touched, so that worker processes can be forked.

    >>> copier = Copier(torch.device("cpu"))
    >>> copier.take(copier.submit({"x": torch.arange(2), "name": "two"}))
    {'x': tensor([0, 1]), 'name': 'two'}
    """

    def __init__(
        self, device: torch.device, open_streams: Callable[[torch.device], Streams] | None = None
    ) -> None:
        self._device = device
        self._open_streams = open_streams or _streams_of
        self._streams: Streams | None = None
        self._side: Any = None
        self._sources: collections.deque[tuple[Any, Any]] = collections.deque()

    def _opened(self) -> Streams:
        if self._streams is None:
            self._streams = self._open_streams(self._device)
            with self._streams.guard():
                self._side = self._streams.side()
        return self._streams

    def submit(self, batch: Any, then: Callable[[Any], Any] | None = None) -> Copy:
        """Begin to copy ``batch``; ``then`` is called with the copy, and what it queues runs behind it."""
        streams = self._opened()
        with streams.guard():
            if streams.asynchronous:
                batch = self._pinned(batch, streams)
            with streams.on(self._side):
                moved = mapped(batch, lambda leaf: _moved(leaf, streams))
                if then is not None:
                    moved = then(moved)
            event = streams.record(self._side)
        self._sources.append((event, batch))
        while self._sources and self._sources[0][0].query():
            self._sources.popleft()
        return Copy(moved, event)

    def _pinned(self, batch: Any, streams: Streams) -> Any:
        strange = False

        def pin(leaf: Any) -> Any:
            nonlocal strange
            strange = strange or (isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu")
            return streams.pin(leaf)

        pinned = mapped(batch, pin)
        if strange:  # the dataset's own work on the device, which may still be queued, comes first
            streams.wait(self._side, streams.record(streams.current()))
        return pinned

    def take(self, copy: Copy) -> Any:
        """Return the batch of ``copy``, for use on the stream that is current."""
        streams = self._opened()
        if not streams.asynchronous:
            return copy.batch
        with streams.guard():
            current = streams.current()
            streams.wait(current, copy.event)
            for leaf in _leaves(copy.batch):
                if callable(getattr(leaf, "record_stream", None)) and not isinstance(leaf, torch.Tensor):
                    streams.keep(leaf, current)
                    continue
                for tensor in tensors_of(leaf):
                    if tensor.device == streams.device:
                        streams.keep(tensor, current)
        return copy.batch

    def close(self) -> None:
        """Wait for the copies under way: then nothing reads their sources any more. It may be used on."""
        for event, _ in self._sources:
            event.synchronize()
        self._sources.clear()


def _leaves(batch: Any) -> list[Any]:
    leaves: list[Any] = []
    mapped(batch, leaves.append)
    return leaves


def _moved(leaf: Any, streams: Streams) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.to(streams.device, non_blocking=streams.asynchronous)
    move = getattr(leaf, "to", None)
    if not callable(move):
        return leaf
    options = {"non_blocking": streams.asynchronous} if _takes_non_blocking(move) else {}
    moved = move(streams.device, **options)
    return leaf if moved is None else moved  # one that moves itself in place


def _takes_non_blocking(move: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(move).parameters
    except (TypeError, ValueError):  # compiled, without a signature
        return False
    return "non_blocking" in parameters or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
    )


# --- which device ----------------------------------------------------------------------------------------


def _module_of(device: torch.device) -> Any:
    return getattr(torch, device.type, None)


def _streams_of(device: torch.device) -> Streams:
    return AcceleratorStreams(device) if AcceleratorStreams.known(device) else HostStreams(device)


def current_at(device: torch.device | None) -> AbstractContextManager[Any]:
    """Make ``device`` the current one where it has a number, so that no other one is touched within.

    Pinning takes a context on some device: without this it would be made on the first.

    >>> with current_at(None):
    ...     pass
    """
    if device is None or device.index is None:
        return contextlib.nullcontext()
    guard = getattr(_module_of(device), "device", None)
    made: AbstractContextManager[Any] = contextlib.nullcontext() if guard is None else guard(device)
    return made


def find_device(device: Any) -> torch.device:
    """Return ``device`` (a string, an index, a torch.device) if it is here. Raises UsageError if it is not.

    >>> find_device("cpu")
    device(type='cpu')
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        jax = type(device).__module__.partition(".")[0] in ("jax", "jaxlib")
        hint = "give output='numpy' and put batches there with jax.device_put" if jax else _here()
        raise UsageError(f"device is {device!r}, which torch does not know", hint=hint) from error
    if found.type == "cpu":
        return torch.device("cpu")
    module = _module_of(found)
    if module is None or not getattr(module, "is_available", lambda: False)():
        raise UsageError(f"device {str(found)!r} is not available", hint=_here())
    count = module.device_count() if hasattr(module, "device_count") else 1
    if found.index is not None and found.index >= count:
        raise UsageError(f"device {str(found)!r} does not exist", hint=_here())
    return found


def _here() -> str:
    there = ["cpu"]
    for kind in ("cuda", "xpu", "mps", "mtia", "hpu", "npu"):
        module: Any = getattr(torch, kind, None)
        if module is not None and getattr(module, "is_available", lambda: False)():
            count = module.device_count() if hasattr(module, "device_count") else 1
            there += [f"{kind}:{number}" for number in range(count)]
    return f"there is {', '.join(there)}"
