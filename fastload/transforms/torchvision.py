"""Conversion of torchvision transforms, recognised by module and class name: torchvision is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fastload.errors import UsageError
from fastload.transforms.call import Call
from fastload.transforms.colours import (
    ColorJitter,
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from fastload.transforms.erasing import RandomErasing
from fastload.transforms.operations import (
    CenterCrop,
    Normalize,
    Operation,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    ToDtype,
)
from fastload.transforms.padding import Pad, RandomCrop
from fastload.transforms.policies import RandAugment, TrivialAugmentWide

_MODULES = ("torchvision.transforms", "torchvision.transforms.v2")


def _name(transform: object) -> str | None:
    """Return the class name of one of torchvision's own transforms, None for anything else."""
    kind = type(transform)
    package = kind.__module__
    return kind.__name__ if any(package == m or package.startswith(m + ".") for m in _MODULES) else None


def _is_v2(transform: object) -> bool:
    return type(transform).__module__.startswith("torchvision.transforms.v2")


def _to_dtype(transform: Any) -> list[Operation]:
    dtype = transform.dtype
    if isinstance(dtype, dict):
        named = {getattr(key, "__name__", key): value for key, value in dtype.items()}
        dtype = named.get("Image", named.get("others"))
        if dtype is None:
            return []
    return [ToDtype(dtype, scale=bool(transform.scale))]


def _resize(transform: Any) -> list[Operation]:
    size = transform.size
    size = size if size is None or isinstance(size, int) else tuple(size)
    return [Resize(size, transform.interpolation, transform.max_size, transform.antialias is not False)]


def _random_resized_crop(transform: Any) -> list[Operation]:
    return [
        RandomResizedCrop(
            tuple(transform.size),
            tuple(transform.scale),
            tuple(transform.ratio),
            transform.interpolation,
            transform.antialias is not False,
        )
    ]


def _fill(transform: Any) -> Any:
    """Return the fill of images: torchvision lets a dictionary give one for each type."""
    fill = transform.fill
    if isinstance(fill, dict):
        named = {getattr(key, "__name__", key): value for key, value in fill.items()}
        fill = named.get("Image", named.get("others", 0))
    return fill


def _pad(transform: Any) -> list[Operation]:
    return [Pad(transform.padding, _fill(transform) or 0, transform.padding_mode)]


def _random_crop(transform: Any) -> list[Operation]:
    padding = transform.padding
    if padding is not None and not isinstance(padding, int) and len(padding) == 4 and _is_v2(transform):
        left, right, top, bottom = padding  # as v2 keeps it, which is not how it is given
        padding = (left, top, right, bottom)
    fill, mode = _fill(transform) or 0, transform.padding_mode
    return [RandomCrop(tuple(transform.size), padding, bool(transform.pad_if_needed), fill, mode)]


def _gaussian_blur(transform: Any) -> list[Operation]:
    return [GaussianBlur(tuple(transform.kernel_size), tuple(transform.sigma))]


def _color_jitter(transform: Any) -> list[Operation]:
    return [ColorJitter(transform.brightness, transform.contrast, transform.saturation, transform.hue)]


def _random_erasing(transform: Any) -> list[Operation]:
    value = "random" if transform.value is None else transform.value  # v2 keeps None, v1 the text
    return [RandomErasing(float(transform.p), transform.scale, transform.ratio, value)]


def _rand_augment(transform: Any) -> list[Operation]:
    bins, mode = transform.num_magnitude_bins, transform.interpolation
    return [RandAugment(transform.num_ops, transform.magnitude, bins, mode, _fill(transform))]


def _trivial_augment(transform: Any) -> list[Operation]:
    return [TrivialAugmentWide(transform.num_magnitude_bins, transform.interpolation, _fill(transform))]


_CONVERSIONS: dict[str, Callable[[Any], list[Operation]]] = {
    "ToImage": lambda transform: [],
    "PILToTensor": lambda transform: [],
    "ToPureTensor": lambda transform: [],
    "Identity": lambda transform: [],
    "ToTensor": lambda transform: [ToDtype("float32", scale=True)],
    "ConvertImageDtype": lambda transform: [ToDtype(transform.dtype, scale=True)],
    "ToDtype": _to_dtype,
    "Normalize": lambda transform: [Normalize(transform.mean, transform.std)],
    "Resize": _resize,
    "CenterCrop": lambda transform: [CenterCrop(tuple(transform.size))],
    "RandomResizedCrop": _random_resized_crop,
    "RandomHorizontalFlip": lambda transform: [RandomHorizontalFlip(float(transform.p))],
    "RandomVerticalFlip": lambda transform: [RandomVerticalFlip(float(transform.p))],
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "Grayscale": lambda transform: [Grayscale(transform.num_output_channels)],
    "RandomGrayscale": lambda transform: [RandomGrayscale(float(transform.p))],
    "ColorJitter": _color_jitter,
    "GaussianBlur": _gaussian_blur,
    "RandomInvert": lambda transform: [RandomInvert(float(transform.p))],
    "RandomSolarize": lambda transform: [RandomSolarize(transform.threshold, float(transform.p))],
    "RandomPosterize": lambda transform: [RandomPosterize(transform.bits, float(transform.p))],
    "RandomAdjustSharpness": lambda transform: [
        RandomAdjustSharpness(transform.sharpness_factor, float(transform.p))
    ],
    "RandomAutocontrast": lambda transform: [RandomAutocontrast(float(transform.p))],
    "RandomEqualize": lambda transform: [RandomEqualize(float(transform.p))],
    "RandomErasing": _random_erasing,
    "RandAugment": _rand_augment,
    "TrivialAugmentWide": _trivial_augment,
}


def _convert(transform: Any) -> list[Operation]:
    if isinstance(transform, Operation):
        return [transform]
    name = _name(transform)
    if name in _CONVERSIONS:
        try:
            return _CONVERSIONS[name](transform)
        except (UsageError, AttributeError, TypeError):
            pass  # an argument that has no equal here: torchvision itself does it
    return [Call(transform)]


def _flat(transforms: Iterable[Any]) -> Iterator[Any]:
    for transform in transforms:
        if _name(transform) == "Compose":
            yield from _flat(transform.transforms)
        else:
            yield transform


def from_torchvision(transforms: Any) -> tuple[Operation, ...]:
    """Return operations for a torchvision (v2) Compose, one transform, a callable, or a list of them.

    Operations pass through; known transforms become operations; anything else is kept as a Call, which
    runs in Python. Raises UsageError for what is not callable.

    >>> from_torchvision([RandomHorizontalFlip()])
    (RandomHorizontalFlip(p=0.5),)
    """
    one = callable(transforms) or not isinstance(transforms, Iterable)
    operations: list[Operation] = []
    dtype = "uint8"
    for transform in _flat([transforms] if one else transforms):
        converted = _convert(transform)
        if not isinstance(transform, Operation) and any(
            operation.pixelwise and dtype not in operation.takes for operation in converted
        ):
            converted = [Call(transform)]  # torchvision also does to float values what takes bytes here
        operations += converted
        for operation in converted:
            dtype = operation.dtype if isinstance(operation, ToDtype) else dtype
    return tuple(operations)
