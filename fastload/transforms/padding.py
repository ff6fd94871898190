"""Operations that add a border: Pad and RandomCrop."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, UsageError
from fastload.transforms.decode import MAX_PIXELS
from fastload.transforms.operations import MAX_SIDE, NativeSpec, Operation, size_pair
from fastload.transforms.random import Draws

Array = npt.NDArray[Any]
Fill = float | Sequence[float]

PADDING_MODES = ("constant", "edge", "reflect", "symmetric")


def fill_values(fill: object, name: str) -> tuple[float, ...]:
    """Return ``fill``, an argument of operation ``name``, as a tuple: one number, or one for each channel.

    >>> fill_values(7, "Pad"), fill_values([1, 2, 3], "Pad")
    ((7.0,), (1.0, 2.0, 3.0))
    """
    values: Sequence[Any] = (fill,)
    if isinstance(fill, Sequence) and not isinstance(fill, str):
        values = fill
    finite = [
        isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        for value in values
    ]
    if not all(finite) or len(values) not in (1, 3):
        raise UsageError(f"{name}'s fill is a number, or one for each channel, got {fill!r}")
    return tuple(float(value) for value in values)


def checked_fill(fill: object, name: str) -> float | tuple[float, ...]:
    """Return ``fill``, an argument of operation ``name``, as one number, or a tuple for the channels."""
    values = fill_values(fill, name)
    return values[0] if len(values) == 1 else values


def fill_array(fill: tuple[float, ...], channels: int, dtype: np.dtype[Any], name: str) -> Array:
    """Return a value of ``dtype`` for each channel. Raises UsageError where ``fill`` has another number."""
    if len(fill) not in (1, channels):
        raise UsageError(f"{name} fills {len(fill)} channels, the images have {channels}")
    values = np.array(fill, np.float64)
    if dtype == np.uint8:
        values = np.clip(values, 0, 255)
    return np.broadcast_to(values.astype(dtype), (channels,))


def native_fill(fill: tuple[float, ...]) -> list[float]:
    """Return ``fill`` for a native spec: how many values, then each, between 0 and 255."""
    return [float(len(fill)), *(min(max(value, 0.0), 255.0) for value in fill)]


def _borders(padding: object, name: str) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of one integer, (x, y), or (left, top, right, bottom)."""
    sides = padding if isinstance(padding, Sequence) and not isinstance(padding, str) else (padding,)
    valid = [
        isinstance(side, numbers.Integral) and not isinstance(side, bool) and 0 <= int(side) <= MAX_SIDE
        for side in sides
    ]
    if not all(valid) or len(sides) not in (1, 2, 4):
        raise UsageError(
            f"{name}'s padding is one integer, two (left and right, top and bottom) or four (left, top, "
            f"right, bottom), from 0 to {MAX_SIDE}; got {padding!r}"
        )
    left, top, right, bottom = (int(side) for side in (tuple(sides) * 4)[:4])
    return left, top, right, bottom


def _check_mode(mode: object, name: str) -> None:
    if mode not in PADDING_MODES:
        raise UsageError(
            f"{name} has no padding mode {mode!r}", hint=f"use one of {', '.join(PADDING_MODES)}"
        )


def pad(
    value: Array, borders: tuple[int, int, int, int], fill: tuple[float, ...], mode: str, name: str
) -> Array:
    """Return HWC ``value`` with (left, top, right, bottom) more pixels, for operation ``name``."""
    left, top, right, bottom = borders
    height, width, channels = value.shape
    if mode != "constant":
        return np.pad(value, ((top, bottom), (left, right), (0, 0)), mode=mode)  # type: ignore[call-overload,no-any-return]
    result = np.empty((top + height + bottom, left + width + right, channels), value.dtype)
    result[:] = fill_array(fill, channels, value.dtype, name)
    result[top : top + height, left : left + width] = value
    return result


