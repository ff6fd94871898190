"""Pictures of records: thumbnails of what is stored, and grids of what transforms made of it. Pillow only."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fastload.schema import Label, Str
from fastload.transforms import Call, Normalize, Operation, ToDtype, output_spec
from fastload.transforms.operations import affine

if TYPE_CHECKING:
    from PIL import Image as PillowImage

    from fastload.format import SplitReader

THUMBNAIL = 240
"""The longer side of a thumbnail, in pixels."""
_CELL = 256
_CAPTION = 16

FIGURE_STYLE = """
figure { margin: 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { overflow-wrap: anywhere; color: #555; }
.bad { border: 1px solid #c33; color: #c33; padding: 1em; }
"""
"""CSS for :func:`figure`."""


def caption_of(reader: SplitReader, record: int) -> str:
    """Return a record's labels and texts in one line."""
    captions = []
    for name, field in reader.schema.items():
        if isinstance(field, (Label, Str)):
            value = reader.value(record, name)
            if value is not None:
                captions.append(field.classes[int(value)] if isinstance(field, Label) else str(value))
    return " · ".join(captions)


def figure(reader: SplitReader, record: int, name: str) -> str:
    """Return HTML of an image as it is stored, with its record's number, labels and texts below.

    An image that cannot be decoded shows why.
    """
    caption = html.escape(" · ".join([str(record), caption_of(reader, record)]).rstrip(" ·"))
    try:
        data = reader.value(record, name)
        picture = (
            '<div class="bad">null</div>'
            if data is None
            else f'<img loading="lazy" alt="" src="{data_uri(thumbnail(data))}">'
        )
    except Exception as error:  # Pillow's plugins raise what they like; the page shows it.
        picture = f'<div class="bad">{html.escape(str(error))}</div>'
    return f"<figure>{picture}<figcaption>{caption}</figcaption></figure>"


def thumbnail(data: bytes) -> PillowImage.Image:
    """Return an encoded image in RGB, at most THUMBNAIL on a side. Raises what Pillow does."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (THUMBNAIL, THUMBNAIL))  # lets JPEG decode at a fraction of its size
        small: PillowImage.Image = image.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return small


def data_uri(image: PillowImage.Image) -> str:
    """Return an RGB image as a URL that holds it."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


def to_pixels(
    value: npt.NDArray[Any], operations: Sequence[Operation], channels: int = 3
) -> npt.NDArray[np.uint8]:
    """Return what ``operations`` made of an image of ``channels`` as HWC uint8: normalising is undone.

    Where a callable came last, floats from 0 to 1 are taken as colours, others stretched to their range.

    >>> to_pixels(np.full((1, 2, 2), 0.2, np.float32), [ToDtype("float32", scale=True)], 1)[0, 0]
    array([51], dtype=uint8)
    """
    spec = output_spec(operations, channels)
    if value.ndim == 3 and spec.layout != "NHWC":
        value = value.transpose(1, 2, 0)
    value = value[:, :, None] if value.ndim == 2 else value
    if spec.dtype == "bfloat16":
        value = (value.astype(np.uint32) << 16).view(np.float32)
    if value.dtype == np.uint8:
        return value
    wide = value.astype(np.float64)
    if any(isinstance(operation, Call) for operation in operations):
        low, high = min(float(wide.min()), 0.0), max(float(wide.max()), 1.0)
        wide = (wide - low) * (255.0 / (high - low))
    else:
        steps = [op for op in operations if isinstance(op, (ToDtype, Normalize))]
        scale, offset = affine(steps, value.shape[2])
        wide = (wide - offset) / scale
    return np.clip(np.rint(wide), 0, 255).astype(np.uint8)


def _cell(pixels: npt.NDArray[np.uint8]) -> PillowImage.Image:
    from PIL import Image

    shown = pixels[:, :, :3] if pixels.shape[2] >= 3 else pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(shown)).convert("RGB")
    longer = max(image.size)
    if 2 * longer <= _CELL:  # small images are easier to see with whole multiples of their pixels
        times = _CELL // longer
        return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
    image.thumbnail((_CELL, _CELL))
    return image


def grid(pictures: Sequence[npt.NDArray[np.uint8]], captions: Sequence[str]) -> PillowImage.Image:
    """Return HWC uint8 ``pictures`` side by side, each over its caption; at least one."""
    from PIL import Image, ImageDraw, ImageFont

    cells = [_cell(pixels) for pixels in pictures]
    width, height = max(cell.width for cell in cells), max(cell.height for cell in cells) + _CAPTION
    columns = min(len(cells), max(1, math.ceil(math.sqrt(len(cells) * height / width))))
    page = Image.new("RGB", (columns * (width + 4), -(-len(cells) // columns) * (height + 4)), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default()
    for number, (cell, caption) in enumerate(zip(cells, captions, strict=True)):
        left, top = number % columns * (width + 4), number // columns * (height + 4)
        page.paste(cell, (left + 2, top + 2))
        text = caption.encode("latin-1", "replace").decode("latin-1")  # all that the font has
        while text and draw.textlength(text, font=font) > width:
            text = text[:-1]
        draw.text((left + 2, top + cell.height + 4), text, "black", font)
    return page
