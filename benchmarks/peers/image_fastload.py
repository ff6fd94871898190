"""fastload's own entries in the image job: by what is stored, and how exactly it is decoded."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peers.image_job import BATCH, MEAN, RESIZED, SIZE, STD, Job, Loader

RAW_SIDE = 256


def _path(job: Job, form: str) -> Path:
    return job.scratch / f"{form}.fl"


def _prepare(job: Job, *, form: str, options: tuple[str, ...]) -> None:
    from fastload.cli import main

    target = _path(job, form)
    if not target.exists():
        with contextlib.suppress(SystemExit):
            main(["convert", str(job.images), str(target), *options])
        if not target.exists():
            raise SystemExit("the images could not be converted")


def _make(job: Job, *, form: str, fast: bool = False) -> Iterable[Any]:
    import torch

    import fastload
    from fastload import transforms as T

    operations: list[Any] = [T.Decode("fast")] if fast else []
    if job.evaluation:
        operations += [T.Resize(RESIZED), T.CenterCrop(SIZE)]
    else:
        operations += [T.RandomResizedCrop(SIZE), T.RandomHorizontalFlip()]
    if job.f32:
        operations += [T.ToDtype(torch.float32, scale=True), T.Normalize(MEAN, STD)]
    dataset = fastload.open(str(_path(job, form))).transform(image=operations)
    return fastload.DataLoader(
        dataset.as_tuple("image", "label"),
        batch_size=BATCH,
        shuffle=not job.evaluation,
        num_workers=job.workers,
        drop_last=not job.evaluation,
    )


def _loader(settings: str, form: str, *options: str, **how: Any) -> Loader:
    return Loader(
        functools.partial(_make, form=form, **how),
        functools.partial(_prepare, form=form, options=options),
        f"verify=first, {settings}",
    )


def _with_one_worker(loader: Loader) -> Loader:
    """Return the loader with one worker, whatever the job has."""

    def make(job: Job) -> Iterable[Any]:
        return loader.make(dataclasses.replace(job, workers=1))

    return dataclasses.replace(loader, make=make, settings=f"{loader.settings}, one worker")


_FORMS: dict[str, Loader] = {
    "fastload": _loader("exact decoding, JPEG files as convert stores them by default", "segmented"),
    "fastload-fast": _loader(
        "decode=fast, JPEG files as convert stores them by default", "segmented", fast=True
    ),
    "fastload-keep": _loader("exact decoding, JPEG files as they are", "kept", "--jpeg", "keep"),
    "fastload-raw": _loader(
        f"raw pixels, {RAW_SIDE} at most", "raw", "--image", "raw", "--size", str(RAW_SIDE)
    ),
}

LOADERS = {**_FORMS, **{f"{name}-1": _with_one_worker(loader) for name, loader in _FORMS.items()}}
"""fastload's entries by name; those that end in -1 have one worker."""
