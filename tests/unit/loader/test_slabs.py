"""Batches of worker processes that come in slabs of shared memory."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import data

import fastload
from fastload.errors import EngineError, UsageError
from fastload.loader import mapping

from .slabs import LARGE, same
from .ways import Stream

pytestmark = pytest.mark.skipif(not mapping.available(), reason="needs memfd_create")

UNPICKLABLE = (AttributeError, TypeError, pickle.PicklingError)  # the first up to Python 3.13

# --- with worker processes -----------------------------------------------------------------------------


class Wide(data.Dataset[Any]):
    """Sample i is full of i, of ``size(i)`` bytes, beside its number."""

    def __init__(self, count: int = 60, size: Callable[[int], int] | None = None) -> None:
        self.count, self.size = count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        size = LARGE if self.size is None else self.size(index)
        return torch.full((size,), index % 251, dtype=torch.uint8), np.full(5, index), index


def _growing(index: int) -> int:
    return 1 + (index // 4 * 7919 + 1) % 300_000


def _plain(samples: Any) -> Any:
    return {"list": [sample[0] for sample in samples], "numbers": np.array([sample[2] for sample in samples])}


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _mapped() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:fastload")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"persistent_workers": True, "prefetch_factor": 1},
        {"in_order": False, "num_workers": 3},
        {"multiprocessing_context": "spawn", "num_workers": 1},
        {"multiprocessing_context": "forkserver", "num_workers": 1},
        {"collate_fn": _plain, "dataset": Wide(size=_growing)},
        {"dataset": Wide(size=_growing), "batch_size": None, "sampler": list(range(59, -1, -1))},
    ],
    ids=["fork", "persistent", "unordered", "spawn", "forkserver", "custom", "singles"],
)
def test_a_user_who_keeps_every_batch_gets_torchs_batches(arguments: dict[str, Any]) -> None:
    arguments = {"dataset": Wide(), "batch_size": 4, "num_workers": 2, **arguments}
    spawned = "multiprocessing_context" in arguments
    if arguments.get("in_order") is False:
        pytest.importorskip("torch", minversion="2.6")
    alone = {
        name: value
        for name, value in arguments.items()
        if name in ("dataset", "batch_size", "collate_fn", "sampler")
    }
    expected = list(data.DataLoader(**alone))
    before, mapped = _descriptors(), _mapped()
    with fastload.DataLoader(**arguments) as loader:
        for _ in range(1 if spawned else 2):
            got = list(loader)
            if arguments.get("in_order") is False:
                got.sort(key=lambda batch: int(batch[2][0]))
            same(got, expected)
        counts = loader.stats()["transport"]
    assert counts["torch_batches"] == 0
    assert counts["copied_batches"] > 0
    same(got, expected)
    del got, loader
    assert _mapped() == mapped
    assert _descriptors() <= before + 2 * spawned  # multiprocessing keeps its own


def test_usual_loops_copy_nothing_and_hold_no_slab_by_their_labels() -> None:
    loader = fastload.DataLoader(Wide(), 4, num_workers=2)
    labels = []
    for number, batch in enumerate(loader):
        assert int(batch[0][0, 0]) == 4 * number
        labels.append(batch[2])
    assert torch.cat(labels).tolist() == list(range(60))
    assert loader.stats()["transport"] == {"slab_batches": 15, "copied_batches": 0, "torch_batches": 0}


def test_views_outlive_the_loader_and_its_memory_goes_with_them() -> None:
    mapped = _mapped()
    loader = fastload.DataLoader(Wide(), 4, num_workers=2)
    iterator = iter(loader)
    kept = next(iterator)[0][1:3, 10:].numpy()
    next(iterator)
    loader.close()
    del iterator, loader
    assert _mapped() > mapped
    assert kept[:, 0].tolist() == [1, 2]
    assert (kept == kept[:, :1]).all()
    del kept
    assert _mapped() == mapped


def test_several_iterators_and_early_breaks() -> None:
    loader = fastload.DataLoader(Wide(), 4, num_workers=1, persistent_workers=False)
    for batches in zip(loader, loader, strict=True):
        same(batches[0], batches[1])
    persistent = fastload.DataLoader(Wide(), 4, num_workers=2, persistent_workers=True)
    for _ in range(3):
        kept = [batch for batch, _ in zip(persistent, range(5), strict=False)]
        assert [int(batch[0][0, 0]) for batch in kept] == [0, 4, 8, 12, 16]
    persistent.close()


class _Streamed(Stream):
    def __iter__(self) -> Iterator[Any]:
        return (torch.full((LARGE,), index, dtype=torch.uint8) for index in super().__iter__())


def test_iterable_datasets_and_their_state() -> None:
    loader = fastload.DataLoader(_Streamed(), 4, num_workers=2, seed=0)
    whole = [batch[:, 0].tolist() for batch in loader]
    assert len(whole) == 10
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(3)]
    state = loader.state_dict()
    again = fastload.DataLoader(_Streamed(), 4, num_workers=2, seed=0)
    again.load_state_dict(state)
    kept += list(again)
    assert [batch[:, 0].tolist() for batch in kept] == whole
    loader.close()


def _unpicklable(samples: Any) -> Any:
    return (lambda: None) if samples[0][2] == 4 else samples[0][2]


def test_what_cannot_be_pickled_is_an_error_of_that_batch() -> None:
    with fastload.DataLoader(Wide(), 4, num_workers=1, collate_fn=_unpicklable) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        with pytest.raises(UNPICKLABLE, match="local object"):
            next(iterator)
        assert next(iterator) == 8


def test_batches_held_in_a_forked_child_stay_as_they_were() -> None:
    loader = fastload.DataLoader(Wide(200), 4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    held = next(iterator)
    seen = held[0].numpy()  # torch's own threads do not survive a fork
    expected = np.repeat(np.arange(4, 8, dtype=np.uint8)[:, None], LARGE, 1)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(30)
        os.read(reading, 1)  # until the parent has dropped its own and gone on
        os._exit(0 if np.array_equal(seen, expected) else 1)
    assert np.array_equal(seen, expected)
    held[0].fill_(77)
    del held, seen
    assert [int(batch[0][0, 0]) for batch in iterator] == list(range(8, 200, 4))
    os.write(writing, b"x")
    assert os.waitpid(child, 0)[1] == 0
    os.close(reading)
    os.close(writing)


def test_workers_that_cannot_be_started_leave_nothing_behind() -> None:
    before, mapped = _descriptors(), _mapped()
    loader = fastload.DataLoader(Wide(size=lambda _: 3), 4, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(UNPICKLABLE, match="local object"):
        iter(loader)
    del loader
    assert _mapped() == mapped
    assert _descriptors() <= before + 2


class _SlowSamples(Wide):
    def __init__(self) -> None:
        super().__init__()
        self.begun = multiprocessing.Value("i", 0)

    def __getitem__(self, index: int) -> Any:
        with self.begun.get_lock():
            self.begun.value += 1
        time.sleep(0.05)
        return super().__getitem__(index)


@pytest.mark.parametrize("seed_by", ["worker", "sample"])
def test_busy_workers_end_after_the_sample_they_are_at(seed_by: Any) -> None:
    dataset = _SlowSamples()
    loader = fastload.DataLoader(dataset, 30, num_workers=2, seed_by=seed_by)
    iterator = iter(loader)
    time.sleep(0.3)
    workers = list(iterator._workers)  # type: ignore[attr-defined]
    before = dataset.begun.value
    loader.close()
    assert dataset.begun.value <= before + 4, "each may have been between two samples when it was told"
    assert [worker.exitcode for worker in workers] == [0, 0]


_FAULTS = """
    import resource, sys, torch
    from fastload.loader.heap import keep_freed_memory
    keep_freed_memory()
    def batch():
        samples = [torch.zeros(100_000, dtype=torch.uint8) for _ in range(300)]
        samples.clear()
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        batch()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_kept_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("needs glibc")
    pages = 10 * 300 * 25  # of ten batches
    assert int(_program(_FAULTS).stdout) < pages / 2
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "65536")  # each sample is got from the kernel
    assert int(_program(_FAULTS).stdout) > pages / 2


