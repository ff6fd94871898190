"""Programs of operations: what comes out of them, and running one in Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, UsageError
from fastload.transforms.operations import (
    NEEDS_FLOAT,
    NEEDS_UINT8,
    Decode,
    Layout,
    NativeSpec,
    Normalize,
    Operation,
    ToDtype,
    affine,
)
from fastload.transforms.random import Draws, SampleKey

Array = npt.NDArray[Any]


class OutputSpec(NamedTuple):
    """What a program makes: ``dtype`` (None where a callable decides it), ``layout``, and ``fixed_size``.

    ``fixed_size`` is (height, width) where it does not depend on the input, else None.
    """

    dtype: str | None
    layout: str
    fixed_size: tuple[int, int] | None


def _is_affine(operation: Operation) -> bool:
    return isinstance(operation, (ToDtype, Normalize))


def output_spec(operations: Sequence[Operation], channels: int = 3) -> OutputSpec:
    """Return what ``operations`` make of a decoded image (HWC uint8, of ``channels`` channels).

    Raises UsageError for operations that cannot follow one another.

    >>> output_spec([ToDtype("float16", scale=True), Layout("NHWC")])
    OutputSpec(dtype='float16', layout='NHWC', fixed_size=None)
    """
    dtype: str | None = "uint8"
    layout = "NCHW"
    if any(isinstance(operation, Decode) for operation in operations[1:]):
        raise UsageError("Decode says how the image is decoded", hint="put it before all other operations")
    for operation in operations:
        if operation.pixelwise and dtype not in operation.takes and dtype is not None:
            raise UsageError(f"{operation!r} takes uint8 images", hint=NEEDS_UINT8)
        if isinstance(operation, ToDtype):
            dtype = operation.dtype
        elif isinstance(operation, Layout):
            layout = operation.layout
        elif isinstance(operation, Normalize):
            affine([operation], channels)
            if dtype == "uint8":
                raise UsageError("Normalize needs float values", hint=NEEDS_FLOAT)
        elif not (operation.geometric or operation.pixelwise or isinstance(operation, Decode)):
            dtype = None
        channels = operation.output_channels(channels)
    return OutputSpec(dtype, layout, fixed_size(operations))


def output_channels(operations: Sequence[Operation], channels: int) -> int:
    """Return how many channels ``operations`` make of ``channels`` (what a callable makes is not known).

    >>> output_channels([Layout("NHWC")], 3)
    3
    """
    for operation in operations:
        channels = operation.output_channels(channels)
    return channels


def fixed_size(operations: Sequence[Operation]) -> tuple[int, int] | None:
    """Return the (height, width) of every output, or None if it depends on the input.

    >>> fixed_size([])
    """
    size: tuple[int, int] | None = None
    draws = Draws(0, 0, 0)
    for operation in operations:
        if operation.pixelwise or _is_affine(operation) or isinstance(operation, (Decode, Layout)):
            continue
        if not operation.geometric:
            size = None
        elif size is not None:
            size = operation.output_size(*size, draws)
        elif operation.geometric:
            # An operation that gives two very different images one size gives it to all.
            try:
                sizes = {
                    operation.output_size(height, width, draws) for height, width in ((1, 977), (983, 1))
                }
            except DecodeError:  # too large for such an image, so no constant
                continue
            size = sizes.pop() if len(sizes) == 1 else None
    return size


def native_specs(operations: Sequence[Operation]) -> list[NativeSpec] | None:
    """Return the operations as native code takes them, or None if one is for Python only.

    >>> native_specs([Layout("NHWC")])
    [('layout', [2.0])]
    """
    specs: list[NativeSpec] = []
    converted = erased = False
    for operation in operations:
        spec = operation.native_spec()
        if spec is None or (converted and (operation.geometric or "float32" not in operation.takes)):
            return None  # native code moves and changes pixels as uint8, but for erasing
        if converted and operation.pixelwise:
            erased = True
        if erased and isinstance(operation, Normalize):
            return None  # native code normalises before it erases
        if isinstance(operation, ToDtype):
            if converted and operation.dtype == "uint8":
                return None
            converted = converted or operation.dtype != "uint8"
        specs.append(spec)
    return specs


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Return float32 ``values`` rounded to bfloat16 (half to even), as bits.

    >>> hex(bfloat16_bits(np.array([1.0], np.float32))[0])
    '0x3f80'
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), (bits >> 16) | 0x40, rounded).astype(np.uint16)


def _finish(value: Array, dtype: str | None, layout: str) -> Array:
    if layout == "NCHW" and value.ndim == 3:
        value = value.transpose(2, 0, 1)
    value = np.ascontiguousarray(value)
    if dtype == "bfloat16":
        return bfloat16_bits(value)
    return value if dtype is None else value.astype(dtype, copy=False)


def _steps(operations: Sequence[Operation], done: int) -> Iterator[tuple[bool, list[tuple[int, Operation]]]]:
    relevant = [(i, op) for i, op in enumerate(operations) if i >= done and not isinstance(op, Layout)]
    for fused, group in itertools.groupby(relevant, key=lambda pair: _is_affine(pair[1])):
        yield fused, list(group)


def _apply_affine(value: Array, operations: list[Operation]) -> Array:
    """Apply a run of ToDtype and Normalize as one multiply-add in float32."""
    down = any(isinstance(op, ToDtype) and op.dtype == "uint8" for op in operations[1:])
    if down or value.dtype != np.uint8 or value.ndim != 3:
        for operation in operations:
            value = operation.apply(value, Draws(0, 0, 0))
        return value
    if isinstance(operations[0], Normalize):
        raise UsageError("Normalize needs float values", hint=NEEDS_FLOAT)
    if all(isinstance(op, ToDtype) and op.dtype == "uint8" for op in operations):
        return value
    scale, offset = affine(operations, value.shape[2])
    result: Array = value * scale + offset
    return result


def apply_program(
    operations: Sequence[Operation], pixels: Array, key: SampleKey | tuple[int, ...], *, done: int = 0
) -> Array:
    """Run ``operations`` over HWC uint8 ``pixels``, drawing with ``key`` (seed, epoch, position, group).

    The first ``done`` of them were applied to the pixels already.

    Returns a contiguous array of the program's element type (bfloat16 as uint16 bits), CHW for layout
    NCHW, HWC for channels_last and NHWC.

    >>> apply_program([Layout("NHWC")], np.zeros((2, 3, 3), np.uint8), SampleKey()).shape
    (2, 3, 3)
    """
    key = SampleKey(*key)
    spec = output_spec(operations, pixels.shape[2])
    value = pixels
    for fused, group in _steps(operations, done):
        if fused:
            value = _apply_affine(value, [operation for _, operation in group])
        else:
            for index, operation in group:
                value = operation.apply(value, Draws(key.seed, key.epoch, key.position, key.group, index))
    return _finish(value, spec.dtype, spec.layout)
