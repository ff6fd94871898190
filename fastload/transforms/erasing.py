"""RandomErasing, on uint8 pixels and on float values: the twin of native/image/erase.cpp."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.transforms.colours import number_range
from fastload.transforms.operations import NativeSpec, Operation, check_probability, exponential
from fastload.transforms.padding import fill_array, fill_values
from fastload.transforms.random import Draws
from fastload.transforms.resize import SINE

Array = npt.NDArray[Any]
Float64Array = npt.NDArray[np.float64]

_MASK = np.uint64(0xFFFFFFFF)
_NOISE = 64  # the draw that seeds random values


def _blocks(seed: int, count: int) -> npt.NDArray[np.uint32]:
    """Return ``count`` blocks (of four words) of Philox4x32-10 with the halves of ``seed`` as its key."""
    shift = np.uint64(32)
    words = [np.arange(count, dtype=np.uint64), *(np.zeros(count, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        words = [
            (second >> shift) ^ words[1] ^ np.uint64(key[0]),
            second & _MASK,
            (first >> shift) ^ words[3] ^ np.uint64(key[1]),
            first & _MASK,
        ]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words, axis=1).astype(np.uint32)


def _logarithm(x: Float64Array) -> Float64Array:
    """Return the natural logarithm of ``x`` in (0, 1] by a specified series."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < 0.7071067811865476
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent - small
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    value = np.zeros_like(z)
    for n in range(21, 0, -2):
        value = value * square + 1.0 / n
    result: Float64Array = exponent * 0.6931471805599453 + 2.0 * z * value
    return result


def _sine_pi(x: Float64Array) -> Float64Array:
    """Return sin(pi * x), as resize.sine_pi does."""
    nearest = np.floor(x + 0.5)
    r = x - nearest
    square = r * r
    value = np.zeros_like(r)
    for coefficient in SINE:
        value = value * square + coefficient
    value *= r
    return np.where(nearest % 2 != 0, -value, value)


def normal_values(seed: int, count: int) -> npt.NDArray[np.float32]:
    """Return ``count`` normal deviates (Box and Muller), four of each block."""
    words = _blocks(seed, -(-count // 4)).astype(np.float64)
    radius = np.sqrt(-2.0 * _logarithm((words[:, ::2] + 1.0) * 2.0**-32))
    turn = words[:, 1::2] * 2.0**-31
    pairs = np.stack([radius * _sine_pi(turn + 0.5), radius * _sine_pi(turn)], axis=2)
    return pairs.reshape(-1)[:count].astype(np.float32)


def byte_values(seed: int, count: int) -> npt.NDArray[np.uint8]:
    """Return ``count`` bytes, sixteen of each block."""
    return _blocks(seed, -(-count // 16)).astype("<u4").view(np.uint8).reshape(-1)[:count]


@dataclasses.dataclass(frozen=True)
class RandomErasing(Operation):
    """With probability ``p``, replace a rectangle (``scale`` of the area, aspect ``ratio``) by ``value``.

    ``value`` is a number, one for each channel, or ``"random"``: normal deviates for float values, bytes for
    uint8. Draws: uniform 0 < p; attempt k of 10 takes uniforms 4k+1 (area) and 4k+2 (height to width),
    integers 4k+3 (top) and 4k+4 (left), and nothing is erased after ten misses; 64 seeds random values.

    >>> RandomErasing(p=1).box(100, 100, Draws(0, 0, 0))  # top, left, height, width
    (66, 24, 34, 73)
    """

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: float | Sequence[float] | str = 0.0
    pixelwise = True

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomErasing")
        scale = number_range(self.scale, "RandomErasing's scale")
        ratio = number_range(self.ratio, "RandomErasing's ratio")
        if not 0.0 <= scale[0] <= scale[1] <= 1.0 or not 1e-100 < ratio[0] <= ratio[1] < 1e100:
            raise UsageError(
                "RandomErasing takes a scale within 0 and 1 and a ratio above 0, "
                f"got {self.scale!r} and {self.ratio!r}"
            )
        value = self.value if self.value == "random" else fill_values(self.value, "RandomErasing")
        largest = float(np.finfo(np.float32).max)
        if isinstance(value, tuple) and not all(abs(number) <= largest for number in value):
            raise UsageError(f"RandomErasing's value leaves the range of float32: {self.value!r}")
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "ratio", ratio)
        object.__setattr__(self, "value", value)

    def _log_ratio(self) -> tuple[float, float]:
        return float(np.float32(math.log(self.ratio[0]))), float(np.float32(math.log(self.ratio[1])))

    def native_spec(self) -> NativeSpec | None:
        value = [] if isinstance(self.value, str) else fill_values(self.value, "RandomErasing")
        numbers = [float(self.p), *self.scale, *self._log_ratio()]
        return "random_erasing", [*numbers, float(len(value)), *value]

    def box(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int] | None:
        """Return (top, left, height, width) of what is erased of an image, None for nothing."""
        if not draws.uniform(0) < self.p:
            return None
        area = float(height * width)
        low, high = self._log_ratio()
        for attempt in range(1, 41, 4):
            target = area * (self.scale[0] + draws.uniform(attempt) * (self.scale[1] - self.scale[0]))
            aspect = exponential(low + draws.uniform(attempt + 1) * (high - low))
            box_height, box_width = math.sqrt(target * aspect), math.sqrt(target / aspect)
            if not (box_height < height and box_width < width):
                continue
            down, across = round(box_height), round(box_width)
            if down < height and across < width:
                top = draws.integer(attempt + 2, height - down + 1)
                return top, draws.integer(attempt + 3, width - across + 1), down, across
        return None

    def apply(self, value: Array, draws: Draws) -> Array:
        box = self.box(value.shape[0], value.shape[1], draws)
        if box is None:
            return value
        top, left, height, width = box
        shape = (height, width, value.shape[2])
        if self.value == "random":
            seed, count = draws.seed(_NOISE), height * width * value.shape[2]
            noise = byte_values if value.dtype == np.uint8 else normal_values
            content: Array = noise(seed, count).reshape(shape)
        else:
            numbers = fill_values(self.value, "RandomErasing")
            content = fill_array(numbers, value.shape[2], value.dtype, "RandomErasing")
        result: Array = value.copy()
        result[top : top + height, left : left + width] = content
        return result
