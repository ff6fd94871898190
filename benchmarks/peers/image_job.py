"""The image job as loaders see it, and the pieces that several of them share."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import math
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BATCH = 128
SIZE = 224
RESIZED = 256
"""The shorter side that the evaluation job resizes to before it cuts SIZE out of the middle."""
MEAN = [0.485, 0.456, 0.406]
STD = [0.229, 0.224, 0.225]


@dataclasses.dataclass(frozen=True)
class Job:
    """What is to be loaded: JPEGs in class folders whose names are integers.

    ``evaluation`` resizes the shorter side and cuts out the middle, in order, instead of random crops and
    flips in random order.
    """

    images: Path
    scratch: Path
    f32: bool
    workers: int
    evaluation: bool = False

    @functools.cached_property
    def files(self) -> list[str]:
        """Paths of all images, in order."""
        return sorted(str(path) for path in self.images.glob("*/*.jpg"))

    @functools.cached_property
    def labels(self) -> list[int]:
        """The class of each image."""
        return [int(Path(file).parent.name) for file in self.files]


def _nothing(job: Job) -> None:
    """A loader that reads the images as they are."""


@dataclasses.dataclass(frozen=True)
class Loader:
    """How a loader is made. ``settings`` says what a reader of figures should know."""

    make: Callable[[Job], Iterable[Any]]
    prepare: Callable[[Job], None] = _nothing
    settings: str = ""


class MadeAtFirst:
    """Makes a loader when it is first iterated over, for one that begins to work as soon as it is made.

    Otherwise its first batch would seem to take no time.
    """

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make
        self._made: Iterable[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._made is None:
            self._made = self._make()
        return iter(self._made)


class Repeated:
    """Makes the iterable anew for every epoch."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


class PillowTransform:
    """The job's transforms with Pillow and torch alone, where torchvision is not installed."""

    def __init__(self, job: Job) -> None:
        self._f32, self._evaluation = job.f32, job.evaluation

    def _small(self, image: Any) -> Any:
        from PIL import Image

        if self._evaluation:
            shrink = RESIZED / min(image.size)
            size = (int(image.width * shrink), int(image.height * shrink))
            left, top = (round((side - SIZE) / 2) for side in size)
            return image.resize(size, Image.Resampling.BILINEAR).crop((left, top, left + SIZE, top + SIZE))
        left, top, width, height = crop_box(image.width, image.height, random)
        box = (left, top, left + width, top + height)
        small = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box)
        return small.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else small

    def __call__(self, image: Any) -> Any:
        import numpy as np
        import torch

        small = self._small(image)
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous()
        if not self._f32:
            return pixels
        mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
        return (pixels.float() / 255 - mean) / std


def torchvision_transform(job: Job, *, from_pillow: bool) -> Any:
    import torch
    from torchvision.transforms import v2

    steps: list[Any] = [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
    if job.evaluation:
        steps = [v2.Resize(RESIZED, antialias=True), v2.CenterCrop(SIZE)]
    if from_pillow:
        steps.append(v2.PILToTensor())
    if job.f32:
        steps += [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose(steps)


class Files:
    """A map-style dataset of the image files. ``decoder`` is ``"pillow"`` or ``"torchvision"``."""

    def __init__(self, job: Job, decoder: str) -> None:
        self.files, self.labels = job.files, job.labels
        self.decoder = decoder
        if decoder == "pillow" and importlib.util.find_spec("torchvision") is None:
            self.transform: Any = PillowTransform(job)
        else:
            self.transform = torchvision_transform(job, from_pillow=decoder == "pillow")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image: Any
        if self.decoder == "pillow":
            from PIL import Image

            image = Image.open(self.files[index]).convert("RGB")
        else:
            from torchvision.io import ImageReadMode, decode_jpeg, read_file

            image = decode_jpeg(read_file(self.files[index]), ImageReadMode.RGB)
        return self.transform(image), self.labels[index]


def crop_box(width: int, height: int, draw: Any) -> tuple[int, int, int, int]:
    """Return left, top, width and height of a random resized crop; ``draw`` is ``random`` or a Random."""
    for _ in range(10):
        area = width * height * draw.uniform(0.08, 1)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            return (
                draw.randint(0, width - crop_width),
                draw.randint(0, height - crop_height),
                crop_width,
                crop_height,
            )
    return 0, 0, width, height
