"""RandAugment and TrivialAugmentWide: one of fourteen operations of a magnitude, as torchvision has them."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.transforms import arithmetic
from fastload.transforms.colours import PixelOperation
from fastload.transforms.operations import NativeSpec
from fastload.transforms.padding import fill_array, fill_values, native_fill
from fastload.transforms.random import Draws
from fastload.transforms.resize import sine_pi

UInt8Array = npt.NDArray[np.uint8]

AUGMENTATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)
_MAX_BINS = 100_000


class Space(NamedTuple):
    """The largest magnitudes of a policy: a factor, pixels, degrees, a factor, and bits taken away."""

    shear: float
    translate_x: float
    translate_y: float
    degrees: float
    colour: float
    posterize: int


def spaced(first: float, last: float, bins: int, i: int) -> float:
    """Return entry ``i`` of ``bins`` numbers from ``first`` to ``last``, as torch's linspace has it.

    Ends and step are float32, the sum is rounded to float32 once.

    >>> spaced(0.0, 30.0, 31, 9)
    9.0
    """
    low, high = np.float32(first), np.float32(last)
    step = (high - low) / np.float32(bins - 1)
    exact = float(low) + float(step) * i if i < bins // 2 else float(high) - float(step) * (bins - 1 - i)
    return float(np.float32(exact))


def _matrix(name: str, magnitude: float, height: int, width: int) -> tuple[float, ...]:
    """Return where a pixel of the warped image comes from, as arithmetic.warp_nearest takes it."""
    if name == "ShearX":
        return 1.0, magnitude, magnitude * (height * 0.5), 0.0, 1.0, 0.0
    if name == "ShearY":
        return 1.0, 0.0, 0.0, magnitude, 1.0, magnitude * (width * 0.5)
    if name == "TranslateX":
        return 1.0, 0.0, -float(math.trunc(magnitude)), 0.0, 1.0, 0.0
    if name == "TranslateY":
        return 1.0, 0.0, 0.0, 0.0, 1.0, -float(math.trunc(magnitude))
    turns = magnitude / 180.0
    sine, cosine = sine_pi(turns), sine_pi(turns + 0.5)
    return cosine, -sine, 0.0, sine, cosine, 0.0


def augment(
    pixels: UInt8Array, name: str, space: Space, bins: int, i: int, negative: bool, fill: tuple[float, ...]
) -> UInt8Array:
    """Return ``pixels`` after operation ``name`` of magnitude ``i`` of ``bins``; some can be ``negative``."""
    height, width, channels = pixels.shape
    most = {
        "ShearX": space.shear,
        "ShearY": space.shear,
        "TranslateX": space.translate_x,
        "TranslateY": space.translate_y,
        "Rotate": space.degrees,
    }
    sign = -1.0 if negative else 1.0
    if name in most:
        matrix = _matrix(name, sign * spaced(0.0, most[name], bins, i), height, width)
        return arithmetic.warp_nearest(pixels, matrix, fill_array(fill, channels, pixels.dtype, "a policy"))
    if name == "Posterize":
        each = np.float32((bins - 1) / space.posterize)
        return arithmetic.posterize(pixels, round(float(np.float32(8) - np.float32(i) / each)))
    if name == "Solarize":
        return arithmetic.solarize(pixels, 255.0 * spaced(1.0, 0.0, bins, i))
    if name == "AutoContrast":
        return arithmetic.autocontrast(pixels)
    if name == "Equalize":
        return arithmetic.equalize(pixels)
    adjust = {
        "Brightness": arithmetic.adjust_brightness,
        "Color": arithmetic.adjust_saturation,
        "Contrast": arithmetic.adjust_contrast,
        "Sharpness": arithmetic.adjust_sharpness,
    }
    if name in adjust:
        return adjust[name](pixels, 1.0 + sign * spaced(0.0, space.colour, bins, i))
    return pixels  # Identity


def _integer(value: object, low: int, high: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not low <= int(value) <= high:
        raise UsageError(f"{name} is an integer from {low} to {high}, got {value!r}")
    return int(value)


def _nearest(interpolation: object, name: str) -> str:
    if getattr(interpolation, "value", interpolation) not in ("nearest", 0):
        raise UsageError(f"{name} has no interpolation but nearest, got {interpolation!r}")
    return "nearest"


def _filling(fill: object, name: str) -> tuple[float, ...]:
    return (0.0,) if fill is None else fill_values(fill, name)


@dataclasses.dataclass(frozen=True)
class RandAugment(PixelOperation):
    """``num_ops`` random operations, each of ``magnitude`` out of ``num_magnitude_bins``.

    ``fill`` (a number, or one for each channel; None is black) is what a rotation, a shear or a translation
    brings in. Draws: operation k takes integer 3k of 14, and negates where uniform 3k+2 is at most 1/2.
    """

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _integer(self.num_ops, 0, 1000, "RandAugment's num_ops")
        bins = _integer(self.num_magnitude_bins, 2, _MAX_BINS, "RandAugment's num_magnitude_bins")
        _integer(self.magnitude, 0, bins - 1, "RandAugment's magnitude")
        object.__setattr__(self, "interpolation", _nearest(self.interpolation, "RandAugment"))
        object.__setattr__(self, "fill", _filling(self.fill, "RandAugment"))

    def native_spec(self) -> NativeSpec | None:
        sizes = [float(self.num_ops), float(self.magnitude), float(self.num_magnitude_bins)]
        return "rand_augment", [*sizes, *native_fill(_filling(self.fill, "RandAugment"))]

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        height, width = pixels.shape[:2]
        space = Space(0.3, 150.0 / 331.0 * width, 150.0 / 331.0 * height, 30.0, 0.9, 4)
        fill = _filling(self.fill, "RandAugment")
        for k in range(self.num_ops):
            name = AUGMENTATIONS[draws.integer(3 * k, len(AUGMENTATIONS))]
            negative = draws.uniform(3 * k + 2) <= 0.5
            pixels = augment(pixels, name, space, self.num_magnitude_bins, self.magnitude, negative, fill)
        return pixels


@dataclasses.dataclass(frozen=True)
class TrivialAugmentWide(PixelOperation):
    """One random operation of a random magnitude out of ``num_magnitude_bins``.

    ``fill`` is as for RandAugment. Draws: integers 0 of 14 (operation) and 1 (magnitude), which is negated
    where uniform 2 is at most 1/2.
    """

    num_magnitude_bins: int = 31
    interpolation: str = "nearest"
    fill: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        _integer(self.num_magnitude_bins, 2, _MAX_BINS, "TrivialAugmentWide's num_magnitude_bins")
        object.__setattr__(self, "interpolation", _nearest(self.interpolation, "TrivialAugmentWide"))
        object.__setattr__(self, "fill", _filling(self.fill, "TrivialAugmentWide"))

    def native_spec(self) -> NativeSpec | None:
        fill = native_fill(_filling(self.fill, "TrivialAugmentWide"))
        return "trivial_augment_wide", [float(self.num_magnitude_bins), *fill]

    def change(self, pixels: UInt8Array, draws: Draws) -> UInt8Array:
        space = Space(0.99, 32.0, 32.0, 135.0, 0.99, 6)
        name = AUGMENTATIONS[draws.integer(0, len(AUGMENTATIONS))]
        i, negative = draws.integer(1, self.num_magnitude_bins), draws.uniform(2) <= 0.5
        fill = _filling(self.fill, "TrivialAugmentWide")
        return augment(pixels, name, space, self.num_magnitude_bins, i, negative, fill)
