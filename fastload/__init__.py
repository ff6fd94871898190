"""fastload: training-data loading for PyTorch and its neighbours.

>>> import fastload
>>> sorted(name for name in dir(fastload) if name.startswith("D"))
['DataLoader', 'Dataset', 'DistributedSampler']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names by the module that holds them. They load when first used, so that importing fastload costs
# next to nothing: command lines start and worker processes are made with neither torch nor pyarrow.
_HOMES = {
    "fastload.dataset": ["Dataset", "open"],
    "fastload.views": ["concat", "mix"],
    "fastload.loader": ["DataLoader"],
    "fastload.sampler": ["DistributedSampler"],
    "fastload.writer": ["Writer"],
    "fastload.convert": ["from_torch"],
    "fastload.integrations.datasets": ["from_hf"],
    "fastload.maintain": ["gc", "merge", "repair", "verify"],
    "fastload.schema": [
        "Audio",
        "Bytes",
        "Image",
        "Json",
        "Label",
        "Ragged",
        "Scalar",
        "Schema",
        "Str",
        "StrList",
        "Tensor",
        "Video",
    ],
}
_MODULES = ("errors", "transforms")
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 (names that __getattr__ provides)
    "__version__",
    *_MODULES,
    *_HOME_OF,
]

if TYPE_CHECKING:
    from fastload import errors as errors
    from fastload import transforms as transforms
    from fastload.convert import from_torch as from_torch
    from fastload.dataset import Dataset as Dataset
    from fastload.dataset import open_dataset
    from fastload.integrations.datasets import from_hf as from_hf
    from fastload.loader import DataLoader as DataLoader
    from fastload.maintain import gc as gc
    from fastload.maintain import merge as merge
    from fastload.maintain import repair as repair
    from fastload.maintain import verify as verify
    from fastload.sampler import DistributedSampler as DistributedSampler
    from fastload.schema import Audio as Audio
    from fastload.schema import Bytes as Bytes
    from fastload.schema import Image as Image
    from fastload.schema import Json as Json
    from fastload.schema import Label as Label
    from fastload.schema import Ragged as Ragged
    from fastload.schema import Scalar as Scalar
    from fastload.schema import Schema as Schema
    from fastload.schema import Str as Str
    from fastload.schema import StrList as StrList
    from fastload.schema import Tensor as Tensor
    from fastload.schema import Video as Video
    from fastload.views import concat as concat
    from fastload.views import mix as mix
    from fastload.writer import Writer as Writer

    open = open_dataset


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"fastload.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    home = importlib.import_module(_HOME_OF[name])
    value = getattr(home, "open_dataset" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
