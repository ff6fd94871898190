"""Batches as torch tensors, the pinned memory they may be made in, and their way to a device."""

from __future__ import annotations

from fastload.staging.convert import JaggedTensor, to_torch
from fastload.staging.device import AcceleratorStreams, Copier, Copy, current_at, find_device
from fastload.staging.nested import mapped, tensors_of
from fastload.staging.normalise import Normalise
from fastload.staging.pinned import PinnedBatch, pin_available

__all__ = [
    "AcceleratorStreams",
    "Copier",
    "Copy",
    "JaggedTensor",
    "Normalise",
    "PinnedBatch",
    "current_at",
    "find_device",
    "mapped",
    "pin_available",
    "tensors_of",
    "to_torch",
]
