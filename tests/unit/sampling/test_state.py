from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from fastload.errors import StateError
from fastload.sampling import ORDER_VERSION, OrderState

STATE = OrderState(
    epoch=3, position=4096, seed=2**64 - 1, draws=1, shuffle=True, window=(64, 1000), count=10**10,
    fingerprint="0123456789abcdef0123456789abcdef",
)  # fmt: skip


def test_round_trip_through_json() -> None:
    text = json.dumps(STATE.to_dict())
    assert len(text) < 1000
    assert OrderState.from_dict(json.loads(text)) == STATE
    plain = dataclasses.replace(STATE, window=None)
    assert OrderState.from_dict(plain.to_dict()) == plain
    assert STATE.order == ORDER_VERSION


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", "3"),
        ("epoch", -1),
        ("position", 1.0),
        ("seed", True),
        ("shuffle", 1),
        ("window", [1]),
        ("window", [0, 5]),
        ("window", "64"),
        ("fingerprint", None),
    ],
)
def test_malformed(name: str, value: Any) -> None:
    with pytest.raises(StateError, match=f"{name!r} of the state is"):
        OrderState.from_dict({**STATE.to_dict(), name: value})


def test_what_is_no_state() -> None:
    with pytest.raises(StateError, match="not list"):
        OrderState.from_dict([])  # type: ignore[arg-type]
    with pytest.raises(StateError, match="no 'version'"):
        OrderState.from_dict({})
    with pytest.raises(StateError, match=r"version 2.*knows 1"):
        OrderState.from_dict({**STATE.to_dict(), "version": 2})


def test_differences_are_all_named() -> None:
    STATE.check_same(dataclasses.replace(STATE, epoch=0, position=0))
    other = dataclasses.replace(STATE, seed=5, window=None, fingerprint="ffff", order=1)
    with pytest.raises(StateError) as caught:
        STATE.check_same(other)
    text = str(caught.value)
    for part in (
        "fingerprint is ffff in the state",
        "seed is 5 in the state",
        "none in the state, (64, 1000)",
    ):
        assert part in text
    assert "version of the order is 1 in the state, 2 here" in text
    assert "shuffle is" not in text