@dataclasses.dataclass(frozen=True)
class Pad(Operation):
    """Add a border: of one width, (left and right, top and bottom), or (left, top, right, bottom) pixels.

    ``fill`` (a number, or one for each channel) is what it holds; the modes edge, reflect and symmetric
    continue the image instead, and run in Python.

    >>> Pad((1, 2)).output_size(10, 20, Draws(0, 0, 0))
    (14, 22)
    """

    padding: int | Sequence[int]
    fill: Fill = 0
    padding_mode: str = "constant"
    geometric = True

    def __post_init__(self) -> None:
        _check_mode(self.padding_mode, "Pad")
        object.__setattr__(self, "padding", _borders(self.padding, "Pad"))
        object.__setattr__(self, "fill", checked_fill(self.fill, "Pad"))

    def native_spec(self) -> NativeSpec | None:
        if self.padding_mode != "constant":
            return None
        borders, fill = _borders(self.padding, "Pad"), fill_values(self.fill, "Pad")
        return "pad", [*map(float, borders), *native_fill(fill)]

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        left, top, right, bottom = _borders(self.padding, "Pad")
        height, width = height + top + bottom, width + left + right
        if height * width > MAX_PIXELS:
            raise DecodeError(
                f"an image would be padded to {width} x {height} pixels, more than {MAX_PIXELS}"
            )
        return height, width

    def crop_box(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        """Return (top, left) of what comes out in an image of (``height``, ``width``): not above 0."""
        left, top, _, _ = _borders(self.padding, "Pad")
        return -top, -left

    def apply(self, value: Array, draws: Draws) -> Array:
        self.output_size(value.shape[0], value.shape[1], draws)
        return pad(
            value, _borders(self.padding, "Pad"), fill_values(self.fill, "Pad"), self.padding_mode, "Pad"
        )


@dataclasses.dataclass(frozen=True)
class RandomCrop(Operation):
    """Cut (height, width) out at a random place, after adding ``padding`` (as Pad does).

    ``pad_if_needed`` adds what a smaller image lacks on both sides; without it such an image is a
    DecodeError. Draws: integers 0 (top) and 1 (left).

    >>> RandomCrop(32, padding=4).crop_box(32, 32, Draws(0, 0, 0))  # top, left
    (-1, 2)
    """

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: Fill = 0
    padding_mode: str = "constant"
    geometric = True

    def __post_init__(self) -> None:
        _check_mode(self.padding_mode, "RandomCrop")
        object.__setattr__(self, "size", size_pair(self.size, "RandomCrop"))
        object.__setattr__(self, "padding", _borders(self.padding or 0, "RandomCrop"))
        object.__setattr__(self, "fill", checked_fill(self.fill, "RandomCrop"))

    def native_spec(self) -> NativeSpec | None:
        borders = _borders(self.padding, "RandomCrop")
        if self.padding_mode != "constant" and (any(borders) or self.pad_if_needed):
            return None
        size = [*map(float, size_pair(self.size, "RandomCrop")), *map(float, borders)]
        fill = native_fill(fill_values(self.fill, "RandomCrop"))
        return "random_crop", [*size, float(self.pad_if_needed), *fill]

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        return size_pair(self.size, "RandomCrop")

    def _padded(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (left, top, right, bottom) added to an image of (``height``, ``width``)."""
        crop_height, crop_width = size_pair(self.size, "RandomCrop")
        left, top, right, bottom = _borders(self.padding, "RandomCrop")
        more_x = max(crop_width - (left + width + right), 0)
        more_y = max(crop_height - (top + height + bottom), 0)
        if (more_x or more_y) and not self.pad_if_needed:
            raise DecodeError(
                f"RandomCrop cannot cut {crop_width} x {crop_height} pixels out of an image of "
                f"{left + width + right} x {top + height + bottom}",
                hint="set pad_if_needed=True, or resize before it",
            )
        return left + more_x, top + more_y, right + more_x, bottom + more_y

    def crop_box(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        """Return (top, left) of the crop in an image of (``height``, ``width``), negative in its padding."""
        crop_height, crop_width = size_pair(self.size, "RandomCrop")
        left, top, right, bottom = self._padded(height, width)
        down = draws.integer(0, top + height + bottom - crop_height + 1)
        across = draws.integer(1, left + width + right - crop_width + 1)
        return down - top, across - left

    def apply(self, value: Array, draws: Draws) -> Array:
        height, width = size_pair(self.size, "RandomCrop")
        top, left = self.crop_box(value.shape[0], value.shape[1], draws)
        borders = (
            max(-left, 0),
            max(-top, 0),
            max(left + width - value.shape[1], 0),
            max(top + height - value.shape[0], 0),
        )
        if self.padding_mode != "constant":  # what reflects depends on the whole image, not on the crop
            borders = self._padded(value.shape[0], value.shape[1])
        if any(borders):
            fill = fill_values(self.fill, "RandomCrop")
            value = pad(value, borders, fill, self.padding_mode, "RandomCrop")
        top, left = top + borders[1], left + borders[0]
        return value[top : top + height, left : left + width]
