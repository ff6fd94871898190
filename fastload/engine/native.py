"""The engine in compiled code: what a plan is there, and NumPy arrays over what it makes."""

from __future__ import annotations

import atexit
import collections
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fastload import _backend
from fastload.engine.collate import collate_field
from fastload.engine.plan import Allocate, BatchIndices, BatchValue, FieldPlan, Jagged, Plan, Rejection
from fastload.engine.reject import BAD_RECORD, amend, answer, joined
from fastload.errors import EngineError, FastloadError
from fastload.format import decode_value
from fastload.schema import ColumnField, Image, Label, Ragged, Schema, numpy_dtype_of
from fastload.transforms import native_specs, output_channels, output_spec

__all__ = ["NativeEngine", "why_not_field", "why_not_native", "why_not_sources"]

Array = npt.NDArray[Any]
_INT64 = np.dtype(np.int64)


class _Parts(NamedTuple):
    """One field of a batch as the core gives it: buffers (None where the field has none) and an image's size.

    ``offsets`` are count + 1 int64; ``lengths`` count int64, in bytes; ``validity`` count bytes.
    """

    data: Any
    offsets: Any
    lengths: Any
    validity: Any
    height: int
    width: int


Failures = dict[int, FastloadError]
Build = Callable[[int, _Parts, Failures], BatchValue]
BuildArray = Callable[[int, _Parts], Array]


def why_not_native(plan: Plan) -> str | None:
    """Return in words why the compiled core cannot run all of ``plan``, or None if it can."""
    reason = why_not_sources(plan)
    if reason is not None:
        return reason
    for field in plan.fields:
        reason = why_not_field(field)
        if reason is not None:
            return f"field {field.name!r}: {reason}"
    return "map's functions run in Python" if plan.finish is not None else None


def why_not_sources(plan: Plan) -> str | None:
    """Return in words why the compiled core cannot read ``plan``'s sources, or None if it can."""
    core = _backend.core()
    if core is None:
        return "the compiled core was not built, or FASTLOAD_BACKEND=python"
    for source in plan.sources:
        if source.native() is None:
            return f"{source.folder} is not on a local filesystem"
    return None


def why_not_field(plan: FieldPlan) -> str | None:
    """Return in words why the compiled core cannot make a field, or None if it can."""
    field = plan.field
    if not isinstance(field, Image):
        if plan.operations:
            return "its operations run in Python"
        jagged = isinstance(field, Ragged) and plan.ragged == "jagged" and not field.nullable
        if jagged and isinstance(field, Ragged) and field.free_dimensions != (0,):
            return "jagged batches of another dimension than the first are made in Python"
        return None
    if native_specs(plan.operations) is None:
        steps = [repr(operation) for operation in plan.operations if operation.native_spec() is None]
        return f"{', '.join(steps) or 'its operations in this order'} runs in Python"
    if field.nullable and output_spec(plan.operations, _channels(field)).fixed_size is None:
        return "nullable images of different sizes are collected in Python"
    return None


