"""The loading of Python datasets: torch's machinery, given fastload's order, positions and state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch.utils import data

from fastload.loader.course import SampledPlace, Stream
from fastload.loader.handover import HandOver
from fastload.loader.iterator import Progress
from fastload.loader.layout import Layout
from fastload.loader.ordering import Ordering
from fastload.loader.runs import ListedCourse, MapRun, Run, SamplerCourse, StreamRun
from fastload.loader.target import Target
from fastload.loader.threads import make_thread_iterator
from fastload.loader.torch_iterator import TorchIterator, make_iterator
from fastload.sampling.cursor import Place

__all__ = ["PythonLoading"]

T = TypeVar("T")


class PythonLoading(Ordering[T], Generic[T]):
    """What a DataLoader does for a dataset that is not fastload's, and what it asks of both kinds."""

    seed_by: str
    worker_method: str
    _progress: Progress
    _target: Target
    _order: str | None
    _engine_name: str | None
    _iterators: weakref.WeakSet[Any]
    _latest: weakref.ref[Any] | None
    _transport: dict[str, int] | None
    _warn_unsharded: Callable[[Layout | None], None]

    def _next_run(self) -> Run:
        """Return the next iteration. Nothing changes until it begins."""
        if isinstance(self.dataset, data.IterableDataset):
            return self._next_stream()
        layout = self._layout()
        self._hear()
        seed = self._resolve_seed(layout)
        course: ListedCourse | SamplerCourse
        if layout is None:
            place = self._cursor.peek(_is_over)
            course = SamplerCourse(self, place)
        else:
            place = self._cursor.peek(lambda place: not layout.course(seed, place).batch_count)
            ordered = layout.course(seed, place)
            course = ListedCourse(ordered.order, ordered.share, ordered.epoch, ordered.start)
        progress = Progress(place.epoch, place.position)
        singles = self.batch_sampler is None
        return MapRun(course, progress, singles, seed if self.seed_by == "sample" else None)

    def _next_stream(self) -> StreamRun:
        place = self._cursor.peek(_is_over)
        stream = self._stream_of(place)
        now = Stream(self.num_workers)
        if stream is not None:
            now = Stream(self.num_workers, stream.next, dict(stream.states))
        progress = Progress(place.epoch, place.position, stream=now)
        # Without a state of the dataset's own, its first batches are made again and dropped.
        passed = place.position if stream is not None and not now.states else 0
        sampler: Any = self.batch_sampler if self.batch_sampler is not None else self.sampler
        return StreamRun(iter(sampler), progress, now, passed)

    @staticmethod
    def _stream_of(place: Place) -> Stream | None:
        """Return where workers were in an iterable dataset, None at its beginning."""
        return place.stream if isinstance(place, SampledPlace) and place.position else None

    def _next_states(self) -> dict[int, Any]:
        """Return the states from which workers' copies of an iterable dataset go on, by worker."""
        if not isinstance(self.dataset, data.IterableDataset):
            return {}
        stream = self._stream_of(self._cursor.peek(_is_over))
        return {} if stream is None else dict(stream.states)

    @property
    def _worker_method(self) -> str | None:
        """What the workers are: None where the caller works."""
        if self.num_workers == 0:
            return None
        return "thread" if self._native is not None else self.worker_method

    def _get_iterator(self) -> Any:
        self.check_worker_number_rationality()
        make = make_thread_iterator if self._worker_method == "thread" else make_iterator
        with self._target.here():  # what pins in other threads works on the device that is current
            iterator = make(self, seeded=self.seed_by == "sample", states=self._next_states())
        self._iterators.add(iterator)
        self._latest = weakref.ref(iterator)
        self._transport = iterator.transport
        return iterator

    def _hand_over(self) -> HandOver[Any] | None:
        """Return what the batches of one iterator pass through, if anything."""
        return self._target.hand_over(ahead=self.num_workers > 0)

    def _begin(self, run: Run) -> None:
        self._cursor.begin(run.progress)
        self._progress = run.progress
        self._engine_name = "torch"

    def _begins_anew(self, run: Run) -> bool:
        """Return whether the epoch was named after ``run`` began, which has given nothing yet."""
        if not isinstance(run, MapRun):
            return False
        self._hear()
        named = self._cursor.named_since(run.progress)
        if named is None or named == run.progress.epoch:
            return False
        self._cursor.set_epoch(named)
        return True

    def _iterate_python(self) -> Any:
        iterator: Any = self._iterator
        if isinstance(iterator, TorchIterator) and not iterator.reusable:
            iterator.close()  # persistent workers that were closed or interrupted, or of which one died
            self._iterator = None
        self._note_order()
        return super().__iter__()

    def _note_order(self) -> None:
        if isinstance(self.dataset, data.IterableDataset):
            self._order = "dataset"
            return
        layout = self._layout()
        self._order = "sampler" if layout is None else "fastload"
        self._warn_unsharded(layout)


def _is_over(place: Place) -> bool:
    return isinstance(place, SampledPlace) and place.complete
