"""The four ways by which samples are made, for tests of what they have in common."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import data

import fastload
from fastload import _backend

COUNT = 53


class Numbers(data.Dataset[Any]):
    """What the dataset of ``numbers_path`` holds, in Python."""

    def __init__(self, change: Callable[[dict[str, Any]], Any] | None = None, count: int = COUNT) -> None:
        self.change, self.count = change, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.count:
            raise IndexError(index)
        sample = {
            "x": torch.tensor(index),
            "wide": torch.full((4,), float(index)),
            "label": index % 2,
            "name": str(index),
        }
        return sample if self.change is None else self.change(sample)


class Stream(data.IterableDataset[Any]):
    """Counts from 0 in each worker, keeping a state."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.at = count, 0

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        assert info is None or info.dataset is self, "the user's own dataset is seen in workers"
        while self.at < self.count:
            self.at += 1
            yield self.at - 1 + (0 if info is None else 100 * info.id)
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Plain(data.IterableDataset[Any]):
    """Counts, and keeps no state."""

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        first = 0 if info is None else 100 * info.id
        yield from range(first, first + 20)


@dataclasses.dataclass
class Way:
    """One way of making samples: makes loaders, and asserts by their stats() that it was taken."""

    name: str
    path: str
    change: Callable[[dict[str, Any]], Any] | None = None

    @property
    def dataset(self) -> Any:
        if self.name != "native":
            return Numbers(self.change)
        dataset = fastload.open(self.path)
        return dataset if self.change is None else dataset.map(self.change)

    def loader(self, batch_size: int | None = 8, **arguments: Any) -> fastload.DataLoader[Any]:
        arguments.setdefault("num_workers", 0 if self.name == "caller" else 2)
        if self.name == "threads":
            arguments["worker_method"] = "thread"
        return fastload.DataLoader(arguments.pop("dataset", self.dataset), batch_size, **arguments)

    def check(self, loader: fastload.DataLoader[Any]) -> None:
        """Assert that ``loader`` went this way."""
        stats = loader.stats()
        native = _backend.core() is not None and self.change is None
        expected = ("native" if native else "python") if self.name == "native" else "torch"
        assert stats["engine"] == expected
        assert stats["workers"] == (0 if self.name == "caller" else 2)
        methods = {"caller": None, "processes": "multiprocessing"}
        assert stats["worker_method"] == methods.get(self.name, "thread")


def numbers(batches: Any) -> list[list[int]]:
    """Return the field x of batches as lists."""
    return [batch["x"].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def fail_at_20(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["x"]) == 20:
        raise KeyError("twenty")
    return sample


def stop_at_20(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["x"]) == 20:
        raise StopIteration
    return sample


def sleep_a_while(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(1.5)  # a thread cannot be stopped in it
    return sample


class Calling(data.Dataset[Any]):
    """Samples are what a function returns."""

    def __init__(self, function: Callable[[int], Any], count: int = 24) -> None:
        self.function, self.count = function, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def threaded(dataset: Any, batch_size: int | None = 4, **arguments: Any) -> fastload.DataLoader[Any]:
    """Return a loader with two worker threads."""
    arguments.setdefault("num_workers", 2)
    return fastload.DataLoader(dataset, batch_size, worker_method="thread", **arguments)
