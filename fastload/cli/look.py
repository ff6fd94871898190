"""``fastload info`` and ``fastload head``: what is in a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fastload.cli.output import common_options, new_table, plural, print_json, print_table, size_text, warn

if TYPE_CHECKING:
    from fastload.format import Manifest, SplitReader
    from fastload.format.protocols import Storage
    from fastload.schema import Field

SHOWN_CLASSES = 5
SHOWN_ELEMENTS = 8
SHOWN_CHARACTERS = 60


def open_manifest(url: str) -> tuple[Storage, Manifest]:
    """Open a dataset's folder and read its manifest. Raises NotADatasetError where there is none."""
    from fastload.format import Manifest
    from fastload.storage import open_storage

    storage = open_storage(url)
    return storage, Manifest.load(storage)


def open_split(url: str, split: str | None) -> SplitReader:
    """Open one split of a dataset; the only one, or ``train``, where ``split`` is None."""
    from fastload.format import SplitReader

    storage, manifest = open_manifest(url)
    if split is None and len(manifest.splits) > 1 and "train" in manifest.splits:
        split = "train"
    return SplitReader(storage, manifest, manifest.split_name(split, storage.url), verify="first")


@click.command(short_help="Say what is in a dataset.")
@click.argument("dataset")
@click.option("--shards", is_flag=True, help="List the shards too.")
@common_options
def info(dataset: str, shards: bool, as_json: bool) -> None:
    """Say what is in DATASET: its splits, shards, fields, metadata and fingerprint."""
    from fastload.format.manifest import load_table

    storage, manifest = open_manifest(dataset)
    tables = {name: load_table(storage, split) for name, split in manifest.splits.items()} if shards else {}
    if as_json:
        result: dict[str, Any] = {
            "path": dataset,
            "fingerprint": manifest.fingerprint,
            "generation": manifest.generation,
            "writer": manifest.writer,
            "splits": {
                name: {"records": split.records, "shards": split.shards, "bytes": split.bytes}
                for name, split in manifest.splits.items()
            },
            "schema": manifest.schema.to_json(),
            "metadata": dict(manifest.metadata),
        }
        for name, table in tables.items():
            entries = [
                {"name": entry.name, "records": entry.records, "bytes": entry.file_bytes}
                for entry in table.entries()
            ]
            result["splits"][name]["files"] = entries
        print_json(result)
        return
    click.echo(f"{dataset}: fingerprint {manifest.fingerprint}, generation {manifest.generation}\n")
    split_table = new_table("split", "records", "shards", "size", "a record", right=(1, 2, 3, 4))
    for name, split in manifest.splits.items():
        each = size_text(split.bytes / split.records) if split.records else ""
        split_table.add_row(name, f"{split.records:,}", f"{split.shards:,}", size_text(split.bytes), each)
    print_table(split_table)
    click.echo()
    field_table = new_table("field", "type", "")
    for name, field in manifest.schema.items():
        field_table.add_row(name, *describe_field(field))
    print_table(field_table)
    for key, value in manifest.metadata.items():
        click.echo(f"\n{key}: {shorten(str(value))}")
    for table in tables.values():
        click.echo()
        shard_table = new_table("shard", "records", "size", right=(1, 2))
        for entry in table.entries():
            shard_table.add_row(entry.name, f"{entry.records:,}", size_text(entry.file_bytes))
        print_table(shard_table)


def describe_field(field: Field) -> tuple[str, str]:
    """Return a field's type and its particulars, in words."""
    facts = field.to_json()
    kind = str(facts.pop("type"))
    parts: list[str] = []
    if "dtype" in facts:
        kind = f"{kind} of {facts['dtype']}" if "shape" in facts else str(facts["dtype"])
    if "shape" in facts:
        parts.append(" x ".join("any" if size is None else str(size) for size in facts["shape"]))
    if "classes" in facts:
        names = list(facts["classes"])
        more = ", …" if len(names) > SHOWN_CLASSES else ""
        parts.append(f"{plural(len(names), 'class')}: {', '.join(names[:SHOWN_CLASSES])}{more}")
    if facts.get("mode"):
        parts.append(str(facts["mode"]))
    if facts.get("codec", "raw") != "raw":
        parts.append(str(facts["codec"]))
    if facts.get("nullable"):
        parts.append("may be null")
    return kind, "; ".join(parts)


