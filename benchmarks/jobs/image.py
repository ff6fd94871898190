"""The image job: RandomResizedCrop(224) and a horizontal flip of a folder of JPEGs, in batches of 128.

Usage: python -m benchmarks.jobs.image LOADER IMAGES SCRATCH [--f32] [--eval] [--workers N] [--prepare]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks import host, worker
from benchmarks.peers import image as peers
from benchmarks.peers.image_job import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loader", choices=sorted(peers.LOADERS))
    parser.add_argument("images", type=Path, help="folder of class folders of JPEGs")
    parser.add_argument("scratch", type=Path, help="where loaders keep their own form of the images")
    parser.add_argument("--f32", action="store_true", help="normalised float32 instead of uint8")
    parser.add_argument("--eval", action="store_true", help="Resize(256) and CenterCrop(224), in order")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--prepare", action="store_true", help="only make the loader's form of the images")
    arguments = parser.parse_args()
    arguments.scratch.mkdir(parents=True, exist_ok=True)
    worker.announce_baseline()
    job = Job(arguments.images, arguments.scratch, arguments.f32, arguments.workers, arguments.eval)
    loader = peers.LOADERS[arguments.loader]
    if arguments.prepare:
        loader.prepare(job)
        worker.finish({})
    result = worker.measure(lambda: loader.make(job), arguments.epochs, arguments.seconds)
    worker.finish({**result, "versions": host.versions(), "settings": loader.settings})


if __name__ == "__main__":
    main()