class NativeEngine:
    """Makes batches with ``num_workers`` native threads, or in the thread that calls ``next`` where it is 0.

    ``byte_budget`` bounds, in bytes, the batches that are made and not yet delivered; one is always
    admitted. Arrays of a batch are views of memory that is used again when the last view is gone, never
    before. Not thread-safe; one owner. Raises UsageError for image operations that native code does not know.
    """

    name = "native"

    def __init__(self, plan: Plan, num_workers: int, byte_budget: int | None = None) -> None:
        core = _backend.core()
        if core is None:
            raise EngineError("the native engine needs the compiled core")
        self._plan = plan
        schema = plan.sources[0].schema if plan.sources else Schema({f.column: f.field for f in plan.fields})
        numbers = {name: number for number, name in enumerate(schema)}
        places = {field.name: place for place, field in enumerate(plan.fields)}
        self._builders = [_builder(field) for field in plan.fields]
        self._in_flight: collections.deque[BatchIndices] = collections.deque()
        self._engine = core.Engine(
            [source.native() for source in plan.sources],
            [{"field": numbers[field.column], **_native_field(field, places)} for field in plan.fields],
            plan.seed & 0xFFFFFFFFFFFFFFFF,
            num_workers,
            byte_budget or 0,
            plan.on_error != "raise",
        )
        self.rejections: Sequence[Rejection] = ()
        self._substitutes: NativeEngine | None = None
        _live.add(self)

    def submit(self, indices: BatchIndices, allocate: Allocate | None = None) -> None:
        """Queue a batch. Never blocks. Raises EngineError when closed, or in a forked child."""
        addresses: list[int] = []
        if allocate is not None:
            addresses = [_address(field, len(indices), allocate) for field in self._plan.fields]
        self._engine.submit(
            indices.positions, indices.sources, indices.records, indices.epoch & 0xFFFFFFFF, addresses
        )
        self._in_flight.append(indices)

    def next(self, timeout: float = 0) -> Mapping[str, BatchValue]:
        """Wait for the oldest batch in flight; see :class:`fastload.engine.plan.Engine`."""
        try:
            parts, rejected = self._engine.next(timeout)
        except BaseException:
            # A batch that failed is gone, one that was not awaited to its end is still there.
            while len(self._in_flight) > self._engine.in_flight:
                self._in_flight.popleft()
            raise
        indices = self._in_flight.popleft()
        self.rejections = ()
        failures: Failures = dict(rejected)
        batch = {
            field.name: build(len(indices), part, failures)
            for field, build, part in zip(self._plan.fields, self._builders, parts, strict=True)
        }
        return self._without(failures, batch, parts, indices) if failures else batch

    def _without(
        self, failures: Failures, batch: dict[str, BatchValue], parts: Sequence[_Parts], indices: BatchIndices
    ) -> Mapping[str, BatchValue]:
        """Return the batch without the samples that failed, as the plan says."""
        rejections: list[Rejection] = []
        replaced: dict[int, Mapping[str, BatchValue]] = {}
        records = indices.records.copy()
        for sample in sorted(failures):
            error = failures[sample]
            error.path = error.path or self._plan.sources[int(indices.sources[sample])].folder
            error.record = int(indices.records[sample])
            if self._plan.on_error == "raise" or not isinstance(error, BAD_RECORD):
                raise error
            found, one, made = answer(self._plan, indices, sample, error, self._make_one)
            rejections += found
            if made is not None:
                replaced[sample], records[sample] = made, one.records[0]
        dropped = failures.keys() - replaced.keys()
        records = np.delete(records, sorted(dropped))
        for field, part in zip(self._plan.fields, parts, strict=True):
            value = batch[field.name]
            if joined(field):
                value = _separate(field)(len(indices), part, failures)
            ones = {sample: made[field.name] for sample, made in replaced.items()}
            batch[field.name] = amend(field, value, ones, dropped, records)
        self.rejections = rejections
        return batch

    def _make_one(self, one: BatchIndices) -> Mapping[str, BatchValue]:
        """Return a batch of one substitute, made here."""
        if self._substitutes is None:
            fields = tuple(dataclasses.replace(field, ragged="list") for field in self._plan.fields)
            plan = dataclasses.replace(self._plan, fields=fields, on_error="raise")
            self._substitutes = NativeEngine(plan, 0)
        self._substitutes.submit(one)
        return self._substitutes.next()

    def stats(self) -> Mapping[str, Any]:
        """Return counters since the engine was made; seconds are summed over threads.

        ``batches`` (delivered), ``samples`` and ``batch_bytes`` (made), ``work_seconds`` and its parts
        ``size_seconds`` (lengths and image sizes), ``read_seconds`` and ``image_seconds`` (decoding and
        transforming in one pass), ``look_ahead_seconds``, ``idle_seconds`` (threads without work),
        ``wait_seconds`` (the consumer), ``pool_bytes`` and ``pool_bytes_kept`` (for reuse), ``in_flight``.
        """
        stats: dict[str, Any] = self._engine.stats()
        return stats

    def close(self) -> None:
        """Stop and join every thread, dropping what is in flight. May be called twice."""
        self._in_flight.clear()
        self._engine.close()
        if self._substitutes is not None:
            self._substitutes.close()


_live: weakref.WeakSet[NativeEngine] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # While the interpreter is whole: a thread that decodes in Python must not wait for it to be gone.
    for engine in list(_live):
        engine.close()


def _channels(field: Image) -> int:
    return 1 if field.mode == "L" else 3


