"""What is a worker thread's own: what get_worker_info says there, generators, a collate that shares nothing.

torch keeps one worker info a process. Newer releases look at the thread first; for others this teaches them
to, the first time worker threads are used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate, worker

from fastload.sampling.permutation import permutation_key

__all__ = [
    "Generators",
    "beneath",
    "in_worker_thread",
    "install",
    "make_info",
    "show_info",
]

_NAME = "_thread_local_worker_info"
_once = threading.Lock()
_wrappers: set[Any] = set()

_worker_info: Any = None
_thread_local_worker_info = threading.local()


def _get_worker_info() -> Any:
    # Runs as torch's function, with the globals of its module: those of the same names there are meant.
    info = getattr(_thread_local_worker_info, "worker_info", None)
    return _worker_info if info is None else info


def install() -> None:
    """Let torch's functions know of worker threads, whoever imported them and when."""
    with _once:
        if not hasattr(worker, _NAME):
            setattr(worker, _NAME, threading.local())
            worker.get_worker_info.__code__ = _get_worker_info.__code__
        stack = collate.default_collate_fn_map.get(torch.Tensor)
        if stack is collate.collate_tensor_fn:  # and no other that somebody put there
            collate.default_collate_fn_map[torch.Tensor] = _unshared(stack)


def beneath(function: Any) -> Any:
    """Return what :func:`install` has put ``function`` around, if it has, else ``function``."""
    while function in _wrappers:
        function = function.__wrapped__
    return function


def _unshared(stack: Any) -> Any:
    """Return torch's collating of tensors, which takes no shared memory in worker threads.

    It does so wherever there is a worker info, which is therefore hidden from it; from nothing else.
    """

    @functools.wraps(stack)
    def collate_tensors(batch: Any, **options: Any) -> Any:
        with _no_info():
            return stack(batch, **options)

    _wrappers.add(collate_tensors)
    return collate_tensors


@contextlib.contextmanager
def _no_info() -> Iterator[None]:
    place = getattr(worker, _NAME)
    info = getattr(place, "worker_info", None)
    place.worker_info = None
    try:
        yield
    finally:
        place.worker_info = info


def show_info(info: Any) -> None:
    """Let get_worker_info return ``info`` in the calling thread, after :func:`install`."""
    getattr(worker, _NAME).worker_info = info


def in_worker_thread() -> bool:
    """Return whether the calling thread is a worker.

    >>> in_worker_thread()
    False
    """
    return getattr(getattr(worker, _NAME, None), "worker_info", None) is not None


class Generators:
    """The random generators of one worker thread, which are its worker info's ``rng``."""

    def __init__(self) -> None:
        self.random_generator = random.Random()
        self.torch_generator = torch.Generator()
        self.numpy_generator = np.random.Generator(np.random.PCG64(0))

    def seed(self, key: int) -> None:
        """Seed all of them with 64 bits; Python's and torch's draw what the global ones would.

        >>> generators = Generators()
        >>> generators.seed(7)
        >>> generators.random_generator.random() == random.Random(7).random()
        True
        """
        self.random_generator.seed(key)
        self.torch_generator.manual_seed(key)
        # Much faster than a new one, and users may have kept this one.
        words = [permutation_key(key, word) for word in range(4)]
        self.numpy_generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3] | 1},
            "has_uint32": 0,
            "uinteger": 0,
        }

    def shown(self) -> Any:
        """Return them as torch's own container, or as they are where torch has none."""
        container = getattr(worker, "_RNG", None)
        if container is None:
            return self
        return container(self.random_generator, self.torch_generator, self.numpy_generator)


def make_info(number: int, count: int, seed: int, dataset: Any, generators: Generators) -> Any:
    """Return the worker info of thread ``number`` of ``count``, with what this torch's has room for."""
    kind = worker.WorkerInfo
    fields = {"id": number, "num_workers": count, "seed": seed, "dataset": dataset}
    fields.update(rng=generators.shown(), worker_method="thread")
    if dataclasses.is_dataclass(kind):
        known = {field.name for field in dataclasses.fields(kind)}
        fields = {name: value for name, value in fields.items() if name in known}
    return kind(**fields)
