"""A page with the images of some records, complete in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fastload.display import FIGURE_STYLE, figure
from fastload.errors import UsageError, WriteError
from fastload.schema import Image

if TYPE_CHECKING:
    from fastload.format import SplitReader

_STYLE = """
body { font: 14px system-ui, sans-serif; margin: 2em; background: #fafafa; color: #222; }
main { display: grid; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); gap: 16px; }
"""


def write_contact_sheet(page: Path, reader: SplitReader, records: Sequence[int], *, title: str) -> None:
    """Write thumbnails of every image field of ``records`` to ``page``, captioned with labels and texts.

    Images that cannot be decoded show why. Raises UsageError where no field is an image, and WriteError.
    """
    images = [name for name, field in reader.schema.items() if isinstance(field, Image)]
    if not images:
        raise UsageError("the dataset has no image field", path=reader.folder)
    figures = [figure(reader, record, name) for record in records for name in images]
    text = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}{FIGURE_STYLE}</style></head>\n<body><h1>{html.escape(title)}</h1><main>\n"
        + "\n".join(figures)
        + "\n</main></body></html>\n"
    )
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"the page cannot be written: {error.strerror}", path=str(page)) from error
