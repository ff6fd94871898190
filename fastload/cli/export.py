"""``fastload export``: back to files."""

from __future__ import annotations

import dataclasses

import click

from fastload.cli.output import common_options, plural, print_json, progress_bar, warn


@click.command(short_help="Write a dataset back to ordinary files.")
@click.argument("dataset")
@click.argument("target")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["image-folder", "numpy", "parquet"]),
    help="What to write; image-folder where there are images, else parquet, if not given.",
)
@click.option("--split", "splits", multiple=True, help="Only this split (may be given again).")
@click.option("--field", "fields", multiple=True, help="Only this field (may be given again).")
@click.option("--overwrite", is_flag=True, help="Replace TARGET if it exists.")
@common_options
def export(
    dataset: str,
    target: str,
    kind: str | None,
    splits: tuple[str, ...],
    fields: tuple[str, ...],
    overwrite: bool,
    as_json: bool,
) -> None:
    """Write DATASET's records to the folder TARGET as ordinary files."""
    from fastload.convert.exporter import export as run

    with progress_bar("export") as update:
        done = run(
            dataset,
            target,
            kind=kind,
            splits=splits or None,
            fields=fields or None,
            overwrite=overwrite,
            report=lambda count: update(count, None),
        )
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    for note in done.notes:
        warn(f"note: {note}")
    click.echo(f"wrote {plural(sum(done.records.values()), 'record')} to {done.path} as {done.kind}")
