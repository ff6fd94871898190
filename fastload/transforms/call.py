"""User callables, and torchvision transforms that have no operation here, as operations."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
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


def takes_generator(function: Any) -> bool:
    """Return whether a callable has a parameter of its own called ``generator``.

    >>> takes_generator(lambda value, *, generator: value), takes_generator(len)
    (True, False)
    """
    try:
        parameter = inspect.signature(function).parameters.get("generator")
    except (TypeError, ValueError):  # builtins without a signature
        return False
    return parameter is not None and parameter.kind in (
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


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
    module is loaded. Runs in Python only.

    Random numbers the callable takes from torch, NumPy or ``random`` are seeded from the sample's key, and
    because those generators are global, one such callable runs at a time. A callable with a parameter
    ``generator`` gets a ``numpy.random.Generator`` of the sample instead, and no lock is taken.
    """

    function: Callable[..., Any]
    takes_generator: bool = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"{self.function!r} is neither an operation nor a callable")
        object.__setattr__(self, "takes_generator", takes_generator(self.function))

    @property
    def name(self) -> str:
        """What people know the callable by."""
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def call(self, value: Any, draws: Draws) -> Any:
        """Return what the callable makes of any value, with its random numbers drawn by ``draws``."""
        if self.takes_generator:
            bits = np.random.Philox(key=np.array([draws.seed(0), draws.seed(1)], np.uint64))
            return self.function(value, generator=np.random.Generator(bits))
        with seeded(draws.seed(0)):
            return self.function(value)

    def apply(self, value: Array, draws: Draws) -> Array:
        return _to_array(self.call(_to_tensor(value), draws))
