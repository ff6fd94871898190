"""Pinned batch memory: torch's own storages, filled natively, reused when torch's allocator says so.

torch's caching host allocator keeps the events of copies that are still reading a storage, and hands it out
again only when they are over. So nothing here keeps pinned memory for reuse.
"""

from __future__ import annotations

import torch

from fastload.staging.device import current_at

__all__ = ["PinnedBatch", "pin_available"]


def pin_available() -> bool:
    """Return whether this process can pin memory, which takes an accelerator.

    torch cannot pin for Apple's (mps), whose memory is the host's.

    >>> pin_available() or not torch.cuda.is_available()
    True
    """
    known = getattr(torch, "accelerator", None)
    if known is None:  # before torch 2.6
        return bool(torch.cuda.is_available())
    return bool(known.is_available()) and known.current_accelerator().type != "mps"


class PinnedBatch:
    """The pinned storages of one batch, by field.

    Give it to an engine's ``submit`` as ``allocate``, and to :func:`fastload.staging.to_torch` with the batch
    that comes out; it must live until then. ``device`` is the one that copies go to, if it is known.
    ``pin=False`` takes ordinary memory instead (for tests).
    """

    def __init__(self, device: torch.device | None = None, *, pin: bool = True) -> None:
        self._device = device
        self._pin = pin
        self._storages: dict[str, torch.Tensor] = {}

    def __call__(self, field: str, size: int) -> int | None:
        """Return the address of ``size`` new pinned bytes for ``field``."""
        with current_at(self._device):
            storage = torch.empty(size, dtype=torch.uint8, pin_memory=self._pin)
        self._storages[field] = storage
        return storage.data_ptr()

    def storage(self, field: str) -> torch.Tensor | None:
        """Return the bytes given for ``field`` as a uint8 tensor, None where none were asked for."""
        return self._storages.get(field)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in pinned memory: a copy of what could not be made there."""
        if not self._pin:
            return tensor
        with current_at(self._device):
            return tensor.pin_memory()
