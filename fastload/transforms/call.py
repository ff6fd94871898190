"""User callables, and torchvision transforms that have no operation here, as operations."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.errors import UsageError
from fastload.transforms.operations import Operation
from fastload.transforms.random import Draws

Array = npt.NDArray[Any]

_generators = threading.RLock()  # the global generators are one for all threads


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of random, NumPy and torch (where loaded), and put them back afterwards."""
    torch: Any = sys.modules.get("torch")
    with _generators:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        torch_state = None if torch is None else torch.default_generator.get_state()
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        if torch is not None:
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if torch is not None:
                torch.default_generator.set_state(torch_state)


def _to_tensor(value: Array) -> Any:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(value.transpose(2, 0, 1) if value.ndim == 3 else value))
    vision: Any = sys.modules.get("torchvision.tv_tensors")
    return tensor if vision is None else vision.Image(tensor)


def _to_array(value: Any) -> Array:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().as_subclass(torch.Tensor).cpu()
        value = value.float() if value.dtype == torch.bfloat16 else value
        array: Array = value.numpy()
        return array.transpose(1, 2, 0) if array.ndim == 3 else array
    if hasattr(value, "getbands") or isinstance(value, np.ndarray):  # a Pillow image, or HWC already
        array = np.asarray(value)
        return array[:, :, None] if array.ndim == 2 else array
    raise UsageError(
        f"an image transform returned {type(value).__name__}",
        hint="return a CHW tensor, an HWC array or a Pillow image",
    )


@dataclasses.dataclass(frozen=True)
class Call(Operation):
    """Any callable: gets the image as a CHW tensor, returns a CHW tensor, an HWC array or a Pillow image.

    The tensor is uint8, or float32 after ToDtype; it is a torchvision ``tv_tensors.Image`` where that
    module is loaded. Random numbers the callable takes from torch, NumPy or ``random`` are seeded from
    the sample's key. Runs in Python only.
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"{self.function!r} is neither an operation nor a callable")

    def apply(self, value: Array, draws: Draws) -> Array:
        tensor = _to_tensor(value)
        with seeded(draws.seed(0)):
            result = self.function(tensor)
        return _to_array(result)
