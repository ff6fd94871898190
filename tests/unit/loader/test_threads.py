"""What is particular to worker threads; test_ways.py has what they share with the other ways."""

from __future__ import annotations

import copy
import gc
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data
from torch.utils.data import get_worker_info  # bound before worker threads are used
from torch.utils.data._utils import collate, worker

import fastload
from fastload.errors import EngineError, UsageError
from fastload.loader import thread_info

from .forked import in_child
from .ways import Calling, Numbers, Plain, Stream, fail_at_20, flat, numbers, threaded

pytestmark = pytest.mark.usefixtures("no_threads_left")

# --- worker info ---------------------------------------------------------------------------------------


def test_worker_info_is_the_threads_own() -> None:
    dataset = Calling(lambda index: get_worker_info())
    loader = threaded(dataset, None)
    infos = []
    for info in loader:
        infos.append(info)
        assert get_worker_info() is None
    assert {(info.id, info.num_workers, info.worker_method) for info in infos} == {
        (0, 2, "thread"),
        (1, 2, "thread"),
    }
    one, two = ({info.id: info for info in infos}[number] for number in (0, 1))
    assert two.seed == one.seed + 1
    assert one.dataset is dataset
    assert one.rng.torch_generator is not two.rng.torch_generator
    assert one.rng.random_generator is not two.rng.random_generator
    assert isinstance(one.rng.numpy_generator, np.random.Generator)
    stats = loader.stats()
    assert (stats["engine"], stats["workers"], stats["worker_method"]) == ("torch", 2, "thread")


def _id_of_worker(index: int) -> tuple[int, str]:
    info: Any = get_worker_info()
    return info.id, getattr(info, "worker_method", "multiprocessing")


def test_processes_beside_threads_keep_theirs() -> None:
    processes: Any = fastload.DataLoader(Calling(_id_of_worker), None, num_workers=2)
    for ours, theirs in zip(threaded(Calling(_id_of_worker), None), processes, strict=True):
        assert ours[1] == "thread"
        assert theirs[1] == "multiprocessing"


def test_worker_init_fn_runs_in_the_thread() -> None:
    seen: dict[int, Any] = {}

    def begin(number: int) -> None:
        seen[number] = threading.current_thread(), get_worker_info()

    threads = {id(thread) for thread in threaded(Calling(lambda _: threading.current_thread()), None)}
    assert len(threads) <= 2
    list(threaded(Numbers(), worker_init_fn=begin))
    assert sorted(seen) == [0, 1]
    assert seen[0][0] is not seen[1][0]
    assert [seen[number][1].id for number in (0, 1)] == [0, 1]


def test_other_releases_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older:
        def __init__(self, **fields: Any) -> None:
            self.__dict__.update(fields)

    generators = thread_info.Generators()
    monkeypatch.setattr(worker, "WorkerInfo", Older)
    monkeypatch.delattr(worker, "_RNG", raising=False)
    info = thread_info.make_info(1, 2, 5, "dataset", generators)
    assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 2, 5, "dataset")
    assert info.rng is generators

    def newer() -> Any:
        return getattr(worker._thread_local_worker_info, "worker_info", None)  # type: ignore[attr-defined]

    thread_info.install()
    monkeypatch.setitem(
        collate.default_collate_fn_map, torch.Tensor, collate.default_collate_fn_map[torch.Tensor]
    )
    monkeypatch.setattr(worker, "get_worker_info", newer)
    code = newer.__code__
    thread_info.install()
    assert newer.__code__ is code, "what knows of threads is left alone"
    thread_info.show_info(info)
    assert newer() is info
    thread_info.show_info(None)


# --- random numbers ------------------------------------------------------------------------------------


def _draws(index: int) -> tuple[float, float, float]:
    rng: Any = get_worker_info().rng  # type: ignore[union-attr]
    drawn = torch.rand((), generator=rng.torch_generator)
    return rng.random_generator.random(), float(drawn), float(rng.numpy_generator.random())


