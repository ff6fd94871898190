"""Batches as users nest them: the same containers with something else in the place of each leaf."""

from __future__ import annotations

import array
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any

import torch

__all__ = ["is_plain", "mapped", "tensors_of"]

_LEAVES = (str, bytes, bytearray, memoryview, range, array.array, int, float, torch.Tensor)
"""What is no container, however much it looks like one."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` is of torch's own class, in ordinary memory, with nothing but its numbers.

    >>> numbers = torch.zeros(2)
    >>> is_plain(numbers), is_plain(numbers.to_sparse()), is_plain(torch.nn.Parameter(numbers))
    (True, False, False)
    """
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
    )


def mapped(batch: Any, function: Callable[[Any], Any]) -> Any:
    """Return ``batch`` with ``function(leaf)`` in the place of each leaf, in containers of the same types.

    Containers are mappings, sequences, named tuples and dataclasses. Whatever has a method ``to`` is a leaf
    (tensors, and a container that moves itself, as a PackedSequence), and so is all the rest. Nothing of
    ``batch`` changes.

    >>> mapped({"a": [1, 2], "b": (3, "four")}, lambda leaf: leaf + 1 if leaf != "four" else leaf)
    {'a': [2, 3], 'b': (4, 'four')}
    """
    if batch is None or isinstance(batch, _LEAVES) or callable(getattr(batch, "to", None)):
        return function(batch)
    if isinstance(batch, Mapping):
        return _mapping(batch, {name: mapped(value, function) for name, value in batch.items()})
    if isinstance(batch, Sequence):
        return _sequence(batch, [mapped(value, function) for value in batch])
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone: Any = copy.copy(batch)
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):  # a frozen one cannot be set otherwise
                object.__setattr__(clone, field.name, mapped(getattr(batch, field.name), function))
        return clone
    return function(batch)


def _mapping(batch: Mapping[Any, Any], values: dict[Any, Any]) -> Any:
    if type(batch) is dict:
        return values
    made: Any = type(batch)
    try:
        if isinstance(batch, MutableMapping):  # a copy of it keeps what else it has
            clone = copy.copy(batch)
            clone.update(values)
            return clone
        return made(values)
    except TypeError:  # it cannot be made of a dict
        return values


def _sequence(batch: Sequence[Any], values: list[Any]) -> Any:
    if type(batch) is list:
        return values
    made: Any = type(batch)
    if hasattr(batch, "_fields"):
        return made(*values)
    try:
        if isinstance(batch, MutableSequence):
            clone = copy.copy(batch)
            for number, value in enumerate(values):
                clone[number] = value
            return clone
        return made(values)
    except TypeError:
        return values


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of ``batch``, also those in attributes of objects that are no containers."""
    yield from _tensors(batch, set())


def _tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield from _parts(value)
        return
    if value is None or isinstance(value, (*_LEAVES, type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Mapping):
        inner: list[Any] = list(value.values())
    elif isinstance(value, Sequence):
        inner = list(value)
    else:
        inner = []
    inner += getattr(value, "__dict__", {}).values()
    inner += [getattr(value, name, None) for name in _slots(value)]
    for each in inner:
        yield from _tensors(each, seen)


def _slots(value: Any) -> Iterator[str]:
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        yield from (names,) if isinstance(names, str) else names


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the dense tensors that hold a tensor's memory: those of a sparse or nested one are inside it."""
    inner = getattr(tensor, "__tensor_flatten__", None)
    if inner is not None:
        for name in inner()[0]:
            yield from _parts(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield from (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield from (tensor.ccol_indices(), tensor.row_indices(), tensor.values())
    else:
        yield tensor
