"""Batches as torch tensors, and the pinned memory they may be made in."""

from __future__ import annotations

from fastload.staging.convert import JaggedTensor, to_torch
from fastload.staging.pinned import PinnedBatch, pin_available

__all__ = ["JaggedTensor", "PinnedBatch", "pin_available", "to_torch"]
