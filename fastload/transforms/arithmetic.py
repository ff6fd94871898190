"""What operations on pixels compute: the NumPy twin of native/image/{colour,filter,warp}.cpp, bit for bit.

docs/images.md specifies it. Functions take HWC uint8 pixels and return new ones; floats are float32 in the
order written, never fused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.transforms.operations import exponential

UInt8Array = npt.NDArray[np.uint8]
Table = npt.NDArray[np.uint8]

_LUMA = (1253677, 2462056, 478151)  # 0.2989, 0.587 and 0.114 in units of 2**-22
_VALUES = np.arange(256, dtype=np.float32)
_FIXED_BITS = 32


def _truncate(values: npt.NDArray[np.float32]) -> UInt8Array:
    result: UInt8Array = np.clip(values, np.float32(0), np.float32(255)).astype(np.uint8)
    return result


def luma(pixels: UInt8Array) -> UInt8Array:
    """Return the luma (H, W) of ``pixels``, whose one channel it is if there is one only.

    >>> luma(np.full((1, 1, 3), 100, np.uint8)).tolist()
    [[99]]
    """
    if pixels.shape[2] == 1:
        return pixels[:, :, 0]
    wide = pixels.astype(np.int32)
    total = wide[:, :, 0] * _LUMA[0] + wide[:, :, 1] * _LUMA[1] + wide[:, :, 2] * _LUMA[2]
    result: UInt8Array = (total >> 22).astype(np.uint8)
    return result


def grayscale(pixels: UInt8Array, channels: int) -> UInt8Array:
    """Return the luma of ``pixels`` in ``channels`` equal channels."""
    return np.repeat(luma(pixels)[:, :, None], channels, axis=2)


def invert(pixels: UInt8Array) -> UInt8Array:
    """Return 255 minus each value."""
    return np.subtract(255, pixels, dtype=np.uint8)


def posterize(pixels: UInt8Array, bits: int) -> UInt8Array:
    """Return each value with its ``bits`` highest bits only.

    >>> posterize(np.array([[[255]]], np.uint8), 3).item()
    224
    """
    result: UInt8Array = pixels & np.uint8(0xFF00 >> bits & 0xFF)
    return result


def solarize(pixels: UInt8Array, threshold: float) -> UInt8Array:
    """Return ``pixels`` with values of ``threshold`` and above inverted."""
    values = np.arange(256)
    table: Table = np.where(values >= threshold, 255 - values, values).astype(np.uint8)
    return table[pixels]


def adjust_brightness(pixels: UInt8Array, factor: float) -> UInt8Array:
    """Return ``pixels`` times ``factor``."""
    return _truncate(_VALUES * np.float32(factor))[pixels]


def adjust_contrast(pixels: UInt8Array, factor: float) -> UInt8Array:
    """Return ``pixels`` blended with their mean luma, which counts 1 - ``factor``."""
    gray = luma(pixels)
    mean = np.float32(int(gray.sum(dtype=np.int64)) / gray.size)
    return _truncate(_VALUES * np.float32(factor) + mean * np.float32(1.0 - factor))[pixels]


def adjust_saturation(pixels: UInt8Array, factor: float) -> UInt8Array:
    """Return ``pixels`` blended with their luma, which counts 1 - ``factor``."""
    if pixels.shape[2] == 1:
        return pixels
    gray = luma(pixels).astype(np.float32) * np.float32(1.0 - factor)
    return _truncate(pixels.astype(np.float32) * np.float32(factor) + gray[:, :, None])


def adjust_hue(pixels: UInt8Array, turn: float) -> UInt8Array:
    """Return ``pixels`` with their hue moved by ``turn`` (of the colour circle, -0.5 to 0.5)."""
    if pixels.shape[2] == 1:
        return pixels
    one, six = np.float32(1), np.float32(6)
    red, green, blue = np.moveaxis(pixels.astype(np.float32) * np.float32(1.0 / 255.0), 2, 0)
    high, low = np.maximum(np.maximum(red, green), blue), np.minimum(np.minimum(red, green), blue)
    gray = high == low
    extent = high - low
    saturation = extent / np.where(gray, one, high)
    divisor = np.where(gray, one, extent)
    rc, gc, bc = (high - red) / divisor, (high - green) / divisor, (high - blue) / divisor
    other = np.where(high == green, (rc + np.float32(2)) - bc, (gc + np.float32(4)) - rc)
    hue = np.where(high == red, bc - gc, other) * np.float32(1.0 / 6.0) + one
    hue = np.where(hue >= one, hue - one, hue) + np.float32(turn)
    hue = np.where(hue < 0, hue + one, hue)
    hue = np.where(hue >= one, hue - one, hue)
    sixth = hue * six
    sector = sixth.astype(np.int32)
    part, rest = (sixth - sector.astype(np.float32)) * saturation, one - saturation
    p, q, t = rest * high, (one - part) * high, (part + rest) * high
    sector %= 6
    result = np.stack(
        [
            np.choose(sector, [high, q, p, p, t, high]),
            np.choose(sector, [t, high, high, q, p, p]),
            np.choose(sector, [p, p, t, high, high, q]),
        ],
        axis=2,
    )
    return _truncate(result * np.float32(255.999))


def _look_up(pixels: UInt8Array, tables: Sequence[Table]) -> UInt8Array:
    return np.stack([table[pixels[:, :, channel]] for channel, table in enumerate(tables)], axis=2)


def _stretched(values: UInt8Array) -> Table:
    low, high = np.float32(values.min()), np.float32(values.max())
    if low == high:
        return _VALUES.astype(np.uint8)
    return _truncate((_VALUES - low) / ((high - low) * np.float32(1.0 / 255.0)))


def autocontrast(pixels: UInt8Array) -> UInt8Array:
    """Return ``pixels`` with each channel's values stretched to reach from 0 to 255."""
    return _look_up(pixels, [_stretched(pixels[:, :, channel]) for channel in range(pixels.shape[2])])


