"""Hugging Face datasets, read from their Arrow files in place."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import data

from fastload.errors import DecodeError, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowDataset", "from_hf"]

Sample = dict[str, Any]


class ArrowDataset(data.Dataset[Any]):
    """A map-style dataset over the Arrow tables of a ``datasets.Dataset``. Made by :func:`from_hf`.

    It pickles as the paths of the files, and maps them where it is used.
    """

    def __init__(self, source: Any, transform: Callable[[Sample], Any] | None) -> None:
        self.source = source
        self.transform = transform
        self._opened: _Opened | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at ``indices``: what a DataLoader calls for a whole batch."""
        if self._opened is None:
            self._opened = _Opened(self.source)
        samples = self._opened.read(np.asarray(indices, dtype=np.int64))
        return samples if self.transform is None else [self.transform(sample) for sample in samples]


def from_hf(source: Any, transform: Callable[[Sample], Any] | None = None) -> ArrowDataset:
    """Return a map-style dataset that reads a ``datasets.Dataset`` from its Arrow files, without a copy.

    It goes past the Python formatting of ``datasets``. What ``select``, ``shuffle``, ``filter``, ``sort``
    and ``select_columns`` did is respected. A sample is a dict: numbers are 0-d tensors of their dtype,
    class labels ints, lists of numbers tensors (lists of lists where their lengths differ), images uint8
    tensors (C, H, W), strings, bytes and everything else what Arrow gives to Python. Null is None.

    ``transform`` gets each sample. Raises UsageError for an iterable dataset, a DatasetDict, and one with
    ``set_transform``, whose function would not be called.
    """
    if not all(hasattr(source, name) for name in ("data", "features", "column_names", "format")):
        kind = type(source).__name__
        hint = "give one split, as in ds['train']" if hasattr(source, "keys") else "give a datasets.Dataset"
        raise UsageError(f"a {kind} has no Arrow tables to read in place", hint=hint)
    if source.format["type"] == "custom":
        raise UsageError("the dataset has a transform of its own", hint="give it as transform= instead")
    return ArrowDataset(source, transform)


class _Opened:
    """The tables of a dataset in this process."""

    def __init__(self, source: Any) -> None:
        table: pa.Table = source.data.table.select(source.format["columns"])
        self._batches = [batch for batch in table.to_batches() if len(batch)]
        self._starts = np.cumsum([0, *map(len, self._batches)])
        picked = source._indices
        self._rows = None if picked is None else picked.column(0).to_numpy()
        self._count = len(source)
        features = source.features
        self._fields = [(name, _reader(features[name])) for name in table.column_names]

    def read(self, indices: np.ndarray[Any, np.dtype[np.int64]]) -> list[Sample]:
        wrong = (indices < -self._count) | (indices >= self._count)
        if wrong.any():
            raise IndexError(
                f"index {indices[wrong][0]} is out of range: the dataset has {self._count:,} records"
            )
        rows = np.where(indices < 0, indices + self._count, indices)
        if self._rows is not None:
            rows = self._rows[rows].astype(np.int64)
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        samples: list[Sample] = [{} for _ in rows]
        for number in np.unique(numbers):
            places = np.flatnonzero(numbers == number)
            part = self._batches[number].take(_arrow(rows[places] - self._starts[number]))
            for column, (name, read) in zip(part.columns, self._fields, strict=True):
                for place, value in zip(places, read(column), strict=True):
                    samples[place][name] = value
        return samples


def _arrow(numbers: np.ndarray[Any, Any]) -> Any:
    import pyarrow as pa

    return pa.array(numbers)


def _reader(feature: Any) -> Callable[[Any], Sequence[Any]]:
    """Return what makes the values of a column, by the name of its feature's type."""
    kind = type(feature).__name__
    if kind == "ClassLabel":
        return _python
    if kind == "Image" and feature.decode:
        return _Images(getattr(feature, "mode", None) or "RGB")
    return _values


def _python(column: Any) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _values(column: Any) -> Sequence[Any]:
    """Return numbers as tensors, also in lists, and everything else as Python has it."""
    import pyarrow as pa

    if isinstance(column, pa.ExtensionArray):  # Array2D and its like
        column = column.storage
    kind = column.type
    if _is_number(kind) and not column.null_count:
        return torch.from_numpy(column.to_numpy(zero_copy_only=False).copy()).unbind()
    if _is_number(kind):
        numbers = column.fill_null(0).to_numpy(zero_copy_only=False)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return [torch.tensor(n) if good else None for n, good in zip(numbers, valid, strict=True)]
    if _is_list(kind) and _is_number(_innermost(kind)):
        return [None if row is None else _list_tensor(row) for row in _rows(column)]
    return _python(column)


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_kind(kind) for is_kind in lists)


def _innermost(kind: Any) -> Any:
    while _is_list(kind):
        kind = kind.value_type
    return kind


def _rows(column: Any) -> list[Any]:
    """Return the Arrow array of each row of a column of lists, or None."""
    return [row.values if row.is_valid else None for row in column]


def _list_tensor(values: Any) -> Any:
    """Return a list of numbers as a tensor; of lists too, where they are of one length and have no null."""
    if values.null_count:
        return values.to_pylist()
    if not _is_list(values.type):
        return torch.from_numpy(values.to_numpy(zero_copy_only=False).copy())
    inner = [_list_tensor(row) for row in _rows(values)]
    if inner and all(isinstance(row, torch.Tensor) and row.shape == inner[0].shape for row in inner):
        return torch.stack(inner)
    return inner


class _Images:
    """Decodes a column of images: their bytes, or the files that they name."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def __call__(self, column: Any) -> list[Any]:
        return [None if value is None else self._decode(value) for value in column.to_pylist()]

    def _decode(self, value: dict[str, Any]) -> torch.Tensor:
        from PIL import Image

        encoded, path = value["bytes"], value.get("path")
        try:
            file: Any = path if encoded is None else io.BytesIO(encoded)
            with Image.open(file) as image:
                pixels = np.array(image.convert(self._mode))
        except (OSError, ValueError) as error:
            raise DecodeError(f"an image of the dataset cannot be read: {error}", path=path) from error
        shaped = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
        return torch.from_numpy(shaped)
