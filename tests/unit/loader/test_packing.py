"""How a worker packs a batch into a slab, and what its receiver makes of it: in one process."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import data
from torch.utils.data._utils import collate

from fastload.loader import mapping
from fastload.loader.packing import SlabCollate
from fastload.loader.slabs import Channel, Pen, Receiver, receiver_of

from .slabs import LARGE, same

pytestmark = pytest.mark.skipif(not mapping.available(), reason="needs memfd_create")


@pytest.fixture(scope="module")
def channel() -> Iterator[Channel]:
    channel = Channel(1)
    receiver = Receiver(channel, 2)
    channel._pen = Pen(channel, 0)
    table = dict(collate.default_collate_fn_map)
    yield channel
    collate.default_collate_fn_map.update(table)  # as it is outside worker processes
    receiver.close()


def sent(channel: Channel, collate: Callable[[Any], Any], samples: Any = None) -> Any:
    """Return what the parent makes of what a worker collates."""
    function, arguments = SlabCollate(channel, collate)(samples).__reduce__()
    return function(*arguments).unpack()


Point = collections.namedtuple("Point", ["x", "y"])


def _tensors() -> st.SearchStrategy[Any]:
    dtypes = [
        torch.uint8,
        torch.bool,
        torch.int16,
        torch.int64,
        torch.float32,
        torch.bfloat16,
        torch.complex64,
    ]
    return st.builds(
        lambda shape, dtype, seed: (torch.arange(int(np.prod(shape))).reshape(shape) + seed).to(dtype),
        st.lists(st.integers(0, 40), max_size=3),
        st.sampled_from(dtypes),
        st.integers(0, 9),
    )


def _arrays() -> st.SearchStrategy[Any]:
    return st.builds(
        lambda shape, dtype, seed: (np.arange(int(np.prod(shape))).reshape(shape) + seed).astype(dtype),
        st.lists(st.integers(0, 40), max_size=3),
        st.sampled_from(["u1", "?", "i2", "i8", "f4", "f8", ">f4", "u2"]),
        st.integers(0, 9),
    )


def _samples() -> st.SearchStrategy[Any]:
    numbers = st.one_of(
        st.integers(-(2**70), 2**70), st.integers(0, 9), st.floats(allow_nan=False), st.booleans()
    )
    leaves = st.one_of(_tensors(), _arrays(), numbers, st.text(max_size=3), st.binary(max_size=3))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=2),
            st.tuples(inner, inner),
            st.dictionaries(st.text(max_size=2), inner, min_size=1, max_size=2),
            st.builds(Point, inner, inner),
        ),
        max_leaves=4,
    )


@settings(max_examples=150, deadline=None)
@given(batch=st.lists(_samples(), min_size=1, max_size=3), repeat=st.integers(1, 30))
def test_any_batch_is_what_default_collate_makes(channel: Channel, batch: list[Any], repeat: int) -> None:
    for samples in (batch, batch[:1] * repeat):
        try:
            expected = data.default_collate(samples)
        except Exception as error:
            # torch's text for samples of unequal size differs between its workers and the caller.
            with pytest.raises(type(error)):
                sent(channel, data.default_collate, samples)
        else:
            same(sent(channel, data.default_collate, samples), expected)


@settings(max_examples=50, deadline=None)
@given(batch=_samples())
def test_any_custom_batch_is_what_it_was(channel: Channel, batch: Any) -> None:
    same(sent(channel, lambda _: batch), batch)


@dataclasses.dataclass
class Custom:
    image: torch.Tensor
    names: list[str]
    array: Any


def test_strides_subclasses_and_objects_arrive_as_they_were(channel: Channel) -> None:
    image = torch.arange(2 * 3 * 80 * 90, dtype=torch.float32).reshape(2, 3, 80, 90)
    batch = {
        "last": image.contiguous(memory_format=torch.channels_last),
        "expanded": torch.arange(90.0).expand(400, 90),
        "columns": image[..., ::2],
        "scalar": torch.tensor(3.5),
        "empty": torch.empty_strided((0, 3), (1, 7)),
        "one": torch.arange(9.0)[::3].reshape(3, 1).expand(3, 1).T,
        "one by one": torch.ones(3, 5)[1:2, 2:3],
        "long": torch.arange(2.0 * LARGE).reshape(LARGE, 2)[:, :1].T,
        "custom": Custom(image, ["a"], np.asfortranarray(image[0, 0].numpy())),
        "objects": np.array([{"x": 1}, None]),
        "records": np.zeros(9000, [("a", "i4"), ("b", "f8")]),
        "masked": np.ma.masked_array(np.arange(LARGE), mask=np.arange(LARGE) % 2 == 0),
        "conjugate": torch.full((LARGE,), 1 + 2j).conj(),
        "sparse": torch.eye(200).to_sparse(),
        "text": "x" * 100_000,
    }
    got = sent(channel, lambda _: batch)
    masked, expected = got.pop("masked"), batch.pop("masked")
    np.testing.assert_array_equal(masked.filled(-1), expected.filled(-1))
    assert torch.equal(got.pop("sparse").to_dense(), batch.pop("sparse").to_dense())
    same(got, batch)
    assert got["custom"].image.data_ptr() % 64 == 0
    assert got["custom"].image.untyped_storage().nbytes() == image.nbytes
    got["custom"].image += 1  # it is writable


def test_what_lies_in_the_slab_already_is_not_copied(channel: Channel) -> None:
    made: list[int] = []

    def collate(samples: Any) -> Any:
        batch = data.default_collate(samples)
        made.append(channel.pen.find(batch["x"].data_ptr()))
        return batch["x"], batch["y"]

    samples = [
        {"x": torch.full((LARGE,), i, dtype=torch.uint8), "y": np.full((3, LARGE), i)} for i in range(3)
    ]
    got = sent(channel, collate, samples)
    assert made == [0]
    same(got, tuple(data.default_collate(samples).values()))


def test_shared_memory_of_the_users_stays_shared(channel: Channel) -> None:
    shared = torch.zeros(LARGE).share_memory_()
    got = sent(channel, lambda _: [shared])
    shared[7] = 5
    assert got[0][7] == 5


def test_a_slab_is_used_again_only_when_nobody_has_any_of_it(channel: Channel) -> None:
    def collate(value: int) -> Any:
        return torch.full((LARGE,), value, dtype=torch.uint8)

    kept = []
    addresses = set()
    for value in range(10):
        batch = sent(channel, collate, value)
        addresses.add(batch.data_ptr())
        if value % 3 == 0:
            kept.append(batch[value:])
    assert [int(batch.sum()) for batch in kept] == [value * (LARGE - value) for value in range(0, 10, 3)]
    assert len(addresses) < 10


def test_what_a_collate_function_keeps_is_not_overwritten(channel: Channel) -> None:
    kept: list[torch.Tensor] = []

    def collate(samples: Any) -> Any:
        kept.append(data.default_collate(samples))
        return kept[-1]

    counts = receiver_of(channel.token).counts
    before = counts["torch_batches"]
    for value in range(8):
        assert int(sent(channel, collate, [torch.full((LARGE,), value)])[0, 0]) == value
    assert [int(batch[0, 0]) for batch in kept] == list(range(8))
    assert counts["torch_batches"] - before == 8 - 5  # slabs: two ahead, one in the making, two held


def test_a_batch_that_is_held_keeps_its_own_slab_only() -> None:
    channel = Channel(1)
    receiver = Receiver(channel, 2)
    channel._pen = Pen(channel, 0)
    batches = [sent(channel, lambda value: torch.full((50 * LARGE,), value), value) for value in range(2)]
    message = SlabCollate(channel, lambda _: torch.zeros(50 * LARGE))(None)
    file = os.dup(channel.file)
    whole = mapping.taken(file)
    del batches[0], message
    receiver.close()
    deadline = time.monotonic() + 5  # it is freed by a thread
    while mapping.taken(file) > whole / 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 8 * 50 * LARGE <= mapping.taken(file) < whole / 2
    assert (batches[0] == 1).all()
    os.close(file)
