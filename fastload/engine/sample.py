"""One sample at a time, on a thread of the Python engine: natively what native code can make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from fastload.engine.collate import collate_field
from fastload.engine.native import NativeEngine, why_not_field, why_not_sources
from fastload.engine.plan import BatchIndices, BatchValue, FieldPlan, Plan
from fastload.errors import EngineError, FastloadError, UsageError
from fastload.format import SplitReader
from fastload.schema import Image
from fastload.transforms import (
    Call,
    Draws,
    Layout,
    MovedBoxes,
    MovedMask,
    Normalize,
    Operation,
    SampleKey,
    ToDtype,
    apply_program,
    decode_image,
    image_size,
    mask_error,
    output_spec,
)

__all__ = ["SampleMaker", "apply_operation", "native_part"]


def native_part(plan: Plan) -> dict[str, FieldPlan]:
    """Return what native code can make of a plan that it cannot run whole, by the name of the field.

    Of an image that a callable follows, that is the operations before it.
    """
    if why_not_sources(plan) is not None:
        return {}
    candidates = {field.name: _beginning(field) for field in plan.fields}
    native = {name: field for name, field in candidates.items() if why_not_field(field) is None}
    # A mask is compared with its image where both are made.
    return {name: field for name, field in native.items() if not field.follows or field.follows in native}


def _beginning(field: FieldPlan) -> FieldPlan:
    field = dataclasses.replace(field, ragged="list")
    if not isinstance(field.field, Image) or why_not_field(field) is None:
        return field
    count = _native_operations(field)
    return dataclasses.replace(field, operations=(*field.operations[:count], Layout("NHWC")))


def _native_operations(field: FieldPlan) -> int:
    """Return how many operations at the beginning make pixels of pixels natively."""
    count = 0
    for operation in field.operations:
        if operation.native_spec() is None or isinstance(operation, (ToDtype, Normalize, Layout)):
            break
        count += 1
    return count


class SampleMaker:
    """Makes samples of ``plan``. Used by one thread, which closes it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._native_fields = native_part(plan)
        self._native: NativeEngine | None = None

    def _make_natively(self, one: BatchIndices) -> Mapping[str, BatchValue]:
        """Return a batch of one sample's native fields."""
        if not self._native_fields:
            return {}
        if self._native is None:
            fields = tuple(self._native_fields.values())
            plan = dataclasses.replace(self._plan, fields=fields, on_error="raise", finish=None)
            try:
                self._native = NativeEngine(plan, 0)
            except UsageError:  # an image program that native code does not know
                self._native_fields = {}
                return {}
        self._native.submit(one)
        return self._native.next()

    def make(self, indices: BatchIndices, number: int) -> Any:
        """Return sample ``number``: a list of its fields' values, or what ``finish`` makes of it."""
        plan = self._plan
        source, record = plan.sources[int(indices.sources[number])], int(indices.records[number])
        position = int(indices.positions[number])
        native: Mapping[str, Any] = self._make_natively(indices[number : number + 1])
        values = []
        for field in plan.fields:
            key = SampleKey(plan.seed, indices.epoch, position, field.group)
            try:
                if field.name in native:
                    values.append(self._completed(field, native[field.name][0], key))
                else:
                    values.append(_make_value(field, source, record, key))
            except Exception as error:
                _raise_located(error, "a transform", field.name, source, record)
        if plan.finish is None:
            return values
        batch = {
            field.name: collate_field(field, [value], indices.records[number : number + 1], None)
            for field, value in zip(plan.fields, values, strict=True)
        }
        try:
            return plan.finish(batch, SampleKey(plan.seed, indices.epoch, position))
        except Exception as error:
            _raise_located(error, "a function given to map", None, source, record)

    def _completed(self, field: FieldPlan, value: Any, key: SampleKey) -> Any:
        """Return the value with the operations that native code left."""
        if not isinstance(field.field, Image) or value is None:
            return value
        done = self._native_fields[field.name]
        if done.operations != field.operations:
            return apply_program(field.operations, value, key, done=len(done.operations) - 1)
        channels_last = output_spec(field.operations).layout == "channels_last"
        return value.transpose(1, 2, 0) if channels_last else value

    def close(self) -> None:
        """Release what native code holds. May be called twice."""
        if self._native is not None:
            self._native.close()


def _make_value(field: FieldPlan, source: SplitReader, record: int, key: SampleKey) -> Any:
    value = source.value(record, field.column)
    if value is None:
        return None
    if isinstance(field.field, Image):
        pixels = decode_image(value, field.field.mode or "RGB")
        image = source.value(record, field.follows) if field.follows else None
        if image is not None and pixels.shape[:2] != image_size(image):
            raise mask_error(pixels.shape[:2], field.follows, image_size(image))
        return apply_program(field.operations, pixels, key)
    for number, operation in enumerate(field.operations):
        value = apply_operation(operation, value, key, Draws(*key, number), source, record)
        if hasattr(value, "__array__"):
            value = np.asarray(value)  # tensors, without importing torch
    return value


def apply_operation(
    operation: Operation, value: Any, key: SampleKey, draws: Draws, source: SplitReader, record: int
) -> Any:
    """Return what an operation makes of a value that is no image."""
    if isinstance(operation, (MovedMask, MovedBoxes)):
        image = source.value(record, operation.image)
        return value if image is None else operation.move(value, key, image_size(image))
    assert isinstance(operation, Call)  # Dataset.transform admits no other for fields that are no images
    return operation.call(value, draws)


def _raise_located(
    error: Exception, what: str, field: str | None, source: SplitReader, record: int
) -> NoReturn:
    """Raise the error with its place; what is no error of ours becomes one."""
    if not isinstance(error, FastloadError):
        text = f"{what} failed with {type(error).__name__}: {error}"
        raise EngineError(text, path=source.folder, record=record, field=field) from error
    if error.record is None:
        error.path = error.path or source.folder
        error.record = record
        error.field = error.field or field
    raise error
