"""MixUp and CutMix: batches whose images and labels are mixed with those of their neighbours."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from fastload.errors import UsageError

__all__ = ["CutMix", "MixUp"]


def _log_gamma_variate(shape: float, generator: np.random.Generator) -> float:
    """Return the logarithm of a gamma variate (Marsaglia and Tsang's method, out of uniforms alone).

    NumPy may change its own between releases; uniforms stay. Logarithms, since for small shapes the variate
    itself is below what a float can be.
    """
    boost = 0.0
    if shape < 1.0:
        boost = math.log1p(-generator.random()) / shape
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        radius = math.sqrt(-2.0 * math.log1p(-generator.random()))
        normal = radius * math.cos(2.0 * math.pi * generator.random())
        v = (1.0 + c * normal) ** 3
        if v > 0.0 and math.log1p(-generator.random()) < 0.5 * normal**2 + d - d * v + d * math.log(v):
            return math.log(d) + math.log(v) + boost


def beta_variate(alpha: float, generator: np.random.Generator) -> float:
    """Return a number of [0, 1] distributed as Beta(alpha, alpha).

    >>> 0.0 <= beta_variate(0.2, np.random.default_rng(0)) <= 1.0
    True
    """
    difference = _log_gamma_variate(alpha, generator) - _log_gamma_variate(alpha, generator)
    if difference < 0.0:
        odds = math.exp(difference)
        return odds / (1.0 + odds)
    return 1.0 / (1.0 + math.exp(-difference))


@dataclasses.dataclass(frozen=True)
class _Mix:
    """What both have: the fields, and the labels' share."""

    alpha: float = 1.0
    num_classes: int | None = None
    image: str = "image"
    label: str = "label"

    def __post_init__(self) -> None:
        if not 0.0 < self.alpha < math.inf:
            raise UsageError(f"{type(self).__name__}'s alpha is a positive number, got {self.alpha!r}")
        if self.num_classes is not None and self.num_classes < 1:
            raise UsageError(f"{type(self).__name__}'s num_classes is {self.num_classes!r}")

    def _fields(self, batch: dict[str, Any]) -> tuple[Any, Any]:
        name = type(self).__name__
        for field in (self.image, self.label):
            if field not in batch:
                raise UsageError(
                    f"{name} finds no field {field!r} in the batch",
                    hint=f"name the fields, {name}(image=…, label=…), of: {', '.join(batch)}",
                )
        images, labels = batch[self.image], batch[self.label]
        if not hasattr(images, "roll") or not hasattr(labels, "roll") or images.ndim < 3:
            raise UsageError(
                f"{name} mixes tensors of images and labels, not {type(images).__name__} and "
                f"{type(labels).__name__}",
                hint="give it batches in torch format, of images of one size, without nulls",
            )
        return images, labels

    def _mixed_labels(self, labels: Any, lam: float) -> Any:
        if labels.ndim == 1:
            if self.num_classes is None:
                raise UsageError(
                    f"{type(self).__name__} needs num_classes to mix labels that are indices",
                    hint="num_classes=len(ds.classes)",
                )
            if len(labels) and int(labels.max()) >= self.num_classes:
                raise UsageError(
                    f"there is a label {int(labels.max())}, and num_classes is {self.num_classes}"
                )
            one_hot = labels.float().new_zeros((len(labels), self.num_classes))
            labels = one_hot.scatter_(1, labels[:, None], 1.0)
        elif not labels.is_floating_point():
            labels = labels.float()
        return labels.roll(1, 0).mul_(1.0 - lam).add_(labels, alpha=lam)


@dataclasses.dataclass(frozen=True)
class MixUp(_Mix):
    """Mix each image of a batch, and its label, with the one before it: for ``ds.map_batches``.

    As torchvision.transforms.v2.MixUp: image · lam + previous · (1 - lam) with one lam ~ Beta(alpha, alpha)
    for the batch; int64 labels become float32 (N, ``num_classes``), labels of two dimensions are mixed as
    they are. Images are changed in place; uint8 ones are rounded, half to even. ``image`` and ``label`` name
    the fields.

    >>> MixUp(num_classes=10)
    MixUp(alpha=1.0, num_classes=10, image='image', label='label')
    """

    def __call__(self, batch: dict[str, Any], *, generator: np.random.Generator) -> dict[str, Any]:
        images, labels = self._fields(batch)
        lam = beta_variate(self.alpha, generator)
        if len(images):
            before = images.roll(1, 0)
            if images.is_floating_point():
                images.mul_(lam).add_(before, alpha=1.0 - lam)
            else:
                # One image at a time: as floats they take four times the memory.
                for image, other in zip(images, before, strict=True):
                    image.copy_(image.float().mul_(lam).add_(other, alpha=1.0 - lam).round_())
        return {**batch, self.label: self._mixed_labels(labels, lam)}


@dataclasses.dataclass(frozen=True)
class CutMix(_Mix):
    """Paste a rectangle of each image's predecessor into it, and mix the labels: for ``ds.map_batches``.

    As torchvision.transforms.v2.CutMix: of (N, C, H, W) images, a rectangle of sqrt(1 - lam)
    of both sides, lam ~ Beta(alpha, alpha), about a uniformly drawn centre, cut off at the borders; labels
    are mixed by the area that is left. Images are changed in place. See :class:`MixUp` for the labels.
    """

    def __call__(self, batch: dict[str, Any], *, generator: np.random.Generator) -> dict[str, Any]:
        images, labels = self._fields(batch)
        lam = beta_variate(self.alpha, generator)
        height, width = images.shape[-2:]
        x, y = int(generator.random() * width), int(generator.random() * height)
        half = 0.5 * math.sqrt(1.0 - lam)
        half_width, half_height = int(half * width), int(half * height)
        left, right = max(x - half_width, 0), min(x + half_width, width)
        top, bottom = max(y - half_height, 0), min(y + half_height, height)
        lam = 1.0 - (right - left) * (bottom - top) / (width * height)
        part = images[..., top:bottom, left:right]
        part.copy_(part.roll(1, 0))
        return {**batch, self.label: self._mixed_labels(labels, lam)}
