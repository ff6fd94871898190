"""Batches in the array type that the user asks for, without a copy where the types share memory."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch

from fastload.errors import UsageError
from fastload.staging import mapped

__all__ = ["Output", "check_output", "converter"]

Output = Literal["torch", "numpy", "jax", "dlpack"]

Convert = Callable[[Any], Any]


def check_output(output: Output | None, device: torch.device | None) -> None:
    """Raise UsageError for an ``output`` that is unknown, cannot be on ``device``, or lacks its package."""
    if output not in (None, *_CONVERTERS):
        raise UsageError(f"unknown output {output!r}", hint=f"use one of {', '.join(_CONVERTERS)}")
    if output == "numpy" and device is not None and device.type != "cpu":
        raise UsageError(
            f"NumPy arrays lie in host memory, and device is {str(device)!r}",
            hint="leave out device, or use output='torch', 'jax' or 'dlpack'",
        )
    if output == "jax":
        _jax()


def converter(output: Output | None) -> Convert | None:
    """Return what makes a nested batch one of ``output``, or None where it stays as it is.

    Strings, numbers, None and objects of other kinds stay as they are.

    >>> convert = converter("numpy")
    >>> convert({"x": torch.arange(2), "name": "two"})
    {'x': array([0, 1]), 'name': 'two'}
    """
    return None if output is None else functools.partial(_convert, _CONVERTERS[output])


def _convert(leaf: Convert, batch: Any) -> Any:
    return mapped(batch, leaf)


def _to_torch(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf
    if isinstance(leaf, (np.ndarray, np.generic)):
        return _tensor(np.asarray(leaf))
    return torch.utils.dlpack.from_dlpack(leaf) if hasattr(leaf, "__dlpack__") else leaf


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.name == "bfloat16":  # ml_dtypes'; torch does not know it
        return _tensor(array.view(np.uint16)).view(torch.bfloat16)
    if array.dtype.kind not in "biufc":
        return array  # text and objects
    if not array.flags.writeable:  # torch has no read-only tensors
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):  # another byte order, a negative stride
        return torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))


def _to_numpy(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return np.from_dlpack(leaf) if _foreign(leaf) else leaf
    leaf = leaf.detach()
    if leaf.dtype is torch.bfloat16:
        return leaf.view(torch.uint16).numpy().view(_bfloat16())
    return leaf.numpy()


def _foreign(leaf: Any) -> bool:
    return hasattr(leaf, "__dlpack__") and not isinstance(leaf, (np.ndarray, np.generic))


def _bfloat16() -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    except ImportError as error:
        raise UsageError(
            "NumPy has no bfloat16 of its own",
            hint="pip install ml_dtypes, make the field float16 or float32, or use output='torch'",
        ) from error
    return dtype


def _to_dlpack(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.detach()  # what has a gradient is not exported
    return _to_torch(leaf) if isinstance(leaf, (np.ndarray, np.generic)) else leaf


def _to_jax(leaf: Any) -> Any:
    tensor = _to_torch(leaf)
    # The array keeps the tensor, and so its memory, which is used again when both are gone.
    return _jax().from_dlpack(tensor.detach()) if isinstance(tensor, torch.Tensor) else leaf


@functools.cache
def _jax() -> Any:
    try:
        return importlib.import_module("jax.dlpack")
    except ImportError as error:
        raise UsageError("output='jax' needs jax", hint="pip install 'fastload[jax]'") from error


_CONVERTERS: dict[str, Convert] = {
    "torch": _to_torch,
    "numpy": _to_numpy,
    "jax": _to_jax,
    "dlpack": _to_dlpack,
}
