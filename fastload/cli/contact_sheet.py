"""A page with the images of some records, complete in one HTML file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastload.errors import UsageError, WriteError
from fastload.schema import Image, Label, Str

if TYPE_CHECKING:
    from fastload.format import SplitReader

THUMBNAIL = 240

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; background: #fafafa; color: #222; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 16px; }
figure { margin: 0; }
img { max-width: 100%; height: auto; display: block; }
figcaption { overflow-wrap: anywhere; color: #555; }
.bad { border: 1px solid #c33; color: #c33; padding: 1em; }
"""


def write_contact_sheet(page: Path, reader: SplitReader, records: Sequence[int], *, title: str) -> None:
    """Write thumbnails of every image field of ``records`` to ``page``, captioned with labels and texts.

    Images that cannot be decoded show why. Raises UsageError where no field is an image, and WriteError.
    """
    images = [name for name, field in reader.schema.items() if isinstance(field, Image)]
    if not images:
        raise UsageError("the dataset has no image field", path=reader.folder)
    figures = [_figure(reader, record, name) for record in records for name in images]
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1><main>\n"
        + "\n".join(figures)
        + "\n</main></body></html>\n"
    )
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"the page cannot be written: {error.strerror}", path=str(page)) from error


def _figure(reader: SplitReader, record: int, name: str) -> str:
    captions = [str(record)]
    for other, field in reader.schema.items():
        if isinstance(field, (Label, Str)):
            value = reader.value(record, other)
            if value is not None:
                captions.append(field.classes[int(value)] if isinstance(field, Label) else str(value))
    caption = f"<figcaption>{html.escape(' · '.join(captions))}</figcaption>"
    return f"<figure>{_picture(reader.value(record, name))}{caption}</figure>"


def _picture(data: bytes | None) -> str:
    from PIL import Image as PillowImage

    if data is None:
        return '<div class="bad">null</div>'
    try:
        with PillowImage.open(io.BytesIO(data)) as image:
            image.draft("RGB", (THUMBNAIL, THUMBNAIL))  # lets JPEG decode at a fraction of its size
            small = image.convert("RGB")
        small.thumbnail((THUMBNAIL, THUMBNAIL))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=85)
    except Exception as error:  # Pillow's plugins raise what they like; the sheet shows it.
        return f'<div class="bad">{html.escape(str(error))}</div>'
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img loading="lazy" alt="" src="data:image/jpeg;base64,{encoded}">'
