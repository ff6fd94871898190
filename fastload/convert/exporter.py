"""Back to files: a dataset as an image folder, NumPy arrays or Parquet."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from fastload.convert.images import inspect
from fastload.convert.pool import Report
from fastload.errors import DecodeError, UsageError, WriteError
from fastload.format import Manifest, SplitReader
from fastload.schema import Field, Image, Label, Ragged, Scalar, Str, Tensor
from fastload.storage import open_storage

KINDS = ("image-folder", "numpy", "parquet")


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export wrote: ``records`` of each split, and sentences about what was left out."""

    path: str
    kind: str
    records: dict[str, int]
    notes: tuple[str, ...]


def export(
    dataset: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    kind: str | None = None,
    splits: Sequence[str] | None = None,
    fields: Sequence[str] | None = None,
    overwrite: bool = False,
    report: Report = lambda _: None,
) -> Exported:
    """Write a dataset's records to the local folder ``target`` as files that need no fastload.

    ``kind`` is ``"image-folder"`` (class folders of the images as they are stored), ``"numpy"`` (one .npy a
    field; columns and ragged fields) or ``"parquet"`` (any field); by default image-folder where the dataset
    has an image field, else parquet. Several splits become several folders. ``target`` appears complete or
    not at all. Raises UsageError where it exists and ``overwrite`` is False, or where the kind cannot hold
    a field, and WriteError.
    """
    url, folder = os.fspath(dataset), Path(os.fspath(target))
    storage = open_storage(url)
    manifest = Manifest.load(storage)
    names = [manifest.split_name(split, storage.url) for split in splits] if splits else list(manifest.splits)
    readers = [SplitReader(storage, manifest, name, verify="first") for name in names]
    chosen = _choose_fields(manifest, fields, url)
    if kind is None:
        kind = "image-folder" if any(isinstance(field, Image) for field in chosen.values()) else "parquet"
    write = _WRITERS[kind]
    if folder.exists() and not overwrite:
        raise UsageError(
            "the target exists", path=str(folder), hint="give another, or overwrite it (--overwrite)"
        )
    notes: list[str] = []
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            for reader in readers:
                inside = partial / reader.name if len(manifest.splits) > 1 else partial
                inside.mkdir(exist_ok=True)
                notes += write(inside, reader, chosen, report)
            partial.chmod(0o777 & ~_umask())
            _replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        if isinstance(error, WriteError):
            raise
        where = error.filename or str(folder)
        raise WriteError(
            f"the files cannot be written: {error.strerror or error}", path=str(where)
        ) from error
    records = {reader.name: reader.records for reader in readers}
    return Exported(str(folder), kind, records, tuple(dict.fromkeys(notes)))


def _choose_fields(manifest: Manifest, wanted: Sequence[str] | None, url: str) -> dict[str, Field]:
    missing = [name for name in wanted or () if name not in manifest.schema]
    if missing:
        has = ", ".join(manifest.schema)
        raise UsageError(f"no field {', '.join(missing)}", path=url, hint=f"the fields are {has}")
    return {name: manifest.schema[name] for name in wanted or manifest.schema}


