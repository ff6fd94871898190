"""Python datasets resumed anywhere give what an uninterrupted run gives, augmentation included."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data

import fastload


class Augmented(data.Dataset[Any]):
    """Each sample is its index and random numbers of the three kinds, how many depends on the sample."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        drawn = sum(random.random() for _ in range(index % 4))
        return index, drawn, float(np.random.rand()), float(torch.rand(1))


def _mixed(samples: list[Any]) -> Any:
    """Collate with a random number, as mixing of samples does."""
    return samples, float(torch.rand(1)), random.random()


def _loader(count: int, **arguments: Any) -> fastload.DataLoader[Any]:
    return fastload.DataLoader(Augmented(count), collate_fn=_mixed, seed=11, seed_by="sample", **arguments)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_resumed_anywhere_it_is_the_uninterrupted_run(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40), label="count")
    arguments = {
        "batch_size": data.draw(st.integers(1, 9), label="batch"),
        "shuffle": data.draw(st.booleans(), label="shuffle"),
        "drop_last": data.draw(st.booleans(), label="drop_last"),
    }
    # Processes cost a tenth of a second each time: few examples have them.
    workers = st.sampled_from([0, 0, 0, 2])
    alone = _loader(count, **arguments)
    epochs = [list(alone) for _ in range(3)]
    assert len(epochs[0]) == len(alone)

    epoch = data.draw(st.integers(0, 1), label="epoch")
    got: list[Any] = []
    state: dict[str, Any] | None = None
    left = len(epochs[epoch])
    for _ in range(data.draw(st.integers(1, 2), label="interruptions")):
        loader = _loader(count, num_workers=data.draw(workers, label="workers"), **arguments)
        if state is not None:
            loader.load_state_dict(state)
        loader.set_epoch(epoch)
        taken = data.draw(st.integers(0, left), label="taken")
        iterator = iter(loader)
        got += [next(iterator) for _ in range(taken)]
        left -= taken
        state = json.loads(json.dumps(loader.state_dict()))
    assert state is not None
    last = _loader(count, num_workers=data.draw(workers, label="workers"), **arguments)
    last.load_state_dict(state)
    last.set_epoch(epoch)
    got += list(last)
    assert got == epochs[epoch]
    assert list(last) == epochs[epoch + 1]
    assert last.stats()["engine"] == "torch"
