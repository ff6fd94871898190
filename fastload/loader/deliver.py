"""From what an engine made to the batch that the user gets, in the user's thread."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils import data
from torch.utils.data._utils.pin_memory import pin_memory

from fastload.dataset import Dataset
from fastload.engine import Look, Plan
from fastload.errors import EngineError
from fastload.staging import to_torch

__all__ = ["Deliver", "delivery"]

Deliver = Callable[..., Any]
"""Called with seed and epoch, and then, for each batch, with what the engine made, the batch's memory, and
the position of its first sample."""


def delivery(
    dataset: Dataset, collate: Callable[[Any], Any], pin: bool, *, batched: bool
) -> tuple[bool, Deliver]:
    """Return whether the engine is to make single samples, and what becomes of what it makes."""
    if not batched:
        torchs = collate is data.default_convert
        return True, functools.partial(_deliver_sample, dataset, None if torchs else collate, pin)
    if collate is not data.default_collate:
        return True, functools.partial(_deliver_collated, dataset, collate, pin)
    if dataset.look.maps:
        return False, functools.partial(_deliver_mapped, dataset.look, pin)
    return False, functools.partial(_deliver_batch, dataset.look, dataset.plan(), pin)


def _deliver_batch(
    look: Look, plan: Plan, pin: bool, seed: int, epoch: int, made: Any, memory: Any, position: int
) -> Any:
    """Return a batch that the engine made whole."""
    if look.format == "torch":
        made = to_torch(made, plan, memory)
    batch = look.columns_of(made)
    if not look.batch_maps:
        return look.shape(batch)
    batch = look.shape(look.map_batch(batch, seed, epoch, position))
    return pin_memory(batch) if pin else batch  # type: ignore[no-untyped-call]


def _deliver_mapped(
    look: Look, pin: bool, seed: int, epoch: int, made: Any, memory: Any, position: int
) -> Any:
    """Return a batch of samples that the dataset's functions made."""
    samples = made[Plan.SAMPLES]
    _check_some(samples)
    batch = _stack(samples) if look.format == "numpy" else data.default_collate(samples)
    batch = look.shape(look.map_batch(batch, seed, epoch, position))
    return pin_memory(batch) if pin else batch  # type: ignore[no-untyped-call]


def _deliver_collated(
    dataset: Dataset,
    collate: Callable[[list[Any]], Any],
    pin: bool,
    seed: int,
    epoch: int,
    made: Any,
    memory: Any,
    position: int,
) -> Any:
    """Return what the user's ``collate`` makes of single samples."""
    samples = [dataset.unbatch(values, 1)[0] for values in made]
    _check_some(samples)
    batch = dataset.look.map_batch(collate(samples), seed, epoch, position)
    return pin_memory(batch) if pin else batch  # type: ignore[no-untyped-call]


def _deliver_sample(
    dataset: Dataset,
    convert: Callable[[Any], Any] | None,
    pin: bool,
    seed: int,
    epoch: int,
    made: Any,
    memory: Any,
    position: int,
) -> Any:
    """Return a single sample."""
    (sample,) = dataset.unbatch(made[0], 1)
    sample = sample if convert is None else convert(sample)
    return pin_memory(sample) if pin else sample  # type: ignore[no-untyped-call]


def _check_some(samples: Sequence[Any]) -> None:
    if not samples:
        raise EngineError(
            "no record of a batch could be made, and samples that are collated cannot be none",
            hint="use on_error='substitute'",
        )


def _stack(samples: Sequence[Any]) -> Any:
    """Return samples as one batch of NumPy arrays: default_collate without torch."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {name: _stack([sample[name] for sample in samples]) for name in first}
    if isinstance(first, tuple):
        return tuple(_stack(column) for column in zip(*samples, strict=True))
    if isinstance(first, (np.ndarray, np.generic, bool, int, float)):
        return np.stack([np.asarray(sample) for sample in samples])
    return list(samples)