def test_generators_do_not_depend_on_which_thread_works() -> None:
    runs = []
    for count in (1, 2, 3):
        torch.manual_seed(7)
        runs.append(
            [
                batch.tolist()
                for batch in threaded(Calling(_draws), num_workers=count, collate_fn=torch.tensor)
            ]
        )
    assert runs[0] == runs[1] == runs[2]
    every = torch.tensor(runs[0]).reshape(-1, 3)
    assert all(len(set(column.tolist())) == 24 for column in every.T), "batches differ"


def _global_or_own(index: int) -> tuple[int, float, float]:
    info: Any = get_worker_info()
    if info is None or getattr(info, "rng", None) is None:
        return index, random.random(), float(torch.rand(()))
    drawn = torch.rand((), generator=info.rng.torch_generator)
    return index, info.rng.random_generator.random(), float(drawn)


def _seeded(taken: int, state: Any = None, **arguments: Any) -> tuple[list[Any], Any]:
    loader = fastload.DataLoader(
        Calling(_global_or_own), 4, True, seed=3, seed_by="sample", collate_fn=list, **arguments
    )
    if state is not None:
        loader.load_state_dict(state)
    iterator = iter(loader)
    got = [next(iterator) for _ in range(taken)]
    return got, json.loads(json.dumps(loader.state_dict()))


def test_seeded_by_sample_and_resumed_elsewhere() -> None:
    threads: dict[str, Any] = {"worker_method": "thread"}
    whole, _ = _seeded(6, num_workers=2)
    assert _seeded(6, num_workers=2, **threads)[0] == whole
    assert _seeded(6)[0] == whole
    got, state = _seeded(2, num_workers=2)  # from processes to threads
    assert got + _seeded(4, state, num_workers=3, **threads)[0] == whole
    got, state = _seeded(3, num_workers=3, **threads)  # to another number of threads
    assert got + _seeded(3, state, num_workers=1, **threads)[0] == whole
    got, state = _seeded(1, num_workers=2, **threads)  # and back
    assert got + _seeded(5, state, num_workers=1)[0] == whole


def test_global_generators_are_left_alone() -> None:
    ends = []
    for loader in (
        fastload.DataLoader(Calling(float), 4, num_workers=0),
        threaded(Calling(_global_or_own), seed_by="sample"),
    ):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        list(loader)
        ends.append((random.random(), np.random.rand(), float(torch.rand(()))))
    assert ends[0] == ends[1]


# --- datasets ------------------------------------------------------------------------------------------


def test_each_thread_has_its_own_copy_of_an_iterable_dataset() -> None:
    stream = Stream(9)
    copies: list[Any] = []

    def note(samples: list[int]) -> list[int]:
        copies.append(get_worker_info().dataset)  # type: ignore[union-attr]
        return samples

    assert flat(list(threaded(stream, 3, collate_fn=note))) == [
        0,
        1,
        2,
        100,
        101,
        102,
        3,
        4,
        5,
        103,
        104,
        105,
        6,
        7,
        8,
        106,
        107,
        108,
    ]
    assert len({id(each) for each in copies}) == 2
    assert stream not in copies
    assert stream.at == 0


def test_a_bound_collate_fn_is_that_of_the_copy() -> None:
    class Collating(Plain):
        def collate(self, samples: Any) -> bool:
            return self is get_worker_info().dataset  # type: ignore[union-attr]

    dataset = Collating()
    assert all(threaded(dataset, collate_fn=dataset.collate))


def test_a_dataset_that_cannot_be_copied_is_refused() -> None:
    dataset = Plain()
    dataset.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="a copy of the Plain, which cannot be made"):
        iter(threaded(dataset))
    with pytest.raises(TypeError):
        copy.deepcopy(dataset)


