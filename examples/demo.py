"""From a folder of photographs to batches, and how fast: what ``make demo`` runs.

Makes sample photographs, converts them, loads a batch, and measures fastload beside torch's DataLoader
(Pillow decoding) on the same photographs in the same run. Everything is kept in ``demo/``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import torch

import fastload
from fastload import transforms as T
from fastload.bench.photographs import make_photographs

FOLDER = Path("demo")
COUNT = 2000
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n{text}", flush=True)


def command(*arguments: str) -> None:
    """Run the fastload command, and show it."""
    print(f"$ fastload {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "fastload", *arguments], check=True)


def main() -> None:
    photographs, dataset = FOLDER / "photographs", FOLDER / "photographs.fl"
    say(f"1. {COUNT:,} sample photographs, in {photographs}/train/CLASS/ and {photographs}/val/CLASS/")
    if not photographs.exists():
        partial = FOLDER / "photographs.partial"
        shutil.rmtree(partial, ignore_errors=True)
        make_photographs(partial, COUNT)
        partial.rename(photographs)
    size = sum(file.stat().st_size for file in photographs.rglob("*.jpg"))
    print(f"{size / 1e6:.0f} MB of JPEG files")

    say("2. Converted: the JPEG files as they are, in shards")
    command("convert", str(photographs), str(dataset), "--overwrite")

    say("3. Loaded: cropped at random, flipped, normalised, by two native threads")
    train = fastload.open(str(dataset), split="train").transform(
        image=[
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToDtype(torch.float32, scale=True),
            T.Normalize(MEAN, STD),
        ]
    )
    with fastload.DataLoader(train, batch_size=64, shuffle=True, num_workers=2, seed=0) as loader:
        batch = next(iter(loader))
        for name, value in batch.items():
            shown = f"{tuple(value.shape)} {value.dtype}" if hasattr(value, "shape") else f"{value[:2]} …"
            print(f"  {name}: {shown}")

    say("4. Measured, beside torch's DataLoader on the same photographs")
    command("bench", str(dataset), "--split", "train")


if __name__ == "__main__":
    main()
