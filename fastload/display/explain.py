"""What becomes of one record, step by step: sizes, draws, shapes and times."""

from __future__ import annotations

import dataclasses
import html
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fastload.engine import BatchIndices, FieldPlan, Plan, make_engine
from fastload.engine.sample import apply_operation
from fastload.schema import HeapField, Image
from fastload.transforms import Draws, Operation, SampleKey, decode_image

_REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of a field: ``draws`` are its random numbers by draw, ``seconds`` those of the reference."""

    field: str
    name: str
    result: str
    draws: Mapping[int, float]
    seconds: float

    def cells(self) -> tuple[str, ...]:
        """Return the step as a row of the table."""
        drawn = ", ".join(f"{number}: {value:.4g}" for number, value in sorted(self.draws.items()))
        return self.field, self.name, self.result, drawn, f"{1e3 * self.seconds:.2f}"


_HEAD = ("field", "step", "result", "draws", "ms")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What :meth:`Dataset.explain` found; printing it gives a table.

    The steps are run one by one by the reference in Python. ``engine_seconds`` is what ``engine`` (the
    ``"native"`` or the ``"python"`` one) takes for the whole sample, steps fused; the median of five runs.
    """

    title: str
    steps: tuple[Step, ...]
    engine: str
    engine_seconds: float

    def _last(self) -> str:
        return f"The {self.engine} engine makes the sample in {1e3 * self.engine_seconds:.2f} ms."

    def __str__(self) -> str:
        rows = [_HEAD, *(step.cells() for step in self.steps)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        return "\n".join([self.title, *lines, self._last()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(cells: Sequence[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(step.cells(), "td") for step in self.steps)
        return (
            f"<p>{html.escape(self.title)}</p><table>{row(_HEAD, 'th')}{body}</table>"
            f"<p>{html.escape(self._last())}</p>"
        )


class _Recorder(Draws):
    """Draws that remember what was drawn."""

    __slots__ = ("drawn",)

    def __init__(self, *key: int) -> None:
        super().__init__(*key)
        self.drawn: dict[int, float] = {}

    def uniform(self, i: int) -> float:
        value = self.drawn[i] = super().uniform(i)
        return value

    def integer(self, i: int, n: int) -> int:
        value = super().integer(i, n)
        self.drawn[i] = value
        return value

    def seed(self, i: int) -> int:
        value = super().seed(i)
        self.drawn[i] = value
        return value


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begin = time.perf_counter()
    result = work()
    return result, time.perf_counter() - begin


def _text(value: Any) -> str:
    """Return what a value is: type and shape of arrays, length of bytes, other values cut short."""
    if getattr(value, "ndim", 0):
        return f"{value.dtype} {' x '.join(map(str, value.shape))}"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value):,} bytes"
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= 40 else text[:39] + "…"


def _format(data: bytes) -> str:
    """Return the image format that the first bytes tell."""
    known = {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"P6": "PPM", b"P5": "PGM"}
    return next((name for magic, name in known.items() if data.startswith(magic)), "image")


class _Steps:
    """Runs the steps of one record's fields."""

    def __init__(self, plan: Plan, source: int, record: int, position: int, epoch: int) -> None:
        self._reader, self._record = plan.sources[source], record
        self._key = (plan.seed, epoch, position)
        self.found: list[Step] = []

    def field(self, plan: FieldPlan) -> None:
        """Add the steps of one field. Raises what reading, decoding or an operation does."""
        value, seconds = _timed(lambda: self._reader.value(self._record, plan.column))
        self._add(plan, "read", self._stored(plan, value), {}, seconds)
        if value is None:
            return
        if isinstance(plan.field, Image):
            mode = plan.field.mode or "RGB"
            name = f"decode {_format(value)}"
            value, seconds = _timed(lambda: decode_image(value, mode))
            self._add(plan, name, _text(value), {}, seconds)
        for number, operation in enumerate(plan.operations):
            value = self._operation(plan, number, operation, value)

    def _stored(self, plan: FieldPlan, value: Any) -> str:
        if isinstance(plan.field, HeapField):
            stored = f"{len(self._reader.stored(self._record, plan.column)):,} bytes"
            return stored if isinstance(value, bytes) else f"{stored}: {_text(value)}"
        return _text(value)

    def _operation(self, plan: FieldPlan, number: int, operation: Operation, value: Any) -> Any:
        recorder = _Recorder(*self._key, plan.group, number)
        if isinstance(plan.field, Image):
            result, seconds = _timed(lambda: operation.apply(value, recorder))
        else:
            key = SampleKey(*self._key, plan.group)
            result, seconds = _timed(
                lambda: apply_operation(operation, value, key, recorder, self._reader, self._record)
            )
        self._add(plan, repr(operation), _text(result), recorder.drawn, seconds)
        return result

    def _add(
        self, plan: FieldPlan, name: str, result: str, draws: Mapping[int, float], seconds: float
    ) -> None:
        self.found.append(Step(plan.name, name, result, draws, seconds))


def explain(plan: Plan, source: int, record: int, *, position: int, epoch: int) -> Explanation:
    """Return what becomes of ``record`` of the plan's ``source`` at ``position`` of an epoch.

    Raises what making the sample does.
    """
    for _ in range(2):  # the times of the second run count: the first reads files and imports modules
        steps = _Steps(plan, source, record, position, epoch)
        for field in plan.fields:
            steps.field(field)
    one = [np.array([number], np.int64) for number in (position, source, record)]
    engine = make_engine(plan, 0)
    times = []
    try:
        for _ in range(_REPEATS):
            begin = time.perf_counter()
            engine.submit(BatchIndices(one[0], one[1], one[2], epoch))
            engine.next()
            times.append(time.perf_counter() - begin)
    finally:
        engine.close()
    title = f"Record {record:,} of {plan.sources[source].folder}, position {position:,} of epoch {epoch}"
    return Explanation(title, tuple(steps.found), engine.name, statistics.median(times))
