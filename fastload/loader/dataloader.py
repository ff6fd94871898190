"""DataLoader: torch's, with a native path for fastload datasets."""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch.utils import data

from fastload.dataset import Dataset
from fastload.engine import OnError, make_engine, why_not_native
from fastload.errors import UsageError
from fastload.format import parse_size
from fastload.loader.arguments import (
    TORCH_PARAMETERS,
    Sharding,
    check_newer,
    check_on_error,
    check_seed_by,
    check_window,
    check_worker_method,
    doubts,
)
from fastload.loader.course import BatchInfo, Course, FollowedCourse, GlobalBatch, OrderedCourse, SampledPlace
from fastload.loader.deliver import delivery
from fastload.loader.iterator import Begun, EngineIterator, Job, Progress, SpareEngine
from fastload.loader.layout import Layout
from fastload.loader.outputs import Output
from fastload.loader.prefetch import AutoWorkers, Prefetch
from fastload.loader.python import PythonLoading
from fastload.loader.recognise import own_sampler, unwrap, wrapped_inside
from fastload.loader.sharding import process_topology, topology
from fastload.loader.target import targeted
from fastload.sampler import DistributedSampler
from fastload.sampling.cursor import Cursor, Place
from fastload.staging import PinnedBatch, pin_available

__all__ = ["DataLoader"]

T = TypeVar("T")

_UNSHARED = "all records to each of them: shard=True shares them out"