def _umask() -> int:
    """Return the process's umask, which mkdtemp does not honour."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _replace(partial: Path, folder: Path) -> None:
    if folder.is_dir():
        old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
        folder.rename(old / folder.name)
        partial.rename(folder)
        shutil.rmtree(old)
        return
    if folder.exists():
        folder.unlink()
    partial.rename(folder)


# --- image folders -------------------------------------------------------------------------------------


def _write_images(folder: Path, reader: SplitReader, fields: dict[str, Field], report: Report) -> list[str]:
    images = [name for name, field in fields.items() if isinstance(field, Image)]
    labels = {name: field for name, field in fields.items() if isinstance(field, Label)}
    if len(images) != 1 or len(labels) > 1:
        raise UsageError(
            f"an image folder holds one image field and at most one label, and there are {len(images)} and "
            f"{len(labels)}",
            path=reader.folder,
            hint="choose the fields, or export to parquet",
        )
    label = next(iter(labels), None)
    paths = "path" if isinstance(fields.get("path"), Str) else None
    taken: set[str] = set()
    for record in range(reader.records):
        data = reader.value(record, images[0])
        if data is None:
            continue
        index = None if label is None else reader.value(record, label)
        class_name = None if label is None or index is None else labels[label].classes[int(index)]
        stated = None if paths is None else reader.value(record, paths)
        name = _safe_path(stated, class_name) if stated else None
        if name is None or name in taken:
            name = _made_path(record, data, class_name)
        taken.add(name)
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        report(1)
    for class_name in labels[label].classes if label is not None else ():
        if _is_plain_name(class_name):
            (folder / class_name).mkdir(exist_ok=True)  # A class without images keeps its number.
    left = [name for name in fields if name not in (images[0], label, paths)]
    return [f"an image folder does not hold the fields {', '.join(left)}"] if left else []


def _is_plain_name(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not set(name) & {"/", "\\", "\0"}


def _safe_path(stated: str, class_name: str | None) -> str | None:
    """Return a stored path if it stays in the folder and agrees with the class, else None."""
    parts = PurePosixPath(stated).parts
    agrees = class_name is None or (len(parts) > 1 and parts[0] == class_name)
    if not parts or not agrees or not all(_is_plain_name(part) for part in parts):
        return None
    return "/".join(parts)


def _made_path(record: int, data: bytes, class_name: str | None) -> str:
    try:
        extension = inspect(data).format
    except DecodeError:
        extension = "bin"
    name = f"{record:08d}.{extension}"
    if class_name is None:
        return name
    if not _is_plain_name(class_name):
        raise UsageError(f"the class {class_name!r} cannot name a folder", hint="export to parquet")
    return f"{class_name}/{name}"


# --- NumPy ---------------------------------------------------------------------------------------------


def _write_numpy(folder: Path, reader: SplitReader, fields: dict[str, Field], report: Report) -> list[str]:
    columns = (Scalar, Label, Tensor)
    unfit = [
        name for name, field in fields.items() if field.nullable or not isinstance(field, (*columns, Ragged))
    ]
    if unfit:
        raise UsageError(
            f"NumPy arrays cannot hold the fields {', '.join(unfit)}",
            path=reader.folder,
            hint="choose others, or export to parquet",
        )
    notes: list[str] = []
    for name, field in fields.items():
        if isinstance(field, columns):
            shape = (reader.records, *field.item_shape)
            array = (
                np.lib.format.open_memmap(
                    folder / f"{name}.npy", mode="w+", dtype=np.dtype(field.numpy_dtype), shape=shape
                )
                if reader.records
                else np.zeros(shape, field.numpy_dtype)
            )
            for record in range(reader.records):
                array[record] = reader.value(record, name)
            if not reader.records:
                np.save(folder / f"{name}.npy", array)
        elif isinstance(field, Ragged):
            notes += _write_ragged(folder, reader, name, field)
        if isinstance(field, Label):
            (folder / f"{name}.classes.txt").write_text(
                "".join(f"{c}\n" for c in field.classes), encoding="utf-8"
            )
        if getattr(field, "dtype", None) == "bfloat16":
            notes.append(f"{name} is bfloat16, which NumPy lacks: its bits are written as uint16")
    report(reader.records)
    return notes


def _write_ragged(folder: Path, reader: SplitReader, name: str, field: Ragged) -> list[str]:
    shapes = np.zeros((reader.records, len(field.shape)), np.int64)
    with open(folder / f"{name}.values.bin", "wb") as file:
        for record in range(reader.records):
            value = reader.value(record, name)
            shapes[record] = value.shape
            file.write(np.ascontiguousarray(value).tobytes())
    flat = np.fromfile(folder / f"{name}.values.bin", field.numpy_dtype)
    np.save(folder / f"{name}.values.npy", flat)
    (folder / f"{name}.values.bin").unlink()
    np.save(folder / f"{name}.shapes.npy", shapes)
    return [
        f"{name} is ragged: {name}.values.npy holds all its elements, {name}.shapes.npy each record's shape"
    ]


# --- Parquet -------------------------------------------------------------------------------------------


def _write_parquet(folder: Path, reader: SplitReader, fields: dict[str, Field], report: Report) -> list[str]:
    from fastload.convert.parquet_writer import write_parquet

    return write_parquet(folder / f"{reader.name}.parquet", _records(reader, fields, report), fields)


def _records(reader: SplitReader, fields: dict[str, Field], report: Report) -> Iterator[dict[str, Any]]:
    for record in range(reader.records):
        yield {name: reader.value(record, name) for name in fields}
        report(1)


_WRITERS: dict[str, Callable[[Path, SplitReader, dict[str, Field], Report], list[str]]] = {
    "image-folder": _write_images,
    "numpy": _write_numpy,
    "parquet": _write_parquet,
}
