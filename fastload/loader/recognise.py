"""What can run natively: datasets behind torch's wrappers, and torch's samplers."""

from __future__ import annotations

import dataclasses
import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils import data

from fastload.dataset import Dataset
from fastload.loader.arguments import Sharding
from fastload.loader.sharded import ShardedSampler
from fastload.sampler import DistributedSampler
from fastload.sampling import ENDLESS, Selection

__all__ = [
    "Batching",
    "Shuffle",
    "integers",
    "own_sampler",
    "recognise_batching",
    "recognise_sampler",
    "told_sampler",
    "unwrap",
    "wrapped_inside",
]


def unwrap(dataset: object) -> Dataset | None:
    """Return the fastload dataset that ``dataset`` is, or is a view of by torch's own wrappers, else None.

    Known are Subset (random_split makes these) and ConcatDataset, nested in any way. A subclass may have
    changed what a sample is, and is not taken for its base.
    """
    if isinstance(dataset, Dataset):
        return dataset
    if type(dataset) is data.Subset:
        inner = unwrap(dataset.dataset)
        indices: Any = dataset.indices
        known = isinstance(indices, (range, list, tuple)) or getattr(indices, "ndim", False)
        return None if inner is None else inner[indices if known else list(indices)]
    if type(dataset) is data.ConcatDataset:
        parts = [unwrap(part) for part in dataset.datasets]
        first, *rest = parts
        for part in rest:
            if first is None or part is None or first.difference(part) is not None:
                return None
            if not isinstance(first.selection, Selection) or not isinstance(part.selection, Selection):
                return None  # a mixture has an order of its own, which a concatenation would lose
            first = first + part
        return first
    return None


def wrapped_inside(dataset: object, depth: int = 4) -> bool:
    """Return whether ``dataset`` is an unknown wrapper that holds a fastload dataset in an attribute."""
    if isinstance(dataset, Dataset):
        return True
    if depth == 0 or not hasattr(dataset, "__dict__"):
        return False
    for value in list(vars(dataset).values()):
        items = value if isinstance(value, (list, tuple)) and len(value) <= 64 else [value]
        if any(
            isinstance(item, (Dataset, data.Dataset)) and wrapped_inside(item, depth - 1) for item in items
        ):
            return True
    return False


@dataclasses.dataclass(frozen=True)
class Shuffle:
    """A sampler that runs natively: whether it shuffles, and what its seed comes from."""

    shuffle: bool
    generator: Any = None
    distributed: data.DistributedSampler[Any] | None = None

    @property
    def drop(self) -> bool:
        """Whether positions that the world does not divide are left out."""
        return self.distributed is not None and bool(self.distributed.drop_last)


@dataclasses.dataclass(frozen=True)
class EndlessSampler:
    """The indices of a dataset without an end; torch's samplers ask for its length."""

    shuffle: bool

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def own_sampler(
    dataset: Any,
    native: Dataset | None,
    sharding: Sharding,
    shuffle: bool,
    seed: int | None,
    generator: Any,
) -> Any:
    """Return the sampler of a loader that is given none, where torch's would not do, else None."""
    if sharding.asked:
        count = None if native is None else native.selection.count
        return ShardedSampler(dataset, count, shuffle, sharding, seed, generator)
    return EndlessSampler(shuffle) if native is not None and native.selection.count >= ENDLESS else None


def recognise_sampler(sampler: object, count: int) -> Shuffle | None:
    """Return how to run ``sampler`` over ``count`` records natively, or None to follow its indices.

    Known are torch's SequentialSampler, RandomSampler (each record once) and DistributedSampler, not their
    subclasses, and fastload's DistributedSampler, over a dataset of that length.
    """
    if isinstance(sampler, EndlessSampler):
        return Shuffle(sampler.shuffle)
    if type(sampler) is data.SequentialSampler and len(sampler.data_source) == count:
        return Shuffle(False)
    if type(sampler) is data.RandomSampler:
        once = not sampler.replacement and sampler.num_samples == count == len(sampler.data_source)
        return Shuffle(True, generator=sampler.generator) if once else None
    if type(sampler) is ShardedSampler:  # world and rank follow from the loader's arguments
        shared = Shuffle(sampler.shuffle, generator=sampler.generator)
        return shared if sampler.count == count else None
    if type(sampler) in (data.DistributedSampler, DistributedSampler):
        distributed: Any = sampler
        over_all = len(distributed.dataset) == count
        return Shuffle(bool(distributed.shuffle), distributed=distributed) if over_all else None
    return None


@dataclasses.dataclass(frozen=True)
class Batching:
    """How a known batch sampler groups the indices of ``sampler``."""

    size: int
    drop_last: bool
    sampler: Iterable[Any]


def recognise_batching(loader: data.DataLoader[Any]) -> Batching | None:
    """Return how a DataLoader groups indices, or None to follow its batch sampler. One by one is size 1."""
    sampler = loader.batch_sampler
    if sampler is None:
        return Batching(1, False, loader.sampler)
    if type(sampler) is data.BatchSampler:
        return Batching(int(sampler.batch_size), bool(sampler.drop_last), sampler.sampler)
    return None


def integers(batch: Any) -> npt.NDArray[np.int64]:
    """Return a batch of indices as samplers give them: a list, an array, a tensor."""
    if isinstance(batch, np.ndarray) and batch.dtype.kind in "iu":
        return batch.astype(np.int64, copy=False)
    if not isinstance(batch, (Sequence, Mapping)) and hasattr(batch, "tolist"):
        batch = batch.tolist()  # a tensor
    return np.fromiter(map(operator.index, batch), dtype=np.int64)


def told_sampler(samplers: Iterable[Any]) -> Any:
    """Return torch's DistributedSampler, if there is one: it is told epochs, and does not count them."""
    distributed = [each for each in samplers if isinstance(each, data.DistributedSampler)]
    return next((each for each in distributed if not isinstance(each, DistributedSampler)), None)
