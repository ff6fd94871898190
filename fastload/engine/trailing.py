"""Programs without the arithmetic at their end, which a device can do behind the copy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from fastload.engine.look import Look, Program, View
from fastload.errors import UsageError
from fastload.schema import Image, Schema
from fastload.transforms import Layout, Normalize, Operation, ToDtype, output_channels, output_spec
from fastload.transforms.operations import affine

__all__ = ["Trailing", "without_trailing"]


@dataclasses.dataclass(frozen=True)
class Trailing:
    """What is left to do to a field's images: value * ``scale`` + ``offset`` in float32, then ``dtype``.

    ``scale`` and ``offset`` have a float32 value for each channel. Channels are the last dimension with
    ``channels_last``, else the third from the end.
    """

    scale: tuple[float, ...]
    offset: tuple[float, ...]
    dtype: str
    channels_last: bool


def without_trailing(look: Look, schema: Schema) -> tuple[Look, Mapping[str, Trailing]]:
    """Return ``look`` with images that stay uint8, and by column what is then left to do.

    ``schema`` is the stored one. Raises UsageError where there is nothing to leave out, or not all of it can
    be: the bits of a batch must not depend on where this is done.
    """
    rest: dict[str, Trailing] = {}
    programs, views = dict(look.programs), dict(look.views)
    for column in look.columns:
        stored = look.stored(column)
        field = schema[stored]
        if not isinstance(field, Image):
            continue
        channels = 1 if field.mode == "L" else 3
        own = views[column].programs if column in views else (programs.get(column, Program((), 0)),)
        spec = output_spec(own[0].operations, channels)
        if spec.dtype == "uint8":
            continue
        kept, rest[column] = _split(column, own[0].operations, channels)
        shorter = tuple(dataclasses.replace(program, operations=kept) for program in own)
        if column in views:
            views[column] = View(stored, shorter)
        else:
            programs[column] = shorter[0]
    if not rest:
        raise UsageError(
            "normalize_on='device' has nothing to do: no image field of the dataset is converted to floats",
            hint="end a field's transforms in T.ToDtype(torch.float32, scale=True), T.Normalize(mean, std)",
        )
    return dataclasses.replace(look, programs=tuple(programs.items()), views=tuple(views.items())), rest


def _split(
    column: str, operations: Sequence[Operation], channels: int
) -> tuple[tuple[Operation, ...], Trailing]:
    """Return the operations that make uint8 images, and the arithmetic behind them."""
    end = len(operations)
    while end and isinstance(operations[end - 1], (ToDtype, Normalize, Layout)):
        end -= 1
    kept = operations[:end]
    arithmetic = [each for each in operations[end:] if not isinstance(each, Layout)]
    before = output_spec(kept, channels)
    if before.dtype != "uint8":
        raise UsageError(
            f"normalize_on='device' cannot move what is before {operations[end - 1]!r}, which takes floats",
            field=column,
            hint="put T.ToDtype and T.Normalize behind all other transforms, or normalise on the host",
        )
    if any(isinstance(each, ToDtype) and each.dtype == "uint8" for each in arithmetic[1:]):
        raise UsageError("normalize_on='device' converts to floats once, and not back", field=column)
    spec = output_spec(operations, channels)
    assert spec.dtype is not None, "a callable would have ended the arithmetic"
    scale, offset = affine(arithmetic, output_channels(kept, channels))
    layouts = tuple(each for each in operations[end:] if isinstance(each, Layout))
    trailing = Trailing(
        tuple(scale.tolist()), tuple(offset.tolist()), spec.dtype, channels_last=spec.layout == "NHWC"
    )
    return (*kept, *layouts), trailing
