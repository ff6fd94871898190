"""What tests of slabs share."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

LARGE = 40_000
"""Bytes of a tensor that travels in a slab."""


def same(left: Any, right: Any) -> None:
    """Assert that two batches are equal, types, dtypes and strides included."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape, left.stride()) == (right.dtype, right.shape, right.stride())
        assert torch.equal(left, right)
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    elif dataclasses.is_dataclass(left):
        same(vars(left), vars(right))
    else:
        assert left == right
