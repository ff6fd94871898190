"""Care of datasets by path: verify, repair, gc and merge, as the command line has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

from fastload import format as formats
from fastload.errors import FastloadError
from fastload.format import GcReport, Manifest, Orphan, RepairReport
from fastload.storage import open_storage

__all__ = ["gc", "merge", "repair", "verify"]

Path = Union[str, "os.PathLike[str]"]


def verify(
    path: Path,
    split: str | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[FastloadError]:
    """Read the whole dataset, or one split, and return every problem as an error; an empty list is sound.

    ``progress`` is called as (bytes done, bytes in all). Images, audio and video are not decoded. Raises
    NotADatasetError where there is no manifest, UsageError for an unknown split.
    """
    return formats.verify_dataset(open_storage(path, storage_options), split=split, progress=progress)


def repair(
    path: Path,
    *,
    decide: Callable[[Orphan], str | None] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Rebuild a dataset's manifest from its shard tables and shards.

    ``decide`` is asked for the split of each sound shard that no table names; without it these stay out.
    Raises UsageError where nothing can be rebuilt, and WriteError.
    """
    return formats.repair(open_storage(path, storage_options), decide=decide, dry_run=dry_run)


def gc(
    path: Path,
    *,
    dry_run: bool = True,
    older_than: float = 3600.0,
    storage_options: Mapping[str, Any] | None = None,
) -> GcReport:
    """Find the files of a dataset's folder that no manifest names, and with ``dry_run=False`` remove them.

    Files written less than ``older_than`` seconds ago are left: their writer may be at work.
    """
    return formats.gc(open_storage(path, storage_options), dry_run=dry_run, older_than=older_than)


def merge(
    target: Path,
    sources: Sequence[Path],
    *,
    mode: str = "create",
    metadata: Mapping[str, Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Publish at ``target`` the records of all ``sources`` (of one schema), in order, split by split.

    ``mode`` is ``"create"``, ``"append"`` or ``"overwrite"``, as the Writer has it. On one local filesystem
    shards are linked, not copied. ``metadata`` None keeps the first source's. ``storage_options`` go to
    fsspec for target and sources alike.
    """
    return formats.merge(
        open_storage(target, storage_options),
        [open_storage(source, storage_options) for source in sources],
        mode=mode,
        metadata=metadata,
    )
