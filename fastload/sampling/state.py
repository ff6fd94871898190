"""Where an epoch's order stands: a few integers, from which any rank of any topology goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastload.errors import StateError
from fastload.sampling.permutation import ORDER_VERSION

__all__ = ["STATE_VERSION", "OrderState"]

STATE_VERSION = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class OrderState:
    """A position in an epoch, and what the order there depends on. Equal on all ranks.

    ``position`` counts samples over all ranks that were delivered, pads not; ``order`` and ``draws`` are
    the versions of the order and of the random draws; ``window`` is (streams, block) of a Window;
    ``count`` is the epoch's; ``fingerprint`` names the dataset.

    >>> state = OrderState(epoch=2, position=512, seed=7, draws=1, shuffle=True, count=1000, fingerprint="ab")
    >>> OrderState.from_dict(state.to_dict()) == state
    True
    """

    epoch: int
    position: int
    seed: int
    draws: int
    shuffle: bool
    count: int
    fingerprint: str
    window: tuple[int, int] | None = None
    order: int = ORDER_VERSION
    version: int = STATE_VERSION

    def to_dict(self) -> dict[str, int | str | bool | list[int] | None]:
        """Return it as JSON holds it; below 1 KB."""
        return {
            "version": self.version,
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "order": self.order,
            "draws": self.draws,
            "shuffle": self.shuffle,
            "window": None if self.window is None else list(self.window),
            "count": self.count,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> OrderState:
        """Return the state that :meth:`to_dict` gave. Raises StateError for anything else."""
        if not isinstance(value, Mapping):
            raise StateError(
                f"a state is a dict, not {type(value).__name__}", hint="give what state_dict() gave"
            )
        version = value.get("version")
        if isinstance(version, int) and version > STATE_VERSION:
            raise StateError(
                f"this state has version {version}, and this release of fastload knows {STATE_VERSION}",
                hint="use the release that wrote it, or a newer one",
            )
        for name, kinds in _KINDS.items():
            if name not in value:
                raise StateError(f"the state has no {name!r}", hint="give what state_dict() gave, unchanged")
            item = value[name]
            if not _is_kind(item, kinds) or (isinstance(item, int) and item < 0):
                raise StateError(
                    f"{name!r} of the state is {item!r}", hint="give what state_dict() gave, unchanged"
                )
        window = value["window"]
        known = {name: value[name] for name in _KINDS if name != "window"}
        return cls(window=None if window is None else (int(window[0]), int(window[1])), **known)

    def check_same(self, other: OrderState) -> None:
        """Raise StateError, naming every difference, unless both are places in one and the same order.

        ``self`` is what is at hand, ``other`` what was saved. Epoch and position may differ.
        """
        differences = [
            f"{said} {_text(getattr(other, name))} in the state, {_text(getattr(self, name))} here"
            for name, said in _COMPARED.items()
            if getattr(self, name) != getattr(other, name)
        ]
        if differences:
            raise StateError(
                f"the state is of another order: {'; '.join(differences)}",
                hint="open the same dataset with the same arguments, or begin anew without the state",
            )


def _is_window(item: Any) -> bool:
    two = isinstance(item, (list, tuple)) and [type(part) for part in item] == [int, int]
    return two and min(item) > 0


def _is_kind(item: Any, kind: type | None) -> bool:
    return item is None or _is_window(item) if kind is None else type(item) is kind


_KINDS: dict[str, type | None] = {
    "version": int,
    "epoch": int,
    "position": int,
    "seed": int,
    "order": int,
    "draws": int,
    "shuffle": bool,
    "window": None,
    "count": int,
    "fingerprint": str,
}

_COMPARED = {
    "fingerprint": "the dataset's fingerprint is",
    "count": "its records are",
    "seed": "the seed is",
    "shuffle": "shuffle is",
    "window": "the shuffle window (streams, records a block) is",
    "order": "the version of the order is",
    "draws": "the version of the random draws is",
}


def _text(value: Any) -> str:
    return "none" if value is None else str(value)