def _native_field(plan: FieldPlan, places: Mapping[str, int]) -> dict[str, Any]:
    """Return the field as the core's Engine takes it; ``places`` are those of the plan's fields."""
    field = plan.field
    common = {"name": plan.name, "nullable": field.nullable}
    if isinstance(field, ColumnField):
        classes = len(field.classes) if isinstance(field, Label) else 0
        boolean = getattr(field, "dtype", None) == "bool"
        return {
            **common,
            "kind": "column",
            "item_bytes": field.item_bytes,
            "classes": classes,
            "boolean": boolean,
        }
    if isinstance(field, Image):
        specs = native_specs(plan.operations)
        assert specs is not None, "why_not_native() comes first"
        return {
            **common,
            "kind": "image",
            "ops": specs,
            "channels": _channels(field),
            "group": plan.group,
            **({"follows": places[plan.follows]} if plan.follows in places else {}),
        }
    if not isinstance(field, Ragged):
        return {**common, "kind": "values"}
    if len(field.free_dimensions) > 1:
        return {**common, "kind": "values", "alignment": 8}  # the dimensions come first, as u64
    free = field.free_dimensions[0]
    outer = int(np.prod([size for size in field.shape[:free] if size is not None], dtype=np.int64))
    padded = plan.ragged == "pad" and not field.nullable
    return {
        **common,
        "kind": "values",
        "outer": outer,
        "inner_bytes": field.inner_bytes // outer,
        "padded": padded,
        "offset_unit": 1 if padded else field.inner_bytes,
        "boolean": field.dtype == "bool",
    }


def _address(plan: FieldPlan, count: int, allocate: Allocate) -> int:
    """Return where the field's array goes, 0 for the engine's own memory."""
    size = _known_bytes(plan)
    return allocate(plan.name, count * size) or 0 if count * size > 0 else 0


def _known_bytes(plan: FieldPlan) -> int:
    """Return the bytes of one sample where the plan tells them, else 0."""
    field = plan.field
    if field.nullable:
        return 0
    if isinstance(field, ColumnField):
        return field.item_bytes
    if isinstance(field, Image):
        spec = output_spec(plan.operations, _channels(field))
        if spec.fixed_size is not None and spec.dtype is not None:
            height, width = spec.fixed_size
            channels = output_channels(plan.operations, _channels(field))
            return height * width * channels * np.dtype(numpy_dtype_of(spec.dtype)).itemsize
    return 0


# --- from buffers to values ------------------------------------------------------------------------------


def _builder(plan: FieldPlan) -> Build:
    field = plan.field
    if isinstance(field, (ColumnField, Image)):
        build = _image(field, plan) if isinstance(field, Image) else _column(field)
        return _nullable(build, field) if field.nullable else _always(build)
    if not isinstance(field, Ragged):
        return _decoded(plan)
    if len(field.free_dimensions) > 1:
        return _with_dimensions(plan)
    if field.nullable or plan.ragged == "list":
        return _views(field)
    return _padded(field) if plan.ragged == "pad" else _jagged(field)


def _separate(plan: FieldPlan) -> Build:
    """Return the builder of a list, for the buffers of a field whose values a batch joins."""
    assert isinstance(plan.field, Ragged), "others are not joined"
    if len(plan.field.free_dimensions) > 1:
        return _decoded(plan)
    return _unpadded(plan.field) if plan.ragged == "pad" else _views(plan.field)


def _always(build: BuildArray) -> Build:
    return lambda count, parts, failures: build(count, parts)


def _view(shape: Sequence[int], dtype: np.dtype[Any], memory: Any, offset: int = 0) -> Array:
    """Return an array over ``memory``, which it keeps alive."""
    array: Array = np.ndarray(shape, dtype, memory, offset)
    return array


def _column(field: ColumnField) -> BuildArray:
    dtype, shape = np.dtype(field.numpy_dtype), field.item_shape

    def build(count: int, parts: _Parts) -> Array:
        return _view((count, *shape), dtype, parts[0])

    return build


