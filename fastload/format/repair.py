"""Rebuilding a manifest that was lost or damaged, from the tables and shards that are there."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from fastload.errors import FastloadError, FormatError, UsageError
from fastload.format.collect import SHARD_FILE, TABLE_FILE
from fastload.format.layout import ShardEntry, check_split_name
from fastload.format.manifest import Manifest, load_table
from fastload.format.protocols import Storage
from fastload.format.publish import Base, current_manifest, publish_dataset
from fastload.format.scan import open_shard
from fastload.format.shard_reader import ShardReader
from fastload.format.table import ShardTable
from fastload.schema import Schema

__all__ = ["Orphan", "RepairReport", "repair"]


@dataclasses.dataclass(frozen=True)
class Orphan:
    """A sound shard that no table in use names: perhaps never published, perhaps of an older manifest."""

    entry: ShardEntry
    schema: Schema
    table: str | None
    """An older table that names it, if any."""


Decide = Callable[[Orphan], "str | None"]
"""Says to which split an orphan is added; None leaves it out."""


@dataclasses.dataclass(frozen=True)
class RepairReport:
    """What :func:`repair` did, or in a dry run would do.

    ``splits`` counts records by split. ``tables`` are the shard tables that were trusted. ``orphans`` are
    sound shards that were left out. ``problems`` say what could not be kept. ``manifest`` is what was
    published: None in a dry run, and where nothing was wrong.
    """

    needed: bool
    splits: dict[str, int]
    tables: dict[str, str]
    orphans: list[Orphan]
    problems: list[FastloadError]
    manifest: Manifest | None


@dataclasses.dataclass
class _Findings:
    schema: Schema | None
    metadata: dict[str, Any]
    generation: int
    tables: dict[str, ShardTable]
    problems: list[FastloadError]
    broken: bool


def repair(storage: Storage, *, decide: Decide | None = None, dry_run: bool = False) -> RepairReport:
    """Rebuild the manifest from what is there: shard tables first, then shards that none names.

    A split's table is the one that a sound manifest names, else the sound table of that split that was
    written last. Shards it names that are missing or damaged at their ends are left out. A shard without a
    table may never have been published, and its split is not known: ``decide`` is asked about each (in the
    order of names); without it they stay out. All shards must be of one schema.
    Raises UsageError where nothing here can be rebuilt, and WriteError.
    """
    findings = _look(storage)
    names = storage.list()
    shards: dict[str, list[ShardEntry]] = {}
    used: set[str] = set()
    for split, table in findings.tables.items():
        kept = shards[split] = []
        for number in range(table.shards):
            _keep_sound(storage, table, number, kept, findings)
        used.update(entry.name for entry in kept)
    orphans: list[Orphan] = []
    for orphan in _orphans(
        storage, [n for n in names if SHARD_FILE.fullmatch(n) and n not in used], findings
    ):
        split_or_none = decide(orphan) if decide is not None else None
        if split_or_none is None:
            orphans.append(orphan)
            continue
        if findings.schema is None:
            findings.schema = orphan.schema
        if orphan.schema != findings.schema:
            findings.problems.append(
                FormatError("the schema is another one", path=storage.url, shard=orphan.entry.name)
            )
            continue
        shards.setdefault(check_split_name(split_or_none), []).append(orphan.entry)
        findings.broken = True
    if findings.schema is None:
        raise UsageError(
            "nothing here can be rebuilt: no manifest and no table is sound",
            path=storage.url,
            hint=f"{len(orphans)} sound shards were found; say to which split they belong",
        )
    manifest = None
    if findings.broken and not dry_run:
        base = Base(None, current_manifest(storage), findings.generation)
        manifest = publish_dataset(storage, base, findings.schema, shards, metadata=findings.metadata)
    return RepairReport(
        findings.broken,
        {split: sum(entry.records for entry in entries) for split, entries in shards.items()},
        {split: table.path.rsplit("/", 1)[-1] for split, table in findings.tables.items()},
        orphans,
        findings.problems,
        manifest,
    )


def _look(storage: Storage) -> _Findings:
    """Read the manifest and the tables as far as they are sound."""
    findings = _Findings(None, {}, 0, {}, [], False)
    try:
        manifest = Manifest.load(storage)
    except FormatError as error:
        findings.problems.append(error)
        findings.broken = True
        findings.metadata = _metadata_of_broken(storage)
        _choose_tables(storage, findings)
        return findings
    findings.schema = manifest.schema
    findings.metadata = dict(manifest.metadata)
    findings.generation = manifest.generation
    for name, split in manifest.splits.items():
        try:
            findings.tables[name] = load_table(storage, split)
        except FastloadError as error:
            findings.problems.append(error)
            findings.broken = True
            _choose_tables(storage, findings, only=name)
    return findings


def _metadata_of_broken(storage: Storage) -> dict[str, Any]:
    try:
        content = json.loads(current_manifest(storage) or b"{}")
    except (ValueError, RecursionError):
        return {}
    metadata = content.get("metadata") if isinstance(content, dict) else None
    return metadata if isinstance(metadata, dict) else {}


def _choose_tables(storage: Storage, findings: _Findings, only: str | None = None) -> None:
    """Add, for each split, the sound table that was written last."""
    times: dict[str, float] = {}
    for name in storage.list():
        match = TABLE_FILE.fullmatch(name)
        if match is None or only not in (None, match["split"]):
            continue
        try:
            table = read_table(storage, name)
        except FastloadError as error:
            findings.problems.append(error)
            continue
        written = storage.modified(name) or 0.0
        if match["split"] not in times or written > times[match["split"]]:
            times[match["split"]] = written
            findings.tables[match["split"]] = table


def read_table(storage: Storage, name: str) -> ShardTable:
    """Read a shard table that no manifest vouches for. Raises ShardTable.parse's errors."""
    source = storage.open_read(name)
    try:
        return ShardTable.parse(source.read(0, source.size), f"{storage.url}/{name}")
    finally:
        source.close()


def _keep_sound(
    storage: Storage, table: ShardTable, number: int, kept: list[ShardEntry], findings: _Findings
) -> None:
    try:
        entry = table.entry(number)
        if findings.schema is None:
            findings.schema = _open_alone(storage, entry.name).schema
        open_shard(storage, entry, findings.schema).close()
    except (FastloadError, FileNotFoundError) as error:
        problem = error if isinstance(error, FastloadError) else FormatError(str(error), path=storage.url)
        findings.problems.append(problem)
        findings.broken = True
    else:
        kept.append(entry)


def _open_alone(storage: Storage, name: str) -> ShardReader:
    return ShardReader(storage.open_read(name), name, path=storage.url)


def _orphans(storage: Storage, names: list[str], findings: _Findings) -> list[Orphan]:
    old = _names_of_old_tables(storage, findings)
    out = []
    for name in names:
        try:
            reader = _open_alone(storage, name)
        except (FastloadError, FileNotFoundError):
            continue  # an unfinished shard of a killed writer: gc's
        out.append(Orphan(reader.entry, reader.schema, old.get(name)))
        reader.close()
    return out


def _names_of_old_tables(storage: Storage, findings: _Findings) -> dict[str, str]:
    in_use = {table.path for table in findings.tables.values()}
    out: dict[str, str] = {}
    for name in storage.list():
        if TABLE_FILE.fullmatch(name) and f"{storage.url}/{name}" not in in_use:
            try:
                out.update((entry.name, name) for entry in read_table(storage, name).entries())
            except FastloadError:
                continue
    return out
