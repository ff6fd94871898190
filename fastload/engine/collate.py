"""Samples of one field put together into a batch, as engine/plan.py says engines deliver it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.engine.plan import Allocate, BatchValue, FieldPlan, Jagged
from fastload.errors import EngineError
from fastload.schema import Image, Label, Ragged, Scalar, Tensor, numpy_dtype_of
from fastload.transforms import MovedBoxes, output_spec

__all__ = ["collate_field", "unequal"]

Array = npt.NDArray[Any]


def collate_field(
    plan: FieldPlan, values: Sequence[Any], records: Array, allocate: Allocate | None
) -> BatchValue:
    """Return one field of a batch out of its samples' values. ``records`` number them for error messages.

    Arrays of a size that the plan tells go into memory that ``allocate`` gives. Raises EngineError where
    arrays of unequal shape cannot be stacked.
    """
    field = plan.field
    if field.nullable:
        if isinstance(field, Image) and output_spec(plan.operations).layout == "channels_last":
            # by shape CHW, as in a batch of them; the memory stays as it is
            return [None if value is None else value.transpose(2, 0, 1) for value in values]
        return list(values)
    # Boxes that were moved are as many as before.
    if isinstance(field, Ragged) and all(isinstance(op, MovedBoxes) for op in plan.operations):
        if plan.ragged == "pad":
            return _pad(values, field)
        return _jagged(values, field) if plan.ragged == "jagged" else list(values)
    if isinstance(field, (Scalar, Label, Tensor)) and not plan.operations:
        shape = (len(values), *field.item_shape)
        batch = _empty(plan.name, shape, np.dtype(field.numpy_dtype), allocate)
        for number, value in enumerate(values):
            batch[number] = value
        return batch
    if not values:
        if isinstance(field, Image):
            return _no_images(plan)
        return np.empty(0) if isinstance(field, (Scalar, Label, Tensor)) else []
    if all(isinstance(value, np.ndarray) for value in values):
        return _stack(plan, values, records, allocate)
    if all(isinstance(value, (bool, int, float)) for value in values):
        return np.asarray(values)  # what a callable made
    return list(values)


def _empty(name: str, shape: tuple[int, ...], dtype: np.dtype[Any], allocate: Allocate | None) -> Array:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    address = allocate(name, size) if allocate is not None and size else None
    if address is None:
        return np.empty(shape, dtype)
    memory: Any = (ctypes.c_uint8 * size).from_address(address)
    array: Array = np.frombuffer(memory, dtype).reshape(shape)
    return array


def _stack(plan: FieldPlan, values: Sequence[Array], records: Array, allocate: Allocate | None) -> Array:
    first = values[0]
    for number, value in enumerate(values):
        if value.shape != first.shape or value.dtype != first.dtype:
            raise unequal(plan.name, records, 0, number, first, value)
    batch: Array = _empty(plan.name, (len(values), *first.shape), first.dtype, allocate)
    for number, value in enumerate(values):
        batch[number] = value
    if isinstance(plan.field, Image) and output_spec(plan.operations).layout == "channels_last":
        batch = batch.transpose(0, 3, 1, 2)  # by shape NCHW; the memory stays as it is
    return batch


def unequal(name: str, records: Array, a: int, b: int, first: Array, second: Array) -> EngineError:
    """Return the error for samples ``a`` and ``b`` of a batch, whose arrays cannot be stacked."""
    return EngineError(
        f"records {int(records[a])} and {int(records[b])} cannot be put into one batch: "
        f"{first.dtype} {first.shape} and {second.dtype} {second.shape}",
        record=int(records[b]),
        field=name,
        hint="resize or crop to one size (transform), or take the samples with a collate_fn",
    )


def _no_images(plan: FieldPlan) -> Array:
    """Return a batch of no images, of the size that those of a full one have where it is known."""
    channels = 1 if getattr(plan.field, "mode", None) == "L" else 3
    spec = output_spec(plan.operations, channels)
    size = spec.fixed_size or (0, 0)
    shape = (0, *size, channels) if spec.layout == "NHWC" else (0, channels, *size)
    return np.empty(shape, np.dtype(numpy_dtype_of(spec.dtype or "uint8")))


def _pad(values: Sequence[Array], field: Ragged) -> Array:
    free = [size or 0 for size in field.shape]  # the shape that an empty batch has
    shape = np.max([free, *(value.shape for value in values)], axis=0).tolist()
    batch = np.zeros((len(values), *shape), np.dtype(field.numpy_dtype))
    for number, value in enumerate(values):
        place: tuple[Any, ...] = (number, *map(slice, value.shape))
        batch[place] = value
    return batch


def _jagged(values: Sequence[Array], field: Ragged) -> Jagged:
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    inner = tuple(size or 0 for size in field.shape[1:])
    empty = np.empty((0, *inner), np.dtype(field.numpy_dtype))
    return Jagged(np.concatenate([empty, *values]), offsets)
