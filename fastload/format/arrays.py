"""What users give as numbers, turned into little-endian NumPy arrays without losing anything unsaid.

bfloat16, which NumPy lacks, is uint16 holding the bits: uint16 arrays are taken as bits, other numbers as
values to round.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import RecordError
from fastload.schema import numpy_dtype_of

__all__ = ["as_array"]

Array = npt.NDArray[Any]


def as_array(value: object, dtype: str) -> Array:
    """Return ``value`` as a C-contiguous array of the schema's ``dtype`` (bfloat16: uint16 bits).

    Takes NumPy and torch arrays of any device, nested lists and numbers. Floats may lose precision, as in
    any cast; integers outside the range, fractions for integers and finite floats that become infinite
    raise RecordError.
    """
    array = _to_numpy(value)
    if dtype == "bfloat16":
        return _to_bfloat16(array)
    target = np.dtype(numpy_dtype_of(dtype))
    if array.dtype != target:
        array = _cast(array, target, dtype)
    # ascontiguousarray makes 0-d arrays 1-d.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _to_numpy(value: object) -> Array:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        # ml_dtypes' bfloat16 is a NumPy extension type
        return array.view(np.uint16) if array.dtype.name == "bfloat16" else array
    if hasattr(value, "detach") and hasattr(value, "numpy"):  # a torch tensor, without importing torch
        return _from_torch(value)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise RecordError(f"not an array of numbers: {error}") from error
    if array.dtype.kind not in "biuf":
        raise RecordError(f"{_shown(value)} is not a number or an array of numbers")
    return array


def _from_torch(value: Any) -> Array:
    tensor = value.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        # int16 holds the same bits; whoever has a tensor has imported torch, so it is not imported here
        flat = tensor.contiguous().reshape(-1).view(sys.modules["torch"].int16)
        bits: Array = flat.numpy().view(np.uint16).reshape(tuple(tensor.shape))
        return bits
    array: Array = tensor.numpy()
    return array


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _to_bfloat16(array: Array) -> Array:
    if array.dtype == np.uint16:
        return np.ascontiguousarray(array.astype("<u2", copy=False)).reshape(array.shape)
    wide = _cast(array, np.dtype("<f4"), "bfloat16")
    bits = np.atleast_1d(np.ascontiguousarray(wide)).view(np.uint32).reshape(array.shape)
    rounded = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    nan = np.isnan(wide)
    rounded = np.where(nan, (bits >> 16).astype("<u2") | np.uint16(0x40), rounded).astype("<u2")
    _refuse_new_infinities(array, (rounded & 0x7FFF) == 0x7F80, "bfloat16")
    return np.ascontiguousarray(rounded).reshape(array.shape)


def _cast(array: Array, target: np.dtype[Any], dtype: str) -> Array:
    if array.dtype.kind not in "biuf":
        raise RecordError(f"an array of {array.dtype} where {dtype} is asked for")
    if np.can_cast(array.dtype, target, "safe") or array.size == 0:
        return array.astype(target)
    if target.kind == "f":
        with np.errstate(over="ignore"):
            out = array.astype(target)
        _refuse_new_infinities(array, np.isinf(out), dtype)
        return out
    if array.dtype.kind == "f":
        raise RecordError(f"floating-point numbers where {dtype} is asked for", hint="round them before")
    low, high = (0, 1) if target.kind == "b" else (np.iinfo(target).min, np.iinfo(target).max)
    least, greatest = int(array.min()), int(array.max())
    if least < low or greatest > high:
        worst = least if least < low else greatest
        raise RecordError(f"{worst} is outside {dtype}, which holds {low} to {high}")
    return array.astype(target)


def _refuse_new_infinities(before: Array, infinite: Array, dtype: str) -> None:
    if np.any(infinite & np.isfinite(before)):
        raise RecordError(f"a number is too large for {dtype}")
