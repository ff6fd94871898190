"""``fastload bench``: how fast a dataset loads on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from fastload.cli.output import (
    common_options,
    new_table,
    plural,
    print_json,
    print_table,
    progress_bar,
    size_text,
    warn,
)

if TYPE_CHECKING:
    from fastload.bench.measure import Benchmark

ROWS = {
    "engine": "engine alone (the ceiling)",
    "warm": "fastload DataLoader, warm",
    "cold": "fastload DataLoader, cold",
    "torch": "",
}


@contextlib.contextmanager
def _samples(folder: str | None, photographs: int) -> Iterator[str]:
    """Make sample photographs, and a dataset of them, in ``folder`` or a temporary one."""
    from fastload.bench.photographs import make_photographs
    from fastload.convert import convert

    with contextlib.ExitStack() as stack:
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastload-samples-"))
        pictures, dataset = os.path.join(folder, "photographs"), os.path.join(folder, "photographs.fl")
        if not os.path.exists(os.path.join(dataset, "manifest.json")):
            warn(f"making {plural(photographs, 'sample photograph')} in {folder}")
            with progress_bar("photographs") as update:
                make_photographs(pictures, photographs, report=lambda count: update(count, photographs))
            with progress_bar("convert") as update:
                convert(pictures, dataset, progress=update)
        yield dataset


@click.command(short_help="Measure how fast a dataset loads here.")
@click.argument("dataset", required=False)
@click.option("--split", help="Which split; the only one, or train, if not given.")
@click.option("--batch-size", type=click.IntRange(min=1), default=128, show_default=True)
@click.option(
    "--workers", type=click.IntRange(min=0), help="num_workers of both loaders.  [default: one a CPU]"
)
@click.option(
    "--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Medians are over these."
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=4.0,
    show_default=True,
    help="Time for each measurement.",
)
@click.option("--records", type=click.IntRange(min=1), help="Use only the first so many records.")
@click.option("--image-size", type=click.IntRange(min=1), default=224, show_default=True, help="Crops' side.")
@click.option("--no-torch", is_flag=True, help="Do not compare with torch's DataLoader.")
@click.option(
    "--photographs", type=click.IntRange(min=20), default=1000, show_default=True, help="How many to make."
)
@click.option("--folder", help="Keep the photographs made, and their dataset, here.")
@common_options
def bench(
    dataset: str | None,
    split: str | None,
    batch_size: int,
    workers: int | None,
    rounds: int,
    seconds: float,
    records: int | None,
    image_size: int,
    no_torch: bool,
    photographs: int,
    folder: str | None,
    as_json: bool,
) -> None:
    """Measure how fast DATASET loads here, beside torch's DataLoader on the same records.

    Without DATASET sample photographs are made and measured. Each loader runs in its own process, in
    turn; figures are medians over the rounds.
    """
    from fastload.bench.measure import bench as run

    with contextlib.ExitStack() as stack:
        target = dataset if dataset is not None else stack.enter_context(_samples(folder, photographs))
        with progress_bar("measure") as update:
            found = run(
                target,
                split=split,
                batch_size=batch_size,
                workers=workers,
                rounds=rounds,
                seconds=seconds,
                records=records,
                image_size=image_size,
                compare=not no_torch,
                report=update,
            )
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print_benchmark(found)


def print_benchmark(found: Benchmark) -> None:
    """Print a benchmark as a table, with what it was measured on."""
    host = found.host
    click.echo(
        f"{host['cpu']}, {plural(host['cpus'], 'CPU')}, torch {host['torch']}, {host['backend']} engine"
    )
    work = f"images to {found.image_size} x {found.image_size}" if found.image_size else "records as they are"
    click.echo(
        f"{plural(found.records, 'record')} of {size_text(found.record_bytes)}, {work}, "
        f"batch {found.batch_size}, {plural(found.workers, 'worker')}, "
        f"medians of {len(found.results['warm'].rounds)}\n"
    )
    table = new_table(
        "loader", "samples/s", "batches/s", "MB/s", "first batch", "peak memory", right=(1, 2, 3, 4, 5)
    )
    for key, title in ROWS.items():
        if key in found.results:
            one = found.results[key]
            table.add_row(
                title or found.peer,
                f"{one.samples_per_second:,.0f}",
                f"{one.batches_per_second:,.1f}",
                f"{one.megabytes_per_second:,.0f}",
                f"{one.first_batch_seconds:.2f} s",
                size_text(one.peak_memory_bytes),
            )
    print_table(table)
    if found.ratio is not None:
        click.echo(f"\nfastload loads {found.ratio:.2f} times as many samples a second as torch's DataLoader")
    for note in found.notes:
        warn(f"note: {note}")