def _image(field: Image, plan: FieldPlan) -> BuildArray:
    channels = output_channels(plan.operations, _channels(field))
    spec = output_spec(plan.operations, _channels(field))
    assert spec.dtype is not None, "only a Python callable leaves it open"
    dtype, layout = np.dtype(numpy_dtype_of(spec.dtype)), spec.layout

    def build(count: int, parts: _Parts) -> Array:
        data, _, _, _, height, width = parts
        if layout == "NCHW":
            return _view((count, channels, height, width), dtype, data)
        array = _view((count, height, width, channels), dtype, data)
        return array.transpose(0, 3, 1, 2) if layout == "channels_last" else array

    return build


def _nullable(build: BuildArray, field: ColumnField | Image) -> Build:
    def build_list(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        array = build(count, parts)
        values: Sequence[Any] | Array = array.tolist() if isinstance(field, Label) else array
        valid = bytes(parts[3])
        return [values[number] if valid[number] else None for number in range(count)]

    return build_list


def _offsets(count: int, parts: _Parts) -> npt.NDArray[np.int64]:
    return _view((count + 1,), _INT64, parts[1])


def _values(field: Ragged, parts: _Parts, end: int) -> Array:
    """Return the values of all samples as one array along the free dimension, which is the first."""
    return _view((end, *(size or 0 for size in field.shape[1:])), np.dtype(field.numpy_dtype), parts[0])


def _jagged(field: Ragged) -> Build:
    def build(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        offsets = _offsets(count, parts)
        return Jagged(_values(field, parts, int(offsets[count])), offsets)

    return build


def _padded(field: Ragged) -> Callable[[int, _Parts, Failures], Array]:
    free, dtype = field.free_dimensions[0], np.dtype(field.numpy_dtype)

    def build(count: int, parts: _Parts, failures: Failures) -> Array:
        lengths = _view((count,), _INT64, parts[2])
        longest = int(lengths.max()) // field.inner_bytes if count else 0
        shape = [size or 0 for size in field.shape]
        shape[free] = longest
        return _view((count, *shape), dtype, parts[0])

    return build


def _unpadded(field: Ragged) -> Build:
    build_array, free = _padded(field), field.free_dimensions[0]

    def build(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        lengths = _view((count,), _INT64, parts[2]).tolist()
        array = build_array(count, parts, failures)
        return [
            array[number][(slice(None),) * free + (slice(length // field.inner_bytes),)]
            for number, length in enumerate(lengths)
        ]

    return build


def _views(field: Ragged) -> Build:
    free, dtype, inner_bytes = field.free_dimensions[0], np.dtype(field.numpy_dtype), field.inner_bytes

    def build(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        offsets = _offsets(count, parts).tolist()
        valid = bytes(parts[3]) if parts[3] is not None else b"\1" * count
        out: list[Any] = []
        if free == 0:
            values = _values(field, parts, offsets[count])
            for number in range(count):
                out.append(values[offsets[number] : offsets[number + 1]] if valid[number] else None)
            return out
        shape = [size or 0 for size in field.shape]
        for number in range(count):
            begin, end = offsets[number], offsets[number + 1]
            shape[free] = end - begin
            out.append(_view(shape, dtype, parts[0], begin * inner_bytes) if valid[number] else None)
        return out

    return build


def _decoded(plan: FieldPlan) -> Build:
    """Return the builder of a list whose values Python makes one by one, and which notes those it cannot."""
    field = plan.field

    def build(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        offsets = _offsets(count, parts).tolist()
        lengths = _view((count,), _INT64, parts[2]).tolist()
        valid = bytes(parts[3]) if parts[3] is not None else None
        view = memoryview(parts[0])
        out: list[Any] = []
        for number in range(count):
            if number in failures or (valid is not None and not valid[number]):
                out.append(None)
                continue
            begin = offsets[number]
            try:
                out.append(decode_value(field, view[begin : begin + lengths[number]]))
            except FastloadError as error:
                error.field = plan.name
                failures[number] = error
                out.append(None)
        return out

    return build


def _with_dimensions(plan: FieldPlan) -> Build:
    """Return the builder of ragged fields of several free dimensions, which each value carries itself."""
    build_list = _decoded(plan)

    def build(count: int, parts: _Parts, failures: Failures) -> BatchValue:
        values = build_list(count, parts, failures)
        assert isinstance(values, list)
        if failures:
            return values
        return collate_field(plan, values, np.arange(count), None)

    return build
