"""Batches copied ahead: what moves, in which order streams and events are used, and what is held how long."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fastload.errors import UsageError
from fastload.staging import AcceleratorStreams, Copier, JaggedTensor, find_device, mapped, tensors_of

CPU = torch.device("cpu")
accelerated = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator")
DEVICES = ["cpu", pytest.param("cuda", marks=accelerated)]


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Sample:
    image: Any
    name: str
    more: Any = dataclasses.field(default=None, init=False)


class Graph:
    """An object of the user's that moves itself."""

    def __init__(self, nodes: torch.Tensor) -> None:
        self.nodes = nodes
        self.non_blocking: bool | None = None

    def to(self, device: torch.device, non_blocking: bool = False) -> Graph:
        moved = Graph(self.nodes.to(device, non_blocking=non_blocking))
        moved.non_blocking = non_blocking
        return moved


class InPlace:
    """One that knows no non_blocking, moves in place and returns nothing."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: torch.device) -> None:
        self.values = self.values.to(device)


class Keyed(dict[str, Any]):
    extra = "kept"


def nested() -> dict[str, Any]:
    keyed = Keyed(a=torch.arange(3))
    keyed.extra = "set"
    return {
        "image": torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2),
        "list": [torch.ones(n) for n in range(3)],
        "tuple": (torch.tensor(1), "text", None, b"bytes", 3.5, range(3)),
        "pair": Pair(torch.arange(2), [torch.arange(1)]),
        "jagged": JaggedTensor(torch.arange(5), torch.tensor([0, 2, 5])),
        "keyed": keyed,
        "default": collections.defaultdict(list, {"x": torch.tensor(7)}),
        "read-only": MappingProxyType({"x": torch.tensor(8)}),
        "deque": collections.deque([torch.tensor(9)]),
        "sample": Sample(torch.zeros(2), "one"),
        "packed": pack_sequence([torch.arange(3.0), torch.arange(2.0)]),
        "graph": Graph(torch.arange(4)),
        "array": np.arange(3),
        "sparse": torch.eye(3).to_sparse(),
        "empty": {},
    }


@pytest.mark.parametrize("name", DEVICES)
def test_everything_arrives_in_containers_of_its_type(name: str) -> None:
    device = find_device(name)
    copier, source = Copier(device), nested()
    batch = copier.take(copier.submit(source))
    copier.close()
    assert [type(value) for value in batch.values()][:-5] == [type(value) for value in source.values()][:-5]
    assert torch.equal(batch["image"].cpu(), source["image"])
    assert [len(each) for each in batch["list"]] == [0, 1, 2]
    assert batch["tuple"][1:] == ("text", None, b"bytes", 3.5, range(3))
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].second[0].device.type == name
    assert isinstance(batch["jagged"], JaggedTensor)
    assert batch["keyed"].extra == "set"
    assert batch["default"].default_factory is list
    assert batch["read-only"]["x"].item() == 8
    assert isinstance(batch["sample"], Sample)
    assert batch["sample"].name == "one"
    assert isinstance(batch["packed"], PackedSequence)
    assert batch["packed"].data.device.type == name
    assert batch["graph"].non_blocking is (name != "cpu")
    assert batch["array"] is source["array"]
    assert torch.equal(batch["sparse"].to_dense().cpu(), torch.eye(3))
    moved = list(tensors_of({key: value for key, value in batch.items() if key != "packed"}))
    assert {tensor.device.type for tensor in moved} == {name}


def test_what_moves_itself_in_place() -> None:
    one = InPlace(torch.arange(2))
    copier = Copier(CPU)
    assert copier.take(copier.submit([one]))[0] is one


def test_nothing_of_the_source_changes() -> None:
    source = nested()
    before = {key: id(value) for key, value in source.items()}
    mapped(source, lambda leaf: "other")
    assert {key: id(value) for key, value in source.items()} == before
    assert all(isinstance(each, torch.Tensor) for each in source["list"])


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.floats(), st.binary(max_size=3))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Sample, inner, st.just("name")),
        st.builds(collections.deque, st.lists(inner, max_size=2)),
    ),
    max_leaves=12,
)


@given(NESTED)
def test_any_nesting_is_kept_and_each_leaf_is_visited_once(batch: Any) -> None:
    seen: list[Any] = []

    def wrap(leaf: Any) -> Any:
        seen.append(leaf)
        return Kept(leaf)

    wrapped = mapped(batch, wrap)
    again = mapped(wrapped, lambda leaf: leaf.value)
    assert repr(again) == repr(batch)
    assert len(seen) == len(list(_leaves(batch)))


@dataclasses.dataclass
class Kept:
    """A leaf: whatever has ``to`` is one."""

    value: Any

    def to(self, device: Any) -> Any:
        raise NotImplementedError


def _leaves(batch: Any) -> Iterator[Any]:
    if isinstance(batch, (list, tuple, collections.deque)):
        for each in batch:
            yield from _leaves(each)
    elif isinstance(batch, dict):
        yield from _leaves(list(batch.values()))
    elif isinstance(batch, Sample):
        yield from _leaves([batch.image, batch.name, batch.more])
    else:
        yield batch


def test_containers_that_cannot_be_rebuilt_become_plain_ones() -> None:
    class Odd(dict[str, Any]):
        def __copy__(self) -> Odd:
            raise TypeError("no copies")

    assert mapped([Odd(a=1)], lambda leaf: leaf + 1) == [{"a": 2}]


def test_the_tensors_of_objects_are_found() -> None:
    class Slotted:
        __slots__ = ("x",)

        def __init__(self) -> None:
            self.x = [torch.tensor(1), {"y": torch.tensor(2)}]

    holder = Graph(torch.tensor(3))
    holder.loop = holder  # type: ignore[attr-defined]
    found = sorted(tensor.item() for tensor in tensors_of([Slotted(), holder, "text", Sample(None, "x")]))
    assert found == [1, 2, 3]


def test_the_memory_of_sparse_and_nested_tensors_is_inside_them() -> None:
    for tensor in (torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.eye(3).to_sparse_csc()):
        assert all(part.layout is torch.strided for part in tensors_of(tensor))
        assert len(list(tensors_of(tensor))) >= 2
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert 5 in [part.numel() for part in tensors_of(jagged)]


# --- the order of calls ------------------------------------------------------------------------------------


class Recorded:
    """An event that is over when the test says so."""

    def __init__(self) -> None:
        self.over = False

    def query(self) -> bool:
        return self.over

    def synchronize(self) -> None:
        self.over = True


class Recording:
    """Streams that write down what is asked of them; copies run at once, in host memory."""

    asynchronous = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls: list[Any] = []
        self.events: list[Recorded] = []
        self.stream = "consumer"

    def guard(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def side(self) -> Any:
        self.calls.append("side")
        return "side"

    def current(self) -> Any:
        return self.stream

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def record(self, stream: Any) -> Any:
        self.calls.append(("record", stream))
        self.events.append(Recorded())
        return self.events[-1]

    def wait(self, stream: Any, event: Any) -> None:
        self.calls.append(("wait", stream, self.events.index(event)))

    def keep(self, tensor: Any, stream: Any) -> None:
        self.calls.append(("keep", stream))

    def pin(self, leaf: Any) -> Any:
        self.calls.append(("pin", self.stream))
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def recording() -> tuple[Copier, Recording]:
    streams = Recording(CPU)
    return Copier(CPU, lambda device: streams), streams


def test_the_consumers_stream_waits_for_the_copy_and_keeps_its_memory() -> None:
    copier, streams = recording()
    assert not streams.calls, "nothing is touched before the first batch"
    copy = copier.submit({"x": torch.arange(3), "text": "t"}, lambda batch: (streams.stream, batch))
    assert streams.calls == ["side", ("pin", "consumer"), ("pin", "consumer"), ("record", "side")]
    streams.calls.clear()
    streams.stream = "another"
    where, batch = copier.take(copy)
    assert where == "side", "what is to be done to the copy is queued behind it"
    assert batch["text"] == "t"
    assert streams.calls == [("wait", "another", 0), ("keep", "another")]


def test_tensors_inside_of_objects_are_kept_too() -> None:
    copier, streams = recording()

    class Own(Graph):
        def record_stream(self, stream: Any) -> None: ...

        def to(self, device: torch.device, non_blocking: bool = False) -> Own:
            return self

    batch = [Graph(torch.arange(2)), pack_sequence([torch.arange(2.0)]), Own(torch.arange(3))]
    copier.take(copier.submit(batch))
    kept = [call for call in streams.calls if call[0] == "keep"]
    assert len(kept) == 1 + 2 + 1, "a tensor, data and batch_sizes, and the object that has record_stream"


def test_sources_are_held_until_their_copies_are_over() -> None:
    copier, streams = recording()
    pinned: list[weakref.ref[torch.Tensor]] = []
    original = streams.pin

    def pin(leaf: Any) -> Any:
        made = original(leaf)
        pinned.append(weakref.ref(made))
        return made

    streams.pin = pin  # type: ignore[method-assign]
    for _ in range(3):
        copier.take(copier.submit({"x": torch.arange(4) + 1}, lambda batch: {"x": batch["x"] + 1}))
    gc.collect()
    assert [ref() is not None for ref in pinned] == [True, True, True]
    streams.events[0].over = streams.events[1].over = True
    copier.take(copier.submit({"x": torch.arange(4)}, lambda batch: {"x": batch["x"] + 1}))
    gc.collect()
    assert [ref() is not None for ref in pinned] == [False, False, True, True]
    copier.close()
    assert all(event.over for event in streams.events)
    gc.collect()
    assert [ref() is not None for ref in pinned] == [False] * 4


def test_copies_follow_the_datasets_own_work_on_the_device() -> None:
    meta = torch.device("meta")
    streams = Recording(meta)
    Copier(meta, lambda device: streams).submit({"x": torch.empty(3, device=meta), "y": torch.ones(2)})
    assert streams.calls[-3:] == [("record", "consumer"), ("wait", "side", 0), ("record", "side")]


# --- which device ------------------------------------------------------------------------------------------


def test_devices_that_are_not_here_are_said() -> None:
    assert find_device(torch.device("cpu:0")) == CPU
    with pytest.raises(UsageError, match="'gpu', which torch does not know: there is cpu"):
        find_device("gpu")
    with pytest.raises(UsageError, match="which torch does not know"):
        find_device(object())
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="device 'cuda:1' is not available: there is cpu"):
            find_device("cuda:1")
    with pytest.raises(UsageError, match=r"device '(cuda|xpu):99' (does not exist|is not available)"):
        find_device("cuda:99")
    with pytest.raises(UsageError, match="'meta' is not available"):
        find_device("meta")


def test_what_streams_of_an_accelerator_need_is_looked_for() -> None:
    assert not AcceleratorStreams.known(CPU)
    assert AcceleratorStreams.known(torch.device("cuda")), "torch.cuda has it also where there is none"
    assert not AcceleratorStreams.known(torch.device("mps"))


@accelerated
def test_a_source_may_be_dropped_behind_a_busy_stream() -> None:
    copier = Copier(find_device("cuda"))
    for number in range(20):
        torch.cuda._sleep(10_000_000)
        copy = copier.submit(torch.full((1 << 20,), number, dtype=torch.uint8))
        torch.full((1 << 20,), 255, dtype=torch.uint8).pin_memory()
        assert bool((copier.take(copy) == number).all())
