"""Conversion: partitions of a source, written in parallel and published by one commit."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastload import _backend
from fastload._machine import usable_cpus
from fastload.convert.detect import KINDS, detect_kind, open_source, read_classes
from fastload.convert.files import local_path
from fastload.convert.images import CHECKS, inspect
from fastload.convert.jpeg import NO_CORE, JpegMode, JpegReport, JpegRewriter
from fastload.convert.pixels import IMAGE_MODES, ArrayImages, RawImages, image_step
from fastload.convert.pool import Report, run_tasks
from fastload.convert.source import Partition, Record, Source, SourceOptions
from fastload.errors import DecodeError, FastloadError, RecordError, SourceError, UsageError
from fastload.format import parse_size
from fastload.format.publish import read_base
from fastload.schema import Image, Schema
from fastload.storage import open_storage
from fastload.writer import Part, Writer

ON_BAD = ("raise", "skip")

Progress = Callable[[int, "int | None"], None]
"""Called with how many more records are done, and how many there are in all (None: not known)."""


@dataclasses.dataclass(frozen=True)
class Converted:
    """What a conversion did.

    ``records`` and ``bytes`` are of each split, ``skipped`` are (where, why) of the records left out,
    ``oriented`` counts images whose EXIF data ask for a rotation, ``jpeg`` is what became of JPEG images
    (None for a source without images), ``notes`` are sentences.
    """

    path: str
    kind: str
    records: dict[str, int]
    bytes: dict[str, int]
    fingerprint: str
    seconds: float
    skipped: tuple[tuple[str, str], ...]
    oriented: int
    jpeg: JpegReport | None
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class _Task:
    """What all parts of a conversion have in common."""

    target: str
    schema: Schema
    shard_bytes: int
    jpeg: JpegMode
    check: str
    on_bad: str
    images: RawImages | ArrayImages | None
    target_options: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Job:
    """What a worker needs to write one part."""

    task: _Task
    partition: Partition
    name: str
    split: str


@dataclasses.dataclass(frozen=True)
class _Outcome:
    part: Part
    skipped: tuple[tuple[str, str], ...]
    oriented: int
    jpeg: JpegReport


class _Checker:
    """Looks at the images of records and counts those that are to be rotated."""

    def __init__(self, schema: Schema, check: str) -> None:
        self._names = (
            [name for name, field in schema.items() if isinstance(field, Image)] if check != "none" else []
        )
        self._check = check
        self.oriented = 0

    def look(self, record: Record) -> None:
        """Raise DecodeError, naming the field, for an image that is none."""
        for name in self._names:
            data = record[name]
            if not isinstance(data, bytes):
                continue  # null, or a record that does not fit: the writer says so
            try:
                facts = inspect(data, self._check)
            except DecodeError as error:
                error.field = name if len(self._names) > 1 else None
                raise
            self.oriented += facts.orientation != 1


def _write_part(job: _Job, report: Report) -> _Outcome:
    task = job.task
    checker = _Checker(task.schema, task.check)
    rewriter = JpegRewriter(task.schema, task.jpeg)
    skipped: list[tuple[str, str]] = []
    with Writer.part(
        task.target,
        task.schema,
        name=job.name,
        split=job.split,
        shard_size=task.shard_bytes,
        storage_options=task.target_options,
    ) as writer:
        for where, record in job.partition.read():
            try:
                if isinstance(record, SourceError):
                    raise record
                checker.look(record)
                writer.append(rewriter.rewrite(record) if task.images is None else task.images(record))
            except (SourceError, DecodeError, RecordError) as error:
                bad = _located(error, where)
                if task.on_bad == "raise":
                    raise bad from error
                skipped.append((where, _cause(error)))
            report(1)
    return _Outcome(writer.close(), tuple(skipped), checker.oriented, rewriter.report())


def _cause(error: FastloadError) -> str:
    return error.message if error.field is None else f"{error.message} (field {error.field!r})"


def _located(error: FastloadError, where: str) -> FastloadError:
    """Return the error of one record with the place in the source, which its number in the part is not."""
    kind = RecordError if isinstance(error, RecordError) else SourceError
    hint = (
        error.hint
        if not isinstance(error, DecodeError)
        else "repair or remove it, or skip such files with --on-bad skip"
    )
    return kind(error.message, path=where, field=error.field, hint=hint)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    kind: str | None = None,
    split: str | None = None,
    classes_from: str | os.PathLike[str] | None = None,
    columns: Sequence[str] | None = None,
    image_columns: Sequence[str] = (),
    jpeg: str = "segment",
    icc: bool = False,
    image: str = "keep",
    size: int | None = None,
    encode: str = "png",
    check: str = "header",
    on_bad: str = "raise",
    workers: int | None = None,
    shard_size: int | str = "256MB",
    mode: str = "create",
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Converted:
    """Convert ``source`` to the dataset ``target``; docs/cli.md says what each argument means.

    ``jpeg`` is ``"segment"`` (rewritten without loss, so that crops decode faster), ``"keep"``, or
    ``"encode QUALITY"`` or ``"encode QUALITY MAXSIZE"`` (smaller, with loss, in segments too). Where images
    are rewritten, ``icc`` keeps their colour profile.

    The records are in the source's order, and the shards' contents do not depend on ``workers`` (worker
    processes; by default one a CPU). Nothing is published unless all of it was written.

    Raises SourceError, RecordError or DecodeError for what cannot be converted, naming file and record,
    UsageError for arguments that cannot work, and WriteError.
    """
    _check_choices(
        kind=(kind, (None, *KINDS)),
        image=(image, IMAGE_MODES),
        check=(check, CHECKS),
        on_bad=(on_bad, ON_BAD),
    )
    if size is not None and (image != "raw" or size < 1):
        raise UsageError(f"size is {size}", hint="give a number of pixels, together with image='raw'")
    jpeg_mode = JpegMode.parse(jpeg, icc=icc)  # refuses before the source is looked at
    url, where = os.fspath(source), os.fspath(target)
    given = dict(storage_options or {})
    kind = kind or detect_kind(url, given)
    options = SourceOptions(
        classes=_classes(classes_from, where, kind, mode, given),
        split=split,
        columns=None if columns is None else tuple(columns),
        image_columns=tuple(image_columns),
        encode=encode,
        storage_options=given,
    )
    return run(
        open_source(url, kind, options),
        where,
        kind=kind,
        origin=url,
        jpeg=jpeg_mode,
        check=check,
        on_bad=on_bad,
        image=image,
        size=size,
        workers=workers,
        shard_size=shard_size,
        mode=mode,
        storage_options=storage_options,
        progress=progress,
    )


def _classes(
    classes_from: str | os.PathLike[str] | None, target: str, kind: str, mode: str, options: Mapping[str, Any]
) -> Any:
    """Return the classes that the source is to take, or None where it finds them itself."""
    if classes_from is None and mode == "append" and kind == "image-folder":
        classes_from = target  # the schema must be equal, and so must the classes
    return None if classes_from is None else read_classes(os.fspath(classes_from), options)


def _check_choices(**choices: tuple[Any, Sequence[Any]]) -> None:
    for name, (value, allowed) in choices.items():
        if value not in allowed:
            listed = ", ".join(str(choice) for choice in allowed if choice is not None)
            raise UsageError(f"{name} is {value!r}", hint=f"use one of {listed}")


def run(
    source: Source,
    target: str,
    *,
    kind: str,
    origin: str,
    jpeg: JpegMode,
    check: str = "header",
    on_bad: str = "raise",
    image: str = "keep",
    size: int | None = None,
    workers: int | None = None,
    shard_size: int | str = "256MB",
    mode: str = "create",
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Converted:
    """Convert an opened source: what :func:`convert` and ``from_torch`` share."""
    started = time.perf_counter()
    target_options = {} if local_path(target) is not None else dict(storage_options or {})
    storage = open_storage(target, target_options)
    shard_bytes = parse_size(shard_size)
    schema, images = image_step(source, image, size, shard_bytes)
    base = read_base(storage, mode, schema)  # refuses before the work rather than after it
    if images is not None:
        jpeg = JpegMode("keep")
    task = _Task(target, schema, shard_bytes, jpeg, check, on_bad, images, target_options)
    jobs = _jobs(source, task, origin)
    with _no_empty_folder_left(target):
        outcomes = _write(source, task, jobs, workers, progress)
        manifest = _publish(
            source, schema, target, outcomes, mode, {"kind": kind, "origin": origin}, target_options
        )
    notes = list(source.notes)
    if base.generation and mode == "overwrite":
        notes.append("the shards of the dataset that was replaced stay until `fastload gc`")
    done = _summary(source, outcomes)
    if done["jpeg"] is not None and jpeg.kind != "keep" and _backend.core() is None:
        notes.append(NO_CORE)
    return Converted(
        target,
        kind,
        **done,
        fingerprint=manifest.fingerprint,
        seconds=time.perf_counter() - started,
        notes=tuple(notes),
    )


def _jobs(source: Source, task: _Task, origin: str) -> list[_Job]:
    jobs = [
        _Job(task, partition, f"{number:06d}", split)
        for split in source.split_names()
        for number, partition in enumerate(source.partitions(split, task.shard_bytes))
    ]
    if not jobs:
        raise SourceError("the source has no records", path=origin)
    return jobs


def _write(
    source: Source, task: _Task, jobs: Sequence[_Job], workers: int | None, progress: Progress
) -> list[_Outcome]:
    """Write all parts; where one fails, remove what was written and raise its error."""
    counts = [job.partition.records for job in jobs]
    total = None if None in counts else sum(count or 0 for count in counts)
    progress(0, total)
    concurrency = "threads" if task.target.startswith("memory://") else source.concurrency
    return run_tasks(
        _write_part,
        jobs,
        workers=1 if source.concurrency == "none" else usable_cpus() if workers is None else workers,
        processes=concurrency == "processes",
        report=lambda count: progress(count, total),
        undo=lambda outcome: Writer.discard(task.target, [outcome.part], storage_options=task.target_options),
    )


def _summary(source: Source, outcomes: Sequence[_Outcome]) -> dict[str, Any]:
    parts = [outcome.part for outcome in outcomes]
    names = source.split_names()
    has_images = any(isinstance(field, Image) for field in source.schema.values())
    return {
        "records": {name: sum(part.records for part in parts if part.split == name) for name in names},
        "bytes": {name: sum(part.bytes for part in parts if part.split == name) for name in names},
        "skipped": tuple(item for outcome in outcomes for item in outcome.skipped),
        "oriented": sum(outcome.oriented for outcome in outcomes),
        "jpeg": JpegReport.total(outcome.jpeg for outcome in outcomes) if has_images else None,
    }


def _publish(
    source: Source,
    schema: Schema,
    target: str,
    outcomes: Sequence[_Outcome],
    mode: str,
    origin: Mapping[str, Any],
    target_options: Mapping[str, Any],
) -> Any:
    parts = [outcome.part for outcome in outcomes]
    try:
        if not any(part.records for part in parts):
            where, why = outcomes[0].skipped[0] if outcomes[0].skipped else (target, "the source is empty")
            raise SourceError(f"no record could be converted; the first: {why}", path=where)
        facts = {
            **origin,
            "oriented": sum(outcome.oriented for outcome in outcomes),
            "skipped": sum(len(outcome.skipped) for outcome in outcomes),
        }
        return Writer.commit(
            target,
            parts,
            mode=mode,
            schema=schema,
            splits=source.split_names(),
            metadata={"source": facts},
            storage_options=target_options,
        )
    except BaseException:
        Writer.discard(target, parts, storage_options=target_options)
        raise


@contextlib.contextmanager
def _no_empty_folder_left(target: str) -> Iterator[None]:
    """Remove the target's folder after a failure if it was made here."""
    local = local_path(target)
    existed = local is None or os.path.exists(local)
    try:
        yield
    except BaseException:
        if not existed and local is not None:
            with contextlib.suppress(OSError):
                os.rmdir(local)
        raise


