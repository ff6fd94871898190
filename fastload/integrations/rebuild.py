"""A loader made anew: with the arguments that it has, some changed."""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from torch.utils import data

from fastload.loader import DataLoader
from fastload.loader.sharded import ShardedSampler

__all__ = ["is_shared_out", "rebuilt", "sharded_arguments"]

L = TypeVar("L", bound=DataLoader[Any])


def is_shared_out(loader: DataLoader[Any]) -> bool:
    """Return whether a loader gives each rank its part already."""
    inner = getattr(loader.batch_sampler, "sampler", loader.sampler)
    return loader.shard or loader.mesh is not None or isinstance(inner, data.DistributedSampler)


def sharded_arguments(loader: DataLoader[Any], mesh: Any = None) -> dict[str, Any]:
    """Return the arguments that let ranks share a loader's dataset out, none if they do already."""
    if is_shared_out(loader) or isinstance(loader.dataset, data.IterableDataset):
        return {}
    return {"shard": True} if mesh is None else {"mesh": mesh}


def rebuilt(loader: DataLoader[Any], kind: type[L], **changes: Any) -> L:
    """Return a loader of ``kind`` at the place of ``loader``, with its arguments but for ``changes``."""
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(DataLoader.__init__).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD and name in vars(loader):
            given[name] = vars(loader)[name]
    given["multiprocessing_context"] = loader.multiprocessing_context
    if loader.batch_sampler is not None and given["batch_size"] is None:  # it was given
        for name in ("batch_size", "drop_last", "sampler"):
            given.pop(name)
    else:
        del given["batch_sampler"]
        if isinstance(loader.sampler, ShardedSampler):
            given["shuffle"] = given.pop("sampler").shuffle
    made = kind(**{**given, **changes})
    made.load_state_dict(loader.state_dict())
    return made
