"""What an engine is asked to do: a plan (what each field becomes), and batches of indices (which records)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from fastload.errors import FastloadError
from fastload.format import SplitReader
from fastload.sampling import Records
from fastload.schema import Field
from fastload.transforms import Operation, SampleKey

OnError = Literal["raise", "substitute", "skip"]
Int64Array = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class FieldPlan:
    """What one output field of a batch is made of.

    ``operations`` are applied in order, each drawing with (seed, epoch, position, ``group``, its index in
    ``operations``). ``ragged`` is ``"list"``, ``"pad"`` or ``"jagged"`` for Ragged fields. ``stored`` is the
    stored field's name, where it is not ``name``. ``follows``, where not empty, names the image field whose
    mask the image is: their sizes must be equal.
    """

    name: str
    field: Field
    operations: tuple[Operation, ...] = ()
    group: int = 0
    ragged: str = "list"
    stored: str = ""
    follows: str = ""

    @property
    def column(self) -> str:
        """The name of the stored field."""
        return self.stored or self.name


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything an engine needs except which records: sources (all of one schema) and fields.

    ``on_error`` says what becomes of a record whose bytes are bad; substitutes come out of ``selection``.
    ``finish``, in Python, makes each sample of the fields of a batch of one; batches are then lists of what
    it returned, under the name SAMPLES.
    """

    SAMPLES: ClassVar[str] = "samples"

    sources: tuple[SplitReader, ...]
    fields: tuple[FieldPlan, ...]
    seed: int = 0
    on_error: OnError = "raise"
    selection: Records | None = dataclasses.field(default=None, compare=False)
    finish: Callable[[Mapping[str, BatchValue], SampleKey], Any] | None = None


@dataclasses.dataclass(frozen=True)
class BatchIndices:
    """One batch to make: three int64 arrays of one length, and the epoch.

    ``positions`` number the samples in the epoch's global order and key their random draws; ``sources``
    index Plan.sources; ``records`` index the source's records.
    """

    positions: Int64Array
    sources: Int64Array
    records: Int64Array
    epoch: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, part: slice) -> BatchIndices:
        return BatchIndices(self.positions[part], self.sources[part], self.records[part], self.epoch)


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A record that could not be made: where it lies, why, and whether its batch is shorter for it."""

    path: str
    record: int
    field: str | None
    error: str
    skipped: bool

    @classmethod
    def of(cls, error: FastloadError, plan: Plan, one: BatchIndices, skipped: bool) -> Rejection:
        """Return the rejection of the only record of ``one``."""
        path = plan.sources[int(one.sources[0])].folder
        return cls(path, int(one.records[0]), error.field, str(error), skipped)


@dataclasses.dataclass(frozen=True)
class Jagged:
    """A ragged field of a batch as one array: sample i is ``values[offsets[i]:offsets[i + 1]]``."""

    values: npt.NDArray[Any]
    offsets: Int64Array


BatchValue = npt.NDArray[Any] | Jagged | list[Any]
"""A field of a batch as engines deliver it.

- column fields and images: one array, batch first (bfloat16 as uint16 holding the bits);
- Ragged: a list of arrays (views of one buffer), an array padded with zeros, or a Jagged;
- Bytes, Audio, Video: list of bytes; Str: of str; StrList: of list of str; Json: of values;
- any nullable field: a list of such samples, None where null.
"""

Allocate = Callable[[str, int], int | None]
"""Called by an engine as (field name, bytes) for each array of a known size: returns the address of memory
that the caller keeps alive (pinned memory), or None for the engine's own."""


class Engine(Protocol):
    """Turns batches of indices into batches, in the order submitted. Not thread-safe; one owner."""

    name: str
    rejections: Sequence[Rejection]
    """Of the batch that next() returned last: it has as many samples less as of these are skipped."""

    def submit(self, indices: BatchIndices, allocate: Allocate | None = None) -> None:
        """Queue a batch. Never blocks; the caller bounds how many are in flight."""

    def next(self, timeout: float = 0) -> Mapping[str, BatchValue]:
        """Wait for the oldest batch in flight and return its fields in plan order.

        Raises what went wrong with it, naming the record. Raises EngineError if none is in flight, or if
        ``timeout`` (seconds, 0: no limit) passes first; the batch then stays in flight. Without workers
        the work is done here and the timeout does not apply.
        """

    def stats(self) -> Mapping[str, Any]:
        """Counters since the engine was made: bytes read, samples, seconds in each stage, waits."""

    def close(self) -> None:
        """Stop and join every thread, dropping what is in flight. May be called twice."""


class EngineFactory(Protocol):
    """How engines are made; ``num_workers=0`` works in the thread that calls ``next``."""

    def __call__(self, plan: Plan, num_workers: int, byte_budget: int | None = None) -> Engine: ...


def indices_of(records: Sequence[int] | Int64Array, *, epoch: int = 0) -> BatchIndices:
    """Return indices of records of source 0, each at the position equal to its number.

    >>> len(indices_of([3, 1]))
    2
    """
    array = np.asarray(records, dtype=np.int64)
    return BatchIndices(array, np.zeros_like(array), array, epoch)
