"""What a source of a conversion offers: a schema, splits, and partitions that workers read alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

from fastload.errors import SourceError
from fastload.schema import Schema

Record = Mapping[str, object]

Concurrency = Literal["processes", "threads", "none"]

SourceItem = tuple[str, "Record | SourceError"]
"""Where a record came from, in words for a message, and the record; or why this one record cannot be had."""

DEFAULT_SPLIT = "default"

SPLIT_NAMES = frozenset({"train", "training", "val", "valid", "validation", "dev", "test", "testing"})
"""Folder names (in lower case) that mean a split rather than a class."""

_SPLIT_FILE = re.compile(r"^(?P<split>[A-Za-z]+)(?:[-_.]\d+(?:-of-\d+)?)?\.[A-Za-z]+$")

RECORD_OVERHEAD = 64
"""Bytes that a record is counted for beyond its values: offsets, checksums and the fixed columns."""


class Partition(Protocol):
    """A contiguous range of a split. Picklable; any process can read it without the others."""

    @property
    def records(self) -> int | None:
        """How many records :meth:`read` will yield; None if not known."""

    def read(self) -> Iterator[SourceItem]:
        """Yield the records in the source's order. Raises SourceError where it cannot go on."""


class Source(Protocol):
    """Something that can be converted.

    ``notes`` are sentences about what was seen and not taken over. ``concurrency`` says who can read
    partitions at the same time: worker processes, threads only (``memory://``), or nobody (an object that
    was made in this process).
    """

    schema: Schema
    notes: list[str]
    concurrency: Concurrency

    def split_names(self) -> Sequence[str]:
        """Return the names of the splits, in the order in which they are written."""

    def partitions(self, split: str, shard_bytes: int) -> Sequence[Partition]:
        """Cut a split into contiguous ranges of about ``shard_bytes``, in order.

        The cut depends on the source and ``shard_bytes`` alone, so that the dataset does too.
        """


@dataclasses.dataclass(frozen=True)
class SourceOptions:
    """What the caller says about a source. Fields that a kind of source does not know are refused by it."""

    classes: tuple[str, ...] | None = None
    split: str | None = None
    columns: tuple[str, ...] | None = None
    image_columns: tuple[str, ...] = ()
    encode: str = "png"
    storage_options: Mapping[str, object] = dataclasses.field(default_factory=dict)


Sized = TypeVar("Sized")


def cut(items: Iterable[tuple[Sized, int]], limit: int) -> list[list[Sized]]:
    """Cut (item, bytes) pairs into contiguous groups of at most ``limit`` bytes, at least one item each.

    >>> cut([("a", 3), ("b", 3), ("c", 9), ("d", 1)], 6)
    [['a', 'b'], ['c'], ['d']]
    """
    groups: list[list[Sized]] = []
    used = limit + 1
    for item, size in items:
        if used + size > limit:
            groups.append([])
            used = 0
        groups[-1].append(item)
        used += size
    return groups


def cut_range(count: int, record_bytes: int, limit: int) -> list[tuple[int, int]]:
    """Cut ``range(count)`` of records of one size into (start, stop) of at most ``limit`` bytes each.

    >>> cut_range(5, 100, 364)
    [(0, 2), (2, 4), (4, 5)]
    """
    step = max(1, limit // (record_bytes + RECORD_OVERHEAD))
    return [(start, min(start + step, count)) for start in range(0, count, step)]


def split_of_file(name: str) -> str | None:
    """Return the split that a file's name states, as Hugging Face names them, else None.

    >>> split_of_file("train-00000-of-00002.parquet"), split_of_file("test.arrow"), split_of_file("a.parquet")
    ('train', 'test', None)
    """
    match = _SPLIT_FILE.match(name)
    return match["split"] if match and match["split"].lower() in SPLIT_NAMES else None


def are_splits(names: Iterable[str]) -> bool:
    """Say whether folders of these names are splits: all of them are names of splits, and there is one.

    >>> are_splits(["train", "val"]), are_splits(["train", "plane"]), are_splits([])
    (True, False, False)
    """
    lowered = [name.lower() for name in names]
    return bool(lowered) and all(name in SPLIT_NAMES for name in lowered)


def order_splits(names: Iterable[str]) -> list[str]:
    """Return split names in the order of use: train, then validation, then test, then others.

    >>> order_splits(["test", "val", "train"])
    ['train', 'val', 'test']
    """
    rank = {"tr": 0, "va": 1, "de": 1, "te": 2}
    return sorted(names, key=lambda name: (rank.get(name.lower()[:2], 3), name))


def choose_split(found: Sequence[str], wanted: str | None, path: str) -> list[str]:
    """Return the splits to convert: all that were found, or the one of them that is wanted."""
    if wanted is None:
        return list(found)
    if wanted not in found:
        raise SourceError(f"no split {wanted!r}", path=path, hint=f"it has {', '.join(found)}")
    return [wanted]
