"""Photographs for the image job: JPEGs like ImageNet's, cut from real photographs that packages ship.

Usage: python -m benchmarks.make_images FOLDER COUNT [--scale S]. About 500 x 375 times the scale, quality 85
to 96, 4:2:0, 78 KB on average, in a hundred class folders. The same each time. Needs scikit-image and
scikit-learn.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.host import cores

CLASSES = 100


@functools.lru_cache(maxsize=1)
def _sources() -> list[Any]:
    """Return the whole photographs, as Pillow images."""
    import skimage
    import sklearn.datasets
    from PIL import Image

    data = Path(skimage.__file__).parent / "data"
    names = (
        "astronaut.png",
        "chelsea.png",
        "coffee.png",
        "rocket.jpg",
        "hubble_deep_field.jpg",
        "retina.jpg",
        "motorcycle_left.png",
        "motorcycle_right.png",
    )
    found = [Image.open(data / name).convert("RGB") for name in names if (data / name).exists()]
    return found + [Image.fromarray(image) for image in sklearn.datasets.load_sample_images().images]


def _make(number: int, folder: str, scale: float) -> int:
    """Write one photograph: cut, resized, mirrored or not, with noise. Returns its size in bytes."""
    from PIL import Image

    draw = np.random.default_rng(number)
    photograph = _sources()[draw.integers(len(_sources()))]
    zoom, aspect = draw.uniform(0.35, 1), np.exp(draw.uniform(-0.25, 0.25))
    width = max(int(min(photograph.width, photograph.width * zoom * aspect)), 120)
    height = max(int(min(photograph.height, photograph.height * zoom / aspect)), 100)
    left = draw.integers(0, photograph.width - width + 1)
    top = draw.integers(0, photograph.height - height + 1)
    long_side = scale * draw.choice([500, 640, 400, 300, 800], p=[0.7, 0.1, 0.1, 0.05, 0.05])
    shrink = long_side / max(width, height)
    size = (max(64, int(width * shrink)), max(64, int(height * shrink)))
    cut = photograph.crop((left, top, left + width, top + height)).resize(size, Image.Resampling.BICUBIC)
    if draw.random() < 0.5:
        cut = cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.asarray(cut).astype(np.float32) * draw.uniform(0.8, 1.2)
    pixels += draw.normal(0, draw.uniform(2, 9), pixels.shape)
    target = Path(folder) / f"{number % CLASSES:03d}" / f"{number:06d}.jpg"
    target.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    picture.save(target, quality=int(draw.choice([85, 92, 94, 95, 96])), subsampling=2)
    return target.stat().st_size


def make_images(folder: Path, count: int, scale: float = 1.0) -> list[int]:
    """Write ``count`` photographs into ``folder``, complete or not at all; return their sizes in bytes."""
    partial = folder.with_name(folder.name + ".partial")
    make = functools.partial(_make, folder=str(partial), scale=scale)
    with concurrent.futures.ProcessPoolExecutor(cores()) as pool:
        sizes = list(pool.map(make, range(count), chunksize=16))
    partial.rename(folder)
    return sizes


def main() -> None:
    parser = argparse.ArgumentParser(description="Make photographs for the image job.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    sizes = make_images(arguments.folder, arguments.count, arguments.scale)
    low, middle, high = np.percentile(sizes, [5, 50, 95])
    print(
        f"{len(sizes):,} images, {sum(sizes) / 1e6:,.0f} MB; bytes: mean {np.mean(sizes):,.0f}, "
        f"median {middle:,.0f}, 5 % {low:,.0f}, 95 % {high:,.0f}"
    )


if __name__ == "__main__":
    main()