def _flattened(values: UInt8Array) -> Table:
    counts = np.bincount(values.reshape(-1), minlength=256)
    step = (values.size - int(counts[values.max()])) // 255
    if step == 0:
        return _VALUES.astype(np.uint8)
    below = np.concatenate([[0], np.cumsum(counts)[:-1]])
    table: Table = np.minimum((below + step // 2) // step, 255).astype(np.uint8)
    return table


def equalize(pixels: UInt8Array) -> UInt8Array:
    """Return ``pixels`` with each channel's histogram flattened, as Pillow does."""
    return _look_up(pixels, [_flattened(pixels[:, :, channel]) for channel in range(pixels.shape[2])])


def adjust_sharpness(pixels: UInt8Array, factor: float) -> UInt8Array:
    """Return ``pixels`` blended with a smoothed image, which counts 1 - ``factor``; edges stay."""
    height, width = pixels.shape[:2]
    if height <= 2 or width <= 2:
        return pixels
    wide = pixels.astype(np.int32)
    total = 4 * wide[1:-1, 1:-1]
    for y in range(3):
        for x in range(3):
            total = total + wide[y : height - 2 + y, x : width - 2 + x]
    inner = wide[1:-1, 1:-1]
    change = ((total + 6) // 13 - inner).astype(np.float32) * np.float32(1.0 - factor)
    result: UInt8Array = pixels.copy()
    result[1:-1, 1:-1] = _truncate(inner.astype(np.float32) + change)
    return result


def gaussian_weights(size: int, sigma: float) -> list[int]:
    """Return the ``size`` weights of a Gaussian of ``sigma`` pixels, in units of 2**-16.

    >>> gaussian_weights(3, 0.5)
    [6980, 51576, 6980]
    """
    middle = size // 2
    exact = []
    for i in range(size):
        distance = (i - middle) / sigma
        power = -0.5 * distance * distance
        exact.append(0.0 if power < -700.0 else exponential(power))
    total = 0.0
    for value in exact:
        total += value
    weights = [math.floor(value / total * 65536.0 + 0.5) for value in exact]
    weights[middle] += 65536 - sum(weights)
    return weights


def _reflected(size: int, margin: int) -> npt.NDArray[np.int64]:
    """Return which pixels lie at -margin ... size + margin - 1, mirrored without repeating the edges."""
    places = np.arange(-margin, size + margin)
    if size == 1:
        return np.zeros_like(places)
    places %= 2 * (size - 1)
    return np.where(places < size, places, 2 * (size - 1) - places)


def gaussian_blur(pixels: UInt8Array, kernel: tuple[int, int], sigma: float) -> UInt8Array:
    """Return ``pixels`` blurred by a Gaussian of ``sigma``, cut to a ``kernel`` of (width, height)."""
    height, width = pixels.shape[:2]
    padded = pixels[:, _reflected(width, kernel[0] // 2)].astype(np.uint32)
    total = np.full(pixels.shape, 1 << 7, np.uint32)
    for k, weight in enumerate(gaussian_weights(kernel[0], sigma)):
        total += padded[:, k : k + width] * np.uint32(weight)
    padded = (total >> np.uint32(8))[_reflected(height, kernel[1] // 2)]
    total = np.full(pixels.shape, 1 << 23, np.uint32)
    for k, weight in enumerate(gaussian_weights(kernel[1], sigma)):
        total += padded[k : k + height] * np.uint32(weight)
    result: UInt8Array = (total >> np.uint32(24)).astype(np.uint8)
    return result


def _fixed(value: float, bits: int) -> int:
    return math.floor(math.ldexp(value, bits) + 0.5)


def warp_nearest(pixels: UInt8Array, matrix: Sequence[float], fill: npt.NDArray[Any]) -> UInt8Array:
    """Return the image whose pixel (x, y) is the nearest to (ax + by + c, dx + ey + f) in ``pixels``.

    The middle of the image is (0, 0). ``matrix`` is (a, b, c, d, e, f); ``fill``, a value for each channel,
    is what lies outside.
    """
    height, width = pixels.shape[:2]
    x = 2 * np.arange(width, dtype=np.int64)[None, :] + (1 - width)
    y = 2 * np.arange(height, dtype=np.int64)[:, None] + (1 - height)

    def place(a: float, b: float, c: float, size: int) -> npt.NDArray[np.int64]:
        offset = _fixed(c, _FIXED_BITS + 1) + (size << _FIXED_BITS)
        doubled: npt.NDArray[np.int64] = x * _fixed(a, _FIXED_BITS) + y * _fixed(b, _FIXED_BITS) + offset
        return doubled >> (_FIXED_BITS + 1)

    a, b, c, d, e, f = matrix
    column, row = place(a, b, c, width), place(d, e, f, height)
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    taken = pixels[np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
    result: UInt8Array = np.where(inside[:, :, None], taken, fill.astype(np.uint8))
    return result
