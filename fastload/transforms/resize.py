"""Resizing in specified integer arithmetic: the NumPy twin of native/image/resize.cpp, bit for bit.

docs/images.md specifies it. In short: coefficients as Pillow computes them, in float64; then

- ``fast`` arithmetic, for linear filters of at most 24 taps: coefficients of 14 bits that sum to exactly
  16,384, the vertical pass first into int16 with 7 fractional bits, the horizontal pass second;
- ``wide`` arithmetic, for everything else: coefficients of 22 bits, rounded and clipped to uint8 between the
  passes, of which the horizontal one comes first unless the height shrinks by more than twice as many pixels
  as the width. This is Pillow's own arithmetic, and the order of its passes since version 13; cubic filters
  overshoot, and where they are clipped decides the result, so nothing else stays within 1 of Pillow.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

UInt8Array = npt.NDArray[np.uint8]
Int32Array = npt.NDArray[np.int32]

NEAREST, BILINEAR, BICUBIC, LANCZOS = range(4)
FAST_TAPS = 24
FAST_BITS = 14
MIDDLE_BITS = 7
WIDE_BITS = 22
_SUPPORT = {BILINEAR: 1.0, BICUBIC: 2.0, LANCZOS: 3.0}
# Taylor coefficients of sin(pi r) / r, |r| <= 1/2, highest power first: no libm, so the same bits anywhere.
SINE = (
    5.392664662608125e-10,
    -2.2948428997269856e-08,
    7.952054001475508e-07,
    -2.1915353447830204e-05,
    0.00046630280576761234,
    -0.007370430945714348,
    0.08214588661112819,
    -0.5992645293207919,
    2.550164039877345,
    -5.167712780049969,
    3.141592653589793,
)


class Taps(NamedTuple):
    """One axis: output i is the sum over t of weights[i, t] * input[first[i] + t] (zero weights pad)."""

    first: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]


def sine_pi(x: float) -> float:
    """Return sin(pi * x) by the specified series (within a few ulp).

    >>> sine_pi(0.5), sine_pi(2.0)
    (1.0, 0.0)
    """
    nearest = math.floor(x + 0.5)
    r = x - nearest
    square = r * r
    value = 0.0
    for coefficient in SINE:
        value = value * square + coefficient
    value *= r
    return -value if nearest % 2 else value


def _sinc(x: float) -> float:
    return 1.0 if x == 0.0 else sine_pi(x) / (x * math.pi)


def filter_value(x: float, interpolation: int) -> float:
    """Return the filter's value at ``x``, in units of the (scaled) pixel distance."""
    x = abs(x)
    if interpolation == BILINEAR:
        return 1.0 - x if x < 1.0 else 0.0
    if interpolation == BICUBIC:
        if x < 1.0:
            return (1.5 * x - 2.5) * x * x + 1.0
        return (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5 if x < 2.0 else 0.0
    return _sinc(x) * _sinc(x / 3.0) if x < 3.0 else 0.0


@functools.lru_cache(maxsize=256)
def taps(source: int, target: int, interpolation: int, antialias: bool) -> Taps:
    """Return the float64 taps that resize ``source`` pixels to ``target``."""
    scale = source / target
    stretch = max(scale, 1.0) if antialias else 1.0
    support = _SUPPORT[interpolation] * stretch
    inverse = 1.0 / stretch
    first = np.zeros(target, np.int64)
    rows: list[list[float]] = []
    for i in range(target):
        center = (i + 0.5) * scale
        low = max(int(center - support + 0.5), 0)
        high = min(int(center + support + 0.5), source)
        values = [filter_value((k + low - center + 0.5) * inverse, interpolation) for k in range(high - low)]
        total = 0.0
        for value in values:
            total += value
        first[i] = low
        rows.append([value / total for value in values] if total != 0.0 else values)
    weights = np.zeros((target, max(map(len, rows))), np.float64)
    for i, row in enumerate(rows):
        weights[i, : len(row)] = row
    return Taps(first, weights)


def fast_weights(weights: npt.NDArray[np.float64]) -> Int32Array:
    """Return 14-bit coefficients: rounded half up, the remainder added to the (first) largest of each row."""
    rounded = np.floor(weights * float(1 << FAST_BITS) + 0.5).astype(np.int32)
    rows = np.arange(len(rounded))
    rounded[rows, rounded.argmax(axis=1)] += (1 << FAST_BITS) - rounded.sum(axis=1, dtype=np.int32)
    return rounded


def wide_weights(weights: npt.NDArray[np.float64]) -> Int32Array:
    """Return 22-bit coefficients, rounded half away from zero."""
    scaled = weights * float(1 << WIDE_BITS)
    return np.where(scaled < 0.0, np.trunc(scaled - 0.5), np.trunc(scaled + 0.5)).astype(np.int32)


def _combine(
    rows: Int32Array, first: npt.NDArray[np.int64], weights: Int32Array, rounding: int
) -> Int32Array:
    """Weight and add rows (axis 0): one output row for each row of ``weights``."""
    total = np.full((len(first), *rows.shape[1:]), rounding, np.int32)
    shape = (-1,) + (1,) * (rows.ndim - 1)
    last = len(rows) - 1
    for t in range(weights.shape[1]):
        total += rows[np.minimum(first + t, last)] * weights[:, t].reshape(shape)
    return total


def _resize_float(
    pixels: npt.NDArray[np.float32], vertical: Taps, horizontal: Taps
) -> npt.NDArray[np.float32]:
    """Resize float pixels (after ToDtype), in float32 with no rounding between; only Python does this."""
    for axis in (horizontal, vertical):
        rows = _transpose(pixels)  # the columns first, the rows second
        total = np.zeros((len(axis.first), *rows.shape[1:]), np.float32)
        for t in range(axis.weights.shape[1]):
            weights = axis.weights[:, t].astype(np.float32)[:, None, None]
            total += rows[np.minimum(axis.first + t, len(rows) - 1)] * weights
        pixels = total
    return pixels


def _transpose(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows.swapaxes(0, 1))


def nearest_indices(source: int, target: int) -> npt.NDArray[np.int64]:
    """Return the source pixel under the centre of each target pixel, in exact arithmetic.

    >>> nearest_indices(4, 2).tolist()
    [1, 3]
    """
    return (2 * np.arange(target, dtype=np.int64) + 1) * source // (2 * target)


def _resize_rows(pixels: UInt8Array, axis: Taps) -> UInt8Array:
    rows = _combine(pixels.astype(np.int32), axis.first, wide_weights(axis.weights), 1 << (WIDE_BITS - 1))
    result: UInt8Array = np.clip(rows >> WIDE_BITS, 0, 255).astype(np.uint8)
    return result


def _resize_columns(pixels: UInt8Array, axis: Taps) -> UInt8Array:
    return _transpose(_resize_rows(_transpose(pixels), axis))


def vertical_first(height: int, width: int, new_height: int, new_width: int) -> bool:
    """Whether the wide arithmetic resizes rows before columns.

    >>> vertical_first(300, 230, 224, 224), vertical_first(230, 300, 224, 224)
    (True, False)
    """
    return new_height < height and 2 * (width - new_width) < height - new_height


def resize(
    pixels: npt.NDArray[Any], height: int, width: int, interpolation: int = BILINEAR, antialias: bool = True
) -> npt.NDArray[Any]:
    """Return HWC uint8 ``pixels`` resized to (``height``, ``width``); other types become float32.

    >>> resize(np.full((4, 4, 3), 9, np.uint8), 2, 3).tolist()[0]
    [[9, 9, 9], [9, 9, 9], [9, 9, 9]]
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    if interpolation == NEAREST:
        return pixels[nearest_indices(len(pixels), height)][:, nearest_indices(pixels.shape[1], width)]
    vertical = taps(pixels.shape[0], height, interpolation, antialias)
    horizontal = taps(pixels.shape[1], width, interpolation, antialias)
    if pixels.dtype != np.uint8:
        return _resize_float(pixels.astype(np.float32, copy=False), vertical, horizontal)
    longest = max(vertical.weights.shape[1], horizontal.weights.shape[1])
    if interpolation == BILINEAR and longest <= FAST_TAPS:
        middle = _combine(
            pixels.astype(np.int32), vertical.first, fast_weights(vertical.weights), 1 << (MIDDLE_BITS - 1)
        )
        middle >>= FAST_BITS - MIDDLE_BITS
        shift = FAST_BITS + MIDDLE_BITS
        columns = _combine(
            _transpose(middle), horizontal.first, fast_weights(horizontal.weights), 1 << (shift - 1)
        )
        return _transpose((columns >> shift).astype(np.uint8))
    if vertical_first(pixels.shape[0], pixels.shape[1], height, width):
        return _resize_columns(_resize_rows(pixels, vertical), horizontal)
    return _resize_rows(_resize_columns(pixels, horizontal), vertical)
