"""Conversion of torchvision transforms, recognised by module and class name: torchvision is not imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastload.errors import UsageError
from fastload.transforms.call import Call
from fastload.transforms.operations import (
    CenterCrop,
    Normalize,
    Operation,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
)

_MODULES = ("torchvision.transforms", "torchvision.transforms.v2")


def _name(transform: object) -> str | None:
    """Return the class name of one of torchvision's own transforms, None for anything else."""
    kind = type(transform)
    package = kind.__module__
    return kind.__name__ if any(package == m or package.startswith(m + ".") for m in _MODULES) else None


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
}


def _convert(transform: Any) -> list[Operation]:
    if isinstance(transform, Operation):
        return [transform]
    name = _name(transform)
    if name == "Compose":
        return [operation for part in transform.transforms for operation in _convert(part)]
    if name in _CONVERSIONS:
        try:
            return _CONVERSIONS[name](transform)
        except (UsageError, AttributeError, TypeError):
            pass  # an argument that has no equal here: torchvision itself does it
    return [Call(transform)]


def from_torchvision(transforms: Any) -> tuple[Operation, ...]:
    """Return operations for a torchvision (v2) Compose, one transform, a callable, or a list of them.

    Operations pass through; known transforms become operations; anything else is kept as a Call, which
    runs in Python. Raises UsageError for what is not callable.

    >>> from_torchvision([RandomHorizontalFlip()])
    (RandomHorizontalFlip(p=0.5),)
    """
    if isinstance(transforms, Iterable) and not callable(transforms):
        return tuple(operation for transform in transforms for operation in _convert(transform))
    return tuple(_convert(transforms))
