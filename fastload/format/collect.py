"""Removing files that no manifest names, and merging datasets."""

from __future__ import annotations

import dataclasses
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastload.errors import ShardNotFoundError, UsageError
from fastload.format.layout import MANIFEST_NAME, ShardEntry, shard_name
from fastload.format.manifest import Manifest, load_table
from fastload.format.protocols import Storage
from fastload.format.publish import publish_dataset, read_base

__all__ = ["GcReport", "gc", "merge"]

SHARD_FILE = re.compile(r"[0-9a-f]{16}-[0-9]{6,}\.shard")
TABLE_FILE = re.compile(r"(?P<split>[A-Za-z0-9_][A-Za-z0-9_.-]{0,99})-[0-9a-f]{16}\.table")
TEMPORARY_FILE = re.compile(re.escape(MANIFEST_NAME) + r"\.[0-9a-f]{16}\.tmp")


@dataclasses.dataclass(frozen=True)
class GcReport:
    """What :func:`gc` found: names and bytes of files that no manifest names.

    ``files`` are (or in a dry run would be) removed; ``recent`` are left, as their writer may be at work.
    """

    files: dict[str, int]
    recent: dict[str, int]
    removed: bool

    @property
    def bytes(self) -> int:
        """Bytes of ``files`` together."""
        return sum(self.files.values())


def gc(storage: Storage, *, dry_run: bool = True, older_than: float = 3600.0) -> GcReport:
    """Remove shards, tables and temporary files that the manifest does not name: only with ``dry_run=False``.

    Only files named as fastload names its own are touched, and of those only such as were last written more
    than ``older_than`` seconds ago: younger ones may belong to a writer that has not published yet. Readers
    of an older manifest lose their shards.
    Raises NotADatasetError where there is no manifest (nothing says then what is needed), the manifest's
    and tables' errors, and WriteError.
    """
    manifest = Manifest.load(storage)
    needed = {MANIFEST_NAME}
    for split in manifest.splits.values():
        needed.add(split.table)
        needed.update(entry.name for entry in load_table(storage, split).entries())
    files: dict[str, int] = {}
    recent: dict[str, int] = {}
    now = time.time()
    for name in storage.list():
        own = any(pattern.fullmatch(name) for pattern in (SHARD_FILE, TABLE_FILE, TEMPORARY_FILE))
        if not own or name in needed:
            continue
        try:
            size, modified = storage.size(name), storage.modified(name)
        except FileNotFoundError:
            continue
        young = older_than > 0 and (modified is None or now - modified < older_than)
        (recent if young else files)[name] = size
    if not dry_run:
        for name in files:
            storage.delete(name)
    return GcReport(files, recent, not dry_run)


def merge(
    target: Storage,
    sources: Sequence[Storage],
    *,
    mode: str = "create",
    metadata: Mapping[str, Any] | None = None,
) -> Manifest:
    """Publish a dataset at ``target`` that holds the records of all ``sources``, in order, split by split.

    Shards are hard links where source and target are on one local filesystem, else copies. The sources'
    schemas must be equal (and equal to the target's for ``mode="append"``). ``metadata`` None takes the
    first source's. Raises UsageError, the sources' errors and WriteError; then nothing is published and
    nothing is left of what was copied.
    """
    if not sources:
        raise UsageError("there is nothing to merge", path=target.url)
    manifests = [Manifest.load(source) for source in sources]
    schema = manifests[0].schema
    for source, manifest in zip(sources, manifests, strict=True):
        if manifest.schema != schema:
            raise UsageError(
                f"its schema differs from that of {sources[0].url}",
                path=source.url,
                hint="only datasets of equal schemas merge",
            )
    base = read_base(target, mode, schema)
    random = secrets.token_hex(8)
    new: dict[str, list[ShardEntry]] = {}
    copied: list[str] = []
    try:
        for source, manifest in zip(sources, manifests, strict=True):
            for split, content in manifest.splits.items():
                shards = new.setdefault(split, [])
                for entry in load_table(source, content).entries():
                    name = shard_name(random, len(copied))
                    copied.append(name)
                    _adopt(target, source, entry.name, name)
                    shards.append(dataclasses.replace(entry, name=name))
        chosen = manifests[0].metadata if metadata is None and base.manifest is None else metadata
        return publish_dataset(target, base, schema, new, metadata=chosen)
    except BaseException:
        for name in copied:
            target.delete(name)
        raise


def _adopt(target: Storage, source: Storage, source_name: str, name: str) -> None:
    try:
        target.adopt(source, source_name, name)
    except FileNotFoundError as error:
        raise ShardNotFoundError(
            "a shard that the dataset names is missing",
            path=source.url,
            shard=source_name,
            hint="restore the file, or drop it with `fastload repair`",
        ) from error
