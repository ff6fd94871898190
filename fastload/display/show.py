"""What Dataset.show and a notebook show of a dataset."""

from __future__ import annotations

import dataclasses
import html
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.display.pictures import caption_of, figure, grid, to_pixels
from fastload.engine import BatchIndices, FieldPlan, Plan, make_engine
from fastload.errors import UsageError, WriteError
from fastload.schema import Image

if TYPE_CHECKING:
    from PIL import Image as PillowImage

Int64Array = npt.NDArray[np.int64]

_FIGURES = 4


def _image_fields(plan: Plan) -> tuple[FieldPlan, ...]:
    return tuple(field for field in plan.fields if isinstance(field.field, Image))


def _made(plan: Plan, source: int, record: int, position: int, epoch: int, engine: Any) -> list[Any]:
    """Return the image fields of one sample as HWC uint8, without those that are null."""
    one = [np.array([number], np.int64) for number in (position, source, record)]
    engine.submit(BatchIndices(one[0], one[1], one[2], epoch))
    batch = engine.next()
    pixels = []
    for field in plan.fields:
        value = batch[field.name][0]
        if value is not None:
            channels = 1 if getattr(field.field, "mode", None) == "L" else 3
            pixels.append(to_pixels(np.asarray(value), field.operations, channels))
    return pixels


def show(
    plan: Plan, sources: Int64Array, records: Int64Array, *, epoch: int, path: str | os.PathLike[str] | None
) -> PillowImage.Image:
    """Return the images of samples 0, 1, … as one picture, and write it to ``path`` where one is given.

    They are as transforms leave them, before Dataset.map.
    Raises UsageError where no field is an image, or there is no sample; WriteError; what making samples does.
    """
    plan = dataclasses.replace(plan, fields=_image_fields(plan), finish=None)
    if not plan.fields:
        raise UsageError("the dataset has no image field to show")
    pictures, captions = [], []
    engine = make_engine(plan, 0)
    try:
        for position, (source, record) in enumerate(zip(sources.tolist(), records.tolist(), strict=True)):
            for pixels in _made(plan, source, record, position, epoch, engine):
                pictures.append(pixels)
                captions.append(f"{position} {caption_of(plan.sources[source], record)}")
    finally:
        engine.close()
    if not pictures:
        raise UsageError("there is no image to show: the dataset is empty, or its images are null")
    page = grid(pictures, captions)
    if path is not None:
        try:
            page.save(path)
        except (OSError, ValueError) as error:  # ValueError: a name without an extension that Pillow knows
            raise WriteError(
                f"the picture cannot be written: {error}", path=os.fspath(path), hint="use .png or .jpg"
            ) from error
    return page


def describe_html(
    title: str, rows: Sequence[tuple[str, ...]], plan: Plan, sources: Int64Array, records: Int64Array
) -> str:
    """Return HTML: a title, a table of fields, and the first records' first image as it is stored."""
    table = "".join(
        "<tr>" + "".join(f"<td style='text-align: left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    figures = [
        f"<div style='width: 140px'>{figure(plan.sources[source], record, field.column)}</div>"
        for field in _image_fields(plan)[:1]
        for source, record in zip(sources[:_FIGURES].tolist(), records[:_FIGURES].tolist(), strict=True)
    ]
    return (
        f"<div><p>{html.escape(title)}</p><table>{table}</table>"
        f"<div style='display: flex; gap: 12px; margin-top: 8px'>{''.join(figures)}</div></div>"
    )