def from_torch(
    dataset: Any,
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    schema: Schema | Mapping[str, Any] | None = None,
    classes: Sequence[str] | None = None,
    encode: str = "png",
    jpeg: str = "segment",
    icc: bool = False,
    shard_size: int | str = "256MB",
    mode: str = "create",
    storage_options: Mapping[str, Any] | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Converted:
    """Write the samples of a PyTorch dataset (map-style or iterable) to the dataset at ``path``.

    Samples are mappings, tuples, named tuples or single values of tensors, NumPy arrays, numbers, texts,
    bytes, lists of numbers or texts, and Pillow images. Unless ``schema`` is given it is inferred from the
    first 16 samples: tensors become Tensor (Ragged where their shapes differ), ints int64, floats float64,
    as torch collates them; a value that is None in one of them makes its field nullable. A tuple of an
    image and an int gives ``image`` and ``label``, another pair ``x`` and ``y``; an int of one of those
    names (or ``target``) is a Label where ``classes`` or ``dataset.classes`` are known. Pillow images are
    encoded anew: ``encode`` is ``"png"`` or ``"webp"`` (both without loss) or ``"jpeg"`` (quality 95).
    What becomes of JPEG images is ``jpeg`` and ``icc``, as for :func:`convert`.

    It runs in the calling process; ``fastload convert module:object`` uses several. Raises SourceError,
    with the index as ``record``, for a sample that differs from the schema.

    >>> import tempfile
    >>> made = from_torch([(1.5, 0), (2.5, 1)], tempfile.mkdtemp() + "/pairs.fl")
    >>> made.records
    {'default': 2}
    """
    from fastload.convert.sources.torch_dataset import TorchDatasetSource

    known = schema if schema is None or isinstance(schema, Schema) else Schema(schema)
    options = SourceOptions(classes=None if classes is None else tuple(classes), split=split, encode=encode)
    return run(
        TorchDatasetSource(dataset, options, known),
        os.fspath(path),
        kind="torch",
        origin=type(dataset).__name__,
        jpeg=JpegMode.parse(jpeg, icc=icc),
        shard_size=shard_size,
        mode=mode,
        storage_options=storage_options,
        progress=progress,
    )
