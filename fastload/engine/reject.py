"""Records whose bytes are bad, and what takes their place: the same on both engines, at any num_workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fastload.engine.collate import collate_field, unequal
from fastload.engine.plan import BatchIndices, BatchValue, FieldPlan, Plan, Rejection
from fastload.errors import CorruptionError, DecodeError, FastloadError, RecordError
from fastload.schema import Image, Ragged
from fastload.transforms import SUBSTITUTE_GROUP, Draws, output_spec

__all__ = ["ATTEMPTS", "BAD_RECORD", "amend", "answer", "joined"]

T = TypeVar("T")

ATTEMPTS = 10
"""How many substitutes are tried for one record before its error is raised after all."""

_AMONG = 1 << 40
"""Substitutes come out of so many entries at most: a draw has 53 bits, and endless mixtures have more."""

BAD_RECORD = (CorruptionError, DecodeError, RecordError)
"""What a record's own bytes, or a callable that refuses it, can raise. Everything else is no matter of it."""


def substitute(plan: Plan, epoch: int, position: int, attempt: int) -> BatchIndices:
    """Return the record that takes a bad one's place: a function of (seed, epoch, position, attempt)."""
    assert plan.selection is not None, "Look.plan() gives one wherever on_error is substitute"
    draws = Draws(plan.seed, epoch, position, SUBSTITUTE_GROUP)
    count = min(plan.selection.count, _AMONG)
    entry = np.array([draws.integer(attempt, count)], np.int64)
    return BatchIndices(np.array([position], np.int64), *plan.selection.locate(entry), epoch)


def answer(
    plan: Plan, indices: BatchIndices, sample: int, error: FastloadError, make: Callable[[BatchIndices], T]
) -> tuple[list[Rejection], BatchIndices, T | None]:
    """Do as ``plan.on_error`` says about one bad sample of a batch.

    Return what was rejected, and the substitute's indices and what ``make`` made of it: None where the
    sample is skipped. Raises ``error`` when no substitute can be made either.
    """
    one = indices[sample : sample + 1]
    skipped = plan.on_error == "skip"
    rejections = [Rejection.of(error, plan, one, skipped)]
    if skipped:
        return rejections, one, None
    for attempt in range(ATTEMPTS):
        one = substitute(plan, indices.epoch, int(indices.positions[sample]), attempt)
        try:
            return rejections, one, make(one)
        except BAD_RECORD as failure:
            rejections.append(Rejection.of(failure, plan, one, False))
    error.hint = f"{ATTEMPTS} substitutes for it failed as well; run fastload verify"
    raise error


def joined(field: FieldPlan) -> bool:
    """Return whether a batch holds the field's values of many lengths in one array."""
    ragged = isinstance(field.field, Ragged) and not field.field.nullable
    return ragged and field.ragged != "list" and not field.operations


def amend(
    field: FieldPlan,
    value: BatchValue,
    replaced: Mapping[int, BatchValue],
    dropped: Collection[int],
    records: npt.NDArray[Any],
) -> BatchValue:
    """Return one field of a batch with samples ``replaced`` (by batches of one) and ``dropped``.

    Values that a batch joins come as a list, of the replacements too. Arrays are changed in place.
    ``records`` are those of the batch as it becomes.
    """
    if isinstance(value, np.ndarray):
        ones = {number: one for number, one in replaced.items() if isinstance(one, np.ndarray)}
        return _amend_array(field, value, ones, dropped, records)
    assert isinstance(value, list), "joined values come as a list"
    values = []
    for number, one in enumerate(value):
        if number not in dropped:
            made = replaced.get(number)
            values.append(one if made is None else made[0])  # type: ignore[index]
    return collate_field(field, values, records, None) if joined(field) else values


def _amend_array(
    field: FieldPlan,
    array: npt.NDArray[Any],
    replaced: Mapping[int, npt.NDArray[Any]],
    dropped: Collection[int],
    records: npt.NDArray[Any],
) -> BatchValue:
    if replaced and len(replaced) == len(array):
        # Nothing that was made tells the size of images.
        return collate_field(field, _samples(field, [replaced[n] for n in range(len(array))]), records, None)
    for number, one in replaced.items():
        if one.shape[1:] != array.shape[1:]:
            first = next(n for n in range(len(array)) if n not in replaced)
            raise unequal(field.name, records, first, number, array[first], one[0])
        array[number] = one[0]
    kept = [number for number in range(len(array)) if number not in dropped]
    for place, number in enumerate(kept):
        if place != number:
            array[place] = array[number]
    return array[: len(kept)]


def _samples(field: FieldPlan, batches: Sequence[npt.NDArray[Any]]) -> list[Any]:
    values = [batch[0] for batch in batches]
    if isinstance(field.field, Image) and output_spec(field.operations).layout == "channels_last":
        return [value.transpose(1, 2, 0) for value in values]  # as operations make them
    return values
