"""Which record comes next: permutation, selections, the order of an epoch. No threads, files or torch."""

from __future__ import annotations

from fastload.sampling.mixture import Mixture, MixtureOrder, Stop
from fastload.sampling.order import ENDLESS, EpochOrder, Indices, Order, Records
from fastload.sampling.permutation import ORDER_VERSION, permute
from fastload.sampling.rounding import cells_of, shares_of
from fastload.sampling.selection import Selection
from fastload.sampling.share import Share, batches_of
from fastload.sampling.state import OrderState
from fastload.sampling.weighted import Weighted
from fastload.sampling.window import Window

__all__ = [
    "ENDLESS",
    "ORDER_VERSION",
    "EpochOrder",
    "Indices",
    "Mixture",
    "MixtureOrder",
    "Order",
    "OrderState",
    "Records",
    "Selection",
    "Share",
    "Stop",
    "Weighted",
    "Window",
    "batches_of",
    "cells_of",
    "permute",
    "shares_of",
]
