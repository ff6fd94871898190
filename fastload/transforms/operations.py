"""The image operations, each with its reference in NumPy. docs/images.md has the table."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fastload.errors import DecodeError, UsageError
from fastload.transforms.decode import MAX_PIXELS
from fastload.transforms.random import Draws
from fastload.transforms.resize import BICUBIC, BILINEAR, LANCZOS, NEAREST, resize

Array = npt.NDArray[Any]
NativeSpec = tuple[str, list[float]]

ELEMENT_TYPES = ("uint8", "float16", "bfloat16", "float32")
DECODE_MODES = ("exact", "fast")
LAYOUTS = ("NCHW", "channels_last", "NHWC")
_INTERPOLATIONS = {
    "nearest": NEAREST,
    "nearest-exact": NEAREST,
    "bilinear": BILINEAR,
    "bicubic": BICUBIC,
    "lanczos": LANCZOS,
}
# Pillow's constants, as torchvision takes them.
_PILLOW_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
MAX_SIDE = 1 << 20
NEEDS_FLOAT = "put ToDtype(torch.float32, scale=True) before it"
NEEDS_UINT8 = "put it before ToDtype"


def size_pair(size: object, name: str) -> tuple[int, int]:
    """Return ``size``, an argument of ``name``, as (height, width): one integer makes a square."""
    if isinstance(size, numbers.Integral) and not isinstance(size, bool):
        size = (int(size), int(size))
    if not isinstance(size, Sequence) or isinstance(size, str) or len(size) not in (1, 2):
        raise UsageError(f"{name} takes an integer or (height, width), got {size!r}")
    height, width = (size[0], size[-1])
    for side in (height, width):
        if isinstance(side, bool) or not isinstance(side, numbers.Integral) or not 1 <= int(side) <= MAX_SIDE:
            raise UsageError(f"{name} takes sizes from 1 to {MAX_SIDE}, got {size!r}")
    return int(height), int(width)


def _interpolation(value: object, antialias: object, name: str) -> tuple[str, bool]:
    value = _PILLOW_INTERPOLATIONS.get(value, value) if isinstance(value, int) else value
    value = getattr(value, "value", value)  # torchvision's InterpolationMode
    if value not in _INTERPOLATIONS:
        raise UsageError(
            f"{name} does not know interpolation {value!r}", hint=f"use one of {', '.join(_INTERPOLATIONS)}"
        )
    text = "nearest" if value == "nearest-exact" else str(value)
    smooth = bool(antialias)
    if not smooth and text in ("bicubic", "lanczos"):
        raise UsageError(f"{name} has no {text} without antialiasing", hint="set antialias=True")
    return text, smooth


def _range(value: object, name: str) -> tuple[float, float]:
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise UsageError(f"{name} takes two numbers, got {value!r}")
    low, high = float(value[0]), float(value[1])
    if not 0.0 < low <= high < math.inf:
        raise UsageError(f"{name} takes 0 < low <= high, got {value!r}")
    return low, high


def check_probability(p: object, name: str) -> None:
    """Raise UsageError unless ``p``, an argument of operation ``name``, is a probability."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0.0 <= float(p) <= 1.0:
        raise UsageError(f"{name}'s p is a probability, got {p!r}")


def exponential(x: float) -> float:
    """Return e**x by a specified series, so that every machine draws the same crop (libm differs by ulps).

    >>> abs(exponential(1.0) - math.e) < 1e-14
    True
    """
    halvings = 0
    while abs(x) > 0.5:
        x *= 0.5
        halvings += 1
    value = 1.0
    for n in range(18, 0, -1):
        value = value * x / n + 1.0
    for _ in range(halvings):
        value *= value
    return value


class Operation:
    """One step of an image program: a frozen value with a reference implementation.

    ``geometric`` operations move pixels, ``pixelwise`` ones change their values (where these are of a type
    that the operation ``takes``); the others change their type or layout.
    """

    geometric = False
    pixelwise = False
    takes: ClassVar[tuple[str, ...]] = ELEMENT_TYPES

    def native_spec(self) -> NativeSpec | None:
        """Return the name and numbers that native code compiles, or None if only Python can run this."""
        return None

    def apply(self, value: Array, draws: Draws) -> Array:
        """Return what this makes of one HWC image (uint8, or float32 after ToDtype)."""
        raise NotImplementedError

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        """Return the (height, width) that an image of (``height``, ``width``) comes out with."""
        return height, width

    def output_channels(self, channels: int) -> int:
        """Return how many channels an image of ``channels`` comes out with."""
        return channels


