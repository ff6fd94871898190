"""NumPy batches of an engine as torch tensors over the same memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from fastload.schema import Image

if TYPE_CHECKING:  # the layer above: only its shapes are known here
    from fastload.engine.plan import BatchValue, FieldPlan, Plan
    from fastload.staging.pinned import PinnedBatch

__all__ = ["JaggedTensor", "to_torch"]


class JaggedTensor(NamedTuple):
    """A ragged field of a batch as one tensor: sample i is ``values[offsets[i]:offsets[i + 1]]``.

    torch's own nested tensors of the jagged layout hold the same two tensors. Making one takes 0.16 ms, and
    its modules 0.7 s to import, so that it is made where it is asked for.

    >>> batch = JaggedTensor(torch.arange(3), torch.tensor([0, 1, 3]))
    >>> [part.tolist() for part in batch.nested().unbind()]
    [[0], [1, 2]]
    """

    values: torch.Tensor
    offsets: torch.Tensor

    def nested(self) -> torch.Tensor:
        """Return the same memory as a nested tensor of layout ``torch.jagged``."""
        nested: torch.Tensor = torch.nested.nested_tensor_from_jagged(self.values, self.offsets)
        return nested


def to_torch(
    batch: Mapping[str, BatchValue], plan: Plan, pinned: PinnedBatch | None = None
) -> dict[str, Any]:
    """Return a batch that an engine made of ``plan`` with tensors for arrays, over the same memory.

    bfloat16, which NumPy lacks, gets its type back. Lists of arrays become lists of tensors, None and what is
    no array (str, bytes, …) stay as they are. A Jagged becomes a :class:`JaggedTensor`.

    ``pinned`` is what the engine was given as ``allocate``: then all tensors are in pinned memory, those of a
    size that the plan tells without a copy.

    >>> from fastload.engine import FieldPlan, Plan
    >>> from fastload.schema import Tensor
    >>> plan = Plan((), (FieldPlan("x", Tensor("uint8", (2,))),))
    >>> to_torch({"x": np.zeros((3, 2), np.uint8)}, plan)["x"].shape
    torch.Size([3, 2])
    """
    return {field.name: _convert(batch[field.name], field, pinned) for field in plan.fields}


def _convert(value: BatchValue, field: FieldPlan, pinned: PinnedBatch | None) -> Any:
    if isinstance(value, np.ndarray):
        return _tensor(value, field, pinned)
    if isinstance(value, list):
        return [
            _tensor(np.asarray(item), field, pinned) if isinstance(item, (np.ndarray, np.generic)) else item
            for item in value
        ]
    return JaggedTensor(_tensor(value.values, field, pinned), _offsets(value.offsets, pinned))


def _offsets(array: npt.NDArray[np.int64], pinned: PinnedBatch | None) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if pinned is None else pinned.pin(tensor)


def _tensor(array: npt.NDArray[Any], field: FieldPlan, pinned: PinnedBatch | None) -> torch.Tensor:
    # torch has no read-only tensors: what may not be written to (a mapped file) is copied.
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if tensor.dtype is torch.uint16 and _holds_bfloat16(field):
        tensor = tensor.view(torch.bfloat16)
    if pinned is None:
        return tensor
    storage = pinned.storage(field.name)
    if storage is not None and storage.data_ptr() == tensor.data_ptr():
        # torch must see its own storage, to know of the copies that read it.
        return storage.view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return pinned.pin(tensor)


def _holds_bfloat16(field: FieldPlan) -> bool:
    """Return whether uint16 values of the field are the bits of bfloat16 rather than integers."""
    for operation in reversed(field.operations):
        if hasattr(operation, "function"):  # a user's callable: what it made is what it is
            return False
        if hasattr(operation, "dtype"):
            return bool(operation.dtype == "bfloat16")
    return not isinstance(field.field, Image) and getattr(field.field, "dtype", None) == "bfloat16"
