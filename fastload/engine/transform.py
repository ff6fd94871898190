"""What Dataset.transform makes of its arguments: the look of a dataset with more operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from fastload.engine.look import Look, Program, View
from fastload.errors import UsageError
from fastload.schema import Field, Image, Ragged, Schema, Tensor
from fastload.transforms import (
    LAST_GROUP,
    Call,
    MovedBoxes,
    MovedMask,
    MultiView,
    Operation,
    check_joint,
    from_torchvision,
    mask_operations,
    output_spec,
)

__all__ = ["transformed"]


def transformed(look: Look, stored: Schema, fields: Mapping[str | tuple[str, ...], Any]) -> Look:
    """Return ``look`` with the transforms of each field, or of each tuple of fields, behind those it has.

    Raises UsageError for operations that do not fit a field. Names are known to the look.
    """
    for name, transforms in fields.items():
        if isinstance(name, tuple):
            look = _together(look, stored, name, transforms)
        elif isinstance(transforms, MultiView):
            look = _with_views(look, stored, name, transforms)
        else:
            look = _alone(look, stored, name, transforms)
    return look


def _alone(look: Look, stored: Schema, name: str, transforms: Any) -> Look:
    if name in dict(look.views):
        raise UsageError(f"{name!r} is a view", hint="put its operations into MultiView")
    programs = dict(look.programs)
    if transforms is None:
        programs.pop(name, None)
    else:
        before = programs.get(name, Program((), look.next_group()))
        operations = before.operations + from_torchvision(transforms)
        programs[name] = dataclasses.replace(before, operations=operations)
        _check(name, stored[name], programs[name])
    return dataclasses.replace(look, programs=tuple(programs.items()))


def _with_views(look: Look, stored: Schema, name: str, multi: MultiView) -> Look:
    _check_untouched(look, (name,), "MultiView")
    field = stored[name]
    if not isinstance(field, Image):
        raise UsageError("MultiView is for Image fields", field=name, hint=f"the field is {field!r}")
    others = [column for column in look.columns if column != name]
    group, views = look.next_group(), dict(look.views)
    for view, (count, operations) in multi.views.items():
        if view in others:
            raise UsageError(f"there is a field {view!r} already", hint="call the view something else")
        views[view] = View(name, tuple(Program(operations, group + number) for number in range(count)))
        group += count
        _check(view, field, views[view].programs[-1])
    at = look.columns.index(name)
    columns = (*look.columns[:at], *multi.views, *look.columns[at + 1 :])
    return dataclasses.replace(look, columns=columns, views=tuple(views.items()))


def _together(look: Look, stored: Schema, names: tuple[str, ...], transforms: Any) -> Look:
    _check_untouched(look, names, "a transform of several fields")
    images = [name for name in names if isinstance(stored[name], Image)]
    if not images:
        raise UsageError(
            f"there is no Image field among {', '.join(names)}", hint="masks and boxes follow one"
        )
    operations = from_torchvision(transforms)
    kinds = {name: _role(stored[name], name == images[0]) for name in names}
    check_joint(operations, boxes="boxes" in kinds.values())
    masks = mask_operations(operations)
    group, programs = look.next_group(), dict(look.programs)
    for name, kind in kinds.items():
        own: tuple[Operation, ...] = {
            "image": operations,
            "mask image": masks,
            "mask": (MovedMask(masks, images[0]),),
            "boxes": (MovedBoxes(operations, images[0]),),
        }[kind]
        programs[name] = Program(own, group, images[0] if kind == "mask image" else "")
        _check(name, stored[name], programs[name])
    return dataclasses.replace(look, programs=tuple(programs.items()))


def _role(field: Field, first_image: bool) -> str:
    """Return what a field of a joint transform is: an image, a mask (an image or an array), or boxes."""
    if isinstance(field, Image):
        return "mask image" if field.mode == "L" and not first_image else "image"
    if isinstance(field, (Tensor, Ragged)):
        if field.dtype == "float32" and len(field.shape) == 2 and field.shape[1] == 4:
            return "boxes"
        if len(field.shape) in (2, 3) and field.dtype != "bfloat16":
            return "mask"
    raise UsageError(
        f"{field!r} cannot be transformed together with an image",
        hint="masks are Image('L') fields or arrays (H, W) or (N, H, W), boxes float32 (N, 4)",
    )


def _check_untouched(look: Look, names: Sequence[str], what: str) -> None:
    for name in names:
        if name in dict(look.programs) or name in dict(look.views):
            raise UsageError(
                f"{what} comes before other transforms, and {name!r} has some",
                hint="put them into its list; transform(name=None) removes them",
            )


def _check(name: str, field: Field, program: Program) -> None:
    if program.group > LAST_GROUP or len(program.operations) > 256:
        raise UsageError(f"more than {LAST_GROUP + 1} transformed fields, or 256 transforms", field=name)
    if isinstance(field, Image):
        output_spec(program.operations, 1 if field.mode == "L" else 3)
    elif not all(isinstance(operation, (Call, MovedMask, MovedBoxes)) for operation in program.operations):
        raise UsageError(
            "image operations are for Image fields",
            field=name,
            hint=f"the field is {field!r}: give a callable",
        )
