"""Operations on the values of pixels (uint8), each with its draws; arithmetic.py computes them."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.transforms import arithmetic
from fastload.transforms.operations import NEEDS_UINT8, NativeSpec, Operation, check_probability
from fastload.transforms.random import Draws

Array = npt.NDArray[Any]
UInt8Array = npt.NDArray[np.uint8]

MAX_KERNEL = 255


class PixelOperation(Operation):
    """An operation that changes the values of uint8 pixels, not where they are."""

    pixelwise = True
    takes: ClassVar[tuple[str, ...]] = ("uint8",)

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        """Return what this makes of HWC ``pixels``."""
        raise NotImplementedError

    def apply(self, value: Array, draws: Draws) -> Array:
        if value.dtype != np.uint8:
            raise UsageError(f"{type(self).__name__} takes uint8 images", hint=NEEDS_UINT8)
        return self.change(value, draws)


def is_real(value: object) -> bool:
    """Return whether ``value`` is a finite number, and no bool."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)


def number_range(value: object, name: str) -> tuple[float, float]:
    """Return ``value``, an argument ``name`` of (low, high) or one number for both.

    >>> number_range(2, "x"), number_range((1, 2), "x")
    ((2.0, 2.0), (1.0, 2.0))
    """
    pair: Sequence[Any] = (value, value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        pair = value
    if len(pair) != 2 or not all(map(is_real, pair)) or pair[0] > pair[1]:
        raise UsageError(f"{name} takes a number or (low, high), got {value!r}")
    return float(pair[0]), float(pair[1])


@dataclasses.dataclass(frozen=True)
class Grayscale(PixelOperation):
    """Replace colours by their luma, in ``num_output_channels`` 1 or 3.

    >>> Grayscale().output_channels(3)
    1
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise UsageError(f"Grayscale makes 1 or 3 channels, not {self.num_output_channels!r}")

    def native_spec(self) -> NativeSpec | None:
        return "grayscale", [float(self.num_output_channels)]

    def output_channels(self, channels: int) -> int:
        return self.num_output_channels

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        return arithmetic.grayscale(pixels, self.num_output_channels)


class _Sometimes(PixelOperation):
    """Something done with probability ``p`` (uniform 0 < p)."""

    p: float

    def always(self, pixels: UInt8Array) -> UInt8Array:
        """Return what this makes of ``pixels`` where it is done."""
        raise NotImplementedError

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        return self.always(pixels) if draws.uniform(0) < self.p else pixels


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_Sometimes):
    """Replace colours by their luma with probability ``p``; the channels stay as many."""

    p: float = 0.1

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomGrayscale")

    def native_spec(self) -> NativeSpec | None:
        return "random_grayscale", [float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.grayscale(pixels, pixels.shape[2])


@dataclasses.dataclass(frozen=True)
class RandomInvert(_Sometimes):
    """Invert all values with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomInvert")

    def native_spec(self) -> NativeSpec | None:
        return "random_invert", [float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.invert(pixels)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_Sometimes):
    """Invert the values of ``threshold`` and above with probability ``p``.

    >>> RandomSolarize(200, p=1).apply(np.array([[[199, 200]]], np.uint8), Draws(0, 0, 0)).tolist()
    [[[199, 55]]]
    """

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomSolarize")
        if not is_real(self.threshold) or self.threshold > 255:
            raise UsageError(f"RandomSolarize's threshold is a number up to 255, got {self.threshold!r}")

    def native_spec(self) -> NativeSpec | None:
        return "random_solarize", [float(self.threshold), float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.solarize(pixels, self.threshold)


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_Sometimes):
    """Keep the ``bits`` (0 to 8) highest bits of each value with probability ``p``."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomPosterize")
        if isinstance(self.bits, bool) or self.bits not in range(9):
            raise UsageError(f"RandomPosterize keeps 0 to 8 bits, got {self.bits!r}")

    def native_spec(self) -> NativeSpec | None:
        return "random_posterize", [float(self.bits), float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.posterize(pixels, self.bits)


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(_Sometimes):
    """Blur (``sharpness_factor`` below 1) or sharpen (above 1) with probability ``p``."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomAdjustSharpness")
        if not is_real(self.sharpness_factor) or self.sharpness_factor < 0:
            raise UsageError(f"RandomAdjustSharpness takes a factor from 0, got {self.sharpness_factor!r}")

    def native_spec(self) -> NativeSpec | None:
        return "random_adjust_sharpness", [float(self.sharpness_factor), float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.adjust_sharpness(pixels, float(self.sharpness_factor))


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(_Sometimes):
    """Stretch each channel's values to reach from 0 to 255, with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomAutocontrast")

    def native_spec(self) -> NativeSpec | None:
        return "random_autocontrast", [float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.autocontrast(pixels)


@dataclasses.dataclass(frozen=True)
class RandomEqualize(_Sometimes):
    """Flatten each channel's histogram with probability ``p``."""

    p: float = 0.5

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomEqualize")

    def native_spec(self) -> NativeSpec | None:
        return "random_equalize", [float(self.p)]

    def always(self, pixels: UInt8Array) -> UInt8Array:
        return arithmetic.equalize(pixels)


def _jitter(value: object, name: str, center: float, low: float, high: float) -> tuple[float, float] | None:
    """Return the range of one of ColorJitter's factors, None where it changes nothing."""
    name = f"ColorJitter's {name}"
    if value is None:
        return None
    if is_real(value):
        spread = number_range(value, name)[0]
        if spread < 0:
            raise UsageError(f"{name} is not negative, got {value!r}")
        bounds = max(center - spread, low) if center == 1.0 else center - spread, center + spread
    else:
        bounds = number_range(value, name)
    if not low <= bounds[0] <= bounds[1] <= high:
        raise UsageError(f"{name} lies between {low} and {high}, got {value!r}")
    return None if bounds == (center, center) else bounds


@dataclasses.dataclass(frozen=True)
class ColorJitter(PixelOperation):
    """Change brightness, contrast, saturation and hue by random factors, in a random order.

    Each is a number x (a factor from max(0, 1 - x) to 1 + x; for hue a turn from -x to x, x at most 0.5) or
    (low, high). Draws: uniforms 0 to 3 are the four factors, integer 4 of 24 the order.

    >>> ColorJitter(brightness=0.5, hue=0.1).native_spec()
    ('color_jitter', [0.5, 1.5, 1.0, 1.0, 1.0, 1.0, -0.1, 0.1])
    """

    brightness: float | Sequence[float] | None = None
    contrast: float | Sequence[float] | None = None
    saturation: float | Sequence[float] | None = None
    hue: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            object.__setattr__(self, name, _jitter(getattr(self, name), name, 1.0, 0.0, math.inf))
        object.__setattr__(self, "hue", _jitter(self.hue, "hue", 0.0, -0.5, 0.5))

    def _ranges(self) -> list[tuple[float, float] | None]:
        given = (self.brightness, self.contrast, self.saturation, self.hue)
        return [None if value is None else number_range(value, "ColorJitter") for value in given]

    def native_spec(self) -> NativeSpec | None:
        neutral = (1.0, 1.0, 1.0, 0.0)
        ranges = [pair or (center, center) for pair, center in zip(self._ranges(), neutral, strict=True)]
        return "color_jitter", [value for pair in ranges for value in pair]

    def factors(self, draws: Draws) -> list[tuple[int, float]]:
        """Return what is done, in order: 0 brightness, 1 contrast, 2 saturation, 3 hue; and its factor."""
        left = [0, 1, 2, 3]
        number = draws.integer(4, 24)
        order = []
        for count in (6, 2, 1, 1):
            order.append(left.pop(number // count))
            number %= count
        ranges = self._ranges()
        result = []
        for which in order:
            bounds = ranges[which]
            if bounds is not None:
                result.append((which, bounds[0] + draws.uniform(which) * (bounds[1] - bounds[0])))
        return result

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        adjust = (
            arithmetic.adjust_brightness,
            arithmetic.adjust_contrast,
            arithmetic.adjust_saturation,
            arithmetic.adjust_hue,
        )
        for which, factor in self.factors(draws):
            pixels = adjust[which](pixels, factor)
        return pixels


@dataclasses.dataclass(frozen=True)
class GaussianBlur(PixelOperation):
    """Blur with a Gaussian of ``sigma`` pixels (a number, or drawn from (low, high)).

    ``kernel_size`` is odd: one integer, or (width, height), which is the order that torchvision takes them
    in. Draws: uniform 0.
    """

    kernel_size: int | Sequence[int]
    sigma: float | Sequence[float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        size = self.kernel_size
        sizes = tuple(size) if isinstance(size, Sequence) and not isinstance(size, str) else (size,)
        odd = [
            isinstance(side, numbers.Integral) and int(side) in range(1, MAX_KERNEL + 1, 2) for side in sizes
        ]
        if not all(odd) or len(sizes) not in (1, 2):
            raise UsageError(f"GaussianBlur's kernels are odd, 1 to {MAX_KERNEL} pixels, got {size!r}")
        low, high = number_range(self.sigma, "GaussianBlur's sigma")
        if low <= 0:
            raise UsageError(f"GaussianBlur's sigma is greater than 0, got {self.sigma!r}")
        object.__setattr__(self, "kernel_size", (int(sizes[0]), int(sizes[-1])))
        object.__setattr__(self, "sigma", (low, high))

    def _kernel(self) -> tuple[int, int]:
        assert isinstance(self.kernel_size, tuple)
        return self.kernel_size[0], self.kernel_size[1]

    def native_spec(self) -> NativeSpec | None:
        sigma = number_range(self.sigma, "GaussianBlur's sigma")
        return "gaussian_blur", [*map(float, self._kernel()), *sigma]

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        low, high = number_range(self.sigma, "GaussianBlur's sigma")
        return arithmetic.gaussian_blur(pixels, self._kernel(), low + draws.uniform(0) * (high - low))
