"""Which kind of source a path is, and the classes that a file or dataset states."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from fastload.convert.files import FileTree, local_path
from fastload.convert.source import Source, SourceOptions
from fastload.errors import SourceError
from fastload.format import Manifest
from fastload.schema import Label, Schema
from fastload.storage import open_storage

KINDS = ("image-folder", "numpy", "parquet", "torch")

LOOKED_AT = 10_000
"""How many files of a folder are looked at to see of which kind they are."""

_OBJECT = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
_BY_EXTENSION = {
    **dict.fromkeys((".npy", ".npz"), "numpy"),
    **dict.fromkeys((".parquet", ".pq", ".arrow", ".feather", ".ipc"), "parquet"),
}


def detect_kind(source: str, storage_options: Mapping[str, Any]) -> str:
    """Return which of :data:`KINDS` a path or URL is. Raises SourceError where that cannot be said."""
    from fastload.convert.sources.image_folder import is_image_name

    tree = FileTree(source, storage_options)
    what = tree.kind() if not _OBJECT.match(source) or os.path.exists(source) else "object"
    if what == "object":
        return "torch"
    if what == "missing":
        raise SourceError("no such file or folder", path=source)
    extension = os.path.splitext(source.rstrip("/"))[1].lower()
    if what == "file":
        if extension in _BY_EXTENSION:
            return _BY_EXTENSION[extension]
        raise SourceError(
            "this kind of file is not known",
            path=source,
            hint=f"known are {', '.join(_BY_EXTENSION)}, and folders",
        )
    entries = tree.some_entries(LOOKED_AT)
    if any(entry.path == "manifest.json" for entry in entries):
        raise SourceError("this is a dataset already", path=source, hint="`fastload merge` joins datasets")
    kinds: set[str] = set()
    for entry in entries:
        kind = _BY_EXTENSION.get(os.path.splitext(entry.name)[1].lower())
        if is_image_name(entry.name):
            kinds.add("image-folder")
        elif kind is not None and not entry.name.endswith(".npz"):
            kinds.add(kind)
    if not kinds:
        seen = f"{len(entries)} files, none" if entries else "no files, so none"
        raise SourceError(
            f"nothing to convert: {seen} that are images, .npy arrays, Parquet or Arrow tables", path=source
        )
    if len(kinds) > 1:
        raise SourceError(
            f"the folder holds files of several kinds: {', '.join(sorted(kinds))}",
            path=source,
            hint="say which with --from",
        )
    return kinds.pop()


def open_source(source: Any, kind: str, options: SourceOptions, schema: Schema | None = None) -> Source:
    """Return the source of a kind. Raises SourceError where it cannot be converted."""
    if kind == "torch":
        from fastload.convert.sources.torch_dataset import TorchDatasetSource

        return TorchDatasetSource(source, options, schema)
    tree = FileTree(source, options.storage_options)
    if tree.kind() == "missing":
        raise SourceError("no such file or folder", path=source)
    if kind == "image-folder":
        from fastload.convert.sources.image_folder import ImageFolderSource

        if tree.kind() == "file":
            raise SourceError("an image folder is a folder, and this is a file", path=source)
        return ImageFolderSource(tree, options)
    if kind == "numpy":
        from fastload.convert.sources.numpy_arrays import NumpySource

        return NumpySource(tree, options)
    from fastload.convert.sources.parquet import TableSource

    return TableSource(tree, options)


def read_classes(origin: str, storage_options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the classes of a dataset's only label, of a JSON list, or of a text file with one a line.

    Raises SourceError where there are none.
    """
    local = local_path(origin)
    if local is None or os.path.isdir(local):
        is_local = local is not None
        manifest = Manifest.load(open_storage(origin, None if is_local else storage_options))
        labels = [field for field in manifest.schema.values() if isinstance(field, Label)]
        if len(labels) != 1:
            raise SourceError(f"the dataset has {len(labels)} label fields, not one", path=origin)
        return labels[0].classes
    try:
        with open(local, encoding="utf-8") as file:
            text = file.read()
        names = json.loads(text) if local.endswith(".json") else [line.strip() for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise SourceError(f"the classes cannot be read: {error}", path=origin) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SourceError("the classes are no JSON list of names", path=origin)
    found = tuple(name for name in names if name)
    if not found:
        raise SourceError("the file holds no class names", path=origin)
    return found