@dataclasses.dataclass(frozen=True)
class Decode(Operation):
    """How images are decoded: ``"exact"`` (the default without it) or ``"fast"``; first of the operations.

    Fast decoding of a JPEG image that is resized first resizes luma and chroma before it makes colours of
    them, and takes a smaller image of one that is made smaller by half or more; docs/images.md says how far
    the pixels may be off. Both draw the same. The Python engine, and all other formats, decode exactly.
    """

    mode: str = "exact"

    def __post_init__(self) -> None:
        if self.mode not in DECODE_MODES:
            raise UsageError(f"unknown decoding {self.mode!r}", hint=f"use one of {', '.join(DECODE_MODES)}")

    def native_spec(self) -> NativeSpec | None:
        return "decode", [float(DECODE_MODES.index(self.mode))]

    def apply(self, value: Array, draws: Draws) -> Array:
        return value


@dataclasses.dataclass(frozen=True)
class Resize(Operation):
    """Resize to ``size``: an integer (the shorter side's length) or (height, width).

    With ``size=None`` the longer side gets ``max_size``; with an integer, ``max_size`` bounds it. A side
    never gets shorter than one pixel.

    >>> Resize(2).output_size(4, 8, Draws(0, 0, 0))
    (2, 4)
    """

    size: int | tuple[int, int] | None
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = True
    geometric = True

    def __post_init__(self) -> None:
        size: object = self.size
        if isinstance(size, Sequence) and not isinstance(size, str) and len(size) == 1:
            size = size[0]
        if size is not None:
            pair = size_pair(size, "Resize")
            size = pair[0] if isinstance(size, numbers.Integral) else pair
        elif self.max_size is None:
            raise UsageError("Resize takes a size, or size=None and max_size")
        if self.max_size is not None:
            size_pair(self.max_size, "Resize's max_size")
            if isinstance(size, tuple):
                raise UsageError("Resize takes max_size only where size is one integer or None")
            if isinstance(size, int) and self.max_size <= size:
                raise UsageError(f"Resize's max_size {self.max_size} must be greater than its size {size}")
        interpolation, antialias = _interpolation(self.interpolation, self.antialias, "Resize")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "interpolation", interpolation)
        object.__setattr__(self, "antialias", antialias)

    def native_spec(self) -> NativeSpec | None:
        if isinstance(self.size, tuple):
            mode, (height, width) = 1, self.size
        else:
            mode, height, width = 0, self.size or 0, 0
        sizes = [float(mode), float(height), float(width), float(self.max_size or 0)]
        return "resize", [*sizes, float(_INTERPOLATIONS[self.interpolation]), float(self.antialias)]

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size
        short, long = min(height, width), max(height, width)
        if self.size is None:
            assert self.max_size is not None
            new_short, new_long = int(self.max_size * short / long), self.max_size
        else:
            new_short, new_long = self.size, int(self.size * long / short)
            if self.max_size is not None and new_long > self.max_size:
                new_short, new_long = int(self.max_size * new_short / new_long), self.max_size
        new_short = max(new_short, 1)
        if new_short * new_long > MAX_PIXELS:
            raise DecodeError(
                f"an image of {width} x {height} pixels would be resized to more than {MAX_PIXELS}"
            )
        return (new_long, new_short) if width <= height else (new_short, new_long)

    def apply(self, value: Array, draws: Draws) -> Array:
        height, width = self.output_size(value.shape[0], value.shape[1], draws)
        return resize(value, height, width, _INTERPOLATIONS[self.interpolation], self.antialias)


