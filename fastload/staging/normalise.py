"""Normalising on the device: the engines' arithmetic, with the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fastload.staging.nested import mapped

if TYPE_CHECKING:  # the layer above: only its shape is known here
    from fastload.engine.trailing import Trailing

__all__ = ["Normalise"]


class Normalise:
    """Finishes the uint8 images of batches: those under the keys of ``fields``, names or tuple places.

    The constants go to the device with the first batch. It is called where the batch is, on the stream that
    its copy is queued on.
    """

    def __init__(self, fields: Mapping[Any, Trailing]) -> None:
        self._fields = fields
        self._constants: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, batch: Any) -> Any:
        """Return ``batch`` with its images normalised."""
        keys = range(len(batch)) if isinstance(batch, tuple) else batch
        values = {key: self._field(key, batch[key]) if key in self._fields else batch[key] for key in keys}
        return tuple(values.values()) if isinstance(batch, tuple) else values

    def _field(self, key: Any, value: Any) -> Any:
        return mapped(value, lambda leaf: self._image(key, leaf) if isinstance(leaf, torch.Tensor) else leaf)

    def _image(self, key: Any, pixels: torch.Tensor) -> torch.Tensor:
        trailing = self._fields[key]
        if key not in self._constants:
            shape = (-1,) if trailing.channels_last else (-1, 1, 1)
            scale, offset = (
                torch.tensor(numbers, dtype=torch.float32).view(shape).to(pixels.device)
                for numbers in (trailing.scale, trailing.offset)
            )
            self._constants[key] = scale, offset
        scale, offset = self._constants[key]
        # Two operations, not one fused: each rounds, as the engines do.
        floats = pixels.to(torch.float32).mul_(scale).add_(offset)
        return floats.to(getattr(torch, trailing.dtype))
