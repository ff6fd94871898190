"""DataLoader: torch's, with a native path for fastload datasets."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import torch
from torch.utils import data

from fastload.dataset import Dataset
from fastload.engine import OnError, make_engine, why_not_native
from fastload.errors import UsageError
from fastload.format import parse_size
from fastload.loader.deliver import (
    Deliver,
    deliver_batch,
    deliver_collated,
    deliver_mapped,
    deliver_sample,
)
from fastload.loader.iterator import EngineIterator, Job, Progress, SpareEngine
from fastload.loader.recognise import (
    Shuffle,
    follow,
    recognise_batching,
    recognise_sampler,
    unwrap,
    wrapped_inside,
)
from fastload.sampling import Share, batches_of
from fastload.staging import PinnedBatch, pin_available

__all__ = ["DataLoader"]

T = TypeVar("T")

_TORCH_PARAMETERS = inspect.signature(data.DataLoader.__init__).parameters


class DataLoader(data.DataLoader[T], Generic[T]):
    """torch's DataLoader, which loads fastload datasets with native threads instead of worker processes.

    Every argument of torch's is taken under its name; docs/dataloader.md says what each means for a
    fastload dataset. Other datasets are loaded by torch's own machinery, unchanged.

    Args beyond torch's (keyword only):
        seed: keys the order and the random transforms. By default the generator's seed; else
            torch.initial_seed(), or 0 where torch.distributed runs more than one process.
        buffer_bytes: at most so many bytes (an integer, or text as ``"512MB"``) of batches that are made
            and not yet delivered; one batch is always admitted.
        on_error: what becomes of a record whose bytes are bad. ``"raise"`` (the default) raises its error;
            ``"substitute"`` takes another one, a function of (seed, epoch, position, attempt);
            ``"skip"`` leaves it out, which shortens its batch and never the number of batches.
            :meth:`stats` counts and lists them.

    Each new iteration is the next epoch, with its own order and draws: a pure function of (seed, epoch),
    at any ``num_workers``. :meth:`set_epoch` names the next one.

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
        num_workers: int = 0,
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
    ) -> None:
        if on_error not in ("raise", "substitute", "skip"):
            raise UsageError(f"unknown on_error {on_error!r}", hint="use 'raise', 'substitute' or 'skip'")
        if on_error == "skip" and batch_size is None and batch_sampler is None:
            raise UsageError(
                "on_error='skip' shortens batches, and batch_size=None makes none",
                hint="use on_error='substitute'",
            )
        self.on_error = on_error
        self.seed = seed
        self.buffer_bytes = buffer_bytes
        self._byte_budget = None if buffer_bytes is None else parse_size(buffer_bytes)
        self._native: Dataset | None = unwrap(dataset)
        self._next_epoch = 0
        self._named_epoch: int | None = None
        self._sampler_epoch: int | None = None
        self._seed_used: int | None = None
        self._progress = Progress()
        self._order: str | None = None
        self._engine_name: str | None = None
        self._iterators: weakref.WeakSet[EngineIterator] = weakref.WeakSet()
        self._latest: weakref.ref[EngineIterator] | None = None
        self._spare = SpareEngine()
        if "in_order" in _TORCH_PARAMETERS:
            newer = {"in_order": in_order}
        else:
            self.in_order, newer = in_order, {}
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            cast(Any, sampler),
            cast(Any, batch_sampler),
            num_workers,
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
        self._warn()

    def _warn(self) -> None:
        if self._native is not None:
            for name in ("worker_init_fn", "multiprocessing_context"):
                if getattr(self, name) is not None:
                    _warn(f"{name} does nothing for a fastload dataset: its workers are native threads")
        elif wrapped_inside(self.dataset):
            _warn(
                f"{type(self.dataset).__name__} wraps a fastload dataset, so that torch's worker processes "
                "load it sample by sample. For the fast path give the loader a fastload dataset: use its "
                "transform(), slices and +, or torch's Subset, random_split and ConcatDataset"
            )
        if self._native is None and self.on_error != "raise":
            _warn("on_error does nothing for a dataset that torch's own machinery loads")

    def check_worker_number_rationality(self) -> None:
        """Warn of more worker processes than CPUs; native threads are no processes."""
        if self._native is None:
            super().check_worker_number_rationality()

    # --- epochs ----------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration; a sampler that has ``set_epoch`` is told as well."""
        if epoch < 0:
            raise UsageError(f"epoch is {epoch}", hint="give 0 or more")
        self._named_epoch = epoch
        batch_sampler: Any = self.batch_sampler
        samplers: list[Any] = [self.sampler, batch_sampler, getattr(batch_sampler, "sampler", None)]
        for sampler in samplers:
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def _begin_epoch(self, shuffle: Shuffle | None) -> int:
        """Return the epoch of a new iteration: the one named, by the loader or the sampler, or the next."""
        sampler_epoch = None if shuffle is None or shuffle.distributed is None else shuffle.distributed.epoch
        epoch = self._next_epoch
        if self._named_epoch is not None:
            epoch = self._named_epoch
        elif sampler_epoch != self._sampler_epoch and sampler_epoch is not None:
            epoch = int(sampler_epoch)
        self._named_epoch, self._sampler_epoch = None, sampler_epoch
        self._next_epoch = epoch + 1
        return epoch

    def _resolve_seed(self, shuffle: Shuffle | None) -> int:
        """Return the seed, decided at the first iteration and kept: later ones differ by epoch only."""
        if self._seed_used is None:
            generator = self.generator or (shuffle.generator if shuffle is not None else None)
            if self.seed is not None:
                self._seed_used = self.seed
            elif shuffle is not None and shuffle.distributed is not None:
                self._seed_used = int(shuffle.distributed.seed)  # equal on all ranks
            elif generator is not None:
                self._seed_used = int(generator.initial_seed())
            else:
                self._seed_used = 0 if _world_size() > 1 else torch.initial_seed()
            self._seed_used &= (1 << 64) - 1
        return self._seed_used

    # --- iteration -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        if self._native is None:
            return super().__iter__()
        dataset, batching = self._native, recognise_batching(self)
        known = None if batching is None else recognise_sampler(batching.sampler, len(dataset))
        seed, epoch = self._resolve_seed(known), self._begin_epoch(known)
        if batching is None or known is None:
            batches, world = follow(self._sampled(), dataset.selection), 1
        else:
            world = known.world
            order = dataset.selection.order(seed, epoch, shuffle=known.shuffle)
            share = Share(batching.size * world, known.rank, world, known.tail, batching.drop_last)
            batches = batches_of(order, share)
        self._order = "sampler" if known is None else "fastload"
        pin = self._pins()
        singles, make_batch = self._delivery(dataset, pin)
        plan = dataset.plan(seed=seed, samples=singles, on_error=self.on_error)
        engine = self._spare.take(plan) or make_engine(plan, self.num_workers, self._byte_budget)
        self._engine_name = engine.name
        job = Job(
            batches,
            epoch,
            world,
            ahead=0 if self.num_workers == 0 else max(1, self.prefetch_factor or 1),
            deliver=functools.partial(make_batch, seed, epoch),
            singles=singles,
            allocate=PinnedBatch if pin and not singles and plan.finish is None else None,
            timeout=self.timeout,
            release=functools.partial(self._spare.put, plan) if self.persistent_workers else None,
        )
        self._progress = Progress(epoch)
        iterator = EngineIterator(engine, job, self._progress)
        self._iterators.add(iterator)
        self._latest = weakref.ref(iterator)
        return iterator

    def _sampled(self) -> Iterator[Any]:
        """Yield the lists of indices that the user's sampler or batch sampler gives."""
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        return ([index] for index in self.sampler)

    def _delivery(self, dataset: Dataset, pin: bool) -> tuple[bool, Deliver]:
        """Return whether the engine is to make single samples, and what becomes of what it makes."""
        collate: Callable[[Any], Any] = self.collate_fn
        if self.batch_sampler is None:
            torchs = collate is data.default_convert
            return True, functools.partial(deliver_sample, dataset, None if torchs else collate, pin)
        if collate is not data.default_collate:
            return True, functools.partial(deliver_collated, dataset, collate, pin)
        if dataset.look.maps:
            return False, functools.partial(deliver_mapped, dataset.look, pin)
        return False, functools.partial(deliver_batch, dataset.look, dataset.plan(), pin)

    def _pins(self) -> bool:
        if not self.pin_memory:
            return False
        if not pin_available():
            _warn("pin_memory is set, but there is no accelerator to pin memory for")
        return pin_available() and self._native is not None and self._native.look.format == "torch"

    # --- care ------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return what the latest iteration does: which engine runs, why it is not the native one, counters.

        ``engine`` is ``"native"``, ``"python"`` or ``"torch"``; ``why_not_native`` says the reason in
        words, or is None. ``python_calls`` names the callables that run. ``order`` is ``"fastload"``, or
        ``"sampler"`` where one's indices are followed. ``batches``, ``samples`` and ``wait_seconds`` (spent
        waiting for the engine) count the epoch so far, ``position`` the samples of all ranks. ``rejected``
        counts the epoch's bad records and ``rejections`` tells of the first 100: path, record, field and
        error (see ``on_error``). ``engine_counters`` are the engine's own while it lives.
        """
        if self._native is None:
            why = f"the dataset is a {type(self.dataset).__name__}, which torch's own machinery loads"
            return {"engine": "torch", "why_not_native": why}
        iterator = self._latest() if self._latest is not None else None
        return {
            "engine": None if self._latest is None else self._engine_name,
            "why_not_native": why_not_native(self._native.plan()),
            "python_calls": self._native.look.calls(),
            "order": self._order,
            **dataclasses.asdict(self._progress),
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
        state.update(_iterators=None, _spare=None, _latest=None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterators, self._spare = weakref.WeakSet(), SpareEngine()


def _world_size() -> int:
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=4)
