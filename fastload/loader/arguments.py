"""The DataLoader's own arguments, and what is wrong with them whatever the world will be."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils import data
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from fastload.errors import UsageError
from fastload.format import parse_size
from fastload.loader.prefetch import AutoWorkers

__all__ = [
    "TORCH_PARAMETERS",
    "Sharding",
    "check_newer",
    "check_on_error",
    "check_seed_by",
    "check_window",
    "check_worker_method",
    "doubts",
]


@dataclasses.dataclass(frozen=True)
class Sharding:
    """What the user says of sharing out, as the DataLoader's arguments of the same names."""

    shard: bool = False
    mesh: Any = None
    global_batch_size: int | None = None
    pad: bool = True

    def check(self, batch_size: int | None, *, iterable: bool) -> None:
        """Raise UsageError for what cannot work, whatever the world will be."""
        if iterable and self != Sharding():
            raise UsageError(
                "an iterable dataset says itself what comes: shard, mesh, global_batch_size and pad cannot",
                hint="give each rank its part in the dataset's __iter__, by torch.distributed.get_rank()",
            )
        if self.global_batch_size is None:
            return
        if self.global_batch_size < 1:
            raise UsageError(f"global_batch_size is {self.global_batch_size}", hint="give 1 or more")
        if batch_size is None:
            raise UsageError("batch_size=None makes no batches, and global_batch_size is given")

    def check_once(self) -> None:
        """Raise UsageError where ranks share the dataset out, and a framework would do it once more."""
        if self.asked:
            raise UsageError(
                "this loader is sharded, and accelerator.prepare would share it out once more",
                hint="use fastload.integrations.accelerate.prepare(accelerator, loader)",
            )

    @property
    def asked(self) -> bool:
        """Whether ranks are to share the dataset out."""
        return self.shard or self.mesh is not None


TORCH_PARAMETERS = inspect.signature(data.DataLoader.__init__).parameters
"""What the DataLoader of the torch at hand takes."""


def check_newer(newer: Mapping[str, Any]) -> None:
    """Raise TypeError, as Python does, for arguments that torch's DataLoader does not have either."""
    for name in newer:
        if name not in TORCH_PARAMETERS:
            raise TypeError(f"DataLoader.__init__() got an unexpected keyword argument '{name}'")


def check_seed_by(seed_by: str, *, iterable: bool) -> None:
    """Raise UsageError for an unknown ``seed_by``, or positions asked of a dataset that has none."""
    if seed_by not in ("worker", "sample"):
        raise UsageError(f"unknown seed_by {seed_by!r}", hint="use 'worker' or 'sample'")
    if seed_by == "sample" and iterable:
        raise UsageError(
            "samples of an iterable dataset have no position to be seeded by",
            hint="leave seed_by out, and draw from a generator of the dataset's own that its state holds",
        )


def check_worker_method(worker_method: str, dataset: Any) -> None:
    """Raise UsageError for an unknown ``worker_method``, or a dataset that threads cannot load."""
    if worker_method not in ("multiprocessing", "thread"):
        raise UsageError(f"unknown worker_method {worker_method!r}", hint="use 'multiprocessing' or 'thread'")
    if worker_method == "thread" and isinstance(dataset, (IterDataPipe, MapDataPipe)):
        raise UsageError("torch's datapipes are loaded by processes", hint="leave out worker_method='thread'")


def check_on_error(on_error: str, *, singles: bool) -> None:
    """Raise UsageError for an unknown ``on_error``, or one that would shorten batches of one sample."""
    if on_error not in ("raise", "substitute", "skip"):
        raise UsageError(f"unknown on_error {on_error!r}", hint="use 'raise', 'substitute' or 'skip'")
    if on_error == "skip" and singles:
        raise UsageError(
            "on_error='skip' shortens batches, and batch_size=None makes none",
            hint="use on_error='substitute'",
        )


def check_window(window: int | str | None, *, shuffled: bool) -> None:
    """Raise UsageError for a ``shuffle_window`` that is no size, or where nothing is shuffled."""
    if window is not None and parse_size(window) and not shuffled:
        raise UsageError(
            "shuffle_window bounds the shuffle of a fastload dataset", hint="give shuffle=True with it"
        )


def doubts(loader: Any, *, native: bool, wrapped: bool) -> Iterator[str]:
    """Yield what to warn the user of: arguments that do nothing for the dataset, or a slow way to load it."""
    if native:
        for name in ("worker_init_fn", "multiprocessing_context"):
            if getattr(loader, name) is not None:
                yield f"{name} does nothing for a fastload dataset: its workers are native threads"
        return
    if loader.multiprocessing_context is not None and loader.worker_method == "thread":
        yield "multiprocessing_context does nothing for worker threads"
    if wrapped:
        yield (
            f"{type(loader.dataset).__name__} wraps a fastload dataset, so that torch's worker processes "
            "load it sample by sample. For the fast path give the loader a fastload dataset: use its "
            "transform(), slices and +, or torch's Subset, random_split and ConcatDataset"
        )
    bounded = loader.buffer_bytes is not None and not isinstance(loader.num_workers, AutoWorkers)
    given = {"on_error": loader.on_error != "raise", "buffer_bytes": bounded}
    for name in (name for name, is_given in given.items() if is_given):
        yield f"{name} does nothing for a dataset that torch's own machinery loads"
