"""Which record comes next: permutation, selections, the order of an epoch. No threads, files or torch."""

from __future__ import annotations

from fastload.sampling.order import ENDLESS, EpochOrder, Indices, Order, Records
from fastload.sampling.permutation import ORDER_VERSION, permute
from fastload.sampling.selection import Selection
from fastload.sampling.share import Share, batches_of
from fastload.sampling.state import OrderState
from fastload.sampling.window import Window

__all__ = [
    "ENDLESS",
    "ORDER_VERSION",
    "EpochOrder",
    "Indices",
    "Order",
    "OrderState",
    "Records",
    "Selection",
    "Share",
    "Window",
    "batches_of",
    "permute",
]
