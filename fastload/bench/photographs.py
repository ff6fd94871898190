"""Sample photographs as JPEG files in class folders, made without a download.

They are cut at random from a few whole photographs: those that scikit-image and scikit-learn ship where
both are installed, else painted ones. The class is which photograph it was cut from, so that a small
network can learn it. Sizes, qualities and file sizes are those of ImageNet: about 500 x 375, about 78 KB.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload._machine import usable_cpus
from fastload.convert.pool import Report, run_tasks
from fastload.errors import WriteError

SIDES = (300, 400, 500, 640, 800)
SIDE_WEIGHTS = (0.05, 0.10, 0.70, 0.10, 0.05)
QUALITIES = (85, 92, 94, 95, 96)
VALIDATION_SHARE = 10
"""One photograph in so many goes to ``val``."""

SHIPPED = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "palace": ("sklearn", "datasets/images/china.jpg"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}
"""Photographs that packages ship, by class: the package, and the file in it."""

PAINTED = {
    # sky, ground, things: each an RGB colour; how many things; how coarse the texture is
    "desert": ((150, 190, 230), (214, 170, 110), (120, 90, 60), 4, 1.2),
    "fire": ((40, 10, 8), (220, 90, 20), (255, 210, 90), 14, 1.6),
    "forest": ((190, 205, 200), (40, 80, 35), (70, 50, 30), 18, 0.8),
    "lagoon": ((120, 200, 240), (20, 150, 160), (240, 230, 190), 3, 1.4),
    "meadow": ((170, 210, 250), (110, 170, 60), (230, 80, 120), 30, 0.9),
    "night": ((8, 10, 30), (20, 20, 40), (250, 240, 200), 40, 1.1),
    "quarry": ((200, 200, 205), (130, 125, 120), (90, 85, 85), 22, 0.6),
    "snow": ((180, 200, 220), (238, 242, 248), (60, 70, 80), 9, 1.5),
    "storm": ((70, 75, 85), (45, 60, 75), (110, 120, 130), 6, 1.0),
    "sunset": ((240, 120, 60), (90, 30, 70), (255, 220, 120), 2, 1.7),
}

FloatImage = npt.NDArray[np.float32]


def shipped_photographs() -> dict[str, Path]:
    """Return the photographs that installed packages ship, by class; empty unless all are there."""
    found: dict[str, Path] = {}
    for name, (package, inside) in SHIPPED.items():
        spec = importlib.util.find_spec(package)
        places = (
            [] if spec is None or not spec.submodule_search_locations else spec.submodule_search_locations
        )
        paths = [Path(place) / inside for place in places if (Path(place) / inside).is_file()]
        if not paths:
            return {}
        found[name] = paths[0]
    return found


def _texture(random: np.random.Generator, height: int, width: int, slope: float) -> FloatImage:
    """Return noise whose spectrum falls as that of natural scenes, of mean 0 and deviation 1."""
    rows = np.fft.fftfreq(height)[:, None]
    columns = np.fft.rfftfreq(width)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = 1.0
    phase = np.exp(2j * np.pi * random.random(frequency.shape))
    noise = np.fft.irfft2(phase / frequency**slope, s=(height, width))
    noise -= noise.mean()
    return np.asarray(noise / noise.std(), np.float32)


def paint(name: str, *, width: int = 800, height: int = 600) -> npt.NDArray[np.uint8]:
    """Return a painted scene of a class of :data:`PAINTED`: (height, width, 3) uint8. The same each time.

    >>> paint("snow", width=64, height=48).shape
    (48, 64, 3)
    """
    sky, ground, thing, things, slope = PAINTED[name]
    random = np.random.default_rng(sorted(PAINTED).index(name))
    y = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    x = np.linspace(0, 1, width, dtype=np.float32)[None, :]
    horizon = 0.4 + 0.06 * _texture(random, height, width, 1.8)
    weight = (0.5 + 0.5 * np.tanh(30 * (y - horizon)))[..., None]
    image = np.asarray(sky, np.float32) * (1 - weight) * (0.8 + 0.4 * y[..., None])
    image = image + np.asarray(ground, np.float32) * weight
    for _ in range(things):
        across, down, radius = random.uniform(0, 1), random.uniform(0.2, 1), random.uniform(0.02, 0.12)
        stretch = random.uniform(0.4, 2.5)
        distance = np.hypot((x - across) * width / height, (y - down) * stretch)
        cover = (0.5 - 0.5 * np.tanh(60 * (distance - radius)))[..., None]
        shade = 1 - 3 * (x - across)[..., None] - 2 * (y - down)[..., None]
        image = image * (1 - cover) + np.asarray(thing, np.float32) * np.clip(shade, 0.4, 1.4) * cover
    light = 18 * _texture(random, height, width, slope) + 9 * _texture(random, height, width, 0.6)
    image = (
        image + light[..., None] + 4 * np.stack([_texture(random, height, width, 1.0) for _ in range(3)], -1)
    )
    return np.asarray(np.clip(image, 0, 255), np.uint8)


@functools.lru_cache(maxsize=32)
def _whole_photograph(name: str, path: str | None) -> Any:
    """Return a whole photograph as a Pillow image, kept for the next cut."""
    from PIL import Image

    if path is None:
        return Image.fromarray(paint(name))
    with Image.open(path) as image:
        return image.convert("RGB")


def cut_photograph(whole: Any, seed: int) -> bytes:
    """Return one JPEG file cut from a Pillow image: a random part, size, exposure, noise and quality."""
    from PIL import Image

    random = np.random.default_rng(seed)
    scale, aspect = random.uniform(0.35, 1.0), np.exp(random.uniform(-0.25, 0.25))
    width = int(np.clip(whole.width * scale * aspect, min(120, whole.width), whole.width))
    height = int(np.clip(whole.height * scale / aspect, min(100, whole.height), whole.height))
    left, top = random.integers(whole.width - width + 1), random.integers(whole.height - height + 1)
    side = int(random.choice(SIDES, p=SIDE_WEIGHTS))
    longest = max(width, height)
    size = (max(64, side * width // longest), max(64, side * height // longest))
    box = (int(left), int(top), int(left) + width, int(top) + height)
    part = whole.resize(size, Image.Resampling.BICUBIC, box=box)
    if random.random() < 0.5:
        part = part.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(part, np.float32) * np.float32(random.uniform(0.8, 1.2))
    pixels += random.standard_normal(pixels.shape, np.float32) * np.float32(random.uniform(2, 9))
    buffer = io.BytesIO()
    quality = int(random.choice(QUALITIES))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    image.save(buffer, "JPEG", quality=quality, subsampling="4:2:0")
    return buffer.getvalue()


@dataclasses.dataclass(frozen=True)
class _Job:
    folder: str
    wholes: tuple[tuple[str, str | None], ...]
    numbers: tuple[int, ...]
    seed: int


def _make_some(job: _Job, report: Report) -> int:
    written = 0
    for number in job.numbers:
        name, path = job.wholes[number % len(job.wholes)]
        within = number // len(job.wholes)
        split = "val" if within % VALIDATION_SHARE == 1 else "train"
        data = cut_photograph(_whole_photograph(name, path), (job.seed << 32) + number)
        file = Path(job.folder, split, name, f"{number:06d}.jpg")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        written += len(data)
        report(1)
    return written


def make_photographs(
    folder: str | os.PathLike[str],
    count: int = 2000,
    *,
    seed: int = 0,
    workers: int | None = None,
    painted: bool = False,
    report: Report = lambda _: None,
) -> int:
    """Write ``count`` JPEG files to ``folder/train/class/`` and ``folder/val/class/``; return their bytes.

    One in ten goes to ``val``. The files depend on ``count``, ``seed`` and the whole photographs alone.
    ``painted=True`` does without the photographs that other packages ship. Raises WriteError.
    """
    shipped: Mapping[str, Path] = {} if painted else shipped_photographs()
    wholes: tuple[tuple[str, str | None], ...] = tuple((name, str(path)) for name, path in shipped.items())
    wholes = wholes or tuple((name, None) for name in PAINTED)
    jobs = [
        _Job(os.fspath(folder), wholes, tuple(range(start, min(start + 50, count))), seed)
        for start in range(0, count, 50)
    ]
    try:
        os.makedirs(folder, exist_ok=True)
        # Starting a process costs as much as some fifty photographs.
        chosen = usable_cpus() if workers is None else workers
        return sum(run_tasks(_make_some, jobs, workers=min(chosen, max(1, count // 200)), report=report))
    except OSError as error:
        raise WriteError(
            f"the photographs cannot be written: {error.strerror or error}", path=os.fspath(folder)
        ) from error