class _Uneven(data.IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        info: Any = get_worker_info()
        yield from range(100 * info.id, 100 * info.id + (1, 9, 4)[info.id])


@pytest.mark.parametrize("drop_last", [False, True])
def test_uneven_workers_come_in_the_order_of_processes(drop_last: bool) -> None:
    arguments: dict[str, Any] = {"num_workers": 3, "collate_fn": list, "drop_last": drop_last}
    expected = list(data.DataLoader(_Uneven(), 2, **arguments))
    assert list(threaded(_Uneven(), 2, **arguments)) == expected
    out_of_order = list(threaded(_Uneven(), 2, in_order=False, **arguments))
    assert sorted(out_of_order) == sorted(expected)


@pytest.mark.parametrize("taken", [0, 1, 5, 6])
@pytest.mark.parametrize("dataset", [Stream, Plain])
def test_iterable_datasets_go_on_in_threads_and_processes(dataset: Any, taken: int) -> None:
    whole = list(threaded(dataset(), 3, collate_fn=list))
    before = threaded(dataset(), 3, collate_fn=list)
    iterator = iter(before)
    got = [next(iterator) for _ in range(taken)]
    state = json.loads(json.dumps(before.state_dict()))
    after = threaded(dataset(), 3, collate_fn=list)
    after.load_state_dict(state)
    assert got + list(after) == whole
    if taken == 5:
        there: Any = fastload.DataLoader(dataset(), 3, collate_fn=list, num_workers=2)
        there.load_state_dict(state)
        assert got + list(there) == whole


# --- failures ------------------------------------------------------------------------------------------


def test_errors_say_which_thread_and_sample() -> None:
    loader = threaded(Numbers(fail_at_20), 8, num_workers=1)
    with pytest.raises(KeyError, match="Caught KeyError in DataLoader worker thread 0") as caught:
        list(loader)
    text = f"{caught.value} {caught.value.__notes__}"
    assert "fail_at_20" in text
    assert "of indices 16, 17, 18" in text
    if hasattr(caught.value, "add_note"):
        assert "The sample is dataset[20]" in text


def _leave(index: int) -> Any:
    sys.exit(f"sample {index}")


def test_a_sample_that_exits_does_not_end_the_program() -> None:
    loader = threaded(Calling(_leave))
    with pytest.raises(EngineError, match="SystemExit was raised in a worker thread: sample 0"):
        next(iter(loader))


def test_an_error_in_the_start_of_one_worker_is_raised() -> None:
    def begin(number: int) -> None:
        if number == 1:
            raise ArithmeticError("no start for 1")

    with pytest.raises(ArithmeticError, match=r"worker thread 1(.|\n)*no start for 1"):
        next(iter(threaded(Numbers(), 8, worker_init_fn=begin)))


def test_the_first_error_of_a_batch_is_raised_whichever_came_first() -> None:
    def late(index: int) -> int:
        if index in (3, 12):
            time.sleep(0.2 if index == 3 else 0)
            raise ValueError(f"sample {index}")
        return index

    iterator = iter(threaded(Calling(late), 16))
    with pytest.raises(ValueError, match="sample 3"):
        next(iterator)
    assert len(next(iterator)) == 8


# --- lifetime ------------------------------------------------------------------------------------------


def _thread_name(index: int) -> tuple[int, int]:
    return index, threading.get_ident()


def test_persistent_workers_are_the_same_threads() -> None:
    with threaded(Calling(_thread_name), persistent_workers=True, collate_fn=list) as loader:
        epochs: list[Any] = [list(loader)]
        for _ in loader:
            break
        epochs.append(list(loader))
        assert [[index for index, _ in batch] for batch in epochs[0]] == [
            [index for index, _ in batch] for batch in epochs[1]
        ]
        assert len({ident for epoch in epochs for batch in epoch for _, ident in batch}) <= 2
        assert loader.stats()["worker_method"] == "thread"
        loader.close()
        assert len(list(loader)) == 6


def test_persistent_copies_of_an_iterable_dataset_go_on_as_in_processes() -> None:
    runs = []
    for method in ("thread", "multiprocessing"):
        arguments: dict[str, Any] = {"persistent_workers": True, "worker_method": method, "collate_fn": list}
        with fastload.DataLoader(Stream(), 3, num_workers=2, **arguments) as loader:
            iterator = iter(loader)
            run: list[Any] = [next(iterator)]
            run += [*loader, *loader]
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict()
            rest = list(iterator)
            loader.load_state_dict(state)
            assert list(loader) == rest
            runs.append(run)
    assert runs[0] == runs[1]


def test_two_hundred_early_breaks_leave_no_thread() -> None:
    loader = threaded(Numbers(), 8, shuffle=True)
    before = threading.active_count()
    for _ in range(200):
        for batch in loader:
            assert len(batch["x"]) == 8
            break
        assert threading.active_count() <= before


def _worker_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastload-worker")]


def test_closing_ends_idle_threads_and_busy_ones_after_their_sample() -> None:
    loader = threaded(Numbers(), 4, persistent_workers=True)
    list(loader)
    loader.close()
    assert not _worker_threads()
    begun: list[int] = []
    slow = threaded(Calling(lambda index: begun.append(index) or time.sleep(0.05) or index, 10_000), 5000)
    iterator = iter(slow)
    time.sleep(0.1)
    before = len(begun)
    slow.close()
    assert len(begun) <= before + 2, "each thread may have been between two samples"
    assert not _worker_threads()
    assert next(iterator, None) is None


def test_a_dropped_iterator_ends_its_threads() -> None:
    endless = threaded(Calling(lambda index: time.sleep(0.01) or index, 10_000), 5000)
    iterator = iter(endless)
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    del endless


def test_closing_from_a_worker_does_not_wait_for_itself() -> None:
    begun, closed = threading.Event(), threading.Event()

    def close(index: int) -> int:
        if index == 4:
            assert begun.wait(5)
            loader.close()
            closed.set()
        return index

    loader = threaded(Calling(close), 4)
    iterator = iter(loader)
    begun.set()
    assert closed.wait(5)
    assert list(iterator) == []


def test_torchs_operations_are_not_parallel_in_threads() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert set(threaded(Calling(lambda _: torch.get_num_threads()), None)) == {1}
        assert torch.get_num_threads() == 2
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_with_a_live_iterator() -> None:
    loader = threaded(Numbers(), 4, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)

    def work() -> None:
        with pytest.raises(EngineError, match="before a fork"):
            next(iterator)
        assert len(list(loader)) == 14, "a new iterator has threads of its own"
        loader.close()

    in_child(work)
    assert len(list(iterator)) == 13
    loader.close()


_AT_EXIT = """
    import sys, time, torch, fastload

    class Slow(torch.utils.data.Dataset):
        def __len__(self):
            return 1000
        def __getitem__(self, index):
            time.sleep(0.2 if index > 10 else 0)
            return torch.rand(1000).sort()[0]

    loaders = [fastload.DataLoader(Slow(), 4, num_workers=3, worker_method="thread") for _ in range(2)]
    iterators = [iter(loader) for loader in loaders]
    next(iterators[0]), next(iterators[1])
    print("done", flush=True)
"""


def test_interpreter_exit_with_busy_threads() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_AT_EXIT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "done\n", "")


# --- arguments -----------------------------------------------------------------------------------------


def test_the_argument_is_checked() -> None:
    with pytest.raises(UsageError, match=r"unknown worker_method 'fiber'.*'multiprocessing' or 'thread'"):
        fastload.DataLoader(Numbers(), 4, worker_method="fiber")  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="multiprocessing_context does nothing for worker threads"):
        threaded(Numbers(), multiprocessing_context="fork")


def test_without_workers_and_for_fastloads_datasets_it_changes_nothing(numbers_path: str) -> None:
    loader = threaded(Numbers(), num_workers=0)
    assert len(numbers(loader)) == 14
    assert loader.stats()["worker_method"] is None
    native = threaded(fastload.open(numbers_path))
    assert numbers(native) == numbers(loader)
    assert native.stats()["engine"] != "torch"
    assert native.stats()["worker_method"] == "thread"