def shorten(text: str) -> str:
    """Return a text on one line, cut where it is long.

    >>> shorten("a" * 80)[-5:]
    'aaaa…'
    """
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"


def plain_value(field: Field, value: Any) -> Any:
    """Return a value as JSON can show it: images by their facts, long arrays by their shape."""
    from fastload.convert.images import inspect
    from fastload.errors import DecodeError
    from fastload.schema import Audio, Bytes, Image, Label, Video

    if value is None:
        return None
    if isinstance(field, Image):
        try:
            facts = inspect(bytes(value))
        except DecodeError as error:
            return {"bytes": len(value), "error": str(error)}
        return {"bytes": len(value), "format": facts.format, "width": facts.width, "height": facts.height}
    if isinstance(field, (Bytes, Audio, Video)):
        return {"bytes": len(value)}
    if isinstance(field, Label):
        return field.classes[int(value)]
    if hasattr(value, "tolist"):
        if value.ndim == 0 or value.size <= SHOWN_ELEMENTS:
            return value.tolist()
        return {"shape": list(value.shape), "dtype": str(value.dtype), "first": value.ravel()[:3].tolist()}
    return value


def value_text(plain: Any) -> str:
    """Return what :func:`plain_value` made as a short text."""
    if isinstance(plain, dict) and "format" in plain:
        size = size_text(plain["bytes"])
        return f"{str(plain['format']).upper()}, {plain['width']} x {plain['height']}, {size}"
    if isinstance(plain, dict) and "error" in plain:
        return f"{size_text(plain['bytes'])}: {plain['error']}"
    if isinstance(plain, dict) and "shape" in plain:
        shape = " x ".join(str(size) for size in plain["shape"])
        return f"{shape} {plain['dtype']}: {', '.join(str(item) for item in plain['first'])}, …"
    if isinstance(plain, dict) and set(plain) == {"bytes"}:
        return size_text(plain["bytes"])
    return shorten(str(plain))


@click.command(short_help="Show the first records.")
@click.argument("dataset")
@click.option(
    "-n", "count", default=5, show_default=True, type=click.IntRange(min=0), help="How many records."
)
@click.option("--start", default=0, show_default=True, type=click.IntRange(min=0), help="The first of them.")
@click.option("--split", help="Which split; the only one, or train, if not given.")
@click.option(
    "--images",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the records' images to this HTML page, as a contact sheet.",
)
@common_options
def head(dataset: str, count: int, start: int, split: str | None, page: Path | None, as_json: bool) -> None:
    """Show the first records of DATASET."""
    reader = open_split(dataset, split)
    numbers = range(min(start, reader.records), min(start + count, reader.records))
    if page is not None:
        from fastload.cli.contact_sheet import write_contact_sheet

        write_contact_sheet(page, reader, numbers, title=f"{dataset} [{reader.name}]")
    records = [
        {name: plain_value(field, reader.value(number, name)) for name, field in reader.schema.items()}
        for number in numbers
    ]
    if as_json:
        found: dict[str, Any] = {"path": dataset, "split": reader.name, "start": start, "records": records}
        print_json({**found, "images": str(page)} if page is not None else found)
        return
    table = new_table("", *reader.schema, right=(0,))
    for number, record in zip(numbers, records, strict=True):
        table.add_row(str(number), *(value_text(value) for value in record.values()))
    print_table(table)
    if page is not None:
        warn(f"wrote {page}")
