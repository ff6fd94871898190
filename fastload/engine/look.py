"""How samples and batches look: which fields, transformed how, in which types and container."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from fastload.engine.plan import BatchValue, FieldPlan, Plan
from fastload.errors import UsageError
from fastload.format import SplitReader
from fastload.schema import Label, Schema
from fastload.transforms import BATCH_GROUP, MAP_GROUP, Call, Draws, Operation, SampleKey

__all__ = ["NO_PROGRAM", "Look", "Program", "View"]


@dataclasses.dataclass(frozen=True)
class Program:
    """What happens to one field: its operations, and the group number that keys their draws.

    ``follows``, where not empty, names the image field whose mask it is.
    """

    operations: tuple[Operation, ...]
    group: int
    follows: str = ""


NO_PROGRAM = Program((), 0)


@dataclasses.dataclass(frozen=True)
class View:
    """A field of a sample that holds several versions of a stored one, each with its own draws."""

    stored: str
    programs: tuple[Program, ...]


@dataclasses.dataclass(frozen=True)
class Look:
    """How samples and batches look: which fields, transformed how, in which types and container.

    ``columns`` names what is read, ``views`` says which of these are versions of another stored field;
    ``maps`` and ``batch_maps`` are applied to samples and to batches, both as dicts. ``picked`` names what
    is kept of what they return, all where it is empty.
    """

    columns: tuple[str, ...]
    programs: tuple[tuple[str, Program], ...] = ()
    ragged: tuple[tuple[str, str], ...] = ()
    format: Literal["torch", "numpy"] = "torch"
    tuples: bool = False
    views: tuple[tuple[str, View], ...] = ()
    maps: tuple[Call, ...] = ()
    batch_maps: tuple[Call, ...] = ()
    picked: tuple[str, ...] = ()

    def plan(self, schema: Schema, sources: Sequence[SplitReader], *, samples: bool = False) -> Plan:
        """Return the plan that makes this; for single ``samples`` ragged fields are not joined."""
        programs, views = dict(self.programs), dict(self.views)
        samples = samples or bool(self.maps)
        ragged = {} if samples else dict(self.ragged)
        fields = []
        for name in self.columns:
            if name in views:
                stored = views[name].stored
                for number, program in enumerate(views[name].programs):
                    part = _part(name, number)
                    fields.append(
                        FieldPlan(part, schema[stored], program.operations, program.group, stored=stored)
                    )
                continue
            program = programs.get(name, NO_PROGRAM)
            mode = ragged.get(name, "list")
            follows = program.follows if program.follows in self.columns else ""
            fields.append(
                FieldPlan(name, schema[name], program.operations, program.group, mode, follows=follows)
            )
        finish = Finish(self, tuple(fields)) if self.maps else None
        return Plan(tuple(sources), tuple(fields), finish=finish)

    def stored(self, name: str) -> str:
        """Return the stored field that a column is made of."""
        view = dict(self.views).get(name)
        return name if view is None else view.stored

    def next_group(self) -> int:
        """Return the first group number that no program has."""
        programs = [program for _, program in self.programs]
        programs += [program for _, view in self.views for program in view.programs]
        return max((program.group for program in programs), default=-1) + 1

    @property
    def draws(self) -> bool:
        """Whether anything in it may draw random numbers."""
        return bool(self.maps) or bool(self._operations())

    def _operations(self) -> list[Operation]:
        programs = [program for name, program in self.programs if name in self.columns]
        programs += [
            program for name, view in self.views if name in self.columns for program in view.programs
        ]
        return [operation for program in programs for operation in program.operations]

    def calls(self) -> list[str]:
        """Return the Python callables that take part, as text."""
        calls = [operation for operation in self._operations() if isinstance(operation, Call)]
        return [f"transform: {call.name}" for call in calls] + self.maps_named()

    def maps_named(self) -> list[str]:
        """Return the functions of map and map_batches, as text."""
        return [f"map: {call.name}" for call in self.maps] + [
            f"map_batches: {call.name}" for call in self.batch_maps
        ]

    def columns_of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample's or batch's columns, of what the plan's fields hold."""
        if not self.views:
            return dict(values)
        views = dict(self.views)
        return {
            name: [values[_part(name, number)] for number in range(len(views[name].programs))]
            if name in views
            else values[name]
            for name in self.columns
        }

    def samples(self, values: Mapping[str, BatchValue], plan: Plan, count: int) -> list[dict[str, Any]]:
        """Return a batch as an engine made it of ``plan`` as the columns of its single samples."""
        if plan.finish is not None:
            made: Any = values[Plan.SAMPLES]
            return list(made)
        fields = {field.name: field for field in plan.fields}
        converted: Mapping[str, Any] = values
        if self.format == "torch":
            from fastload.staging import to_torch

            converted = to_torch(values, plan)
        columns = [_unstack(fields[name], value) for name, value in converted.items()]
        return [
            self.columns_of({name: column[number] for name, column in zip(converted, columns, strict=True)})
            for number in range(count)
        ]

    def map_batch(self, batch: Any, seed: int, epoch: int, position: int) -> Any:
        """Return what the batch functions make of a batch whose first sample is at ``position``."""
        for number, call in enumerate(self.batch_maps):
            batch = call.call(batch, Draws(seed, epoch, position, BATCH_GROUP, number))
        return batch

    def shape(self, values: Mapping[str, Any]) -> Any:
        """Return the columns of one batch or sample in the container asked for."""
        if self.picked:
            missing = [name for name in self.picked if name not in values]
            if missing:
                raise UsageError(
                    f"the functions of map and map_batches give no field {missing[0]!r}",
                    hint=f"they give: {', '.join(map(str, values))}",
                )
            values = {name: values[name] for name in self.picked}
        return tuple(values.values()) if self.tuples else dict(values)


@dataclasses.dataclass(frozen=True)
class Finish:
    """Makes a sample of what an engine made for it alone: its values as the user has them, mapped."""

    look: Look
    fields: tuple[FieldPlan, ...]

    def __call__(self, values: Mapping[str, BatchValue], key: SampleKey) -> dict[str, Any]:
        (sample,) = self.look.samples(values, Plan((), self.fields), 1)
        for number, call in enumerate(self.look.maps):
            draws = Draws(key.seed, key.epoch, key.position, MAP_GROUP, number)
            made = call.call(sample, draws)
            if not isinstance(made, Mapping):
                raise UsageError(
                    f"the function given to map returned {type(made).__name__}",
                    hint="return a dict of the sample's fields",
                )
            sample = dict(made)
        return sample


def _part(name: str, number: int) -> str:
    return f"{name}[{number}]"


def _unstack(field: FieldPlan, value: Any) -> Any:
    if isinstance(field.field, Label) and getattr(value, "ndim", 0) == 1:
        return value.tolist()  # ints, as ImageFolder gives
    return value.unbind() if hasattr(value, "unbind") else value
