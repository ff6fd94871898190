"""One list of operations for several fields: an image, and the masks and boxes that must move with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import RecordError, UsageError
from fastload.transforms.call import Call
from fastload.transforms.operations import (
    CenterCrop,
    Layout,
    Operation,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
    _center,
)
from fastload.transforms.padding import Pad, RandomCrop
from fastload.transforms.random import Draws, SampleKey

__all__ = ["MovedBoxes", "MovedMask", "check_joint", "mask_error", "mask_operations"]

Array = npt.NDArray[Any]

# They move pixels by amounts that they draw for themselves, and change colours as well.
_POLICIES = ("AutoAugment", "AugMix", "RandAugment", "TrivialAugmentWide")


def check_joint(operations: Sequence[Operation], *, boxes: bool) -> None:
    """Raise UsageError for operations that fields cannot have together."""
    for operation in operations:
        name = type(operation).__name__
        if isinstance(operation, Call) or name in _POLICIES:
            raise UsageError(
                f"{operation!r} cannot move masks and boxes with the image",
                hint="give it to the image alone, in another transform()",
            )
        if boxes and operation.geometric and not isinstance(operation, _BOX_OPERATIONS):
            raise UsageError(f"boxes cannot follow {operation!r}")


def mask_operations(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return the operations for a mask: those that move pixels, nearest; places in the list, which key draws,
    stay.

    >>> mask_operations([Resize(8), Layout("NHWC")])[0].interpolation
    'nearest'
    """
    layout, moved = Layout("NCHW"), []
    for operation in operations:
        if isinstance(operation, Layout):
            layout = operation
        moved.append(_for_mask(operation) if operation.geometric else layout)
    return tuple(moved)


def _for_mask(operation: Any) -> Operation:
    names = {field.name for field in dataclasses.fields(operation)}
    changes: dict[str, Any] = {"interpolation": "nearest"} if "interpolation" in names else {}
    if isinstance(getattr(operation, "fill", 0), Sequence):  # a colour
        changes["fill"] = 0
    result: Operation = dataclasses.replace(operation, **changes)
    return result


def mask_error(mask: tuple[int, ...], image: str, size: tuple[int, int]) -> RecordError:
    """Return the error for a mask of another size than the image of the field ``image``; (height, width).

    >>> mask_error((4, 5), "photo", (6, 5)).message
    "the mask is (4, 5), its image 'photo' (6, 5): (height, width)"
    """
    return RecordError(f"the mask is {mask}, its image {image!r} {size}: (height, width)")


@dataclasses.dataclass(frozen=True)
class MovedMask(Operation):
    """A mask stored as an array, (H, W) or (N, H, W), that moves with the field ``image``."""

    operations: tuple[Operation, ...]
    image: str

    def move(self, value: Array, key: SampleKey, size: tuple[int, int]) -> Array:
        """Return the mask moved as an image of ``size``, (height, width), is."""
        if value.shape[-2:] != size:
            raise mask_error(value.shape[-2:], self.image, size)
        pixels = value[:, :, None] if value.ndim == 2 else value.transpose(1, 2, 0)
        for number, operation in enumerate(self.operations):
            pixels = operation.apply(pixels, Draws(*key, number))
        return np.ascontiguousarray(pixels[:, :, 0] if value.ndim == 2 else pixels.transpose(2, 0, 1))


@dataclasses.dataclass(frozen=True)
class MovedBoxes(Operation):
    """Boxes, float32 (N, 4) of x1, y1, x2, y2 in pixels, that move with the field ``image``.

    They are clipped to the image after each crop. Boxes that are empty then stay, so that other fields of
    the boxes still match.
    """

    operations: tuple[Operation, ...]
    image: str

    def move(self, value: Array, key: SampleKey, size: tuple[int, int]) -> Array:
        """Return the boxes moved as an image of ``size``, (height, width), is."""
        height, width = size
        boxes = value.astype(np.float64)
        for number, operation in enumerate(self.operations):
            if operation.geometric:
                draws = Draws(*key, number)
                boxes = _move_boxes(operation, boxes, height, width, draws)
                height, width = operation.output_size(height, width, draws)
        return boxes.astype(np.float32)


_BOX_OPERATIONS = (
    Resize,
    CenterCrop,
    RandomResizedCrop,
    RandomCrop,
    Pad,
    RandomHorizontalFlip,
    RandomVerticalFlip,
)


def _move_boxes(operation: Operation, boxes: Array, height: int, width: int, draws: Draws) -> Array:
    new_height, new_width = operation.output_size(height, width, draws)
    if isinstance(operation, RandomHorizontalFlip):
        if draws.uniform(0) >= operation.p:
            return boxes
        return np.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], axis=1)
    if isinstance(operation, RandomVerticalFlip):
        if draws.uniform(0) >= operation.p:
            return boxes
        return np.stack([boxes[:, 0], height - boxes[:, 3], boxes[:, 2], height - boxes[:, 1]], axis=1)
    top, left, part_height, part_width = 0, 0, height, width
    if isinstance(operation, (RandomCrop, Pad)):
        top, left = operation.crop_box(height, width, draws)
        part_height, part_width = new_height, new_width
    elif isinstance(operation, RandomResizedCrop):
        top, left, part_height, part_width = operation.crop_box(height, width, draws)
    elif isinstance(operation, CenterCrop):
        top, left = _center(height, new_height), _center(width, new_width)
        part_height, part_width = new_height, new_width
    boxes = boxes - (left, top, left, top)
    boxes = np.clip(boxes, 0.0, np.array([part_width, part_height, part_width, part_height], np.float64))
    scale = (new_width / part_width, new_height / part_height)
    moved: Array = boxes * (*scale, *scale)
    return moved
