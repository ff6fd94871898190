"""What a DataLoader's state is: an OrderState, and beside it what a user's own sampler needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fastload.errors import StateError
from fastload.loader.course import SampledPlace, Stream
from fastload.loader.layout import Layout
from fastload.sampling import OrderState
from fastload.sampling.cursor import Place
from fastload.transforms.random import DRAWS_VERSION

__all__ = ["Kind", "check_workers", "read", "state_of", "written"]

Kind = Literal["order", "sampler", "stream"]
"""What a position counts in: fastload's order, what a sampler gives, or what an iterable dataset does."""

_SAID: dict[Kind, str] = {
    "order": "fastload's own order",
    "sampler": "a sampler's",
    "stream": "an iterable dataset",
}
_HINT = "give the loader the dataset and sampler that it had when the state was saved"


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


def written(state: OrderState, place: Place, kind: Kind, told: Any) -> dict[str, Any]:
    """Return the dict that state_dict() gives; ``told`` is torch's DistributedSampler, if there is one."""
    values: dict[str, Any] = dict(state.to_dict())
    if kind == "order":
        return values
    sampled = place if isinstance(place, SampledPlace) else SampledPlace()
    if kind == "sampler":
        values["sampler"] = {"complete": sampled.complete, "state": sampled.sampler}
        extra = {"generator": sampled.generator, "epoch": None if told is None else int(told.epoch)}
        values["sampler"].update((name, value) for name, value in extra.items() if value is not None)
    else:
        stream = sampled.stream or Stream(0)
        states = {str(worker): kept for worker, kept in sorted(stream.states.items())}
        values["stream"] = {
            "complete": sampled.complete,
            "workers": stream.workers,
            "next": stream.next,
            "states": states,
        }
    return values


def read(values: Mapping[str, Any], kind: Kind) -> tuple[OrderState, Place]:
    """Return what :func:`written` wrote. Raises StateError for anything else, or another kind of order."""
    state = OrderState.from_dict(values)
    given: Kind = "sampler" if values.get("sampler") else "stream" if values.get("stream") else "order"
    if given != kind:
        raise StateError(f"the state is of {_SAID[given]}, not of {_SAID[kind]}", hint=_HINT)
    if kind == "order":
        return state, Place(state.epoch, state.position)
    more = values[kind]
    needed = {"complete", "state"} if kind == "sampler" else {"complete", "workers", "next", "states"}
    if not isinstance(more, Mapping) or not needed <= more.keys():
        raise StateError(f"{kind!r} of the state is {more!r}", hint="give what state_dict() gave, unchanged")
    place = SampledPlace(state.epoch, state.position, bool(more["complete"]))
    if kind == "sampler":
        place.sampler, place.generator = more["state"], more.get("generator")
    else:
        states = {int(worker): kept for worker, kept in more["states"].items()}
        place.stream = Stream(int(more["workers"]), int(more["next"]), states)
    return state, place


def check_workers(place: Place, workers: int) -> None:
    """Raise StateError where the workers of an iterable dataset were not as many as here."""
    stream = place.stream if isinstance(place, SampledPlace) else None
    if stream is not None and place.position and stream.workers != workers:
        raise StateError(
            f"the state is of {stream.workers} workers' copies of an iterable dataset, here are {workers}",
            hint=f"give num_workers={stream.workers}, or begin anew without the state",
        )