def _center(image: int, crop: int) -> int:
    """Return where a centred crop starts: negative where the image is smaller and zeros pad it."""
    return round((image - crop) / 2.0) if image >= crop else -((crop - image) // 2)


@dataclasses.dataclass(frozen=True)
class CenterCrop(Operation):
    """Cut (height, width) out of the middle; a smaller image is padded with zeros.

    >>> CenterCrop(2).apply(np.ones((4, 4, 3), np.uint8), Draws(0, 0, 0)).shape
    (2, 2, 3)
    """

    size: int | tuple[int, int]
    geometric = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", size_pair(self.size, "CenterCrop"))

    def native_spec(self) -> NativeSpec | None:
        height, width = size_pair(self.size, "CenterCrop")
        return "center_crop", [float(height), float(width)]

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        return size_pair(self.size, "CenterCrop")

    def apply(self, value: Array, draws: Draws) -> Array:
        height, width = size_pair(self.size, "CenterCrop")
        top, left = _center(value.shape[0], height), _center(value.shape[1], width)
        result = np.zeros((height, width, value.shape[2]), value.dtype)
        part = value[max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]
        result[max(-top, 0) : max(-top, 0) + len(part), max(-left, 0) : max(-left, 0) + part.shape[1]] = part
        return result


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(Operation):
    """Cut out a random part (``scale`` of the area, aspect ``ratio``) and resize it to ``size``.

    Draws: attempt k of 10 takes uniforms 4k (area) and 4k+1 (ratio), integers 4k+2 (top) and 4k+3 (left);
    after ten misses the largest centred crop whose ratio is in range.

    >>> RandomResizedCrop(224).crop_box(100, 100, Draws(0, 0, 0))  # top, left, height, width
    (6, 28, 62, 72)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"
    antialias: bool = True
    geometric = True

    def __post_init__(self) -> None:
        interpolation, antialias = _interpolation(self.interpolation, self.antialias, "RandomResizedCrop")
        object.__setattr__(self, "size", size_pair(self.size, "RandomResizedCrop"))
        object.__setattr__(self, "scale", _range(self.scale, "RandomResizedCrop's scale"))
        object.__setattr__(self, "ratio", _range(self.ratio, "RandomResizedCrop's ratio"))
        object.__setattr__(self, "interpolation", interpolation)
        object.__setattr__(self, "antialias", antialias)

    def _log_ratio(self) -> tuple[float, float]:
        # Rounded to float32 as torchvision holds it, which hides the last ulp of libm's log.
        return float(np.float32(math.log(self.ratio[0]))), float(np.float32(math.log(self.ratio[1])))

    def native_spec(self) -> NativeSpec | None:
        height, width = size_pair(self.size, "RandomResizedCrop")
        tail = [float(_INTERPOLATIONS[self.interpolation]), float(self.antialias)]
        return "random_resized_crop", [float(height), float(width), *self.scale, *self._log_ratio(), *tail]

    def output_size(self, height: int, width: int, draws: Draws) -> tuple[int, int]:
        return size_pair(self.size, "RandomResizedCrop")

    def crop_box(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the part drawn from an image of (``height``, ``width``)."""
        area = float(height * width)
        low, high = self._log_ratio()
        for attempt in range(0, 40, 4):
            target = area * (self.scale[0] + draws.uniform(attempt) * (self.scale[1] - self.scale[0]))
            aspect = exponential(low + draws.uniform(attempt + 1) * (high - low))
            crop_width = round(math.sqrt(target * aspect))
            crop_height = round(math.sqrt(target / aspect))
            if 0 < crop_width <= width and 0 < crop_height <= height:
                top = draws.integer(attempt + 2, height - crop_height + 1)
                left = draws.integer(attempt + 3, width - crop_width + 1)
                return top, left, crop_height, crop_width
        crop_width, crop_height = width, height
        ratio = float(width) / float(height)
        if ratio < exponential(low):
            crop_height = min(max(round(width / exponential(low)), 1), height)
        elif ratio > exponential(high):
            crop_width = min(max(round(height * exponential(high)), 1), width)
        return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width

    def apply(self, value: Array, draws: Draws) -> Array:
        top, left, height, width = self.crop_box(value.shape[0], value.shape[1], draws)
        size = size_pair(self.size, "RandomResizedCrop")
        part = value[top : top + height, left : left + width]
        return resize(part, *size, _INTERPOLATIONS[self.interpolation], self.antialias)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(Operation):
    """Mirror left to right with probability ``p`` (uniform 0 < p)."""

    p: float = 0.5
    geometric = True

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomHorizontalFlip")

    def native_spec(self) -> NativeSpec | None:
        return "random_horizontal_flip", [float(self.p)]

    def apply(self, value: Array, draws: Draws) -> Array:
        return value[:, ::-1] if draws.uniform(0) < self.p else value


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(Operation):
    """Mirror top to bottom with probability ``p`` (uniform 0 < p)."""

    p: float = 0.5
    geometric = True

    def __post_init__(self) -> None:
        check_probability(self.p, "RandomVerticalFlip")

    def native_spec(self) -> NativeSpec | None:
        return "random_vertical_flip", [float(self.p)]

    def apply(self, value: Array, draws: Draws) -> Array:
        return value[::-1] if draws.uniform(0) < self.p else value


def element_type(dtype: object) -> str:
    """Return the name of a torch or NumPy dtype (or name) that images can have.

    >>> element_type(np.float32), element_type("bfloat16")
    ('float32', 'bfloat16')
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.removeprefix("torch.")
    if name not in ELEMENT_TYPES:
        raise UsageError(f"images cannot be {dtype!r}", hint=f"use one of {', '.join(ELEMENT_TYPES)}")
    return name


@dataclasses.dataclass(frozen=True)
class ToDtype(Operation):
    """Convert to ``dtype`` (torch's, NumPy's, or a name), from [0, 255] to [0, 1] with ``scale``.

    Arithmetic stays float32 to the end of the program, where one rounding makes float16 or bfloat16.
    """

    dtype: Any
    scale: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", element_type(self.dtype))

    def native_spec(self) -> NativeSpec | None:
        return "to_dtype", [float(ELEMENT_TYPES.index(self.dtype)), float(bool(self.scale))]

    def apply(self, value: Array, draws: Draws) -> Array:
        if self.dtype != "uint8":
            if value.dtype != np.uint8:
                return value.astype(np.float32, copy=False)
            return value * np.float32(1.0 / 255.0) if self.scale else value.astype(np.float32)
        if value.dtype == np.uint8:
            return value
        scaled = value * np.float32(255.999) if self.scale else value  # torchvision's way down
        return np.clip(scaled, 0, 255).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Normalize(Operation):
    """(value - mean) / std for each channel; comes after ToDtype to a float type."""

    mean: Sequence[float]
    std: Sequence[float]

    def __post_init__(self) -> None:
        mean, std = tuple(map(float, self.mean)), tuple(map(float, self.std))
        if not mean or len(mean) != len(std):
            raise UsageError(f"Normalize takes as many means as deviations, got {len(mean)} and {len(std)}")
        if not all(map(math.isfinite, mean + std)) or 0.0 in std:
            raise UsageError(f"Normalize takes finite means and nonzero deviations, got {mean}, {std}")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "std", std)

    def native_spec(self) -> NativeSpec | None:
        return "normalize", [float(len(self.mean)), *self.mean, *self.std]

    def apply(self, value: Array, draws: Draws) -> Array:
        if value.dtype == np.uint8:
            raise UsageError("Normalize needs float values", hint=NEEDS_FLOAT)
        scale, offset = affine([self], value.shape[-1])
        result: Array = value * scale + offset
        return result


@dataclasses.dataclass(frozen=True)
class Layout(Operation):
    """How batches lie in memory: ``"NCHW"``, ``"NHWC"``, or ``"channels_last"``.

    channels_last is NCHW by shape and NHWC in memory, as torch means it.
    """

    layout: str = "NCHW"

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise UsageError(f"unknown layout {self.layout!r}", hint=f"use one of {', '.join(LAYOUTS)}")

    def native_spec(self) -> NativeSpec | None:
        return "layout", [float(LAYOUTS.index(self.layout))]

    def apply(self, value: Array, draws: Draws) -> Array:
        return value


Float32Array = npt.NDArray[np.float32]


def affine(operations: Sequence[Operation], channels: int) -> tuple[Float32Array, Float32Array]:
    """Return (a, b), float32 per channel, of y = x * a + b: a run of ToDtype and Normalize as one step.

    Both are computed in float64 and rounded once. Only the first ToDtype of the run can scale: what
    follows it is float already.
    """
    scale = [1.0] * channels
    offset = [0.0] * channels
    integer = True
    for operation in operations:
        if isinstance(operation, ToDtype):
            if integer and operation.dtype != "uint8":
                integer = False
                if operation.scale:
                    scale = [value * (1.0 / 255.0) for value in scale]
        elif isinstance(operation, Normalize):
            if len(operation.mean) not in (1, channels):
                raise UsageError(f"Normalize has {len(operation.mean)} means, the images {channels} channels")
            for channel in range(channels):
                mean = operation.mean[channel % len(operation.mean)]
                std = operation.std[channel % len(operation.std)]
                scale[channel] = scale[channel] / std
                offset[channel] = (offset[channel] - mean) / std
    with np.errstate(over="ignore"):
        factors, terms = np.array(scale, np.float32), np.array(offset, np.float32)
    if not (np.isfinite(factors).all() and np.isfinite(terms).all()):
        raise UsageError("Normalize's means and deviations leave the range of float32")
    return factors, terms
