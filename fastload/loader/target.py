"""Where a loader's batches go: to which device, in which array type, and what is done to them there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch.utils import data

from fastload.dataset import Dataset
from fastload.engine import Trailing, without_trailing
from fastload.errors import UsageError
from fastload.loader.handover import HandOver
from fastload.loader.outputs import Output, check_output, converter
from fastload.staging import AcceleratorStreams, Copier, Normalise, current_at, find_device

__all__ = ["Place", "Target", "targeted"]

Place = Literal["host", "device"]


@dataclasses.dataclass(frozen=True)
class Target:
    """What ``device``, ``output`` and ``normalize_on`` came to be. ``trailing`` is left to the device."""

    device: torch.device | None = None
    output: Output | None = None
    trailing: Mapping[Any, Trailing] = dataclasses.field(default_factory=dict)

    @property
    def pins(self) -> bool:
        """Whether copies come from pinned memory."""
        return self.device is not None and AcceleratorStreams.known(self.device)

    def here(self) -> AbstractContextManager[Any]:
        """Make the device the current one, where it is told which of several it is and not the first."""
        # Not for the first: that would begin to use the device before worker processes are forked.
        return current_at(self.device if self.device is not None and self.device.index else None)

    def hand_over(self, *, ahead: bool) -> HandOver[Any] | None:
        """Return what one iterator's batches pass through, or None where they come as they are made."""
        if self.device is None:
            return None if self.output is None else HandOver(None, after=converter(self.output))
        before: Callable[[Any], Any] | None = converter("torch") if self.output is not None else None
        after = converter(self.output) if self.output not in (None, "torch") else None
        then = Normalise(self.trailing) if self.trailing else None
        return HandOver(Copier(self.device), ahead=ahead, before=before, then=then, after=after)


def targeted(
    loader: data.DataLoader[Any], native: Dataset | None, device: Any, output: Output | None, place: Place
) -> tuple[Target, Dataset | None]:
    """Return where the batches of ``loader`` go, and what of its fastload dataset the engine is to make.

    Raises UsageError for arguments that cannot be met here, or contradict each other.
    """
    found = None if device is None else find_device(device)
    check_output(output, found)
    if place not in ("host", "device"):
        raise UsageError(f"unknown normalize_on {place!r}", hint="use 'host' or 'device'")
    look = None if native is None else native.look
    if found is not None and output is None and look is not None and look.format == "numpy":
        raise UsageError(
            "a dataset with_format('numpy') gives NumPy arrays, which lie in host memory",
            hint="leave out device, or with_format('numpy'), or give output='torch'",
        )
    default = data.default_convert if loader.batch_sampler is None else data.default_collate
    seen = loader.collate_fn is not default or (look is not None and bool(look.maps or look.batch_maps))
    if place == "host":
        return Target(found, output), _shown_as(native, output, seen)
    if found is None:
        raise UsageError("normalize_on='device' needs a device", hint="give device= as well")
    if native is None or look is None:
        raise UsageError(
            f"normalize_on='device' is for fastload datasets, not a {type(loader.dataset).__name__}",
            hint="leave normalising out of the dataset, and do it to the batch",
        )
    if seen:
        raise UsageError(
            "normalize_on='device' would give collate_fn and the functions of map and map_batches images "
            "that are not normalised yet",
            hint="leave them out, or normalise on the host",
        )
    shorter, rest = without_trailing(look, native.sources[0].schema)
    names = list(look.columns)
    keys = {names.index(name) if look.tuples else name: trailing for name, trailing in rest.items()}
    return Target(found, output, keys), _shown_as(native._with(look=shorter), output, seen)


def _shown_as(native: Dataset | None, output: Output | None, seen: bool) -> Dataset | None:
    """Return ``native`` as tensors where it is converted anyway, and none of the user's functions sees it.

    NumPy arrays do not tell bfloat16 from integers, and are not made in pinned memory.
    """
    return native if native is None or output is None or seen else native.with_format("torch")
