"""Which record comes next: permutation, selections, the order of an epoch. No threads, files or torch."""

from __future__ import annotations

from fastload.sampling.order import EpochOrder, Indices
from fastload.sampling.permutation import ORDER_VERSION, permute
from fastload.sampling.selection import Selection

__all__ = ["ORDER_VERSION", "EpochOrder", "Indices", "Selection", "permute"]
