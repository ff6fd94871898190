"""``fastload verify``, ``repair``, ``gc`` and ``merge``: care of datasets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from fastload.cli.output import common_options, plural, print_json, progress_bar, size_text, warn

if TYPE_CHECKING:
    from fastload.errors import FastloadError
    from fastload.format.repair import Orphan, RepairReport

SHOWN = 20


def error_facts(error: FastloadError) -> dict[str, Any]:
    """Return an error as JSON: its type, sentence, and the parts of where that it has."""
    places = ("path", "shard", "record", "field", "offset")
    known = {name: getattr(error, name) for name in places if getattr(error, name) is not None}
    return {"type": type(error).__name__, "message": str(error), **known}


@click.command(short_help="List all that is wrong with a dataset.")
@click.argument("dataset")
@click.option("--split", help="Only this split.")
@common_options
@click.pass_context
def verify(context: click.Context, dataset: str, split: str | None, as_json: bool) -> None:
    """Read all of DATASET and list everything that is wrong with it; exit code 1 if anything is."""
    from fastload.format import verify_dataset
    from fastload.storage import open_storage

    seen = 0

    def advance(done: int, total: int) -> None:
        nonlocal seen
        update(done - seen, total)
        seen = done

    with progress_bar("verify") as update:
        problems = verify_dataset(open_storage(dataset), split=split, progress=advance)
    if as_json:
        print_json({"path": dataset, "sound": not problems, "problems": [error_facts(p) for p in problems]})
    else:
        for problem in problems:
            click.echo(str(problem))
        click.echo(
            f"{dataset}: {plural(len(problems), 'problem') if problems else 'sound'}, {size_text(seen)} read"
        )
    if problems:
        context.exit(1)


@click.command(short_help="Rebuild a manifest from the shards.")
@click.argument("dataset")
@click.option("--adopt", metavar="SPLIT", help="Add sound shards that no table names to this split.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@common_options
def repair(dataset: str, adopt: str | None, dry_run: bool, as_json: bool) -> None:
    """Rebuild DATASET's manifest from its tables and shards.

    Shards that are missing or damaged are left out. Shards that no table names may never have been
    published: on a terminal you are asked about them, elsewhere they stay out without --adopt.
    """
    from fastload.format import repair as run
    from fastload.storage import open_storage

    storage = open_storage(dataset)
    if adopt is None and not dry_run and not as_json and sys.stdin.isatty():
        adopt = _ask_about(run(storage, decide=lambda _orphan: None, dry_run=True).orphans)

    def decide(orphan: Orphan) -> str | None:
        # A shard of an older table was replaced on purpose: it is not for adoption.
        return adopt if orphan.table is None else None

    report = run(storage, decide=decide if adopt else None, dry_run=dry_run)
    if as_json:
        print_json({"path": dataset, "dry_run": dry_run, **_repair_facts(report)})
        return
    for problem in report.problems[:SHOWN]:
        warn(f"not kept: {problem}")
    if len(report.problems) > SHOWN:
        warn(f"… and {len(report.problems) - SHOWN:,} more (--json lists all)")
    if report.orphans:
        records = sum(orphan.entry.records for orphan in report.orphans)
        shards = plural(len(report.orphans), "sound shard")
        warn(f"{shards} of {plural(records, 'record')} left out: no table in use names them")
    records = sum(report.splits.values())
    content = f"{plural(records, 'record')} in {plural(len(report.splits), 'split')}"
    if not report.needed:
        click.echo(f"{dataset}: nothing to repair, {content}")
    else:
        click.echo(f"{dataset}: {'would hold' if dry_run else 'repaired,'} {content}")


def _ask_about(orphans: list[Orphan]) -> str | None:
    unnamed = [orphan for orphan in orphans if orphan.table is None]
    if not unnamed:
        return None
    records = sum(orphan.entry.records for orphan in unnamed)
    warn(f"{plural(len(unnamed), 'sound shard')} of {plural(records, 'record')} are named by no table.")
    answer: str = click.prompt("The split to add them to (empty: leave them out)", default="", err=True)
    return answer.strip() or None


def _repair_facts(report: RepairReport) -> dict[str, Any]:
    return {
        "needed": report.needed,
        "published": report.manifest is not None,
        "splits": report.splits,
        "tables": report.tables,
        "orphans": [
            {"shard": orphan.entry.name, "records": orphan.entry.records, "table": orphan.table}
            for orphan in report.orphans
        ],
        "problems": [error_facts(problem) for problem in report.problems],
    }


@click.command(short_help="Remove files that no manifest names.")
@click.argument("dataset")
@click.option("--yes", is_flag=True, help="Remove them. Without it they are only listed.")
@click.option(
    "--older-than",
    type=click.FloatRange(min=0),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="Leave younger files: their writer may still be at work.",
)
@common_options
def gc(dataset: str, yes: bool, older_than: float, as_json: bool) -> None:
    """List, or with --yes remove, the files in DATASET that its manifest does not name."""
    from fastload.format import gc as run
    from fastload.storage import open_storage

    report = run(open_storage(dataset), dry_run=not yes, older_than=older_than)
    if as_json:
        print_json(
            {
                "path": dataset,
                "removed": report.removed,
                "files": report.files,
                "bytes": report.bytes,
                "recent": report.recent,
            }
        )
        return
    for name, size in report.files.items():
        click.echo(f"{name}  {size_text(size)}")
    if report.recent:
        warn(f"{plural(len(report.recent), 'file')} younger than {older_than:g} s left")
    what = "removed" if report.removed else "would be removed (--yes removes them)"
    click.echo(f"{plural(len(report.files), 'file')}, {size_text(report.bytes)}, {what}")


@click.command(short_help="Join datasets.")
@click.argument("sources", nargs=-1, required=True)
@click.argument("target")
@click.option("--overwrite", is_flag=True, help="Replace the dataset TARGET.")
@click.option("--append", is_flag=True, help="Add to the dataset TARGET.")
@common_options
def merge(sources: tuple[str, ...], target: str, overwrite: bool, append: bool, as_json: bool) -> None:
    """Make the dataset TARGET of the records of SOURCES, split by split.

    On one local filesystem shards are linked, not copied.
    """
    from fastload.format import merge as run
    from fastload.storage import open_storage

    if overwrite and append:
        raise click.UsageError("--overwrite and --append exclude each other")
    mode = "overwrite" if overwrite else "append" if append else "create"
    manifest = run(open_storage(target), [open_storage(source) for source in sources], mode=mode)
    records = {name: split.records for name, split in manifest.splits.items()}
    if as_json:
        print_json({"path": target, "records": records, "fingerprint": manifest.fingerprint})
        return
    click.echo(f"{plural(sum(records.values()), 'record')} in {plural(len(records), 'split')}: {target}")
