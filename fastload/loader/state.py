"""What a DataLoader's state is: an OrderState, and beside it what a user's own sampler needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastload.errors import StateError
from fastload.loader.course import SampledPlace
from fastload.loader.layout import Layout
from fastload.sampling import OrderState
from fastload.sampling.cursor import Place
from fastload.transforms.random import DRAWS_VERSION

__all__ = ["read", "state_of", "written"]

_HINT = "give the loader the sampler that it had when the state was saved"


def state_of(layout: Layout | None, count: int, fingerprint: str, seed: int, place: Place) -> OrderState:
    """Return a loader's state at ``place``; without a layout the indices of a sampler are followed."""
    window = None if layout is None else layout.window
    return OrderState(
        epoch=place.epoch,
        position=place.position,
        seed=seed,
        draws=DRAWS_VERSION,
        shuffle=layout is not None and layout.sampler.shuffle,
        window=None if window is None else (window.streams, window.block),
        count=count,
        fingerprint=fingerprint,
    )


def written(state: OrderState, place: Place, *, followed: bool) -> dict[str, Any]:
    """Return the dict that state_dict() gives; ``followed`` says that a sampler's indices are."""
    values: dict[str, Any] = dict(state.to_dict())
    if followed:
        sampled = place if isinstance(place, SampledPlace) else SampledPlace()
        values["sampler"] = {"complete": sampled.complete, "state": sampled.sampler}
    return values


def read(values: Mapping[str, Any], *, followed: bool) -> tuple[OrderState, Place]:
    """Return what :func:`written` wrote. Raises StateError for anything else, or another kind of order."""
    state = OrderState.from_dict(values)
    sampler = values.get("sampler")
    if sampler is None:
        if followed:
            raise StateError("the state is of fastload's own order, not of a sampler's", hint=_HINT)
        return state, Place(state.epoch, state.position)
    if not followed:
        raise StateError("the state is of the order of a sampler, not of fastload's own", hint=_HINT)
    if not isinstance(sampler, Mapping) or not {"complete", "state"} <= sampler.keys():
        raise StateError(
            f"'sampler' of the state is {sampler!r}", hint="give what state_dict() gave, unchanged"
        )
    return state, SampledPlace(state.epoch, state.position, bool(sampler["complete"]), sampler["state"])