def test_the_transport_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "torch")
    loader = fastload.DataLoader(Wide(8), 4, num_workers=1)
    same(list(loader), list(data.DataLoader(Wide(8), 4)))
    assert loader.stats()["transport"] is None
    monkeypatch.setenv("FASTLOAD_TRANSPORT", "pigeon")
    with pytest.raises(UsageError, match="FASTLOAD_TRANSPORT is 'pigeon': set it to one of slabs, torch"):
        iter(loader)


# --- limits --------------------------------------------------------------------------------------------


def _program(text: str, *before: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [*before, sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)


_KEEPS_ALL = """
    import resource, torch, fastload
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    class Pairs:
        def __len__(self): return 400
        def __getitem__(self, index): return torch.full((9000,), index), torch.full((9000,), -index)
    for collate in (None, lambda samples: samples):
        kept = list(fastload.DataLoader(Pairs(), 4, num_workers=2, collate_fn=collate))
        for number, batch in enumerate(kept):
            first = batch[0] if collate is None else batch[0][0]
            assert int(first.flatten()[0]) == 4 * number
    print(len(kept))
"""


def test_every_batch_can_be_kept_with_few_descriptors() -> None:
    done = _program(_KEEPS_ALL)
    assert done.stdout == "100\n", done.stderr


_SMALL_ROOM = """
    import torch, fastload
    class Wide:
        def __len__(self): return 8
        def __getitem__(self, index): return torch.full((1 << 20,), index)
    print([int(batch[0, 0]) for batch in fastload.DataLoader(Wide(), 2, num_workers=2)])
    def leaves(samples): return torch.zeros(1 << 21).requires_grad_()
    try:
        list(fastload.DataLoader(Wide(), 2, num_workers=2, collate_fn=leaves))
    except fastload.errors.EngineError as error:
        print(error)
"""


def test_a_full_dev_shm_is_foreseen() -> None:
    small = 'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"'
    prefix = ("unshare", "--mount", "sh", "-c", small, "sh")
    try:
        possible = subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        possible = False
    if not possible:
        pytest.skip("cannot mount a file system here")
    done = _program(_SMALL_ROOM, *prefix)
    assert done.stdout.startswith("[0, 2, 4, 6]\n"), done.stderr  # slabs are not in it
    assert "a batch needs 8,388,608 bytes of shared memory, and /dev/shm has 2," in done.stdout
    assert "make it larger (docker run --shm-size)" in done.stdout


def test_want_of_descriptors_is_an_error_which_says_so() -> None:
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    loader = fastload.DataLoader(Wide(8), 4, num_workers=1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
    try:
        with pytest.raises(EngineError, match=r"there is none \(Too many open files\): raise the limit"):
            iter(loader)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list(loader)) == 2


def _little_memory(worker: int) -> None:
    import resource

    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))


class _Broad(Wide):
    def __getitem__(self, index: int) -> Any:
        return torch.zeros(1).expand(16 << 20)


def test_memory_that_is_refused_is_an_error_which_says_how_much() -> None:
    loader = fastload.DataLoader(_Broad(8), 4, num_workers=1, worker_init_fn=_little_memory)
    with pytest.raises(
        EngineError, match=r"needs 268,435,456 bytes of shared memory, and the system refuses"
    ):
        next(iter(loader))
    loader.close()
