"""``fastload convert``: other kinds of data to a dataset."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from fastload.cli.output import common_options, plural, print_json, progress_bar, size_text, warn

if TYPE_CHECKING:
    from fastload.convert.jpeg import JpegReport

SHOWN_SKIPPED = 10


def storage_options_of(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return KEY=VALUE pairs as a mapping. Raises a usage error for a pair without ``=``."""
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--storage-option")
        options[key] = value
    return options


def _jpeg_line(jpeg: JpegReport) -> str:
    line = (
        f"{plural(jpeg.images, 'JPEG image')}: {size_text(jpeg.bytes_before)} before, "
        f"{size_text(jpeg.bytes_after)} now"
    )
    if not jpeg.kept:
        return line
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in jpeg.kept.items())
    return f"{line}; {sum(jpeg.kept.values()):,} without segments ({reasons})"


@click.command(short_help="Make a dataset of images, arrays, tables or a torch Dataset.")
@click.argument("source")
@click.argument("target")
@click.option(
    "--from",
    "kind",
    type=click.Choice(["image-folder", "numpy", "parquet", "torch"]),
    help="What SOURCE is, where that cannot be seen.",
)
@click.option("--split", help="The split to make; of a source that has splits, the one to take.")
@click.option("--classes-from", metavar="DATASET|FILE", help="Take the classes and their order from there.")
@click.option("--columns", metavar="A,B,…", help="Take only these columns or arrays.")
@click.option("--image-column", "image_columns", multiple=True, help="Bytes in this column are image files.")
@click.option(
    "--jpeg",
    metavar="MODE",
    default="segment",
    show_default=True,
    help="What becomes of JPEG images: segment (rewritten without loss, so that crops decode faster), keep, "
    'or "encode QUALITY [MAXSIZE]" (smaller, with loss).',
)
@click.option("--icc", is_flag=True, help="Keep the colour profiles of JPEG images that are rewritten.")
@click.option(
    "--image",
    type=click.Choice(["keep", "raw", "array"]),
    default="keep",
    show_default=True,
    help="What becomes of images: raw decodes them now, so that loading them need not; array keeps their "
    "own values, of any depth and channels.",
)
@click.option(
    "--size",
    type=click.IntRange(min=1),
    metavar="PIXELS",
    help="With --image raw: reduce larger images to this length of the longer side.",
)
@click.option(
    "--encode",
    type=click.Choice(["png", "webp", "jpeg"]),
    default="png",
    show_default=True,
    help="How images that a torch dataset gives decoded are stored.",
)
@click.option(
    "--check",
    type=click.Choice(["none", "header", "decode"]),
    default="header",
    show_default=True,
    help="How closely images are looked at: not, headers and end, or every pixel.",
)
@click.option(
    "--on-bad",
    type=click.Choice(["raise", "skip"]),
    default="raise",
    show_default=True,
    help="Stop at a bad record, or leave it out and list it.",
)
@click.option(
    "--workers", type=click.IntRange(min=0), help="Worker processes; 0 or 1: none.  [default: one a CPU]"
)
@click.option("--shard-size", default="256MB", show_default=True, help="About how large files become.")
@click.option("--overwrite", is_flag=True, help="Replace the dataset TARGET.")
@click.option("--append", is_flag=True, help="Add to the dataset TARGET.")
@click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="KEY=VALUE",
    help="For fsspec, where SOURCE or TARGET is a URL.",
)
@common_options
def convert(
    source: str,
    target: str,
    columns: str | None,
    storage_options: tuple[str, ...],
    overwrite: bool,
    append: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Convert SOURCE to the dataset TARGET.

    SOURCE is a folder of images (class folders, or train/ and val/ with class folders), .npy or .npz
    arrays, Parquet or Arrow tables, or a torch Dataset as module:object. SOURCE and TARGET may be URLs.
    """
    from fastload.convert import convert as run

    if overwrite and append:
        raise click.UsageError("--overwrite and --append exclude each other")
    with progress_bar("convert") as update:
        done = run(
            source,
            target,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            mode="overwrite" if overwrite else "append" if append else "create",
            storage_options=storage_options_of(storage_options) or None,
            progress=update,
            **options,
        )
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    for where, why in done.skipped[:SHOWN_SKIPPED]:
        warn(f"skipped {where}: {why}")
    if len(done.skipped) > SHOWN_SKIPPED:
        warn(f"… and {len(done.skipped) - SHOWN_SKIPPED:,} more (--json lists all)")
    if done.skipped:
        warn(f"{plural(len(done.skipped), 'record')} skipped")
    if done.oriented:
        warn(
            f"note: {plural(done.oriented, 'image')} with an EXIF orientation; they are kept and loaded as "
            "they are stored, unrotated"
        )
    for note in done.notes:
        warn(f"note: {note}")
    if done.jpeg is not None and (done.jpeg.kept or done.jpeg.bytes_before != done.jpeg.bytes_after):
        click.echo(_jpeg_line(done.jpeg))
    records, size = sum(done.records.values()), sum(done.bytes.values())
    splits = f" ({', '.join(f'{name} {count:,}' for name, count in done.records.items())})"
    click.echo(
        f"{plural(records, 'record')}{splits if len(done.records) > 1 else ''}, {size_text(size)}, in "
        f"{done.seconds:.1f} s: {done.path}"
    )