class DataLoader(PythonLoading[T], Generic[T]):
    """torch's DataLoader, which loads fastload datasets with native threads instead of worker processes.

    Every argument of torch's is taken under its name; docs/dataloader.md says what each means for a
    fastload dataset. Other datasets are loaded by torch's own machinery, in fastload's order and with state.

    ``num_workers="auto"`` takes a worker for each CPU that this process may use, divided by the ranks that
    torchrun started on this machine, and makes more batches ahead when the consumer had to wait although the
    workers keep up on the whole; they stay below ``buffer_bytes``, or an eighth of the memory that is free.

    Args beyond torch's (keyword only):
        seed: keys the order and the random transforms. By default the generator's seed; else
            torch.initial_seed(), or 0 where torch.distributed runs more than one process.
        buffer_bytes: at most so many bytes (an integer, or text as ``"512MB"``) of batches that are made
            and not yet delivered; one batch is always admitted.
        on_error: what becomes of a record whose bytes are bad. ``"raise"`` (the default) raises its error;
            ``"substitute"`` takes another one, a function of (seed, epoch, position, attempt);
            ``"skip"`` leaves it out, which shortens its batch and never the number of batches.
            :meth:`stats` counts and lists them.
        shard: share the dataset out among the ranks of torch.distributed, whose world is read when
            iteration or ``len`` asks.
        mesh: share it out by a torch DeviceMesh, or by names and sizes as ``{"dp": 4, "tp": 2}``: ranks
            that differ in a model dimension only get the same records. ``(mesh, ("mine",))`` names the
            data dimensions, where they are not called as loader.sharding.DATA_DIMENSIONS lists.
        global_batch_size: samples of all ranks in a batch, instead of ``batch_size`` on each (leave that
            at 1). Where the ranks do not divide it, their batches differ by one; see :attr:`batch_info`.
        shuffle_window: bytes within which records are shuffled, so that a node reads few shards at a time.
        pad: fill the last batch up by repeating records, so that all ranks get as many. Without it some
            may get one less, or one batch less.
        seed_by: what seeds Python's, NumPy's and torch's generators for a Python dataset: its ``"worker"``,
            as in torch, or the position of each ``"sample"``, at any ``num_workers``.
        worker_method: what loads a Python dataset: worker processes (``"multiprocessing"``), or threads of
            this one (``"thread"``) for work that releases the GIL; docs/dataloader.md says when they pay.
        device: a torch device, or its name: batches come on it, copied ahead on a stream beside yours, from
            pinned memory. Work that is queued on the stream current at ``next()`` finds them there.
        output: ``"torch"``, ``"numpy"``, ``"jax"`` or ``"dlpack"`` arrays, without a copy where memory can
            be shared; by default what the dataset gives.
        normalize_on: ``"device"`` copies images as uint8 and converts and normalises them there, with the
            same bits.

    Each new iteration is the next epoch, with its own order and draws: a pure function of (seed, epoch),
    at any ``num_workers`` and any number of ranks. :meth:`set_epoch` names the next one.
    :meth:`state_dict` says how far it was delivered.

    >>> import fastload, tempfile
    >>> path = tempfile.mkdtemp() + "/numbers.fl"
    >>> with fastload.Writer(path, schema={"x": fastload.Scalar("int64")}) as writer:
    ...     for x in range(5):
    ...         writer.append({"x": x})
    >>> loader = fastload.DataLoader(fastload.open(path), batch_size=2)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        dataset: data.Dataset[T],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        seed: int | None = None,
        buffer_bytes: int | str | None = None,
        on_error: OnError = "raise",
        shard: bool = False,
        mesh: Any = None,
        global_batch_size: int | None = None,
        shuffle_window: int | str | None = None,
        pad: bool = True,
        seed_by: Literal["worker", "sample"] = "worker",
        worker_method: Literal["multiprocessing", "thread"] = "multiprocessing",
        device: Any = None,
        output: Output | None = None,
        normalize_on: Literal["host", "device"] = "host",
        **newer: Any,
    ) -> None:
        check_newer(newer)
        workers = AutoWorkers.choose() if num_workers == "auto" else num_workers
        check_on_error(on_error, singles=batch_size is None and batch_sampler is None)
        self.on_error = on_error
        self.seed = seed
        self.buffer_bytes = buffer_bytes
        self._byte_budget = None if buffer_bytes is None else parse_size(buffer_bytes)
        self.shard, self.mesh, self.global_batch_size, self.pad = shard, mesh, global_batch_size, pad
        self.shuffle_window = shuffle_window
        self._native: Dataset | None = unwrap(dataset)
        self.seed_by = seed_by
        iterable = isinstance(dataset, data.IterableDataset)
        check_seed_by(seed_by, iterable=iterable)
        check_worker_method(worker_method, dataset)
        self.worker_method = worker_method
        self._sharding = Sharding(shard, mesh, global_batch_size, pad)
        self._sharding.check(batch_size, iterable=iterable)
        plain = not shuffle and sampler is None and batch_sampler is None
        check_window(shuffle_window, shuffled=self._native is not None and not plain)
        if sampler is None and batch_sampler is None:
            sampler = own_sampler(dataset, self._native, self._sharding, bool(shuffle), seed, generator)
            shuffle = shuffle if sampler is None else None
        self._sized = batch_sampler is not None or batch_size != 1
        if global_batch_size is not None and not self._sized:
            batch_size = global_batch_size
        self._reset()
        if "in_order" in TORCH_PARAMETERS:
            newer["in_order"] = in_order
        else:
            self.in_order = in_order
        if "worker_method" in TORCH_PARAMETERS:
            newer["worker_method"] = worker_method
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            cast(Any, sampler),
            cast(Any, batch_sampler),
            workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            **newer,
        )
        if not self._sized:
            self.__dict__["batch_size"] = 1  # what was given, for those who rebuild the loader
        self._prefetch = self._make_prefetch()
        self.device, self.output, self.normalize_on = device, output, normalize_on
        self._target, self._made = targeted(self, self._native, device, output, normalize_on)
        self._mark_default(given=sampler is not None or batch_sampler is not None)
        ours = [sampler for sampler in self._samplers() if isinstance(sampler, DistributedSampler)]
        self._cursor = ours[0].cursor if ours and self._layout() is not None else Cursor()
        self._warn()

    def _reset(self) -> None:
        """Be a loader that has not been iterated."""
        self._blocks = False
        self._sampler_epoch: int | None = None
        self._seed_used: int | None = None
        self._warned = False
        self._progress = Progress()
        self._order: str | None = None
        self._engine_name: str | None = None
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._latest: weakref.ref[Any] | None = None
        self._transport: dict[str, int] | None = None
        self._spare = SpareEngine()

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch of this rank: what was given, or the largest share of ``global_batch_size``."""
        size: int | None = self.__dict__["batch_size"]
        if size is None or self.global_batch_size is None:
            return size
        distributed = next((s for s in self._samplers() if isinstance(s, data.DistributedSampler)), None)
        return -(-self.global_batch_size // topology(self.shard, self.mesh, distributed).world)

    @batch_size.setter
    def batch_size(self, size: int | None) -> None:
        # Under its own name, where frameworks that rebuild a loader look for it.
        self.__dict__["batch_size"] = size

    def _make_prefetch(self) -> Prefetch:
        """Return how many batches are made ahead; it is kept over epochs, with what it has learnt."""
        factor, workers = self.prefetch_factor or 1, self.num_workers
        grows = isinstance(workers, AutoWorkers)
        step = 1 if self._native is not None else workers  # torch's prefetch_factor is a worker's
        ahead = factor * step if workers else 0
        return Prefetch(ahead, grows=grows, step=step, limit_bytes=self._byte_budget)

    def _warn(self) -> None:
        wrapped = self._native is None and wrapped_inside(self.dataset)
        for text in doubts(self, native=self._native is not None, wrapped=wrapped):
            _warn(text)

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs; threads are no processes."""
        if self._native is None and self.worker_method != "thread":
            super().check_worker_number_rationality()

    def _next_course(self, layout: Layout | None) -> tuple[Place, Course]:
        """Return where the next iteration begins, and what it does from there on."""
        self._hear()
        seed = self._resolve_seed(layout)
        if layout is None:
            assert self._native is not None
            place = self._cursor.peek(lambda place: isinstance(place, SampledPlace) and place.complete)
            return place, FollowedCourse(self, self._native.selection, place)
        place = self._cursor.peek(lambda place: not layout.course(seed, place).batch_count)
        return place, layout.course(seed, place)

    # --- iteration -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        if self._native is None:
            return cast(Iterator[T], self._iterate_python())
        layout = self._layout()
        begun = self._begun(layout)
        self._warn_unsharded(layout)
        anew = None if layout is None else functools.partial(self._begun_anew, begun[2])
        iterator = EngineIterator(*begun, anew)
        self._progress = begun[2]
        self._cursor.begin(self._progress)
        self._iterators.add(iterator)
        self._latest = weakref.ref(iterator)
        return iterator

    def _begun(self, layout: Layout | None) -> Begun:
        """Return what the next iteration is made of."""
        assert self._made is not None
        dataset = self._made
        place, course = self._next_course(layout)
        seed, epoch = self._resolve_seed(layout), place.epoch
        self._order = "sampler" if layout is None else "fastload"
        pin = self._pins()
        singles, make_batch = delivery(
            dataset,
            self.collate_fn,
            pin and not self._target.pins,  # else the copier does it
            batched=self.batch_sampler is not None,
        )
        plan = dataset.plan(seed=seed, samples=singles, on_error=self.on_error)
        engine = self._spare.take(plan) or make_engine(plan, self.num_workers, self._byte_budget)
        self._engine_name = engine.name
        job = Job(
            course,
            epoch,
            self._prefetch,
            deliver=functools.partial(make_batch, seed, epoch),
            singles=singles,
            allocate=self._allocation(pin and not singles and plan.finish is None),
            timeout=self.timeout,
            release=functools.partial(self._spare.put, plan) if self.persistent_workers else None,
            hand_over=self._hand_over(),
        )
        return engine, job, Progress(epoch, place.position, sampler=course.sampler_state)

    def _begun_anew(self, progress: Progress) -> Begun | None:
        """Return another beginning for an iteration that has given nothing, if its epoch was named since."""
        layout = self._layout()
        self._hear()
        named = self._cursor.named_since(progress)
        if named is None or named == progress.epoch:
            return None
        self._cursor.set_epoch(named)
        begun = self._begun(layout)
        self._progress = begun[2]
        self._cursor.begin(self._progress)
        return begun

    def _warn_unsharded(self, layout: Layout | None) -> None:
        if self._warned or layout is None or self._sharding.asked or layout.sampler.distributed is not None:
            return
        process = process_topology()
        if process.world > 1 and process.rank == 0:
            self._warned = True
            _warn(f"torch.distributed has {process.world} ranks, and this loader gives {_UNSHARED}")

    def _pins(self) -> bool:
        """Return whether batches are pinned here: in any case on their way to an accelerator."""
        if self.pin_memory and not pin_available():
            _warn("pin_memory is set, but there is no accelerator to pin memory for")
        return self._target.pins or (self.pin_memory and pin_available())

    def _allocation(self, pin: bool) -> Callable[[], PinnedBatch] | None:
        tensors = self._made is not None and self._made.look.format == "torch"
        return functools.partial(PinnedBatch, self._target.device) if pin and tensors else None

    @property
    def batch_info(self) -> BatchInfo | None:
        """What there is to say of the batch delivered last: positions, pads, samples over all ranks."""
        return self._progress.info

    def plan(self, count: int) -> list[GlobalBatch]:
        """Return the next ``count`` global batches as numbers of records, without reading any.

        They are the rest of the iteration that is under way, else the beginning of the next one; fewer,
        where the epoch has no more. Nothing changes. Raises UsageError where a sampler's indices are
        followed.
        """
        layout = self._resumable()
        if layout is None:
            raise UsageError("the batches of a sampler of your own cannot be known", hint="ask the sampler")
        iterator = self._latest() if self._latest is not None else None
        if iterator is not None and iterator.live and self._cursor.place is self._progress:
            course = layout.course(self._resolve_seed(layout), self._progress)
        else:
            course = cast(OrderedCourse, self._next_course(layout)[1])
        return list(itertools.islice(course.plan(), count))

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether ``accelerator.prepare`` may leave it alone: Accelerate asks before it shares it out."""
        self._sharding.check_once()
        return False

    # --- care ------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what the latest iteration does: which engine runs, why it is not the native one, counters.

        ``engine`` is ``"native"``, ``"python"`` or ``"torch"``, ``workers`` how many threads or processes it
        has (0: the caller), ``worker_method`` which, as the argument does (or None). ``why_not_native`` says
        the reason in words, or is None. ``python_calls`` names the callables that run. ``order`` is
        ``"fastload"``, ``"sampler"`` where one's indices are followed, or ``"dataset"`` where it is iterable.
        ``prefetch_batches`` is how many batches are made ahead, and ``waits`` counts those that took the
        consumer over 5 ms, but for the first of each epoch. ``batches``, ``samples`` and ``wait_seconds``
        (spent waiting for the engine) count what this iteration gave, and ``pads`` the samples among them
        that only even the ranks out; ``position`` counts the samples of all ranks since the epoch's
        beginning, without pads. ``batch_info`` is the attribute of that name as a dict. ``rejected`` counts
        the epoch's bad records and ``rejections`` tells of the first 100: path, record, field and error (see
        ``on_error``). ``transport`` counts how batches of worker processes came, as
        docs/dataloader.md says.
        ``open_shards`` counts the dataset's shards that this process holds open. ``engine_counters`` are the
        engine's own while it lives.
        """
        native = self._native
        iterator = self._latest() if self._latest is not None else None
        unknown = f"the dataset is a {type(self.dataset).__name__}, which torch's own machinery loads"
        return {
            "engine": "torch" if native is None else None if self._latest is None else self._engine_name,
            "workers": int(self.num_workers),
            "worker_method": self._worker_method,
            **self._prefetch.told(),
            "why_not_native": unknown if self._made is None else why_not_native(self._made.plan()),
            "python_calls": [] if native is None else native.look.calls(),
            "order": self._order,
            **self._progress.told(),
            "transport": None if self._transport is None else dict(self._transport),
            "open_shards": 0 if native is None else sum(source.open_shards for source in native.sources),
            "engine_counters": {} if iterator is None else dict(iterator.engine_stats()),
        }

    def close(self) -> None:
        """End all live iterators and their threads. The loader can be iterated again."""
        for iterator in list(self._iterators):
            iterator.close()
        self._spare.close()

    def __enter__(self) -> DataLoader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.update(_iterators=None, _spare=None, _latest=None, _iterator=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterators, self._spare = weakref.WeakSet(), SpareEngine()


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
