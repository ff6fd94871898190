"""What holds whichever way samples are made: natively, by torch in the caller or in processes, in threads."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import data

import fastload
from fastload.errors import EngineError

from .ways import (
    COUNT,
    Numbers,
    Plain,
    Stream,
    Way,
    fail_at_20,
    flat,
    numbers,
    sleep_a_while,
    stop_at_20,
)

WAYS = ("native", "caller", "processes", "threads")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, numbers_path: str) -> Way:
    return Way(request.param, numbers_path)


@pytest.fixture(params=["processes", "threads"])
def workers_way(request: pytest.FixtureRequest, numbers_path: str) -> Way:
    return Way(request.param, numbers_path)


@pytest.fixture
def processes(numbers_path: str) -> Way:
    return Way("processes", numbers_path)


# --- order and batches ---------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_come_in_order(way: Way, drop_last: bool) -> None:
    loader = way.loader(8, drop_last=drop_last)
    expected = [list(range(first, min(first + 8, COUNT))) for first in range(0, COUNT, 8)]
    expected = expected[:6] if drop_last else expected
    assert numbers(loader) == expected
    assert len(loader) == len(expected)
    way.check(loader)


def test_shuffling_is_one_order_in_all_ways(way: Way) -> None:
    loader = way.loader(8, shuffle=True, seed=5)
    first, second = numbers(loader), numbers(loader)
    way.check(loader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(COUNT))
    assert first != second
    here = fastload.DataLoader(Numbers(), 8, shuffle=True, seed=5)
    assert [numbers(here), numbers(here)] == [first, second]
    assert loader.stats()["order"] == "fastload"


def test_set_epoch_names_an_order(way: Way) -> None:
    loader = way.loader(8, shuffle=True, seed=5)
    epochs = [numbers(loader) for _ in range(3)]
    loader.set_epoch(1)
    assert numbers(loader) == epochs[1]
    way.check(loader)


def test_an_epoch_named_before_the_first_batch_is_heard(way: Way) -> None:
    loader = way.loader(8, shuffle=True, seed=5)
    epochs = [numbers(loader) for _ in range(3)]
    iterator = iter(loader)
    loader.set_epoch(1)
    assert numbers(iterator) == epochs[1]
    assert numbers(loader) == epochs[2]
    way.check(loader)


def test_single_samples(way: Way) -> None:
    loader = way.loader(None, shuffle=True, seed=5)
    samples = list(loader)
    way.check(loader)
    assert len(loader) == COUNT
    assert [int(sample["x"]) for sample in samples] == flat(numbers(way.loader(8, shuffle=True, seed=5)))
    assert samples[0]["name"] == str(int(samples[0]["x"]))


def test_fields_are_collated_as_by_torch(way: Way) -> None:
    loader = way.loader(3)
    batch = next(iter(loader))
    way.check(loader)
    expected = data.default_collate([Numbers()[i] for i in range(3)])
    assert batch.keys() == expected.keys()
    assert batch["name"] == expected["name"]
    for name in ("x", "wide", "label"):
        torch.testing.assert_close(batch[name], expected[name])


def test_a_collate_fn_gets_samples(way: Way) -> None:
    loader = way.loader(4, collate_fn=lambda samples: [int(sample["x"]) for sample in samples])
    assert next(iter(loader)) == [0, 1, 2, 3]
    assert len(loader.collate_fn([])) == 0, "the attribute is what the user gave"
    way.check(loader)


def test_samplers_and_batch_samplers_are_followed(way: Way) -> None:
    loader = way.loader(2, sampler=[5, 3, 9])
    assert numbers(loader) == [[5, 3], [9]]
    assert len(loader) == 2
    assert loader.stats()["order"] == "sampler"
    way.check(loader)
    loader = way.loader(1, batch_sampler=[[4], [7, 1], [2]])
    assert numbers(loader) == [[4], [7, 1], [2]]
    way.check(loader)


def test_subsets(way: Way) -> None:
    loader = way.loader(2, dataset=data.Subset(way.dataset, [7, 8, 50]))
    assert numbers(loader) == [[7, 8], [50]]
    way.check(loader)


def test_prefetching_and_persistent_workers(way: Way) -> None:
    more: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 3, "persistent_workers": True}
    loader = way.loader(8, shuffle=True, seed=5, **({} if way.name == "caller" else more))
    with loader:
        epochs = [numbers(loader) for _ in range(3)]
        way.check(loader)
    assert len({str(epoch) for epoch in epochs}) == 3
    assert numbers(way.loader(8, shuffle=True, seed=5)) == epochs[0]


def test_several_iterators_live_at_once(way: Way) -> None:
    loader = way.loader(8)
    pairs = list(zip(loader, loader, strict=True))
    assert numbers(pair[0] for pair in pairs) == numbers(pair[1] for pair in pairs)
    way.check(loader)


def test_an_early_break_and_what_follows(way: Way) -> None:
    loader = way.loader(8, shuffle=True, seed=5)
    epochs = [numbers(loader) for _ in range(2)]
    again = way.loader(8, shuffle=True, seed=5)
    for batch in again:
        assert batch["x"].tolist() == epochs[0][0]
        break
    assert numbers(again) == epochs[1]
    way.check(again)


def test_an_ended_or_closed_iterator_stays_so(way: Way) -> None:
    loader = way.loader(8)
    iterator = iter(loader)
    assert len(list(iterator)) == 7
    assert next(iterator, None) is None
    iterator = iter(loader)
    next(iterator)
    loader.close()
    assert next(iterator, None) is None
    assert len(list(loader)) == 7
    way.check(loader)


def test_pin_memory_without_an_accelerator_warns(way: Way) -> None:
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator")
    loader = way.loader(8, pin_memory=True)
    with pytest.warns(UserWarning, match="accelerator"):
        batches = numbers(loader)
    assert batches == numbers(way.loader(8))
    way.check(loader)


def test_a_generator_makes_runs_equal(way: Way) -> None:
    runs = []
    for _ in range(2):
        loader = way.loader(8, shuffle=True, generator=torch.Generator().manual_seed(3))
        runs.append([numbers(loader), numbers(loader)])
        way.check(loader)
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


# --- failures ------------------------------------------------------------------------------------------


def test_an_error_in_a_sample_names_it(way: Way) -> None:
    way.change = fail_at_20
    loader = way.loader(8)
    iterator = iter(loader)
    assert numbers([next(iterator), next(iterator)])[1][0] == 8
    with pytest.raises(Exception, match="twenty") as caught:
        next(iterator)
    notes = " ".join(getattr(caught.value, "__notes__", []))
    assert "20" in f"{caught.value} {notes}".replace("twenty", "")
    way.check(loader)


def test_torchs_ways_say_index_batch_and_epoch(numbers_path: str) -> None:
    for name in WAYS[1:]:
        loader = Way(name, numbers_path, fail_at_20).loader(8)
        with pytest.raises(KeyError) as caught:
            list(loader)
        notes = "\n".join(getattr(caught.value, "__notes__", []))
        assert "batch 2 of this iteration (epoch 0), of indices 16, 17, 18" in notes
        if hasattr(caught.value, "add_note"):
            assert "dataset[20]" in notes + str(caught.value)


def test_after_an_error_torchs_ways_go_on_and_count_on(numbers_path: str) -> None:
    for name in WAYS[1:]:
        loader = Way(name, numbers_path, fail_at_20).loader(8)
        iterator = iter(loader)
        numbers([next(iterator), next(iterator)])
        with pytest.raises(KeyError):
            next(iterator)
        assert loader.state_dict()["position"] == 16
        assert next(iterator)["x"].tolist()[0] == 24
        assert loader.state_dict()["position"] == 32


def _fail(samples: Any) -> Any:
    raise ArithmeticError("cannot collate")


def test_an_error_in_a_collate_fn_comes_to_next(way: Way) -> None:
    loader = way.loader(8, collate_fn=_fail)
    with pytest.raises(ArithmeticError, match="cannot collate") as caught:
        next(iter(loader))
    if way.name != "native":
        assert "indices 0, 1, 2" in str(caught.value.__notes__)
    way.check(loader)


def _stop(samples: Any) -> Any:
    raise StopIteration


def test_stop_iteration_does_not_pass_for_the_end(way: Way) -> None:
    loader = way.loader(8, collate_fn=_stop)
    with pytest.raises(EngineError, match="StopIteration"):
        list(loader)
    way.change = stop_at_20
    loader = way.loader(8)
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(loader)
    if way.name != "native":
        with pytest.raises(EngineError, match="StopIteration"):
            list(way.loader(8, dataset=Plain(), collate_fn=_stop))


def test_timeouts(way: Way) -> None:
    if way.name == "caller":
        pytest.skip("the caller waits for itself")
    way.change = sleep_a_while
    loader = way.loader(8, timeout=0.3)
    iterator = iter(loader)
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    assert time.monotonic() - started < 5
    if way.name in ("processes", "threads"):
        assert str(caught.value) == "DataLoader timed out after 0.3 seconds"
        assert "indices 0, 1, 2" in str(caught.value.__notes__)
    if way.name == "processes":
        _kill_all(iterator)
    way.check(loader)


def _kill_all(iterator: Any) -> None:
    for worker in iterator._workers:
        worker.terminate()


# --- workers ----------------------------------------------------------------------------------


def _name_worker(worker: int) -> None:
    info: Any = data.get_worker_info()
    assert info.id == worker
    info.dataset.count = 4 + worker


class _Counted(Numbers):
    def __getitem__(self, index: int) -> Any:
        return self.count


def test_worker_init_fn_sees_the_users_dataset(processes: Way) -> None:
    loader = processes.loader(1, dataset=_Counted(count=6), worker_init_fn=_name_worker)
    assert [int(batch) for batch in loader] == [4, 5] * 3
    processes.check(loader)


def _fail_in_worker(worker: int) -> None:
    raise ArithmeticError(f"no start for {worker}")


def test_an_error_in_worker_init_fn_comes_to_next(workers_way: Way) -> None:
    loader = workers_way.loader(8, worker_init_fn=_fail_in_worker)
    with pytest.raises(ArithmeticError, match="no start for 0"):
        next(iter(loader))
    workers_way.check(loader)


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_contexts(processes: Way, context: str) -> None:
    loader = processes.loader(8, multiprocessing_context=context, shuffle=True, seed=5, seed_by="sample")
    assert numbers(loader) == numbers(fastload.DataLoader(Numbers(), 8, shuffle=True, seed=5))
    processes.check(loader)


class _Slow(Numbers):
    def __getitem__(self, index: int) -> Any:
        time.sleep(0.5 if index == 0 else 0)
        return super().__getitem__(index)


def test_out_of_order_the_state_waits_for_the_first(workers_way: Way) -> None:
    loader = workers_way.loader(1, dataset=_Slow(count=8), in_order=False)
    iterator = iter(loader)
    assert next(iterator)["x"].tolist() != [0]
    assert loader.state_dict()["position"] == 0
    assert sorted(flat(numbers(iterator))) != [0]
    assert loader.state_dict()["position"] == 8
    workers_way.check(loader)


def test_nested_structures(way: Way) -> None:
    if way.name == "native":
        pytest.skip("a fastload dataset is flat")
    samples = [{"a": [(i, torch.tensor([i, i])), {"b": float(i)}], "s": "x"} for i in range(4)]
    loader: Any = way.loader(2, dataset=samples)
    batches = list(loader)
    expected = list(data.DataLoader(samples, 2))  # type: ignore[arg-type]
    assert str(batches) == str(expected)
    way.check(loader)


class _Whole(Numbers):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [{"x": torch.tensor(100 + index)} for index in indices]


def test_getitems_makes_batches(way: Way) -> None:
    if way.name == "native":
        pytest.skip("that is what the engine does")
    loader = way.loader(2, dataset=_Whole(), seed_by="sample")
    assert numbers(loader)[0] == [100, 101]
    assert numbers(way.loader(2, dataset=_Whole()))[0] == [100, 101]
    way.check(loader)


@pytest.mark.parametrize("batch_size", [3, None])
def test_iterable_datasets(way: Way, batch_size: int | None) -> None:
    if way.name == "native":
        pytest.skip("a fastload dataset is map-style")
    ours = way.loader(batch_size, dataset=Stream())
    workers = ours.num_workers
    torchs: Any = data.DataLoader(Plain(), batch_size, num_workers=workers)
    assert [torch.as_tensor(batch).tolist() for batch in ours] == [
        torch.as_tensor(batch).tolist() for batch in torchs
    ]
    way.check(ours)
    stats = ours.stats()
    assert stats["order"] == "dataset"
    assert stats["samples"] == 20 * max(1, workers)


# --- nothing stays behind ------------------------------------------------------------------------------


def test_early_breaks_leave_nothing_behind(way: Way) -> None:
    epochs = int(os.environ.get("FASTLOAD_TEST_EPOCHS", "6"))
    loader = way.loader(8, shuffle=True)
    next(iter(loader))  # what is made once stays: resource trackers, pools, open shards
    gc.collect()
    before = _left_behind()
    for _ in range(epochs):
        for batch in loader:
            assert len(batch["x"]) == 8
            break
    del batch
    gc.collect()
    deadline = time.monotonic() + 5
    while _more(_left_behind(), before) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _more(_left_behind(), before)
    way.check(loader)


def _more(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    return {name: (after[name], before[name]) for name in before if after[name] > before[name]}


def _left_behind() -> dict[str, Any]:
    def numbers_in(folder: str) -> int:
        return len(os.listdir(folder)) if Path(folder).exists() else 0

    return {
        "threads": numbers_in("/proc/self/task") or threading.active_count(),
        "children": _children(),
        "descriptors": numbers_in("/proc/self/fd"),
        "shared memory": len([name for name in _names("/dev/shm") if f"torch_{os.getpid()}_" in name]),
    }


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if Path(folder).exists() else []


def _children() -> int:
    try:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
    except OSError:
        import multiprocessing

        return len(multiprocessing.active_children())
